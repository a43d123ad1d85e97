// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// DecayingOrder: the block whose worth, halved again and again since its last use, is lowest goes
/// first.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/aged_lists.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Worth = 2^level * (1 + hits) * 2^(-age / half life), where levels and log2(1 + hits) are kept to
/// a quarter and the age counts blocks released. Its logarithm is a time plus a bonus, so blocks of
/// equal level and hits need no order among them but their age.
class DecayingOrder {
 public:
  static constexpr std::int32_t kLevels = 16;  ///< Quarter octaves of `level`.

  /// Takes out a block whose content is forgotten.
  void erase(BlockId block) noexcept {
    lists_.erase(block);
    lists_.reset(block);
  }
  void erase(std::span<const BlockId> path) noexcept { lists_.erase(path); }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    return lists_.take(blocks,
                       [this](BlockId block, std::int32_t) noexcept { lists_.reset(block); });
  }
  [[nodiscard]] BlockId victim() const noexcept { return lists_.victim(); }
  [[nodiscard]] BlockId front() const noexcept { return lists_.front(); }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return lists_.after(block); }
  void note_hit(std::span<const BlockId> path) noexcept {
    for (const BlockId block : path) {
      lists_.count_hit(block);
    }
  }
  void reset(BlockId block) noexcept { lists_.reset(block); }

 protected:
  /// A half life in percent of the pool, as blocks released.
  [[nodiscard]] Status attach_lists(std::int64_t num_blocks,
                                    std::int32_t half_life_percent) noexcept {
    if (half_life_percent < 1 || half_life_percent > 100'000) {
      return {Errc::InvalidConfig, "half_life_percent", half_life_percent, 100'000,
              "must be in [1, limit]"};
    }
    for (std::int32_t c = 0; c < kClasses; ++c) {
      lists_.set_bonus(c, c * num_blocks / 4 * half_life_percent / 100);
    }
    return lists_.attach(num_blocks);
  }

  /// Enters a path with the level of its last block; the levels before it are no higher by
  /// themselves, but count as high as anything that was ever seen behind them.
  void push(std::span<const BlockId> path, std::size_t first, std::int32_t level) noexcept {
    for (std::size_t i = path.size(); i-- > first;) {
      level = max_of(level, lists_.note(path[i]));
      lists_.set_note(path[i], level);
      const auto hits = static_cast<std::uint64_t>(lists_.hits(path[i]));
      lists_.push_back(path[i], level + static_cast<std::int32_t>(log2_q8(1 + hits) / 64),
                       path[i - min_of(lists_.kAhead, i - first)]);
    }
    lists_.advance(path.size() - first);
    // Heads in use learn it now; those before one that knows know too.
    for (std::size_t i = first; i > 0 && lists_.note(path[i - 1]) < level; --i) {
      lists_.set_note(path[i - 1], level);
    }
  }

 private:
  static constexpr std::int32_t kClasses = kLevels + 33;  // log2(256) has 32 quarters.

  AgedLists<kClasses> lists_;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
