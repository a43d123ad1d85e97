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

#include "tool/replay_setup.hpp"
#include "tool/report.hpp"
#include "tool/tool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

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
    const std::string error = read_setup(options_, setup_);
    if (!error.empty()) {
      return fail(kUsage, error);
    }
    report_.config = setup_.config;
    report_.find_capacity = options_.find_capacity;
    using Step = int (ReplayCommand::*)();
    const std::vector<Step> steps =
        options_.cache_only
            ? std::vector<Step>{&ReplayCommand::load_trace, &ReplayCommand::run_caches,
                                &ReplayCommand::write_reports}
            : std::vector<Step>{&ReplayCommand::load_trace, &ReplayCommand::load_cost,
                                &ReplayCommand::run_policies, &ReplayCommand::find_bound,
                                &ReplayCommand::write_reports};
    for (const Step step : steps) {
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

  // Each eviction order with each of the sizes.
  int run_caches() {
    for (const CacheEvictionName& eviction : setup_.evictions) {
      for (const std::int64_t num_blocks : setup_.kv_blocks) {
        progress_.begin(fmt::format("{}, {} blocks", eviction.name, num_blocks));
        const CacheReplayRun run = replay_cache(trace_, {.num_blocks = num_blocks,
                                                         .block_size = report_.config.block_size,
                                                         .seed = report_.config.seed,
                                                         .eviction = eviction.eviction});
        if (!run.is_ok()) {
          const bool is_usage = run.status.code == Errc::InvalidConfig;
          return fail(is_usage ? kUsage : kFailure, text_of(run.status));
        }
        report_.caches.push_back({eviction, num_blocks, run});
      }
    }
    progress_.clear();
    return kSuccess;
  }

  int load_trace() {
    const TraceOptions& window = setup_.window;
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
    report_.start_s = static_cast<double>(setup_.window.start_ns) * 1e-9;
    report_.end_s =
        setup_.window.end_ns < 0 ? -1.0 : static_cast<double>(setup_.window.end_ns) * 1e-9;
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
    for (const PolicySpec& spec : setup_.policies) {
      for (const CacheEvictionName& eviction : setup_.evictions) {
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
  ReplaySetup setup_;
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
