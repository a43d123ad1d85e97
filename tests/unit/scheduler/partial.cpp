// SPDX-License-Identifier: Apache-2.0
/// \file
/// Prefixes that end inside a block: the admitting plan copies its front.
#include "small_host.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

struct PartialOptions {
  std::int64_t blocks = 100;
  std::int32_t block_size = 4;
  std::int32_t min_tokens = 1;
  bool partial_copy = true;
  bool partial_reuse = true;
  bool in_order = true;
  std::int32_t plans = 1;
  std::int64_t budget = 64;
};

SmallScheduler make_partial(const PartialOptions& o = {}) {
  Capabilities caps;
  caps.max_sequences = 8;
  caps.partial_copy = o.partial_copy;
  caps.in_order = o.in_order;
  SchedulerConfig config;
  config.max_plans_in_flight = o.plans;
  auto made = SmallScheduler::make(config, caps, TokenBudgetSizer({.budget = o.budget}), NoSplit{},
                                   NullBalancer{},
                                   BlockPool<>({.num_blocks = o.blocks,
                                                .block_size = o.block_size,
                                                .partial_reuse = o.partial_reuse,
                                                .min_partial_tokens = o.min_tokens}),
                                   FcfsAdmission{});
  REQUIRE(made);
  return std::move(made).value();
}

// Tokens 0, 1, 2, ... of which those from `differs` on are another story's.
Status submit_story(SmallScheduler& s, std::uint64_t id, std::int64_t length,
                    std::int64_t differs = 1000, std::int64_t outputs = 1) {
  SmallRequest r(0, length, outputs);
  for (std::int64_t i = differs; i < length; ++i) {
    r.tokens[static_cast<std::size_t>(i)] = static_cast<Token>(id * 1000U) + static_cast<Token>(i);
  }
  r.request.id = RequestId{id};
  return s.submit(r.view());
}

struct Started {
  std::int64_t computed = 0;
  std::vector<BlockCopy> copies;
};

// Runs a request of one output alone: what its first plan computes and copies.
Started start(SmallScheduler& s, std::uint64_t id, std::int64_t length,
              std::int64_t differs = 1000) {
  REQUIRE(submit_story(s, id, length, differs));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 1);
  REQUIRE(plan->work.prefill_tokens == plan->num_tokens());
  const std::span<const BlockCopy> copies = plan->groups[0].copies;
  Started out{plan->num_tokens(), {copies.begin(), copies.end()}};
  CHECK(plan->chunks[0].first_position == length - out.computed);
  CHECK(s.check().is_ok());
  REQUIRE(settle(s, *plan, TimeNs{}));
  REQUIRE(s.check().is_ok());
  REQUIRE(s.pool_stats().referenced_blocks == 0);
  drain(s);
  return out;
}

}  // namespace

TEST_CASE("With all of a prompt cached one token is computed") {
  // R17's table with partial reuse: block 4, everything cached.
  struct Case {
    std::int64_t prompt, reused;
  };
  for (const Case c : {Case{12, 11}, Case{13, 12}, Case{14, 13}, Case{16, 15}, Case{17, 16},
                       Case{4, 3}, Case{3, 0}, Case{1, 0}}) {
    INFO("prompt of " << c.prompt);
    SmallScheduler s = make_partial();
    start(s, 1, 40);
    const Started again = start(s, 2, c.prompt);
    CHECK(again.computed == c.prompt - c.reused);
    CHECK(s.stats().prefix_hit_tokens == static_cast<std::uint64_t>(c.reused));
    CHECK(again.copies.size() == (c.reused % 4 == 0 ? 0U : 1U));
    if (!again.copies.empty()) {
      CHECK(again.copies[0].num_tokens == c.reused % 4);
      CHECK(again.copies[0].source != again.copies[0].target);
    }
  }
}

TEST_CASE("Fronts of blocks are copied only where executor and pool both say so") {
  for (const bool pool : {false, true}) {
    SmallScheduler s = make_partial({.partial_copy = !pool, .partial_reuse = pool});
    start(s, 1, 40);
    const Started again = start(s, 2, 16);
    CHECK(again.computed == 4);
    CHECK(again.copies.empty());
  }
}

TEST_CASE("A prompt that leaves another one inside a block takes what they have in common") {
  SmallScheduler s = make_partial();
  start(s, 1, 24);
  const Started apart = start(s, 2, 24, 10);
  REQUIRE(apart.copies.size() == 1);
  CHECK(apart.copies[0].num_tokens == 2);
  CHECK(apart.computed == 14);
  // Behind two blocks there are two children now; the first one that was entered is looked at.
  CHECK(start(s, 3, 24, 11).computed == 13);
  // In the first block there is no such link: only a whole block counts.
  CHECK(start(s, 4, 24, 2).computed == 24);
}

