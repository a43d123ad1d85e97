// SPDX-License-Identifier: Apache-2.0
/// \file
/// Both ways to a block table agree: the deltas applied to a mirror, and materialize().
#include <dynbatch/base/random.hpp>
#include <dynbatch/model/block_table_mirror.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

TEST_CASE("Deltas applied to a mirror give the tables that materialize writes") {
  SmallOptions o;
  o.blocks = 60;
  o.budget = 40;
  o.caching = true;
  SmallScheduler s = make_small(o);
  BlockTableMirror mirror;
  REQUIRE(mirror.allocate(16, 60));
  SplitMix64 rng(4);
  std::vector<BlockId> out(16 * 60);
  std::int64_t compared = 0;
  for (std::uint64_t i = 1; i < 600; ++i) {
    if (rng.one_in(3)) {
      SmallRequest r(i, rng.between(1, 90), rng.between(1, 60));
      for (std::size_t t = 0; t < r.tokens.size() && rng.one_in(2); ++t) {
        r.tokens[t] = static_cast<Token>(t);
      }
      static_cast<void>(s.submit(r.view()));
    }
    const StepPlan* plan = s.plan(TimeNs{});
    if (plan == nullptr) {
      continue;
    }
    if (rng.one_in(10)) {
      REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));  // never applied
      continue;
    }
    REQUIRE(mirror.apply(*plan));
    REQUIRE(s.materialize(*plan, out, 60));
    for (std::size_t c = 0; c < plan->chunks.size(); ++c) {
      const auto table = mirror.table(plan->chunks[c].row);
      const auto needed = static_cast<std::size_t>((plan->chunks[c].context_length + 15) / 16);
      REQUIRE(table.size() >= needed);
      for (std::size_t b = 0; b < needed; ++b) {
        REQUIRE(table[b] == out[c * 60 + b]);
        ++compared;
      }
      CHECK(out[c * 60 + 59] == kNoBlock);
    }
    REQUIRE(settle(s, *plan, TimeNs{}));
    drain(s);
  }
  CHECK(compared > 1000);
  CHECK(s.stats().preemptions > 0);
}

TEST_CASE("A mirror refuses deltas that do not fit it") {
  BlockTableMirror mirror;
  CHECK_FALSE(mirror.allocate(0, 4));
  REQUIRE(mirror.allocate(2, 4));
  StepPlan plan;
  GroupPlan group;
  plan.groups = {&group, 1};
  for (const BlockDelta bad :
       {BlockDelta{Row{2}, 0, BlockId{1}}, BlockDelta{Row{-1}, 0, BlockId{1}},
        BlockDelta{Row{0}, 4, BlockId{1}}, BlockDelta{Row{0}, 1, BlockId{1}}}) {
    group.deltas = {&bad, 1};
    CHECK(mirror.apply(plan).code == Errc::InvalidArgument);
  }
  CHECK(mirror.table(Row{7}).empty());
}

TEST_CASE("A prompt that finishes in its only plan stays cached") {
  SmallOptions o;
  o.caching = true;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 48, 1));
  step(s);
  CHECK(s.stats().finished == 1);
  CHECK(s.pool_stats().cached_blocks == 3);
}

TEST_CASE("An executor out of order never reads what a plan in flight has still to write") {
  for (const bool in_order : {true, false}) {
    Capabilities caps;
    caps.in_order = in_order;
    auto made = SmallScheduler::make(
        {.max_plans_in_flight = 2}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
        BlockPool<>(BlockPool<>::Config{.num_blocks = 100}), FcfsAdmission{});
    REQUIRE(made.has_value());
    SmallScheduler& s = *made;
    SmallRequest a(1, 64, 4);
    SmallRequest b(2, 64, 4);
    b.tokens = a.tokens;
    REQUIRE(s.submit(a.view()));
    const StepPlan* first = s.plan(TimeNs{});
    REQUIRE(s.submit(b.view()));
    const StepPlan* second = s.plan(TimeNs{});
    if (in_order) {
      CHECK(tokens_of(second) == Scheduled{{2, 16}});
    } else {
      CHECK(second == nullptr);
      CHECK(s.status().cause == WaitCause::InFlight);
      REQUIRE(settle(s, *first, TimeNs{}));
      CHECK(step(s) == Scheduled{{1, 1}, {2, 16}});
    }
  }
}

TEST_CASE("A request that can never be queued is told so") {
  SmallOptions o;
  o.config.max_live_requests = 1;
  o.config.max_queued_tokens = 512;
  SmallScheduler s = make_small(o);
  CHECK(submit(s, 1, 4000, 4000).code == Errc::CanNeverFit);
  CHECK(submit(s, 1, 100, 100).is_ok());
}
