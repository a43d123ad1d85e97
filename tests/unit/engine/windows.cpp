// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tiny engine with layers of a sliding window and recurrent ones, scheduled over a
/// GroupedPool: each request gets the tokens that it would get alone.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "alone.hpp"
#include "engine.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <utility>
#include <vector>

using namespace dynbatch;

namespace {

using Sched = Scheduler<TokenBudgetSizer, EqualTokens, NullBalancer, GroupedPool<>, FcfsAdmission>;

struct Job {
  std::vector<Token> prompt;
  tiny::Sampling sampling;
  std::int32_t samples = 1;
  std::map<std::int32_t, std::vector<Token>> outputs;
  bool is_finished = false;
};

/// An engine whose memory is full of numbers that spoil whatever reads them.
struct Poisoned : tiny::Engine {
  Poisoned(const tiny::Model& model, const tiny::EngineConfig& config) : Engine(model, config) {
    kv().fill(std::numeric_limits<float>::quiet_NaN());
    window_kv().fill(std::numeric_limits<float>::quiet_NaN());
    states().fill(std::numeric_limits<float>::quiet_NaN());
  }
};

struct Totals {
  std::uint64_t preemptions = 0;
  std::uint64_t hits = 0;
  std::int64_t copies = 0;
  std::int64_t left_behind = 0;
  std::int64_t zeroes = 0;
};

void serve(std::int32_t window, std::int32_t window_block, std::int32_t num_recurrent,
           int plans_in_flight, std::uint64_t seed, Totals& totals) {
  tiny::ModelConfig shape;
  shape.num_layers = 3;
  shape.window = window;
  shape.num_recurrent = num_recurrent;
  shape.max_positions = 128;
  const tiny::Model model(shape);
  tiny::EngineConfig config;
  config.num_blocks = 40;
  config.block_size = 4;
  config.max_rows = 6;
  config.max_tokens = 48;
  config.max_context = 128;
  config.window_block_size = window_block;
  const auto blocks = [&](const GroupSpec& spec) {
    return 8 + GroupedPool<>::blocks_needed(spec, {.max_rows = 6,
                                                   .max_context_tokens = 128,
                                                   .max_plans_in_flight = plans_in_flight,
                                                   .max_step_tokens = 48});
  };
  GroupedPool<>::Config pool;
  pool.pool = {.num_blocks = config.num_blocks, .block_size = config.block_size};
  pool.snapshot_interval_tokens = 8;
  std::size_t num_further = 0;
  if (window > 0) {
    const GroupSpec spec{GroupKind::Window, window_block, window};
    pool.groups[num_further++] = {spec, config.window_blocks = blocks(spec)};
  }
  if (num_recurrent > 0) {
    const GroupSpec spec{GroupKind::Recurrent, 1, 0};
    pool.groups[num_further] = {spec, config.state_blocks = blocks(spec)};
  }
  Poisoned engine(model, config);
  auto made = Sched::make({.max_context_tokens = 128, .max_plans_in_flight = plans_in_flight},
                          engine.capabilities(), TokenBudgetSizer({.budget = 48}),
                          EqualTokens({.parts = 2, .min_tokens = 2}), NullBalancer{},
                          GroupedPool<>(pool), FcfsAdmission{});
  REQUIRE(made);
  Sched scheduler = std::move(made).value();
  SplitMix64 rng(seed);
  std::map<std::uint64_t, Job> jobs;
  std::deque<std::pair<const StepPlan*, StepResultBuffer>> flight;
  const auto poll = [&] {
    Event events[16];
    for (std::size_t n = 16; n == 16;) {
      n = scheduler.poll(events);
      for (std::size_t i = 0; i < n; ++i) {
        Job& job = jobs[events[i].request.value];
        std::vector<Token>& out = job.outputs[events[i].sample];
        out.insert(out.end(), events[i].tokens.begin(), events[i].tokens.end());
        job.is_finished = job.is_finished || events[i].kind == EventKind::Finished;
      }
    }
  };
  for (std::uint64_t step = 1; step < 2000 && (step < 160 || scheduler.stats().live > 0); ++step) {
    if (step < 160 && rng.one_in(3)) {
      Job job;
      const std::int64_t length = rng.between(1, 70);
      const std::int64_t shared = rng.between(0, length);
      for (std::int64_t t = 0; t < length; ++t) {
        job.prompt.push_back(static_cast<Token>(t < shared ? (t * 7) % 100 : rng.between(0, 99)));
      }
      job.sampling.seed = static_cast<std::uint32_t>(step);
      job.sampling.temperature = rng.one_in(2) ? 100 : 0;
      job.samples = rng.one_in(4) ? 3 : 1;
      Request r;
      r.id = RequestId{step};
      r.user_data = job.sampling.user_data();
      r.prompt.tokens = job.prompt;
      r.max_new_tokens = rng.between(1, 40);
      r.num_samples = job.samples;
      if (scheduler.submit(r)) {
        jobs[step] = job;
      }
    }
    const StepPlan* plan = scheduler.plan(TimeNs{});
    if (plan != nullptr) {
      for (const GroupPlan& group : plan->groups.subspan(1)) {
        for (const BlockDelta& delta : group.deltas) {
          totals.left_behind += delta.block == kNoBlock ? 1 : 0;
        }
        totals.copies += static_cast<std::int64_t>(group.copies.size());
        totals.zeroes += static_cast<std::int64_t>(group.zeroes.size());
      }
      flight.emplace_back(plan, StepResultBuffer());
      REQUIRE(scheduler.make_result(flight.back().second));
      flight.back().second.reset(*plan);
      engine.execute(*plan, flight.back().second);
      if (rng.one_in(15)) {  // it ran, and nobody will know what came out of it
        REQUIRE(scheduler.abandon(*plan, AbandonReason::NotRun, TimeNs{}));
        engine.forget(*plan);
        flight.pop_back();
      }
    }
    while (!flight.empty() &&
           (plan == nullptr || static_cast<int>(flight.size()) == plans_in_flight)) {
      REQUIRE(scheduler.commit(*flight.front().first, flight.front().second.view(), TimeNs{}));
      flight.pop_front();
      if (rng.one_in(2)) {
        break;
      }
    }
    poll();
    REQUIRE(scheduler.check());
  }
  REQUIRE(scheduler.stats().live == 0);
  std::size_t compared = 0;
  for (auto& [id, job] : jobs) {
    REQUIRE(job.is_finished);
    for (std::int32_t sample = 0; sample < job.samples; ++sample) {
      tiny::Alone alone(model, job.prompt, job.sampling, sample);
      const std::vector<Token>& out = job.outputs[sample];
      REQUIRE(!out.empty());
      for (std::size_t i = 0; i < out.size(); ++i) {
        INFO("request " << id << ", sample " << sample << ", output " << i);
        REQUIRE(out[i] == alone.output(i));
        ++compared;
      }
    }
  }
  CHECK(compared > 500);
  totals.preemptions += scheduler.stats().preemptions;
  totals.hits += scheduler.stats().prefix_hit_tokens;
}

}  // namespace

