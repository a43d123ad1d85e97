// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

double draw_normal(SplitMix64& random) {  // Box and Muller
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

// Gamma with mean 1: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000).
double draw_gamma(SplitMix64& random, double shape) {
  double boost = 1.0;
  double k = shape;
  if (k < 1.0) {
    boost = std::pow(1.0 - random.uniform(), 1.0 / k);
    k += 1.0;
  }
  const double d = k - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = draw_normal(random);
    const double v = std::pow(1.0 + c * x, 3);
    if (v > 0.0 && std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return boost * d * v / shape;
    }
  }
}

std::int64_t draw_length(SplitMix64& random, const LengthMixture& mixture) {
  double total = 0.0;
  for (const LengthPart& part : mixture.parts) {
    total += part.weight;
  }
  double at = random.uniform() * total;
  const LengthPart* chosen = &mixture.parts.front();
  for (const LengthPart& part : mixture.parts) {
    if (part.weight <= 0.0) {
      continue;
    }
    chosen = &part;
    at -= part.weight;
    if (at < 0.0) {
      break;
    }
  }
  const double length = chosen->median * std::exp(chosen->sigma * draw_normal(random));
  return static_cast<std::int64_t>(std::llround(std::clamp(
      length, static_cast<double>(mixture.shortest), static_cast<double>(mixture.longest))));
}

Status validate_mixture(const LengthMixture& mixture, const char* field) {
  double total = 0.0;
  for (const LengthPart& part : mixture.parts) {
    if (!(part.weight >= 0.0 && part.weight <= 1e9) ||
        !(part.median >= 1.0 && part.median <= 1e9) || !(part.sigma >= 0.0 && part.sigma <= 10.0)) {
      return {Errc::InvalidConfig, field, 0, 0,
              "a part needs weight >= 0, median from 1 to 1e9 and sigma from 0 to 10"};
    }
    total += part.weight;
  }
  if (total <= 0.0) {
    return {Errc::InvalidConfig, field, 0, 0, "no part has a weight"};
  }
  if (mixture.shortest < 1 || mixture.longest < mixture.shortest ||
      mixture.longest > 1'000'000'000) {
    return {Errc::InvalidConfig, field, mixture.longest, 1'000'000'000,
            "lengths must satisfy 1 <= shortest <= longest <= 1e9"};
  }
  return kOk;
}

}  // namespace

Status WorkloadConfig::validate() const noexcept {
  if (num_requests < 0 || num_requests > 1'000'000'000) {
    return {Errc::InvalidConfig, "num_requests", num_requests, 1'000'000'000, "out of range"};
  }
  if (!(requests_per_second >= 1e-6 && requests_per_second <= 1e9)) {
    return {Errc::InvalidConfig, "requests_per_second", 0, 0, "must lie in [1e-6, 1e9]"};
  }
  if (!(burstiness >= 0.01 && burstiness <= 1e6)) {
    return {Errc::InvalidConfig, "burstiness", 0, 0, "must lie in [0.01, 1e6]"};
  }
  if (const Status s = validate_mixture(input, "input"); !s) {
    return s;
  }
  if (const Status s = validate_mixture(output, "output"); !s) {
    return s;
  }
  if (num_prefix_groups < 0) {
    return {Errc::InvalidConfig, "num_prefix_groups", num_prefix_groups, 0, "must not be negative"};
  }
  if (prefix_tokens < 0 || prefix_tokens > 1'000'000'000) {
    return {Errc::InvalidConfig, "prefix_tokens", prefix_tokens, 1'000'000'000, "out of range"};
  }
  if (!(prefix_share >= 0.0 && prefix_share <= 1.0)) {
    return {Errc::InvalidConfig, "prefix_share", 0, 1, "must lie in [0, 1]"};
  }
  return kOk;
}

WorkloadConfig azure_conv_like(std::int64_t num_requests, std::uint64_t seed) {
  WorkloadConfig config;
  config.num_requests = num_requests;
  config.requests_per_second = 5.53;
  config.burstiness = 0.842;  // CV 1.09
  // Fitted by expectation maximisation on the trace's first 30 minutes, then moved to the quantiles
  // of the whole trace (facts of the trace and what comes out: docs/simulator.md).
  config.input.parts = {LengthPart{0.275, 590.0, 1.00}, LengthPart{0.230, 395.0, 0.039},
                        LengthPart{0.414, 1'089.0, 0.088}, LengthPart{0.081, 4'080.0, 0.012}};
  config.input.longest = 14'050;
  config.output.parts = {LengthPart{0.157, 66.0, 0.92}, LengthPart{0.503, 93.0, 0.443},
                         LengthPart{0.055, 516.0, 0.141}, LengthPart{0.285, 404.0, 0.046}};
  config.output.longest = 1'000;
  config.seed = seed;
  return config;
}

Trace generate_trace(const WorkloadConfig& config, std::string_view name) {
  Trace trace;
  trace.name = std::string(name);
  if (!config.validate()) {
    return trace;
  }
  // One stream a quantity: changing the lengths leaves the arrivals alone.
  SplitMix64 seeds(config.seed);
  SplitMix64 gaps(seeds.next());
  SplitMix64 inputs(seeds.next());
  SplitMix64 outputs(seeds.next());
  SplitMix64 groups(seeds.next());
  trace.requests.reserve(static_cast<std::size_t>(config.num_requests));
  const double mean_gap_ns = 1e9 / config.requests_per_second;
  double arrival_ns = 0.0;
  for (std::int64_t i = 0; i < config.num_requests; ++i) {
    TraceRequest request;
    if (i > 0) {
      arrival_ns += mean_gap_ns * draw_gamma(gaps, config.burstiness);
    }
    constexpr double kLatestNs = static_cast<double>(kMaxTraceSeconds) * 1e9;
    request.arrival_ns = static_cast<std::int64_t>(std::min(arrival_ns, kLatestNs));
    request.input_tokens = draw_length(inputs, config.input);
    request.output_tokens = draw_length(outputs, config.output);
    if (config.num_prefix_groups > 0 && groups.uniform() < config.prefix_share) {
      request.prefix_group =
          static_cast<std::uint64_t>(groups.between(1, config.num_prefix_groups));
      request.prefix_tokens = config.prefix_tokens;
      request.input_tokens += config.prefix_tokens;
    }
    trace.requests.push_back(request);
  }
  trace.num_rows = config.num_requests;
  return trace;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
