// SPDX-License-Identifier: Apache-2.0
/// \file
/// Golden scenarios that need the scheduler and its pool: common leading blocks, one step ahead,
/// aborts. Block sizes of 16, whole prompts, strict order.
#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

/// `shared` tokens that all such requests have, then `own` tokens of its own.
SmallRequest with_common_prefix(std::uint64_t id, std::int64_t shared, std::int64_t own,
                                std::int64_t outputs) {
  SmallRequest r(id, shared + own, outputs);
  for (std::int64_t i = 0; i < shared; ++i) {
    r.tokens[static_cast<std::size_t>(i)] = static_cast<Token>(i / 16);
  }
  return r;
}

}  // namespace

TEST_CASE("G09 common leading blocks of all live requests") {
  SmallOptions o;
  o.blocks = 29;
  o.budget = 256;
  o.caching = true;
  SmallScheduler s = make_small(o);
  CHECK(s.common_prefix_blocks() == 0);
  REQUIRE(s.submit(with_common_prefix(1, 48, 16, 9).view()));
  step(s);
  CHECK(s.common_prefix_blocks() == 4);
  REQUIRE(s.submit(with_common_prefix(2, 48, 16, 9).view()));
  CHECK(step(s).at(2) == 16);
  CHECK(s.common_prefix_blocks() == 3);
  REQUIRE(submit(s, 3, 32, 9));
  step(s);
  CHECK(s.common_prefix_blocks() == 0);
  CHECK(run_dry(s));
  CHECK(s.common_prefix_blocks() == 0);
}

TEST_CASE("G13 one step ahead never schedules a token too many") {
  for (const std::int64_t outputs : {1, 2, 5}) {
    INFO("outputs " << outputs);
    SmallOptions o;
    o.blocks = 99;
    o.budget = 1000;
    o.plans = 2;
    o.future_tokens = true;
    SmallScheduler s = make_small(o);
    std::vector<const StepPlan*> in_flight;
    std::vector<Scheduled> plans;
    const auto plan = [&] {
      if (const StepPlan* p = s.plan(TimeNs{})) {
        in_flight.push_back(p);
        plans.push_back(tokens_of(p));
      }
    };
    const auto settle_oldest = [&] {
      if (!in_flight.empty()) {
        REQUIRE(settle(s, *in_flight.front(), TimeNs{}));
        in_flight.erase(in_flight.begin());
      }
    };
    REQUIRE(submit(s, 1, 10, outputs));
    plan();
    REQUIRE(submit(s, 2, 10, outputs));
    plan();
    while (s.stats().live > 0) {
      settle_oldest();
      plan();
    }
    std::vector<Scheduled> expected{{{1, 10}}};
    expected.push_back(outputs > 1 ? Scheduled{{1, 1}, {2, 10}} : Scheduled{{2, 10}});
    for (std::int64_t i = 2; i < outputs; ++i) {
      expected.push_back({{1, 1}, {2, 1}});
    }
    if (outputs > 1) {
      expected.push_back({{2, 1}});
    }
    CHECK(plans == expected);
    std::int64_t total = 0;
    for (const Scheduled& p : plans) {
      for (const auto& [id, tokens] : p) {
        total += tokens;
      }
    }
    CHECK(total == 2 * (10 + outputs - 1));
    REQUIRE(s.check());
  }
}

TEST_CASE("G23 aborts free everything, and are told once") {
  SmallOptions o;
  o.blocks = 20;
  o.rows = 1;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 32, 9));
  REQUIRE(submit(s, 2, 32, 9));
  CHECK(step(s) == Scheduled{{1, 32}});
  CHECK(s.stats().waiting == 1);
  REQUIRE(s.cancel(RequestId{2}));
  REQUIRE(s.cancel(RequestId{1}));
  CHECK(s.cancel(RequestId{77}).code == Errc::NotFound);
  CHECK(step(s).empty());
  CHECK(s.stats().waiting == 0);
  CHECK(s.stats().running == 0);
  CHECK(s.pool_stats().free_blocks == 20);
  CHECK(s.stats().live == 0);
  const auto ends = terminals(drain(s));
  REQUIRE(ends.size() == 2);
  CHECK(ends.at(1).kind == EventKind::Cancelled);
  CHECK(ends.at(2).kind == EventKind::Cancelled);
  step(s);
  CHECK(drain(s).empty());
}
