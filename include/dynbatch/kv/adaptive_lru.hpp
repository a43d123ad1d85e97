// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// AdaptiveLru: eviction order that learns how long which kind of block is worth keeping.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/aged_lists.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// LRU lists, one a class of blocks, each with a lifetime of its own. A class is how a block was
/// used (never found and not part of a prompt that continues another, either of these, found often)
/// and how far from the start of its sequence it lies, by powers of two. The lifetimes are moved
/// until the oldest blocks of all classes are found equally often per block and time: then no
/// exchange of memory between classes gains anything. What was found early on counts for nothing,
/// so a stream that is never used again, or only after longer than LRU can keep it, doesn't
/// displace what is. Starts as Lru; while nothing speaks for either, classes nearer to the start
/// and found before slowly get longer lives. Integers only: equal inputs evict equal blocks.
class AdaptiveLru {
 public:
  struct Config {
    /// Largest part of the pool by which a lifetime changes per doubling of what the class yields,
    /// each time that an eighth of the pool was released; in [0, 100]. 0 is Lru.
    std::int32_t step_percent = 6;
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
    for (std::int32_t c = 0; c < kClasses; ++c) {
      counts_[c] = {};
      lists_.set_bonus(c, 0);
    }
    return lists_.attach(num_blocks);
  }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    const bool continues = continues_another(path);
    for (std::size_t i = path.size(); i-- > first;) {
      lists_.push_back(path[i], class_for(lists_.hits(path[i]), continues, i),
                       path[i - min_of(lists_.kAhead, i - first)]);
    }
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
    for (const BlockId block : path) {
      const std::int32_t c = lists_.class_of(block);
      if (lists_.has_evicted() &&
          4 * lists_.age_of(block) >= 3 * max_of<std::int64_t>(life_of(c), 1)) {
        counts_[c].found += kOne;
      }
    }
    lists_.erase(path);
  }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    return lists_.take(blocks, [this](BlockId block, std::int32_t c) noexcept {
      counts_[c].evicted += kOne;
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

  /// Blocks released while a block of a class stays: for monitoring. Classes are numbered
  /// use * 12 + (11 - power of two of the index).
  [[nodiscard]] std::int64_t life_of(std::int32_t c) const noexcept { return lists_.life_of(c); }
  static constexpr std::int32_t kDepths = 12;
  static constexpr std::int32_t kClasses = 3 * kDepths;

 private:
  static constexpr std::int64_t kOne = 256;  // Counters are multiples of 1 / kOne.
  static constexpr std::int32_t kFewHits = 8;
  static constexpr std::int32_t kManyHits = 4;

  // Of blocks in the last quarter of their class' lifetime, or at its end; older counts fade.
  struct Counts {
    std::int64_t found = 0;
    std::int64_t evicted = 0;
  };

  // A head's class is never below that of its tail: it was found at least as often, lies nearer to
  // the start, and where a path continues another its head was found.
  static std::int32_t class_for(std::int32_t hits, bool continues, std::size_t index) noexcept {
    const std::int32_t use = hits >= kManyHits ? 2 : (hits > 0 || continues ? 1 : 0);
    const auto power = static_cast<std::int32_t>(std::bit_width(index + 1)) - 1;
    return use * kDepths + (kDepths - 1 - min_of(power, kDepths - 1));
  }

  // True if new blocks follow one that few have found: the next turn of a conversation, not one
  // more request below a prompt that all share.
  [[nodiscard]] bool continues_another(std::span<const BlockId> path) const noexcept {
    for (std::size_t i = path.size(); i > 1; --i) {
      const std::int32_t hits = lists_.hits(path[i - 2]);
      if (hits != 0) {
        return hits <= kFewHits && lists_.hits(path[i - 1]) == 0;
      }
    }
    return false;
  }

  void adapt() noexcept;

  Config config_;
  detail::AgedLists<kClasses> lists_;
  Counts counts_[kClasses];
  std::int64_t num_blocks_ = 0;
  std::int64_t next_epoch_ = 0;
};

static_assert(EvictionOrder<AdaptiveLru>);

inline void AdaptiveLru::adapt() noexcept {
  if (!lists_.has_evicted()) {
    return;
  }
  // What a class yields: blocks found per block that was there and time it stayed in the last
  // quarter of its life. Lifetimes in 1/256 of the pool.
  std::int64_t exposure[kClasses];
  std::int64_t found = 0;
  std::int64_t all_exposure = 1;
  std::int64_t all_evicted = 1;
  for (std::int32_t c = 0; c < kClasses; ++c) {
    const std::int64_t life =
        clamp_to<std::int64_t>(life_of(c), num_blocks_ / 64, 64 * num_blocks_);
    exposure[c] = (counts_[c].found + counts_[c].evicted) * (life * 256 / num_blocks_ + 1) / 4;
    found += counts_[c].found;
    all_exposure += exposure[c];
    all_evicted += counts_[c].evicted;
  }
  const std::int64_t prior = config_.prior_blocks * kOne;
  const std::int64_t per_found = max_of<std::int64_t>(all_exposure / (found + prior), 1);
  std::int64_t bonus[kClasses];
  std::int64_t mean = 0;
  for (std::int32_t c = 0; c < kClasses; ++c) {
    // A class of which little is known is expected to yield as much as the others, and a little
    // more the nearer it is to the start and the more it was used.
    const std::int64_t rank = 2 * (c % kDepths + c / kDepths) - (kDepths + 1);
    const std::int64_t expected = prior * (20 + rank * 16 * prior / (found + 16 * prior)) / 20;
    const std::int64_t yields =
        detail::log2_q8(static_cast<std::uint64_t>(counts_[c].found + expected));
    const std::int64_t average =
        detail::log2_q8(static_cast<std::uint64_t>(exposure[c] / per_found + prior));
    const std::int64_t doublings = clamp_to<std::int64_t>(yields - average, -740, 740);
    bonus[c] = lists_.bonus(c) + num_blocks_ * config_.step_percent / 100 * doublings / 256;
    mean += bonus[c] * (counts_[c].evicted * 1024 / all_evicted) / 1024;
    counts_[c].found -= counts_[c].found / 5;
    counts_[c].evicted -= counts_[c].evicted / 5;
  }
  // Only differences matter. They stay bounded, and in the order that class_for() promises.
  for (std::int32_t c = 0; c < kClasses; ++c) {
    bonus[c] = clamp_to(bonus[c] - mean, -8 * num_blocks_, 8 * num_blocks_);
    bonus[c] = c % kDepths != 0 ? max_of(bonus[c], bonus[c - 1]) : bonus[c];
    bonus[c] = c >= kDepths ? max_of(bonus[c], bonus[c - kDepths]) : bonus[c];
    lists_.set_bonus(c, bonus[c]);
  }
}

}  // namespace dynbatch::inline DYNBATCH_ABI
