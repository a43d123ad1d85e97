// SPDX-License-Identifier: Apache-2.0
/// \file
/// How much is computed twice when outputs outgrow the pool: admission rules side by side on a
/// workload that fills 3,000 blocks several times over. 200 requests, one arrival a step, prompts
/// uniform in 200..800, outputs uniform in 300..1,100, budget 2,048, 256 sequences, no caching.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <vector>

using namespace dynbatch;

namespace {

constexpr std::int64_t kBlocks = 3000;
constexpr std::int32_t kBlockSize = 16;
constexpr std::int64_t kRequests = 200;
constexpr std::int64_t kMostOutputs = 1100;  // all that a scheduler is told about an output
constexpr Token kStop = 2;
constexpr DurationNs kStep{50'000'000};

struct Job {
  std::int64_t prompt;
  std::int64_t outputs;
};

std::vector<Job> jobs(std::uint64_t seed) {
  SplitMix64 rng(seed);
  std::vector<Job> all;
  for (std::int64_t i = 0; i < kRequests; ++i) {
    const std::int64_t prompt = rng.between(200, 800);
    all.push_back({prompt, rng.between(300, 1100)});
  }
  return all;
}

struct Result {
  std::int64_t steps = 0;
  std::int64_t computed = 0;
  std::int64_t recomputed = 0;
  std::int64_t preemptions = 0;
};

Capabilities capabilities() {
  Capabilities caps;
  caps.max_tokens = 2048;
  caps.max_sequences = 256;
  return caps;
}

/// Runs the jobs; `may_submit(job, step)` holds arrivals back outside the scheduler.
template <class SchedulerType, class Gate>
Result run(SchedulerType& scheduler, const std::vector<Job>& all, Gate&& may_submit) {
  Result result;
  std::vector<Token> prompt(1000, 1);
  std::size_t next = 0;
  TimeNs now{};
  std::vector<Token> tokens;
  while (next < all.size() || scheduler.stats().live > 0) {
    while (next < all.size() && static_cast<std::int64_t>(next) <= result.steps &&
           may_submit(all[next], static_cast<std::uint64_t>(next + 1))) {
      Request request;
      request.id = RequestId{next + 1};
      request.prompt.tokens =
          std::span<const Token>(prompt).first(static_cast<std::size_t>(all[next].prompt));
      request.max_new_tokens = kMostOutputs;
      request.stop_tokens = {&kStop, 1};
      request.arrival = now;
      if (!scheduler.submit(request)) {
        std::fprintf(stderr, "a request was refused\n");
        return result;
      }
      ++next;
    }
    now = now + kStep;
    const StepPlan* plan = scheduler.plan(now);
    ++result.steps;
    if (plan != nullptr) {
      result.computed += plan->num_tokens();
      tokens.clear();
      for (const Chunk& c : plan->chunks) {
        const Job& job = all[static_cast<std::size_t>(c.request.value - 1)];
        for (std::int32_t s = 0; s < c.num_samples; ++s) {
          tokens.push_back(c.context_length + 1 - job.prompt >= job.outputs ? kStop : 1);
        }
      }
      StepResult done;
      done.tokens = tokens;
      done.measured = kStep;
      if (!scheduler.commit(*plan, done, now)) {
        std::fprintf(stderr, "a result was refused\n");
        return result;
      }
    }
    Event events[256];
    while (scheduler.poll(events) == std::size(events)) {
    }
  }
  const SchedulerStats stats = scheduler.stats();
  result.recomputed = static_cast<std::int64_t>(stats.recomputed_tokens);
  result.preemptions = static_cast<std::int64_t>(stats.preemptions);
  return result;
}

BlockPool<> pool() {
  return BlockPool<>({.num_blocks = kBlocks, .block_size = kBlockSize, .prefix_caching = false});
}

/// vLLM V1: whole prompt, in strict order, a share of the pool left free.
Result vllm(const std::vector<Job>& all, std::int32_t watermark_permille) {
  Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>> scheduler(
      {}, capabilities(), TokenBudgetSizer({.budget = 2048}), NoSplit{}, NullBalancer{}, pool(),
      FcfsAdmission({.watermark_permille = watermark_permille, .max_bypass = 0}));
  return run(scheduler, all, [](const Job&, std::uint64_t) { return true; });
}

/// The default bundle, as it is.
Result dynbatch_default(const std::vector<Job>& all) {
  DynbatchBundle bundle;
  Scheduler<DynamicSizer, NoSplit, NullBalancer, BlockPool<>> scheduler(
      {}, capabilities(), bundle.make_sizer(), NoSplit{}, NullBalancer{}, pool(),
      bundle.make_admission());
  return run(scheduler, all, [](const Job&, std::uint64_t) { return true; });
}

/// Knows every length: lets a request in, in order, only if at no later step more blocks will be
/// wanted than there are, each running request growing by one token a step.
Result oracle(const std::vector<Job>& all) {
  Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>> scheduler(
      {}, capabilities(), TokenBudgetSizer({.budget = 2048}), NoSplit{}, NullBalancer{}, pool(),
      FcfsAdmission({.max_bypass = 0}));
  struct Live {
    std::int64_t prompt;
    std::int64_t left;  // steps to its end
    std::int64_t done;
  };
  std::vector<Live> live;
  std::int64_t seen_plans = 0;
  const auto fits = [&](const Job& job, std::uint64_t) {
    const auto plans = static_cast<std::int64_t>(scheduler.stats().plans);
    for (Live& l : live) {
      l.left -= plans - seen_plans;
      l.done += plans - seen_plans;
    }
    seen_plans = plans;
    live.erase(std::remove_if(live.begin(), live.end(), [](const Live& l) { return l.left <= 0; }),
               live.end());
    std::vector<Live> then = live;
    then.push_back({job.prompt, job.outputs + 2, 0});
    for (const Live& end : then) {  // usage peaks just before somebody ends
      std::int64_t blocks = 0;
      for (const Live& l : then) {
        blocks += l.left >= end.left
                      ? ceil_div(l.prompt + l.done + end.left, std::int64_t{kBlockSize})
                      : 0;
      }
      if (blocks > kBlocks) {
        return false;
      }
    }
    live = then;
    return true;
  };
  return run(scheduler, all, fits);
}

void print(const char* name, const Result& r) {
  std::printf("%-26s %6lld %10lld %10lld %9.2f %% %8lld\n", name, static_cast<long long>(r.steps),
              static_cast<long long>(r.computed), static_cast<long long>(r.recomputed),
              100.0 * static_cast<double>(r.recomputed) / static_cast<double>(r.computed),
              static_cast<long long>(r.preemptions));
}

}  // namespace

