// SPDX-License-Identifier: Apache-2.0
/// \file
/// Cost of the waiting queue under each order: BM_Queue/order:X/waiting:N is the turn of one
/// request while N others wait: submit() with random keys, the plan() that admits the first in
/// order, its commit() and poll(). The requests are as small as can be, so what grows with N is the
/// queue's. Target: docs/performance.md.
#include <dynbatch/batch/earliest_deadline.hpp>
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/batch/shortest_first.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include <benchmark/benchmark.h>

using namespace dynbatch;

namespace {

void require(const Status& s) {
  if (!s) {
    char text[256];
    format_status(s, text, sizeof(text));
    std::fprintf(stderr, "bench_queue: %s\n", text);
    std::exit(1);
  }
}

/// One place to run, requests of one block of prompt and one output: each step ends one request and
/// admits the next.
template <class Order>
class QueueBed {
 public:
  using BedScheduler = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, Order>;

  explicit QueueBed(std::int64_t waiting) {
    SchedulerConfig config;
    config.max_live_requests = waiting + 8;
    config.max_queued_tokens = (waiting + 8) * 64;
    config.max_context_tokens = 64;
    Capabilities caps;
    caps.max_tokens = 64;
    caps.max_sequences = 1;
    auto made = BedScheduler::make(
        config, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 64}), NoSplit{},
        NullBalancer{}, BlockPool<>(BlockPool<>::Config{.num_blocks = 64, .block_size = kTokens}),
        Order{});
    require(made.status());
    scheduler_ = std::make_unique<BedScheduler>(std::move(made).value());
    require(scheduler_->make_result(result_));
    for (std::int64_t i = 0; i < waiting; ++i) {
      submit();
    }
    step();  // takes all of them into the queue
  }

  void submit() {
    Token prompt[kTokens];
    for (Token& token : prompt) {
      token = static_cast<Token>(random_() % 100'000);
    }
    Request r;
    r.id = RequestId{next_id_++};
    r.prompt.tokens = prompt;
    r.arrival = TimeNs{now_};
    r.priority = static_cast<std::int32_t>(random_() % 16);
    r.tenant = random_() % 100;
    r.stop_tokens = kStops;
    r.max_new_tokens = 1 + static_cast<std::int64_t>(random_() % 16);
    const auto patience = static_cast<std::int64_t>(random_() % 1'000'000);
    r.finish_by = TimeNs{now_ + seconds(1'000'000).ns + milliseconds(1).ns * patience};
    require(scheduler_->submit(r));
  }

  /// The one that runs ends, and the plan after it admits the first in order.
  void step() {
    const StepPlan* plan = scheduler_->plan(TimeNs{now_ += 1'000'000});
    if (plan == nullptr) {
      std::fprintf(stderr, "bench_queue: no plan (%s)\n", to_string(scheduler_->status().cause));
      std::exit(1);
    }
    result_.reset(*plan);
    for (std::int32_t i = 0; i < plan->num_samples; ++i) {
      result_.add_sample(kStop);
    }
    result_.set_measured(milliseconds(1));
    require(scheduler_->commit(*plan, result_.view(), TimeNs{now_}));
    Event events[16];
    while (scheduler_->poll(events) == std::size(events)) {
    }
  }

  [[nodiscard]] const BedScheduler& scheduler() const { return *scheduler_; }

 private:
  static constexpr std::int32_t kTokens = 16;
  static constexpr Token kStop = 7;
  static constexpr Token kStops[] = {kStop};

  std::unique_ptr<BedScheduler> scheduler_;
  StepResultBuffer result_;
  std::mt19937_64 random_{1};
  std::int64_t now_ = 1;
  std::uint64_t next_id_ = 1;
};

template <class Order>
void turn(benchmark::State& state) {
  QueueBed<Order> bed(state.range(0));
  const auto before = bed.scheduler().stats();
  for (auto _ : state) {
    bed.submit();
    bed.step();
  }
  const auto after = bed.scheduler().stats();
  if (after.finished - before.finished != static_cast<std::uint64_t>(state.iterations()) ||
      after.waiting != before.waiting) {
    state.SkipWithError("a turn was not one request");
  }
}

void waiting(benchmark::internal::Benchmark* bench) {
  bench->ArgName("waiting");
  for (const std::int64_t n : {100, 1'000, 10'000, 100'000}) {
    bench->Arg(n);
  }
}

}  // namespace

BENCHMARK(turn<FcfsAdmission>)->Name("BM_Queue/order:fcfs")->Apply(waiting);
BENCHMARK(turn<PriorityAging>)->Name("BM_Queue/order:priority")->Apply(waiting);
BENCHMARK(turn<EarliestDeadline>)->Name("BM_Queue/order:deadline")->Apply(waiting);
BENCHMARK(turn<ShortestFirst>)->Name("BM_Queue/order:shortest")->Apply(waiting);
BENCHMARK(turn<FairShare>)->Name("BM_Queue/order:fair")->Apply(waiting);
BENCHMARK(turn<PrefixAffinity>)->Name("BM_Queue/order:prefix")->Apply(waiting);

BENCHMARK_MAIN();
