// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KV groups: layers whose cache has one shape and lifetime rule share a group.
#include <dynbatch/base/config.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Most groups a pool and a plan may have.
inline constexpr std::size_t kMaxGroups = 8;

/// How long a group's KV of a position is needed.
enum class GroupKind : std::uint8_t {
  Full,       ///< Every position, for the whole residence.
  Window,     ///< The last `window` positions, a token's own included.
  Recurrent,  ///< One state a sequence, replaced in place.
};

/// Shape of one group.
struct GroupSpec {
  GroupKind kind = GroupKind::Full;
  std::int32_t block_size = 16;  ///< Tokens a block; 1 for Recurrent, whose blocks are states.
  std::int32_t window = 0;       ///< Tokens; GroupKind::Window only.

  friend constexpr bool operator==(const GroupSpec&, const GroupSpec&) noexcept = default;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
