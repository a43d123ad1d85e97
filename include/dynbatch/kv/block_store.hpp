// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockStore: physical blocks, their reference counts and the order in which they are handed out.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/kv/detail/block_chunks.hpp>
#include <dynbatch/kv/eviction_order.hpp>
#include <dynbatch/kv/lru.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Every block is free, cached (keeps content, referenced by nobody) or referenced; each counts
/// once. Handed out first: blocks freed without content, newest first; then blocks never used, by
/// id; then cached ones in the order of `Eviction`. Knows nothing of what a block holds: whoever
/// evicts forgets the content. One thread; no allocation after attach().
template <class Eviction = Lru>
class BlockStore {
 public:
  BlockStore() noexcept = default;
  /// Keeps the order with its configuration; attach() empties it.
  explicit BlockStore(Eviction eviction) noexcept : eviction_(std::move(eviction)) {}

  /// Allocates for `num_blocks` blocks, all free. Memory of blocks never used isn't touched.
  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    size_ = 0;
    first_unused_ = 0;
    num_stacked_ = 0;
    num_cached_ = 0;
    num_referenced_ = 0;
    num_retiring_ = 0;
    free_head_ = -1;
    const auto n = static_cast<std::size_t>(num_blocks);
    if (Status s = references_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    if (Status s = free_next_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    if (Status s = eviction_.attach(num_blocks); !s) {
      return s;
    }
    size_ = num_blocks;
    return kOk;
  }

  /// A free block with one reference, or kNoBlock.
  [[nodiscard]] BlockId allocate() noexcept {
    BlockId block{free_head_};
    if (num_stacked_ != 0) {
      free_head_ = free_next_.data()[block.value];
      --num_stacked_;
    } else if (first_unused_ < size_) {
      block = BlockId{static_cast<std::int32_t>(first_unused_++)};
    } else {
      return kNoBlock;
    }
    count(block) = 1;
    ++num_referenced_;
    return block;
  }

  /// Takes the cached blocks that are next in eviction order, as many as there are up to the size
  /// of `blocks`, and gives each one reference. The caller forgets their content.
  std::size_t evict(std::span<BlockId> blocks) noexcept {
    const std::size_t n = eviction_.take(blocks);
    for (std::size_t i = 0; i < n; ++i) {
      count(blocks[i]) = 1;
    }
    num_cached_ -= static_cast<std::int64_t>(n);
    num_referenced_ += static_cast<std::int64_t>(n);
    return n;
  }

  /// One more reference to a referenced block, or the first to a cached one (`is_cached`).
  /// InvalidArgument, and nothing changes, for an unknown block or a free one.
  [[nodiscard]] Status share(BlockId block, bool is_cached = false) noexcept {
    if (!is_known(block)) {
      return unknown(block);
    }
    if (count(block) == 0 && !is_cached) {
      return {Errc::InvalidArgument, "block", block.value, 0, "a free block can't be shared"};
    }
    add_reference(block);
    return kOk;
  }

  /// Drops one reference; the last one makes the block cached (`keep`) or free. InvalidArgument,
  /// and nothing changes, for an unknown block or one without references.
  [[nodiscard]] Status release(BlockId block, bool keep = false) noexcept {
    if (!is_known(block)) {
      return unknown(block);
    }
    if (count(block) == 0) {
      return {Errc::InvalidArgument, "block", block.value, 0, "the block has no reference"};
    }
    drop_reference(block, keep);
    return kOk;
  }

  /// share() without checks, for blocks known to be cached or referenced.
  void add_reference(BlockId block) noexcept {
    note_hits({&block, 1});
    if (count(block)++ == 0) {
      eviction_.erase(std::span<const BlockId>(&block, 1));
      --num_cached_;
      ++num_referenced_;
    }
  }

  /// add_reference() to each block of a path.
  void add_references(std::span<const BlockId> path) noexcept {
    note_hits(path);
    for (std::size_t i = 0; i < path.size();) {
      const std::size_t first = i;
      while (i < path.size() && count(path[i])++ == 0) {
        ++i;
      }
      const auto cached = static_cast<std::int64_t>(i - first);
      eviction_.erase(path.subspan(first, i - first));
      num_cached_ -= cached;
      num_referenced_ += cached;
      i += i < path.size() ? 1U : 0U;  // That one was referenced before.
    }
  }

  /// True if the blocks of a chunk are usable and have one reference each.
  [[nodiscard]] bool are_held_once(detail::BlockChunk chunk) const noexcept {
    return chunk.lowest + static_cast<std::int64_t>(detail::kChunk) <= size_ &&
           detail::are_one(&references_.data()[chunk.lowest]);
  }

  /// Drops the only reference of usable blocks, which keep_backwards() has to take in then.
  void drop_only_reference(detail::BlockChunk chunk) noexcept {
    std::memset(&references_.data()[chunk.lowest], 0, detail::kChunk * sizeof(std::int32_t));
  }
  void drop_only_reference(BlockId block) noexcept { count(block) = 0; }

  /// Makes the blocks of a row's path from index `first` on, which had their only reference
  /// dropped, cached, the last one first.
  void keep_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    eviction_.insert_backwards(path, first);
    num_cached_ += static_cast<std::int64_t>(path.size() - first);
    num_referenced_ -= static_cast<std::int64_t>(path.size() - first);
  }

  /// release() without checks. True if that was the last reference.
  bool drop_reference(BlockId block, bool keep) noexcept {
    if (--count(block) != 0) {
      return false;
    }
    --num_referenced_;
    if (block.value >= size_) [[unlikely]] {
      --num_retiring_;
    } else if (keep) {
      eviction_.insert_backwards(std::span<const BlockId>(&block, 1), 0);
      ++num_cached_;
    } else {
      push_free(block);
    }
    return true;
  }

