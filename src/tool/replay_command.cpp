// SPDX-License-Identifier: Apache-2.0
#include "tool/replay_command.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/capacity_search.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/service_bound.hpp>
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include "tool/report.hpp"
#include "tool/tool.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

std::string text_of(const Status& status) {
  std::array<char, 256> text{};
  static_cast<void>(format_status(status, text.data(), text.size()));
  return text.data();
}

// "policy [#######.............]  35 %" on one line that is overwritten.
class ProgressBar {
 public:
  ProgressBar(std::ostream& stream, bool is_on) : stream_(stream), is_on_(is_on) {}

  void begin(std::string label) {
    label_ = std::move(label);
    percent_ = -1;
    show(0.0);
  }
  void show(double fraction) {
    constexpr int kWidth = 30;
    const int percent = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * 100.0);
    if (!is_on_ || percent == percent_) {
      return;
    }
    percent_ = percent;
    const int done = percent * kWidth / 100;
    stream_ << fmt::format("\r{} [{:#<{}}{:.<{}}] {:3} %\x1b[K", label_, "", done, "",
                           kWidth - done, percent)
            << std::flush;
  }
  void clear() {
    if (is_on_) {
      stream_ << "\r\x1b[K" << std::flush;
    }
  }
  static void show_fraction(void* self, double fraction) {
    static_cast<ProgressBar*>(self)->show(fraction);
  }

 private:
  std::ostream& stream_;
  bool is_on_;
  std::string label_;
  int percent_ = -1;
};

class ReplayCommand {
 public:
  ReplayCommand(const ReplayOptions& options, std::ostream& out, std::ostream& err,
                bool shows_progress)
      : options_(options), out_(out), err_(err), progress_(err, shows_progress) {}

  int run() {
    if (options_.cache_only) {
      return run_cache_only();
    }
    for (int (ReplayCommand::* const step)() :
         {&ReplayCommand::check_options, &ReplayCommand::check_policies, &ReplayCommand::read_slo,
          &ReplayCommand::load_trace, &ReplayCommand::load_cost, &ReplayCommand::run_policies,
          &ReplayCommand::find_bound, &ReplayCommand::write_reports}) {
      if (const int code = (this->*step)(); code != kSuccess) {
        return code;
      }
    }
    return kSuccess;
  }

 private:
  int fail(int code, std::string_view text) {
    progress_.clear();
    err_ << "dynbatch: " << text << "\n";
    return code;
  }

  int run_cache_only() {
    for (int (ReplayCommand::* const step)() :
         {&ReplayCommand::check_options, &ReplayCommand::load_trace, &ReplayCommand::run_caches,
          &ReplayCommand::write_reports}) {
      if (const int code = (this->*step)(); code != kSuccess) {
        return code;
      }
    }
    return kSuccess;
  }

  int read_evictions() {
    std::string_view rest = options_.eviction.empty() ? "lru" : std::string_view(options_.eviction);
    for (bool has_more = true; has_more;) {
      const std::size_t comma = rest.find(',');
      const std::string_view name = rest.substr(0, comma);
      const auto found = std::find_if(kCacheEvictions.begin(), kCacheEvictions.end(),
                                      [&](const CacheEvictionName& e) { return e.name == name; });
      if (found == kCacheEvictions.end()) {
        std::string known;
        for (const CacheEvictionName& e : kCacheEvictions) {
          known += fmt::format("{}{}", known.empty() ? "" : ", ", e.name);
        }
        return fail(kUsage, fmt::format("--eviction '{}': '{}' is no eviction order; known are {}",
                                        options_.eviction, name, known));
      }
      if (!options_.cache_only && found->eviction == CacheEviction::Belady) {
        return fail(kUsage, "--eviction belady is for --cache-only: it has to know the future");
      }
      evictions_.push_back(*found);
      has_more = comma != std::string_view::npos;
      rest.remove_prefix(has_more ? comma + 1 : 0);
    }
    return kSuccess;
  }

