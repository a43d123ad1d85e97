// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PriorityDuration: eviction order by a priority that the host gives to blocks, for a time or for
/// good.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/kv/detail/block_lists.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Lowest priority first, least recently released first among equals. Of all that a block was given
/// since it got its content the highest priority and the longest duration count; a block counts at
/// least as much, and as long, as anything that was ever behind it, so that no tail outlives its
/// head. 32 pairs of priority and duration are told apart at a time; a further one lasts for good.
/// O(1) a block, O(pairs) a victim and a block that expires.
class PriorityDuration {
 public:
  static constexpr std::int32_t kMaxPairs = 32;

  struct Config {
    std::int32_t default_priority = 35;  ///< Of blocks without a retention, in [0, 100].

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (default_priority < 0 || default_priority > 100) {
        return {Errc::InvalidConfig, "default_priority", default_priority, 100,
                "must be in [0, limit]"};
      }
      return kOk;
    }
  };

  PriorityDuration() noexcept : PriorityDuration(Config{}) {}
  explicit PriorityDuration(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    now_ = 0;
    clock_ = 0;
    num_pairs_ = 0;
    lowest_ = kPriorities;
    Status s = config_.validate();
    s = s ? marks_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks") : s;
    return s ? lists_.attach(num_blocks, kPriorities + kMaxPairs) : s;
  }

  /// Gives blocks a retention, which must be valid. Counts from the blocks' next release on.
  void retain(std::span<const BlockId> blocks, const Retention& retention) noexcept {
    for (const BlockId block : blocks) {
      give(mark(block), retention.priority, retention.duration.ns);
    }
  }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    Mark behind{};
    for (std::size_t i = path.size(); i-- > first;) {
      Mark& m = mark(path[i]);
      rise_to(m, behind);
      const std::int32_t list = list_for(m);
      behind = m;
      m.order = clock_++;
      m.expiry = saturating_add(now_, m.duration);
      push_back(list, path[i]);
    }
    // Heads in use learn it now; those before one that knows know too.
    for (std::size_t i = first; i-- > 0;) {
      Mark& m = mark(path[i]);
      if (m.priority >= behind.priority && m.duration >= behind.duration) {
        break;
      }
      rise_to(m, behind);
      behind = m;
    }
  }
  void erase(BlockId block) noexcept {
    lists_.erase(block);
    reset(block);
  }
  void erase(std::span<const BlockId> path) noexcept { lists_.erase(path); }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    for (; n < blocks.size(); ++n) {
      while (lowest_ < kPriorities && lists_.is_empty(lowest_)) {
        ++lowest_;
      }
      const BlockId block = victim();
      if (block == kNoBlock) {
        break;
      }
      erase(block);
      blocks[n] = block;
    }
    return n;
  }

  [[nodiscard]] BlockId victim() const noexcept {
    if (marks_.size() == 0) {
      return kNoBlock;
    }
    std::int32_t lowest = lowest_;
    while (lowest < kPriorities && lists_.is_empty(lowest)) {
      ++lowest;
    }
    BlockId best = lowest < kPriorities ? lists_.front(lowest) : kNoBlock;
    for (std::int32_t pair = 0; pair < num_pairs_; ++pair) {
      const BlockId block = lists_.front(kPriorities + pair);
      const std::int32_t priority = pairs_[pair].priority;
      if (block != kNoBlock &&
          (priority < lowest || (priority == lowest && mark(block).order < mark(best).order))) {
        best = block;
        lowest = priority;
      }
    }
    return best;
  }
  [[nodiscard]] BlockId front() const noexcept {
    return marks_.size() == 0 ? kNoBlock : lists_.front_from(0);
  }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return lists_.after(block); }

  /// The content of a block, and with it what it was given, is gone.
  void reset(BlockId block) noexcept { mark(block) = Mark{}; }

  /// Lets time pass: priorities above the default one whose duration is over fall to it.
  void advance(TimeNs now) noexcept {
    if (marks_.size() == 0 || now.ns <= now_) {
      return;
    }
    now_ = now.ns;
    // By expiry, so that a tail that expires together with its head still goes first.
    for (BlockId block = next_to_expire(); block != kNoBlock && mark(block).expiry <= now_;
         block = next_to_expire()) {
      lists_.erase(block);
      mark(block).order = clock_++;
      push_back(config_.default_priority, block);
    }
  }

 private:
  static constexpr std::int32_t kPriorities = 101;
  static constexpr std::int32_t kNone = 0;
  static constexpr std::int64_t kForGood = kUnbounded.ns;

  // Zero: nothing was given.
  struct Mark {
    std::int64_t order;     // Of insertion, among all.
    std::int64_t expiry;    // Read in the lists of pairs only.
    std::int64_t duration;  // 0 up to the default priority, where it makes no difference.
    std::int32_t priority;  // Plus 1.
  };
  struct Pair {
    std::int64_t duration;
    std::int32_t priority;
  };

  Mark& mark(BlockId block) noexcept { return marks_.data()[block.value]; }
  [[nodiscard]] const Mark& mark(BlockId block) const noexcept {
    return marks_.data()[block.value];
  }
  void give(Mark& m, std::int32_t priority, std::int64_t duration) const noexcept {
    m.priority = max_of(m.priority, priority + 1);
    m.duration = max_of(m.duration, priority > config_.default_priority ? duration : 0);
  }
  // The default for what was given nothing, and at least what lies behind.
  void rise_to(Mark& m, const Mark& behind) const noexcept {
    if (m.priority == kNone) {
      give(m, config_.default_priority, 0);
    }
    m.priority = max_of(m.priority, behind.priority);
    m.duration = max_of(m.duration, behind.duration);
  }
  void push_back(std::int32_t list, BlockId block) noexcept {
    lowest_ = list < kPriorities ? min_of(lowest_, list) : lowest_;
    lists_.push_back(list, block);
  }

  // The list of a block; without one for its duration the block is given all the time there is.
  std::int32_t list_for(Mark& m) noexcept {
    const std::int32_t priority = m.priority - 1;
    if (priority <= config_.default_priority || m.duration == kForGood) {
      return priority;
    }
    std::int32_t unused = num_pairs_;
    for (std::int32_t pair = 0; pair < num_pairs_; ++pair) {
      if (pairs_[pair].priority == priority && pairs_[pair].duration == m.duration) {
        return kPriorities + pair;
      }
      unused = lists_.is_empty(kPriorities + pair) ? min_of(unused, pair) : unused;
    }
    if (unused == kMaxPairs) {
      m.duration = kForGood;
      return priority;
    }
    num_pairs_ = max_of(num_pairs_, unused + 1);
    pairs_[unused] = {m.duration, priority};
    return kPriorities + unused;
  }

  [[nodiscard]] BlockId next_to_expire() const noexcept {
    BlockId best = kNoBlock;
    for (std::int32_t pair = 0; pair < num_pairs_; ++pair) {
      const BlockId block = lists_.front(kPriorities + pair);
      if (block != kNoBlock &&
          (best == kNoBlock || mark(block).expiry < mark(best).expiry ||
           (mark(block).expiry == mark(best).expiry && mark(block).order < mark(best).order))) {
        best = block;
      }
    }
    return best;
  }

  Config config_;
  detail::BlockLists lists_;  // One a priority, then one a pair, in order of expiry.
  Buffer<Mark> marks_;        // [num_blocks]
  Pair pairs_[kMaxPairs] = {};
  std::int64_t now_ = 0;
  std::int64_t clock_ = 0;
  std::int32_t num_pairs_ = 0;
  std::int32_t lowest_ = kPriorities;  // No list of a lower priority has a block.
};

static_assert(EvictionOrder<PriorityDuration>);

}  // namespace dynbatch::inline DYNBATCH_ABI
