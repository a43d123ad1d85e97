// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which eviction order a name means.
#include <dynbatch/base/config.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/cost_aware.hpp>
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/ttl.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/sim/eviction_name.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Calls `use(make)`, where make() gives an order of that name. False for the two that need more
/// than this, and for no name at all: Lru may have a pool compiled elsewhere, Belady has to know
/// the future.
template <class Use>
bool with_eviction(CacheEviction eviction, const StepCost& cost, std::int32_t block_size,
                   const Use& use) {
  switch (eviction) {
    case CacheEviction::Ttl:
      use([] { return Ttl<>(); });
      return true;
    case CacheEviction::Lfu:
      use([] { return Lfu(); });
      return true;
    case CacheEviction::Slru:
      use([] { return Slru(); });
      return true;
    case CacheEviction::Priority:
      use([] { return PriorityDuration(); });
      return true;
    case CacheEviction::Cost:
      use([&] { return CostAware({.cost = cost, .block_size = block_size}); });
      return true;
    case CacheEviction::Adaptive:
      use([] { return AdaptiveLru(); });
      return true;
    case CacheEviction::Lru:
    case CacheEviction::Belady:
      break;
  }
  return false;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
