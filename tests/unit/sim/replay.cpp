// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include "reference_replay.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using dynbatch::PolicySpec;
using dynbatch::ReplayConfig;
using dynbatch::ReplayRun;
using dynbatch::RequestStatus;
using dynbatch::Trace;
using dynbatch::TraceRequest;

namespace {

const dynbatch::FormulaCost kCost = dynbatch::kLlama70bFp8H100Tp4Vllm.model;
const reference::Cost kReferenceCost{11'020'000, 54'700'000, 27'910, 44'600'000};

ReplayRun run_policy(std::string_view policy, const Trace& trace, const ReplayConfig& config) {
  dynbatch::PolicyListReader reader(policy);
  PolicySpec spec;
  REQUIRE(reader.next(spec));
  ReplayRun run = dynbatch::replay_policy(spec, trace, config, kCost);
  INFO(policy << ": " << run.status.field << " " << run.status.text);
  REQUIRE(run.is_ok());
  return run;
}

std::vector<reference::Request> reference_requests(const Trace& trace, const ReplayConfig& config) {
  std::vector<reference::Request> out;
  for (const TraceRequest& r : trace.requests) {
    out.push_back(
        {config.offline ? 0 : std::llround(static_cast<double>(r.arrival_ns) / config.rate_scale),
         r.input_tokens, r.output_tokens});
  }
  return out;
}

bool is_equal(const ReplayRun& run, const reference::Result& expected) {
  bool equal =
      run.requests.size() == expected.requests.size() && run.totals.num_steps == expected.num_steps;
  for (std::size_t i = 0; equal && i < run.requests.size(); ++i) {
    const auto& request = run.requests[i];
    equal = request.status == RequestStatus::Finished &&
            request.first_token_ns == expected.requests[i].first_token_ns &&
            request.finish_ns == expected.requests[i].finish_ns;
  }
  return equal;
}

std::int64_t total_output(const Trace& trace, std::size_t count) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += trace.requests[i].output_tokens;
  }
  return sum;
}

Trace small_trace(std::int64_t count, std::uint64_t seed) {
  return dynbatch::generate_trace(dynbatch::azure_conv_like(count, seed), "small");
}

}  // namespace

TEST_CASE("chunked batching equals the reference to the nanosecond", "[sim][replay]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Trace trace = small_trace(150, seed);
    for (const double scale : {0.0, 0.5, 2.0, 20.0}) {
      for (const std::int64_t budget : {256, 2048}) {
        for (const std::int32_t rows : {7, 64}) {
          INFO("seed " << seed << " scale " << scale << " budget " << budget << " rows " << rows);
          ReplayConfig config;
          config.offline = scale == 0.0;
          config.rate_scale = config.offline ? 1.0 : scale;
          config.max_sequences = rows;
          config.kv_tokens = 4'000'000;
          CHECK(is_equal(run_policy("chunked:budget=" + std::to_string(budget), trace, config),
                         reference::chunked(reference_requests(trace, config), kReferenceCost,
                                            budget, static_cast<std::size_t>(rows))));
        }
      }
    }
  }
}

TEST_CASE("static batching equals the reference to the nanosecond", "[sim][replay]") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Trace trace = small_trace(100, seed);
    for (const double scale : {0.0, 0.02, 1.0}) {
      for (const std::int32_t batch : {1, 8, 32}) {
        INFO("seed " << seed << " scale " << scale << " batch " << batch);
        ReplayConfig config;
        config.offline = scale == 0.0;
        config.rate_scale = config.offline ? 1.0 : scale;
        config.max_sequences = 64;
        config.kv_tokens = 4'000'000;
        const ReplayRun run = run_policy("static:batch=" + std::to_string(batch), trace, config);
        const auto requests = reference_requests(trace, config);
        const auto rows = static_cast<std::size_t>(batch);
        CHECK(is_equal(run, reference::request_level(requests, kReferenceCost, rows)));
      }
    }
  }
}

TEST_CASE("R40 - an empty trace ends at time 0 with defined statistics", "[sim][replay]") {
  for (const char* policy : {"static", "chunked", "dynbatch"}) {
    ReplayRun run = run_policy(policy, Trace{}, ReplayConfig{});
    CHECK(run.requests.empty());
    CHECK(run.totals.num_steps == 0);
    const auto m = dynbatch::measure(run.requests, run.totals, {}, 1);
    CHECK(m.duration == 0.0);
    CHECK(m.output_throughput == 0.0);
  }
}

