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
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
/// The next power of two >= v, for 1 <= v <= 2^62.
[[nodiscard]] constexpr std::int64_t next_power_of_two(std::int64_t v) noexcept {
  std::int64_t p = 1;
  while (p < v) {
    p *= 2;
  }
  return p;
}

/// Largest integer whose square is not above `n`; 0 for a negative one. Exact: the root in doubles
/// is a guess.
[[nodiscard]] constexpr std::int64_t integer_sqrt(std::int64_t n) noexcept {
  constexpr std::int64_t kMostRoot = 3'037'000'499;  // of the largest int64
  if (n < 1) {
    return 0;
  }
  std::int64_t root =
      min_of(static_cast<std::int64_t>(__builtin_sqrt(static_cast<double>(n))), kMostRoot);
  while (root * root > n) {
    --root;
  }
  while (root < kMostRoot && (root + 1) * (root + 1) <= n) {
    ++root;
  }
  return root;
}

/// Largest n in [0, most] for which `fits(n)` holds, 0 if there is none, given that `fits` never
/// holds again once it has failed. Gallops from `guess`, then bisects: two calls where the guess is
/// right, O(log of its error), 127 at most.
template <class F>
[[nodiscard]] constexpr std::int64_t largest_fitting(std::int64_t guess, std::int64_t most,
                                                     F fits) noexcept {
  std::int64_t low = 0;
  std::int64_t high = max_of<std::int64_t>(most, 0);
  const std::int64_t first = clamp_to(guess, low, high);
  if (fits(first)) {
    low = first;
    for (std::int64_t step = 1; low < high; step = saturating_add(step, step)) {
      const std::int64_t next = low + min_of(step, high - low);
      if (!fits(next)) {
        high = next - 1;
        break;
      }
      low = next;
    }
  } else {
    high = max_of<std::int64_t>(first - 1, 0);
    for (std::int64_t step = 0; low < high; step = saturating_add(step, step + 1)) {
      const std::int64_t next = high - min_of(step, high - low);
      if (fits(next)) {
        low = next;
        break;
      }
      high = max_of<std::int64_t>(next - 1, 0);
    }
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2 + 1;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
