// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// AdaptiveLru: eviction order that learns how long which kind of block is worth keeping.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/detail/aged_lists.hpp>
#include <dynbatch/kv/detail/split_trial.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// A few LRU lists with lifetimes of their own: last blocks of prompts that nothing has followed
/// yet, blocks of prompts, and blocks of prompts that continue another. The lifetimes are moved
/// until the oldest blocks of all three are found equally often per block and time: then no
/// exchange of memory between them gains anything. If almost nothing is found before LRU would give
/// it up, a part of the prompts, drawn at random, is kept longer at the expense of the others, for
/// as long as that finds more (SplitTrial). Starts as Lru. Whole prompts are treated alike, so
/// victims lie side by side. Integers only: equal inputs evict equal blocks.
class AdaptiveLru {
 public:
  struct Config {
    /// Largest part of the pool by which a lifetime changes per doubling of what the class yields,
    /// each time that an eighth of the pool was released; in [0, 100]. 0 is Lru.
    std::int32_t step_percent = 3;
    /// Found blocks that a class must differ by before that is believed, in [1, 1000000].
    std::int32_t prior_blocks = 40;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (step_percent < 0 || step_percent > 100) {
        return {Errc::InvalidConfig, "step_percent", step_percent, 100, "must be in [0, limit]"};
      }
      if (prior_blocks < 1 || prior_blocks > 1'000'000) {
        return {Errc::InvalidConfig, "prior_blocks", prior_blocks, 1'000'000,
                "must be in [1, limit]"};
      }
      return kOk;
    }
  };

  AdaptiveLru() noexcept : AdaptiveLru(Config{}) {}
  explicit AdaptiveLru(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    if (Status s = config_.validate(); !s) {
      return s;
    }
    num_blocks_ = num_blocks;
    next_epoch_ = num_blocks;
    random_ = SplitMix64(kSeed);
    trial_.attach(num_blocks);
    for (Kind& kind : kinds_) {
      kind = {};
    }
    for (std::int32_t c = 0; c < kClasses; ++c) {
      lists_.set_bonus(c, 0);
    }
    return lists_.attach(num_blocks);
  }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    if (first >= path.size()) {
      return;  // nothing enters: nothing is drawn either
    }
    std::int32_t flags = flags_for(path);
    std::int64_t num_own[2] = {};
    {
      typename Lists::Appender appender(lists_);
      for (std::size_t i = path.size(); i-- > first;) {
        const Lists::Facts facts = lists_.facts(path[i]);
        flags |= (i + 1 < path.size() || i == 0 ? kIsInner : 0) | facts.note();
        appender.add(path[i], class_for(flags), facts.hits(), flags,
                     path[i - min_of(Lists::kAhead, i - first)]);
        num_own[(flags & kIsDrawn) != 0 ? 1 : 0] += facts.hits() <= kFewHits ? 1 : 0;
      }
    }
    // Those before are still used; they learn it now.
    for (std::size_t i = first; i-- > 0;) {
      flags |= (i + 1 < path.size() || i == 0 ? kIsInner : 0) | lists_.note(path[i]);
      lists_.set_note(path[i], flags);
    }
    trial_.note_released(num_own[0], num_own[1]);
    lists_.advance(path.size() - first);
    if (lists_.clock() >= next_epoch_) {
      next_epoch_ = lists_.clock() + max_of<std::int64_t>(num_blocks_ / 8, 1);
      adapt();
    }
  }

  void erase(BlockId block) noexcept {
    lists_.erase(block);
    lists_.reset(block);
  }
  void erase(std::span<const BlockId> path) noexcept {
    if (lists_.has_evicted()) {
      for (const BlockId block : path) {
        count_found(block);
      }
    }
    lists_.erase(path);
  }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    return lists_.take(blocks, [this](BlockId block, std::int32_t c) noexcept {
      kinds_[kind_of(c)].evicted += kOne;
      lists_.reset(block);
    });
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

  /// Blocks released while a block of a class stays: for monitoring. Classes: 0 last blocks; 1
  /// other blocks of prompts; 3 of prompts that continue another; 2 and 4 the same of prompts drawn
  /// to stay longer.
  [[nodiscard]] std::int64_t life_of(std::int32_t c) const noexcept { return lists_.life_of(c); }
  static constexpr std::int32_t kClasses = 5;

 private:
  using Lists = detail::AgedLists<kClasses>;
  static constexpr std::int64_t kOne = 256;  // Counters are multiples of 1 / kOne.
  static constexpr std::int32_t kFewHits = 8;
  static constexpr std::int64_t kDrawnOneIn = 4;
  static constexpr std::uint64_t kSeed = 1;

  // What is noted of a block. All of it is also noted of the blocks before it in its path, so a
  // head's class is never below that of its tail.
  static constexpr std::int32_t kIsInner = 1;  // Something has followed it, or it is alone.
  static constexpr std::int32_t kContinues = 2;
  static constexpr std::int32_t kIsDrawn = 4;

  // A kind of blocks: classes without the draw. Counted are those in the last quarter of their
  // class' lifetime, or at its end; older counts fade.
  static constexpr std::int32_t kKinds = 3;
  struct Kind {
    std::int64_t found = 0;
    std::int64_t evicted = 0;
    std::int64_t bonus = 0;
  };

  static std::int32_t class_for(std::int32_t flags) noexcept {
    return (flags & kIsInner) == 0 ? 0
                                   : 1 + (flags & kContinues) + ((flags & kIsDrawn) != 0 ? 1 : 0);
  }
  static std::int32_t kind_of(std::int32_t c) noexcept { return (c + 1) / 2; }
  static bool is_drawn(std::int32_t c) noexcept { return c != 0 && c % 2 == 0; }
  [[nodiscard]] bool is_own(BlockId block) const noexcept { return lists_.hits(block) <= kFewHits; }

  // New blocks that follow one that few have found are the next turn of a conversation, which stays
  // drawn or not, rather than one more request below a prompt that all share.
  std::int32_t flags_for(std::span<const BlockId> path) noexcept {
    for (std::size_t i = path.size(); i-- > 0;) {
      if (lists_.hits(path[i]) != 0) {
        if (is_own(path[i])) {
          return kContinues | (lists_.note(path[i]) & kIsDrawn);
        }
        break;
      }
    }
    return random_.one_in(kDrawnOneIn) ? kIsDrawn : 0;
  }

  void count_found(BlockId block) noexcept {
    const std::int32_t c = lists_.class_of(block);
    const std::int64_t age = lists_.age_of(block);
    if (4 * age >= 3 * max_of<std::int64_t>(life_of(c), 1)) {
      kinds_[kind_of(c)].found += kOne;
    }
    if (c != 0 && is_own(block)) {
      trial_.note_found(age, is_drawn(c), is_drawn(c) ? life_of(c - 1) : 0);
    }
  }

  void adapt() noexcept;

  Config config_;
  Lists lists_;
  Kind kinds_[kKinds];
  detail::SplitTrial trial_;
  SplitMix64 random_{kSeed};
  std::int64_t num_blocks_ = 0;
  std::int64_t next_epoch_ = 0;
};

