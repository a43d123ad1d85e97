// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

constexpr std::int64_t kLongestContext = std::int64_t{1} << 30;
// Requests beyond these wait outside the scheduler, in order, as at a host's own front door.
constexpr std::int64_t kMostLiveRequests = 1 << 17;
constexpr std::int64_t kMostQueuedTokens = std::int64_t{1} << 28;

}  // namespace

Status ReplayConfig::validate() const noexcept {
  if (kv_tokens < 1 || kv_tokens > std::int64_t{1} << 35) {
    return {Errc::InvalidConfig, "kv_tokens", kv_tokens, std::int64_t{1} << 35, "out of range"};
  }
  if (max_sequences < 1 || max_sequences > 65'536) {
    return {Errc::InvalidConfig, "max_sequences", max_sequences, 65'536,
            "must be from 1 to 65,536"};
  }
  if (block_size < 1 || block_size > 65'536) {
    return {Errc::InvalidConfig, "block_size", block_size, 65'536, "must be from 1 to 65,536"};
  }
  if (kv_tokens < block_size) {
    return {Errc::InvalidConfig, "kv_tokens", kv_tokens, block_size,
            "must hold at least one block"};
  }
  if (max_step_tokens < 1) {
    return {Errc::InvalidConfig, "max_step_tokens", max_step_tokens, 1, "must be at least 1"};
  }
  if (max_new_tokens < 1 || max_new_tokens > kLongestContext) {
    return {Errc::InvalidConfig, "max_new_tokens", max_new_tokens, kLongestContext,
            "must be from 1 to 2^30"};
  }
  if (units < 1 || units > 65'536) {
    return {Errc::InvalidConfig, "units", units, 65'536, "must be from 1 to 65,536"};
  }
  if (!(rate_scale >= 1e-9 && rate_scale <= 1e9)) {
    return {Errc::InvalidConfig, "rate_scale", 0, 0, "must lie in [1e-9, 1e9]"};
  }
  if (flight_sink != nullptr && units != 1) {
    return {Errc::InvalidConfig, "units", units, 1, "a flight log is of one unit"};
  }
  if (slo.ttft.ns < 0 || slo.tpot.ns < 0) {
    return {Errc::InvalidConfig, "slo", 0, 0, "limits must not be negative"};
  }
  if (max_waiting < 0 || max_waiting > std::int64_t{1} << 24) {
    return {Errc::InvalidConfig, "max_waiting", max_waiting, std::int64_t{1} << 24,
            "must be from 0 (no limit) to 2^24"};
  }
  if (max_wait.ns < 1) {
    return {Errc::InvalidConfig, "max_wait", max_wait.ns, 1, "must be at least 1 ns"};
  }
  return kOk;
}

std::int64_t max_new_of(const Trace& trace, const ReplayConfig& config) noexcept {
  const std::int64_t longest = clamp_to<std::int64_t>(trace.longest_output(), 1, kLongestContext);
  if (config.cuts_outputs && config.max_new_tokens < longest) {
    return config.max_new_tokens;
  }
  return max_of(config.max_new_tokens, next_power_of_two(longest));
}

namespace detail {

UnitTrace unit_trace(const Trace& trace, const ReplayConfig& config, std::int32_t unit) {
  UnitTrace part;
  part.max_new = max_new_of(trace, config);
  part.hash_ids = trace.hash_ids;
  part.hash_block_tokens = trace.hash_block_tokens;
  part.digest_unit = max_of(config.block_size, trace.hash_block_tokens);
  const auto step = static_cast<std::size_t>(config.units);
  std::int64_t queued_tokens = 0;
  std::int64_t longest_input = 1;
  std::int64_t log_bytes = 1 << 20;
  for (auto i = static_cast<std::size_t>(unit); i < trace.requests.size(); i += step) {
    TraceRequest request = trace.requests[i];
    if (config.offline) {
      request.arrival_ns = 0;
    } else if (config.rate_scale != 1.0) {
      const double scaled = static_cast<double>(request.arrival_ns) / config.rate_scale;
      request.arrival_ns = std::llround(std::min(scaled, 9e18));
    }
    longest_input = max_of(longest_input, request.input_tokens);
    queued_tokens = saturating_add(queued_tokens, request.input_tokens + part.max_new);
    // All of them may arrive in one step, and the log is drained between two.
    log_bytes = saturating_add(log_bytes, 512 + request.input_tokens / config.block_size *
                                                    std::int64_t{sizeof(ContentDigest)});
    part.requests.push_back(request);
    part.index.push_back(i);
  }
  const auto count = static_cast<std::int64_t>(part.requests.size());
  UnitSetup& setup = part.setup;
  setup.pool.num_blocks = config.kv_tokens / config.block_size;
  setup.pool.block_size = config.block_size;
  setup.pool.prefix_caching = config.prefix_caching;
  setup.capabilities.max_sequences = config.max_sequences;
  setup.capabilities.max_tokens = config.max_step_tokens;
  setup.scheduler.max_live_requests = clamp_to<std::int64_t>(count, 1, kMostLiveRequests);
  setup.scheduler.max_context_tokens =
      min_of(saturating_add(longest_input, part.max_new), kLongestContext);
  setup.scheduler.max_queued_tokens =
      clamp_to(queued_tokens, setup.scheduler.max_context_tokens, kMostQueuedTokens);
  setup.scheduler.max_waiting_requests = config.max_waiting;
  setup.scheduler.max_predicted_wait = config.max_wait;
  if (config.flight_sink != nullptr) {
    // Address space, touched as far as it is used.
    setup.scheduler.flight_log_bytes = min_of(log_bytes, std::int64_t{1} << 36);
    setup.scheduler.flight_log_prompts = true;
    setup.scheduler.flight_label = config.flight_label;
  }
  return part;
}

Status check_block_size(const Trace& trace, std::int32_t block_size) noexcept {
  const std::int32_t named = trace.hash_block_tokens;
  if (named != 0 && max_of(block_size, named) % min_of(block_size, named) != 0) {
    return {Errc::InvalidConfig, "block_size", block_size, named,
            "must divide, or be a multiple of, the block that the trace's hash_ids name"};
  }
  return kOk;
}

void fill_digests(std::vector<ContentDigest>& out, const UnitTrace& trace, std::size_t i,
                  std::uint64_t seed, bool counts_last) {
  const TraceRequest& request = trace.requests[i];
  const std::int64_t unit = trace.digest_unit;
  const std::int64_t tokens = min_of(request.input_tokens, kLongestContext);
  std::int64_t count = counts_last ? ceil_div(tokens, unit) : tokens / unit;
  // A digest names a whole prefix: (who it belongs to, how far it goes), or the trace's own name
  // for it. The seed keeps two workloads apart.
  if (request.num_hashes != 0) {
    const std::int64_t named = request.num_hashes * trace.hash_block_tokens;
    count = named < tokens ? min_of(count, named / unit) : count;
    out.resize(static_cast<std::size_t>(count));
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t last =
          min_of(((k + 1) * unit - 1) / trace.hash_block_tokens, request.num_hashes - 1);
      out[static_cast<std::size_t>(k)] = {
          mix64(seed), trace.hash_ids[request.first_hash + static_cast<std::uint64_t>(last)]};
    }
    return;
  }
  out.resize(static_cast<std::size_t>(count));
  // Owners are told apart by their low bit.
  const std::uint64_t group = mix64(seed) ^ (request.prefix_group << 1U | 1U);
  const std::uint64_t own = mix64(seed) ^ (trace.index[i] << 1U);
  const std::int64_t num_shared =
      request.prefix_group == 0
          ? 0
          : min_of(count, clamp_to<std::int64_t>(request.prefix_tokens, 0, kLongestContext) / unit);
  for (std::int64_t k = 0; k < count; ++k) {
    out[static_cast<std::size_t>(k)] = {k < num_shared ? group : own,
                                        static_cast<std::uint64_t>(k)};
  }
}

double wall_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace detail

}  // namespace dynbatch::inline DYNBATCH_ABI
