// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The few integer helpers that policy headers need without the weight of the algorithm header.
#include <dynbatch/base/config.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

template <class T>
[[nodiscard]] constexpr T min_of(T a, T b) noexcept {
  return b < a ? b : a;
}
template <class T>
[[nodiscard]] constexpr T max_of(T a, T b) noexcept {
  return a < b ? b : a;
}
template <class T>
[[nodiscard]] constexpr T clamp_to(T v, T low, T high) noexcept {
  return v < low ? low : (high < v ? high : v);
}
/// Quotient rounded up; `b` > 0, `a` >= 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}
/// Sum that stops at the largest int64 instead of wrapping; both operands >= 0.
[[nodiscard]] constexpr std::int64_t saturating_add(std::int64_t a, std::int64_t b) noexcept {
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}
/// Sum of any two numbers that stops at the smallest and the largest int64 instead of wrapping.
[[nodiscard]] constexpr std::int64_t saturating_sum(std::int64_t a, std::int64_t b) noexcept {
  constexpr std::int64_t kLeast = INT64_MIN;
  constexpr std::int64_t kMost = INT64_MAX;
  if (b >= 0) {
    return a > kMost - b ? kMost : a + b;
  }
  return a < kLeast - b ? kLeast : a + b;
}
/// Product that stops at the largest int64 instead of wrapping; both operands >= 0.
[[nodiscard]] constexpr std::int64_t saturating_mul(std::int64_t a, std::int64_t b) noexcept {
  return a != 0 && b > INT64_MAX / a ? INT64_MAX : a * b;
}
/// The next power of two >= v, for 1 <= v <= 2^62.
[[nodiscard]] constexpr std::int64_t next_power_of_two(std::int64_t v) noexcept {
  std::int64_t p = 1;
  while (p < v) {
    p *= 2;
  }
  return p;
}

/// Largest integer whose square is not above `n`; 0 for a negative one. Newton, from above.
[[nodiscard]] constexpr std::int64_t integer_sqrt(std::int64_t n) noexcept {
  if (n < 1) {
    return 0;
  }
  const int bits = 64 - __builtin_clzll(static_cast<unsigned long long>(n));
  std::int64_t root = std::int64_t{1} << (bits + 1) / 2;
  for (std::int64_t next = (root + n / root) / 2; next < root; next = (root + n / root) / 2) {
    root = next;
  }
  return root;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
