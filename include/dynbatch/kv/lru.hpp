// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lru: eviction order in which the block that was released longest ago goes first.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Order of the blocks that hold reusable content and are referenced by nobody. Each operation is
/// O(1), take() O(blocks taken), none allocates. `victim` and `after` are kNoBlock at the end.
template <class E>
concept EvictionOrder =
    requires(E& e, const E& ce, std::int64_t num_blocks, BlockId block, std::span<BlockId> blocks) {
      { e.attach(num_blocks) } noexcept -> std::same_as<Status>;
      { e.insert(block) } noexcept -> std::same_as<void>;
      { e.erase(block) } noexcept -> std::same_as<void>;
      { e.take(blocks) } noexcept -> std::same_as<std::size_t>;
      { ce.victim() } noexcept -> std::same_as<BlockId>;
      { ce.after(block) } noexcept -> std::same_as<BlockId>;
    };

/// Least recently released first: a doubly linked list through an array, with a sentinel at its
/// end.
class Lru {
 public:
  /// Storage for blocks [0, num_blocks); empties the order.
  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    if (Status s = links_.allocate(static_cast<std::size_t>(num_blocks) + 1, "num_blocks"); !s) {
      return s;
    }
    sentinel_ = static_cast<std::int32_t>(num_blocks);
    at(sentinel_) = {sentinel_, sentinel_};
    return kOk;
  }

  /// Appends a block that isn't in the order as the newest.
  void insert(BlockId block) noexcept {
    const std::int32_t last = at(sentinel_).prev;
    at(block.value) = {last, sentinel_};
    at(last).next = block.value;
    at(sentinel_).prev = block.value;
  }

  /// Takes out a block that is in the order.
  void erase(BlockId block) noexcept {
    const Link link = at(block.value);
    at(link.prev).next = link.next;
    at(link.next).prev = link.prev;
  }

  /// Takes out as many of the next victims as there are, up to the size of `blocks`.
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    std::int32_t next = at(sentinel_).next;
    for (; n < blocks.size() && next != sentinel_; ++n) {
      blocks[n] = BlockId{next};
      next = at(next).next;
    }
    at(sentinel_).next = next;
    at(next).prev = sentinel_;
    return n;
  }

  /// The block to evict next.
  [[nodiscard]] BlockId victim() const noexcept {
    if (links_.size() == 0) {
      return kNoBlock;
    }
    const std::int32_t first = links_.data()[sentinel_].next;
    return first == sentinel_ ? kNoBlock : BlockId{first};
  }

  /// The block that goes after `block`, or kNoBlock; for look-ahead and checks.
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    const std::int32_t next = links_.data()[block.value].next;
    return next == sentinel_ ? kNoBlock : BlockId{next};
  }

 private:
  struct Link {
    std::int32_t prev;
    std::int32_t next;
  };
  Link& at(std::int32_t i) noexcept { return links_.data()[i]; }

  Buffer<Link> links_;
  std::int32_t sentinel_ = 0;
};

static_assert(EvictionOrder<Lru>);

}  // namespace dynbatch::inline DYNBATCH_ABI
