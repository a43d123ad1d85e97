// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a mix's pool and its host have to agree on: KV groups beside the first, and which settings
/// stand together.
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/model/kv_group.hpp>

#include "engine_mix.hpp"
#include "engine_run.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dynbatch::test {

inline constexpr std::int32_t kMixContext = 128;
inline constexpr std::int32_t kMixDrafts = 4;

/// The settings that count: ingredients are drawn one by one, and some of them exclude others.
inline MixSettings compatible(MixSettings s, Planted planted) {
  if (planted == Planted::PendingKept || planted == Planted::ScopeDropped) {
    s.window = s.recurrent = s.store = 0;  // the pool with the error is one of one group
  }
  if (s.recurrent != 0) {
    s.drafts = s.unordered = 0;  // states can't be taken back
  }
  if (s.window != 0 || s.recurrent != 0 || s.caching == 0 || s.unordered != 0) {
    s.host_blocks = s.store = 0;
  }
  if (s.store != 0 && s.host_blocks == 0) {
    s.host_blocks = 16;
  }
  return s;
}

inline GroupSpec window_group(const MixSettings& s) {
  const std::int32_t size = s.window_scale < 0 ? 1 : s.block_size * std::max(s.window_scale, 1);
  return {GroupKind::Window, size, s.window};
}
inline GroupSpec state_group() { return {GroupKind::Recurrent, 1, 0}; }

/// Memory of a further group: what all rows together can need, and what is left for the cache.
inline std::int64_t blocks_of(const GroupSpec& spec, const MixSettings& s) {
  const std::int64_t longest = std::min<std::int64_t>(kMixContext, s.blocks * s.block_size);
  return s.group_spare +
         GroupedPool<>::blocks_needed(
             spec, {.max_rows = s.rows,
                    .max_context_tokens = longest,
                    .max_plans_in_flight = s.plans,
                    .in_order = s.unordered == 0,
                    .max_step_tokens = std::min<std::int64_t>(s.max_tokens, s.rows * longest)});
}

}  // namespace dynbatch::test
