// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// EvictionOrder: in which order cached blocks are given up. Contract:
/// docs/policies/kv_cache_pool.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Order of the blocks that hold reusable content and are referenced by nobody. Each operation is
/// O(blocks it is about), none allocates after attach(). A path is a stretch of one row's table,
/// each block holds what follows the one before. A model gives up what lies behind a block before
/// the block itself, if that was released first. Optional members, which
/// a pool calls if they exist:
/// - `note_hit(path)`: a row has found these leading blocks, whether they are in the order or not;
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
