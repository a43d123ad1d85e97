// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// WindowTables: the block tables of a group whose layers see the last `window` positions only.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/detail/companion_cache.hpp>
#include <dynbatch/model/kv_group.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// A row holds the blocks from the window of its next position to the last planned one; entries
/// left of them are null. `Keys` gives the key of a row's (or a match's) block of the first group
/// by its index, or none; `IsAlive` says whether a key still is a prefix.
class WindowTables {
 public:
  [[nodiscard]] Status attach(const GroupSpec& spec, const PoolAttachment& attachment,
                              std::int64_t num_blocks, std::int32_t first_block_size,
                              std::int64_t num_prefixes) noexcept {
    spec_ = spec;
    first_block_size_ = first_block_size;
    stride_ = static_cast<std::size_t>(ceil_div(attachment.max_context_tokens, spec.block_size));
    const auto rows = static_cast<std::size_t>(attachment.max_rows);
    const auto plans = static_cast<std::size_t>(
        attachment.in_order ? 1 : 1 + max_of(attachment.max_plans_in_flight, 1));
    Status s = rows_.allocate(rows, "max_rows");
    s = s ? tables_.allocate(rows * stride_, "max_context_tokens") : s;
    s = s ? runs_.allocate(stride_ + 1, "max_context_tokens") : s;
    return s ? cache_.attach(num_blocks, num_prefixes,
                             max_of(first_block_size / spec.block_size, 1), rows * plans)
             : s;
  }

  /// Leading positions that a sequence with so many processed ones needs no more.
  [[nodiscard]] std::int64_t skipped(std::int64_t processed) const noexcept {
    return max_of<std::int64_t>(processed - spec_.window + 1, 0);
  }

  [[nodiscard]] std::span<const BlockId> table(Row row) const noexcept {
    return {tables_.data() + static_cast<std::size_t>(row.value) * stride_,
            static_cast<std::size_t>(at(row).length)};
  }
  [[nodiscard]] const CompanionCache& cache() const noexcept { return cache_; }

  /// Blocks that the row lacks for `tokens` positions.
  [[nodiscard]] std::int64_t lacking(Row row, std::int64_t tokens) const noexcept {
    return max_of<std::int64_t>(ceil_div(tokens, spec_.block_size) - at(row).length, 0);
  }
  [[nodiscard]] bool can_extend(Row row, std::int64_t tokens) const noexcept {
    return lacking(row, tokens) <= cache_.store().num_available();
  }
  void extend(Row row, std::int64_t tokens) noexcept {
    RowState& r = at(row);
    for (std::int64_t n = lacking(row, tokens); n > 0; --n) {
      table_of(row)[r.length++] = cache_.take();
    }
  }

  /// For a path of `num_blocks` blocks of the first group: what of it this group has too.
  template <class Keys>
  void measure(std::int64_t num_blocks, const Keys& keys) noexcept {
    const std::int64_t end = min_of(num_blocks * first_block_size_ / spec_.block_size,
                                    static_cast<std::int64_t>(stride_));
    for (std::int64_t j = 0; j < end; ++j) {
      runs_.data()[j + 1] = found(j, keys) != kNoBlock ? runs_.data()[j] + 1 : 0;
    }
  }
  /// True if the latest measured path can be taken up at `tokens`.
  [[nodiscard]] bool serves(std::int64_t tokens) const noexcept {
    const std::int64_t end = tokens / spec_.block_size;
    return tokens % spec_.block_size == 0 && end <= static_cast<std::int64_t>(stride_) &&
           end - min_of(skipped(tokens) / spec_.block_size, end) <= runs_.data()[end];
  }
  /// An empty row takes that path up.
  template <class Keys>
  void acquire(Row row, std::int64_t tokens, const Keys& keys) noexcept {
    RowState& r = at(row);
    BlockId* table = table_of(row);
    const auto end = static_cast<std::int32_t>(tokens / spec_.block_size);
    const auto first =
        static_cast<std::int32_t>(min_of<std::int64_t>(skipped(tokens) / spec_.block_size, end));
    for (std::int32_t j = 0; j < first; ++j) {
      table[j] = kNoBlock;
    }
    for (std::int32_t j = first; j < end; ++j) {
      table[j] = found(j, keys);
      cache_.add_reference(table[j]);
    }
    r = {first, end, end, false, tokens};
  }

