// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// AgedLists: first-in-first-out lists, one a class, whose fronts compete by age and bonus.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/block_lists.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// 256 x log2(v), 0 below 2. Linear within an octave, so right to a tenth of one; integers only, so
/// that every compiler evicts the same blocks.
[[nodiscard]] constexpr std::int64_t log2_q8(std::uint64_t v) noexcept {
  if (v < 2) {
    return 0;
  }
  const int octave = static_cast<int>(std::bit_width(v)) - 1;
  const std::uint64_t mantissa = octave >= 8 ? v >> (octave - 8) : v << (8 - octave);
  return (std::int64_t{octave} << 8) + static_cast<std::int64_t>(mantissa & 255U);
}

/// The clock counts blocks that were pushed. The key of a block is its time on that clock plus the
/// bonus of its class; the lowest key goes first, the lowest class among equals. A path whose
/// blocks were pushed last one first leaves in that order if the bonus falls nowhere from tail to
/// head. O(1) a block, and O(kClasses) each time that another class takes the lead. A block has a
/// counter of its hits, which stops at 255, and a byte for the order's own use.
template <std::int32_t kClasses>
class AgedLists {
  static_assert(kClasses > 0 && kClasses <= 256);

 public:
  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    clock_ = 0;
    threshold_ = 0;
    has_threshold_ = false;
    leader_ = 0;
    bound_ = kUnknown;
    if (Status s = marks_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks"); !s) {
      return s;
    }
    return lists_.attach(num_blocks, kClasses);
  }

  void push_back(BlockId block, std::int32_t list) noexcept {
    Mark& m = mark(block);
    m.time = static_cast<std::uint64_t>(clock_++) & kTimeMask;
    m.list = static_cast<std::uint64_t>(list) & 255U;
    if (list != leader_ && lists_.is_empty(list)) {
      bound_ = min_of(bound_, key_of(block));
    }
    lists_.push_back(list, block);
  }
  void erase(BlockId block) noexcept { lists_.erase(block); }
  void erase(std::span<const BlockId> path) noexcept { lists_.erase(path); }

  /// Takes out the blocks with the lowest keys; tells `on_evict(block, class)` of each.
  template <class OnEvict>
  std::size_t take(std::span<BlockId> blocks, OnEvict on_evict) noexcept {
    std::size_t n = 0;
    while (n < blocks.size()) {
      BlockId block = lists_.front(leader_);
      if ((block == kNoBlock || key_of(block) >= bound_)) {
        if (!find_leader(leader_, bound_)) {
          break;
        }
        block = lists_.front(leader_);
      }
      threshold_ = key_of(block);
      has_threshold_ = true;
      lists_.erase(block);
      blocks[n++] = block;
      on_evict(block, leader_);
    }
    return n;
  }

  [[nodiscard]] BlockId victim() const noexcept {
    if (marks_.size() == 0) {
      return kNoBlock;
    }
    const BlockId block = lists_.front(leader_);
    if (block != kNoBlock && key_of(block) < bound_) {
      return block;
    }
    std::int32_t leader = 0;
    std::int64_t bound = 0;
    return find_leader(leader, bound) ? lists_.front(leader) : kNoBlock;
  }
  [[nodiscard]] BlockId front() const noexcept {
    return marks_.size() == 0 ? kNoBlock : lists_.front_from(0);
  }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return lists_.after(block); }

  void set_bonus(std::int32_t list, std::int64_t bonus) noexcept {
    bonus_[list] = bonus;
    bound_ = kUnknown;
  }
  [[nodiscard]] std::int64_t bonus(std::int32_t list) const noexcept { return bonus_[list]; }
  [[nodiscard]] std::int32_t class_of(BlockId block) const noexcept {
    return static_cast<std::int32_t>(marks_.data()[block.value].list);
  }
  [[nodiscard]] std::int64_t age_of(BlockId block) const noexcept {
    return clock_ - static_cast<std::int64_t>(marks_.data()[block.value].time);
  }
  [[nodiscard]] std::int64_t clock() const noexcept { return clock_; }
  /// True once a block was evicted; life_of() means something from then on.
  [[nodiscard]] bool has_evicted() const noexcept { return has_threshold_; }
  /// Age at which a block of that class was evicted, or would have been, at the latest eviction.
  [[nodiscard]] std::int64_t life_of(std::int32_t list) const noexcept {
    return clock_ - (threshold_ - bonus_[list]);
  }

  [[nodiscard]] std::int32_t hits(BlockId block) const noexcept {
    return static_cast<std::int32_t>(marks_.data()[block.value].hits);
  }
  void count_hit(BlockId block) noexcept {
    Mark& m = mark(block);
    m.hits = m.hits < 255 ? (m.hits + 1U) & 255U : 255U;
  }
  [[nodiscard]] std::int32_t note(BlockId block) const noexcept {
    return static_cast<std::int32_t>(marks_.data()[block.value].note);
  }
  void set_note(BlockId block, std::int32_t value) noexcept {
    mark(block).note = static_cast<std::uint64_t>(value) & 255U;
  }
  /// Hits and note are zero again.
  void reset(BlockId block) noexcept {
    mark(block).hits = 0;
    mark(block).note = 0;
  }

 private:
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 40) - 1;
  // One word, so that a block costs one cache line here.
  struct Mark {
    std::uint64_t time : 40;
    std::uint64_t list : 8;
    std::uint64_t hits : 8;
    std::uint64_t note : 8;
  };

  Mark& mark(BlockId block) noexcept { return marks_.data()[block.value]; }
  [[nodiscard]] std::int64_t key_of(BlockId block) const noexcept {
    const Mark& m = marks_.data()[block.value];
    return static_cast<std::int64_t>(m.time) + bonus_[m.list];
  }
  // The class whose front has the lowest key, and the lowest key among the others.
  bool find_leader(std::int32_t& leader, std::int64_t& bound) const noexcept {
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::int64_t lowest = kNone;
    std::int64_t second = kNone;
    for (std::int32_t list = 0; list < kClasses; ++list) {
      const BlockId block = lists_.front(list);
      const std::int64_t key = block == kNoBlock ? kNone : key_of(block);
      if (key < lowest) {
        second = lowest;
        lowest = key;
        leader = list;
      } else {
        second = min_of(second, key);
      }
    }
    bound = second;
    return lowest != kNone;
  }

  BlockLists lists_;
  Buffer<Mark> marks_;  // [num_blocks]
  std::int64_t bonus_[static_cast<std::size_t>(kClasses)] = {};
  std::int64_t clock_ = 0;
  std::int64_t threshold_ = 0;     // Key of the latest victim.
  std::int64_t bound_ = kUnknown;  // No front but the leader's has a lower key.
  std::int32_t leader_ = 0;
  bool has_threshold_ = false;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
