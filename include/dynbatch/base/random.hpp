// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A small seeded generator whose stream is the same on every compiler and machine.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/hash.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// splitmix64: one 64-bit state, one stream a seed.
class SplitMix64 {
 public:
  constexpr explicit SplitMix64(std::uint64_t seed) noexcept : state_(seed) {}

  constexpr std::uint64_t next() noexcept {
    state_ += 0x9E3779B97F4A7C15ULL;
    return mix64(state_);
  }
  /// Uniform in [0, 1) with 53 bits.
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  /// Uniform in [low, high]; the modulo bias is below 2^-32 for ranges below 2^32.
  constexpr std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    const auto width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1U;
    const std::uint64_t draw = width == 0U ? next() : next() % width;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw);
  }
  /// True with probability 1 / n.
  constexpr bool one_in(std::int64_t n) noexcept { return between(1, n) == 1; }

 private:
  std::uint64_t state_;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
