// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// EvictionOrder: in which order cached blocks are given up. Contract:
/// docs/policies/kv_cache_pool.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// What a block is worth, and how long after each use, for orders that care.
struct Retention {
  std::int32_t priority = 35;        ///< In [0, 100]; lower goes first.
  DurationNs duration = kUnbounded;  ///< At least 1 ns.

  [[nodiscard]] constexpr Status validate() const noexcept {
    if (priority < 0 || priority > 100) {
      return {Errc::InvalidArgument, "priority", priority, 100, "must be in [0, limit]"};
    }
    if (duration.ns < 1) {
      return {Errc::InvalidArgument, "duration", duration.ns, 1, "must be at least 1 ns"};
    }
    return kOk;
  }
};

/// Order of the blocks that hold reusable content and are referenced by nobody. Each operation is
/// O(blocks it is about), none allocates after attach(). A path is a stretch of one row's table:
/// each block holds what follows the one before. What lies behind a block is given up before the
/// block itself, provided that it was released first. Optional members, used where they exist:
/// - `note_hit(path)`: a row has found these leading blocks, whether they are in the order or not;
/// - `retain(blocks, retention)`: what blocks are worth from their next release on;
/// - `reset(block)`: the content of a block that isn't in the order is gone;
/// - `advance(now)`: the time, which never steps back.
template <class E>
concept EvictionOrder =
    std::movable<E> &&
    requires(E& e, const E& ce, std::int64_t num_blocks, BlockId block, std::span<BlockId> blocks,
             std::span<const BlockId> path, std::size_t first) {
      // Storage for blocks [0, num_blocks); empties the order.
      { e.attach(num_blocks) } noexcept -> std::same_as<Status>;
      // Enters the blocks of a path, which starts at the row's first block, from the last one back
      // to that at index `first`. Those before are still used. None is in the order.
      { e.insert_backwards(path, first) } noexcept -> std::same_as<void>;
      // Takes out a block whose content is forgotten.
      { e.erase(block) } noexcept -> std::same_as<void>;
      // Takes out the blocks of a path because a row uses them again.
      { e.erase(path) } noexcept -> std::same_as<void>;
      // Takes out the next victims, up to the size of `blocks`; their content is forgotten.
      { e.take(blocks) } noexcept -> std::same_as<std::size_t>;
      // What take() would yield first, or kNoBlock.
      { ce.victim() } noexcept -> std::same_as<BlockId>;
      // front(), after(front()) and so on to kNoBlock visit every block in the order once; starting
      // at victim() they guess what follows it.
      { ce.front() } noexcept -> std::same_as<BlockId>;
      { ce.after(block) } noexcept -> std::same_as<BlockId>;
    };

}  // namespace dynbatch::inline DYNBATCH_ABI
