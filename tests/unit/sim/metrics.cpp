// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/time.hpp>
#include <dynbatch/sim/metrics.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

using dynbatch::Distribution;
using dynbatch::measure;
using dynbatch::milliseconds;
using dynbatch::ReplayMetrics;
using dynbatch::RequestStatus;
using dynbatch::RunTotals;
using dynbatch::SimulatedRequest;
using dynbatch::Slo;
using dynbatch::WeightedValue;

namespace {

constexpr std::int64_t kMs = 1'000'000;

SimulatedRequest finished(std::int64_t arrival_ms, std::int64_t first_ms, std::int64_t end_ms,
                          std::int64_t outputs) {
  SimulatedRequest r;
  r.arrival_ns = arrival_ms * kMs;
  r.scheduled_ns = arrival_ms * kMs;
  r.first_token_ns = first_ms * kMs;
  r.finish_ns = end_ms * kMs;
  r.input_tokens = 10;
  r.output_tokens = outputs;
  r.status = RequestStatus::Finished;
  return r;
}

void check_finite(const Distribution& d) {
  for (const double v : {d.mean, d.median, d.std_dev, d.p50, d.p90, d.p95, d.p99, d.max}) {
    CHECK(std::isfinite(v));
  }
}

}  // namespace

TEST_CASE("percentiles interpolate between the closest ranks", "[sim][metrics]") {
  const std::vector<double> v{1.0, 2.0, 4.0, 8.0};
  CHECK(dynbatch::percentile(v, 0.0) == 1.0);
  CHECK(dynbatch::percentile(v, 0.5) == Approx(3.0));
  CHECK(dynbatch::percentile(v, 0.9) == Approx(6.8));
  CHECK(dynbatch::percentile(v, 1.0) == 8.0);
  CHECK(dynbatch::percentile({}, 0.5) == 0.0);
  std::vector<double> unsorted{8.0, 1.0, 4.0, 2.0};
  const Distribution d = dynbatch::summarise(unsorted);
  CHECK(d.count == 4);
  CHECK(d.mean == Approx(3.75));
  CHECK(d.median == Approx(3.0));
  CHECK(d.std_dev ==
        Approx(std::sqrt((2.75 * 2.75 + 1.75 * 1.75 + 0.25 * 0.25 + 4.25 * 4.25) / 4)));
  CHECK(d.p90 == Approx(6.8));
  CHECK(d.max == 8.0);
}

TEST_CASE("weighted values summarise like their expansion", "[sim][metrics]") {
  std::vector<WeightedValue> weighted{{5, 3}, {1, 2}, {9, 1}, {5, 4}, {7, 0}};
  std::vector<double> expanded{5, 5, 5, 1, 1, 9, 5, 5, 5, 5};
  const Distribution a = dynbatch::summarise(weighted, 1.0);
  const Distribution b = dynbatch::summarise(expanded);
  CHECK(a.count == b.count);
  CHECK(a.mean == Approx(b.mean));
  CHECK(a.std_dev == Approx(b.std_dev));
  CHECK(a.p50 == b.p50);
  CHECK(a.p90 == Approx(b.p90));
  CHECK(a.p99 == Approx(b.p99));
  CHECK(a.max == 9.0);
}

