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

/// Least recently released first: a doubly linked list through two arrays, with a sentinel at its
/// end. Apart, so that take() reads one of them only.
class Lru {
 public:
  /// Storage for blocks [0, num_blocks); empties the order.
  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    const auto n = static_cast<std::size_t>(num_blocks) + 1;
    if (Status s = next_.allocate(n, "num_blocks"); !s) {
      return s;
    }
    if (Status s = prev_.allocate(n, "num_blocks"); !s) {
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

  /// Takes out a block that is in the order.
  void erase(BlockId block) noexcept {
    const std::int32_t before = prev(block.value);
    const std::int32_t behind = next(block.value);
    next(before) = behind;
    prev(behind) = before;
  }

  /// Takes out as many of the next victims as there are, up to the size of `blocks`.
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    std::int32_t first = next(sentinel_);
    for (; n < blocks.size() && first != sentinel_; ++n) {
      blocks[n] = BlockId{first};
      first = next(first);
    }
    next(sentinel_) = first;
    prev(first) = sentinel_;
    return n;
  }

  /// The block to evict next.
  [[nodiscard]] BlockId victim() const noexcept {
    return next_.size() == 0 ? kNoBlock : after(BlockId{sentinel_});
  }

  /// The block that goes after `block`, or kNoBlock; for look-ahead and checks.
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    const std::int32_t behind = next_.data()[block.value];
    return behind == sentinel_ ? kNoBlock : BlockId{behind};
  }

 private:
  std::int32_t& next(std::int32_t i) noexcept { return next_.data()[i]; }
  std::int32_t& prev(std::int32_t i) noexcept { return prev_.data()[i]; }

  Buffer<std::int32_t> next_;
  Buffer<std::int32_t> prev_;
  std::int32_t sentinel_ = 0;
};

static_assert(EvictionOrder<Lru>);

}  // namespace dynbatch::inline DYNBATCH_ABI
