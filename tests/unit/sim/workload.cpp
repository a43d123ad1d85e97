// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using dynbatch::azure_conv_like;
using dynbatch::generate_trace;
using dynbatch::Trace;
using dynbatch::WorkloadConfig;

namespace {

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) {
    sum += v;
  }
  return sum / static_cast<double>(values.size());
}

double coefficient_of_variation(const std::vector<double>& values) {
  const double m = mean(values);
  double squares = 0.0;
  for (const double v : values) {
    squares += (v - m) * (v - m);
  }
  return std::sqrt(squares / static_cast<double>(values.size())) / m;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

std::vector<double> gaps(const Trace& trace) {
  std::vector<double> out;
  for (std::size_t i = 1; i < trace.requests.size(); ++i) {
    out.push_back(
        static_cast<double>(trace.requests[i].arrival_ns - trace.requests[i - 1].arrival_ns) *
        1e-9);
  }
  return out;
}

}  // namespace

TEST_CASE("the Azure-like workload has the statistics of the Azure conversation trace",
          "[sim][workload]") {
  const Trace trace = generate_trace(azure_conv_like(19'366, 1), "azure_conv_like");
  REQUIRE(trace.requests.size() == 19'366);
  std::vector<double> input;
  std::vector<double> output;
  for (const auto& request : trace.requests) {
    input.push_back(static_cast<double>(request.input_tokens));
    output.push_back(static_cast<double>(request.output_tokens));
  }
  CHECK(mean(input) == Approx(1'155).epsilon(0.03));
  CHECK(quantile(input, 0.5) == Approx(1'020).epsilon(0.03));
  CHECK(quantile(input, 0.9) == Approx(2'734).epsilon(0.15));
  CHECK(quantile(input, 0.99) == Approx(4'142).epsilon(0.03));
  CHECK(mean(output) == Approx(211).epsilon(0.03));
  CHECK(quantile(output, 0.5) == Approx(129).epsilon(0.03));
  CHECK(quantile(output, 0.9) == Approx(424).epsilon(0.03));
  CHECK(quantile(output, 0.99) == Approx(601).epsilon(0.03));
  CHECK(1.0 / mean(gaps(trace)) == Approx(5.53).epsilon(0.03));
  CHECK(coefficient_of_variation(gaps(trace)) == Approx(1.09).epsilon(0.03));
}

TEST_CASE("burstiness is the shape of the gaps", "[sim][workload]") {
  for (const double shape : {0.25, 1.0, 4.0}) {
    WorkloadConfig config = azure_conv_like(20'000, 7);
    config.burstiness = shape;
    INFO("shape " << shape);
    CHECK(coefficient_of_variation(gaps(generate_trace(config, ""))) ==
          Approx(1.0 / std::sqrt(shape)).epsilon(0.05));
  }
}

TEST_CASE("equal configurations give equal traces and seeds differ", "[sim][workload]") {
  const Trace a = generate_trace(azure_conv_like(500, 3), "a");
  CHECK(a.requests == generate_trace(azure_conv_like(500, 3), "b").requests);
  CHECK_FALSE(a.requests == generate_trace(azure_conv_like(500, 4), "a").requests);
  // A longer workload begins like the shorter one.
  const Trace longer = generate_trace(azure_conv_like(600, 3), "a");
  CHECK(std::equal(a.requests.begin(), a.requests.end(), longer.requests.begin()));
}

TEST_CASE("prefix groups lengthen the prompts of their share of the requests", "[sim][workload]") {
  WorkloadConfig config = azure_conv_like(4'000, 5);
  const Trace plain = generate_trace(config, "");
  config.num_prefix_groups = 8;
  config.prefix_tokens = 512;
  config.prefix_share = 0.5;
  const Trace grouped = generate_trace(config, "");
  std::int64_t members = 0;
  for (std::size_t i = 0; i < grouped.requests.size(); ++i) {
    const auto& request = grouped.requests[i];
    CHECK(request.prefix_group <= 8);
    members += request.prefix_group > 0 ? 1 : 0;
    CHECK(request.input_tokens ==
          plain.requests[i].input_tokens + (request.prefix_group > 0 ? 512 : 0));
  }
  CHECK(members == Approx(2'000).epsilon(0.1));
}

TEST_CASE("invalid workloads are refused by field and generate nothing", "[sim][workload]") {
  const WorkloadConfig good = azure_conv_like(10, 1);
  CHECK(good.validate());
  WorkloadConfig bad = good;
  bad.burstiness = 0.0;
  CHECK(bad.validate().field == std::string("burstiness"));
  CHECK(generate_trace(bad, "").requests.empty());
  bad = good;
  bad.requests_per_second = std::nan("");
  CHECK_FALSE(bad.validate());
  bad = good;
  bad.input = {};
  CHECK(bad.validate().field == std::string("input"));
  bad = good;
  bad.num_requests = -1;
  CHECK_FALSE(bad.validate());
  bad = good;
  bad.prefix_share = 1.5;
  CHECK_FALSE(bad.validate());
}