  /// Complete blocks of known, processed content become findable.
  template <class Keys>
  void offer(Row row, const Keys& keys) noexcept {
    RowState& r = at(row);
    for (; r.offered < r.length && (std::int64_t{r.offered} + 1) * spec_.block_size <= r.processed;
         ++r.offered) {
      if (r.offered < r.first) {
        continue;
      }
      const BlockId block = table_of(row)[r.offered];
      const PrefixKey key = keys(key_index(r.offered));
      if (key.id == 0) {
        return;  // its prefix is not published yet, or never will be
      }
      if (!cache_.is_attached(block)) {
        cache_.offer(block, key, sub_of(r.offered));
      }
    }
  }

  /// `processed` positions are written for certain, `planned` once all plans have run: blocks left
  /// of the window become null, blocks beyond are dropped.
  template <class Keys, class IsAlive>
  void advance(Row row, std::int64_t processed, std::int64_t planned, const Keys& keys,
               const IsAlive& is_alive) noexcept {
    RowState& r = at(row);
    r.processed = max_of(r.processed, processed);
    offer(row, keys);
    BlockId* table = table_of(row);
    const std::int64_t end =
        min_of<std::int64_t>(skipped(r.processed) / spec_.block_size, r.length);
    for (; r.first < end; ++r.first) {
      cache_.drop(table[r.first], is_alive);
      table[r.first] = kNoBlock;
    }
    drop_behind(row, ceil_div(max_of(planned, processed), spec_.block_size), is_alive);
  }

  /// Positions from `tokens` on are forgotten.
  template <class IsAlive>
  void trim(Row row, std::int64_t tokens, const IsAlive& is_alive) noexcept {
    RowState& r = at(row);
    const auto end = static_cast<std::int32_t>(
        min_of<std::int64_t>(ceil_div(tokens, spec_.block_size), r.length));
    drop_behind(row, end, is_alive);
    if (tokens == 0) {
      r = {};
      return;
    }
    r.processed = min_of(r.processed, tokens);
    r.is_short = r.is_short || skipped(tokens) / spec_.block_size < r.first;
    const std::int64_t whole = tokens / spec_.block_size;
    if (whole < r.length) {
      r.offered = static_cast<std::int32_t>(min_of<std::int64_t>(r.offered, whole));
      const BlockId cut = table_of(row)[whole];
      if (whole >= r.first && cache_.store().references(cut) == 1) {
        cache_.detach(cut);  // the row is about to write other content to it
      }
    }
  }
  /// The window that the row would need was given up before: it has to start over.
  [[nodiscard]] bool is_short(Row row) const noexcept { return at(row).is_short; }

  [[nodiscard]] bool can_fork(Row from, std::int64_t tokens) const noexcept {
    const RowState& r = at(from);
    const bool has_rest = tokens % spec_.block_size != 0;
    return !r.is_short && ceil_div(tokens, spec_.block_size) <= r.length &&
           (tokens == 0 || skipped(tokens) / spec_.block_size >= r.first) &&
           (!has_rest || (cache_.store().num_available() > 0 && cache_.has_copy_room()));
  }
  void fork(Row from, Row to, std::int64_t tokens) noexcept {
    const RowState parent = at(from);
    const BlockId* source = table_of(from);
    BlockId* target = table_of(to);
    const auto whole = static_cast<std::int32_t>(tokens / spec_.block_size);
    const auto rest = static_cast<std::int32_t>(tokens % spec_.block_size);
    const auto first =
        static_cast<std::int32_t>(min_of<std::int64_t>(skipped(tokens) / spec_.block_size, whole));
    for (std::int32_t j = 0; j < whole; ++j) {
      target[j] = j < first ? kNoBlock : source[j];
      if (j >= first) {
        cache_.add_reference(target[j]);
      }
    }
    at(to) = {first, whole, min_of(parent.offered, whole), false, min_of(parent.processed, tokens)};
    if (rest != 0) {
      target[whole] = cache_.take();
      ++at(to).length;
      cache_.add_copy({source[whole], target[whole], rest}, to);
    }
  }

