// SPDX-License-Identifier: Apache-2.0
#include "tool/report.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/base/version.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/sim/metrics.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

using Json = nlohmann::ordered_json;

// Number with thousands separators in the integer part.
std::string grouped(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  const std::size_t first = text[0] == '-' ? 1 : 0;
  const std::size_t point = std::min(text.find('.'), text.size());
  for (std::size_t at = point; at > first + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string grouped(std::int64_t value) { return grouped(static_cast<double>(value), 0); }

// Three figures or so, whatever the size.
std::string short_number(double value) {
  if (value >= 100.0) {
    return grouped(value, 0);
  }
  return grouped(value, value >= 10.0 ? 1 : 2);
}

std::string ms_of(DurationNs limit) {
  return fmt::format("{:g} ms", static_cast<double>(limit.ns) / 1e6);
}

std::string slo_text(const Slo& slo) {
  std::string text;
  if (slo.ttft != kUnbounded) {
    text += "TTFT " + ms_of(slo.ttft);
  }
  if (slo.tpot != kUnbounded) {
    text += (text.empty() ? "TPOT " : ", TPOT ") + ms_of(slo.tpot);
  }
  return text;
}

struct Column {
  std::string title;
  std::vector<std::string> cells;
};

std::string laid_out(const std::vector<Column>& columns) {
  std::string text;
  const std::size_t num_rows = columns.front().cells.size();
  for (std::size_t row = 0; row <= num_rows; ++row) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::size_t width = columns[c].title.size();
      for (const std::string& cell : columns[c].cells) {
        width = std::max(width, cell.size());
      }
      const std::string& cell = row == 0 ? columns[c].title : columns[c].cells[row - 1];
      line += c == 0 ? fmt::format("{:<{}}", cell, width) : fmt::format("  {:>{}}", cell, width);
    }
    text += line + "\n";
    if (row == 0) {
      text += std::string(line.size(), '-') + "\n";
    }
  }
  return text;
}

// How the arrivals of a trace were read, on a line of its own; nothing if there is nothing to say.
std::string ticks_line(const ReplayReport& r) {
  if (r.trace_sha256.empty() || r.config.offline) {
    return {};
  }
  return r.spread_ns > 0
             ? fmt::format("        equal time stamps spread evenly over {} (--spread-ticks)\n",
                           ms_of({r.spread_ns}))
             : std::string("        time stamps as written\n");
}

std::string head_lines(const ReplayReport& r) {
  std::string text = fmt::format("trace   {}: {} requests, {} tokens in and {} out on average",
                                 r.trace_name, grouped(r.num_requests),
                                 grouped(r.mean_input_tokens, 0), grouped(r.mean_output_tokens, 0));
  if (r.config.offline) {
    text += ", all at t = 0";
  } else if (r.find_capacity > 0.0) {
    text += fmt::format(", rate searched (the trace's own: {:.2f} req/s a unit)", r.trace_rate);
  } else if (r.trace_rate > 0.0) {
    text += fmt::format(", {:.2f} req/s a unit", r.trace_rate * r.config.rate_scale);
  }
  if (r.num_skipped_rows > 0) {
    text += fmt::format(", {} rows without tokens skipped", grouped(r.num_skipped_rows));
  }
  text += fmt::format("\n{}engine  {}", ticks_line(r), r.cost.name);
  if (r.cost.decode_mape_percent >= 0.0) {
    text += fmt::format(", step times within {:g} % of prompts, {:g} % of decodes (MAPE)",
                        r.cost.mape_percent, r.cost.decode_mape_percent);
  } else if (r.cost.mape_percent >= 0.0) {
    text += fmt::format(", step times within {:g} % (MAPE)", r.cost.mape_percent);
  }
  text += fmt::format("; {} KV tokens, {} sequences, {} unit{}\n        {}\n",
                      grouped(r.config.kv_tokens), r.config.max_sequences, r.config.units,
                      r.config.units == 1 ? "" : "s", r.cost.source);
  if (r.has_slo()) {
    text += "limits  " + slo_text(r.config.slo) + "\n";
  }
  return text + "\n";
}

