// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// check_kv_cache_pool_laws(): random plans against the laws of docs/policies/kv_cache_pool.md.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// Plays a scheduler with a few rows and remembers what each physical block holds, so that a block
/// that is shared although it holds something else is found.
template <class P>
class KvCachePoolLaws {
 public:
  KvCachePoolLaws(P& pool, std::uint64_t seed) noexcept : pool_(pool), random_(seed) {}

  [[nodiscard]] Status run(int num_plans) noexcept {
    Status s = begin();
    for (int i = 0; i < num_plans && s; ++i) {
      s = random_.one_in(8) ? disturb() : run_plan();
      s = s ? check_accounts() : s;
    }
    return s ? end() : s;
  }

 private:
  static constexpr int kRows = 5;
  static constexpr int kStories = 24;
  static constexpr std::int64_t kMaxBlocks = 12;

  // Content made of block letters; equal scope and letters = equal prefix.
  struct Story {
    CacheScope scope;
    std::int64_t num_tokens;
    std::uint8_t letters[kMaxBlocks];
    std::uint32_t pages[kMaxBlocks];
  };
  struct RowState {
    int story = -1;
    std::int64_t computed = 0;   // Tokens in the cache once all plans have run.
    std::int64_t committed = 0;  // Of these, before the plan that is being made.
    bool is_planned = false;
  };
  // What a block holds, or will once its plan has run.
  struct Held {
    std::int32_t story_plus_one;
    std::int32_t index;
    std::uint64_t plan;
  };

  static Status broken(const char* law, std::int64_t value = 0, std::int64_t limit = 0) noexcept {
    return {Errc::InternalError, "law", value, limit, law};
  }

  [[nodiscard]] bool has_blocks() const noexcept { return !pool_.groups().empty(); }
  [[nodiscard]] std::span<const BlockId> table(int row) const noexcept {
    return pool_.table(0, Row{row});
  }

