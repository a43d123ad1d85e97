// SPDX-License-Identifier: Apache-2.0
/// \file
/// Requests whose first token can't be in time any more stand behind the others.
#include <dynbatch/batch/dynamic_sizer.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <utility>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

Status submit_slo(SmallScheduler& s, std::uint64_t id, std::int64_t length, DurationNs ttft,
                  TimeNs arrival = {}) {
  SmallRequest r(id, length, 1);
  r.request.arrival = arrival;
  r.request.slo.ttft = ttft;
  return s.submit(r.view());
}

SmallScheduler make_patient(std::int32_t patience, bool caching = false) {
  SmallOptions o;
  o.budget = 64;
  o.caching = caching;
  o.admission.late_patience = patience;
  return make_small(o);
}

constexpr TimeNs at(std::int64_t ms) { return TimeNs{ms * 1'000'000}; }

}  // namespace

TEST_CASE("Who waits and is late stands behind who is in time", "[scheduler]") {
  const std::int32_t patience = GENERATE(0, 8);
  SmallScheduler s = make_patient(patience);
  REQUIRE(submit_slo(s, 1, 64, milliseconds(10)));  // late at 20 ms
  REQUIRE(submit_slo(s, 2, 64, milliseconds(50)));
  REQUIRE(submit_slo(s, 3, 64, kUnbounded));  // can't be late
  if (patience == 0) {
    CHECK(step(s, at(20)) == Scheduled{{1, 64}});
    CHECK(step(s, at(21)) == Scheduled{{2, 64}});
    CHECK(step(s, at(22)) == Scheduled{{3, 64}});
  } else {
    CHECK(step(s, at(20)) == Scheduled{{2, 64}});
    CHECK(step(s, at(21)) == Scheduled{{3, 64}});
    CHECK(step(s, at(22)) == Scheduled{{1, 64}});
  }
  CHECK(s.check());
}

TEST_CASE("The limit itself is still in time", "[scheduler]") {
  SmallScheduler s = make_patient(8);
  REQUIRE(submit_slo(s, 1, 64, milliseconds(10), at(5)));
  REQUIRE(submit_slo(s, 2, 64, milliseconds(50), at(5)));
  CHECK(step(s, at(15)) == Scheduled{{1, 64}});
}

TEST_CASE("A started prompt that is late lets others pass, and gets what they leave",
          "[scheduler]") {
  SmallScheduler s = make_patient(8);
  REQUIRE(submit_slo(s, 1, 200, milliseconds(10)));
  CHECK(step(s, at(1)) == Scheduled{{1, 64}});
  REQUIRE(submit_slo(s, 2, 40, milliseconds(50), at(15)));
  CHECK(step(s, at(20)) == Scheduled{{1, 24}, {2, 40}});
  CHECK(step(s, at(21)) == Scheduled{{1, 64}});
  CHECK(s.check());
}

TEST_CASE("Nobody is late for ever, as the late part comes first after its patience",
          "[scheduler]") {
  constexpr std::int32_t kPatience = 5;
  const bool is_started = GENERATE(false, true);
  SmallScheduler s = make_patient(kPatience);
  REQUIRE(submit_slo(s, 1, 200, milliseconds(1)));
  if (is_started) {
    CHECK(step(s, at(0)) == Scheduled{{1, 64}});
  }
  std::uint64_t id = 2;
  std::int64_t waited = 0;
  std::int64_t longest = 0;
  std::int64_t got = is_started ? 64 : 0;
  // Requests in time keep coming, each fills a step.
  for (std::int64_t i = 0; i < 40; ++i) {
    REQUIRE(submit_slo(s, id++, 64, milliseconds(1'000'000), at(10 + i)));
    const Scheduled tokens = step(s, at(10 + i));
    REQUIRE(tokens.count(~0ULL) == 0);
    if (tokens.count(1) != 0) {
      got += tokens.at(1);
      waited = 0;
    } else if (got < 200) {
      longest = std::max(longest, ++waited);
    }
    drain(s);
  }
  CHECK(got == 200);
  CHECK(longest == kPatience);
}

