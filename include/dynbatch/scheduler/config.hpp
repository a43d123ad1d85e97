// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Configuration of a Scheduler.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/watch.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Most named resources a scheduler can bound.
inline constexpr std::size_t kMaxResources = 4;
/// Most draft tokens a sequence may carry in one step.
inline constexpr std::int32_t kMaxDrafts = 64;
/// Most samples of one request.
inline constexpr std::int32_t kMaxSamples = 64;
/// Largest SchedulerConfig::max_media_spans.
inline constexpr std::int32_t kMaxMediaSpans = 65536;
/// Most data-parallel ranks.
inline constexpr std::int32_t kMaxRanks = 4096;
/// Most plans that may be in flight.
inline constexpr std::int32_t kMaxPlansInFlight = 8;

/// Smallest ring of the flight recorder, in bytes.
inline constexpr std::int64_t kMinFlightLogBytes = 4096;

/// Sizes are allocated once, at make(); they cost address space until used.
struct SchedulerConfig {
  /// Requests between submit() and the delivery of their terminal event; >= 1.
  std::int64_t max_live_requests = 4096;
  /// Tokens (prompt + the most it may produce) of all live requests; submit() answers QueueFull
  /// beyond. 0 = max_live_requests * min(max_context_tokens, 16384).
  std::int64_t max_queued_tokens = 0;
  /// Longest sequence, in KV positions. 0 = the pool's size, at most 131,072.
  std::int64_t max_context_tokens = 0;
  /// Plans not yet settled; 1..kMaxPlansInFlight.
  std::int32_t max_plans_in_flight = 1;
  /// Data-parallel ranks that step together; 1 = this scheduler is alone. With more, plan()
  /// composes and seal() finishes the plan once the summaries of all ranks are known; a rank
  /// without work takes part with a dummy plan.
  std::int32_t num_ranks = 1;
  /// Which of the ranks this is; 0..num_ranks - 1.
  std::int32_t rank = 0;
  /// Most draft tokens a sequence may carry in one step; 0 = drafts are ignored; at most
  /// kMaxDrafts.
  std::int32_t max_draft_tokens = 0;
  /// How often a request's chunk may fail or be lost before the request fails; >= 0.
  std::int32_t max_retries = 2;
  /// Caps of the host's named resources (ResourceNeed::resource is the index); 0 = not offered.
  std::int64_t resource_caps[kMaxResources]{};
  /// Media items a request may have whose content takes part in prefix sharing; from the next one
  /// on nothing of it is shared. >= 0, at most kMaxMediaSpans.
  std::int32_t max_media_spans = 64;
  /// Ring of the flight recorder in bytes; 0 = off, else at least kMinFlightLogBytes. Drain it with
  /// drain_log(); what finds no room is counted and marked in the log.
  std::int64_t flight_log_bytes = 0;
  /// Whether the flight log holds prompts and outputs (their digests, where a prompt was given as
  /// digests). Without them it holds lengths only, and plans over a pool that shares prefixes
  /// cannot be replayed.
  bool flight_log_prompts = false;
  /// Names the policies in the flight log, for whoever replays it; copied, at most 255 characters.
  const char* flight_label = "";
  /// Requests that were taken in and never ran; submit() answers QueueFull beyond, exactly, however
  /// many threads submit at once. Who runs, or waits again after a preemption, doesn't count. 0 =
  /// no limit but the ones above; at most 2^24.
  std::int64_t max_waiting_requests = 0;
  /// submit() answers QueueFull if the request is predicted to wait longer until it runs: requests
  /// that wait x the measured time in which one of them leaves the queue. At least one may always
  /// wait; no prediction while none does. >= 1 ns; kUnbounded = off.
  DurationNs max_predicted_wait = kUnbounded;
  /// Bounds of Status::retry_after; 0 <= min <= max <= 1 day.
  DurationNs min_retry_after = milliseconds(10);
  DurationNs max_retry_after = seconds(60);
  /// Statistics by class and tenant, and alerts; off by default.
  WatchConfig watch{};