  // Each eviction order with each of the sizes of --kv-blocks into the report.
  int read_kv_blocks() {
    std::string_view rest = options_.kv_blocks;
    std::vector<CacheResult> sizes;
    for (bool has_more = options_.cache_only; has_more;) {
      const std::size_t comma = rest.find(',');
      const std::string_view part = rest.substr(0, comma);
      CacheResult cache;
      const auto [end, error] =
          std::from_chars(part.data(), part.data() + part.size(), cache.num_blocks);
      if (error != std::errc{} || end != part.data() + part.size() || cache.num_blocks < 1 ||
          cache.num_blocks > INT32_MAX - 1) {
        return fail(kUsage, fmt::format("--kv-blocks '{}': write N[,N...], each a whole number of "
                                        "blocks from 1 to {}",
                                        options_.kv_blocks, INT32_MAX - 1));
      }
      sizes.push_back(cache);
      has_more = comma != std::string_view::npos;
      rest.remove_prefix(has_more ? comma + 1 : 0);
    }
    for (const CacheEvictionName& eviction : evictions_) {
      for (CacheResult cache : sizes) {
        cache.eviction = eviction;
        report_.caches.push_back(cache);
      }
    }
    return kSuccess;
  }

  int check_cache_options() {
    if (!options_.cache_only) {
      if (const int code = read_evictions(); code != kSuccess) {
        return code;
      }
      return options_.kv_blocks.empty()
                 ? kSuccess
                 : fail(kUsage, "--kv-blocks is for --cache-only; otherwise give --kv-tokens");
    }
    if (options_.find_capacity > 0.0 || !options_.slo.empty() || !options_.csv.empty()) {
      return fail(kUsage, "--cache-only runs no engine: it excludes --slo, --find-capacity, --csv");
    }
    if (options_.bound) {
      return fail(kUsage,
                  "--cache-only runs no engine: it excludes --bound (--eviction belady is "
                  "the bound of a cache)");
    }
    const int code = read_evictions();
    return code == kSuccess ? read_kv_blocks() : code;
  }

  int run_caches() {
    for (CacheResult& cache : report_.caches) {
      progress_.begin(fmt::format("{}, {} blocks", cache.eviction.name, cache.num_blocks));
      cache.run = replay_cache(trace_, {.num_blocks = cache.num_blocks,
                                        .block_size = report_.config.block_size,
                                        .seed = report_.config.seed,
                                        .eviction = cache.eviction.eviction});
      if (!cache.run.is_ok()) {
        const bool is_usage = cache.run.status.code == Errc::InvalidConfig;
        return fail(is_usage ? kUsage : kFailure, text_of(cache.run.status));
      }
    }
    progress_.clear();
    return kSuccess;
  }

