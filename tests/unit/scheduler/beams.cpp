// SPDX-License-Identifier: Apache-2.0
/// \file
/// Beam search: beams run together, go on from each other's states and are delivered at the end.
#include "small_host.hpp"

#include <array>
#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

SmallOptions small_blocks() {
  SmallOptions o;
  o.block_size = 4;
  return o;
}

SmallRequest beams(std::uint64_t id, std::int64_t length, std::int64_t outputs,
                   std::int32_t width) {
  SmallRequest r(id, length, outputs);
  r.request.num_samples = width;
  r.request.beam_search = true;
  return r;
}

/// Commits a step in which the beams of the only request go on as {number of the parent, token}.
Status go_on(SmallScheduler& s, const StepPlan& plan,
             const std::vector<std::pair<std::size_t, Token>>& beams) {
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  result.reset(plan);
  for (std::int32_t i = 0; i < plan.num_samples; ++i) {
    result.add_sample(std::span<const Token>{});
  }
  for (const auto& [parent, token] : beams) {
    result.add_continuation({plan.chunks[parent].sequence, token});
  }
  return s.commit(plan, result.view(), TimeNs{});
}

Status begin(SmallScheduler& s, const StepPlan& plan, std::vector<Token> tokens) {
  StepResult result;
  result.tokens = tokens;
  return s.commit(plan, result, TimeNs{});
}

std::map<std::int32_t, std::vector<Token>> delivered(SmallScheduler& s) {
  std::map<std::int32_t, std::vector<Token>> tokens;
  Event events[64];
  const std::size_t n = s.poll(events);
  for (std::size_t i = 0; i < n; ++i) {
    tokens[events[i].sample].insert(tokens[events[i].sample].end(), events[i].tokens.begin(),
                                    events[i].tokens.end());
  }
  return tokens;
}

}  // namespace

TEST_CASE("The first continuation of a parent stays, further ones take what nobody names") {
  std::array<std::int32_t, 4> targets{};
  const std::array<std::int32_t, 4> all_one{2, 2, 2, 2};
  assign_beams(all_one, 4, targets);
  CHECK(targets == std::array<std::int32_t, 4>{2, 0, 1, 3});
  const std::array<std::int32_t, 4> crossed{1, 0, 3, 2};
  assign_beams(crossed, 4, targets);
  CHECK(targets == crossed);
  const std::array<std::int32_t, 4> mixed{3, 1, 3, 1};
  assign_beams(mixed, 4, targets);
  CHECK(targets == std::array<std::int32_t, 4>{3, 1, 0, 2});
  std::array<std::int32_t, 2> two{};
  assign_beams(std::array<std::int32_t, 2>{1, 1}, 3, two);
  CHECK(two == std::array<std::int32_t, 2>{1, 0});
}

