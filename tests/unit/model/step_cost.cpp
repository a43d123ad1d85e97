// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/model/step_cost.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

using namespace dynbatch;

TEST_CASE("a cost predicts the sum of its terms", "[model]") {
  constexpr StepCost cost{11'020'000, 44'600'000, 54'700'000, 27'900, 0, 1};
  STATIC_REQUIRE(cost.predict({}) == DurationNs{11'020'000});
  // 11.02 + 2048 * 0.0446 + 100 * 0.0547 + 100000 * 2.79e-5 ms
  CHECK(to_ms(cost.predict({2048, 100, 100'000, 0})) == Approx(110.6208));
  constexpr StepCost attention{0, 0, 0, 0, 5'000, 1};
  STATIC_REQUIRE(attention.predict({0, 0, 0, 1'000'000}) == DurationNs{5'000});
}

TEST_CASE("a prediction saturates instead of wrapping", "[model]") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr StepCost cost{kMost, kMost, kMost, kMost, kMost, 1};
  STATIC_REQUIRE(cost.predict({kMost, kMost, kMost, kMost}).ns == kMost);
}

TEST_CASE("nothing is known before the first version", "[model]") {
  STATIC_REQUIRE_FALSE(StepCost{}.is_known());
  STATIC_REQUIRE(StepCost{0, 0, 0, 0, 0, 1}.is_known());
}

TEST_CASE("attention work of a chunk counts its prefix and half of itself", "[model]") {
  STATIC_REQUIRE(chunk_attention_pairs(0, 1000) == 500'000);
  STATIC_REQUIRE(chunk_attention_pairs(1000, 1000) == 1'500'000);
}