  /// A cached block becomes free; its content is forgotten by the caller.
  void forget(BlockId block) noexcept {
    eviction_.erase(block);
    --num_cached_;
    stack(block);
  }

  /// Sets the number of usable blocks, in [1, blocks of attach()]. Ids at and beyond it aren't
  /// handed out any more; referenced ones retire on their release. The caller has made all cached
  /// blocks with such ids free before. O(blocks).
  void resize(std::int64_t size) noexcept {
    const std::int64_t old_size = size_;
    size_ = size;
    for (std::int64_t id = min_of(size, old_size); id < max_of(size, old_size); ++id) {
      const BlockId block{static_cast<std::int32_t>(id)};
      if (count(block) != 0) {
        num_retiring_ += size < old_size ? 1 : -1;
      } else if (size > old_size && id < first_unused_) {
        stack(block);
      }
    }
    if (size < old_size) {
      drop_retired();
    }
  }

  /// Starts to load what is known of a block.
  void prefetch(BlockId block) const noexcept {
    __builtin_prefetch(&references_.data()[block.value], 1);
  }

  [[nodiscard]] bool is_known(BlockId block) const noexcept {
    return block.value >= 0 && static_cast<std::size_t>(block.value) < references_.size();
  }
  [[nodiscard]] std::int32_t references(BlockId block) const noexcept {
    return references_.data()[block.value];
  }
  /// Usable blocks, and those beyond a smaller size that are still referenced.
  [[nodiscard]] std::int64_t total() const noexcept { return size_ + num_retiring_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] std::int64_t num_free() const noexcept {
    return num_stacked_ + max_of<std::int64_t>(size_ - first_unused_, 0);
  }
  [[nodiscard]] std::int64_t num_cached() const noexcept { return num_cached_; }
  [[nodiscard]] std::int64_t num_referenced() const noexcept { return num_referenced_; }
  [[nodiscard]] std::int64_t num_available() const noexcept { return num_free() + num_cached_; }
  /// Blocks at and beyond this id were never handed out.
  [[nodiscard]] std::int64_t first_unused() const noexcept { return first_unused_; }
  [[nodiscard]] const Eviction& eviction() const noexcept { return eviction_; }
  [[nodiscard]] Eviction& eviction() noexcept { return eviction_; }
  /// Tells the order the time, if it wants to know.
  void advance(TimeNs now) noexcept {
    if constexpr (requires { eviction_.advance(now); }) {
      eviction_.advance(now);
    }
  }

  /// Verifies counts and lists. O(blocks ever used).
  [[nodiscard]] Status check() const noexcept {
    std::int64_t referenced = 0;
    std::int64_t retiring = 0;
    for (std::int64_t id = 0; id < first_unused_; ++id) {
      const std::int32_t n = references_.data()[id];
      if (n < 0) {
        return {Errc::InternalError, "references", n, id, "a reference count is negative"};
      }
      referenced += n > 0 ? 1 : 0;
      retiring += n > 0 && id >= size_ ? 1 : 0;
    }
    if (referenced != num_referenced_ || retiring != num_retiring_) {
      return {Errc::InternalError, "referenced", num_referenced_, referenced, "wrong counter"};
    }
    std::int64_t stacked = 0;
    for (std::int32_t b = free_head_; stacked < num_stacked_; b = free_next_.data()[b]) {
      if (b < 0 || b >= size_ || references_.data()[b] != 0) {
        return {Errc::InternalError, "free", b, stacked, "the free list holds a wrong block"};
      }
      ++stacked;
    }
    std::int64_t cached = 0;
    for (BlockId b = eviction_.front(); b != kNoBlock && cached <= num_cached_;
         b = eviction_.after(b)) {
      if (b.value < 0 || b.value >= size_ || references(b) != 0) {
        return {Errc::InternalError, "cached", b.value, cached, "wrong block in eviction order"};
      }
      ++cached;
    }
    if (cached != num_cached_ || num_free() + num_cached_ + num_referenced_ != total()) {
      return {Errc::InternalError, "cached", num_cached_, cached, "wrong counter"};
    }
    return kOk;
  }

 private:
  std::int32_t& count(BlockId block) noexcept { return references_.data()[block.value]; }
  void note_hits(std::span<const BlockId> path) noexcept {
    if constexpr (requires { eviction_.note_hit(path); }) {
      eviction_.note_hit(path);
    }
  }
  // A referenced block becomes free.
  void push_free(BlockId block) noexcept {
    if constexpr (requires { eviction_.reset(block); }) {
      eviction_.reset(block);
    }
    stack(block);
  }
  void stack(BlockId block) noexcept {
    free_next_.data()[block.value] = free_head_;
    free_head_ = block.value;
    ++num_stacked_;
  }
  void drop_retired() noexcept {
    std::int32_t* link = &free_head_;
    std::int32_t b = free_head_;
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < num_stacked_; ++i) {
      const std::int32_t next = free_next_.data()[b];
      if (b < size_) {
        *link = b;
        link = &free_next_.data()[b];
        ++kept;
      }
      b = next;
    }
    *link = -1;
    num_stacked_ = kept;
  }
  [[nodiscard]] Status unknown(BlockId block) const noexcept {
    return {Errc::InvalidArgument, "block", block.value,
            static_cast<std::int64_t>(references_.size()), "no such block"};
  }

  Buffer<std::int32_t> references_;
  Buffer<std::int32_t> free_next_;
  Eviction eviction_;
  std::int64_t size_ = 0;
  std::int64_t first_unused_ = 0;
  std::int64_t num_stacked_ = 0;
  std::int64_t num_cached_ = 0;
  std::int64_t num_referenced_ = 0;
  std::int64_t num_retiring_ = 0;
  std::int32_t free_head_ = -1;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
