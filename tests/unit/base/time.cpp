// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/time.hpp>

#include <catch2/catch.hpp>
#include <type_traits>

using namespace dynbatch;

TEST_CASE("times and durations combine as a clock does", "[base]") {
  constexpr TimeNs start{5'000};
  STATIC_REQUIRE(start + microseconds(2) == TimeNs{7'000});
  STATIC_REQUIRE(start - microseconds(2) == TimeNs{3'000});
  STATIC_REQUIRE(TimeNs{7'000} - start == microseconds(2));
  STATIC_REQUIRE(milliseconds(1) + microseconds(1) == DurationNs{1'001'000});
  STATIC_REQUIRE(milliseconds(1) - microseconds(1) == DurationNs{999'000});
  STATIC_REQUIRE(seconds(2) == milliseconds(2'000));
}

TEST_CASE("never is later than any time and unbounded longer than any span", "[base]") {
  STATIC_REQUIRE(TimeNs{} + seconds(1'000'000'000) < kNever);
  STATIC_REQUIRE(seconds(1'000'000'000) < kUnbounded);
}

TEST_CASE("durations convert to seconds and milliseconds", "[base]") {
  CHECK(to_seconds(milliseconds(1'500)) == Approx(1.5));
  CHECK(to_ms(microseconds(250)) == Approx(0.25));
}

TEST_CASE("a point of time is no span of time", "[base]") {
  STATIC_REQUIRE_FALSE(std::is_convertible_v<TimeNs, DurationNs>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<DurationNs, TimeNs>);
}