TEST_CASE("every policy serves every request once and to its length", "[sim][replay]") {
  const Trace trace = small_trace(300, 9);
  for (const char* policy : {"static:batch=16", "chunked:budget=512", "dynbatch"}) {
    // The tight pool holds about 20 requests: preemptions, but nothing is lost.
    for (const std::int64_t kv_tokens : {600'000, 30'000}) {
      INFO(policy << " with " << kv_tokens << " KV tokens");
      ReplayConfig config;
      config.rate_scale = 3.0;
      config.max_sequences = 64;
      config.kv_tokens = kv_tokens;
      const ReplayRun run = run_policy(policy, trace, config);
      for (std::size_t i = 0; i < trace.requests.size(); ++i) {
        const auto& request = run.requests[i];
        REQUIRE(request.status == RequestStatus::Finished);
        REQUIRE(request.output_tokens == trace.requests[i].output_tokens);
        REQUIRE(request.arrival_ns <= request.scheduled_ns);
        REQUIRE(request.scheduled_ns < request.first_token_ns);
        REQUIRE(request.first_token_ns <= request.finish_ns);
      }
    }
  }
}

TEST_CASE("equal seeds replay equally and units share nothing", "[sim][replay]") {
  const Trace trace = small_trace(200, 4);
  ReplayConfig config;
  config.rate_scale = 4.0;
  const ReplayRun a = run_policy("dynbatch", trace, config);
  const ReplayRun b = run_policy("dynbatch", trace, config);
  CHECK(a.totals.num_steps == b.totals.num_steps);
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    REQUIRE(a.requests[i].finish_ns == b.requests[i].finish_ns);
  }
  // Unit 1 of 3 behaves like one unit that sees requests 1, 4, 7, ...
  config.units = 3;
  const ReplayRun three = run_policy("dynbatch", trace, config);
  Trace every_third;
  for (std::size_t i = 1; i < trace.requests.size(); i += 3) {
    every_third.requests.push_back(trace.requests[i]);
  }
  config.units = 1;
  const ReplayRun alone = run_policy("dynbatch", every_third, config);
  for (std::size_t i = 0; i < alone.requests.size(); ++i) {
    REQUIRE(three.requests[3 * i + 1].unit == 1);
    REQUIRE(three.requests[3 * i + 1].finish_ns == alone.requests[i].finish_ns);
  }
}

TEST_CASE("gaps between tokens add up to the decoding time of all requests", "[sim][replay]") {
  const Trace trace = small_trace(200, 5);
  ReplayConfig config;
  config.rate_scale = 4.0;
  config.kv_tokens = 40'000;
  config.max_sequences = 64;
  for (const char* policy : {"static:batch=16", "chunked", "dynbatch"}) {
    const ReplayRun run = run_policy(policy, trace, config);
    std::int64_t num_gaps = 0;
    std::int64_t sum_ns = 0;
    for (const auto& gap : run.totals.itl_ns) {
      num_gaps += gap.count;
      sum_ns += gap.count * gap.value;
    }
    std::int64_t expected_ns = 0;
    for (const auto& request : run.requests) {
      num_gaps -= request.output_tokens - 1;
      expected_ns += request.finish_ns - request.first_token_ns;
    }
    INFO(policy);
    CHECK(num_gaps == 0);
    CHECK(sum_ns == expected_ns);
  }
}

