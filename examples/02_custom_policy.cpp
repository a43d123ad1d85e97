// SPDX-License-Identifier: Apache-2.0
// A researcher's own BatchSizer, replayed against ours: the same scheduler, trace and simulated
// engine, one policy exchanged. AimdSizer moves its token budget like TCP its window: a little up
// after each step that was short enough, down by a half after one that was too long.
//
// Output:
// chunked   2.3k tok/s, TTFT p99 1.1 s, 98 % in time
// dynbatch  2.3k tok/s, TTFT p99 1.2 s, 100 % in time
// aimd      2.3k tok/s, TTFT p99 1.7 s, 100 % in time
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_sets.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/workload.hpp>

#include <algorithm>

#include <fmt/core.h>

namespace {

class AimdSizer {
 public:
  struct Config {
    std::int64_t target_ns = 100'000'000;  // longest step
    [[nodiscard]] dynbatch::Status validate() const noexcept { return dynbatch::kOk; }
  };

  dynbatch::BatchLimits limits(const dynbatch::SizerInput& in) noexcept {
    const std::int64_t tokens = std::min(in.num_decoding + budget_, in.max_tokens);
    return {in.max_sequences, in.max_sequences, tokens, std::min(budget_, tokens), {}};
  }
  void observe(const dynbatch::StepFeedback& step) noexcept {
    const bool is_short = step.measured.ns <= config_.target_ns;
    budget_ = is_short ? std::min<std::int64_t>(budget_ + 64, 8'192)
                       : std::max<std::int64_t>(budget_ / 2, 64);
  }
  [[nodiscard]] dynbatch::BatchLimits ceiling() const noexcept {
    return {1 << 20, 1 << 20, 1 << 20, 8'192, {}};
  }
  [[nodiscard]] dynbatch::StepCost cost() const noexcept { return {}; }  // learns no step times

 private:
  Config config_;
  std::int64_t budget_ = 512;  // prompt tokens a step
};

static_assert(dynbatch::BatchSizer<AimdSizer>);

// A bundle names the other policies: dynbatch's own, but for the sizer.
struct AimdBundle : dynbatch::DynbatchBundle {
  using Sizer = AimdSizer;
  [[nodiscard]] static AimdSizer make_sizer() { return {}; }
};

template <class Bundle>
void compare(const char* name, const Bundle& bundle) {
  const dynbatch::Trace trace = generate_trace(dynbatch::azure_conv_like(2'000, 1), "embedded");
  dynbatch::ReplayConfig config{.rate_scale = 2.0};
  config.slo = {.ttft = dynbatch::milliseconds(2'000), .tpot = dynbatch::milliseconds(100)};
  dynbatch::ReplayRun run =
      replay_bundle(trace, config, dynbatch::kLlama70bFp8H100Tp4Vllm.model, bundle);
  const dynbatch::ReplayMetrics m = measure(run.requests, run.totals, config.slo, config.units);
  fmt::print("{:<9} {:.1f}k tok/s, TTFT p99 {:.1f} s, {:.0f} % in time\n", name,
             m.output_throughput / 1e3, m.ttft_ms.p99 / 1e3, m.slo_attainment * 100.0);
}

}  // namespace

int main() {
  compare("chunked", dynbatch::ChunkedBundle{});
  compare("dynbatch", dynbatch::DynbatchBundle{});
  compare("aimd", AimdBundle{});
}
