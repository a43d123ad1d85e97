// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// replay_cache(): what a prefix cache of a given size finds of a trace's prompts, no scheduler
/// involved. Rules: docs/simulator.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// What is simulated.
struct CacheReplayConfig {
  std::int64_t num_blocks = 0;   ///< Blocks of the pool, in [1, 2^31 - 2].
  std::int32_t block_size = 16;  ///< Tokens a block, in [1, 65536].
  std::uint64_t seed = 1;        ///< Makes the contents that the trace doesn't name.
  CacheEviction eviction = CacheEviction::Lru;
  /// For CacheEviction::Cost, and what the prompts' times are told by: a 70B model of 80 layers and
  /// 8,192 channels, where 53,000 positions cost a token as much attention as everything else.
  StepCost cost{.prefill_token_ps = 44'600'000, .attention_pair_fs = 834'000, .version = 1};
};

/// Sums over all requests. `status` says why a run stopped early.
struct CacheReplayRun {
  Status status{};
  std::int64_t num_requests = 0;
  std::int64_t num_requests_hit = 0;  ///< With at least one block found.
  std::int64_t input_tokens = 0;
  std::int64_t hit_tokens = 0;  ///< Of the leading blocks that were found.
  std::int64_t input_ns = 0;    ///< Time to compute all prompts, by CacheReplayConfig::cost.
  std::int64_t saved_ns = 0;    ///< Of this, for the leading blocks that were found.
  std::int64_t evictions = 0;   ///< Blocks.
  std::int64_t num_cut = 0;     ///< Prompts longer than the pool, entered as far as it goes.
  [[nodiscard]] bool is_ok() const noexcept { return status.is_ok(); }
  [[nodiscard]] double hit_ratio() const noexcept {
    return input_tokens > 0 ? static_cast<double>(hit_tokens) / static_cast<double>(input_tokens)
                            : 0.0;
  }
  /// Share of the prompts' time that was saved: found tails count more than found heads.
  [[nodiscard]] double saved_ratio() const noexcept {
    return input_ns > 0 ? static_cast<double>(saved_ns) / static_cast<double>(input_ns) : 0.0;
  }
};

/// Looks up and enters the prompts one after another in a BlockPool. A prompt's last block counts
/// also if it isn't full, as the public figures do.
[[nodiscard]] DYNBATCH_API CacheReplayRun replay_cache(const Trace& trace,
                                                       const CacheReplayConfig& config);

}  // namespace dynbatch::inline DYNBATCH_ABI
