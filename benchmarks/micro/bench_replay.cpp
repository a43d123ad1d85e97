// SPDX-License-Identifier: Apache-2.0
// Simulated requests per second of wall time, with the real Scheduler: BM_Replay/azure_conv_like.
//   offline   everything at t = 0: 256 sequences in every step
//   rate      at the trace's own rate: small steps
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include <cstdint>
#include <string>

#include <benchmark/benchmark.h>

namespace {

constexpr std::int64_t kRequests = 10'000;

void replay_embedded(benchmark::State& state, const char* policy, bool is_offline) {
  const dynbatch::Trace trace =
      dynbatch::generate_trace(dynbatch::azure_conv_like(kRequests, 1), "azure_conv_like");
  dynbatch::ReplayConfig config;
  config.offline = is_offline;
  dynbatch::PolicyListReader reader(policy);
  dynbatch::PolicySpec spec;
  if (!reader.next(spec)) {
    state.SkipWithError("bad policy");
    return;
  }
  std::int64_t num_steps = 0;
  for (auto _ : state) {
    const dynbatch::ReplayRun run =
        dynbatch::replay_policy(spec, trace, config, dynbatch::kLlama70bFp8H100Tp4Vllm.model);
    if (!run.is_ok()) {
      state.SkipWithError(run.status.text);
      return;
    }
    num_steps += run.totals.num_steps;
  }
  state.SetItemsProcessed(state.iterations() * kRequests);  // items/s = requests/s
  state.counters["time_per_step"] = benchmark::Counter(
      static_cast<double>(num_steps), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

}  // namespace

int main(int argc, char** argv) {
  for (const bool is_offline : {true, false}) {
    const std::string mode = is_offline ? "offline" : "rate";
    // The one that design.md states a number for, then the others for comparison.
    benchmark::RegisterBenchmark(("BM_Replay/azure_conv_like:" + mode).c_str(), replay_embedded,
                                 "chunked:budget=2048", is_offline)
        ->Unit(benchmark::kMillisecond);
    for (const char* policy : {"static:batch=32", "dynbatch"}) {
      benchmark::RegisterBenchmark(
          ("BM_Replay/azure_conv_like:" + mode + "/policy:" + policy).c_str(), replay_embedded,
          policy, is_offline)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
