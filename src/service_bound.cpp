// SPDX-License-Identifier: Apache-2.0
/// \file
/// ServiceBound: unavoidable work a request, and how many of an interval's requests must be late.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/service_bound.hpp>
#include <dynbatch/sim/trace.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostCuts = 190;

double ns_of(DurationNs limit) {
  return limit == kUnbounded ? kForever : static_cast<double>(limit.ns);
}

// A step's time is at least this, whatever is in it, and at least this much more a unit of work.
struct Rates {
  double step_ns = 0.0;
  double token_ns = 0.0;
  double pair_ns = 0.0;
  double row_ns = 0.0;
  double kv_token_ns = 0.0;
  double decode_step_ns = 0.0;  // for a step with decodes, on top
};

Rates rates_of(const FormulaCost& model) {
  const auto ns = [](std::int64_t ps) { return static_cast<double>(ps) * 1e-3; };
  Rates r;
  constexpr double kRoundedDown = 3.0;  // a model cuts each of its parts to whole ns
  r.step_ns = max_of(static_cast<double>(model.cost.fixed_ns) +
                         static_cast<double>(model.host_overhead.ns) - kRoundedDown,
                     0.0);
  r.token_ns = ns(model.cost.prefill_token_ps);
  r.pair_ns = static_cast<double>(model.cost.attention_pair_fs) * 1e-6;
  r.row_ns = ns(model.cost.decode_row_ps);
  r.kv_token_ns = ns(model.cost.kv_token_ps);
  if (model.has_phases) {
    const PhaseCost& p = model.phases;
    // max(floor, offset + token x n) >= share x token x n for every n: they meet where both are
    // the floor.
    const auto floor = static_cast<double>(p.floor_ns);
    const double share =
        p.offset_ns >= 0 ? 1.0 : floor / (floor - static_cast<double>(p.offset_ns));
    r.token_ns += ns(p.token_ps) * share;
    r.pair_ns += p.offset_ns >= 0 ? static_cast<double>(p.pair_fs) * 1e-6 : 0.0;
    const bool has_many = p.many_rows != INT64_MAX;
    r.row_ns += ns(has_many ? min_of(p.decode.row_ps, p.decode_many.row_ps) : p.decode.row_ps);
    r.kv_token_ns += ns(has_many ? min_of(p.decode.kv_token_ps, p.decode_many.kv_token_ps)
                                 : p.decode.kv_token_ps);
    r.decode_step_ns = static_cast<double>(
        has_many ? min_of(p.decode.fixed_ns, p.decode_many.fixed_ns) : p.decode.fixed_ns);
  }
  return r;
}

// Leading tokens that a request has in common with an earlier one, and with any other.
struct Shared {
  std::int64_t earlier = 0;
  std::int64_t any = 0;
};

std::vector<Shared> shared_prefixes(const Trace& trace, const ReplayConfig& config,
                                    std::size_t unit) {
  const auto step = static_cast<std::size_t>(config.units);
  std::vector<Shared> out;
  if (!config.prefix_caching) {
    out.resize(trace.requests.size());
    return out;
  }
  out.resize(trace.requests.size());
  const auto id_of = [&](const TraceRequest& r, std::int64_t k) {
    return trace.hash_ids[r.first_hash + static_cast<std::uint64_t>(k)];
  };
  // How often each was seen: up to a request in the first round, in all in the second.
  std::unordered_map<std::uint64_t, std::int64_t> ids;
  std::unordered_map<std::uint64_t, std::int64_t> groups;
  for (std::size_t i = unit; i < trace.requests.size(); i += step) {
    const TraceRequest& r = trace.requests[i];
    bool is_leading = true;
    for (std::int64_t k = 0; k < r.num_hashes; ++k) {
      is_leading = ids[id_of(r, k)]++ > 0 && is_leading;
      out[i].earlier += is_leading ? trace.hash_block_tokens : 0;
    }
    if (r.num_hashes == 0 && r.prefix_group != 0 && groups[r.prefix_group]++ > 0) {
      out[i].earlier = r.prefix_tokens;
    }
  }
  for (std::size_t i = unit; i < trace.requests.size(); i += step) {
    const TraceRequest& r = trace.requests[i];
    for (std::int64_t k = 0; k < r.num_hashes && ids[id_of(r, k)] > 1; ++k) {
      out[i].any += trace.hash_block_tokens;
    }
    if (r.num_hashes == 0 && r.prefix_group != 0 && groups[r.prefix_group] > 1) {
      out[i].any = r.prefix_tokens;
    }
  }
  return out;
}

