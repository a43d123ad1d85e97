// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a replay simulates, and what it returns.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// What is simulated. One unit is one engine; units share nothing.
struct ReplayConfig {
  std::int64_t kv_tokens = 600'000;  ///< KV places a unit; >= 1, rounded down to whole blocks.
  std::int32_t max_sequences = 256;  ///< Rows a unit; >= 1.
  std::int32_t block_size = 16;      ///< Tokens a block; >= 1.
  std::int64_t max_step_tokens =
      1 << 20;  ///< What one step may compute; policies set smaller budgets.
  std::int64_t max_new_tokens =
      8'192;                  ///< Requests are submitted with at least this; see max_new_of().
  bool cuts_outputs = false;  ///< Outputs longer than max_new_tokens are cut to it.
  std::int32_t units = 1;     ///< Request i goes to unit i mod units; >= 1.
  bool offline = false;       ///< Everything arrives at t = 0.
  double rate_scale = 1.0;    ///< Arrival times are divided by it; > 0.
  Slo slo{};                  ///< Set on every request.
  std::uint64_t seed = 1;     ///< Makes the prompts' contents.
  bool prefix_caching = true;
  void (*progress)(void* context,
                   double fraction) = nullptr;  ///< Called now and then; may be null.
  void* progress_context = nullptr;
  /// Takes the run's flight log piece by piece (prompts' digests included); null = no recorder.
  void (*flight_sink)(void* context, std::span<const std::byte> bytes) = nullptr;
  void* flight_context = nullptr;
  const char* flight_label = "";  ///< See SchedulerConfig; replay_policy() sets it to its policy.
  /// For replay_policy(), with `dynbatch` and `chunked`: any but Belady, with its default
  /// configuration (Cost: that of CacheReplayConfig). Elsewhere who makes the pool decides.
  CacheEviction eviction = CacheEviction::Lru;
  /// SchedulerConfig::max_waiting_requests and max_predicted_wait of each unit: what they refuse is
  /// gone (RequestStatus::Refused).
  std::int64_t max_waiting = 0;
  DurationNs max_wait = kUnbounded;

  [[nodiscard]] DYNBATCH_API Status validate() const noexcept;
};

/// The max_new_tokens that all requests of `trace` are submitted with: the larger of the configured
/// number and the longest output rounded up to a power of two, so that no policy learns a true
/// length from it; the configured number itself where it cuts.
[[nodiscard]] DYNBATCH_API std::int64_t max_new_of(const Trace& trace,
                                                   const ReplayConfig& config) noexcept;

/// Records in trace order, and what else was counted. `status` says why a run stopped early.
struct ReplayRun {
  Status status{};
  std::vector<SimulatedRequest> requests;
  RunTotals totals;
  [[nodiscard]] bool is_ok() const noexcept { return status.is_ok(); }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
