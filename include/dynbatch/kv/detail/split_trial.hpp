// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SplitTrial: whether a cache that is too short for all should keep some longer.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Of the prompts some are drawn at random. Since the drawn ones are like the others, what is found
/// of them up to an age says what would be found of all if all were kept that long. So they tell
/// what LRU would find, all kept for a turnover of the pool, and what the present split finds. With
/// nothing split there is nothing to learn from; a split is tried only where LRU would find next to
/// nothing, and so nothing is lost.
class SplitTrial {
 public:
  void attach(std::int64_t num_blocks) noexcept {
    *this = {};
    num_blocks_ = num_blocks;
  }

  /// Blocks that few share were released.
  void note_released(std::int64_t others, std::int64_t drawn) noexcept {
    released_ += others * kOne;
    drawn_ += drawn * kOne;
  }
  /// Such a block was found at that age; of a drawn one, others like it live for `short_life`.
  void note_found(std::int64_t age, bool is_drawn, std::int64_t short_life) noexcept {
    found_ += kOne;
    if (is_drawn) {
      found_drawn_ += kOne;
      found_by_lru_ += age <= num_blocks_ ? kOne : 0;
      found_early_ += age <= short_life ? kOne : 0;
    }
  }

  /// Each time that an eighth of the pool was released.
  void adapt() noexcept {
    const std::int64_t all = released_ + drawn_;
    const std::int64_t step = num_blocks_ / 4;
    if (bonus_ == 0) {
      const bool is_known = all >= kTurnovers * num_blocks_ * kOne;
      bonus_ = is_known && found_ * kLittle < all ? step : 0;
    } else if (found_by_lru_ * kLittle < drawn_ || gains()) {
      bonus_ = min_of(bonus_ + step, 8 * num_blocks_);
    } else {
      bonus_ = max_of<std::int64_t>(bonus_ - 2 * step, 0);
    }
    std::int64_t* const counts[] = {&released_,    &drawn_,        &found_,
                                    &found_drawn_, &found_by_lru_, &found_early_};
    for (std::int64_t* const count : counts) {
      *count -= *count / 50;
    }
  }

  /// Blocks released that a drawn block lives longer than others.
  [[nodiscard]] std::int64_t bonus() const noexcept { return bonus_; }

 private:
  static constexpr std::int64_t kOne = 256;  // Counters are multiples of 1 / kOne.
  static constexpr std::int64_t kTurnovers = 4;
  static constexpr std::int64_t kLittle = 32;  // Next to nothing is 1 / kLittle.

  // A fifth more than by LRU is found.
  [[nodiscard]] bool gains() const noexcept {
    const std::int64_t share = drawn_ * 256 / max_of<std::int64_t>(released_ + drawn_, 1);
    return share * found_drawn_ + (256 - share) * found_early_ > 307 * found_by_lru_;
  }

  std::int64_t released_ = 0;
  std::int64_t drawn_ = 0;
  std::int64_t found_ = 0;
  std::int64_t found_drawn_ = 0;
  std::int64_t found_by_lru_ = 0;  // Of the drawn ones.
  std::int64_t found_early_ = 0;
  std::int64_t bonus_ = 0;
  std::int64_t num_blocks_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