TEST_CASE("A model with window layers says the same alone and in every schedule") {
  Totals totals;
  for (const auto& [window, block] :
       {std::pair{5, 2}, std::pair{12, 8}, std::pair{1, 4}, std::pair{200, 4}}) {
    for (const int plans : {1, 3}) {
      INFO("window " << window << ", blocks of " << block << ", plans " << plans);
      serve(window, block, 0, plans, static_cast<std::uint64_t>(window + plans), totals);
    }
  }
  CHECK(totals.preemptions > 20);
  CHECK(totals.hits > 500);
  CHECK(totals.copies > 20);
  CHECK(totals.left_behind > 200);
}

TEST_CASE("A model with recurrent layers says the same alone and in every schedule") {
  Totals totals;
  for (const auto& [window, recurrent] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{5, 1}}) {
    for (const int plans : {1, 2, 3}) {
      INFO("window " << window << ", recurrent layers " << recurrent << ", plans " << plans);
      serve(window, 4, recurrent, plans, static_cast<std::uint64_t>(10 * recurrent + plans),
            totals);
    }
  }
  CHECK(totals.preemptions > 20);
  CHECK(totals.hits > 500);
  CHECK(totals.copies > 100);
  CHECK(totals.zeroes > 200);
}

TEST_CASE("An engine for a model with recurrent layers needs memory for their states") {
  tiny::ModelConfig shape;
  shape.window = 8;
  shape.num_layers = 4;
  shape.num_recurrent = 1;
  const tiny::Model model(shape);
  tiny::EngineConfig config;
  config.window_blocks = 9;
  CHECK_THROWS_AS(tiny::Engine(model, config), dynbatch::Error);
  config.state_blocks = 40;
  const tiny::Engine engine(model, config);
  REQUIRE(engine.capabilities().groups.size() == 3);
  CHECK(engine.capabilities().groups[1].kind == GroupKind::Window);
  CHECK(engine.capabilities().groups[2] == GroupSpec{GroupKind::Recurrent, 1, 0});
}

TEST_CASE("An engine for a model with windows needs memory for them") {
  tiny::ModelConfig shape;
  shape.window = 8;
  const tiny::Model model(shape);
  CHECK_THROWS_AS(tiny::Engine(model, tiny::EngineConfig{}), dynbatch::Error);
  tiny::EngineConfig config;
  config.window_blocks = 9;
  const tiny::Engine engine(model, config);
  REQUIRE(engine.capabilities().groups.size() == 2);
  CHECK(engine.capabilities().groups[1] == GroupSpec{GroupKind::Window, 8, 8});
}
