// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
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

namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// A number of any size: uniform, or uniform in its logarithm, or one of the extremes.
std::int64_t any_size(SplitMix64& random) {
  switch (random.between(0, 7)) {
    case 0:
      return 0;
    case 1:
      return kLargest - random.between(0, 2);
    case 2:
      return random.between(0, 3);
    default:
      return static_cast<std::int64_t>(random.next() >> random.between(1, 63));
  }
}

StepCost any_cost(SplitMix64& random) {
  return {any_size(random), any_size(random), any_size(random),
          any_size(random), any_size(random), 1};
}

// The definition, in so many words.
template <class More>
bool is_largest(const StepCost& cost, DurationNs limit, std::int64_t n, std::int64_t most,
                More more) {
  const auto fits = [&](std::int64_t k) { return cost.predict(more(k)) <= limit; };
  return n >= 0 && n <= most && (n == 0 || fits(n)) && (n == most || !fits(n + 1) || !fits(0));
}

}  // namespace

TEST_CASE("how many tokens fit into 40 ms", "[model]") {
  constexpr StepCost cost{10'000'000, 45'000'000, 50'000'000, 20'000, 0, 1};
  // 40 - 10 - 100 x 0.05 - 50,000 x 2e-5 = 24 ms at 45 us a token: 533.3.
  constexpr StepWork decodes{0, 100, 50'000, 0};
  STATIC_REQUIRE(cost.prefill_tokens_within(milliseconds(40), decodes, 0, 8192) == 533);
  STATIC_REQUIRE(cost.prefill_tokens_within(milliseconds(40), decodes, 0, 500) == 500);
  STATIC_REQUIRE(cost.prefill_tokens_within(milliseconds(16), decodes, 0, 8192) == 0);
  STATIC_REQUIRE(cost.prefill_tokens_within(milliseconds(15), decodes, 0, 8192) == 0);
  STATIC_REQUIRE(cost.prefill_tokens_within({-1}, {}, 0, 8192) == 0);
  // 30 ms at 0.05 + 1,000 x 2e-5 = 0.07 ms a sequence: 428.6.
  STATIC_REQUIRE(cost.decode_rows_within(milliseconds(40), {}, 1000, 10'000) == 428);
  // With attention: 45 us a token and 2.5 ns a pair behind 8,000 positions: 65 us at first.
  StepCost attention = cost;
  attention.attention_pair_fs = 2'500'000;
  const std::int64_t n = attention.prefill_tokens_within(milliseconds(40), decodes, 8000, 8192);
  CHECK(n == 366);  // 366 x 0.065 + 366^2 x 1.25e-6 = 23.96 ms
}

TEST_CASE("the inverse of a prediction equals a linear search", "[model]") {
  SplitMix64 random(11);
  for (int trial = 0; trial < 4000; ++trial) {
    const StepCost cost{random.between(0, 20'000),    random.between(0, 3'000'000),
                        random.between(0, 3'000'000), random.between(0, 2000),
                        random.between(0, 3'000'000), 1};
    const StepWork work{random.between(0, 20), random.between(0, 9), random.between(0, 900),
                        random.between(0, 90'000)};
    const DurationNs limit{random.between(-10, 300'000)};
    const std::int64_t behind = random.one_in(2) ? 0 : random.between(0, 2000);
    const std::int64_t most = random.between(0, 400);
    const auto search = [&](auto more) {
      std::int64_t n = 0;
      while (n < most && cost.predict(more(n + 1)) <= limit) {
        ++n;
      }
      return n;
    };
    const auto prefill = [&](std::int64_t n) { return with_prefill(work, behind, n); };
    const auto decodes = [&](std::int64_t n) { return with_decodes(work, behind, n); };
    INFO("trial " << trial);
    REQUIRE(cost.prefill_tokens_within(limit, work, behind, most) == search(prefill));
    REQUIRE(cost.decode_rows_within(limit, work, behind, most) == search(decodes));
  }
}

TEST_CASE("the inverse of a prediction is exact for costs and limits of any size", "[model]") {
  SplitMix64 random(12);
  for (int trial = 0; trial < 100'000; ++trial) {
    const StepCost cost = any_cost(random);
    const StepWork work{any_size(random), any_size(random), any_size(random), any_size(random)};
    const DurationNs limit{any_size(random)};
    const std::int64_t behind = any_size(random);
    const std::int64_t most = any_size(random);
    INFO("trial " << trial);
    REQUIRE(is_largest(cost, limit, cost.prefill_tokens_within(limit, work, behind, most), most,
                       [&](std::int64_t n) { return with_prefill(work, behind, n); }));
    REQUIRE(is_largest(cost, limit, cost.decode_rows_within(limit, work, behind, most), most,
                       [&](std::int64_t n) { return with_decodes(work, behind, n); }));
  }
}