TEST_CASE("metrics follow the definitions of the serving benchmark", "[sim][metrics]") {
  // 2 requests finish, 1 is rejected: TTFT 100 and 300 ms, TPOT 20 ms and (one token) none.
  std::vector<SimulatedRequest> records{finished(0, 100, 300, 11),
                                        finished(1'000, 1'300, 1'300, 1)};
  records.emplace_back();
  records[2].arrival_ns = 2'000 * kMs;
  records[2].finish_ns = 2'000 * kMs;
  records[2].status = RequestStatus::Rejected;
  RunTotals totals;
  totals.num_steps = 4;
  totals.busy_ns = 400 * kMs;
  totals.itl_ns = {{20 * kMs, 10}};
  totals.wall_s = 0.5;
  Slo slo;
  slo.ttft = milliseconds(200);
  slo.tpot = milliseconds(20);
  const ReplayMetrics m = measure(records, totals, slo, 1);
  CHECK(m.num_requests == 3);
  CHECK(m.completed == 2);
  CHECK(m.rejected == 1);
  CHECK(m.failed == 0);
  CHECK(m.duration == Approx(2.0));
  CHECK(m.request_rate == Approx(1.5));
  CHECK(m.request_throughput == Approx(1.0));
  CHECK(m.output_throughput == Approx(6.0));
  CHECK(m.total_token_throughput == Approx(16.0));
  CHECK(m.ttft_ms.mean == Approx(200.0));
  CHECK(m.tpot_ms.count == 1);
  CHECK(m.tpot_ms.mean == Approx(20.0));
  CHECK(m.itl_ms.p99 == Approx(20.0));
  CHECK(m.e2el_ms.max == Approx(300.0));
  CHECK(m.slo_attainment == Approx(1.0 / 3.0));
  CHECK(m.request_goodput == Approx(0.5));
  CHECK(m.goodput_slo == Approx(5.5));
  CHECK(m.max_concurrent_requests == 1);
  CHECK(m.mean_step_ms == Approx(100.0));
  CHECK(m.busy_fraction == Approx(0.2));
  CHECK(m.sim_requests_per_s == Approx(6.0));
  RunTotals again = totals;
  const ReplayMetrics two_units = measure(records, again, slo, 2);
  CHECK(two_units.output_throughput == Approx(3.0));
  CHECK(two_units.node_seconds == Approx(4.0));
}

TEST_CASE("attainment needs both limits, counts one token as TPOT 0 and equal as met",
          "[sim][metrics]") {
  Slo slo;
  slo.ttft = milliseconds(100);
  slo.tpot = milliseconds(10);
  CHECK(meets_slo(finished(0, 100, 200, 11), slo));
  CHECK_FALSE(meets_slo(finished(0, 101, 200, 11), slo));
  CHECK_FALSE(meets_slo(finished(0, 100, 201, 11), slo));
  CHECK(meets_slo(finished(0, 100, 100, 1), slo));
  CHECK(meets_slo(finished(0, 99'999, 999'999, 2), Slo{}));
  SimulatedRequest failed = finished(0, 1, 2, 2);
  failed.status = RequestStatus::Failed;
  CHECK_FALSE(meets_slo(failed, Slo{}));
}

TEST_CASE("concurrency is the most on one unit, an end before an arrival of the same time",
          "[sim][metrics]") {
  std::vector<SimulatedRequest> records{finished(0, 1, 10, 2), finished(10, 11, 20, 2),
                                        finished(5, 6, 15, 2), finished(0, 1, 100, 2)};
  RunTotals totals;
  CHECK(measure(records, totals, Slo{}, 1).max_concurrent_requests == 3);
  records[3].unit = 1;
  CHECK(measure(records, totals, Slo{}, 2).max_concurrent_requests == 2);
}

TEST_CASE("R40 - an empty run has defined statistics", "[sim][metrics]") {
  RunTotals totals;
  const ReplayMetrics m = measure({}, totals, Slo{}, 1);
  CHECK(m.num_requests == 0);
  CHECK(m.duration == 0.0);
  for (const double v :
       {m.request_rate, m.request_throughput, m.request_goodput, m.output_throughput,
        m.total_token_throughput, m.slo_attainment, m.goodput_slo, m.prefix_cache_hit_tokens_ratio,
        m.kv_util_mean, m.kv_util_max, m.mean_step_ms, m.busy_fraction, m.node_seconds,
        m.sim_requests_per_s}) {
    CHECK(v == 0.0);
  }
  for (const Distribution* d : {&m.ttft_ms, &m.tpot_ms, &m.itl_ms, &m.e2el_ms, &m.queue_delay_ms}) {
    CHECK(d->count == 0);
    check_finite(*d);
  }
}
