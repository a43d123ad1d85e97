// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/service_bound.hpp>
#include <dynbatch/sim/trace.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

using dynbatch::FormulaCost;
using dynbatch::ReplayConfig;
using dynbatch::ReplayRun;
using dynbatch::ServiceBound;
using dynbatch::Trace;
using dynbatch::TraceRequest;

namespace {

// 10 ms a step, 1 ms a row, 0.1 ms a prompt token.
FormulaCost simple_cost() {
  FormulaCost cost;
  cost.cost = {10'000'000, 100'000'000, 1'000'000'000, 0, 0, 1};
  return cost;
}

TraceRequest request(std::int64_t arrival_ms, std::int64_t input, std::int64_t output) {
  TraceRequest r;
  r.arrival_ns = arrival_ms * 1'000'000;
  r.input_tokens = input;
  r.output_tokens = output;
  return r;
}

ReplayConfig config_of(std::int64_t kv_tokens, std::int32_t rows) {
  ReplayConfig config;
  config.kv_tokens = kv_tokens;
  config.max_sequences = rows;
  return config;
}

ReplayRun run_policy(std::string_view policy, const Trace& trace, const ReplayConfig& config,
                     const FormulaCost& cost) {
  dynbatch::PolicyListReader reader(policy);
  dynbatch::PolicySpec spec;
  REQUIRE(reader.next(spec));
  ReplayRun run = dynbatch::replay_policy(spec, trace, config, cost);
  INFO(policy << ": " << run.status.field << " " << run.status.text);
  REQUIRE(run.is_ok());
  return run;
}

Trace random_trace(dynbatch::SplitMix64& random) {
  Trace trace;
  trace.name = "random";
  const std::int64_t count = random.between(1, 60);
  const std::int64_t gap_ms = random.between(1, 120);
  const bool has_groups = random.one_in(2);
  const bool has_hashes = !has_groups && random.one_in(2);
  trace.hash_block_tokens = has_hashes ? 32 : 0;
  std::int64_t at_ms = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t gap = random.between(0, 2 * gap_ms);
    const std::int64_t input = random.between(1, 600);
    at_ms += random.one_in(4) ? gap : 0;  // bursts
    TraceRequest r = request(at_ms, input, random.between(1, 80));
    if (has_groups) {
      r.prefix_group = static_cast<std::uint64_t>(random.between(1, 3));
      r.prefix_tokens = 128;
      r.input_tokens += 128;
    }
    if (has_hashes) {
      r.first_hash = trace.hash_ids.size();
      r.num_hashes = (input + 31) / 32;
      const std::int64_t common = random.between(0, r.num_hashes);
      for (std::int64_t k = 0; k < r.num_hashes; ++k) {
        trace.hash_ids.push_back(static_cast<std::uint64_t>(k < common ? k : (i + 1) * 1000 + k));
      }
    }
    trace.requests.push_back(r);
  }
  trace.num_rows = count;
  return trace;
}

}  // namespace

TEST_CASE("Service bound, one request needs its steps and its work") {
  Trace trace;
  trace.requests = {request(0, 100, 5)};
  // One step of 10 + 10 ms, four of 10 + 1 ms.
  const ServiceBound bound(trace, config_of(4096, 8), simple_cost());
  CHECK(bound.offline_seconds() == Approx(0.064).epsilon(1e-6));

  ReplayConfig config = config_of(4096, 8);
  config.slo = {dynbatch::milliseconds(20), dynbatch::milliseconds(11)};
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == 1.0);
  config.slo = {dynbatch::milliseconds(19), dynbatch::milliseconds(11)};
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == 0.0);
  config.slo = {dynbatch::milliseconds(20), dynbatch::milliseconds(10)};
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == 0.0);
}

