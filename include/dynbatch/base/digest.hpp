// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Digest256: what a cryptographic hash makes of content.
#include <dynbatch/base/config.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A 256-bit digest. Equal digests mean equal content: nobody can make two contents that share one.
struct Digest256 {
  std::uint64_t words[4]{};
  friend constexpr bool operator==(const Digest256&, const Digest256&) noexcept = default;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