// Times of a run are whole ns, and sums of doubles are not exact: so much is no miss.
double with_rounding(double ns) { return ns + 1e-9 * ns + 2.0; }

// The least number of these works that must go before the rest fit into `room`.
std::size_t num_too_many(std::vector<double>& works, double total, double room) {
  std::size_t removed = 0;
  if (total > room) {
    std::make_heap(works.begin(), works.end());
  }
  while (total > room && !works.empty()) {
    std::pop_heap(works.begin(), works.end());
    total -= works.back();
    works.pop_back();
    ++removed;
  }
  return removed;
}

}  // namespace

ServiceBound::ServiceBound(const Trace& trace, const ReplayConfig& config, const FormulaCost& cost)
    : slo_(config.slo), num_requests_(trace.requests.size()) {
  const Rates rates = rates_of(cost);
  const std::int64_t max_new = max_new_of(trace, config);
  const double ttft = ns_of(slo_.ttft);
  const double tpot = ns_of(slo_.tpot);
  units_.resize(static_cast<std::size_t>(max_of(config.units, 1)));
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const std::vector<Shared> shared = shared_prefixes(trace, config, unit);
    for (std::size_t i = unit; i < trace.requests.size(); i += units_.size()) {
      const TraceRequest& r = trace.requests[i];
      const auto input = static_cast<double>(r.input_tokens);
      const auto cached = static_cast<double>(clamp_to<std::int64_t>(
          shared[i].earlier, 0, max_of<std::int64_t>(r.input_tokens - 1, 0)));
      const auto common =
          static_cast<double>(clamp_to<std::int64_t>(shared[i].any, 0, r.input_tokens));
      const std::int64_t outputs = clamp_to<std::int64_t>(r.output_tokens, 1, max_new);
      const auto later = static_cast<double>(outputs - 1);
      // Half a pair is lost a chunk where an odd square is halved, so at most half a pair a token.
      const double pairs = max_of(0.5 * (input * input - cached * cached - (input - cached)), 0.0);
      const double prompt_ns = rates.token_ns * (input - cached) + rates.pair_ns * pairs;
      const double contexts = later * input + later * (later + 1.0) / 2.0;
      const double decode_ns = rates.row_ns * later + rates.kv_token_ns * contexts;

      Item item;
      item.arrival_ns = static_cast<double>(config.offline ? 0 : r.arrival_ns);
      item.later_tokens = outputs - 1;
      const double first_ns = rates.step_ns + prompt_ns;
      const double rest_ns = later * (rates.step_ns + rates.decode_step_ns) + decode_ns;
      item.alone_ns = first_ns + rest_ns;
      item.can_be_in_time = first_ns <= with_rounding(ttft) &&
                            (outputs == 1 || rest_ns <= with_rounding(later * tpot)) &&
                            r.input_tokens + outputs - 1 <= config.kv_tokens;
      for (std::size_t s = 0; s < kNumShares; ++s) {
        const double share = static_cast<double>(s) / static_cast<double>(kNumShares - 1);
        const double by_context = share / static_cast<double>(config.kv_tokens);
        const double by_row = (1.0 - share) / static_cast<double>(config.max_sequences);
        const double own = contexts - later * common;
        item.prefill_ns[s] = prompt_ns + rates.step_ns * by_row;
        item.complete_ns[s] =
            item.prefill_ns[s] + decode_ns +
            (rates.step_ns + rates.decode_step_ns) * (by_row * later + by_context * own);
      }
      units_[unit].push_back(item);
    }
  }
}

double ServiceBound::offline_seconds() const noexcept {
  double longest = 0.0;
  for (const std::vector<Item>& items : units_) {
    std::array<double, kNumShares> total{};
    for (const Item& item : items) {
      longest = max_of(longest, item.alone_ns);
      for (std::size_t s = 0; s < kNumShares; ++s) {
        total[s] += item.complete_ns[s];
      }
    }
    longest = max_of(longest, *std::max_element(total.begin(), total.end()));
  }
  return longest * 1e-9;
}

