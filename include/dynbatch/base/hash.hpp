// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Mixing functions for tables and digests of decisions. None of them decides equality of content.
#include <dynbatch/base/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dynbatch::inline DYNBATCH_ABI {

/// Finaliser of splitmix64 (public domain, S. Vigna): a bijection with full avalanche.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// Order-dependent combination of two words.
[[nodiscard]] constexpr std::uint64_t combine64(std::uint64_t seed, std::uint64_t v) noexcept {
  return mix64(seed ^ (v + 0x9E3779B97F4A7C15ULL + (seed << 6U) + (seed >> 2U)));
}

/// Hash of `count` 32-bit words, 8 bytes a multiplication. O(count).
[[nodiscard]] inline std::uint64_t hash_words(const std::int32_t* words, std::size_t count,
                                              std::uint64_t seed) noexcept {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
  std::uint64_t a = seed ^ (count * kOdd);
  std::uint64_t b = ~seed;
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    std::uint64_t pair[2];
    std::memcpy(pair, words + i, sizeof(pair));
    a = (a ^ pair[0]) * kOdd;
    a ^= a >> 29U;
    b = (b ^ pair[1]) * 0xC2B2AE3D27D4EB4FULL;
    b ^= b >> 31U;
  }
  for (; i < count; ++i) {
    a = (a ^ static_cast<std::uint32_t>(words[i])) * kOdd;
    a ^= a >> 29U;
  }
  return mix64(a + (b << 17U | b >> 47U));
}

}  // namespace dynbatch::inline DYNBATCH_ABI
