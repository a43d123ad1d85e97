// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How a TieredPool uses the store behind its host memory, and what it counts of it.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/kv/block_keys.hpp>
#include <dynbatch/kv/circuit_breaker.hpp>
#include <dynbatch/model/load_wait.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Bounds and expectations. Read only where a pool has an external tier.
struct TierConfig {
  KVIdentity identity{};
  SlotMemory memory{};  ///< The engine's host slots: slot numbers as in BlockSwap::host_slot.
  /// A request waits at most so long for the store, then it is computed; > 0.
  DurationNs load_deadline = milliseconds(200);
  DurationNs store_deadline = seconds(5);  ///< A store operation that takes longer has failed; > 0.
  std::int32_t max_loads = 8;              ///< Prefixes asked for or fetched at once, in [1, 64].
  std::int32_t max_stores = 8;             ///< Store operations at once, in [0, 64]; 0 = read only.
  std::int32_t max_operation_blocks = 1024;  ///< Of one operation; >= 1.
  std::int64_t max_blocks_in_flight = 4096;  ///< Host slots lent to the tier at once; >= 1.
  std::int32_t min_gain_blocks = 4;          ///< Fetch only if it saves so many blocks; >= 1.
  std::int32_t min_touches = 1;  ///< Store a block when it is written (1), or found again so often.
  /// Time to compute a token, until the sizer has learned the step cost; 0 = always fetch.
  std::int64_t token_ns = 20'000;
  DurationNs latency = milliseconds(1);           ///< Of an operation, until it is measured.
  std::int64_t bytes_per_second = 1'000'000'000;  ///< Of a fetch, until it is measured; >= 1.
  CircuitBreaker::Config breaker{};

  [[nodiscard]] constexpr Status validate() const noexcept {
    if (memory.bytes == nullptr || memory.slot_bytes < 1) {
      return {Errc::InvalidConfig, "tier.memory", memory.slot_bytes, 1,
              "a tier has to reach the host slots"};
    }
    struct Bound {
      const char* field;
      std::int64_t value;
      std::int64_t least;
    };
    const Bound bounds[] = {
        {"tier.load_deadline", load_deadline.ns, 1},
        {"tier.store_deadline", store_deadline.ns, 1},
        {"tier.max_operation_blocks", max_operation_blocks, 1},
        {"tier.max_blocks_in_flight", max_blocks_in_flight, 1},
        {"tier.min_gain_blocks", min_gain_blocks, 1},
        {"tier.min_touches", min_touches, 1},
        {"tier.token_ns", token_ns, 0},
        {"tier.latency", latency.ns, 0},
        {"tier.bytes_per_second", bytes_per_second, 1},
    };
    for (const Bound& bound : bounds) {
      if (bound.value < bound.least) {
        return {Errc::InvalidConfig, bound.field, bound.value, bound.least,
                "must be at least the limit"};
      }
    }
    if (max_loads < 1 || max_loads > kMaxLoads) {
      return {Errc::InvalidConfig, "tier.max_loads", max_loads, kMaxLoads, "must be in [1, limit]"};
    }
    if (max_stores < 0 || max_stores > 64) {
      return {Errc::InvalidConfig, "tier.max_stores", max_stores, 64, "must be in [0, limit]"};
    }
    return breaker.validate();
  }
};

/// What came of the store. Counters, unless a line says otherwise.
struct TierStats {
  std::uint64_t queries = 0;         ///< Look-ups begun.
  std::uint64_t shared_loads = 0;    ///< Requests that joined the load of another.
  std::uint64_t misses = 0;          ///< Look-ups that found nothing.
  std::uint64_t declined = 0;        ///< Found, but not worth it, or no room for it.
  std::uint64_t fetches = 0;         ///< Fetches begun.
  std::uint64_t fetched_blocks = 0;  ///< Blocks that came and were found by a request.
  std::uint64_t stores = 0;          ///< Store operations begun.
  std::uint64_t stored_blocks = 0;
  std::uint64_t failures = 0;  ///< Operations that failed.
  std::uint64_t corrupt = 0;   ///< Of these, how many because the data were wrong.
  std::uint64_t timeouts = 0;  ///< Of these, how many because their time was over.
  std::uint64_t refusals = 0;  ///< Operations that the tier did not take.
  std::uint64_t dropped = 0;   ///< Blocks that were not stored since too many waited for it.
  std::uint64_t nonsense =
      0;  ///< Completions that nobody waits for, or that contradict their operation.
  std::uint64_t openings = 0;    ///< Of the circuit breaker.
  std::int64_t lent_blocks = 0;  ///< Host slots that the tier holds now.
};

}  // namespace dynbatch::inline DYNBATCH_ABI
