// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/math.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

using namespace dynbatch;

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("minimum, maximum and clamp choose among their arguments", "[base]") {
  STATIC_REQUIRE(min_of(2, 3) == 2);
  STATIC_REQUIRE(min_of(3, 2) == 2);
  STATIC_REQUIRE(max_of(2, 3) == 3);
  STATIC_REQUIRE(max_of(3, 2) == 3);
  STATIC_REQUIRE(clamp_to(1, 2, 4) == 2);
  STATIC_REQUIRE(clamp_to(3, 2, 4) == 3);
  STATIC_REQUIRE(clamp_to(5, 2, 4) == 4);
}

TEST_CASE("division rounded up is right and reaches the largest value", "[base]") {
  STATIC_REQUIRE(ceil_div(0, 16) == 0);
  STATIC_REQUIRE(ceil_div(1, 16) == 1);
  STATIC_REQUIRE(ceil_div(16, 16) == 1);
  STATIC_REQUIRE(ceil_div(17, 16) == 2);
  STATIC_REQUIRE(ceil_div(kMost, 1) == kMost);
  STATIC_REQUIRE(ceil_div(kMost, 2) == kMost / 2 + 1);
}

TEST_CASE("saturating sums and products stop at the largest value", "[base]") {
  STATIC_REQUIRE(saturating_add(1, 2) == 3);
  STATIC_REQUIRE(saturating_add(kMost, 0) == kMost);
  STATIC_REQUIRE(saturating_add(kMost, 1) == kMost);
  STATIC_REQUIRE(saturating_add(kMost, kMost) == kMost);
  STATIC_REQUIRE(saturating_mul(3, 4) == 12);
  STATIC_REQUIRE(saturating_mul(0, kMost) == 0);
  STATIC_REQUIRE(saturating_mul(kMost, 0) == 0);
  STATIC_REQUIRE(saturating_mul(kMost, 1) == kMost);
  STATIC_REQUIRE(saturating_mul(kMost, 2) == kMost);
  STATIC_REQUIRE(saturating_mul(std::int64_t{1} << 32, std::int64_t{1} << 31) == kMost);
}

TEST_CASE("the next power of two is the least power that is not below", "[base]") {
  STATIC_REQUIRE(next_power_of_two(1) == 1);
  STATIC_REQUIRE(next_power_of_two(2) == 2);
  STATIC_REQUIRE(next_power_of_two(3) == 4);
  STATIC_REQUIRE(next_power_of_two(1025) == 2048);
  STATIC_REQUIRE(next_power_of_two(std::int64_t{1} << 62) == std::int64_t{1} << 62);
}

TEST_CASE("the largest number that fits is found from any guess in few calls", "[base]") {
  for (const std::int64_t most : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, kMost}) {
    for (const std::int64_t answer : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2},
                                      std::int64_t{999}, std::int64_t{1} << 62, kMost}) {
      for (const std::int64_t guess : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{1},
                                       std::int64_t{998}, std::int64_t{1001}, kMost}) {
        INFO("most " << most << ", answer " << answer << ", guess " << guess);
        int calls = 0;
        const auto fits = [&](std::int64_t n) {
          ++calls;
          return n <= answer;
        };
        CHECK(largest_fitting(guess, most, fits) == min_of(answer, most));
        CHECK(calls <= 127);
        CHECK((guess != answer || calls <= 2));
      }
    }
  }
  CHECK(largest_fitting(3, 9, [](std::int64_t) { return false; }) == 0);
  CHECK(largest_fitting(0, -1, [](std::int64_t) { return true; }) == 0);
}

TEST_CASE("an integer square root is exact", "[base]") {
  CHECK(integer_sqrt(-4) == 0);
  for (std::int64_t root = 0; root < 100'000; ++root) {
    REQUIRE(integer_sqrt(root * root) == root);
    REQUIRE(integer_sqrt(root * root + 2 * root) == root);
  }
  for (std::int64_t root = 3'037'000'499; root > 3'037'000'000; --root) {
    REQUIRE(integer_sqrt(root * root) == root);
    REQUIRE(integer_sqrt(root * root - 1) == root - 1);
  }
  CHECK(integer_sqrt(kMost) == 3'037'000'499);
}