TEST_CASE("Beams go on from each other's states and keep nothing of what died") {
  SmallScheduler s = make_small(small_blocks());
  REQUIRE(s.submit(beams(1, 6, 4, 3).view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan->num_samples == 3);
  REQUIRE(begin(s, *plan, {10, 20, 30}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 3);
  CHECK(plan->groups[0].copies.size() == 2);
  // All go on from the second beam: its own row keeps it, the others copy its last block.
  const BlockId last = s.pool().table(0, plan->chunks[1].row)[1];
  REQUIRE(go_on(s, *plan, {{1, 21}, {1, 22}, {1, 23}}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 3);
  REQUIRE(plan->groups[0].copies.size() == 2);
  for (const BlockCopy& copy : plan->groups[0].copies) {
    CHECK(copy.source == last);
    CHECK(copy.num_tokens == 3);
  }
  CHECK(plan->tokens[0] == 22);
  CHECK(plan->tokens[1] == 21);
  CHECK(plan->tokens[2] == 23);
  CHECK(delivered(s).begin()->second.empty());  // nothing before the end
  // The third has no successor.
  REQUIRE(go_on(s, *plan, {{0, 31}, {1, 32}}));
  CHECK(s.stats().running == 2);
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 2);
  CHECK(plan->groups[0].copies.empty());
  REQUIRE(go_on(s, *plan, {{1, 41}, {0, 42}}));
  const auto tokens = delivered(s);
  CHECK(tokens.at(0) == std::vector<Token>{20, 22, 31, 42});
  CHECK(tokens.at(1) == std::vector<Token>{20, 21, 32, 41});
  CHECK(tokens.at(2) == std::vector<Token>{20, 23});
  CHECK(s.stats().finished == 1);
  CHECK(s.pool_stats().referenced_blocks == 0);
  REQUIRE(s.check());
}

TEST_CASE("Without continuations each beam goes on with its own token") {
  SmallScheduler s = make_small(small_blocks());
  REQUIRE(s.submit(beams(1, 6, 3, 2).view()));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {1, 2}));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {3, 4}));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {5, 6}));
  const auto tokens = delivered(s);
  CHECK(tokens.at(0) == std::vector<Token>{1, 3, 5});
  CHECK(tokens.at(1) == std::vector<Token>{2, 4, 6});
}

TEST_CASE("A stop token ends one beam, a stop by the host ends its beam") {
  SmallScheduler s = make_small(small_blocks());
  SmallRequest r = beams(1, 6, 9, 3);
  const Token stop[] = {99};
  r.request.stop_tokens = stop;
  REQUIRE(s.submit(r.view()));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {1, 2, 3}));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(go_on(s, *plan, {{0, 99}, {0, 7}, {1, 8}}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 2);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  result.reset(*plan);
  result.add_sample(Token{11});
  result.set_outcome(0, {OutcomeKind::Stop, FinishReason::None, 0});
  result.add_sample(Token{12});
  REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
  CHECK(s.stats().running == 1);
  REQUIRE(s.cancel(RequestId{1}));
  s.plan(TimeNs{});
  const auto tokens = delivered(s);
  CHECK(tokens.at(0) == std::vector<Token>{1, 99});
  CHECK(s.stats().cancelled == 1);
  REQUIRE(s.check());
}

TEST_CASE("Beams share one fate in a step, and restart together") {
  SmallScheduler s = make_small(small_blocks());
  REQUIRE(s.submit(beams(1, 6, 4, 2).view()));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {1, 2}));
  const StepPlan* plan = s.plan(TimeNs{});
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  result.reset(*plan);
  result.add_sample(Token{5});
  result.add_sample(std::span<const Token>{});
  result.set_outcome(1, {OutcomeKind::NotRun, FinishReason::None, 0});
  REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 2);  // the same step once more
  CHECK(plan->tokens[0] == 1);
  CHECK(plan->tokens[1] == 2);
  REQUIRE(go_on(s, *plan, {{1, 6}, {1, 7}}));
  // The copies of this plan are lost with it, and the source may be: the search starts over.
  plan = s.plan(TimeNs{});
  REQUIRE(plan->groups[0].copies.size() == 1);
  REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));
  REQUIRE(s.check());
  plan = s.plan(TimeNs{});
  REQUIRE(plan->chunks.size() == 1);
  CHECK(plan->chunks[0].num_tokens == 6);
  CHECK(plan->num_samples == 2);
  REQUIRE(begin(s, *plan, {1, 2}));
  while (s.stats().live > 0) {
    plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    REQUIRE(go_on(s, *plan, {{0, 3}, {1, 4}}));
  }
  CHECK(delivered(s).at(1) == std::vector<Token>{2, 4, 4, 4});
}

