// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Eviction orders by name, for simulations.
#include <dynbatch/base/config.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// Eviction orders by name. Each has its default configuration.
enum class CacheEviction : std::uint8_t {
  Lru,       ///< Lru.
  Ttl,       ///< Ttl over Lru.
  Lfu,       ///< Lfu.
  Slru,      ///< Slru.
  Priority,  ///< PriorityDuration; traces carry no priorities, so all are equal.
  Cost,      ///< CostAware with CacheReplayConfig::cost.
  Adaptive,  ///< AdaptiveLru.
  Belady     ///< Knows the rest of the trace: no order finds more.
};
struct CacheEvictionName {
  CacheEviction eviction;
  std::string_view name;
};
inline constexpr std::array<CacheEvictionName, 8> kCacheEvictions{
    {{CacheEviction::Lru, "lru"},
     {CacheEviction::Ttl, "ttl"},
     {CacheEviction::Lfu, "lfu"},
     {CacheEviction::Slru, "slru"},
     {CacheEviction::Priority, "priority"},
     {CacheEviction::Cost, "cost"},
     {CacheEviction::Adaptive, "adaptive"},
     {CacheEviction::Belady, "belady"}}};

}  // namespace dynbatch::inline DYNBATCH_ABI
