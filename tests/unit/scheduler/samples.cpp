// SPDX-License-Identifier: Apache-2.0
/// \file
/// Several samples of one request, and drafted tokens.
#include <dynbatch/kv/null_pool.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

Status submit_samples(SmallScheduler& s, std::uint64_t id, std::int64_t length,
                      std::int64_t outputs, std::int32_t samples) {
  SmallRequest r(id, length, outputs);
  r.request.num_samples = samples;
  return s.submit(r.view());
}

/// Commits with one given token a sample.
Status settle_with(SmallScheduler& s, const StepPlan& plan, std::vector<Token> tokens) {
  StepResult result;
  result.tokens = tokens;
  return s.commit(plan, result, TimeNs{});
}

}  // namespace

TEST_CASE("Samples share the prompt, get tokens of their own and end the request together") {
  SmallOptions o;
  o.block_size = 4;
  SmallScheduler s = make_small(o);
  REQUIRE(submit_samples(s, 1, 10, 3, 3));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 1);
  CHECK(plan->chunks[0].num_samples == 3);
  CHECK(plan->num_samples == 3);
  REQUIRE(settle_with(s, *plan, {10, 20, 30}));
  // Two whole blocks are shared; each further sample has a copy of the third, of two tokens.
  CHECK(s.pool_stats().referenced_blocks == 5);
  plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 3);
  REQUIRE(plan->groups[0].copies.size() == 2);
  for (const BlockCopy& copy : plan->groups[0].copies) {
    CHECK(copy.num_tokens == 2);
    CHECK(copy.source != copy.target);
  }
  CHECK(plan->groups[0].copies[0].target != plan->groups[0].copies[1].target);
  for (const Chunk& c : plan->chunks) {
    CHECK(c.request == RequestId{1});
    CHECK(c.first_position == 10);
    CHECK(plan->tokens[static_cast<std::size_t>(c.first_token)] == 10 * (c.sample + 1));
  }
  REQUIRE(settle_with(s, *plan, {11, 21, 31}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(plan->groups[0].copies.empty());
  REQUIRE(settle_with(s, *plan, {12, 22, 32}));
  std::map<std::int32_t, std::vector<Token>> tokens;
  Event events[32];
  const std::size_t n = s.poll(events);
  int terminals = 0;
  int ends = 0;
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(terminals == 0);
    terminals += is_terminal(events[i].kind) ? 1 : 0;
    ends += events[i].kind == EventKind::SampleFinished ? 1 : 0;
    tokens[events[i].sample].insert(tokens[events[i].sample].end(), events[i].tokens.begin(),
                                    events[i].tokens.end());
  }
  CHECK(terminals == 1);
  CHECK(ends == 3);
  CHECK(events[n - 1].count == 9);
  CHECK(tokens[0] == std::vector<Token>{10, 11, 12});
  CHECK(tokens[2] == std::vector<Token>{30, 31, 32});
  CHECK(s.pool_stats().referenced_blocks == 0);
  REQUIRE(s.check());
  s.poll(events);
  REQUIRE(submit_samples(s, 1, 10, 3, 3));
}

TEST_CASE("R19 fan out is part of admission") {
  SmallOptions o;
  o.rows = 1;
  SmallScheduler one = make_small(o);
  CHECK(submit_samples(one, 1, 10, 3, 2).code == Errc::CanNeverFit);

  o.rows = 3;
  SmallScheduler s = make_small(o);
  REQUIRE(submit_samples(s, 1, 10, 4, 2));
  REQUIRE(submit_samples(s, 2, 10, 4, 2));
  REQUIRE(submit_samples(s, 3, 10, 4, 1));
  CHECK(step(s) == Scheduled{{1, 10}, {3, 10}});  // 2 waits for two places, 3 passes it
  while (s.stats().live > 0) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    CHECK(plan->chunks.size() <= 3);
    REQUIRE(settle(s, *plan, TimeNs{}));
    REQUIRE(s.check());
  }
  CHECK(s.stats().finished == 3);
}