int main() {
  constexpr std::uint64_t kSeeds = 15;
  constexpr std::uint64_t kPrinted = 3;
  struct Row {
    const char* name;
    Result (*run)(const std::vector<Job>&);
    double steps = 0;
    double share = 0;
  };
  Row rows[] = {
      {"  vLLM, watermark 0", [](const std::vector<Job>& all) { return vllm(all, 0); }},
      {"  vLLM, watermark 0.05", [](const std::vector<Job>& all) { return vllm(all, 50); }},
      {"  dynbatch", dynbatch_default},
      {"  knows all lengths", oracle}};
  std::printf("%-26s %6s %10s %10s %11s %8s\n", "", "steps", "computed", "again", "share",
              "evicted");
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::vector<Job> all = jobs(seed);
    if (seed <= kPrinted) {
      std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    }
    for (Row& row : rows) {
      const Result r = row.run(all);
      row.steps += static_cast<double>(r.steps) / kSeeds;
      row.share +=
          100.0 * static_cast<double>(r.recomputed) / static_cast<double>(r.computed) / kSeeds;
      if (seed <= kPrinted) {
        print(row.name, r);
      }
    }
  }
  std::printf("mean of %llu seeds\n", static_cast<unsigned long long>(kSeeds));
  for (const Row& row : rows) {
    std::printf("%-26s %6.0f %33.2f %%\n", row.name, row.steps, row.share);
  }
  return 0;
}
