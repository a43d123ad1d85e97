// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/sim/metrics.hpp>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

constexpr double kMsPerNs = 1e-6;

double ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

double to_ms(std::int64_t ns) { return static_cast<double>(ns) * kMsPerNs; }

// Fills the percentiles from `at`, the value of a rank in [0, count).
template <class At>
void fill_percentiles(Distribution& d, At&& at) {
  const auto interpolated = [&](double q) {
    const double place = q * static_cast<double>(d.count - 1);
    const auto low = static_cast<std::int64_t>(place);
    const double weight = place - static_cast<double>(low);
    const double value = at(low);
    return weight > 0.0 ? value + weight * (at(low + 1) - value) : value;
  };
  d.p50 = interpolated(0.50);
  d.median = d.p50;
  d.p90 = interpolated(0.90);
  d.p95 = interpolated(0.95);
  d.p99 = interpolated(0.99);
  d.max = at(d.count - 1);
}

// Most requests at once on one unit: arrived and not ended. Ends come before arrivals of the same
// time.
std::int64_t max_concurrent(std::span<const SimulatedRequest> records) {
  struct Change {
    std::int32_t unit;
    std::int64_t time_ns;
    std::int64_t count;
    auto operator<=>(const Change&) const = default;
  };
  std::vector<Change> changes;
  changes.reserve(2 * records.size());
  for (const SimulatedRequest& record : records) {
    if (record.finish_ns > record.arrival_ns) {
      changes.push_back({record.unit, record.arrival_ns, 1});
      changes.push_back({record.unit, record.finish_ns, -1});
    }
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t now = 0;  // is 0 again at the end of each unit
  std::int64_t most = 0;
  for (const Change& change : changes) {
    now += change.count;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

double percentile(std::span<const double> ascending, double q) noexcept {
  if (ascending.empty()) {
    return 0.0;
  }
  const double place = std::clamp(q, 0.0, 1.0) * static_cast<double>(ascending.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, ascending.size() - 1);
  return ascending[low] + (place - static_cast<double>(low)) * (ascending[high] - ascending[low]);
}

Distribution summarise(std::vector<double>& values) {
  Distribution d;
  d.count = static_cast<std::int64_t>(values.size());
  if (values.empty()) {
    return d;
  }
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  double sum = 0.0;
  for (const double v : values) {
    sum += v;
  }
  d.mean = sum / n;
  double squares = 0.0;
  for (const double v : values) {
    squares += (v - d.mean) * (v - d.mean);
  }
  d.std_dev = std::sqrt(squares / n);
  fill_percentiles(d, [&](std::int64_t rank) { return values[static_cast<std::size_t>(rank)]; });
  return d;
}

Distribution summarise(std::vector<WeightedValue>& values, double scale) {
  Distribution d;
  std::sort(values.begin(), values.end(),
            [](const WeightedValue& a, const WeightedValue& b) { return a.value < b.value; });
  // Merge equal values; `count` becomes the number of values up to and with this one.
  std::size_t used = 0;
  for (const WeightedValue& v : values) {
    if (v.count <= 0) {
      continue;
    }
    if (used > 0 && values[used - 1].value == v.value) {
      values[used - 1].count += v.count;
    } else {
      values[used++] = v;
    }
  }
  values.resize(used);
  double sum = 0.0;
  for (const WeightedValue& v : values) {
    d.count += v.count;
    sum += static_cast<double>(v.value) * static_cast<double>(v.count);
  }
  if (d.count == 0) {
    return d;
  }
  const auto n = static_cast<double>(d.count);
  const double mean = sum / n;
  double squares = 0.0;
  for (const WeightedValue& v : values) {
    const double off = static_cast<double>(v.value) - mean;
    squares += off * off * static_cast<double>(v.count);
  }
  d.mean = mean * scale;
  d.std_dev = std::sqrt(squares / n) * scale;
  std::vector<std::int64_t> up_to;  // values with a smaller or this value
  up_to.reserve(values.size());
  std::int64_t total = 0;
  for (const WeightedValue& v : values) {
    total += v.count;
    up_to.push_back(total);
  }
  fill_percentiles(d, [&](std::int64_t rank) {
    const auto at = std::upper_bound(up_to.begin(), up_to.end(), rank) - up_to.begin();
    return static_cast<double>(values[static_cast<std::size_t>(at)].value) * scale;
  });
  return d;
}

bool meets_slo(const SimulatedRequest& record, const Slo& slo) noexcept {
  if (record.status != RequestStatus::Finished) {
    return false;
  }
  // A request that wants no output has no first token: its end counts.
  const std::int64_t first = record.first_token_ns >= 0 ? record.first_token_ns : record.finish_ns;
  if (first - record.arrival_ns > slo.ttft.ns) {
    return false;
  }
  // Compared as a product: exact, and a mean equal to the limit meets it.
  const std::int64_t gaps = record.output_tokens - 1;
  return gaps <= 0 || slo.tpot == kUnbounded ||
         static_cast<double>(record.finish_ns - first) <=
             static_cast<double>(slo.tpot.ns) * static_cast<double>(gaps);
}

ReplayMetrics measure(std::span<const SimulatedRequest> records, RunTotals& totals, const Slo& slo,
                      std::int32_t num_units) {
  ReplayMetrics m;
  m.num_requests = static_cast<std::int64_t>(records.size());
  m.num_cut = totals.num_cut;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> e2el;
  std::vector<double> queue_delay;
  std::int64_t first_arrival = records.empty() ? 0 : records.front().arrival_ns;
  std::int64_t last_arrival = first_arrival;
  std::int64_t last_end = first_arrival;
  std::int64_t num_good = 0;
  double good_tokens = 0.0;
  for (const SimulatedRequest& r : records) {
    first_arrival = std::min(first_arrival, r.arrival_ns);
    last_arrival = std::max(last_arrival, r.arrival_ns);
    last_end = std::max({last_end, r.arrival_ns, r.finish_ns});
    m.refused += r.status == RequestStatus::Refused ? 1 : 0;
    m.rejected += r.status == RequestStatus::Rejected ? 1 : 0;
    m.failed += r.status == RequestStatus::Failed || r.status == RequestStatus::Unfinished ? 1 : 0;
    if (r.status != RequestStatus::Finished) {
      continue;
    }
    ++m.completed;
    m.total_input_tokens += r.input_tokens;
    m.total_output_tokens += r.output_tokens;
    e2el.push_back(to_ms(r.finish_ns - r.arrival_ns));
    if (r.first_token_ns >= 0) {
      ttft.push_back(to_ms(r.first_token_ns - r.arrival_ns));
    }
    if (r.output_tokens > 1) {
      tpot.push_back(to_ms(r.finish_ns - r.first_token_ns) /
                     static_cast<double>(r.output_tokens - 1));
    }
    if (r.scheduled_ns >= 0) {
      queue_delay.push_back(to_ms(r.scheduled_ns - r.arrival_ns));
    }
    if (meets_slo(r, slo)) {
      ++num_good;
      good_tokens += static_cast<double>(r.output_tokens);
    }
  }
  const auto units = static_cast<double>(std::max(num_units, 1));
  m.duration = static_cast<double>(last_end - first_arrival) * 1e-9;
  const double unit_seconds = m.duration * units;
  m.request_rate = ratio(static_cast<double>(m.num_requests),
                         static_cast<double>(last_arrival - first_arrival) * 1e-9 * units);
  m.request_throughput = ratio(static_cast<double>(m.completed), unit_seconds);
  m.request_goodput = ratio(static_cast<double>(num_good), unit_seconds);
  m.output_throughput = ratio(static_cast<double>(m.total_output_tokens), unit_seconds);
  m.total_token_throughput =
      ratio(static_cast<double>(m.total_input_tokens) + static_cast<double>(m.total_output_tokens),
            unit_seconds);
  m.slo_attainment = ratio(static_cast<double>(num_good), static_cast<double>(m.num_requests));
  m.slo_attainment_taken =
      ratio(static_cast<double>(num_good), static_cast<double>(m.num_requests - m.refused));
  m.goodput_slo = ratio(good_tokens, unit_seconds);
  m.max_concurrent_requests = max_concurrent(records);
  m.ttft_ms = summarise(ttft);
  m.tpot_ms = summarise(tpot);
  m.itl_ms = summarise(totals.itl_ns, kMsPerNs);
  m.e2el_ms = summarise(e2el);
  m.queue_delay_ms = summarise(queue_delay);
  m.prefix_cache_hit_tokens_ratio = ratio(static_cast<double>(totals.prefix_hit_tokens),
                                          static_cast<double>(totals.prefix_query_tokens));
  m.preemptions = totals.preemptions;
  m.kv_util_mean = ratio(totals.kv_busy_integral, static_cast<double>(totals.busy_ns));
  m.kv_util_max = totals.kv_util_max;
  m.num_steps = totals.num_steps;
  m.mean_step_ms = ratio(to_ms(totals.busy_ns), static_cast<double>(totals.num_steps));
  m.busy_fraction = ratio(static_cast<double>(totals.busy_ns) * 1e-9, unit_seconds);
  m.node_seconds = unit_seconds;
  m.sim_wall_s = totals.wall_s;
  m.sim_requests_per_s = ratio(static_cast<double>(m.num_requests), totals.wall_s);
  return m;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
