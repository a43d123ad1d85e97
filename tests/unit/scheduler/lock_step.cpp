// SPDX-License-Identifier: Apache-2.0
/// \file
/// Data-parallel ranks that step together, and padding to captured sizes.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <deque>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

using RankScheduler = Scheduler<TokenBudgetSizer, EqualTokens, NullBalancer, BlockPool<>>;

constexpr std::int32_t kSizes[] = {1, 2, 4, 8, 16};

RankScheduler make_rank(std::int32_t rank, std::int32_t ranks, std::int32_t plans = 1) {
  Capabilities caps;
  caps.max_sequences = 16;
  caps.graph_sizes = kSizes;
  caps.future_tokens = plans > 1;
  SchedulerConfig config;
  config.num_ranks = ranks;
  config.rank = rank;
  config.max_plans_in_flight = plans;
  auto made = RankScheduler::make(
      config, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 128}),
      EqualTokens(EqualTokens::Config{.parts = 2, .min_tokens = 16}), NullBalancer{},
      BlockPool<>(BlockPool<>::Config{.num_blocks = 200}), FcfsAdmission{});
  REQUIRE(made.has_value());
  return std::move(made).value();
}

Status submit_to(RankScheduler& s, std::uint64_t id, std::int64_t length, std::int64_t outputs) {
  SmallRequest r(id, length, outputs);
  return s.submit(r.view());
}

Status settle_rank(RankScheduler& s, const StepPlan& plan) {
  std::vector<Token> tokens(static_cast<std::size_t>(plan.num_samples), 1);
  StepResult result;
  result.tokens = tokens;
  return s.commit(plan, result, TimeNs{});
}

}  // namespace

TEST_CASE("Four ranks agree on every step, also those without work") {
  for (const std::int32_t depth : {1, 3, 8}) {
    std::vector<RankScheduler> ranks;
    for (std::int32_t r = 0; r < 4; ++r) {
      ranks.push_back(make_rank(r, 4, depth));
    }
    SplitMix64 rng(static_cast<std::uint64_t>(depth));
    std::uint64_t id = 1;
    std::deque<std::vector<const StepPlan*>> in_flight;
    int dummies = 0;
    int splits = 0;
    int padded = 0;
    for (int i = 0; i < 600; ++i) {
      for (RankScheduler& rank : ranks) {
        if (i < 500 && rng.one_in(i < 200 ? 12 : 3)) {
          REQUIRE(submit_to(rank, id++, rng.between(1, 200), rng.between(1, 30)));
        }
      }
      std::vector<const StepPlan*> plans;
      std::vector<RankSummary> summaries;
      for (RankScheduler& rank : ranks) {
        plans.push_back(rank.plan(TimeNs{i}));
        REQUIRE(plans.back() != nullptr);  // every rank takes part
        CHECK_FALSE(plans.back()->is_sealed);
        summaries.push_back(rank.summary(*plans.back()));
        CHECK(rank.plan(TimeNs{i}) == nullptr);  // sealed first
      }
      for (std::size_t r = 0; r < 4; ++r) {
        CHECK(settle_rank(ranks[r], *plans[r]).code == Errc::WrongPlan);
        REQUIRE(ranks[r].seal(*plans[r], summaries));
        CHECK(ranks[r].seal(*plans[r], summaries).code == Errc::WrongPlan);
      }
      for (std::size_t r = 0; r < 4; ++r) {
        const StepPlan& plan = *plans[r];
        CHECK(plan.padded.tokens == plans[0]->padded.tokens);
        CHECK(plan.padded.rows == plans[0]->padded.rows);
        CHECK(plan.micro_batches.size() == plans[0]->micro_batches.size());
        CHECK(plan.padded.tokens >= plan.num_tokens());
        CHECK(plan.is_dummy == plan.chunks.empty());
        dummies += plan.is_dummy ? 1 : 0;
        splits += plan.micro_batches.size() > 1 ? 1 : 0;
        padded += plan.padded.rows > static_cast<std::int32_t>(plan.chunks.size()) ? 1 : 0;
      }
      in_flight.push_back(plans);
      while (static_cast<std::int32_t>(in_flight.size()) >= depth) {
        for (std::size_t r = 0; r < 4; ++r) {
          REQUIRE(settle_rank(ranks[r], *in_flight.front()[r]));
          REQUIRE(ranks[r].check());
        }
        in_flight.pop_front();
      }
      for (RankScheduler& rank : ranks) {
        Event events[64];
        while (rank.poll(events) == std::size(events)) {
        }
      }
    }
    CHECK(dummies > 0);
    CHECK(splits > 0);
    CHECK(padded > 0);
    for (RankScheduler& rank : ranks) {
      CHECK(rank.stats().live == 0);
      CHECK(rank.stats().finished > 0);
    }
  }
}