TEST_CASE("A sample may stop while others go on, cancel ends all of them") {
  SmallScheduler s = make_small();
  SmallRequest r(1, 10, 50);
  const Token stop[] = {99};
  r.request.num_samples = 2;
  r.request.stop_tokens = stop;
  REQUIRE(s.submit(r.view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(
      settle_with(s, *plan, {99, 5}));  // the first sample stops at once: its row lent the prompt
  CHECK(s.stats().running == 1);
  CHECK(s.stats().live == 1);
  CHECK(step(s) == Scheduled{{1, 1}});
  REQUIRE(s.cancel(RequestId{1}));
  s.plan(TimeNs{});
  const auto ends = terminals(drain(s));
  CHECK(ends.at(1).kind == EventKind::Cancelled);
  CHECK(s.stats().cancelled == 1);
}

TEST_CASE("A host that manages KV itself is told which rows to share") {
  Capabilities caps;
  caps.max_sequences = 4;
  auto made = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, NullPool>::make(
      {}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{}, NullPool{}, FcfsAdmission{});
  REQUIRE(made.has_value());
  SmallRequest r(1, 10, 3);
  r.request.num_samples = 2;
  REQUIRE(made->submit(r.view()));
  const StepPlan* plan = made->plan(TimeNs{});
  REQUIRE(plan != nullptr);
  const Row source = plan->chunks[0].row;
  const Token tokens[] = {1, 2};
  StepResult result;
  result.tokens = tokens;
  REQUIRE(made->commit(*plan, result, TimeNs{}));
  plan = made->plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->row_ops.size() == 1);
  CHECK(plan->row_ops[0].kind == RowOpKind::ShareRange);
  CHECK(plan->row_ops[0].source == source);
  CHECK(plan->row_ops[0].first == 0);
  CHECK(plan->row_ops[0].last == 10);
}

TEST_CASE("G24 accepted drafts stand, rejected ones are rolled back") {
  SmallOptions o;
  o.blocks = 19;
  o.config.max_draft_tokens = 2;
  SmallScheduler s = make_small(o);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  REQUIRE(submit(s, 1, 30, 40));
  const StepPlan* plan = s.plan(TimeNs{});
  CHECK(tokens_of(plan) == Scheduled{{1, 30}});
  result.reset(*plan);
  const Token first[] = {10};
  const Token drafts[] = {11, 12, 13};  // one more than may be carried
  result.add_sample(first, drafts);
  REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
  plan = s.plan(TimeNs{});
  REQUIRE(tokens_of(plan) == Scheduled{{1, 3}});
  CHECK(plan->tokens[0] == 10);
  CHECK(plan->tokens[1] == 11);
  CHECK(plan->tokens[2] == 12);
  CHECK(plan->chunks[0].logits_from == 30);
  CHECK(plan->chunks[0].context_length == 33);
  CHECK(s.pool_stats().referenced_blocks == 3);
  result.reset(*plan);
  const Token wrong[] = {77, 99};
  result.add_sample(wrong);
  CHECK(s.commit(*plan, result.view(), TimeNs{}).code == Errc::BadResult);  // 77 was not drafted
  result.reset(*plan);
  const Token some[] = {11, 99};
  result.add_sample(some);
  REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
  CHECK(s.stats().draft_tokens == 2);
  CHECK(s.stats().accepted_draft_tokens == 1);
  plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(plan->chunks[0].first_position == 32);
  CHECK(plan->tokens[0] == 99);
  REQUIRE(settle(s, *plan, TimeNs{}));
  REQUIRE(s.check());
  CHECK(run_dry(s));
  CHECK(terminals(drain(s)).at(1).count == 40);
}

TEST_CASE("Drafts never lead beyond the end, the budget or the blocks there are") {
  SmallOptions o;
  o.blocks = 3;
  o.budget = 40;
  o.config.max_draft_tokens = 8;
  SmallScheduler s = make_small(o);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  REQUIRE(submit(s, 1, 30, 4));
  REQUIRE(submit(s, 2, 10, 3));
  const Token drafts[] = {1, 1, 1, 1, 1, 1, 1, 1};
  const Token one[] = {1};
  int steps = 0;
  while (s.stats().live > 0 && ++steps < 50) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    CHECK(plan->num_tokens() <= 40);
    result.reset(*plan);
    for (const Chunk& c : plan->chunks) {
      CHECK(c.context_length <= (c.request.value == 1 ? 33 : 12));
      if (c.num_samples > 0) {
        result.add_sample(
            c.num_tokens > 1 && c.kind == ChunkKind::Decode
                ? std::span<const Token>(drafts).first(static_cast<std::size_t>(c.num_tokens))
                : std::span<const Token>(one),
            drafts);
      }
    }
    REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
    REQUIRE(s.check());
  }
  const auto ends = terminals(drain(s));
  CHECK(ends.at(1).count == 4);
  CHECK(ends.at(2).count == 3);
  CHECK(s.stats().preemptions == 0);
}
