// SPDX-License-Identifier: Apache-2.0
// What the default sizer and its fit of step times cost a step: limits() + observe().
//   quiet        nothing is published and no term computed anew
//   republished  every step comes 100 ms after the last, so that costs are published each time
//   recomputed   and memory and latency terms are computed anew, from a list of all that runs
// Work and noise of the steps are drawn beforehand.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/slo_budget_sizer.hpp>
#include <dynbatch/batch/step_time_fit.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <benchmark/benchmark.h>

namespace {

using namespace dynbatch;

constexpr StepCost kEngine{10'000'000, 34'500'000, 3'600'000, 91'000, 2'582'000, 1};
constexpr std::size_t kSteps = 4096;

struct Step {
  StepFeedback feedback;
  SizerInput input;
};

std::vector<Step> draw_steps(std::int32_t running) {
  SplitMix64 random(1);
  std::vector<Step> steps(kSteps);
  for (Step& step : steps) {
    StepWork work;
    work.decode_rows = running;
    work.kv_tokens = running * random.between(900, 1100);
    if (random.one_in(2)) {
      work = with_prefill(work, 512 * random.between(0, 8), random.between(64, 2048));
    }
    step.feedback.work = work;
    step.feedback.measured = {kEngine.predict(work).ns * random.between(97, 103) / 100};
    SizerInput& in = step.input;
    in.num_decoding = running;
    in.num_prefilling = 1;
    in.num_waiting = 100;
    in.decoding_kv_tokens = work.kv_tokens;
    in.running_output_tokens = running * std::int64_t{200};
    in.waiting_prompt_tokens = 100'000;
    in.least_tpot = milliseconds(100);
    in.max_tokens = 16'384;
    in.max_sequences = 2 * running;
    in.pool = {};
    in.pool.total_blocks = 600'000 / 16;
    in.pool.referenced_blocks = in.pool.total_blocks / 2;
    in.pool.free_blocks = in.pool.total_blocks - in.pool.referenced_blocks;
    in.pool.block_size = 16;
    in.next_prompt_position = 512 * random.between(0, 8);
    in.next_prompt_tokens = random.between(1, 4096);
  }
  return steps;
}

std::vector<RunningSequence> draw_running(std::int32_t n) {
  SplitMix64 random(2);
  std::vector<RunningSequence> running;
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int64_t outputs = random.between(1, 600);
    running.push_back({1000 + outputs, 1008 + outputs, outputs, 8192});
  }
  return running;
}

template <class Sizer>
void sizer_step(benchmark::State& state, Sizer sizer, bool is_republished) {
  const auto num_running = static_cast<std::int32_t>(state.range(0));
  std::vector<Step> steps = draw_steps(num_running);
  std::vector<RunningSequence> running = draw_running(num_running);
  const RunningList list(&running, [](const void* context, void* state_of_take,
                                      RunningList::Take take) noexcept {
    for (const RunningSequence& r : *static_cast<const std::vector<RunningSequence>*>(context)) {
      take(state_of_take, r);
    }
  });
  SplitMix64 random(3);
  std::vector<FinishedOutput> finished(400);
  for (FinishedOutput& output : finished) {
    output.tokens = random.between(1, 600);
  }
  StepFeedback ended;
  ended.finished = finished;
  sizer.observe(ended);
  TimeNs now{};
  const auto one = [&](Step& step, DurationNs passed) {
    now = now + passed;
    step.input.now = now;
    step.input.next_token_due = now + milliseconds(90);
    step.input.running = list;
    step.feedback.now = now;
    benchmark::DoNotOptimize(sizer.limits(step.input));
    sizer.observe(step.feedback);
  };
  for (std::size_t i = 0; i < 200; ++i) {
    one(steps[i], milliseconds(100));
  }
  const std::uint64_t before = sizer.cost().version;
  std::size_t i = 0;
  std::uint64_t num_steps = 0;
  for (auto _ : state) {
    one(steps[i], is_republished ? milliseconds(100) : DurationNs{0});
    i = i + 1 < kSteps ? i + 1 : 0;
    ++num_steps;
  }
  if (sizer.cost().version != before + (is_republished ? num_steps : 0)) {
    state.SkipWithError("publications are not what was to be measured");
  }
}

void fit_step(benchmark::State& state, bool is_republished) {
  const std::vector<Step> steps = draw_steps(256);
  StepTimeFit fit;
  TimeNs now{};
  std::size_t i = 0;
  for (auto _ : state) {
    now = now + (is_republished ? milliseconds(100) : DurationNs{0});
    fit.observe(now, steps[i].feedback.work, steps[i].feedback.measured);
    benchmark::DoNotOptimize(fit);
    i = i + 1 < kSteps ? i + 1 : 0;
  }
}

void inverse(benchmark::State& state, bool is_quadratic) {
  const std::vector<Step> steps = draw_steps(256);
  StepCost cost = kEngine;
  cost.attention_pair_fs = is_quadratic ? cost.attention_pair_fs : 0;
  std::size_t i = 0;
  for (auto _ : state) {
    const SizerInput& in = steps[i].input;
    const StepWork work{0, in.num_decoding, in.decoding_kv_tokens, 0};
    benchmark::DoNotOptimize(
        cost.prefill_tokens_within(milliseconds(90), work, in.next_prompt_position, 8192));
    i = i + 1 < kSteps ? i + 1 : 0;
  }
}

enum class Case : std::uint8_t { Quiet, Republished, Recomputed };

void dynamic_sizer_step(benchmark::State& state, Case which) {
  DynamicSizer::Config config;
  if (which == Case::Republished) {
    config.recompute_ns = std::numeric_limits<std::int64_t>::max();
  }
  sizer_step(state, DynamicSizer(config), which != Case::Quiet);
}
void slo_budget_sizer_step(benchmark::State& state, bool is_republished) {
  sizer_step(state, SloBudgetSizer(), is_republished);
}

BENCHMARK_CAPTURE(dynamic_sizer_step, quiet, Case::Quiet)->Name("BM_SizerStep/quiet")->Arg(256);
BENCHMARK_CAPTURE(dynamic_sizer_step, republished, Case::Republished)
    ->Name("BM_SizerStep/republished")
    ->Arg(256);
BENCHMARK_CAPTURE(dynamic_sizer_step, recomputed, Case::Recomputed)
    ->Name("BM_SizerStep/recomputed")
    ->Arg(256)
    ->Arg(1024);
BENCHMARK_CAPTURE(slo_budget_sizer_step, quiet, false)
    ->Name("BM_SloBudgetSizerStep/quiet")
    ->Arg(256);
BENCHMARK_CAPTURE(slo_budget_sizer_step, republished, true)
    ->Name("BM_SloBudgetSizerStep/republished")
    ->Arg(256);
BENCHMARK_CAPTURE(fit_step, quiet, false)->Name("BM_StepTimeFit/quiet");
BENCHMARK_CAPTURE(fit_step, republished, true)->Name("BM_StepTimeFit/republished");
BENCHMARK_CAPTURE(inverse, linear, false)->Name("BM_Inverse/linear");
BENCHMARK_CAPTURE(inverse, quadratic, true)->Name("BM_Inverse/quadratic");

}  // namespace

BENCHMARK_MAIN();
