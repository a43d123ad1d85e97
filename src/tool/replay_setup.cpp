// SPDX-License-Identifier: Apache-2.0
#include "tool/replay_setup.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/trace.hpp>

#include "tool/replay_command.hpp"
#include "tool/tool.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

// Reads the options in the order in which complaints about them come.
class SetupReader {
 public:
  SetupReader(const ReplayOptions& options, ReplaySetup& setup)
      : options_(options), setup_(setup) {}

  std::string run() {
    static_cast<void>(check_options() &&
                      (options_.cache_only || (check_policies() && read_slo())) &&
                      read_trace_options());
    return error_;
  }

 private:
  bool fail(std::string text) {
    error_ = std::move(text);
    return false;
  }

  bool read_evictions() {
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
        return fail(fmt::format("--eviction '{}': '{}' is no eviction order; known are {}",
                                options_.eviction, name, known));
      }
      if (!options_.cache_only && found->eviction == CacheEviction::Belady) {
        return fail("--eviction belady is for --cache-only: it has to know the future");
      }
      setup_.evictions.push_back(*found);
      has_more = comma != std::string_view::npos;
      rest.remove_prefix(has_more ? comma + 1 : 0);
    }
    return true;
  }

  bool read_kv_blocks() {
    std::string_view rest = options_.kv_blocks;
    for (bool has_more = true; has_more;) {
      const std::size_t comma = rest.find(',');
      const std::string_view part = rest.substr(0, comma);
      std::int64_t num_blocks = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), num_blocks);
      if (error != std::errc{} || end != part.data() + part.size() || num_blocks < 1 ||
          num_blocks > INT32_MAX - 1) {
        return fail(
            fmt::format("--kv-blocks '{}': write N[,N...], each a whole number of blocks "
                        "from 1 to {}",
                        options_.kv_blocks, INT32_MAX - 1));
      }
      setup_.kv_blocks.push_back(num_blocks);
      has_more = comma != std::string_view::npos;
      rest.remove_prefix(has_more ? comma + 1 : 0);
    }
    return true;
  }

  bool check_cache_options() {
    if (!options_.cache_only) {
      if (!read_evictions()) {
        return false;
      }
      return options_.kv_blocks.empty()
                 ? true
                 : fail("--kv-blocks is for --cache-only; otherwise give --kv-tokens");
    }
    if (options_.find_capacity > 0.0 || !options_.slo.empty() || !options_.csv.empty()) {
      return fail("--cache-only runs no engine: it excludes --slo, --find-capacity, --csv");
    }
    if (options_.max_waiting != 0 || !options_.max_wait.empty()) {
      return fail("--cache-only runs no engine: it excludes --max-waiting, --max-wait");
    }
    if (options_.bound) {
      return fail(
          "--cache-only runs no engine: it excludes --bound (--eviction belady is "
          "the bound of a cache)");
    }
    return read_evictions() && read_kv_blocks();
  }

  bool check_options() {
    ReplayConfig& config = setup_.config;
    const auto out_of_range = [&](const char* name, std::int64_t low, std::int64_t high) {
      return fail(fmt::format("{} must be a whole number from {} to {}", name, low, high));
    };
    const bool has_scale = options_.rate_scale != 0.0;
    if (options_.block_size < 1 || options_.block_size > 65'536) {
      return out_of_range("--block-size", 1, 65'536);
    }
    config.block_size = static_cast<std::int32_t>(options_.block_size);
    if (!check_cache_options()) {
      return false;
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
    if (options_.max_waiting < 0 || options_.max_waiting > 1 << 24) {
      return out_of_range("--max-waiting", 1, 1 << 24);
    }
    if (!options_.max_wait.empty() &&
        (!parse_seconds(options_.max_wait, config.max_wait.ns) || config.max_wait.ns < 1000)) {
      return fail(fmt::format("--max-wait '{}' is not a number of milliseconds above 0",
                              options_.max_wait));
    }
    // Read as seconds and divided by 1,000, like the limits.
    config.max_wait.ns /= options_.max_wait.empty() ? 1 : 1000;
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
      return fail("--rate-scale must be a number above 0");
    }
    if (!(options_.find_capacity >= 0.0 && options_.find_capacity <= 1.0)) {
      return fail("--find-capacity must lie above 0 and at most at 1");
    }
    if (options_.find_capacity > 0.0 && (options_.offline || has_scale)) {
      return fail("--find-capacity searches the rate: it excludes --offline and --rate-scale");
    }
    if (options_.find_capacity > 0.0 && options_.slo.empty()) {
      return fail("--find-capacity needs limits: --slo ttft:MS,tpot:MS");
    }
    if (options_.bound && options_.find_capacity == 0.0 && options_.slo.empty() &&
        !options_.offline) {
      return fail(
          "--bound bounds what --find-capacity finds, the share inside --slo, or "
          "the output of --offline: give one of them");
    }
    if (options_.offline && has_scale) {
      return fail("--offline sends everything at t = 0: it excludes --rate-scale");
    }
    config.kv_tokens = options_.kv_tokens;
    config.max_sequences = static_cast<std::int32_t>(options_.max_seqs);
    config.max_waiting = options_.max_waiting;
    config.units = static_cast<std::int32_t>(options_.units);
    config.offline = options_.offline;
    config.rate_scale = has_scale ? options_.rate_scale : 1.0;
    config.seed = static_cast<std::uint64_t>(options_.seed);
    config.cuts_outputs = options_.max_new > 0;
    if (options_.max_new > 0) {
      config.max_new_tokens = options_.max_new;
    }
    return true;
  }

  bool check_policies() {
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
        return fail(fmt::format("--policy: {}\n  {}\n  {:>{}}", text_of(status), options_.policy,
                                "^", position + 1));
      }
      setup_.policies.push_back(spec);
    }
    const bool is_lru_only =
        std::all_of(setup_.evictions.begin(), setup_.evictions.end(),
                    [](const CacheEvictionName& e) { return e.eviction == CacheEviction::Lru; });
    for (const PolicySpec& spec : setup_.policies) {
      if (!is_lru_only && spec.name != DynbatchBundle::kName && spec.name != ChunkedBundle::kName) {
        return fail(fmt::format("--eviction: {} knows lru only; dynbatch and chunked know the rest",
                                spec.name));
      }
    }
    if (!options_.record.empty() && !is_lru_only) {
      return fail("--record writes logs of runs with --eviction lru only");
    }
    if (!options_.record.empty() && (setup_.policies.size() != 1 || setup_.evictions.size() != 1 ||
                                     options_.units != 1 || options_.find_capacity > 0.0)) {
      return fail("--record writes the log of one run: one policy, one unit, no --find-capacity");
    }
    return true;
  }

  bool read_slo() {
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
        limit = &setup_.config.slo.ttft;
      } else if (name == "tpot") {
        limit = &setup_.config.slo.tpot;
      }
      if (!is_number || limit == nullptr || *limit != kUnbounded ||
          (rest.empty() && comma != std::string_view::npos)) {
        return fail(
            fmt::format("--slo '{}': write ttft:MS, tpot:MS or both with a comma, each "
                        "a number of milliseconds above 0",
                        options_.slo));
      }
      limit->ns = ns / 1000;
    }
    return true;
  }

  bool read_trace_options() {
    TraceOptions& window = setup_.window;
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
    window.max_requests = options_.requests > 0 ? options_.requests : -1;
    return read_spread(window.spread_ns) && read_window(window);
  }

  bool read_window(TraceOptions& window) {
    if (!options_.start.empty() && !parse_seconds(options_.start, window.start_ns)) {
      return fail(fmt::format("--start '{}' is not a number of seconds", options_.start));
    }
    if (!options_.end.empty() && !parse_seconds(options_.end, window.end_ns)) {
      return fail(fmt::format("--end '{}' is not a number of seconds", options_.end));
    }
    if (window.end_ns >= 0 && window.end_ns < window.start_ns) {
      return fail("--end lies before --start");
    }
    return true;
  }

  bool read_spread(std::int64_t& spread_ns) {
    const std::string_view text = options_.spread_ticks;
    if (text.empty()) {
      return true;
    }
    if (text == "off") {
      spread_ns = 0;
      return true;
    }
    // Read as seconds and divided by 1,000, like the limits.
    const std::size_t end = text.find("ms");
    if (end == std::string_view::npos || end + 2 != text.size() ||
        !parse_seconds(text.substr(0, end), spread_ns) || spread_ns < 1000) {
      return fail(fmt::format("--spread-ticks '{}': write 3000ms, or off", text));
    }
    spread_ns /= 1000;
    return true;
  }

  const ReplayOptions& options_;
  ReplaySetup& setup_;
  std::string error_;
};

}  // namespace

std::string read_setup(const ReplayOptions& options, ReplaySetup& setup) {
  return SetupReader(options, setup).run();
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