TEST_CASE("Who computes what one in time waits for is not put behind", "[scheduler]") {
  SmallScheduler s = make_patient(1000, true);
  // Two requests of one prompt: the second waits for what the first computes.
  SmallRequest first(7, 320, 1);
  first.request.slo.ttft = milliseconds(10);
  REQUIRE(s.submit(first.view()));
  CHECK(step(s, at(1)) == Scheduled{{7, 64}});
  SmallRequest second(7, 320, 1);
  second.request.id = RequestId{8};
  second.request.arrival = at(15);
  second.request.slo.ttft = seconds(10);
  REQUIRE(s.submit(second.view()));
  // Others that would fill every step come behind the two.
  step(s, at(20));
  for (std::uint64_t i = 0; i < 8; ++i) {
    REQUIRE(submit_slo(s, 100 + i, 64, seconds(10), at(20)));
  }
  int steps = 0;
  while (s.stats().finished < 1 && steps < 20) {
    step(s, at(21 + steps));
    ++steps;
  }
  const auto ends = terminals(drain(s));
  CHECK(ends.count(7) == 1);  // 256 tokens in four steps, though it is late
  CHECK(steps <= 4);
  CHECK(run_dry(s, at(100)));
}

TEST_CASE("With a known step cost a prompt too long for its limit is late from the start",
          "[scheduler]") {
  Capabilities caps;
  caps.max_tokens = 1 << 14;
  caps.max_sequences = 8;
  FcfsAdmission::Config rules;
  rules.late_patience = 100;
  auto made = Scheduler<DynamicSizer, NoSplit, NullBalancer, BlockPool<>>::make(
      {}, caps, DynamicSizer(DynamicSizer::Config{.max_prefill_tokens = 1000}), NoSplit{},
      NullBalancer{}, BlockPool<>(BlockPool<>::Config{.num_blocks = 4000}), FcfsAdmission(rules));
  REQUIRE(made.has_value());
  auto& s = *made;
  // Teaches 10 ms a step and 0.1 ms a prompt token.
  std::int64_t now = 0;
  std::uint64_t id = 1;
  const auto run = [&](TimeNs arrival) {
    const StepPlan* plan = s.plan(arrival);
    const Scheduled out = tokens_of(plan);
    if (plan != nullptr) {
      std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
      StepResult result;
      result.tokens = tokens;
      result.measured = {10'000'000 + 100'000 * plan->work.prefill_tokens};
      now += result.measured.ns;
      CHECK(s.commit(*plan, result, TimeNs{now}));
    }
    Event events[64];
    s.poll(events);
    return out;
  };
  for (int i = 0; i < 60; ++i) {
    SmallRequest r(id++, 50 * (i % 5 + 1), 1);
    REQUIRE(s.submit(r.view()));
    run(TimeNs{now});
  }
  REQUIRE(s.stats().live == 0);
  // 3,000 tokens need 330 ms; 800 need 90 ms.
  SmallRequest hopeless(1000, 3000, 1);
  hopeless.request.arrival = TimeNs{now};
  hopeless.request.slo.ttft = milliseconds(300);
  SmallRequest in_time(1001, 800, 1);
  in_time.request.arrival = TimeNs{now};
  in_time.request.slo.ttft = milliseconds(300);
  REQUIRE(s.submit(hopeless.view()));
  REQUIRE(s.submit(in_time.view()));
  CHECK(run(TimeNs{now}) == Scheduled{{1000, 200}, {1001, 800}});
  // With a limit of 400 ms it is in time and keeps its place.
  while (s.stats().live > 0) {
    run(TimeNs{now});
  }
  SmallRequest fits(1002, 3000, 1);
  fits.request.arrival = TimeNs{now};
  fits.request.slo.ttft = milliseconds(400);
  SmallRequest next(1003, 800, 1);
  next.request.arrival = TimeNs{now};
  next.request.slo.ttft = milliseconds(300);
  REQUIRE(s.submit(fits.view()));
  REQUIRE(s.submit(next.view()));
  CHECK(run(TimeNs{now}) == Scheduled{{1002, 1000}});
}
