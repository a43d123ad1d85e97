// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preallocated buffers of the plans in flight.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/scheduler/detail/records.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// What settling a chunk needs beyond the chunk itself.
struct ChunkUndo {
  std::uint32_t epoch = 0;         ///< Of its row when planned.
  std::int32_t blocks_before = 0;  ///< Blocks of its table that older plans have told the host.
  RowPhase phase_before = RowPhase::Prefill;
  bool is_plain = false;  ///< A decode whose token neither ends the sequence nor is looked at.
  bool is_beam = false;   ///< A decode of a beam; the request's other beams stand beside it.
};

/// A block that a fork has to copy before anything is written to it, and the sequence it is for.
struct ForkCopy {
  BlockCopy copy{};
  Row source{};
  Row row{};
  std::uint32_t residence =
      0;                    ///< Of the sequence in `row`: a later one knows nothing of the copy.
  std::int32_t tokens = 0;  ///< Positions shared; for hosts without blocks.
};

/// A sequence whose plan loads the blocks from `first_token` on from another tier.
struct TierLoad {
  Row row{};
  std::uint32_t residence = 0;
  std::int64_t first_token = 0;
};

/// A sequence whose plan copies the front of its block at position `first_token` from another one.
struct PrefixCopy {
  Row row{};
  std::uint32_t residence = 0;
  std::int64_t first_token = 0;
  BlockCopy copy{};
};

/// What one further group needs in a plan.
struct GroupRecord {
  Buffer<TokenSlot> token_slots;   // [max_tokens]
  FixedVector<BlockDelta> deltas;  // a table's blocks and one for those before them, a row
  FixedVector<BlockCopy> copies;   // what a row begins with, and a snapshot of what it had
  FixedVector<BlockId> zeroes;     // [max_sequences]

  Status allocate(std::int32_t max_rows, std::int64_t max_tokens,
                  std::int64_t max_blocks) noexcept {
    const auto r = static_cast<std::size_t>(max_rows);
    Status s = token_slots.allocate(static_cast<std::size_t>(max_tokens), "max_tokens");
    s = s ? deltas.allocate(r * static_cast<std::size_t>(max_blocks + 1), "max_context_tokens") : s;
    s = s ? copies.allocate(2 * r, "max_sequences") : s;
    return s ? zeroes.allocate(r, "max_sequences") : s;
  }
  void clear() noexcept {
    deltas.clear();
    copies.clear();
    zeroes.clear();
  }
};

/// One plan and the memory its spans point to.
struct PlanRecord {
  StepPlan plan{};
  std::size_t num_chunks = 0;
  std::size_t num_tokens = 0;
  std::int32_t num_samples = 0;
  Buffer<Chunk> chunks;                  // [max_sequences]
  Buffer<ChunkUndo> undo;                // [max_sequences]
  Buffer<Token> tokens;                  // [max_tokens]
  Buffer<std::int32_t> positions;        // [max_tokens]
  Buffer<TokenSlot> token_slots;         // [max_tokens]
  Buffer<std::int32_t> query_start;      // [max_sequences + 1]
  Buffer<std::int32_t> rows;             // [max_sequences]
  Buffer<std::int32_t> context_lengths;  // [max_sequences]
  FixedVector<MicroBatch> micro_batches;
  FixedVector<BlockDelta> deltas;
  FixedVector<ForkCopy> forks;
  FixedVector<BlockCopy> copies;
  FixedVector<RowOp> row_ops;
  FixedVector<BlockSwap> swaps;
  FixedVector<TierLoad> loads;
  FixedVector<PrefixCopy> prefix_copies;
  FixedVector<ExpertMove> moves;
  GroupPlan groups[kMaxGroups]{};
  GroupRecord further[kMaxGroups - 1];  // groups beside the first
  std::size_t num_further = 0;
  bool pads_to_batch = false;

  Status allocate(std::int32_t max_rows, std::int64_t max_tokens, std::int64_t max_deltas,
                  std::size_t max_row_ops, std::size_t max_swaps) noexcept {
    const auto r = static_cast<std::size_t>(max_rows);
    const auto t = static_cast<std::size_t>(max_tokens);
    for (const Status& s : {
             chunks.allocate(r, "max_sequences"),
             undo.allocate(r, "max_sequences"),
             tokens.allocate(t, "max_tokens"),
             positions.allocate(t, "max_tokens"),
             token_slots.allocate(t, "max_tokens"),
             query_start.allocate(r + 1, "max_sequences"),
             rows.allocate(r, "max_sequences"),
             context_lengths.allocate(r, "max_sequences"),
             micro_batches.allocate(kMaxMicroBatches, "micro_batches"),
             deltas.allocate(static_cast<std::size_t>(max_deltas), "max_context_tokens"),
             forks.allocate(r, "max_sequences"),
             copies.allocate(r, "max_sequences"),
             row_ops.allocate(max_row_ops, "max_sequences"),
             swaps.allocate(max_swaps, "max_context_tokens"),
             loads.allocate(max_swaps > 0 ? 2 * r : 0,
                            "max_sequences"),  // a row may be lost and taken
             prefix_copies.allocate(2 * r, "max_sequences"),
             moves.allocate(kMaxMovesPerPlan, "expert_moves"),
         }) {
      if (!s) {
        return s;
      }
    }
    return kOk;
  }

  void clear() noexcept {
    plan = StepPlan{};
    groups[0] = GroupPlan{};
    pads_to_batch = false;
    num_chunks = 0;
    num_tokens = 0;
    num_samples = 0;
    micro_batches.clear();
    deltas.clear();
    forks.clear();
    copies.clear();
    row_ops.clear();
    swaps.clear();
    loads.clear();
    prefix_copies.clear();
    moves.clear();
    for (std::size_t i = 0; i < num_further; ++i) {
      further[i].clear();
    }
  }

  /// Most expert moves that fall due with one step.
  static constexpr std::size_t kMaxMovesPerPlan = 256;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
