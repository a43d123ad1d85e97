// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Comparing and copying block content: short runs of 32-bit words, inline.
#include <dynbatch/base/config.hpp>

#include <cstddef>
#include <cstring>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

using Wide [[gnu::vector_size(16)]] = long long;

// 16 bytes from any address.
[[nodiscard]] inline Wide load_wide(const unsigned char* from) noexcept {
  Wide wide;
  std::memcpy(&wide, from, sizeof(wide));
  return wide;
}

/// memcmp() == 0 for counts that are multiples of 4, inline and wide for multiples of 64.
[[nodiscard]] inline bool equal_words(const void* left, const void* right,
                                      std::size_t bytes) noexcept {
  const auto* a = static_cast<const unsigned char*>(left);
  const auto* b = static_cast<const unsigned char*>(right);
  for (; bytes >= 64; bytes -= 64, a += 64, b += 64) {
    const Wide low = (load_wide(a) ^ load_wide(b)) | (load_wide(a + 16) ^ load_wide(b + 16));
    const Wide high =
        (load_wide(a + 32) ^ load_wide(b + 32)) | (load_wide(a + 48) ^ load_wide(b + 48));
    const Wide differ = low | high;
    if ((differ[0] | differ[1]) != 0) {
      return false;
    }
  }
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

/// memcpy() of a multiple of 4 bytes, inline and wide for multiples of 64.
inline void copy_words(void* to, const void* from, std::size_t bytes) noexcept {
  auto* a = static_cast<unsigned char*>(to);
  const auto* b = static_cast<const unsigned char*>(from);
  for (; bytes >= 64; bytes -= 64, a += 64, b += 64) {
    std::memcpy(a, b, 64);
  }
  if (bytes != 0) {
    std::memcpy(a, b, bytes);
  }
}

}  // namespace detail

}  // namespace dynbatch::inline DYNBATCH_ABI