std::vector<ServiceBound::Job> ServiceBound::jobs_at(const std::vector<Item>& items,
                                                     double rate_scale) const {
  const double ttft = ns_of(slo_.ttft);
  const double tpot = ns_of(slo_.tpot);
  std::vector<Job> jobs;
  for (const Item& item : items) {
    if (item.can_be_in_time) {
      const double arrival = item.arrival_ns / rate_scale;
      const double first_due = arrival + ttft;
      const double rest =  // no limit times no token is no time
          item.later_tokens == 0 ? 0.0 : static_cast<double>(item.later_tokens) * tpot;
      jobs.push_back({arrival, first_due, first_due + rest, &item});
    }
  }
  return jobs;
}

// Of what arrives in [begin, end) and has its first token due by then, how many must be late.
std::size_t ServiceBound::num_late_in(std::span<const Job> arriving, double begin_ns, double end_ns,
                                      std::vector<double>& works) {
  std::size_t most = 0;
  for (std::size_t s = 0; s < kNumShares; ++s) {
    works.clear();
    double total = 0.0;
    for (const Job& job : arriving) {
      if (job.arrival_ns >= end_ns) {
        break;
      }
      if (job.first_due_ns <= end_ns) {
        works.push_back(job.due_ns <= end_ns ? job.item->complete_ns[s] : job.item->prefill_ns[s]);
        total += works.back();
      }
    }
    most = max_of(most, num_too_many(works, total, with_rounding(end_ns - begin_ns)));
  }
  return most;
}

// Of requests in order of arrival. Intervals begin at arrivals and end where something is due;
// those that follow each other add up.
double ServiceBound::num_late(std::span<const Job> jobs) {
  struct Cut {
    double at_ns = 0.0;
    std::size_t first = 0;  // job that arrives then or later
    bool is_begin = false;
  };
  std::vector<Cut> cuts;
  const std::size_t stride = jobs.size() / kMostCuts + 1;
  for (std::size_t i = 0; i < jobs.size(); i += stride) {
    const auto first = std::lower_bound(
        jobs.begin(), jobs.end(), jobs[i].arrival_ns,
        [](const Job& job, double arrival_ns) { return job.arrival_ns < arrival_ns; });
    cuts.push_back({jobs[i].arrival_ns, static_cast<std::size_t>(first - jobs.begin()), true});
  }
  std::vector<double> dues;
  for (const Job& job : jobs) {
    for (const double due : {job.first_due_ns, job.due_ns}) {
      if (due < kForever) {
        dues.push_back(due);
      }
    }
  }
  std::sort(dues.begin(), dues.end());
  dues.erase(std::unique(dues.begin(), dues.end()), dues.end());
  const std::size_t due_stride = dues.size() / kMostCuts + 1;
  for (std::size_t i = dues.size(); i > 0; i -= min_of(i, due_stride)) {
    cuts.push_back({dues[i - 1], 0, false});
  }
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.at_ns < b.at_ns; });

  std::vector<double> most(cuts.size() + 1, 0.0);  // late ones of intervals that end by each cut
  std::vector<double> works;
  for (std::size_t from = 0; from < cuts.size(); ++from) {
    most[from + 1] = max_of(most[from + 1], most[from]);
    for (std::size_t to = from + 1; cuts[from].is_begin && to < cuts.size(); ++to) {
      if (!cuts[to].is_begin) {
        const std::size_t late =
            num_late_in(jobs.subspan(cuts[from].first), cuts[from].at_ns, cuts[to].at_ns, works);
        most[to] = max_of(most[to], most[from] + static_cast<double>(late));
      }
    }
  }
  return most.back();
}

double ServiceBound::attainment(double rate_scale) const {
  if (num_requests_ == 0) {
    return 1.0;
  }
  double missed = 0.0;
  for (const std::vector<Item>& items : units_) {
    const std::vector<Job> jobs = jobs_at(items, rate_scale);
    missed += static_cast<double>(items.size() - jobs.size()) + num_late(jobs);
  }
  return 1.0 - missed / static_cast<double>(num_requests_);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
