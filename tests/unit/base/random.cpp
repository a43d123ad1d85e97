// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

using namespace dynbatch;

TEST_CASE("splitmix64 gives the published stream", "[base]") {
  SplitMix64 random(0);
  CHECK(random.next() == 0xE220A8397B1DCDAFULL);
  CHECK(random.next() == 0x6E789E6AA1B965F4ULL);
  CHECK(random.next() == 0x06C45D188009454FULL);
}

TEST_CASE("uniform lies in the half-open unit interval with mean one half", "[base]") {
  SplitMix64 random(7);
  double sum = 0.0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
  }
  CHECK(sum / kDraws == Approx(0.5).margin(0.01));
}

TEST_CASE("between reaches both ends and never leaves them", "[base]") {
  SplitMix64 random(3);
  int low = 0;
  int high = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t v = random.between(-2, 2);
    REQUIRE(v >= -2);
    REQUIRE(v <= 2);
    low += v == -2 ? 1 : 0;
    high += v == 2 ? 1 : 0;
  }
  CHECK(low > 100);
  CHECK(high > 100);
  CHECK(random.between(9, 9) == 9);
  // The whole range has a width of 2^64: the draw itself.
  (void)random.between(std::numeric_limits<std::int64_t>::min(),
                       std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("one in n hits about one time in n", "[base]") {
  SplitMix64 random(11);
  int hits = 0;
  for (int i = 0; i < 8000; ++i) {
    hits += random.one_in(8) ? 1 : 0;
  }
  CHECK(hits == Approx(1000).margin(120));
  CHECK(random.one_in(1));
}
