// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockKey: the name of a KV block outside this process.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/digest.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Digest of all that a block's KV depends on: the whole prefix up to its end, the model, the form
/// of the data, the scope. Equal keys mean equal KV, in every process.
using BlockKey = Digest256;

/// Where the keys of a prefix start.
struct KeyRoot {
  BlockKey digest{};  ///< Of everything but the tokens.
  /// Of the first tokens only, and nothing that is trusted: tells a store's operator that a miss is
  /// one of identity, since the same text lies there under another root.
  std::uint64_t family = 0;
  friend constexpr bool operator==(const KeyRoot&, const KeyRoot&) noexcept = default;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
