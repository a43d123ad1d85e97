// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// CostAware: eviction order in which the block that is cheapest to lose goes first.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/aged_lists.hpp>
#include <dynbatch/kv/detail/decaying_order.hpp>
#include <dynbatch/kv/eviction_order.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Weighs the time to compute a block again, which grows with its position, against how often it
/// was found and how long ago, like Lfu. The cost of a block is that of the farthest block behind
/// it: who loses a head computes the tail again as well. With unknown coefficients it is Lfu.
class CostAware : public detail::DecayingOrder {
 public:
  struct Config {
    StepCost cost{};  ///< prefill_token_ps and attention_pair_fs count, both at least 0.
    std::int32_t block_size = 16;  ///< Tokens a block, in [1, 65536].
    /// Blocks released while a block loses half its worth, in percent of the pool, in [1, 100000].
    std::int32_t half_life_percent = 100;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (block_size < 1 || block_size > 65536) {
        return {Errc::InvalidConfig, "block_size", block_size, 65536, "must be in [1, limit]"};
      }
      if (cost.prefill_token_ps < 0 || cost.attention_pair_fs < 0) {
        return {Errc::InvalidConfig, "cost", min_of(cost.prefill_token_ps, cost.attention_pair_fs),
                0, "coefficients must not be negative"};
      }
      if (half_life_percent < 1 || half_life_percent > 100'000) {
        return {Errc::InvalidConfig, "half_life_percent", half_life_percent, 100'000,
                "must be in [1, limit]"};
      }
      return kOk;
    }
  };

  CostAware() noexcept : CostAware(Config{}) {}
  explicit CostAware(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    if (Status s = config_.validate(); !s) {
      return s;
    }
    return attach_lists(num_blocks, config_.half_life_percent);
  }
  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    push(path, first, level_of(static_cast<std::int64_t>(path.size()) - 1));
  }

  /// Quarter octaves by which computing the block at that index costs more than the first one, in
  /// [0, 15].
  [[nodiscard]] std::int32_t level_of(std::int64_t index) const noexcept {
    const std::int64_t quarters = (log2_cost(index) - log2_cost(0)) / 64;
    return static_cast<std::int32_t>(clamp_to<std::int64_t>(quarters, 0, kLevels - 1));
  }

 private:
  [[nodiscard]] std::int64_t log2_cost(std::int64_t index) const noexcept {
    StepWork work{};
    work.prefill_tokens = config_.block_size;
    work.attention_pairs = chunk_attention_pairs(index * config_.block_size, config_.block_size);
    StepCost cost = config_.cost;
    cost.fixed_ns = 0;
    return detail::log2_q8(static_cast<std::uint64_t>(cost.predict(work).ns));
  }

  Config config_;
};

static_assert(EvictionOrder<CostAware>);

}  // namespace dynbatch::inline DYNBATCH_ABI