  [[nodiscard]] constexpr Status validate() const noexcept {
    if (max_live_requests < 1 || max_live_requests > (std::int64_t{1} << 24)) {
      return {Errc::InvalidConfig, "max_live_requests", max_live_requests, std::int64_t{1} << 24,
              "must be from 1 to 2^24"};
    }
    if (max_queued_tokens < 0) {
      return {Errc::InvalidConfig, "max_queued_tokens", max_queued_tokens, 0,
              "must not be negative"};
    }
    if (max_context_tokens < 0 || max_context_tokens > (std::int64_t{1} << 30)) {
      return {Errc::InvalidConfig, "max_context_tokens", max_context_tokens, std::int64_t{1} << 30,
              "must be from 0 to 2^30"};
    }
    if (max_plans_in_flight < 1 || max_plans_in_flight > kMaxPlansInFlight) {
      return {Errc::InvalidConfig, "max_plans_in_flight", max_plans_in_flight, kMaxPlansInFlight,
              "must be from 1 to 8"};
    }
    if (num_ranks < 1 || num_ranks > kMaxRanks) {
      return {Errc::InvalidConfig, "num_ranks", num_ranks, kMaxRanks, "must be from 1 to 4096"};
    }
    if (rank < 0 || rank >= num_ranks) {
      return {Errc::InvalidConfig, "rank", rank, num_ranks - 1, "must be from 0 to num_ranks - 1"};
    }
    if (max_draft_tokens < 0 || max_draft_tokens > kMaxDrafts) {
      return {Errc::InvalidConfig, "max_draft_tokens", max_draft_tokens, kMaxDrafts,
              "must be from 0 to 64"};
    }
    if (max_retries < 0) {
      return {Errc::InvalidConfig, "max_retries", max_retries, 0, "must not be negative"};
    }
    if (max_media_spans < 0 || max_media_spans > kMaxMediaSpans) {
      return {Errc::InvalidConfig, "max_media_spans", max_media_spans, kMaxMediaSpans,
              "must be from 0 to 65536"};
    }
    for (const std::int64_t cap : resource_caps) {
      if (cap < 0) {
        return {Errc::InvalidConfig, "resource_caps", cap, 0, "must not be negative"};
      }
    }
    if (flight_log_bytes != 0 &&
        (flight_log_bytes < kMinFlightLogBytes || flight_log_bytes > (std::int64_t{1} << 40))) {
      return {Errc::InvalidConfig, "flight_log_bytes", flight_log_bytes, kMinFlightLogBytes,
              "must be 0 (off) or from 4096 to 2^40"};
    }
    if (flight_label == nullptr) {
      return {Errc::InvalidConfig, "flight_label", 0, 0, "must not be a null pointer"};
    }
    if (max_waiting_requests < 0 || max_waiting_requests > (std::int64_t{1} << 24)) {
      return {Errc::InvalidConfig, "max_waiting_requests", max_waiting_requests,
              std::int64_t{1} << 24, "must be from 0 (no limit) to 2^24"};
    }
    if (max_predicted_wait.ns < 1) {
      return {Errc::InvalidConfig, "max_predicted_wait", max_predicted_wait.ns, 1,
              "must be at least 1 ns"};
    }
    if (max_retry_after.ns < 0 || max_retry_after > seconds(86'400)) {
      return {Errc::InvalidConfig, "max_retry_after", max_retry_after.ns, seconds(86'400).ns,
              "must be from 0 to one day"};
    }
    if (min_retry_after.ns < 0 || min_retry_after > max_retry_after) {
      return {Errc::InvalidConfig, "min_retry_after", min_retry_after.ns, max_retry_after.ns,
              "must be from 0 to max_retry_after"};
    }
    return watch.validate();
  }
};

/// Why a plan will never be committed.
enum class AbandonReason : std::uint8_t {
  NotRun,  ///< Nothing of it ran; its work is planned again without a charge.
  Lost,    ///< It may have run in part; its work is planned again and charged as a retry.
  Fatal,   ///< Its requests fail.
};

/// What pause() stops.
enum class PauseMode : std::uint8_t {
  New,  ///< No admission; running requests go on.
  All,  ///< No plan at all.
};

}  // namespace dynbatch::inline DYNBATCH_ABI
