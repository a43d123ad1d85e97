// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// OptionalPool: members that a KVCachePool may have beyond the concept.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// What pools have beyond the concept: for sequence-addressed hosts row operations, for tiers of
/// memory moves between them, for further groups what these need, for matches that end inside a
/// block the end of its copy; of each all or nothing.
template <class P>
struct OptionalPool {
  static constexpr bool kHasRowOps =
      requires(P& p, std::span<RowOp> ops, Row row, std::int64_t tokens) {
        { p.drain_row_ops(ops) } noexcept -> std::same_as<std::size_t>;
        { p.rewind(row, tokens) } noexcept -> std::same_as<void>;
        { p.must_leave(row) } noexcept -> std::same_as<bool>;
      };
  static constexpr bool kHasSwaps =
      requires(P& p, std::span<BlockSwap> out, std::span<const BlockSwap> in, PlanId plan) {
        { p.drain_swaps(out, plan) } noexcept -> std::same_as<std::size_t>;
        { p.lose_swaps(in) } noexcept -> std::same_as<void>;
      };
  static constexpr bool kHasGroups =
      requires(P& p, const P& cp, Row row, std::int64_t tokens, PlanId plan, std::size_t group,
               std::span<BlockCopy> copies, std::span<BlockId> blocks) {
        { p.plan_chunk(row, tokens, plan) } noexcept -> std::same_as<void>;
        { p.advance(row, tokens, tokens) } noexcept -> std::same_as<void>;
        { p.drain_copies(group, copies, plan) } noexcept -> std::same_as<std::size_t>;
        { p.drain_zeroes(group, blocks) } noexcept -> std::same_as<std::size_t>;
        { p.lose_plan(plan) } noexcept -> std::same_as<void>;
        { cp.chunk_length(tokens, tokens) } noexcept -> std::same_as<std::int64_t>;
        { cp.must_leave(row) } noexcept -> std::same_as<bool>;
      };
  static constexpr bool kHasCopies = requires(P& p, Row row) {
    { p.finish_copy(row) } noexcept -> std::same_as<void>;
  };
  static void finish_copy(P& pool, Row row) noexcept {
    if constexpr (kHasCopies) {
      pool.finish_copy(row);
    }
  }
  static void plan_chunk(P& pool, Row row, std::int64_t end, PlanId plan) noexcept {
    if constexpr (kHasGroups) {
      pool.plan_chunk(row, end, plan);
    }
  }
  static void advance(P& pool, Row row, std::int64_t processed, std::int64_t planned) noexcept {
    if constexpr (kHasGroups) {
      pool.advance(row, processed, planned);
    }
  }
  static std::size_t drain_copies(P& pool, std::size_t group, std::span<BlockCopy> copies,
                                  PlanId plan) noexcept {
    if constexpr (kHasGroups) {
      return pool.drain_copies(group, copies, plan);
    } else {
      return 0;
    }
  }
  static std::size_t drain_zeroes(P& pool, std::size_t group, std::span<BlockId> blocks) noexcept {
    if constexpr (kHasGroups) {
      return pool.drain_zeroes(group, blocks);
    } else {
      return 0;
    }
  }
  static void lose_plan(P& pool, PlanId plan) noexcept {
    if constexpr (kHasGroups) {
      pool.lose_plan(plan);
    }
  }
  [[nodiscard]] static std::int64_t chunk_length(const P& pool, std::int64_t first,
                                                 std::int64_t tokens) noexcept {
    if constexpr (kHasGroups) {
      return pool.chunk_length(first, tokens);
    } else {
      return tokens;
    }
  }
  [[nodiscard]] static bool tells_groups(const P& pool) noexcept {
    if constexpr (requires { pool.tells_groups(); }) {
      return pool.tells_groups();
    } else {
      return kHasGroups;
    }
  }
  static std::size_t drain_swaps(P& pool, std::span<BlockSwap> swaps, PlanId plan) noexcept {
    if constexpr (kHasSwaps) {
      return pool.drain_swaps(swaps, plan);
    } else {
      return 0;
    }
  }
  static void lose_swaps(P& pool, std::span<const BlockSwap> swaps) noexcept {
    if constexpr (kHasSwaps) {
      pool.lose_swaps(swaps);
    }
  }
  [[nodiscard]] static bool tells_swaps(const P& pool) noexcept {
    if constexpr (requires { pool.tells_swaps(); }) {
      return pool.tells_swaps();
    } else {
      return kHasSwaps;
    }
  }
  static std::size_t drain_row_ops(P& pool, std::span<RowOp> ops) noexcept {
    if constexpr (kHasRowOps) {
      return pool.drain_row_ops(ops);
    } else {
      return 0;
    }
  }
  static void rewind(P& pool, Row row, std::int64_t tokens) noexcept {
    if constexpr (kHasRowOps) {
      pool.rewind(row, tokens);
    }
  }
  [[nodiscard]] static bool must_leave(const P& pool, Row row) noexcept {
    if constexpr (kHasRowOps || kHasGroups) {
      return pool.must_leave(row);
    } else {
      return false;
    }
  }
  [[nodiscard]] static bool tells_row_ops(const P& pool) noexcept {
    if constexpr (requires { pool.tells_row_ops(); }) {
      return pool.tells_row_ops();
    } else {
      return kHasRowOps;
    }
  }
};

}  // namespace detail

}  // namespace dynbatch::inline DYNBATCH_ABI