double ranked_value(const ReplayReport& r, const PolicyResult& p) {
  return r.find_capacity > 0.0 ? p.metrics.request_rate : p.metrics.output_throughput;
}

// One sentence: who is best and by how much; within 1 % is a tie.
std::string verdict(const ReplayReport& r) {
  if (r.results.size() < 2) {
    return {};
  }
  const auto less = [&](const PolicyResult& a, const PolicyResult& b) {
    return ranked_value(r, a) < ranked_value(r, b);
  };
  const auto best = std::max_element(r.results.begin(), r.results.end(), less);
  const double most = ranked_value(r, *best);
  std::string text = fmt::format(
      "{}: {}", r.find_capacity > 0.0 ? "Highest capacity" : "Most output", best->label());
  std::string ties;
  for (auto p = r.results.begin(); p != r.results.end(); ++p) {
    if (p == best) {
      continue;
    }
    const double value = ranked_value(r, *p);
    if (value >= most * 0.99) {
      ties += (ties.empty() ? "" : ", ") + p->label();
    } else if (value > 0.0) {
      text += fmt::format(", {} times {}", short_number(most / value), p->label());
    }
  }
  return text + (ties.empty() ? "" : "; tied within 1 %: " + ties) + ".\n";
}

// What no scheduler can beat.
std::string bound_line(const ReplayReport& r) {
  if (!r.bound) {
    return {};
  }
  std::string text;
  if (r.find_capacity > 0.0) {
    if (std::isinf(*r.bound)) {
      return "Bound: none; the work fits at any rate.\n";
    }
    text = fmt::format("{:.2f} req/s", *r.bound);
  } else if (r.has_slo()) {
    text = fmt::format("{:.1f} % in limits", *r.bound * 100.0);
  } else {
    text = grouped(*r.bound, 0) + " tok/s";
  }
  return fmt::format("Bound: no scheduler can exceed {} (work that cannot be avoided).\n", text);
}

std::string legend(const ReplayReport& r) {
  std::string text;
  if (r.find_capacity > 0.0) {
    text += fmt::format(
        "Each row is the highest rate at which at least {:g} % of the requests stay inside the "
        "limits.\n",
        r.find_capacity * 100.0);
  }
  text +=
      "req/s and tok/s (output tokens) are per unit. TTFT: arrival to first token. TPOT: mean time "
      "per further token of a request.\n";
  if (r.has_slo()) {
    text += "in limits: share of all requests inside every limit; a rejected request is a miss.\n";
  }
  text +=
      "KV max: most KV blocks in use. preempted: running requests that lost their KV and began "
      "again.\n";
  return text;
}

Json distribution_keys(Json json, const char* name, const Distribution& d) {
  const std::array<std::pair<const char*, double>, 7> values{{{"mean", d.mean},
                                                              {"median", d.median},
                                                              {"std", d.std_dev},
                                                              {"p50", d.p50},
                                                              {"p90", d.p90},
                                                              {"p95", d.p95},
                                                              {"p99", d.p99}}};
  for (const auto& [key, value] : values) {
    json[fmt::format("{}_{}_ms", key, name)] = value;
  }
  return json;
}

