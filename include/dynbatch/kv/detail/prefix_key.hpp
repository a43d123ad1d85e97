// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PrefixKey: the identity of a cached prefix, for what is kept beside the block that ends it.
#include <dynbatch/base/config.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// A place among those of all prefixes and the identity that has it now. Places are used again,
/// identities never.
struct PrefixKey {
  std::int32_t place = -1;
  std::uint64_t id = 0;  ///< 0 = no prefix.
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
