// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: who gives way when blocks run out.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Table room for `tokens` positions of a decoding row, taking blocks from others if it must.
template <class P>
bool SchedulerCore<P>::grow(PlanRecord& record, std::int32_t row, std::int32_t tokens,
                            Budget& budget) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  if (block_size_ == 0) {
    return true;
  }
  const std::int64_t missing = blocks_for(tokens) - blocks_for(r.table_tokens);
  if (missing > spare_blocks() + r.held_blocks && !make_room(record, row, missing, budget)) {
    note_blocked(r.slot, WaitCause::Memory);
    return false;
  }
  extend_row(row, tokens);
  return true;
}

/// Preempts victims until `blocks` are to be had for `row`; false if they are not, then `row`
/// itself may have given way, or ended because nobody else holds anything.
template <class P>
bool SchedulerCore<P>::make_room(PlanRecord& record, std::int32_t row, std::int64_t blocks,
                                 Budget& budget) noexcept {
  while (spare_blocks() + rows_[static_cast<std::size_t>(row)].held_blocks < blocks) {
    candidates_.clear();
    for (std::int32_t at = newest_row_; at >= 0; at = rows_[static_cast<std::size_t>(at)].older) {
      const RowState& r = rows_[static_cast<std::size_t>(at)];
      // Not in any plan but the one under construction. Beams hold what they need to the end.
      if (!r.is_beam && r.in_flight == (r.last_plan == record.plan.id.value ? 1 : 0)) {
        candidates_.push_back(at);
      }
    }
    if (candidates_.empty()) {
      const RowState& r = rows_[static_cast<std::size_t>(row)];
      if (r.is_beam && !has_chunks_in_flight() && num_draining_ == 0 && record.num_chunks == 0) {
        // The pool has shrunk since: what was kept for the beams is gone.
        end_request(r.slot, EventKind::Finished, FinishReason::Capacity, Errc::Ok, now_);
      }
      return false;
    }
    const std::int32_t victim = choose_victim();
    if (victim == row) {
      if (has_chunks_in_flight() || num_draining_ > 0) {
        return false;  // blocks come back when plans in flight are settled
      }
      RowState& r = rows_[static_cast<std::size_t>(row)];
      if (num_running_ == 1 && r.fork_blocks > 0) {
        // Rather than end, the samples that find no block compute the prompt themselves.
        held_blocks_ -= r.fork_blocks;
        r.fork_blocks = 0;
        continue;
      }
      if (num_running_ == 1) {
        finish_sequence(r.slot, FinishReason::Capacity, now_);
        return false;
      }
      give_way(record, row, budget);
      return false;
    }
    give_way(record, victim, budget);
  }
  return true;
}

/// The row among candidates_ that the admission policy names.
template <class P>
std::int32_t SchedulerCore<P>::choose_victim() const noexcept {
  const VictimList list(
      this,
      [](const void* context, std::int32_t index) noexcept {
        const auto& core = *static_cast<const SchedulerCore*>(context);
        const std::int32_t row = core.candidates_[static_cast<std::size_t>(index)];
        const RowState& r = core.rows_[static_cast<std::size_t>(row)];
        VictimCandidate candidate;
        candidate.request = core.admission_view(r.slot);
        candidate.request.output_tokens = r.known - r.prompt_end;
        candidate.row = Row{row};
        candidate.computed_tokens = r.committed;
        candidate.num_blocks = core.blocks_for(r.table_tokens);
        return candidate;
      },
      static_cast<std::int32_t>(candidates_.size()));
  return candidates_[static_cast<std::size_t>(
      clamp_to(policies_.admission.victim(list), 0, list.size() - 1))];
}

/// Preempts a row, with the chunk that it may have in the plan under construction, and whoever was
/// to read what that chunk would have written.
template <class P>
void SchedulerCore<P>::give_way(PlanRecord& record, std::int32_t row, Budget& budget) noexcept {
  drop_chunk(record, row, budget);
  preempt(row, budget);
  if (!budget.chunk_dropped) {
    return;
  }
  for (std::int32_t at = newest_row_; at >= 0;) {
    if (policies_.pool.reads_withdrawn(Row{at})) {
      drop_chunk(record, at, budget);
      preempt(at, budget);
      at = newest_row_;
    } else {
      at = rows_[static_cast<std::size_t>(at)].older;
    }
  }
}

template <class P>
void SchedulerCore<P>::drop_chunk(PlanRecord& record, std::int32_t row, Budget& budget) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.last_plan != record.plan.id.value || r.in_flight == 0) {
    return;
  }
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    Chunk& chunk = record.chunks[i];
    if (chunk.row.value != row || chunk.num_tokens == 0) {
      continue;
    }
    // Its tokens are not given back: the plan's arrays hold them until the gaps are closed.
    if (chunk.kind == ChunkKind::Prefill) {
      --budget.prefill_chunks;
    }
    roll_back(row, chunk.first_position, r.pending_samples - (chunk.num_samples > 0 ? 1 : 0),
              record.undo[i].phase_before);
    --r.in_flight;
    r.last_plan = 0;
    chunk.num_tokens = 0;
    budget.chunk_dropped = true;
    return;
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
