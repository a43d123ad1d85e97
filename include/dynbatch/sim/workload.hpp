// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Generated workloads, so that a simulation needs no file: bursty arrivals, mixed lengths, shared
/// prefixes.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/sim/trace.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// One part of a length mixture: a log-normal distribution given by its median.
struct LengthPart {
  double weight = 0.0;  ///< Relative share of the requests; 0 = unused.
  double median = 1.0;  ///< Tokens.
  double sigma = 0.0;   ///< Standard deviation of the logarithm; 0 = always the median.
};

/// Lengths drawn from up to four parts, rounded and clamped to [shortest, longest].
struct LengthMixture {
  std::array<LengthPart, 4> parts{};
  std::int64_t shortest = 1;
  std::int64_t longest = 131'072;
};

/// What to generate.
struct WorkloadConfig {
  std::int64_t num_requests = 1'000;
  double requests_per_second = 1.0;
  double burstiness =
      1.0;  ///< Shape of the Gamma-distributed gaps: 1 = Poisson, smaller = burstier; CV = 1/sqrt.
  LengthMixture input{};
  LengthMixture output{};
  std::int64_t num_prefix_groups = 0;  ///< Groups of requests that share a prefix; 0 = none.
  std::int64_t prefix_tokens =
      0;  ///< Shared tokens of a group; they come before the drawn input length.
  double prefix_share = 1.0;  ///< Share of the requests that belong to a group.
  std::uint64_t seed = 1;

  [[nodiscard]] DYNBATCH_API Status validate() const noexcept;
};

/// Arrivals and lengths like the public Azure conversation trace of 2023; its prompts share
/// nothing. Figures of both: docs/simulator.md.
[[nodiscard]] DYNBATCH_API WorkloadConfig azure_conv_like(std::int64_t num_requests,
                                                          std::uint64_t seed);

/// The requests of a workload. Equal configurations give equal traces. An invalid one gives no
/// request.
[[nodiscard]] DYNBATCH_API Trace generate_trace(const WorkloadConfig& config,
                                                std::string_view name);

}  // namespace dynbatch::inline DYNBATCH_ABI