Json to_json(const PolicyResult& p, bool is_search) {
  const ReplayMetrics& m = p.metrics;
  Json j;
  j["policy"] = p.policy;
  j["eviction"] = p.eviction.name;
  if (is_search) {
    j["capacity_req_per_s"] = m.request_rate;
    j["capacity_is_bounded"] = p.capacity_is_bounded;
    j["num_trials"] = p.num_trials;
  }
  j["rate_scale"] = p.rate_scale;
  j["request_rate"] = m.request_rate;
  j["duration"] = m.duration;
  j["num_requests"] = m.num_requests;
  j["completed"] = m.completed;
  j["refused"] = m.refused;
  j["rejected"] = m.rejected;
  j["failed"] = m.failed;
  j["cut"] = m.num_cut;
  j["total_input_tokens"] = m.total_input_tokens;
  j["total_output_tokens"] = m.total_output_tokens;
  j["request_throughput"] = m.request_throughput;
  j["request_goodput"] = m.request_goodput;
  j["output_throughput"] = m.output_throughput;
  j["total_token_throughput"] = m.total_token_throughput;
  j["slo_attainment"] = m.slo_attainment;
  j["slo_attainment_taken"] = m.slo_attainment_taken;
  j["goodput_slo"] = m.goodput_slo;
  j["max_concurrent_requests"] = m.max_concurrent_requests;
  j = distribution_keys(std::move(j), "ttft", m.ttft_ms);
  j = distribution_keys(std::move(j), "tpot", m.tpot_ms);
  j = distribution_keys(std::move(j), "itl", m.itl_ms);
  j = distribution_keys(std::move(j), "e2el", m.e2el_ms);
  j = distribution_keys(std::move(j), "queue_delay", m.queue_delay_ms);
  j["prefix_cache_hit_tokens_ratio"] = m.prefix_cache_hit_tokens_ratio;
  j["preemptions"] = m.preemptions;
  j["kv_util_mean"] = m.kv_util_mean;
  j["kv_util_max"] = m.kv_util_max;
  j["num_steps"] = m.num_steps;
  j["mean_step_ms"] = m.mean_step_ms;
  j["busy_fraction"] = m.busy_fraction;
  j["node_seconds"] = m.node_seconds;
  j["sim_wall_s"] = m.sim_wall_s;
  j["sim_requests_per_s"] = m.sim_requests_per_s;
  return j;
}

Json optional_ms(DurationNs limit) {
  return limit == kUnbounded ? Json(nullptr) : Json(static_cast<double>(limit.ns) / 1e6);
}

const char* status_name(RequestStatus status) {
  switch (status) {
    case RequestStatus::Finished:
      return "finished";
    case RequestStatus::Rejected:
      return "rejected";
    case RequestStatus::Failed:
      return "failed";
    case RequestStatus::Refused:
      return "refused";
    case RequestStatus::Unfinished:
      break;
  }
  return "unfinished";
}

// Seconds between two times, exact; empty if one of them never came.
std::string seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  return from_ns < 0 || to_ns < from_ns ? std::string()
                                        : fmt::format("{}.{:09}", (to_ns - from_ns) / kNsPerSecond,
                                                      (to_ns - from_ns) % kNsPerSecond);
}

}  // namespace

std::string to_table(const ReplayReport& r) {
  const bool is_search = r.find_capacity > 0.0;
  std::vector<Column> columns(is_search ? 10 : 9);
  const std::array<const char*, 10> titles{"policy",  "req/s",  "tok/s",  "TTFT p50 ms", "p99 ms",
                                           "TPOT ms", "p99 ms", "KV max", "preempted",   "rate x"};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    columns[c].title = titles[c];
  }
  Column in_limits{"in limits", {}};
  Column good{"good/s", {}};
  Column refused{"refused", {}};
  Column of_taken{"of taken", {}};
  Column missing{"not served", {}};
  std::int64_t num_missing = 0;
  std::int64_t num_cut = 0;
  for (const PolicyResult& p : r.results) {
    const ReplayMetrics& m = p.metrics;
    const double rate = is_search ? m.request_rate : m.request_throughput;
    std::size_t c = 0;
    for (const std::string& cell :
         {p.label(), fmt::format("{:.{}f}", rate, rate < 0.995 ? 3 : 2),
          grouped(m.output_throughput, 0), short_number(m.ttft_ms.p50), short_number(m.ttft_ms.p99),
          short_number(m.tpot_ms.mean), short_number(m.tpot_ms.p99),
          fmt::format("{:.0f} %", m.kv_util_max * 100.0), grouped(m.preemptions),
          fmt::format("{:.4f}", p.rate_scale)}) {
      if (c < columns.size()) {
        columns[c++].cells.push_back(cell);
      }
    }
    in_limits.cells.push_back(fmt::format("{:.1f} %", m.slo_attainment * 100.0));
    good.cells.push_back(fmt::format("{:.2f}", m.request_goodput));
    refused.cells.push_back(grouped(m.refused));
    of_taken.cells.push_back(fmt::format("{:.1f} %", m.slo_attainment_taken * 100.0));
    missing.cells.push_back(grouped(m.rejected + m.failed));
    num_missing += m.rejected + m.failed;
    num_cut = std::max(num_cut, m.num_cut);
  }
  if (r.has_slo()) {
    columns.insert(columns.begin() + 7, in_limits);
    if (r.has_queue_limit()) {
      columns.insert(columns.begin() + 8, {of_taken, good});
    }
  }
  if (r.has_queue_limit()) {
    columns.push_back(refused);
  }
  if (num_missing > 0) {
    columns.push_back(missing);
  }
  std::string text =
      head_lines(r) + laid_out(columns) + "\n" + verdict(r) + bound_line(r) + legend(r);
  if (r.has_queue_limit()) {
    text += "refused: since too many waited (--max-waiting, --max-wait); a miss.";
    text += r.has_slo() ? " of taken: share in limits of the others. good/s: requests in limits a "
                          "second.\n"
                        : "\n";
  }
  if (num_missing > 0) {
    text += "not served: refused, because they can never fit (KV tokens), or failed.\n";
  }
  if (num_cut > 0) {
    text += fmt::format("--max-new cut {} outputs to {} tokens.\n", grouped(num_cut),
                        grouped(r.max_new));
  }
  return text;
}

