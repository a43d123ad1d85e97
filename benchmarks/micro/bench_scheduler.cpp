// SPDX-License-Identifier: Apache-2.0
/// \file
/// Cost of the scheduler itself: plan + commit of a pure decode step, submission, cancellation.
/// Targets: docs/performance.md.
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

using namespace dynbatch;

namespace {

using BenchScheduler = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>>;

constexpr std::int32_t kBlock = 16;

void require(const Status& s) {
  if (!s) {
    char text[256];
    format_status(s, text, sizeof(text));
    std::fprintf(stderr, "bench_scheduler: %s\n", text);
    std::exit(1);
  }
}

/// A scheduler whose rows all decode, at contexts from `context` on. No sequence ends within the
/// timed steps, so each of them is a pure decode step with all rows running; lengths are staggered
/// so that one row in sixteen needs a block in each step, as in service.
class DecodeBed {
 public:
  static constexpr std::int64_t kSteps = 256;
  /// Long enough for the steps in which the last rows are still in their prompt, and the timed
  /// ones.
  static constexpr std::int64_t kOutputs = 1024;

  DecodeBed(std::int32_t running, std::int64_t context, std::int64_t pool_blocks,
            std::int64_t waiting, bool is_recorded = false, bool is_watched = false) {
    SchedulerConfig config;
    config.flight_log_bytes = is_recorded ? std::int64_t{1} << 30 : 0;
    config.flight_log_prompts = true;
    if (is_watched) {
      config.watch.max_tenants = 64;
      for (AlertRule& rule : config.watch.alerts) {
        rule = {.raise_at = 900, .clear_at = 500};
      }
    }
    config.max_live_requests = running + waiting + 64;
    config.max_context_tokens = context + kOutputs;
    config.max_queued_tokens = running * (context + 2 * kOutputs) + (waiting + 64) * 1024;
    Capabilities caps;
    caps.max_tokens = 1 << 17;
    caps.max_sequences = running;
    auto made = BenchScheduler::make(
        config, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 1 << 17}), NoSplit{},
        NullBalancer{},
        BlockPool<>(BlockPool<>::Config{.num_blocks = pool_blocks, .block_size = kBlock}),
        FcfsAdmission(FcfsAdmission::Config{.max_bypass = 0}));
    require(made.status());
    scheduler_ = std::make_unique<BenchScheduler>(std::move(made).value());
    require(scheduler_->make_result(result_));
    prompt_.resize(static_cast<std::size_t>(context));
    for (std::int32_t i = 0; i < running; ++i) {
      submit(context - i % kBlock, kOutputs);
    }
    do {
      step();
    } while (has_prefill_ || scheduler_->stats().running < static_cast<std::uint64_t>(running));
    for (std::int64_t i = 0; i < waiting; ++i) {
      submit(64, 64);
    }
    for (int i = 0; i < kBlock; ++i) {
      step();
    }
  }

  BenchScheduler& scheduler() { return *scheduler_; }

  const StepPlan& plan() {
    const StepPlan* plan = scheduler_->plan(tick());
    if (plan == nullptr) {
      std::fprintf(stderr, "bench_scheduler: no plan (%s)\n",
                   to_string(scheduler_->status().cause));
      std::exit(1);
    }
    return *plan;
  }
  void commit(const StepPlan& plan) { require(scheduler_->commit(plan, result_.view(), tick())); }

  /// What the executor does: outside the timing.
  void execute(const StepPlan& plan) {
    result_.reset(plan);
    for (std::int32_t i = 0; i < plan.num_samples; ++i) {
      result_.add_sample(next_token());
    }
    result_.set_measured(milliseconds(10));
    has_prefill_ = plan.num_prefill_chunks > 0;
  }

  void step() {
    const StepPlan& plan = this->plan();
    execute(plan);
    commit(plan);
    drain();
  }

  void submit(std::int64_t length, std::int64_t outputs) {
    if (static_cast<std::int64_t>(prompt_.size()) < length) {
      prompt_.resize(static_cast<std::size_t>(length));
    }
    for (std::int64_t i = 0; i < length; ++i) {
      prompt_[static_cast<std::size_t>(i)] = next_token();
    }
    Request r;
    r.id = RequestId{next_id_++};
    r.prompt.tokens = std::span<const Token>(prompt_).first(static_cast<std::size_t>(length));
    r.max_new_tokens = outputs;
    require(scheduler_->submit(r));
  }

  void drain() {
    Event events[256];
    while (scheduler_->poll(events) == std::size(events)) {
    }
    while (scheduler_->drain_log(log_) > 0) {
    }
  }
  [[nodiscard]] bool has_prefill() const { return has_prefill_; }

 private:
  TimeNs tick() { return TimeNs{now_ += 1'000'000}; }
  Token next_token() {
    return static_cast<Token>((token_ = token_ * 1664525U + 1013904223U) >> 4U);
  }

  std::unique_ptr<BenchScheduler> scheduler_;
  StepResultBuffer result_;
  std::vector<Token> prompt_;
  std::vector<std::byte> log_ = std::vector<std::byte>(1 << 16);
  std::int64_t now_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint32_t token_ = 1;
  bool has_prefill_ = true;
};

/// What plan_commit_instructions.sh counts: functions of their own, so that a profiler can tell.
[[gnu::noinline]] const StepPlan& timed_plan(DecodeBed& bed) { return bed.plan(); }
[[gnu::noinline]] void timed_commit(DecodeBed& bed, const StepPlan& plan) { bed.commit(plan); }

