// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// StateBlocks: the recurrent states of a group's rows, and snapshots of them.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/detail/companion_cache.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// One block a row: its state, replaced in place by each chunk. A chunk that ends on a multiple of
/// the interval leaves a state worth keeping: the next plan copies it before anything overwrites
/// it, and once both plans are settled the copy is attached to its prefix. Blocks beyond one a row
/// hold such snapshots; rows come first.
class StateBlocks {
 public:
  [[nodiscard]] Status attach(const PoolAttachment& attachment, std::int64_t num_blocks,
                              std::int32_t first_block_size, std::int64_t num_prefixes,
                              std::int64_t interval) noexcept {
    interval_ = interval;
    first_block_size_ = first_block_size;
    held_ = 0;
    const auto rows = static_cast<std::size_t>(attachment.max_rows);
    Status s = rows_.allocate(rows, "max_rows");
    s = s ? blocks_.allocate(rows, "max_rows") : s;
    s = s ? zeroes_.allocate(rows, "max_rows") : s;
    s = s ? snapshots_.allocate(rows * 10, "max_rows") : s;  // one a row and plan in flight
    return s ? cache_.attach(num_blocks, num_prefixes, 1, rows) : s;
  }

  [[nodiscard]] std::span<const BlockId> table(Row row) const noexcept {
    return {blocks_.data() + row.value, at(row).has_state ? std::size_t{1} : 0};
  }
  [[nodiscard]] const CompanionCache& cache() const noexcept { return cache_; }

  [[nodiscard]] bool can_extend(Row row, std::int64_t tokens) const noexcept {
    return at(row).has_state || tokens <= 0 || cache_.store().num_available() > 0;
  }
  /// Gives the row its state: zeroed, or a copy of the snapshot that it took up.
  template <class IsAlive>
  void extend(Row row, std::int64_t tokens, const IsAlive& is_alive) noexcept {
    RowState& r = at(row);
    if (r.has_state || tokens <= 0) {
      return;
    }
    const BlockId block = take_state(row);
    if (r.resume_plus_one == 0) {
      zeroes_.push_back(block);
      return;
    }
    const BlockId snapshot{r.resume_plus_one - 1};
    r.resume_plus_one = 0;
    cache_.add_copy({snapshot, block, 1}, row);
    cache_.drop(snapshot, is_alive);
  }

  /// True if a row can start from the snapshot of `key`, and all other rows still find a block.
  [[nodiscard]] bool serves(PrefixKey key) const noexcept {
    const BlockId snapshot = cache_.find(key, 0);
    return snapshot != kNoBlock &&
           num_spare() - (cache_.store().references(snapshot) == 0 ? 1 : 0) >= 0;
  }
  void acquire(Row row, std::int64_t tokens, PrefixKey key) noexcept {
    const BlockId snapshot = cache_.find(key, 0);
    cache_.add_reference(snapshot);
    at(row) = {};
    at(row).resume_plus_one = snapshot.value + 1;
    at(row).position = tokens;
  }

  /// `plan` brings the row's state to position `end`.
  void plan_chunk(Row row, std::int64_t end, PlanId plan) noexcept {
    RowState& r = at(row);
    r.position = end;
    if (!r.is_void && end > 0 && end % interval_ == 0 &&
        snapshots_.size() < snapshots_.capacity()) {
      snapshots_.push_back({row, end, {}, plan.value, 0, kNoBlock});
    }
  }

  /// What was written from position `tokens` on is void: the state as well, if it is beyond.
  template <class IsAlive>
  void trim(Row row, std::int64_t tokens, const IsAlive& is_alive) noexcept {
    drop_snapshots_if([&](const Snapshot& s) { return s.row == row && s.tokens > tokens; },
                      is_alive);
    RowState& r = at(row);
    if (tokens == 0) {
      drop_state(row, is_alive);
    } else if (tokens < r.position) {
      r.is_void = true;
    }
  }
  /// The row's state is none of its own: it has to start over.
  [[nodiscard]] bool is_void(Row row) const noexcept { return at(row).is_void; }

  [[nodiscard]] bool can_fork(Row from, std::int64_t tokens) const noexcept {
    const RowState& r = at(from);
    return tokens == 0 ||
           (!r.is_void && r.position == tokens &&
            (r.resume_plus_one != 0 || (r.has_state && num_spare() >= 0 && cache_.has_copy_room() &&
                                        cache_.store().num_available() > 0)));
  }
  void fork(Row from, Row to, std::int64_t tokens) noexcept {
    const RowState& parent = at(from);
    at(to) = {};
    if (tokens == 0) {
      return;
    }
    at(to).position = tokens;
    if (parent.resume_plus_one != 0) {
      at(to).resume_plus_one = parent.resume_plus_one;
      cache_.add_reference(BlockId{parent.resume_plus_one - 1});
      return;
    }
    const BlockId block = take_state(to);
    cache_.add_copy({blocks_.data()[from.value], block, 1}, to);
  }

  template <class IsAlive>
  void release(Row row, const IsAlive& is_alive) noexcept {
    drop_snapshots_if([&](const Snapshot& s) { return s.row == row && s.told == 0; }, is_alive);
    for (Snapshot& s : snapshots_) {
      s.row = s.row == row ? kNoRow : s.row;  // the next sequence there is another one
    }
    drop_state(row, is_alive);
  }

