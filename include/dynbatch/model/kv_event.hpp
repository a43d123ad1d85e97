// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KV cache events: what a router or an external index needs to rebuild the prefix tree.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Identity of a cached prefix inside one pool: never reused while the pool lives. 0 = the root.
struct PrefixId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(PrefixId, PrefixId) noexcept = default;
};

enum class KvEventKind : std::uint8_t { Stored, Removed, Cleared };

/// One change of the set of cached prefixes, numbered without gaps.
struct KvEvent {
  KvEventKind kind = KvEventKind::Stored;
  std::uint64_t sequence = 0;  ///< Starts at 1.
  PrefixId prefix{};
  PrefixId parent{};
  std::uint64_t content_hash = 0;  ///< Hash of the block's own content.
  BlockId block{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