static_assert(EvictionOrder<AdaptiveLru>);

inline void AdaptiveLru::adapt() noexcept {
  if (!lists_.has_evicted() || config_.step_percent == 0) {
    return;
  }
  // What a kind yields: blocks found per block that was there and time it stayed in the last
  // quarter of its life. Lifetimes in 1/256 of the pool.
  std::int64_t exposure[kKinds];
  std::int64_t found = 0;
  std::int64_t all_exposure = 1;
  std::int64_t all_evicted = 1;
  for (std::int32_t k = 0; k < kKinds; ++k) {
    const std::int64_t life =
        clamp_to<std::int64_t>(life_of(max_of(2 * k - 1, 0)), num_blocks_ / 64, 64 * num_blocks_);
    exposure[k] = (kinds_[k].found + kinds_[k].evicted) * (life * 256 / num_blocks_ + 1) / 4;
    found += kinds_[k].found;
    all_exposure += exposure[k];
    all_evicted += kinds_[k].evicted;
  }
  const std::int64_t prior = config_.prior_blocks * kOne;
  const std::int64_t per_found = max_of<std::int64_t>(all_exposure / (found + prior), 1);
  std::int64_t mean = 0;
  for (std::int32_t k = 0; k < kKinds; ++k) {
    // A kind of which little is known is expected to yield as much as the others; last blocks a
    // little less, continued prompts a little more.
    const std::int64_t expected = prior + (k - 1) * prior * 8 / 16 * prior / (found / 16 + prior);
    const std::int64_t yields =
        detail::log2_q8(static_cast<std::uint64_t>(kinds_[k].found + expected));
    const std::int64_t average =
        detail::log2_q8(static_cast<std::uint64_t>(exposure[k] / per_found + prior));
    const std::int64_t doublings = clamp_to<std::int64_t>(yields - average, -740, 740);
    kinds_[k].bonus += num_blocks_ * config_.step_percent * doublings / 25600;
    mean += kinds_[k].bonus * (kinds_[k].evicted * 1024 / all_evicted) / 1024;
    kinds_[k].found -= kinds_[k].found / 20;
    kinds_[k].evicted -= kinds_[k].evicted / 20;
  }
  trial_.adapt();
  // Only differences matter. They stay bounded, and in the order that the notes promise.
  for (std::int32_t k = 0; k < kKinds; ++k) {
    std::int64_t& bonus = kinds_[k].bonus;
    bonus = clamp_to(bonus - mean, -8 * num_blocks_, 8 * num_blocks_);
    bonus = k > 0 ? max_of(bonus, kinds_[k - 1].bonus) : bonus;
  }
  for (std::int32_t c = 0; c < kClasses; ++c) {
    lists_.set_bonus(c, kinds_[kind_of(c)].bonus + (is_drawn(c) ? trial_.bonus() : 0));
  }
}

}  // namespace dynbatch::inline DYNBATCH_ABI
