// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Counters and gauges of a scheduler and its pool.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// State of a pool, in blocks of its first group. free + cached + referenced = total.
struct PoolStats {
  std::int64_t total_blocks = 0;
  std::int64_t free_blocks = 0;        ///< Hold nothing.
  std::int64_t cached_blocks = 0;      ///< Hold a reusable prefix, referenced by nobody.
  std::int64_t referenced_blocks = 0;  ///< Each physical block once.
  std::int32_t block_size = 0;
  std::uint64_t evictions = 0;              ///< Cached blocks that lost their content.
  std::uint64_t prefix_queries_tokens = 0;  ///< Tokens looked up at admission.
  std::uint64_t prefix_hit_tokens = 0;      ///< Tokens found.
  std::int64_t host_blocks = 0;             ///< Blocks of another tier that hold a prefix.
  std::uint64_t loaded_blocks = 0;          ///< Blocks that came back from there.
  std::int64_t pinned_blocks = 0;           ///< Held by pins; part of the referenced ones.

  [[nodiscard]] constexpr std::int64_t available_blocks() const noexcept {
    return free_blocks + cached_blocks;
  }
};

/// Why the first waiting request does not run, or why there is no plan.
enum class WaitCause : std::uint8_t {
  None,
  Memory,       ///< Not enough KV blocks.
  Sequences,    ///< The sequence limit is reached.
  Budget,       ///< The token budget of the step is used up.
  Dependency,   ///< A started prefill will produce its next block.
  Resource,     ///< A named resource is used up.
  InFlight,     ///< It stands in a plan that is not settled.
  Composition,  ///< The admission policy runs something else first.
  Paused,
  Quota,    ///< The admission policy's own limit, such as a tenant's, is reached.
  Loading,  ///< An external store was asked for its prefix, not for longer than its deadline.
};

[[nodiscard]] constexpr const char* to_string(WaitCause cause) noexcept {
  switch (cause) {
    case WaitCause::None:
      return "none";
    case WaitCause::Memory:
      return "memory";
    case WaitCause::Sequences:
      return "sequences";
    case WaitCause::Budget:
      return "budget";
    case WaitCause::Dependency:
      return "dependency";
    case WaitCause::Resource:
      return "resource";
    case WaitCause::InFlight:
      return "in flight";
    case WaitCause::Composition:
      return "composition";
    case WaitCause::Paused:
      return "paused";
    case WaitCause::Quota:
      return "quota";
    case WaitCause::Loading:
      return "loading";
  }
  return "unknown";
}

/// Counters of a scheduler. submitted = rejected + live + finished + cancelled + expired + failed
/// once submit() calls have returned and the driving thread rests.
struct SchedulerStats {
  std::uint64_t submitted = 0;
  std::uint64_t rejected = 0;
  std::uint64_t live = 0;
  std::uint64_t finished = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t failed = 0;
  std::uint64_t waiting = 0;  ///< Accepted and not running.
  std::uint64_t running = 0;
  std::uint64_t queued_tokens = 0;  ///< Prompt tokens of live requests that were never admitted.
  std::uint64_t plans = 0;
  std::uint64_t plans_in_flight = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t prefill_tokens = 0;     ///< Prompt and recomputed tokens planned.
  std::uint64_t recomputed_tokens = 0;  ///< Tokens planned again after a preemption or a failure.
  std::uint64_t draft_tokens = 0;       ///< Draft tokens planned.
  std::uint64_t accepted_draft_tokens = 0;  ///< Of these, how many came true.
  std::uint64_t decode_tokens = 0;          ///< Decode tokens planned.
  std::uint64_t output_tokens = 0;          ///< Tokens delivered.
  std::uint64_t prefix_hit_tokens = 0;      ///< Prompt tokens served from the cache at admission.
  std::uint64_t prefix_query_tokens = 0;
  std::uint64_t flight_records_lost = 0;  ///< The flight log had no room for them.
};

/// Why plan() returned no plan.
enum class PlanState : std::uint8_t {
  Planned,          ///< The last plan() returned a plan.
  Idle,             ///< Nothing is live.
  NothingRunnable,  ///< `request` is the first that waits, `cause` says for what.
  InFlightLimit,    ///< max_plans_in_flight plans are not settled.
  NotBefore,        ///< The sizer asked for `not_before`.
  Paused,
  Closed,  ///< close() was called and nothing is live.
};

struct PlanStatus {
  PlanState state = PlanState::Idle;
  WaitCause cause = WaitCause::None;
  RequestId request{};
  /// NotBefore: the time to plan again. NothingRunnable, while a request waits for a store: plan
  /// again by then, and sooner to see sooner that the store has answered.
  TimeNs not_before{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
