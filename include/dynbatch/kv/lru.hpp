// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lru: eviction order in which the block that was released longest ago goes first.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/kv/detail/block_chunks.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Least recently released first: a doubly linked list through arrays, with a sentinel at its end.
class Lru {
 public:
  /// Storage for blocks [0, num_blocks); empties the order.
  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    const auto n = static_cast<std::size_t>(num_blocks) + 1;
    if (Status s = links_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    if (Status s = prev_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    sentinel_ = static_cast<std::int32_t>(num_blocks);
    next(sentinel_) = sentinel_;
    prev(sentinel_) = sentinel_;
    return kOk;
  }

  /// Appends a block that isn't in the order as the newest.
  void insert(BlockId block) noexcept {
    const std::int32_t last = prev(sentinel_);
    next(block.value) = sentinel_;
    prev(block.value) = last;
    next(last) = block.value;
    prev(sentinel_) = block.value;
  }

  /// insert() of each block of a path from index `first` on, the last one first.
  void insert_backwards(std::span<const BlockId> path, std::size_t first = 0) noexcept {
    path = path.subspan(first);
    if (path.empty()) {
      return;
    }
    Link* const links = links_.data();
    std::int32_t* const previous = prev_.data();
    const BlockId* const blocks = path.data();
    std::int32_t last = prev(sentinel_);
    next(last) = path.back().value;
    for (std::size_t i = path.size(); i > 0;) {
      if (i > 2 * detail::kChunk && i < path.size()) {
        const BlockId* const first_of = blocks + i - detail::kChunk;
        if (const auto chunk = detail::chunk_at(first_of); chunk.step != 0) {
          detail::store_pairs(links + chunk.lowest, first_of - 1, first_of - kAhead, chunk.step);
          detail::store_chunk(previous + chunk.lowest, first_of + 1, chunk.step);
          last = first_of->value;
          i -= detail::kChunk;
          continue;
        }
      }
      // One by one; then it may be worth looking again.
      const std::size_t stop = i > detail::kChunk ? i - detail::kChunk : 0;
      const std::size_t end = i == path.size() ? i - 1 : stop;
      for (; i > end; --i) {
        const std::int32_t block = blocks[i - 1].value;
        links[block] = {i > 1 ? blocks[i - 2].value : sentinel_,
                        blocks[i > kAhead ? i - 1 - kAhead : 0].value};
        previous[block] = last;
        last = block;
      }
    }
    prev(sentinel_) = last;
  }

  /// Takes out a block that is in the order.
  void erase(BlockId block) noexcept { unlink(block.value, block.value); }

  /// erase() of each block of a path: what insert_backwards() put in at once goes at once.
  void erase(std::span<const BlockId> path) noexcept {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::int32_t last = path[i].value;
      while (i + 1 < path.size() && next(path[i + 1].value) == path[i].value) {
        ++i;
      }
      unlink(path[i].value, last);
    }
  }

  /// Takes out as many of the next victims as there are, up to the size of `blocks`.
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    std::int32_t first = next(sentinel_);
    for (; n < blocks.size() && first != sentinel_; ++n) {
      blocks[n] = BlockId{first};
      const Link link = links_.data()[first];
      __builtin_prefetch(&links_.data()[link.ahead]);
      first = link.next;
    }
    next(sentinel_) = first;
    prev(first) = sentinel_;
    return n;
  }

  /// The block to evict next.
  [[nodiscard]] BlockId victim() const noexcept {
    return links_.size() == 0 ? kNoBlock : after(BlockId{sentinel_});
  }

  [[nodiscard]] BlockId front() const noexcept { return victim(); }

  /// The block that goes after `block`, or kNoBlock.
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    const std::int32_t behind = links_.data()[block.value].next;
    return behind == sentinel_ ? kNoBlock : BlockId{behind};
  }

 private:
  static constexpr std::size_t kAhead = 16;
  // Written in pairs by store_pairs().
  struct Link {
    std::int32_t next;
    // Some places behind, or any block: to load early, as a list can't be read ahead otherwise.
    std::int32_t ahead;
  };
  void unlink(std::int32_t first, std::int32_t last) noexcept {
    const std::int32_t before = prev(first);
    const std::int32_t behind = next(last);
    next(before) = behind;
    prev(behind) = before;
  }
  std::int32_t& next(std::int32_t i) noexcept { return links_.data()[i].next; }
  std::int32_t& prev(std::int32_t i) noexcept { return prev_.data()[i]; }

  Buffer<Link> links_;
  Buffer<std::int32_t> prev_;  // Apart: take() doesn't read it.
  std::int32_t sentinel_ = 0;
};

static_assert(EvictionOrder<Lru>);

}  // namespace dynbatch::inline DYNBATCH_ABI