  /// Copies that `plan` has to make: snapshots of what older plans wrote, states that begin with
  /// one.
  template <class Keys, class IsAlive>
  std::size_t drain_copies(std::span<BlockCopy> out, PlanId plan, const Keys& keys,
                           const IsAlive& is_alive) noexcept {
    std::size_t n = 0;
    for (Snapshot& s : snapshots_) {
      if (s.told != 0 || s.written >= plan.value) {
        continue;
      }
      s.told = plan.value;
      s.key = keys(s.row, s.tokens / first_block_size_ - 1);
      if (s.key.id != 0 && n < out.size() && num_spare() > 0 && cache_.find(s.key, 0) == kNoBlock) {
        s.block = cache_.take();
        out[n++] = {blocks_.data()[s.row.value], s.block, 1};
      }
    }
    drop_snapshots_if([](const Snapshot& s) { return s.told != 0 && s.block == kNoBlock; },
                      is_alive);
    return n + cache_.drain_copies(out.subspan(n), plan, true, is_alive);
  }
  std::size_t drain_zeroes(std::span<BlockId> out) noexcept {
    const std::size_t n = min_of(out.size(), zeroes_.size());
    for (std::size_t i = 0; i < n; ++i) {
      out[i] = zeroes_[i];
    }
    zeroes_.clear();
    return n;
  }

  /// The copies of `plan` and older ones are made: snapshots go to their prefixes.
  template <class IsAlive>
  void settle(PlanId plan, const IsAlive& is_alive) noexcept {
    const auto is_made = [plan](const Snapshot& s) { return s.told != 0 && s.told <= plan.value; };
    for (const Snapshot& s : snapshots_) {
      if (is_made(s) && is_alive(s.key)) {
        cache_.offer(s.block, s.key, 0);
      }
    }
    drop_snapshots_if(is_made, is_alive);
  }
  /// The copies of `plan` were perhaps not made.
  template <class IsAlive>
  void lose(PlanId plan, const IsAlive& is_alive) noexcept {
    drop_snapshots_if([plan](const Snapshot& s) { return s.told == plan.value; }, is_alive);
  }
  template <class IsAlive>
  void clear(const IsAlive& is_alive) noexcept {
    drop_snapshots_if([](const Snapshot&) { return true; }, is_alive);
    cache_.clear();
  }

  /// Verifies all counts. O(blocks + rows); allocates.
  [[nodiscard]] Status check() const noexcept {
    Buffer<std::int32_t> counts;
    if (Status s = counts.allocate(static_cast<std::size_t>(cache_.store().size()), "num_blocks");
        !s) {
      return s;
    }
    std::int64_t held = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const RowState& r = rows_.data()[i];
      if (r.has_state && r.resume_plus_one != 0) {
        return {Errc::InternalError, "row", static_cast<std::int64_t>(i), 0,
                "a row has a state and waits for it"};
      }
      held += r.has_state ? 1 : 0;
      if (r.has_state) {
        ++counts.data()[blocks_.data()[i].value];
      }
      if (r.resume_plus_one != 0) {
        ++counts.data()[r.resume_plus_one - 1];
      }
    }
    for (const Snapshot& s : snapshots_) {
      if (s.block != kNoBlock) {
        ++counts.data()[s.block.value];
      }
    }
    return held == held_ ? cache_.check(counts.span())
                         : Status{Errc::InternalError, "states", held_, held, "wrong counter"};
  }

 private:
  // All zero: an empty row.
  struct RowState {
    std::int64_t position;         // Of its state once all that is planned has run.
    std::int32_t resume_plus_one;  // Snapshot that it will begin with.
    bool has_state;
    bool is_void;
  };
  struct Snapshot {
    Row row{};  ///< Whose state it is; kNoRow once that has left.
    std::int64_t tokens = 0;
    PrefixKey key{};
    std::uint64_t written = 0;  ///< Plan that brings the state there.
    std::uint64_t told = 0;     ///< Plan that copies it; 0 = none yet.
    BlockId block{};
  };

  RowState& at(Row row) noexcept { return rows_.data()[row.value]; }
  [[nodiscard]] const RowState& at(Row row) const noexcept { return rows_.data()[row.value]; }
  // Available blocks that no row will ever need.
  [[nodiscard]] std::int64_t num_spare() const noexcept {
    return cache_.store().num_available() - (static_cast<std::int64_t>(rows_.size()) - held_);
  }
  BlockId take_state(Row row) noexcept {
    const BlockId block = cache_.take();
    blocks_.data()[row.value] = block;
    at(row).has_state = true;
    ++held_;
    return block;
  }
  template <class IsAlive>
  void drop_state(Row row, const IsAlive& is_alive) noexcept {
    RowState& r = at(row);
    cache_.drop_copies(row, is_alive);
    if (r.has_state) {
      const BlockId block = blocks_.data()[row.value];
      std::size_t kept = 0;
      for (const BlockId zero : zeroes_) {
        if (zero != block) {
          zeroes_[kept++] = zero;
        }
      }
      zeroes_.resize(kept);
      cache_.drop(block, is_alive);
      --held_;
    }
    if (r.resume_plus_one != 0) {
      cache_.drop(BlockId{r.resume_plus_one - 1}, is_alive);
    }
    r = {};
  }
  template <class Condition, class IsAlive>
  void drop_snapshots_if(const Condition& is_over, const IsAlive& is_alive) noexcept {
    std::size_t kept = 0;
    for (const Snapshot& s : snapshots_) {
      if (!is_over(s)) {
        snapshots_[kept++] = s;
      } else if (s.block != kNoBlock) {
        cache_.drop(s.block, is_alive);
      }
    }
    snapshots_.resize(kept);
  }

  CompanionCache cache_;
  Buffer<RowState> rows_;
  Buffer<BlockId> blocks_;  // [max_rows]: the state of a row that has one
  FixedVector<BlockId> zeroes_;
  FixedVector<Snapshot> snapshots_;
  std::int64_t interval_ = 1;
  std::int64_t held_ = 0;  // rows with a state
  std::int32_t first_block_size_ = 1;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
