// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SHA-256, so that a report can name the exact trace it was made from.
#include <dynbatch/base/config.hpp>

#include <string>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// SHA-256 (FIPS 180-4) of `bytes` as 64 lower-case hexadecimal digits. O(bytes).
DYNBATCH_API std::string sha256_hex(std::string_view bytes);

}  // namespace dynbatch::inline DYNBATCH_ABI
