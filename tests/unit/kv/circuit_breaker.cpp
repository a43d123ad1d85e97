// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/circuit_breaker.hpp>

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;
using State = CircuitBreaker::State;

namespace {

constexpr TimeNs at(std::int64_t ms) { return TimeNs{ms * 1'000'000}; }

CircuitBreaker make() {
  return CircuitBreaker(
      {.max_failures = 3, .first_pause = milliseconds(100), .longest_pause = milliseconds(300)});
}

void fail(CircuitBreaker& breaker, TimeNs now) {
  REQUIRE(breaker.allows(now));
  breaker.note_end(breaker.note_begin(), false, now);
}

}  // namespace

TEST_CASE("CircuitBreaker names a configuration that makes no sense") {
  CHECK(std::string(CircuitBreaker::Config{.max_failures = 0}.validate().field) == "max_failures");
  CHECK(std::string(CircuitBreaker::Config{.first_pause = {0}}.validate().field) == "first_pause");
  CHECK(std::string(CircuitBreaker::Config{.first_pause = seconds(60)}.validate().field) ==
        "longest_pause");
  CHECK(CircuitBreaker::Config{}.validate().is_ok());
}

TEST_CASE("It opens after failures in a row, and only in a row") {
  CircuitBreaker breaker = make();
  fail(breaker, at(0));
  fail(breaker, at(0));
  breaker.note_end(breaker.note_begin(), true, at(0));
  fail(breaker, at(0));
  fail(breaker, at(0));
  CHECK(breaker.state() == State::Closed);
  fail(breaker, at(10));
  CHECK(breaker.state() == State::Open);
  CHECK_FALSE(breaker.allows(at(109)));
  CHECK(breaker.allows(at(110)));  // the bound belongs to the time after
  CHECK(breaker.num_openings() == 1);
}

TEST_CASE("Half open it tries once, then closes or waits twice as long") {
  CircuitBreaker breaker = make();
  for (int i = 0; i < 3; ++i) {
    fail(breaker, at(0));
  }
  std::uint64_t trial = breaker.note_begin();
  CHECK(breaker.state() == State::HalfOpen);
  CHECK_FALSE(breaker.allows(at(500)));
  breaker.note_end(trial, false, at(100));
  CHECK_FALSE(breaker.allows(at(299)));
  fail(breaker, at(300));
  CHECK_FALSE(breaker.allows(at(599)));  // at most the longest pause
  trial = breaker.note_begin();
  breaker.note_void(trial);  // called off
  CHECK(breaker.allows(at(600)));
  breaker.note_end(breaker.note_begin(), true, at(600));
  CHECK(breaker.state() == State::Closed);
  for (int i = 0; i < 3; ++i) {
    fail(breaker, at(700));
  }
  CHECK(breaker.allows(at(800)));  // back to the first pause
}

TEST_CASE("What began before it opened is no news") {
  CircuitBreaker breaker = make();
  const std::uint64_t old = breaker.note_begin();
  for (int i = 0; i < 3; ++i) {
    fail(breaker, at(0));
  }
  breaker.note_end(old, true, at(50));
  CHECK(breaker.state() == State::Open);
  const std::uint64_t trial = breaker.note_begin();
  breaker.note_end(old, false, at(120));
  CHECK(breaker.state() == State::HalfOpen);
  breaker.note_end(trial, true, at(130));
  CHECK(breaker.state() == State::Closed);
}