  int check_options() {
    ReplayConfig& config = report_.config;
    const auto out_of_range = [&](const char* name, std::int64_t low, std::int64_t high) {
      return fail(kUsage, fmt::format("{} must be a whole number from {} to {}", name, low, high));
    };
    const bool has_scale = options_.rate_scale != 0.0;
    if (options_.block_size < 1 || options_.block_size > 65'536) {
      return out_of_range("--block-size", 1, 65'536);
    }
    config.block_size = static_cast<std::int32_t>(options_.block_size);
    if (const int code = check_cache_options(); code != kSuccess) {
      return code;
    }
    if (options_.kv_tokens < config.block_size || options_.kv_tokens > std::int64_t{1} << 35) {
      return out_of_range("--kv-tokens", config.block_size, std::int64_t{1} << 35);
    }
    if (options_.max_seqs < 1 || options_.max_seqs > 65'536) {
      return out_of_range("--max-seqs", 1, 65'536);
    }
    if (options_.max_new < 0 || options_.max_new > std::int64_t{1} << 30) {
      return out_of_range("--max-new", 1, std::int64_t{1} << 30);
    }
    if (options_.units < 1 || options_.units > 65'536) {
      return out_of_range("--units", 1, 65'536);
    }
    if (options_.requests < 0 || options_.requests > 1'000'000'000) {
      return out_of_range("--requests", 1, 1'000'000'000);
    }
    if (options_.seed < 0) {
      return out_of_range("--seed", 0, INT64_MAX);
    }
    if (has_scale && !(options_.rate_scale >= 1e-9 && options_.rate_scale <= 1e9)) {
      return fail(kUsage, "--rate-scale must be a number above 0");
    }
    if (!(options_.find_capacity >= 0.0 && options_.find_capacity <= 1.0)) {
      return fail(kUsage, "--find-capacity must lie above 0 and at most at 1");
    }
    if (options_.find_capacity > 0.0 && (options_.offline || has_scale)) {
      return fail(kUsage,
                  "--find-capacity searches the rate: it excludes --offline and --rate-scale");
    }
    if (options_.find_capacity > 0.0 && options_.slo.empty()) {
      return fail(kUsage, "--find-capacity needs limits: --slo ttft:MS,tpot:MS");
    }
    if (options_.bound && options_.find_capacity == 0.0 && options_.slo.empty() &&
        !options_.offline) {
      return fail(kUsage,
                  "--bound bounds what --find-capacity finds, the share inside --slo, or "
                  "the output of --offline: give one of them");
    }
    if (options_.offline && has_scale) {
      return fail(kUsage, "--offline sends everything at t = 0: it excludes --rate-scale");
    }
    config.kv_tokens = options_.kv_tokens;
    config.max_sequences = static_cast<std::int32_t>(options_.max_seqs);
    config.units = static_cast<std::int32_t>(options_.units);
    config.offline = options_.offline;
    config.rate_scale = has_scale ? options_.rate_scale : 1.0;
    config.seed = static_cast<std::uint64_t>(options_.seed);
    config.cuts_outputs = options_.max_new > 0;
    if (options_.max_new > 0) {
      config.max_new_tokens = options_.max_new;
    }
    report_.find_capacity = options_.find_capacity;
    return kSuccess;
  }

  int check_policies() {
    PolicyListReader reader(options_.policy);
    while (reader.has_next()) {
      PolicySpec spec;
      std::size_t position = 0;
      Status status = reader.next(spec);
      position = spec.position;
      if (status) {
        status = check_policy(spec, &position);
      }
      if (!status) {
        return fail(kUsage, fmt::format("--policy: {}\n  {}\n  {:>{}}", text_of(status),
                                        options_.policy, "^", position + 1));
      }
      policies_.push_back(spec);
    }
    const bool is_lru_only =
        std::all_of(evictions_.begin(), evictions_.end(),
                    [](const CacheEvictionName& e) { return e.eviction == CacheEviction::Lru; });
    for (const PolicySpec& spec : policies_) {
      if (!is_lru_only && spec.name != DynbatchBundle::kName && spec.name != ChunkedBundle::kName) {
        return fail(kUsage,
                    fmt::format("--eviction: {} knows lru only; dynbatch and chunked know the rest",
                                spec.name));
      }
    }
    if (!options_.record.empty() && !is_lru_only) {
      return fail(kUsage, "--record writes logs of runs with --eviction lru only");
    }
    if (!options_.record.empty() && (policies_.size() != 1 || evictions_.size() != 1 ||
                                     options_.units != 1 || options_.find_capacity > 0.0)) {
      return fail(kUsage,
                  "--record writes the log of one run: one policy, one unit, no --find-capacity");
    }
    return kSuccess;
  }

  int read_slo() {
    std::string_view rest = options_.slo;
    while (!rest.empty()) {
      const std::size_t comma = rest.find(',');
      const std::string_view part = rest.substr(0, comma);
      rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
      const std::size_t colon = part.find(':');
      const std::string_view name = part.substr(0, colon);
      // Read as seconds and divided by 1,000: "100" ms are 100 s / 1,000.
      std::int64_t ns = 0;
      const bool is_number =
          colon != std::string_view::npos && parse_seconds(part.substr(colon + 1), ns) && ns > 0;
      DurationNs* limit = nullptr;
      if (name == "ttft") {
        limit = &report_.config.slo.ttft;
      } else if (name == "tpot") {
        limit = &report_.config.slo.tpot;
      }
      if (!is_number || limit == nullptr || *limit != kUnbounded ||
          (rest.empty() && comma != std::string_view::npos)) {
        return fail(kUsage,
                    fmt::format("--slo '{}': write ttft:MS, tpot:MS or both with a comma, each "
                                "a number of milliseconds above 0",
                                options_.slo));
      }
      limit->ns = ns / 1000;
    }
    return kSuccess;
  }

  int read_window(TraceOptions& window) {
    if (!options_.start.empty() && !parse_seconds(options_.start, window.start_ns)) {
      return fail(kUsage, fmt::format("--start '{}' is not a number of seconds", options_.start));
    }
    if (!options_.end.empty() && !parse_seconds(options_.end, window.end_ns)) {
      return fail(kUsage, fmt::format("--end '{}' is not a number of seconds", options_.end));
    }
    if (window.end_ns >= 0 && window.end_ns < window.start_ns) {
      return fail(kUsage, "--end lies before --start");
    }
    report_.start_s = static_cast<double>(window.start_ns) * 1e-9;
    report_.end_s = window.end_ns < 0 ? -1.0 : static_cast<double>(window.end_ns) * 1e-9;
    return kSuccess;
  }

  int read_spread(std::int64_t& spread_ns) {
    const std::string_view text = options_.spread_ticks;
    if (text.empty()) {
      return kSuccess;
    }
    if (text == "off") {
      spread_ns = 0;
      return kSuccess;
    }
    // Read as seconds and divided by 1,000, like the limits.
    const std::size_t end = text.find("ms");
    if (end == std::string_view::npos || end + 2 != text.size() ||
        !parse_seconds(text.substr(0, end), spread_ns) || spread_ns < 1000) {
      return fail(kUsage, fmt::format("--spread-ticks '{}': write 3000ms, or off", text));
    }
    spread_ns /= 1000;
    return kSuccess;
  }

  int load_trace() {
    TraceOptions window;
    window.order = options_.lenient ? TraceOrder::Lenient : TraceOrder::Strict;
    if (options_.format == "azure") {
      window.format = TraceFormat::Azure;
    } else if (options_.format == "csv") {
      window.format = TraceFormat::Csv;
    } else if (options_.format == "mooncake") {
      window.format = TraceFormat::Mooncake;
    } else if (options_.format == "bailian") {
      window.format = TraceFormat::Bailian;
    }
    if (const int code = read_spread(window.spread_ns); code != kSuccess) {
      return code;
    }
    window.max_requests = options_.requests > 0 ? options_.requests : -1;
    if (const int code = read_window(window); code != kSuccess) {
      return code;
    }
    if (options_.trace.empty()) {
      const std::int64_t count = options_.requests > 0 ? options_.requests : kEmbeddedRequests;
      trace_ =
          generate_trace(azure_conv_like(count, report_.config.seed), "azure_conv_like (embedded)");
      apply_window(trace_, window);
    } else {
      TraceResult read = read_trace(options_.trace, window);
      if (!read) {
        return fail(kBadInput, read.error.message());
      }
      trace_ = std::move(read.trace);
    }
    describe_trace();
    if (options_.find_capacity > 0.0 && report_.trace_rate <= 0.0) {
      return fail(kBadInput,
                  fmt::format("{}: --find-capacity needs requests that arrive at different "
                              "times",
                              trace_.name));
    }
    return kSuccess;
  }

  void describe_trace() {
    report_.trace_name = trace_.name;
    report_.trace_sha256 = trace_.sha256;
    report_.spread_ns = trace_.spread_ns;
    report_.hash_block_tokens = trace_.hash_block_tokens;
    report_.num_rows = trace_.num_rows;
    report_.num_skipped_rows = trace_.num_skipped_rows;
    report_.num_requests = static_cast<std::int64_t>(trace_.requests.size());
    report_.max_new = max_new_of(trace_, report_.config);
    if (trace_.requests.empty()) {
      return;
    }
    const auto count = static_cast<double>(trace_.requests.size());
    for (const TraceRequest& request : trace_.requests) {
      report_.mean_input_tokens += static_cast<double>(request.input_tokens) / count;
      report_.mean_output_tokens += static_cast<double>(request.output_tokens) / count;
    }
    const std::int64_t span =
        trace_.requests.back().arrival_ns - trace_.requests.front().arrival_ns;
    if (span > 0) {
      report_.trace_rate =
          count / (static_cast<double>(span) * 1e-9) / static_cast<double>(report_.config.units);
    }
  }

  int load_cost() {
    CostResult found = find_cost(options_.cost.empty() ? kCostSets[0].name : options_.cost);
    if (!found) {
      return fail(kBadInput, found.error);
    }
    report_.cost = std::move(found.cost);
    return kSuccess;
  }

  int run_policies() {
    for (const PolicySpec& spec : policies_) {
      for (const CacheEvictionName& eviction : evictions_) {
        PolicyResult result;
        result.policy = std::string(spec.text);
        result.eviction = eviction;
        report_.config.eviction = eviction.eviction;
        const Status status =
            report_.find_capacity > 0.0 ? search(spec, result) : run_once(spec, result);
        if (!status) {
          return fail(kFailure, fmt::format("{}: {}", spec.text, text_of(status)));
        }
        report_.results.push_back(std::move(result));
      }
    }
    progress_.clear();
    return kSuccess;
  }

  Status run_once(const PolicySpec& spec, PolicyResult& result) {
    progress_.begin(result.policy);
    result.rate_scale = report_.config.rate_scale;
    return replay_into(spec, report_.config, result);
  }

  Status replay_into(const PolicySpec& spec, ReplayConfig config, PolicyResult& result) {
    config.progress = &ProgressBar::show_fraction;
    config.progress_context = &progress_;
    std::ofstream log;
    if (!options_.record.empty()) {
      log.open(options_.record, std::ios::binary);
      config.flight_context = &log;
      config.flight_sink = [](void* file, std::span<const std::byte> bytes) {
        static_cast<std::ofstream*>(file)->write(reinterpret_cast<const char*>(bytes.data()),
                                                 static_cast<std::streamsize>(bytes.size()));
      };
    }
    ReplayRun run = replay_policy(spec, trace_, config, report_.cost.model);
    if (run.is_ok()) {
      result.metrics = measure(run.requests, run.totals, config.slo, config.units);
      result.requests = std::move(run.requests);
    }
    log.close();
    is_recorded_ = options_.record.empty() || static_cast<bool>(log);
    return run.status;
  }

  Status search(const PolicySpec& spec, PolicyResult& result) {
    CapacitySearch capacity({.attainment = report_.find_capacity});
    while (!capacity.is_done()) {
      ReplayConfig config = report_.config;
      config.rate_scale = capacity.next();
      progress_.begin(
          fmt::format("{} at {:.2f} req/s", result.policy, report_.trace_rate * config.rate_scale));
      PolicyResult trial;
      if (const Status status = replay_into(spec, config, trial); !status) {
        return status;
      }
      if (capacity.report(trial.metrics.slo_attainment)) {
        result.metrics = trial.metrics;
        result.requests = std::move(trial.requests);
      }
    }
    result.rate_scale = capacity.scale();
    result.num_trials = capacity.num_trials();
    result.capacity_is_bounded = capacity.is_bounded();
    return kOk;
  }

  int find_bound() {
    if (!options_.bound) {
      return kSuccess;
    }
    const ServiceBound bound(trace_, report_.config, report_.cost.model);
    if (report_.find_capacity > 0.0) {
      CapacitySearch capacity({.attainment = report_.find_capacity});
      while (!capacity.is_done()) {
        static_cast<void>(capacity.report(bound.attainment(capacity.next())));
      }
      // The first scale known to be too fast: what lies above it is impossible.
      report_.bound = capacity.is_bounded() ? capacity.upper_scale() * report_.trace_rate
                                            : std::numeric_limits<double>::infinity();
    } else if (report_.has_slo()) {
      report_.bound = bound.attainment(report_.config.rate_scale);
    } else {
      double tokens = 0.0;
      for (const TraceRequest& request : trace_.requests) {
        tokens += static_cast<double>(std::min(request.output_tokens, report_.max_new));
      }
      const double seconds = bound.offline_seconds();
      report_.bound = seconds > 0.0 ? tokens / seconds / report_.config.units : 0.0;
    }
    return kSuccess;
  }

  int write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    return file ? kSuccess : fail(kFailure, fmt::format("cannot write '{}'", path));
  }

  int write_reports() {
    out_ << (options_.cache_only ? to_cache_table(report_) : to_table(report_)) << std::flush;
    if (!is_recorded_) {
      return fail(kFailure, fmt::format("cannot write '{}'", options_.record));
    }
    int code = options_.json.empty() ? kSuccess : write_file(options_.json, to_json(report_));
    if (code == kSuccess && !options_.csv.empty()) {
      code = write_file(options_.csv, to_csv(report_));
    }
    return code;
  }

  const ReplayOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
  ProgressBar progress_;
  std::vector<PolicySpec> policies_;
  std::vector<CacheEvictionName> evictions_;
  Trace trace_;
  ReplayReport report_;
  bool is_recorded_ = true;
};

}  // namespace

int run_replay(const ReplayOptions& options, std::ostream& out, std::ostream& err,
               bool shows_progress) {
  return ReplayCommand(options, out, err, shows_progress).run();
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
