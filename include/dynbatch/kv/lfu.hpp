// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lfu: eviction order in which the block that was found least often goes first, with ageing.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/kv/detail/decaying_order.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Least frequently used, where uses lose half their weight every half life: twice as many hits buy
/// one half life more. For content whose popularity lasts, such as system prompts and templates.
class Lfu : public detail::DecayingOrder {
 public:
  struct Config {
    /// Blocks released in a half life, in percent of the pool, in [1, 100000]. More: frequency
    /// counts more and recency less.
    std::int32_t half_life_percent = 100;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (half_life_percent < 1 || half_life_percent > 100'000) {
        return {Errc::InvalidConfig, "half_life_percent", half_life_percent, 100'000,
                "must be in [1, limit]"};
      }
      return kOk;
    }
  };

  Lfu() noexcept : Lfu(Config{}) {}
  explicit Lfu(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    if (Status s = config_.validate(); !s) {
      return s;
    }
    return attach_lists(num_blocks, config_.half_life_percent);
  }
  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    push(path, first, 0);
  }

 private:
  Config config_;
};

static_assert(EvictionOrder<Lfu>);

}  // namespace dynbatch::inline DYNBATCH_ABI
