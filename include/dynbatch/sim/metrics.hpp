// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a simulation measured. Names and definitions are those of vLLM's serving benchmark where it
/// has them; all are in docs/simulator.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/request.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

enum class RequestStatus : std::uint8_t {
  Unfinished,  ///< Not submitted, or still live when the run was stopped.
  Finished,
  Rejected,  ///< submit() refused it.
  Failed,    ///< Ended in another way than by finishing.
  Refused,   ///< submit() refused it because too many waited; it does not come again.
};

/// What happened to one request; times in ns of the unit's virtual clock, -1 = never.
struct SimulatedRequest {
  std::int64_t arrival_ns = 0;
  std::int64_t scheduled_ns = -1;  ///< Its first chunk was planned.
  std::int64_t first_token_ns = -1;
  std::int64_t finish_ns = -1;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;  ///< Produced.
  std::int32_t preemptions = 0;
  std::int32_t unit = 0;
  RequestStatus status = RequestStatus::Unfinished;
};

/// A value that occurred `count` times.
struct WeightedValue {
  std::int64_t value = 0;
  std::int64_t count = 0;
};

/// Summary of a sample. Percentiles interpolate linearly between the closest ranks (numpy's
/// default), std divides by n; all are 0 for an empty sample.
struct Distribution {
  std::int64_t count = 0;
  double mean = 0.0;
  double median = 0.0;
  double std_dev = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

/// Linear interpolation between the closest ranks of an ascending sample; `q` in [0, 1], 0 if
/// empty.
[[nodiscard]] DYNBATCH_API double percentile(std::span<const double> ascending, double q) noexcept;

/// Sorts `values` and summarises them.
[[nodiscard]] DYNBATCH_API Distribution summarise(std::vector<double>& values);

/// The same of values with counts, each multiplied by `scale`; merges and sorts `values`.
[[nodiscard]] DYNBATCH_API Distribution summarise(std::vector<WeightedValue>& values, double scale);

/// Everything a run counts that isn't in its request records. Sums over all units.
struct RunTotals {
  std::int64_t num_steps = 0;
  std::int64_t busy_ns = 0;  ///< Sum of the steps' times.
  std::int64_t preemptions = 0;
  std::int64_t prefix_query_tokens = 0;
  std::int64_t prefix_hit_tokens = 0;
  double kv_busy_integral = 0.0;  ///< Sum over steps of used share x step time in ns.
  double kv_util_max = 0.0;
  std::vector<WeightedValue> itl_ns;  ///< All gaps between tokens of the same request.
  std::int64_t num_cut = 0;           ///< Requests whose output --max-new cut.
  double wall_s = 0.0;                ///< Time the simulation took.
};

/// The metrics of a run. Rates and concurrency are per unit; times in ms.
struct ReplayMetrics {
  std::int64_t num_requests = 0;
  std::int64_t completed = 0;
  std::int64_t refused = 0;  ///< Since too many waited.
  std::int64_t rejected = 0;
  std::int64_t failed = 0;
  std::int64_t num_cut = 0;
  std::int64_t total_input_tokens = 0;  ///< Of completed requests.
  std::int64_t total_output_tokens = 0;
  double duration = 0.0;      ///< First arrival to last end, seconds.
  double request_rate = 0.0;  ///< Offered: requests / (last - first arrival); 0 = all at once.
  double request_throughput = 0.0;
  double request_goodput = 0.0;  ///< Completed inside both limits, per second.
  double output_throughput = 0.0;
  double total_token_throughput = 0.0;
  double slo_attainment =
      0.0;  ///< Share of all requests inside both limits; 1 without limits and misses.
  double slo_attainment_taken = 0.0;         ///< The same, of the requests that weren't refused.
  double goodput_slo = 0.0;                  ///< Output tokens per second of these.
  std::int64_t max_concurrent_requests = 0;  ///< Arrived and not ended, at once on one unit.
  Distribution ttft_ms;
  Distribution tpot_ms;
  Distribution itl_ms;
  Distribution e2el_ms;
  Distribution queue_delay_ms;  ///< Arrival to first planned chunk.
  double prefix_cache_hit_tokens_ratio = 0.0;
  std::int64_t preemptions = 0;
  double kv_util_mean = 0.0;  ///< Blocks in use / all blocks, weighted by step time.
  double kv_util_max = 0.0;
  std::int64_t num_steps = 0;
  double mean_step_ms = 0.0;
  double busy_fraction = 0.0;  ///< Time in steps / duration.
  double node_seconds = 0.0;   ///< duration x units.
  double sim_wall_s = 0.0;
  double sim_requests_per_s = 0.0;
};

/// Whether a request met the limits: finished, TTFT and mean TPOT inside, TPOT of one token = 0.
[[nodiscard]] DYNBATCH_API bool meets_slo(const SimulatedRequest& record, const Slo& slo) noexcept;

/// Metrics of `records`, which ran on `num_units` units. Never NaN, whatever is empty.
[[nodiscard]] DYNBATCH_API ReplayMetrics measure(std::span<const SimulatedRequest> records,
                                                 RunTotals& totals, const Slo& slo,
                                                 std::int32_t num_units);

}  // namespace dynbatch::inline DYNBATCH_ABI
