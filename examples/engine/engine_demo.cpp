// SPDX-License-Identifier: Apache-2.0
// The tiny engine serves one load twice, in real time: with request-level batches, and with
// dynbatch's default policies. Prints what the clock said, and that no token depends on it.
//   engine_demo [SECONDS]    length of the load; 2 by default
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "alone.hpp"
#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include <fmt/core.h>

namespace {

using namespace dynbatch;

TimeNs now() {
  return TimeNs{std::chrono::duration_cast<std::chrono::nanoseconds>(
                    std::chrono::steady_clock::now().time_since_epoch())
                    .count()};
}

struct Job {
  std::int64_t after_ns = 0;  // arrival, from the beginning of the load
  std::vector<Token> prompt;
  std::int64_t outputs = 1;
  tiny::Sampling sampling;
};

struct Served {
  std::vector<std::vector<Token>> outputs;  // by job
  std::vector<double> ttft_ms;              // by job
  double seconds = 0.0;
  double scheduler_seconds = 0.0;  // plan, commit, poll, submit
  double engine_seconds = 0.0;

  [[nodiscard]] std::int64_t num_tokens() const {
    std::int64_t sum = 0;
    for (const std::vector<Token>& tokens : outputs) {
      sum += static_cast<std::int64_t>(tokens.size());
    }
    return sum;
  }
};

tiny::ModelConfig model_config() {
  tiny::ModelConfig config;
  config.vocab = 256;
  config.width = 64;
  config.num_layers = 4;
  config.head_dim = 16;
  config.num_experts = 16;
  config.expert_width = 64;
  return config;
}

tiny::EngineConfig engine_config() {
  tiny::EngineConfig config;
  config.num_blocks = 1024;
  config.max_rows = 16;
  config.pads = true;  // the padding of request-level batches is computed, as on fixed shapes
  return config;
}

/// Serves the jobs as they arrive. The loop of docs/embedding.md, with a stop-watch in it.
template <class Bundle>
Served serve(const tiny::Model& model, const std::vector<Job>& jobs, const Bundle& bundle) {
  tiny::Engine engine(model, engine_config());
  Scheduler scheduler({.max_context_tokens = engine.config().max_context}, engine.capabilities(),
                      bundle.make_sizer(), bundle.make_splitter(), bundle.make_balancer(),
                      BlockPool<>({.num_blocks = engine.config().num_blocks,
                                   .block_size = engine.config().block_size}),
                      bundle.make_admission());
  StepResultBuffer result;
  bool is_ok = scheduler.make_result(result).is_ok();
  Served served;
  served.outputs.resize(jobs.size());
  served.ttft_ms.resize(jobs.size());
  std::size_t next = 0;
  std::size_t num_done = 0;
  const TimeNs start = now();
  const auto seconds = [](DurationNs d) { return static_cast<double>(d.ns) * 1e-9; };
  while (num_done < jobs.size() && is_ok) {
    const TimeNs before = now();
    for (; next < jobs.size() && start.ns + jobs[next].after_ns <= before.ns; ++next) {
      Request request;
      request.id = {next + 1};
      request.prompt.tokens = jobs[next].prompt;
      request.max_new_tokens = jobs[next].outputs;
      request.arrival = start + DurationNs{jobs[next].after_ns};
      request.user_data = jobs[next].sampling.user_data();
      is_ok &= scheduler.submit(request).is_ok();
    }
    const StepPlan* plan = scheduler.plan(now());
    if (plan == nullptr) {
      if (next == jobs.size()) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    result.reset(*plan);
    const TimeNs launched = now();
    engine.execute(*plan, result);
    const TimeNs done = now();
    result.set_measured(done - launched);
    is_ok &= scheduler.commit(*plan, result.view(), done).is_ok();
    Event events[64];
    for (std::size_t n = std::size(events); n == std::size(events);) {
      n = scheduler.poll(events);
      for (const Event& event : std::span(events, n)) {
        const std::size_t job = event.request.value - 1;
        served.outputs[job].insert(served.outputs[job].end(), event.tokens.begin(),
                                   event.tokens.end());
        if (event.kind == EventKind::FirstToken) {
          served.ttft_ms[job] =
              seconds(done - start) * 1e3 - static_cast<double>(jobs[job].after_ns) * 1e-6;
        }
        num_done += is_terminal(event.kind) ? 1U : 0U;
      }
    }
    served.engine_seconds += seconds(done - launched);
    served.scheduler_seconds += seconds(launched - before) + seconds(now() - done);
  }
  served.seconds = seconds(now() - start);
  return served;
}

/// Short and long prompts that often begin alike, short and long answers.
std::vector<Job> make_jobs(std::size_t count) {
  SplitMix64 rng(1);
  const auto prompt = [&](std::int64_t length) {
    std::vector<Token> out;
    out.reserve(static_cast<std::size_t>(length));
    for (std::int64_t i = 0; i < length; ++i) {
      out.push_back(static_cast<Token>(rng.between(0, model_config().vocab - 1)));
    }
    return out;
  };
  const std::vector<Token> families[] = {prompt(64), prompt(48), prompt(32)};
  std::vector<Job> jobs(count);
  for (Job& job : jobs) {
    if (!rng.one_in(3)) {
      job.prompt = families[rng.between(0, 2)];
    }
    const std::vector<Token> own =
        prompt(rng.one_in(5) ? rng.between(60, 200) : rng.between(4, 40));
    job.prompt.insert(job.prompt.end(), own.begin(), own.end());
    job.outputs = rng.one_in(6) ? rng.between(60, 120) : rng.between(2, 30);
    job.sampling = {static_cast<std::uint32_t>(rng.next()), 80, 0};
  }
  return jobs;
}

/// Jobs that arrive at random over about `seconds`, at `load` times what this machine can serve.
std::vector<Job> make_load(const tiny::Model& model, double seconds, double load) {
  const std::vector<Job> probe = make_jobs(80);
  const double gap =
      serve(model, probe, DynbatchBundle{}).seconds / static_cast<double>(probe.size()) / load;
  std::vector<Job> jobs = make_jobs(static_cast<std::size_t>(seconds / gap) + 1);
  SplitMix64 rng(2);
  double arrival = 0.0;
  for (Job& job : jobs) {
    job.after_ns = static_cast<std::int64_t>(arrival * 1e9);
    arrival += -std::log(1.0 - rng.uniform()) * gap;
  }
  return jobs;
}

void print(const char* name, const Served& served) {
  std::vector<double> ttft = served.ttft_ms;
  std::sort(ttft.begin(), ttft.end());
  double sum = 0.0;
  for (const double ms : ttft) {
    sum += ms;
  }
  fmt::print("{:<12}{:>12.0f}{:>13.0f} ms{:>13.0f} ms{:>13.2f} %\n", name,
             static_cast<double>(served.num_tokens()) / served.seconds,
             sum / static_cast<double>(ttft.size()), ttft[ttft.size() * 99 / 100],
             100.0 * served.scheduler_seconds / (served.scheduler_seconds + served.engine_seconds));
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2.0;
  const tiny::Model model(model_config());
  const std::vector<Job> jobs = make_load(model, seconds, 0.8);
  StaticBundle request_level;
  request_level.sizer.batch = engine_config().max_rows;
  const Served fixed = serve(model, jobs, request_level);
  const Served dynamic = serve(model, jobs, DynbatchBundle{});

  fmt::print("{:<12}{:>12}{:>16}{:>16}{:>15}\n", "", "output tok/s", "TTFT mean", "TTFT p99",
             "scheduler");
  print("static", fixed);
  print("dynbatch", dynamic);

  std::int64_t num_tokens = 0;
  std::int64_t num_different = 0;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    tiny::Alone alone(model, jobs[job].prompt, jobs[job].sampling, 0);
    for (std::size_t i = 0; i < static_cast<std::size_t>(jobs[job].outputs); ++i) {
      ++num_tokens;
      const auto differs = [&](const Served& served) {
        return served.outputs[job].size() <= i || served.outputs[job][i] != alone.output(i);
      };
      num_different += differs(fixed) || differs(dynamic) ? 1 : 0;
    }
  }
  fmt::print("\n{} requests, {} tokens; {} of them differ from what the request gets alone\n",
             jobs.size(), num_tokens, num_different);
  return num_different == 0 ? 0 : 1;
}
