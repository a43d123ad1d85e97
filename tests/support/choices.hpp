// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where a random test gets its choices from: a seed, or the bytes of a fuzzer.
#include <dynbatch/base/random.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace dynbatch::test {

/// Choices without end.
class SeededChoices : public SplitMix64 {
 public:
  using SplitMix64::SplitMix64;
  [[nodiscard]] static constexpr bool is_done() noexcept { return false; }
};

/// Choices made of given bytes, as many for each as its range needs. When they are used up, each
/// choice is the lowest one, and a run that asks is_done() ends.
class ByteChoices {
 public:
  explicit ByteChoices(std::span<const std::uint8_t> bytes) noexcept : bytes_(bytes) {}

  std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    const auto width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    std::uint64_t value = 0;
    for (std::uint64_t rest = width; rest != 0; rest >>= 8U) {
      if (next_ == bytes_.size()) {
        return low;
      }
      value = value << 8U | bytes_[next_++];
    }
    const std::uint64_t draw = width == UINT64_MAX ? value : value % (width + 1);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw);
  }
  bool one_in(std::int64_t n) noexcept { return between(1, n) == 1; }
  [[nodiscard]] bool is_done() const noexcept { return next_ == bytes_.size(); }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
};

/// What a run throws that finds a mistake: it fails a test, and ends a fuzz target.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void violated(const char* condition, const char* file, int line) {
  throw Violation(std::string(condition) + " (" + file + ":" + std::to_string(line) + ")");
}

}  // namespace dynbatch::test

/// Throws a Violation unless the condition holds. Costs a branch, unlike the macros of a test
/// framework.
#define DYNBATCH_EXPECT(...)                             \
  (static_cast<bool>(__VA_ARGS__) ? static_cast<void>(0) \
                                  : ::dynbatch::test::violated(#__VA_ARGS__, __FILE__, __LINE__))
