// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a scheduler says about itself while it runs: statistics by class and tenant, the head of
/// the queue, and alerts.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/stats.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// What an alert may measure.
enum class AlertKind : std::uint8_t {
  QueueLength,       ///< Requests that wait, also those preempted.
  QueueHeadAge,      ///< How long the head of the queue has waited, in ms; 0 = nobody waits.
  KvUse,             ///< Referenced KV blocks, in permille of the pool.
  TtftMisses,        ///< Requests whose first token came late, in permille of those judged.
  TpotMisses,        ///< Requests whose tokens came too slowly, in permille of those judged.
  RecomputedTokens,  ///< Prompt tokens planned again, in permille of all that were planned.
};
inline constexpr std::size_t kNumAlertKinds = 6;
/// Alerts that are kept until drain_alerts(); older ones are dropped, and counted.
inline constexpr std::size_t kMaxPendingAlerts = 64;
/// Largest WatchConfig::max_tenants.
inline constexpr std::int32_t kMaxWatchedTenants = 65'536;

[[nodiscard]] constexpr const char* to_string(AlertKind kind) noexcept {
  switch (kind) {
    case AlertKind::QueueLength:
      return "queue length";
    case AlertKind::QueueHeadAge:
      return "queue head age";
    case AlertKind::KvUse:
      return "KV use";
    case AlertKind::TtftMisses:
      return "TTFT misses";
    case AlertKind::TpotMisses:
      return "TPOT misses";
    case AlertKind::RecomputedTokens:
      return "recomputed tokens";
  }
  return "unknown";
}

/// When an alert is raised and cleared. Between the two values it stays what it is.
struct AlertRule {
  std::int64_t raise_at = 0;  ///< Raised at this value and above; 0 = no alert.
  std::int64_t clear_at = 0;  ///< Cleared at this value and below; 0 <= clear_at < raise_at.
  DurationNs hold{};          ///< So long a value has to stand before either happens; >= 0.
};

/// An alert was raised or cleared.
struct Alert {
  AlertKind kind = AlertKind::QueueLength;
  bool is_raised = false;
  std::int64_t value = 0;  ///< What was measured then.
  std::int64_t bound = 0;  ///< raise_at or clear_at.
  TimeNs time{};
};

/// What is watched. All of it is allocated at make(); nothing set costs nothing.
struct WatchConfig {
  /// Count by class, and why requests wait. Implied by what follows.
  bool has_statistics = false;
  /// Tenants with counts of their own, the first ones that come; further ones are counted together.
  /// 0..kMaxWatchedTenants.
  std::int32_t max_tenants = 0;
  /// One rule a kind, by index.
  AlertRule alerts[kNumAlertKinds]{};
  /// What the shares (misses, recomputed tokens) are taken over: the newest so long, moving on in
  /// sixteenths; >= 16 ns.
  DurationNs window = seconds(10);
  /// Requests that must have been judged within the window to raise an alert of misses; to clear it
  /// any number will do, also none. >= 1.
  std::int64_t min_judged = 10;

  [[nodiscard]] constexpr AlertRule& rule(AlertKind kind) noexcept {
    return alerts[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] constexpr bool has_alerts() const noexcept {
    for (const AlertRule& rule : alerts) {
      if (rule.raise_at > 0) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] constexpr bool is_on() const noexcept {
    return has_statistics || max_tenants > 0 || has_alerts();
  }

  [[nodiscard]] constexpr Status validate() const noexcept {
    if (max_tenants < 0 || max_tenants > kMaxWatchedTenants) {
      return {Errc::InvalidConfig, "watch.max_tenants", max_tenants, kMaxWatchedTenants,
              "must be from 0 to 65,536"};
    }
    for (const AlertRule& rule : alerts) {
      if (rule.raise_at < 0) {
        return {Errc::InvalidConfig, "watch.alerts.raise_at", rule.raise_at, 0,
                "must not be negative"};
      }
      if (rule.raise_at > 0 && (rule.clear_at < 0 || rule.clear_at >= rule.raise_at)) {
        return {Errc::InvalidConfig, "watch.alerts.clear_at", rule.clear_at, rule.raise_at,
                "must be from 0 to below raise_at"};
      }
      if (rule.hold.ns < 0) {
        return {Errc::InvalidConfig, "watch.alerts.hold", rule.hold.ns, 0, "must not be negative"};
      }
    }
    if (window.ns < 16) {
      return {Errc::InvalidConfig, "watch.window", window.ns, 16, "must be at least 16 ns"};
    }
    if (min_judged < 1) {
      return {Errc::InvalidConfig, "watch.min_judged", min_judged, 1, "must be at least 1"};
    }
    return kOk;
  }
};

/// Counts of the requests of one class or tenant since make(). submitted = refused + those that the
/// driving thread took in, and these = live + finished + cancelled + expired + failed.
struct RequestStats {
  std::uint64_t submitted = 0;
  std::uint64_t refused = 0;   ///< By submit(), for any reason.
  std::uint64_t admitted = 0;  ///< Had a chunk planned.
  std::uint64_t finished = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t failed = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t prompt_tokens = 0;      ///< Of all that were taken in.
  std::uint64_t output_tokens = 0;      ///< Of all that have ended, all samples together.
  std::uint64_t prefix_hit_tokens = 0;  ///< Found in the cache, at each admission.
  std::uint64_t recomputed_tokens = 0;  ///< Planned again after a preemption or a failure.
  /// Each request with a Slo is judged once: TTFT at its first token, or when it ends without one
  /// (then late only if the limit had passed, and in time only if it finished); TPOT at its end if
  /// a sample has two tokens, missed if any sample's tokens came too slowly.
  std::uint64_t ttft_met = 0;
  std::uint64_t ttft_missed = 0;
  std::uint64_t tpot_met = 0;
  std::uint64_t tpot_missed = 0;
  /// From being taken in to the plan with the first chunk: the sum over `admitted`, and the
  /// longest.
  DurationNs queue_time{};
  DurationNs max_queue_time{};

  friend bool operator==(const RequestStats&, const RequestStats&) noexcept = default;
};

/// Counts of one tenant.
struct TenantStats {
  std::uint64_t tenant = 0;
  RequestStats requests{};
};

/// Who is first in the queue. Requests set aside for their quota or a load stand in no queue.
struct QueueHead {
  bool is_there = false;
  RequestId request{};
  /// Why it did not run when a plan() last composed a step; None = none has since it came.
  WaitCause cause = WaitCause::None;
  TimeNs since{};  ///< It was taken in, or lost its place.
};

}  // namespace dynbatch::inline DYNBATCH_ABI