TEST_CASE("A short front is computed") {
  SmallScheduler s = make_partial({.block_size = 16, .min_tokens = 4});
  start(s, 1, 64);
  CHECK(start(s, 2, 64, 19).computed == 48);
  CHECK(start(s, 3, 64, 20).computed == 44);
}

TEST_CASE("A block is copied once it is written for certain") {
  SmallScheduler s = make_partial({.plans = 2});
  REQUIRE(submit_story(s, 1, 16, 1000, 5));
  const StepPlan* first = s.plan(TimeNs{});
  REQUIRE(first != nullptr);
  REQUIRE(submit_story(s, 2, 16));
  const StepPlan* second = s.plan(TimeNs{});
  REQUIRE(second != nullptr);
  CHECK(tokens_of(second) == Scheduled{{2, 4}});  // whole blocks are shared while pending
  CHECK(second->groups[0].copies.empty());
  REQUIRE(settle(s, *first, TimeNs{}));
  REQUIRE(submit_story(s, 3, 16));
  const StepPlan* third = s.plan(TimeNs{});
  REQUIRE(third != nullptr);
  CHECK(tokens_of(third).at(3) == 1);
  CHECK(third->groups[0].copies.size() == 1);
}

TEST_CASE("The source of a copy is kept until the plan is settled") {
  SmallScheduler s = make_partial({.blocks = 11});
  start(s, 1, 16);
  REQUIRE(submit_story(s, 2, 16));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->groups[0].copies.size() == 1);
  CHECK(s.pool_stats().referenced_blocks == 5);  // three shared, the target, the source
  REQUIRE(settle(s, *plan, TimeNs{}));
  CHECK(s.pool_stats().referenced_blocks == 0);
  CHECK(s.check().is_ok());
}

TEST_CASE("A request that needs every block does without a copy") {
  // 16 tokens and one output more than the last block has room for: 5 blocks are all there are.
  SmallScheduler s = make_partial({.blocks = 5});
  start(s, 1, 16);
  REQUIRE(submit_story(s, 2, 17, 15, 2));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(plan->groups[0].copies.empty());
  CHECK(tokens_of(plan) == Scheduled{{2, 5}});
  REQUIRE(settle(s, *plan, TimeNs{}));
  CHECK(run_dry(s));
}

TEST_CASE("A row whose copy was perhaps not made computes its block from the start") {
  for (const AbandonReason why : {AbandonReason::NotRun, AbandonReason::Lost}) {
    SmallScheduler s = make_partial();
    start(s, 1, 16);
    REQUIRE(submit_story(s, 2, 16));
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    REQUIRE(plan->groups[0].copies.size() == 1);
    REQUIRE(s.abandon(*plan, why, TimeNs{}));
    CHECK(s.check().is_ok());
    CHECK(s.pool_stats().referenced_blocks == 4);
    const StepPlan* again = s.plan(TimeNs{});
    REQUIRE(again != nullptr);
    CHECK(tokens_of(again) == Scheduled{{2, 4}});
    CHECK(again->chunks[0].first_position == 12);
    CHECK(again->groups[0].copies.empty());
    CHECK(again->groups[0].deltas.size() == 4);  // the host may not know its table
    REQUIRE(settle(s, *again, TimeNs{}));
    CHECK(run_dry(s));
  }
}

TEST_CASE("A chunk that did not run in a committed plan keeps what was copied") {
  SmallScheduler s = make_partial();
  start(s, 1, 16);
  REQUIRE(submit_story(s, 2, 16));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  result.reset(*plan);
  result.set_outcome(0, {OutcomeKind::NotRun, FinishReason::None, 0});
  result.add_sample(std::span<const Token>{});
  REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
  const StepPlan* again = s.plan(TimeNs{});
  REQUIRE(again != nullptr);
  CHECK(tokens_of(again) == Scheduled{{2, 1}});
  CHECK(again->groups[0].copies.empty());
  REQUIRE(settle(s, *again, TimeNs{}));
  CHECK(run_dry(s));
}

TEST_CASE("Tokens in common end where a media item begins") {
  SmallScheduler s = make_partial({.block_size = 16});
  start(s, 1, 64);
  SmallRequest r(0, 64, 1);
  const MediaSpan item{37, 4, {1, 2}};
  r.request.id = RequestId{2};
  r.request.media = {&item, 1};
  REQUIRE(s.submit(r.view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(tokens_of(plan) == Scheduled{{2, 64 - 37}});
  REQUIRE(settle(s, *plan, TimeNs{}));
}

TEST_CASE("Bounds of partial reuse are checked") {
  BlockPool<>::Config config{.num_blocks = 4};
  config.min_partial_tokens = 0;
  CHECK(config.validate().code == Errc::InvalidConfig);
  CHECK(std::string(config.validate().field) == "min_partial_tokens");
}