TEST_CASE("Service bound, fixed costs are shared by rows and by context") {
  Trace trace;
  for (int i = 0; i < 64; ++i) {
    trace.requests.push_back(request(0, 100, 11));
  }
  // Each: 10 ms of prompt, 10 rows of 1 ms, and 11 of 10 ms steps shared by 8 rows.
  CHECK(ServiceBound(trace, config_of(1 << 20, 8), simple_cost()).offline_seconds() ==
        Approx(64 * (0.020 + 0.110 / 8)).epsilon(1e-6));
  // 210 places hold two: the context of the 10 decodes sums to 1,055.
  CHECK(ServiceBound(trace, config_of(210, 8), simple_cost()).offline_seconds() ==
        Approx(64 * (0.020 + 0.010 * 1055.0 / 210.0)).epsilon(1e-6));
}

TEST_CASE("Service bound, a burst leaves room for so many of its requests") {
  Trace trace;
  for (int i = 0; i < 10; ++i) {
    trace.requests.push_back(request(0, 1000, 1));  // 100 ms each
  }
  trace.requests.push_back(request(100'000, 1, 1));
  ReplayConfig config = config_of(1 << 20, 1 << 10);
  config.slo.ttft = dynbatch::milliseconds(350);
  // Three of ten fit into 350 ms, and the last one is alone.
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == Approx(4.0 / 11.0));
  // What they share is computed once.
  for (TraceRequest& r : trace.requests) {
    r.prefix_group = 1;
    r.prefix_tokens = r.input_tokens > 1 ? 900 : 0;
  }
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == 1.0);
  config.prefix_caching = false;
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == Approx(4.0 / 11.0));
  // Two units serve twice as many: six of ten.
  config.units = 2;
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1.0) == Approx(7.0 / 11.0));
}

TEST_CASE("Service bound, what can't be in time on an idle engine is missed at any rate") {
  Trace trace;
  trace.requests = {request(0, 10'000, 1), request(1'000'000, 10, 1)};
  ReplayConfig config = config_of(1 << 20, 8);
  config.slo.ttft = dynbatch::milliseconds(500);
  CHECK(ServiceBound(trace, config, simple_cost()).attainment(1e-6) == 0.5);
  CHECK(ServiceBound(Trace{}, config, simple_cost()).attainment(1.0) == 1.0);
  CHECK(ServiceBound(Trace{}, config, simple_cost()).offline_seconds() == 0.0);
}

TEST_CASE("Service bound, no policy exceeds it") {
  const std::vector<FormulaCost> costs = {simple_cost(), dynbatch::kLlama70bFp8H100Tp4Vllm.model,
                                          dynbatch::find_cost("llama2-70b_h100_tp8").cost.model};
  dynbatch::SplitMix64 random(20261201);
  double closest = 0.0;
  int num_tight = 0;
  for (int round = 0; round < 150; ++round) {
    const Trace trace = random_trace(random);
    const FormulaCost& cost = costs[static_cast<std::size_t>(random.between(0, 2))];
    ReplayConfig config = config_of(random.between(50, 400) * 16, 0);
    config.max_sequences = static_cast<std::int32_t>(random.between(1, 32));
    config.units = static_cast<std::int32_t>(random.between(1, 2));
    config.max_new_tokens = 128;
    config.rate_scale = random.one_in(2) ? 1.0 : 3.0;
    config.offline = random.one_in(3);
    config.slo.ttft = dynbatch::milliseconds(random.between(20, 500));
    config.slo.tpot = dynbatch::milliseconds(random.between(15, 400));
    for (const std::string_view policy : {"chunked:budget=512", "dynbatch", "prefill_first"}) {
      ReplayRun run = run_policy(policy, trace, config, cost);
      const dynbatch::ReplayMetrics m =
          dynbatch::measure(run.requests, run.totals, config.slo, config.units);
      const ServiceBound bound(trace, config, cost);
      const double share = bound.attainment(config.offline ? 1.0 : config.rate_scale);
      INFO("round " << round << ", " << policy);
      REQUIRE(m.slo_attainment <= share + 1e-9);
      num_tight += share < 1.0 && m.slo_attainment > 0.5 * share ? 1 : 0;
      if (config.offline && m.rejected + m.failed == 0) {
        REQUIRE(m.duration >= bound.offline_seconds() * (1.0 - 1e-6));
        closest = std::max(closest, bound.offline_seconds() / m.duration);
      }
    }
  }
  CHECK(num_tight > 10);  // not because it says nothing
  CHECK(closest > 0.9);
}