  template <class IsAlive>
  void release(Row row, const IsAlive& is_alive) noexcept {
    cache_.drop_copies(row, is_alive);
    drop_behind(row, 0, is_alive);
    at(row) = {};
  }

  [[nodiscard]] CompanionCache& cache() noexcept { return cache_; }

  /// Verifies all counts. O(blocks + tables); allocates.
  [[nodiscard]] Status check() const noexcept {
    Buffer<std::int32_t> counts;
    if (Status s = counts.allocate(static_cast<std::size_t>(cache_.store().size()), "num_blocks");
        !s) {
      return s;
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const RowState& r = rows_.data()[i];
      if (r.first < 0 || r.first > r.length || r.offered > r.length) {
        return {Errc::InternalError, "row", static_cast<std::int64_t>(i), r.first,
                "a window row's counters contradict each other"};
      }
      for (std::int32_t j = 0; j < r.length; ++j) {
        const BlockId block = tables_.data()[i * stride_ + static_cast<std::size_t>(j)];
        if ((block == kNoBlock) != (j < r.first) || block.value >= cache_.store().size()) {
          return {Errc::InternalError, "row", static_cast<std::int64_t>(i), j,
                  "a window table has a wrong entry"};
        }
        if (block != kNoBlock) {
          ++counts.data()[block.value];
        }
      }
    }
    return cache_.check(counts.span());
  }

 private:
  // All zero: an empty row.
  struct RowState {
    std::int32_t first;    // Leading entries that are null.
    std::int32_t length;   // Entries.
    std::int32_t offered;  // Leading entries that need not be offered any more.
    bool is_short;
    std::int64_t processed;
  };

  RowState& at(Row row) noexcept { return rows_.data()[row.value]; }
  [[nodiscard]] const RowState& at(Row row) const noexcept { return rows_.data()[row.value]; }
  BlockId* table_of(Row row) noexcept {
    return tables_.data() + static_cast<std::size_t>(row.value) * stride_;
  }
  // The block of the first group with which block `j` is complete, and the place among those that
  // share it.
  [[nodiscard]] std::int64_t key_index(std::int64_t j) const noexcept {
    return ((j + 1) * spec_.block_size - 1) / first_block_size_;
  }
  [[nodiscard]] std::int32_t sub_of(std::int64_t j) const noexcept {
    const std::int32_t per_prefix = max_of(first_block_size_ / spec_.block_size, 1);
    return static_cast<std::int32_t>(j % per_prefix);
  }
  template <class Keys>
  [[nodiscard]] BlockId found(std::int64_t j, const Keys& keys) const noexcept {
    return cache_.find(keys(key_index(j)), sub_of(j));
  }
  // The tail goes first, so that it is forgotten before the head.
  template <class IsAlive>
  void drop_behind(Row row, std::int64_t end, const IsAlive& is_alive) noexcept {
    RowState& r = at(row);
    for (; r.length > end; --r.length) {
      if (r.length > r.first) {
        cache_.drop(table_of(row)[r.length - 1], is_alive);
      }
    }
    r.first = min_of(r.first, r.length);
    r.offered = min_of(r.offered, r.length);
  }

  GroupSpec spec_{};
  CompanionCache cache_;
  Buffer<RowState> rows_;
  Buffer<BlockId> tables_;     // [max_rows][stride]
  Buffer<std::int32_t> runs_;  // [stride + 1]: how many blocks before it are there without a gap
  std::size_t stride_ = 0;
  std::int32_t first_block_size_ = 1;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
