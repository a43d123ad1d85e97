// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// One step's work, as structures of arrays that are ready to upload.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

enum class ChunkKind : std::uint8_t { Prefill, Decode };

/// One scheduled piece of one sequence. Chunks of a plan lie in attention order: a reader of KV
/// that this plan writes stands behind its writer.
struct Chunk {
  SequenceId sequence{};
  RequestId request{};
  std::uint64_t user_data = 0;
  std::int32_t first_position = 0;  ///< Position of its first token.
  std::int32_t num_tokens = 0;      ///< >= 1; a decode is 1 + drafts.
  std::int32_t context_length = 0;  ///< Positions whose KV exists once the chunk ran.
  std::int32_t logits_from =
      0;  ///< First position whose logits are wanted; first_position + num_tokens = none.
  std::int32_t first_token = 0;   ///< Its first entry in StepPlan::tokens.
  std::int32_t first_sample = 0;  ///< Its first entry among the plan's samples.
  std::int32_t num_samples = 0;   ///< Samples wanted: 0 until the prompt is complete.
  std::int32_t sample = 0;        ///< Which of the request's samples; keys the sampling.
  Row row{};
  ChunkKind kind = ChunkKind::Prefill;
};

/// A token that a plan in flight will produce: the last sample of that row.
[[nodiscard]] constexpr Token future_token(Row row) noexcept { return -1 - row.value; }
[[nodiscard]] constexpr bool is_future_token(Token token) noexcept { return token < 0; }
[[nodiscard]] constexpr Row row_of_future_token(Token token) noexcept { return Row{-1 - token}; }

/// "Entry `index` of `row`'s block table is `block`, and what was behind it is void." Applied in
/// order. Without a block it says instead: "the entries up to and including `index` hold nothing
/// (any more)", what is behind them stays; only groups of windows have that. Index 0 with a block
/// begins a residence; one that begins behind a window's start begins with entries that hold
/// nothing.
struct BlockDelta {
  Row row{};
  std::int32_t index = 0;
  BlockId block{};
};

/// Copy the first `num_tokens` tokens of `source` to `target` before anything of this plan is
/// written.
struct BlockCopy {
  BlockId source{};
  BlockId target{};
  std::int32_t num_tokens = 0;
};

/// Move a block between device and host memory.
struct BlockSwap {
  BlockId device{};
  std::int32_t host_slot = 0;
  bool to_host = true;
};

/// What one KV group needs in this step. The first group is the one of full attention. In a group
/// of windows each token reads the last `spec.window` positions, its own included. In a recurrent
/// group a block is a state and a row's table is one entry: every token's slot is its row's state,
/// which the chunk replaces; a copy moves a whole state (num_tokens = 1). Order: swaps to the host
/// read first, then copies, then swaps from the host and zeroing, then the forward pass writes. A
/// plan that is committed has made its swaps.
struct GroupPlan {
  GroupSpec spec{};
  std::span<const TokenSlot> token_slots{};  ///< [num_tokens] where each token's KV goes.
  std::span<const BlockDelta> deltas{};      ///< Changes of the resident block tables.
  std::span<const BlockCopy> copies{};
  std::span<const BlockId> zeroes{};
  std::span<const BlockSwap> swaps{};
};

/// For hosts that address KV by sequence and position instead of by block. A row is a sequence of
/// the host; with Capabilities::sequence_handles rows from max_sequences on are parking places for
/// cached prefixes.
enum class RowOpKind : std::uint8_t {
  ShareRange,  ///< `target` forgets what it has and shares positions [first, last) of `source`.
  DropRange,   ///< `target` forgets its positions [first, last); what it has not is no error.
  Save,        ///< Positions [first, last) of `source` are saved under `handle`.
  Restore,     ///< Positions [first, last) of `target` come back from `handle`.
};

/// One operation on whole ranges of positions. The operations of a plan come first in its
/// execution, in their order. They are done exactly once and in plan order whatever becomes of the
/// plan: also if nothing else of it runs, and if it is abandoned. With several plans in flight the
/// source may have less than is to be shared, because an older plan did not run: then so has the
/// target, and this plan's results for it are dropped.
struct RowOp {
  RowOpKind kind = RowOpKind::DropRange;
  Row source{};
  Row target{};
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::uint64_t handle = 0;  ///< Save / Restore: names the saved state.
};

/// A move of an expert replica that falls due with this step.
struct ExpertMove {
  std::int32_t layer = 0;
  std::int32_t source_slot = 0;
  std::int32_t target_slot = 0;
  std::int32_t expert = 0;
};

/// A micro-batch: tokens [first_token, last_token) of the plan, from chunks [first_chunk,
/// last_chunk). A cut may lie inside a chunk, which then belongs to both neighbours.
struct MicroBatch {
  std::int32_t first_chunk = 0;
  std::int32_t last_chunk = 0;
  std::int32_t first_token = 0;
  std::int32_t last_token = 0;
};

/// Size that the step is padded to; zeros = not padded. A step of decodes alone is padded to a
/// captured graph size, in lock-step the same one on all ranks.
struct PaddedSize {
  std::int64_t tokens = 0;           ///< Tokens of the largest rank, padded rows included.
  std::int32_t rows = 0;             ///< Decoding rows that the step is charged with.
  std::int32_t context_per_row = 0;  ///< Every padded row is charged this context; 0 = its own.
};

/// What one data-parallel rank tells the others before a plan is sealed.
struct RankSummary {
  std::int64_t num_tokens = 0;
  std::int64_t prefill_tokens = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_chunks = 0;
  std::int64_t attention_work = 0;
  bool wants_split = false;
};

/// One step. Immutable from its seal until it is settled by commit() or abandon(); the spans point
/// into the scheduler's preallocated buffers.
struct StepPlan {
  PlanId id{};
  TimeNs planned_at{};
  std::span<const Chunk> chunks{};
  std::span<const Token> tokens{};                  ///< [num_tokens] ids, or future_token(row).
  std::span<const std::int32_t> positions{};        ///< [num_tokens]
  std::span<const std::int32_t> query_start{};      ///< [chunks + 1] CSR over tokens.
  std::span<const std::int32_t> rows{};             ///< [chunks] row of each chunk.
  std::span<const std::int32_t> context_lengths{};  ///< [chunks]
  std::span<const MicroBatch> micro_batches{};      ///< At least one if there is a chunk.
  std::span<const GroupPlan> groups{};
  std::span<const RowOp> row_ops{};
  std::span<const ExpertMove> expert_moves{};
  std::uint64_t placement_version = 0;
  PaddedSize padded{};
  StepWork work{};               ///< Unpadded work, for cost models and feedback.
  std::int32_t num_samples = 0;  ///< Tokens wanted in total.
  std::int32_t num_prefill_chunks = 0;
  std::int32_t num_decode_chunks = 0;
  bool is_sealed = true;  ///< Lock-step only: false until seal().
  bool is_dummy = false;  ///< Lock-step only: nothing of this rank, but it takes part.

  [[nodiscard]] std::int64_t num_tokens() const noexcept {
    return static_cast<std::int64_t>(tokens.size());
  }
};

/// Work of the step as an engine that pads would perform it: equal to plan.work where nothing is
/// padded.
[[nodiscard]] inline StepWork padded_work(const StepPlan& plan) noexcept {
  StepWork work = plan.work;
  if (plan.padded.rows > 0 && plan.num_decode_chunks > 0) {
    work.decode_rows = plan.padded.rows;
    if (plan.padded.context_per_row > 0) {
      work.kv_tokens = static_cast<std::int64_t>(plan.padded.rows) * plan.padded.context_per_row;
    }
  }
  return work;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
