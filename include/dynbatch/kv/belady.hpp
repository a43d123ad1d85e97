// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Belady: eviction order by the next use, for replays that know the future.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/block_lists.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// The block whose next use lies farthest ahead goes first, the tail of a path before its head. No
/// order can find more in a pool where one prompt after another takes the blocks it needs. The
/// caller says before each release when the blocks of the row are used next.
class Belady {
 public:
  struct Config {
    std::int64_t num_times = 1;  ///< Next uses lie in [0, num_times), in [1, 2^30].

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (num_times < 1 || num_times > std::int64_t{1} << 30) {
        return {Errc::InvalidConfig, "num_times", num_times, std::int64_t{1} << 30,
                "must be in [1, limit]"};
      }
      return kOk;
    }
  };

  Belady() noexcept : Belady(Config{}) {}
  explicit Belady(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    if (Status s = config_.validate(); !s) {
      return s;
    }
    // A binary tree over the times counts blocks, so that the farthest is found from its root.
    num_leaves_ = next_power_of_two(config_.num_times + 1);
    next_uses_ = {};
    Status s = counts_.allocate(static_cast<std::size_t>(2 * num_leaves_), "num_times");
    s = s ? times_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks") : s;
    return s ? lists_.attach(num_blocks, static_cast<std::int32_t>(num_leaves_)) : s;
  }

  /// When the blocks at each index of the row that is released next are used next; `num_times` for
  /// never, as for what lies beyond. The caller keeps them until the next call.
  void set_next_uses(std::span<const std::int64_t> times) noexcept { next_uses_ = times; }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    for (std::size_t i = path.size(); i-- > first;) {
      const std::int64_t time = i < next_uses_.size()
                                    ? clamp_to<std::int64_t>(next_uses_[i], 0, config_.num_times)
                                    : config_.num_times;
      times_.data()[path[i].value] = static_cast<std::int32_t>(time);
      count(path[i], 1);
      lists_.push_back(list_of(path[i]), path[i]);
    }
  }
  void erase(BlockId block) noexcept {
    count(block, -1);
    lists_.erase(block);
  }
  void erase(std::span<const BlockId> path) noexcept {
    for (const BlockId block : path) {
      erase(block);
    }
  }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    for (BlockId block = victim(); n < blocks.size() && block != kNoBlock; block = victim()) {
      erase(block);
      blocks[n++] = block;
    }
    return n;
  }

  /// O(log num_times).
  [[nodiscard]] BlockId victim() const noexcept {
    if (counts_.size() == 0 || counts_.data()[1] == 0) {
      return kNoBlock;
    }
    std::int64_t node = 1;
    while (node < num_leaves_) {
      node = 2 * node + (counts_.data()[2 * node + 1] != 0 ? 1 : 0);
    }
    return lists_.front(static_cast<std::int32_t>(2 * num_leaves_ - 1 - node));
  }
  [[nodiscard]] BlockId front() const noexcept { return victim(); }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return lists_.after(block); }

 private:
  // The farthest time has list 0.
  [[nodiscard]] std::int32_t list_of(BlockId block) const noexcept {
    return static_cast<std::int32_t>(num_leaves_) - 1 - times_.data()[block.value];
  }
  void count(BlockId block, std::int32_t change) noexcept {
    for (std::int64_t node = num_leaves_ + times_.data()[block.value]; node > 0; node /= 2) {
      counts_.data()[node] += change;
    }
  }

  Config config_;
  detail::BlockLists lists_;     // One a time.
  Buffer<std::int32_t> counts_;  // [2 * num_leaves], blocks below a node of the tree
  Buffer<std::int32_t> times_;   // [num_blocks]
  std::span<const std::int64_t> next_uses_;
  std::int64_t num_leaves_ = 0;
};

static_assert(EvictionOrder<Belady>);

}  // namespace dynbatch::inline DYNBATCH_ABI