TEST_CASE("Dummy plans in flight do not keep a row from giving way") {
  // The newer request is the better one; in its prompt it takes what the older one's decode needs.
  // The older one is then the victim that asks itself, while a dummy plan is always in flight.
  using Ranked = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, PriorityAging>;
  Capabilities caps;
  caps.max_sequences = 4;
  AdmissionRules rules;
  rules.reserve = AdmissionRules::Reserve::FirstChunk;
  rules.max_chunk_tokens = 4;
  auto made = Ranked::make({.max_plans_in_flight = 2, .num_ranks = 2}, caps,
                           TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 64}), NoSplit{},
                           NullBalancer{}, BlockPool<>({.num_blocks = 6, .block_size = 4}),
                           PriorityAging(PriorityAging::Config{.rules = rules}));
  REQUIRE(made.has_value());
  Ranked s = std::move(made).value();
  SmallRequest worse(1, 8, 12);
  SmallRequest better(2, 16, 4);
  better.request.priority = -1;
  REQUIRE(s.submit(worse.view()));
  std::deque<const StepPlan*> in_flight;
  std::uint64_t preemptions = 0;
  for (int i = 0; i < 200 && (i < 10 || s.stats().live > 0); ++i) {
    if (i == 3) {
      REQUIRE(s.submit(better.view()));
    }
    const StepPlan* plan = s.plan(TimeNs{i});
    REQUIRE(plan != nullptr);
    const RankSummary summaries[] = {s.summary(*plan), RankSummary{}};
    REQUIRE(s.seal(*plan, summaries));
    in_flight.push_back(plan);
    if (in_flight.size() == 2) {
      std::vector<Token> tokens(static_cast<std::size_t>(in_flight.front()->num_samples), 1);
      StepResult result;
      result.tokens = tokens;
      REQUIRE(s.commit(*in_flight.front(), result, TimeNs{i}));
      in_flight.pop_front();
    }
    Event events[16];
    while (s.poll(events) == std::size(events)) {
    }
    preemptions = s.stats().preemptions;
  }
  CHECK(s.stats().finished == 2);
  CHECK(preemptions > 0);
}

TEST_CASE("When no rank has work the seal says so") {
  RankScheduler a = make_rank(0, 2);
  RankScheduler b = make_rank(1, 2);
  const StepPlan* pa = a.plan(TimeNs{});
  const StepPlan* pb = b.plan(TimeNs{});
  REQUIRE(pa != nullptr);
  REQUIRE(pb != nullptr);
  const RankSummary summaries[] = {a.summary(*pa), b.summary(*pb)};
  REQUIRE(a.seal(*pa, summaries));
  CHECK(pa->padded.tokens == 0);
  CHECK(pa->is_dummy);
  REQUIRE(settle_rank(a, *pa));
  CHECK(b.seal(*pb, std::span<const RankSummary>(summaries).first(1)).code ==
        Errc::InvalidArgument);
  REQUIRE(b.abandon(*pb, AbandonReason::NotRun, TimeNs{}));
}

TEST_CASE("A seal refuses summaries in which this rank is another") {
  RankScheduler a = make_rank(1, 2);
  REQUIRE(submit_to(a, 1, 10, 2));
  const StepPlan* plan = a.plan(TimeNs{});
  const RankSummary wrong[] = {a.summary(*plan), RankSummary{}};
  CHECK(a.seal(*plan, wrong).code == Errc::InvalidArgument);
  const RankSummary right[] = {RankSummary{}, a.summary(*plan)};
  CHECK(a.seal(*plan, right));
}

TEST_CASE("R31 four ranks with 100, 100, 1 and 0 tokens decide alike") {
  std::vector<RankScheduler> ranks;
  const std::int64_t lengths[] = {100, 100, 1, 0};
  std::vector<const StepPlan*> plans;
  std::vector<RankSummary> summaries;
  for (std::int32_t r = 0; r < 4; ++r) {
    ranks.push_back(make_rank(r, 4));
    if (lengths[r] > 0) {
      REQUIRE(submit_to(ranks.back(), 1, lengths[r], 1));
    }
    plans.push_back(ranks.back().plan(TimeNs{}));
    summaries.push_back(ranks.back().summary(*plans.back()));
  }
  for (std::size_t r = 0; r < 4; ++r) {
    REQUIRE(ranks[r].seal(*plans[r], summaries));
    CHECK(plans[r]->micro_batches.size() == 1);
    CHECK(plans[r]->padded.tokens == 100);
  }
}

TEST_CASE("The one-call step leaves lock-step to the host") {
  struct Never {
    [[nodiscard]] Capabilities capabilities() const { return {}; }
    void execute(const StepPlan&, StepResultBuffer&) { FAIL("an unsealed plan was executed"); }
  };
  RankScheduler s = make_rank(0, 2);
  REQUIRE(submit_to(s, 1, 10, 2));
  Never executor;
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  const StepReport report = run_step(s, executor, result, [] { return TimeNs{}; });
  CHECK(report.outcome == StepOutcome::Abandoned);
  CHECK(report.status.code == Errc::NotSupported);
  CHECK(s.stats().plans_in_flight == 0);
  CHECK(s.check());
}

TEST_CASE("A rank alone pads decodes to captured sizes too") {
  RankScheduler s = make_rank(0, 1);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    REQUIRE(submit_to(s, i, 4, 10));
  }
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  CHECK(plan->padded.rows == 5);  // a step with prompts runs without a graph
  REQUIRE(settle_rank(s, *plan));
  plan = s.plan(TimeNs{});
  CHECK(plan->padded.rows == 8);
  CHECK(plan->padded.tokens == 8);
  CHECK(padded_work(*plan).decode_rows == 8);
  CHECK(padded_work(*plan).kv_tokens == plan->work.kv_tokens);
}