std::string to_cache_table(const ReplayReport& r) {
  std::vector<Column> columns{{"eviction", {}},      {"KV blocks", {}},  {"KV tokens", {}},
                              {"hit ratio", {}},     {"time saved", {}}, {"hits", {}},
                              {"blocks evicted", {}}};
  std::int64_t num_cut = 0;
  for (const CacheResult& c : r.caches) {
    columns[0].cells.emplace_back(c.eviction.name);
    columns[1].cells.push_back(grouped(c.num_blocks));
    columns[2].cells.push_back(grouped(c.num_blocks * r.config.block_size));
    columns[3].cells.push_back(fmt::format("{:.4f}", c.run.hit_ratio()));
    columns[4].cells.push_back(fmt::format("{:.4f}", c.run.saved_ratio()));
    columns[5].cells.push_back(grouped(c.run.num_requests_hit));
    columns[6].cells.push_back(grouped(c.run.evictions));
    num_cut = std::max(num_cut, c.run.num_cut);
  }
  std::string text = fmt::format(
      "trace   {}: {} requests, {} tokens in on average, one at a time in order of arrival\n"
      "cache   blocks of {} tokens, a prompt's tail is evicted before its head\n",
      r.trace_name, grouped(r.num_requests), grouped(r.mean_input_tokens, 0), r.config.block_size);
  text += ticks_line(r) + "\n" + laid_out(columns) + "\n";
  text +=
      "hit ratio: tokens of leading blocks found / prompt tokens. hits: requests with any.\n"
      "time saved: the same in prefill time of a 70B model, where late tokens cost more.\n";
  if (r.hash_block_tokens == 0 && !r.trace_sha256.empty()) {
    text += "The trace doesn't name its prompts' content: no two are alike here.\n";
  }
  if (num_cut > 0) {
    text += fmt::format("Up to {} prompts exceed a cache and were entered as far as it goes.\n",
                        grouped(num_cut));
  }
  return text;
}

