// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockLists: doubly linked lists through arrays; a block is in one of them or in none.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Every list has a sentinel behind the blocks' places. Nothing is checked.
class BlockLists {
 public:
  /// Storage for blocks [0, num_blocks); all lists are empty.
  [[nodiscard]] Status attach(std::int64_t num_blocks, std::int32_t num_lists) noexcept {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (num_blocks > kMost - num_lists) {
      return {Errc::InvalidConfig, "num_blocks", num_blocks, kMost - num_lists,
              "too many for this eviction order"};
    }
    const auto n = static_cast<std::size_t>(num_blocks) + static_cast<std::size_t>(num_lists);
    if (Status s = next_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    if (Status s = prev_.allocate(n, "num_blocks", PageUse::Dense); !s) {
      return s;
    }
    num_blocks_ = static_cast<std::int32_t>(num_blocks);
    num_lists_ = num_lists;
    for (std::int32_t list = 0; list < num_lists; ++list) {
      next(end_of(list)) = end_of(list);
      prev(end_of(list)) = end_of(list);
    }
    return kOk;
  }

  void push_back(std::int32_t list, BlockId block) noexcept {
    const std::int32_t end = end_of(list);
    const std::int32_t last = prev(end);
    next(block.value) = end;
    prev(block.value) = last;
    next(last) = block.value;
    prev(end) = block.value;
  }
  void erase(BlockId block) noexcept { unlink(block.value, block.value); }

  /// erase() of each block of a path; neighbours that were pushed last one first go at once.
  void erase(std::span<const BlockId> path) noexcept {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::int32_t last = path[i].value;
      while (i + 1 < path.size() && next(path[i + 1].value) == path[i].value) {
        ++i;
      }
      unlink(path[i].value, last);
    }
  }

  [[nodiscard]] bool is_empty(std::int32_t list) const noexcept {
    return next_.data()[end_of(list)] == end_of(list);
  }
  /// The first block of a list, or kNoBlock.
  [[nodiscard]] BlockId front(std::int32_t list) const noexcept {
    const std::int32_t block = next_.data()[end_of(list)];
    return block >= num_blocks_ ? kNoBlock : BlockId{block};
  }
  /// The first block of the first list at or behind `list` that has one, or kNoBlock.
  [[nodiscard]] BlockId front_from(std::int32_t list) const noexcept {
    for (; list < num_lists_; ++list) {
      if (const BlockId block = front(list); block != kNoBlock) {
        return block;
      }
    }
    return kNoBlock;
  }
  /// The next block of the list, or the first of the next list that has one, or kNoBlock.
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    const std::int32_t behind = next_.data()[block.value];
    return behind < num_blocks_ ? BlockId{behind} : front_from(behind - num_blocks_ + 1);
  }

 private:
  [[nodiscard]] std::int32_t end_of(std::int32_t list) const noexcept { return num_blocks_ + list; }
  void unlink(std::int32_t first, std::int32_t last) noexcept {
    const std::int32_t before = prev(first);
    const std::int32_t behind = next(last);
    next(before) = behind;
    prev(behind) = before;
  }
  std::int32_t& next(std::int32_t i) noexcept { return next_.data()[i]; }
  std::int32_t& prev(std::int32_t i) noexcept { return prev_.data()[i]; }

  Buffer<std::int32_t> next_;  // [num_blocks + num_lists]
  Buffer<std::int32_t> prev_;  // [num_blocks + num_lists]
  std::int32_t num_blocks_ = 0;
  std::int32_t num_lists_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