  Status begin() noexcept {
    block_size_ = has_blocks() ? pool_.groups()[0].block_size : 16;
    const std::int64_t context = kMaxBlocks * block_size_;
    if (Status s = pool_.attach(
            {.max_rows = kRows, .max_context_tokens = context, .sequence_handles = 4 * kRows});
        !s) {
      return s;
    }
    const PoolStats stats = pool_.stats();
    if (stats.referenced_blocks != 0 || stats.cached_blocks != 0 ||
        stats.free_blocks != stats.total_blocks) {
      return broken("1: after attach() every block is free", stats.free_blocks, stats.total_blocks);
    }
    num_blocks_ = has_blocks() ? stats.total_blocks : 0;
    Status s = held_.allocate(static_cast<std::size_t>(num_blocks_), "num_blocks");
    s = s ? seen_.allocate(static_cast<std::size_t>(num_blocks_), "num_blocks") : s;
    s = s ? tokens_.allocate(static_cast<std::size_t>(2 * page_tokens()), "tokens") : s;
    if (!s) {
      return s;
    }
    // Two pages hold every block there is: page l is made of letter l.
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = i < tokens_.size() / 2 ? 0 : 1;
    }
    for (Story& story : stories_) {
      story = {};
      story.scope.has_tenant_salt = random_.one_in(3);
      story.num_tokens = random_.between(1, context);
      for (std::int64_t i = 0; i < kMaxBlocks; ++i) {
        story.letters[i] = random_.one_in(4) ? 1 : 0;
        story.pages[i] = story.letters[i];
      }
    }
    return kOk;
  }

  // Pages are made of one block where that is possible, so that each block has its own letter.
  [[nodiscard]] std::int32_t page_tokens() const noexcept { return block_size_; }
  [[nodiscard]] SequenceContentView view(int story) const noexcept {
    const Story& s = stories_[story];
    SequenceContentView v{};
    v.scope = &s.scope;
    v.storage = tokens_.data();
    v.pages = s.pages;
    v.page_tokens = page_tokens();
    v.prompt_length = s.num_tokens;
    v.known_length = s.num_tokens;
    v.cacheable_length = s.num_tokens;
    return v;
  }
  [[nodiscard]] bool is_same_prefix(int a, int b, std::int64_t index) const noexcept {
    for (std::int64_t i = 0; i <= index; ++i) {
      if (stories_[a].letters[i] != stories_[b].letters[i]) {
        return false;
      }
    }
    return stories_[a].scope == stories_[b].scope;
  }

  // One plan of a few rows, which then runs or fails.
  Status run_plan() noexcept {
    const PlanId plan{++last_plan_};
    const std::int64_t num_chunks = random_.between(1, kRows);
    Status s = kOk;
    for (std::int64_t i = 0; i < num_chunks && s; ++i) {
      const int row = static_cast<int>(random_.between(0, kRows - 1));
      if (rows_[row].story < 0) {
        s = start(row);
      }
      if (s && rows_[row].story >= 0 && !rows_[row].is_planned) {
        s = advance(row, plan);
      }
    }
    if (s && random_.one_in(4)) {
      s = fail(plan);
    }
    pool_.settle(plan);
    settled_ = plan.value;
    for (int row = 0; row < kRows; ++row) {
      rows_[row].is_planned = false;
      rows_[row].committed = rows_[row].computed;
      if (s && rows_[row].story >= 0 &&
          (rows_[row].computed == stories_[rows_[row].story].num_tokens || random_.one_in(12))) {
        finish(row);
      }
    }
    return s;
  }

  Status start(int row) noexcept {
    const int story = static_cast<int>(random_.between(0, kStories - 1));
    const std::int64_t limit = random_.between(0, stories_[story].num_tokens);
    const PoolStats before = pool_.stats();
    const PrefixMatch m = pool_.match(view(story), limit);
    const PoolStats after = pool_.stats();
    if (after.free_blocks != before.free_blocks || after.cached_blocks != before.cached_blocks) {
      return broken("4: match() changes no block");
    }
    if (m.num_tokens < 0 || m.num_tokens > limit || m.num_tokens != m.num_blocks * block_size_) {
      return broken("4: a match is whole blocks within the limit", m.num_tokens, limit);
    }
    if (!pool_.shares_prefixes() && m.num_tokens != 0) {
      return broken("4: a pool that shares nothing matches nothing", m.num_tokens);
    }
    if (!pool_.acquire(Row{row}, m)) {
      return broken("5: acquire() takes a fresh match into an empty row");
    }
    rows_[row] = {story, m.num_tokens, m.num_tokens, false};
    if (!has_blocks()) {
      return kOk;
    }
    if (static_cast<std::int64_t>(table(row).size()) != m.num_blocks) {
      return broken("5: acquire() takes the blocks of the match");
    }
    if (before.cached_blocks - pool_.stats().cached_blocks != m.idle_blocks) {
      return broken("5: idle_blocks are what acquire() takes out of cached", m.idle_blocks);
    }
    if (m.num_blocks != 0 && pool_.acquire(Row{row}, m)) {
      return broken("5: acquire() needs an empty row");
    }
    std::uint64_t newest = 0;
    for (std::int64_t i = 0; i < m.num_blocks; ++i) {
      const Held& h =
          held_[static_cast<std::size_t>(table(row)[static_cast<std::size_t>(i)].value)];
      if (h.story_plus_one == 0 || h.index != i ||
          !is_same_prefix(h.story_plus_one - 1, story, i)) {
        return broken("6: a shared block holds exactly the prefix it is shared for", i);
      }
      newest = max_of(newest, h.plan);
    }
    if (m.newest_pending.value != (newest > settled_ ? newest : 0)) {
      return broken("7: newest_pending is the newest plan that has still to write",
                    static_cast<std::int64_t>(m.newest_pending.value));
    }
    return kOk;
  }

  Status advance(int row, PlanId plan) noexcept {
    RowState& r = rows_[row];
    const std::int64_t tokens = random_.between(r.computed, stories_[r.story].num_tokens);
    const PoolStats before = pool_.stats();
    const std::int64_t held = static_cast<std::int64_t>(table(row).size());
    const std::int64_t wanted = max_of(ceil_div(tokens, block_size_), held);
    const bool fits = wanted - held <= before.available_blocks();
    if (pool_.extend(Row{row}, tokens) != fits) {
      return broken("8: extend() succeeds exactly if enough blocks are free or cached", wanted);
    }
    if (has_blocks() && static_cast<std::int64_t>(table(row).size()) != (fits ? wanted : held)) {
      return broken("8: extend() adds all the blocks it needs or none", wanted, held);
    }
    if (!fits) {
      return pool_.stats().free_blocks == before.free_blocks
                 ? kOk
                 : broken("8: a failed extend() changes nothing");
    }
    r.is_planned = true;
    r.computed = tokens;
    for (std::int64_t i = held; i < wanted && has_blocks(); ++i) {
      at(row, i) = {};
    }
    pool_.publish(Row{row}, view(r.story), tokens, plan);
    for (std::int64_t i = r.committed / block_size_; i < tokens / block_size_ && has_blocks();
         ++i) {
      if (i * block_size_ + block_size_ > r.committed) {
        at(row, i) = {r.story + 1, static_cast<std::int32_t>(i), plan.value};
      }
    }
    return kOk;
  }

  // The plan's blocks are withdrawn, and everything that came to depend on them goes.
  Status fail(PlanId plan) noexcept {
    bool is_failed[kRows] = {};
    for (int row = 0; row < kRows; ++row) {
      RowState& r = rows_[row];
      if (!r.is_planned) {
        continue;
      }
      is_failed[row] = true;
      const std::int64_t full = r.computed / block_size_ - r.committed / block_size_;
      const std::int64_t withdrawn = pool_.withdraw(Row{row}, r.committed);
      if (withdrawn < 0 || withdrawn > full) {
        return broken("9: withdraw() counts the published blocks it takes out", withdrawn, full);
      }
    }
    // Nothing that this plan has promised can be found, in any content.
    for (int story = 0; story < kStories; ++story) {
      const PrefixMatch m = pool_.match(view(story), stories_[story].num_tokens);
      if (m.newest_pending == plan) {
        return broken("9: a withdrawn block is never matched", story);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      if (!is_failed[row] && rows_[row].story >= 0 && reads_from(row, plan) &&
          !pool_.reads_withdrawn(Row{row})) {
        return broken("10: a reader of a withdrawn block is told", row);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      RowState& r = rows_[row];
      if (pool_.reads_withdrawn(Row{row})) {
        finish(row);
        if (pool_.reads_withdrawn(Row{row})) {
          return broken("10: an empty row reads nothing", row);
        }
      } else if (is_failed[row]) {
        pool_.truncate(Row{row}, r.committed);
        r.computed = r.committed;
      }
    }
    return kOk;
  }
  [[nodiscard]] bool reads_from(int row, PlanId plan) noexcept {
    for (std::size_t i = 0; i < table(row).size(); ++i) {
      if (held_[static_cast<std::size_t>(table(row)[i].value)].plan == plan.value) {
        return true;
      }
    }
    return false;
  }

  Status disturb() noexcept {
    const int row = static_cast<int>(random_.between(0, kRows - 1));
    RowState& r = rows_[row];
    switch (random_.between(0, 4)) {
      case 0: {
        const std::int64_t tokens = random_.between(0, kMaxBlocks * block_size_);
        const auto held = static_cast<std::int64_t>(table(row).size());
        const bool is_cut = tokens < r.computed;
        pool_.truncate(Row{row}, tokens);
        r.computed = r.committed = min_of(r.computed, tokens);
        if (static_cast<std::int64_t>(table(row).size()) !=
            min_of(held, ceil_div(tokens, block_size_))) {
          return broken("11: truncate() keeps the blocks that its tokens need", tokens);
        }
        // Behind a cut through a shared block the row would write to it.
        if (is_cut && tokens % block_size_ != 0) {
          finish(row);
        }
        return kOk;
      }
      case 1:
        finish(row);
        pool_.release(Row{row});  // Of an empty row: nothing.
        return table(row).empty() ? kOk : broken("12: release() empties the row", row);
      case 2: {
        const bool is_idle = pool_.stats().referenced_blocks == 0;
        if (pool_.clear() != is_idle) {
          return broken("13: clear() succeeds exactly if no block is referenced");
        }
        for (int story = 0; story < kStories && is_idle; ++story) {
          if (pool_.match(view(story), stories_[story].num_tokens).num_tokens != 0) {
            return broken("13: after clear() nothing is matched", story);
          }
        }
        return kOk;
      }
      case 3: {
        const int story = static_cast<int>(random_.between(0, kStories - 1));
        const PrefixMatch m = pool_.match(view(story), stories_[story].num_tokens);
        const int other = (row + 1) % kRows;
        finish(other);
        if (r.story < 0 && m.num_blocks != 0) {
          if (!pool_.extend(Row{other}, block_size_)) {
            return kOk;
          }
          for (const BlockId b : table(other)) {
            held_[static_cast<std::size_t>(b.value)] = {};
          }
          if (pool_.acquire(Row{row}, m)) {
            return broken("5: acquire() refuses a match older than a change", story);
          }
          pool_.release(Row{other});
        }
        return kOk;
      }
      default:
        if (has_blocks() && (pool_.extend(Row{kRows}, 1) || pool_.acquire(Row{-1}, {}))) {
          return broken("3: an unknown row is refused");
        }
        pool_.release(Row{kRows});
        return kOk;
    }
  }

  void finish(int row) noexcept {
    pool_.release(Row{row});
    rows_[row] = {};
  }

  Held& at(int row, std::int64_t index) noexcept {
    return held_[static_cast<std::size_t>(table(row)[static_cast<std::size_t>(index)].value)];
  }

  Status check_accounts() noexcept {
    const PoolStats s = pool_.stats();
    if (s.free_blocks < 0 || s.cached_blocks < 0 || s.referenced_blocks < 0 ||
        s.free_blocks + s.cached_blocks + s.referenced_blocks != s.total_blocks) {
      return broken("1: free + cached + referenced = total", s.free_blocks + s.cached_blocks,
                    s.total_blocks - s.referenced_blocks);
    }
    ++round_;
    std::int64_t distinct = 0;
    for (int row = 0; row < kRows; ++row) {
      const auto blocks = table(row);
      if (!has_blocks() && !blocks.empty()) {
        return broken("3: a pool without groups has no tables", row);
      }
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].value < 0 || blocks[i].value >= num_blocks_) {
          return broken("3: a table holds blocks of the pool", blocks[i].value, num_blocks_);
        }
        std::uint64_t& seen = seen_[static_cast<std::size_t>(blocks[i].value)];
        distinct += seen / 64 == round_ ? 0 : 1;
        if (seen / 64 == round_ && seen % 64 != i) {
          return broken("3: a shared block has one place in all its tables", blocks[i].value);
        }
        seen = round_ * 64 + i;
      }
    }
    if (has_blocks() && distinct != s.referenced_blocks) {
      return broken("1: each referenced block counts once", s.referenced_blocks, distinct);
    }
    return pool_.check();
  }

  Status end() noexcept {
    for (int row = 0; row < kRows; ++row) {
      finish(row);
    }
    if (pool_.stats().referenced_blocks != 0) {
      return broken("12: nothing is referenced when all rows are empty");
    }
    if (!pool_.clear() || pool_.stats().free_blocks != pool_.stats().total_blocks) {
      return broken("13: a cleared pool is free");
    }
    if (has_blocks() && pool_.can_ever_fit((num_blocks_ + 1) * block_size_)) {
      return broken("2: can_ever_fit() refuses more than the pool", num_blocks_);
    }
    return pool_.check();
  }

  P& pool_;
  SplitMix64 random_;
  Buffer<Token> tokens_;
  Buffer<Held> held_;
  Buffer<std::uint64_t> seen_;  // Of a block: round * 64 + place.
  Story stories_[kStories]{};
  RowState rows_[kRows];
  std::int64_t num_blocks_ = 0;
  std::int32_t block_size_ = 16;
  std::uint64_t last_plan_ = 0;
  std::uint64_t settled_ = 0;
  std::uint64_t round_ = 0;
};

}  // namespace detail

/// Attaches `pool` and runs `num_plans` random plans on it. The Status of a broken law has its
/// number and text. Use a pool of 8 to 60 blocks so that it is short of them. Leaves the pool
/// empty.
template <KVCachePool P>
[[nodiscard]] Status check_kv_cache_pool_laws(P& pool, std::uint64_t seed,
                                              int num_plans = 2000) noexcept {
  return detail::KvCachePoolLaws<P>(pool, seed).run(num_plans);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
