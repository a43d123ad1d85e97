// SPDX-License-Identifier: Apache-2.0
/// \file
/// What happens when blocks run out.
#include "small_host.hpp"

#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

TEST_CASE("The last admitted gives way and comes back first") {
  SmallOptions o;
  o.blocks = 10;
  o.budget = 200;
  o.rows = 4;
  o.admission.max_bypass = 0;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 80, 40));
  REQUIRE(submit(s, 2, 80, 40));
  REQUIRE(submit(s, 3, 16, 4));
  CHECK(step(s) == Scheduled{{1, 80}, {2, 80}});
  CHECK(s.pool_stats().free_blocks == 0);
  CHECK(step(s) == Scheduled{{1, 1}});
  CHECK(s.stats().preemptions == 1);
  CHECK(s.stats().waiting == 2);
  CHECK(s.pool_stats().free_blocks == 4);
  CHECK(step(s) == Scheduled{{1, 1}});  // 2 needs 6 blocks, and 3 does not pass it
  CHECK(run_dry(s));
  const auto ends = terminals(drain(s));
  CHECK(ends.at(2).count == 40);
  CHECK(ends.at(3).count == 4);
}

TEST_CASE("A preempted sequence finds its own blocks again") {
  SmallOptions o;
  o.blocks = 10;
  o.budget = 200;
  o.rows = 4;
  o.caching = true;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 80, 20));
  REQUIRE(submit(s, 2, 80, 20));
  step(s);
  step(s);
  CHECK(s.stats().preemptions == 1);
  int steps = 2;
  Scheduled tokens;
  do {
    tokens = step(s);
    ++steps;
  } while (tokens.count(2) == 0 && steps < 100);
  CHECK(steps == 21);
  CHECK(tokens.at(2) == 33);
  CHECK(run_dry(s));
}

namespace {

/// Evicts whoever has the worst (largest) priority.
class WorstPriorityGivesWay {
 public:
  using Config = FcfsAdmission::Config;
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& r) noexcept { return base_.key(r); }
  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept { return base_.need(in); }
  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    return base_.compose(in);
  }
  [[nodiscard]] std::int64_t chunk(const ChunkInput& in) const noexcept { return base_.chunk(in); }
  [[nodiscard]] std::int32_t victim(const VictimList& list) const noexcept {
    std::int32_t worst = 0;
    for (std::int32_t i = 1; i < list.size(); ++i) {
      worst = list[i].request.priority > list[worst].request.priority ? i : worst;
    }
    return worst;
  }
  [[nodiscard]] std::int32_t max_bypass() const noexcept { return base_.max_bypass(); }
  [[nodiscard]] bool splits_prompts() const noexcept { return base_.splits_prompts(); }

 private:
  FcfsAdmission base_;
};
static_assert(Admission<WorstPriorityGivesWay>);

}  // namespace

TEST_CASE("R07 a victim that stands in the step under construction leaves it") {
  Capabilities caps;
  caps.max_sequences = 4;
  auto made =
      Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, WorstPriorityGivesWay>::make(
          {}, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 200}), NoSplit{},
          NullBalancer{},
          BlockPool<>(BlockPool<>::Config{.num_blocks = 4, .prefix_caching = false}),
          WorstPriorityGivesWay{});
  REQUIRE(made.has_value());
  auto& s = *made;
  SmallRequest a(1, 30, 20);
  a.request.priority = 5;
  SmallRequest b(2, 32, 20);
  REQUIRE(s.submit(a.view()));
  REQUIRE(s.submit(b.view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(tokens_of(plan) == Scheduled{{1, 30}, {2, 32}});
  std::vector<Token> tokens(2, 1);
  StepResult result;
  result.tokens = tokens;
  REQUIRE(s.commit(*plan, result, TimeNs{}));
  // A's next token fits its second block; B needs a third one, visited after A.
  plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(tokens_of(plan) == Scheduled{{2, 1}});
  CHECK(plan->num_tokens() == 1);
  CHECK(plan->chunks.size() == 1);
  CHECK(plan->num_samples == 1);
  CHECK(plan->work.decode_rows == 1);
  CHECK(s.stats().waiting == 1);
  CHECK(s.pool_stats().free_blocks == 1);
  for (const BlockDelta& d : plan->groups[0].deltas) {
    CHECK(d.row == plan->chunks[0].row);
  }
  REQUIRE(s.check());
}

TEST_CASE("Two half loaded prompts do not wait for each other") {
  SmallOptions o;
  o.blocks = 14;
  o.budget = 64;
  o.admission.reserve = FcfsAdmission::Reserve::FirstChunk;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 160, 8));
  REQUIRE(submit(s, 2, 160, 8));
  CHECK(run_dry(s));
  CHECK(s.stats().finished == 2);
}

TEST_CASE("What did not fit beside others is looked at again when nothing runs") {
  SmallOptions o;
  o.blocks = 10;
  o.admission.watermark_permille = 200;  // two blocks stay free while anything runs
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 16, 4));
  step(s);
  REQUIRE(submit(s, 2, 144, 4));  // nine blocks, and two that must stay free
  CHECK(step(s) == Scheduled{{1, 1}});
  CHECK(run_dry(s, TimeNs{}, 50));
  CHECK(s.stats().finished == 2);
}