/// plan() + commit() of one decode step; execution, poll() and drain_log() are not timed.
void plan_commit(benchmark::State& state, std::int32_t running, std::int64_t context,
                 std::int64_t waiting, std::int64_t pool, bool is_recorded, bool is_watched) {
  DecodeBed bed(running, context, pool, waiting, is_recorded, is_watched);
  std::int64_t decodes = 0;
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    const StepPlan& plan = timed_plan(bed);
    const auto planned = std::chrono::steady_clock::now();
    bed.execute(plan);
    decodes += plan.num_decode_chunks;
    if (plan.num_decode_chunks != running || plan.num_prefill_chunks != 0) {
      state.SkipWithError("not a pure decode step");
      break;
    }
    const auto resumed = std::chrono::steady_clock::now();
    timed_commit(bed, plan);
    const auto done = std::chrono::steady_clock::now();
    seconds = std::chrono::duration<double>(planned - start + (done - resumed)).count();
    state.SetIterationTime(seconds);
    bed.drain();
  }
  state.SetItemsProcessed(decodes);
}

void BM_Submit(benchmark::State& state) {
  // One scheduler for all threads; thread 0 also drains it, so that slots come back.
  static std::unique_ptr<BenchScheduler> scheduler;
  static StepResultBuffer result;
  if (state.thread_index() == 0) {
    SchedulerConfig config;
    config.max_live_requests = 1 << 20;
    config.max_queued_tokens = std::int64_t{1} << 30;
    config.max_context_tokens = 1024;
    Capabilities caps;
    caps.max_sequences = 1;
    auto made = BenchScheduler::make(
        config, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
        BlockPool<>(BlockPool<>::Config{.num_blocks = 1000, .block_size = kBlock}),
        FcfsAdmission{});
    require(made.status());
    scheduler = std::make_unique<BenchScheduler>(std::move(made).value());
  }
  std::vector<Token> prompt(512, 7);
  Request r;
  r.prompt.tokens = prompt;
  r.max_new_tokens = 256;
  std::uint64_t id = static_cast<std::uint64_t>(state.thread_index()) << 40U;
  for (auto _ : state) {
    r.id = RequestId{id++};
    benchmark::DoNotOptimize(scheduler->submit(r));
  }
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() == 0 && scheduler->stats().rejected != 0) {
    state.SkipWithError("a submission was refused");
  }
}

/// One cancellation among `queued` waiting requests: cancel() plus the plan() that carries it out,
/// less the same plan() without one.
void BM_CancelWaiting(benchmark::State& state) {
  const std::int64_t queued = state.range(0);
  DecodeBed bed(1, 64, 1000, queued);
  std::uint64_t id = 2;
  for (auto _ : state) {
    state.PauseTiming();
    if (id == static_cast<std::uint64_t>(queued) + 2) {
      state.SkipWithError("ran out of waiting requests");
      break;
    }
    state.ResumeTiming();
    benchmark::DoNotOptimize(bed.scheduler().cancel(RequestId{id}));
    const StepPlan& plan = bed.plan();
    state.PauseTiming();
    ++id;
    require(bed.scheduler().abandon(plan, AbandonReason::NotRun, TimeNs{}));
    bed.drain();
    bed.submit(64, 64);
    state.ResumeTiming();
  }
}

void register_plan_commit(int repetitions) {
  for (const std::int32_t running : {256, 1024}) {
    for (const std::int64_t context : {512, 4096, 32768}) {
      for (const std::int64_t waiting : {0, 10000}) {
        for (const std::int64_t pool : {300000, 4000000}) {
          if (static_cast<double>(running) * static_cast<double>(context) / kBlock >
              0.9 * static_cast<double>(pool)) {
            continue;
          }
          for (const int variant : {0, 1, 2}) {
            const bool is_recorded = variant == 1;
            const bool is_watched = variant == 2;
            if (variant != 0 && pool != 300000) {
              continue;  // what the recorder and statistics cost has nothing to do with the pool
            }
            const std::string name =
                "BM_PlanCommit/running:" + std::to_string(running) +
                "/context:" + std::to_string(context) +
                "/block:16/waiting:" + std::to_string(waiting) + "/pool:" + std::to_string(pool) +
                (is_recorded ? "/recorder:on" : "") + (is_watched ? "/watch:on" : "");
            benchmark::RegisterBenchmark(name.c_str(),
                                         [=](benchmark::State& state) {
                                           plan_commit(state, running, context, waiting, pool,
                                                       is_recorded, is_watched);
                                         })
                ->UseManualTime()
                ->Iterations(DecodeBed::kSteps)
                ->Repetitions(repetitions)
                ->ReportAggregatesOnly(repetitions > 1)
                ->Unit(benchmark::kMicrosecond);
          }
        }
      }
    }
  }
}

}  // namespace

BENCHMARK(BM_Submit)->Name("BM_Submit")->ThreadRange(1, 2)->Iterations(200000)->UseRealTime();
BENCHMARK(BM_CancelWaiting)
    ->Name("BM_CancelWaiting")
    ->ArgName("queued")
    ->Arg(1000)
    ->Arg(10000)
    ->Iterations(500);

int main(int argc, char** argv) {
  // One run a cell is enough where instructions are counted.
  const bool is_counting = std::getenv("DYNBATCH_BENCH_ONCE") != nullptr;
  register_plan_commit(is_counting ? 1 : 5);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