TEST_CASE("shared prefixes are found in the cache", "[sim][replay]") {
  auto workload = dynbatch::azure_conv_like(300, 6);
  workload.num_prefix_groups = 4;
  workload.prefix_tokens = 1'024;
  const Trace trace = dynbatch::generate_trace(workload, "grouped");
  ReplayConfig config;
  const ReplayRun with = run_policy("chunked", trace, config);
  config.prefix_caching = false;
  const ReplayRun without = run_policy("chunked", trace, config);
  CHECK(with.totals.prefix_hit_tokens > 290 * 1'024);
  CHECK(with.totals.prefix_hit_tokens <= 300 * 1'024);
  CHECK(without.totals.prefix_hit_tokens == 0);
  CHECK(with.totals.busy_ns < without.totals.busy_ns);
  // Without groups nothing is shared.
  CHECK(run_policy("chunked", small_trace(300, 6), ReplayConfig{}).totals.prefix_hit_tokens == 0);
}

TEST_CASE("the output limit hides the output length and cuts only when asked", "[sim][replay]") {
  Trace trace = small_trace(20, 7);
  trace.requests[3].output_tokens = 9'000;
  ReplayConfig config;
  CHECK(dynbatch::max_new_of(trace, config) == 16'384);
  config.max_new_tokens = 100;
  CHECK(dynbatch::max_new_of(trace, config) == 16'384);
  config.cuts_outputs = true;
  CHECK(dynbatch::max_new_of(trace, config) == 100);
  const ReplayRun run = run_policy("chunked", trace, config);
  std::int64_t num_cut = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    num_cut += trace.requests[i].output_tokens > 100 ? 1 : 0;
    CHECK(run.requests[i].output_tokens ==
          std::min<std::int64_t>(trace.requests[i].output_tokens, 100));
    CHECK(run.requests[i].status == RequestStatus::Finished);
  }
  CHECK(run.totals.num_cut == num_cut);
  config.max_new_tokens = 9'000;
  CHECK(dynbatch::max_new_of(trace, config) == 16'384);
}

TEST_CASE("requests that can never fit are rejected and counted as misses", "[sim][replay]") {
  Trace trace = small_trace(10, 8);
  trace.requests[4].input_tokens = 5'000'000'000;
  trace.requests[5].input_tokens = 40'000;
  ReplayConfig config;
  config.kv_tokens = 32'000;
  ReplayRun run = run_policy("chunked", trace, config);
  CHECK(run.requests[4].status == RequestStatus::Rejected);
  CHECK(run.requests[5].status == RequestStatus::Rejected);
  const auto m = dynbatch::measure(run.requests, run.totals, {}, 1);
  CHECK(m.rejected == 2);
  CHECK(m.completed == 8);
  CHECK(m.slo_attainment == Approx(0.8));
}

TEST_CASE("requests beyond a limit of those that wait are refused and counted apart",
          "[sim][replay]") {
  Trace trace = small_trace(60, 8);
  for (TraceRequest& request : trace.requests) {  // three bursts
    request.arrival_ns = request.arrival_ns / 2'000'000'000 * 2'000'000'000;
    request.input_tokens = 4'000;
  }
  ReplayConfig config;
  config.max_sequences = 4;
  config.slo.ttft = dynbatch::milliseconds(1'000);
  ReplayRun all = run_policy("chunked", trace, config);
  const auto without = dynbatch::measure(all.requests, all.totals, config.slo, 1);
  CHECK(without.refused == 0);
  CHECK(without.slo_attainment_taken == without.slo_attainment);
  config.max_waiting = 5;
  ReplayRun run = run_policy("chunked", trace, config);
  const auto limited = dynbatch::measure(run.requests, run.totals, config.slo, 1);
  CHECK(limited.refused > 0);
  CHECK(limited.completed == 60 - limited.refused);
  CHECK(limited.rejected == 0);
  CHECK(limited.slo_attainment_taken ==
        Approx(limited.slo_attainment * 60.0 / static_cast<double>(limited.completed)));
  CHECK(limited.slo_attainment_taken > without.slo_attainment);
  std::int64_t refused = 0;
  for (const auto& request : run.requests) {
    refused += request.status == RequestStatus::Refused ? 1 : 0;
    CHECK((request.status == RequestStatus::Refused || request.first_token_ns > 0));
    CHECK((request.status == RequestStatus::Finished || request.scheduled_ns < 0));
  }
  CHECK(refused == limited.refused);
  config.max_waiting = 0;
  config.max_wait = dynbatch::milliseconds(800);
  ReplayRun predicted = run_policy("chunked", trace, config);
  const auto m = dynbatch::measure(predicted.requests, predicted.totals, config.slo, 1);
  CHECK(m.refused > 0);
  CHECK(m.completed == 60 - m.refused);
  config.max_wait = {};
  CHECK(std::string_view(config.validate().field) == "max_wait");
  config.max_wait = dynbatch::kUnbounded;
  config.max_waiting = -1;
  CHECK(std::string_view(config.validate().field) == "max_waiting");
}

TEST_CASE("a replay evicts in the order asked for", "[sim][replay]") {
  // Chats that go on at once and then after as much else as the pool holds.
  Trace trace;
  trace.hash_block_tokens = 16;
  for (std::uint64_t i = 0; i < 400; ++i) {
    TraceRequest request;
    request.arrival_ns = static_cast<std::int64_t>(i) * 1'000'000'000;
    request.input_tokens = 16 * 10;
    request.output_tokens = 4;
    request.first_hash = trace.hash_ids.size();
    request.num_hashes = 10;
    for (std::uint64_t k = 0; k < 10; ++k) {
      // Every other one is new.
      trace.hash_ids.push_back(10 * (i % 2 == 0 ? i / 4 % 5 : 1000 + i) + k);
    }
    trace.requests.push_back(request);
  }
  for (const char* policy : {"dynbatch", "chunked"}) {
    INFO(policy);
    const auto run = [&](dynbatch::CacheEviction eviction) {
      ReplayConfig config{.kv_tokens = 16 * 70};
      config.max_new_tokens = 16;
      config.eviction = eviction;
      return run_policy(policy, trace, config);
    };
    const ReplayRun lru = run(dynbatch::CacheEviction::Lru);
    // Nothing expires in the seven minutes of this trace.
    const ReplayRun ttl = run(dynbatch::CacheEviction::Ttl);
    CHECK(ttl.totals.prefix_hit_tokens == lru.totals.prefix_hit_tokens);
    CHECK(ttl.totals.busy_ns == lru.totals.busy_ns);
    CHECK(ttl.requests.back().finish_ns == lru.requests.back().finish_ns);
    const ReplayRun slru = run(dynbatch::CacheEviction::Slru);
    CHECK(lru.totals.prefix_hit_tokens > 0);
    CHECK(2 * slru.totals.prefix_hit_tokens > 3 * lru.totals.prefix_hit_tokens);
    for (const auto other : {dynbatch::CacheEviction::Lfu, dynbatch::CacheEviction::Priority,
                             dynbatch::CacheEviction::Cost, dynbatch::CacheEviction::Adaptive}) {
      CHECK(run(other).requests.back().status == RequestStatus::Finished);
    }
  }
  const auto field_of = [&](const char* policy, dynbatch::CacheEviction eviction) {
    PolicySpec spec;
    dynbatch::PolicyListReader reader(policy);
    REQUIRE(reader.next(spec));
    ReplayConfig config;
    config.eviction = eviction;
    return std::string(dynbatch::replay_policy(spec, trace, config, kCost).status.field);
  };
  CHECK(field_of("dynbatch", dynbatch::CacheEviction::Belady) == "eviction");
  CHECK(field_of("static", dynbatch::CacheEviction::Slru) == "eviction");
}

TEST_CASE("bad replay configurations and policies are typed errors", "[sim][replay]") {
  const auto field_of = [](ReplayConfig config) {
    PolicySpec spec;
    dynbatch::PolicyListReader reader("chunked");
    REQUIRE(reader.next(spec));
    return std::string(dynbatch::replay_policy(spec, Trace{}, config, kCost).status.field);
  };
  CHECK(field_of({.kv_tokens = 0}) == "kv_tokens");
  CHECK(field_of({.kv_tokens = 8, .block_size = 16}) == "kv_tokens");
  CHECK(field_of({.max_sequences = 0}) == "max_sequences");
  CHECK(field_of({.max_new_tokens = 0}) == "max_new_tokens");
  CHECK(field_of({.units = 0}) == "units");
  CHECK(field_of({.rate_scale = 0.0}) == "rate_scale");
  CHECK(field_of({.rate_scale = std::nan("")}) == "rate_scale");
  PolicySpec spec;
  dynbatch::PolicyListReader reader("chunked,nonsense:x=1");
  REQUIRE(reader.next(spec));
  REQUIRE(reader.next(spec));
  std::size_t position = 0;
  CHECK_FALSE(dynbatch::replay_policy(spec, Trace{}, {}, kCost, &position).is_ok());
  CHECK(position == 8);
  CHECK_FALSE(dynbatch::check_policy(spec));
}

TEST_CASE("the published comparison of the Azure conversation trace comes out", "[sim][replay]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  dynbatch::TraceOptions options;
  options.max_requests = 3'000;
  const auto read =
      dynbatch::read_trace(std::string(folder) + "/traces/azure2023_conv_min00-30.csv", options);
  REQUIRE(read);
  ReplayConfig config;
  config.offline = true;
  const auto throughput = [&](const char* policy) {
    ReplayRun run = run_policy(policy, read.trace, config);
    return dynbatch::measure(run.requests, run.totals, {}, 1).output_throughput;
  };
  const auto requests = reference_requests(read.trace, config);
  const auto outputs = static_cast<double>(total_output(read.trace, 3'000));
  CHECK(outputs /
            (static_cast<double>(reference::chunked(requests, kReferenceCost, 2'048, 256).end_ns) *
             1e-9) ==
        Approx(2'952).epsilon(0.001));
  CHECK(outputs /
            (static_cast<double>(reference::request_level(requests, kReferenceCost, 32).end_ns) *
             1e-9) ==
        Approx(743).epsilon(0.001));
  const double chunked = throughput("chunked");
  CHECK(throughput("static:batch=32") == Approx(743).epsilon(0.02));
  CHECK(chunked == Approx(2'952).epsilon(0.02));
  CHECK(throughput("dynbatch") >= chunked);
}
