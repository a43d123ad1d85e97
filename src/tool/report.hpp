// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What `dynbatch replay` prints and writes: a table, JSON and one CSV row a request.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay_config.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

/// One policy's run; with --find-capacity the run at the capacity.
struct PolicyResult {
  std::string policy;
  CacheEvictionName eviction = kCacheEvictions[0];
  ReplayMetrics metrics;
  std::vector<SimulatedRequest> requests;
  double rate_scale = 1.0;
  std::int32_t num_trials = 0;  ///< 0 = no search.
  bool capacity_is_bounded = true;

  /// The policy, and its eviction order if that isn't lru.
  [[nodiscard]] std::string label() const {
    return eviction.eviction == CacheEviction::Lru ? policy
                                                   : policy + " / " + std::string(eviction.name);
  }
};

/// What a prefix cache of one size and one eviction order found.
struct CacheResult {
  CacheEvictionName eviction = kCacheEvictions[0];
  std::int64_t num_blocks = 0;
  CacheReplayRun run;
};

struct ReplayReport {
  std::string trace_name;
  std::string trace_sha256;            ///< Empty for the embedded workload.
  std::int64_t spread_ns = 0;          ///< Trace::spread_ns.
  std::int32_t hash_block_tokens = 0;  ///< Trace::hash_block_tokens.
  std::int64_t num_rows = 0;
  std::int64_t num_skipped_rows = 0;
  std::int64_t num_requests = 0;
  double mean_input_tokens = 0.0;
  double mean_output_tokens = 0.0;
  double trace_rate = 0.0;  ///< Requests per second and unit at scale 1; 0 = all at once.
  double start_s = 0.0;
  double end_s = -1.0;         ///< -1 = none.
  std::int64_t max_new = 0;    ///< What requests were submitted with.
  double find_capacity = 0.0;  ///< Wanted attainment; 0 = no search.
  ReplayConfig config;
  NamedCost cost;
  std::vector<PolicyResult> results;
  std::vector<CacheResult> caches;  ///< Instead of `results`: --cache-only.
  /// --bound: requests per second and unit with --find-capacity, the share inside the limits with
  /// limits, else output tokens per second and unit of an offline run.
  std::optional<double> bound;

  [[nodiscard]] bool has_slo() const noexcept {
    return config.slo.ttft != kUnbounded || config.slo.tpot != kUnbounded;
  }
  /// Whether requests may be refused since too many wait.
  [[nodiscard]] bool has_queue_limit() const noexcept {
    return config.max_waiting > 0 || config.max_wait != kUnbounded;
  }
  /// The metric that `bound` bounds.
  [[nodiscard]] const char* bound_name() const noexcept {
    if (find_capacity > 0.0) {
      return "capacity_req_per_s";
    }
    return has_slo() ? "slo_attainment" : "output_throughput";
  }
};

[[nodiscard]] std::string to_table(const ReplayReport& report);
[[nodiscard]] std::string to_json(const ReplayReport& report);
/// The same with --cache-only.
[[nodiscard]] std::string to_cache_table(const ReplayReport& report);
[[nodiscard]] std::string to_csv(const ReplayReport& report);

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
