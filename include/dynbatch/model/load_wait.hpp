// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// LoadWait: a waiting request whose prefix an external store may have.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Most prefixes that a pool has loaded from a store at once.
inline constexpr std::int32_t kMaxLoads = 64;

/// What a pool with a store behind it remembers of a waiting request; reset when it is queued.
struct LoadWait {
  std::int32_t load = -1;      ///< Which load it waits for, in [0, kMaxLoads); the pool's numbers.
  std::int32_t num_waits = 0;  ///< How often it has waited.
  std::int64_t best_blocks = -1;  ///< It asks again only if it finds more than that.
  TimeNs until{};                 ///< It waits no longer than that.
};

}  // namespace dynbatch::inline DYNBATCH_ABI