std::string to_json(const ReplayReport& r) {
  Json config;
  config["trace"] = r.trace_name;
  config["rows"] = r.num_rows;
  config["skipped_rows"] = r.num_skipped_rows;
  config["requests"] = r.num_requests;
  config["spread_ticks_ms"] = static_cast<double>(r.spread_ns) / 1e6;
  config["hash_block_tokens"] = r.hash_block_tokens > 0 ? Json(r.hash_block_tokens) : Json(nullptr);
  config["start_s"] = r.start_s;
  config["end_s"] = r.end_s < 0.0 ? Json(nullptr) : Json(r.end_s);
  config["trace_request_rate"] = r.trace_rate;
  config["offline"] = r.config.offline;
  config["rate_scale"] = r.config.rate_scale;
  config["units"] = r.config.units;
  config["kv_tokens"] = r.config.kv_tokens;
  config["block_size"] = r.config.block_size;
  config["max_seqs"] = r.config.max_sequences;
  config["max_new"] = r.max_new;
  config["slo_ttft_ms"] = optional_ms(r.config.slo.ttft);
  config["slo_tpot_ms"] = optional_ms(r.config.slo.tpot);
  config["max_waiting"] = r.config.max_waiting > 0 ? Json(r.config.max_waiting) : Json(nullptr);
  config["max_wait_ms"] = optional_ms(r.config.max_wait);
  config["find_capacity"] = r.find_capacity > 0.0 ? Json(r.find_capacity) : Json(nullptr);
  Json cost;
  const StepCost& c = r.cost.model.cost;
  cost["name"] = r.cost.name;
  cost["source"] = r.cost.source;
  cost["mape_percent"] = r.cost.mape_percent < 0.0 ? Json(nullptr) : Json(r.cost.mape_percent);
  cost["decode_mape_percent"] =
      r.cost.decode_mape_percent < 0.0 ? Json(nullptr) : Json(r.cost.decode_mape_percent);
  cost["formula_ms"] = to_text(r.cost.model);
  if (!r.cost.model.has_phases) {
    cost["a_ms"] = static_cast<double>(c.fixed_ns) / 1e6;
    cost["b_ms_per_req"] = static_cast<double>(c.decode_row_ps) / 1e9;
    cost["c_ms_per_kv_token"] = static_cast<double>(c.kv_token_ps) / 1e9;
    cost["d_ms_per_prefill_token"] = static_cast<double>(c.prefill_token_ps) / 1e9;
  }
  cost["host_overhead_ms"] = static_cast<double>(r.cost.model.host_overhead.ns) / 1e6;
  config["cost"] = std::move(cost);
  config["dynbatch_version"] = fmt::format("{}.{}.{}", kVersionMajor, kVersionMinor, kVersionPatch);
  Json json;
  json["config"] = std::move(config);
  json["trace_sha256"] = r.trace_sha256.empty() ? Json(nullptr) : Json(r.trace_sha256);
  json["seed"] = r.config.seed;
  json["results"] = Json::array();
  for (const CacheResult& cache : r.caches) {
    json["results"].push_back({{"eviction", cache.eviction.name},
                               {"kv_blocks", cache.num_blocks},
                               {"block_size", r.config.block_size},
                               {"prefix_cache_hit_tokens_ratio", cache.run.hit_ratio()},
                               {"prefill_time_saved_ratio", cache.run.saved_ratio()},
                               {"hit_tokens", cache.run.hit_tokens},
                               {"input_tokens", cache.run.input_tokens},
                               {"num_requests", cache.run.num_requests},
                               {"num_requests_hit", cache.run.num_requests_hit},
                               {"evictions", cache.run.evictions},
                               {"cut", cache.run.num_cut}});
  }
  for (const PolicyResult& p : r.results) {
    json["results"].push_back(to_json(p, r.find_capacity > 0.0));
  }
  if (r.bound) {
    json["bound"] = {{r.bound_name(), *r.bound}};
  }
  // A trace's name may hold bytes that are not UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_csv(const ReplayReport& r) {
  std::string text =
      "policy,request_id,unit,status,arrived_at,request_num_prefill_tokens,"
      "request_num_decode_tokens,request_scheduling_delay,prefill_e2e_time,request_e2e_time,"
      "request_num_restarts,in_limits\n";
  for (const PolicyResult& p : r.results) {
    for (std::size_t i = 0; i < p.requests.size(); ++i) {
      const SimulatedRequest& q = p.requests[i];
      fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{},{},{}\n", p.label(),
                     i, q.unit, status_name(q.status), seconds_between(0, q.arrival_ns),
                     q.input_tokens, q.output_tokens, seconds_between(q.arrival_ns, q.scheduled_ns),
                     seconds_between(q.arrival_ns, q.first_token_ns),
                     q.status == RequestStatus::Finished
                         ? seconds_between(q.arrival_ns, q.finish_ns)
                         : std::string(),
                     q.preemptions, meets_slo(q, r.config.slo) ? 1 : 0);
    }
  }
  return text;
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