TEST_CASE("Beams never give way, others do") {
  SmallOptions o = small_blocks();
  o.blocks = 12;
  SmallScheduler s = make_small(o);
  REQUIRE(s.submit(beams(1, 6, 12, 2).view()));  // 5 + 4 blocks to the end
  REQUIRE(begin(s, *s.plan(TimeNs{}), {1, 2}));
  REQUIRE(submit(s, 2, 8, 30));  // ten blocks in the end
  for (int i = 0; i < 11; ++i) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    std::size_t beams_planned = 0;
    for (const Chunk& c : plan->chunks) {
      beams_planned += c.request == RequestId{1} ? 1 : 0;
    }
    CHECK(beams_planned == 2);
    REQUIRE(settle(s, *plan, TimeNs{}));
    REQUIRE(s.check());
  }
  CHECK(s.stats().finished == 1);
  CHECK(s.stats().preemptions > 0);
  CHECK(run_dry(s));
}

TEST_CASE("A step takes all beams of a request or none") {
  SmallOptions o = small_blocks();
  o.budget = 5;
  SmallScheduler s = make_small(o);
  REQUIRE(s.submit(beams(1, 3, 6, 4).view()));
  REQUIRE(begin(s, *s.plan(TimeNs{}), {1, 2, 3, 4}));
  REQUIRE(submit(s, 2, 3, 8));
  REQUIRE(submit(s, 3, 3, 8));
  int beam_steps = 0;
  int idle = 0;
  while (s.stats().finished == 0) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    CHECK(plan->num_tokens() <= 5);
    std::size_t width = 0;
    for (const Chunk& c : plan->chunks) {
      width += c.request == RequestId{1} ? 1 : 0;
    }
    CHECK((width == 0 || width == 4));
    beam_steps += width == 4 ? 1 : 0;
    idle = width == 4 ? 0 : idle + 1;
    CHECK(idle <= 2);
    REQUIRE(settle(s, *plan, TimeNs{}));
  }
  CHECK(beam_steps == 5);
}

TEST_CASE("Beam searches that can never run are refused, wrong continuations too") {
  SmallOptions o = small_blocks();
  o.blocks = 8;
  o.budget = 6;
  SmallScheduler s = make_small(o);
  SmallRequest endless = beams(1, 6, kOpenEnded, 2);
  CHECK(s.submit(endless.view()).code == Errc::InvalidArgument);
  const Status blocks = s.submit(beams(1, 6, 12, 2).view());
  CHECK(blocks.code == Errc::CanNeverFit);
  CHECK(blocks.value == 9);
  CHECK(s.submit(beams(1, 1, 2, 7).view()).code == Errc::CanNeverFit);  // wider than a step
  REQUIRE(s.submit(beams(1, 6, 4, 2).view()));
  REQUIRE(submit(s, 2, 1, 5));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(begin(s, *plan, std::vector<Token>(static_cast<std::size_t>(plan->num_samples), 3)));
  plan = s.plan(TimeNs{});
  while (plan->chunks.size() < 3) {
    REQUIRE(settle(s, *plan, TimeNs{}));
    plan = s.plan(TimeNs{});
  }
  std::size_t beam = 0;
  while (!(plan->chunks[beam].request == RequestId{1})) {
    ++beam;
  }
  const std::size_t other = beam == 0 ? 2 : 0;
  CHECK(go_on(s, *plan, {{other, 1}}).code == Errc::BadResult);
  CHECK(go_on(s, *plan, {{beam, -1}}).code == Errc::BadResult);
  CHECK(go_on(s, *plan, {{beam, 1}, {beam, 2}, {beam, 3}}).code == Errc::BadResult);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  result.reset(*plan);
  for (int i = 0; i < 3; ++i) {
    result.add_sample(Token{1});
  }
  result.set_outcome(beam + 1, {OutcomeKind::Failed, FinishReason::None, 0});
  result.add_continuation({plan->chunks[beam].sequence, 4});
  CHECK(s.commit(*plan, result.view(), TimeNs{}).code == Errc::BadResult);
  REQUIRE(settle(s, *plan, TimeNs{}));
  REQUIRE(s.check());
}
