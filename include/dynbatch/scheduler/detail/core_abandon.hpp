// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: plans that will never be committed, and what was to move between tiers with them.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Forgets the loads or copies of sequences that have lost their row within this step.
template <class P>
template <class Start>
void SchedulerCore<P>::prune_row_starts(FixedVector<Start>& starts) noexcept {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Start start = starts[i];
    if (is_held(start)) {
      starts[kept++] = start;
    }
  }
  starts.resize(kept);
}

/// A plan that is committed has made its copies, whatever became of its chunks.
template <class P>
void SchedulerCore<P>::finish_copies(const PlanRecord& record) noexcept {
  for (const PrefixCopy& start : record.prefix_copies) {
    if (is_held(start)) {
      PoolOptions::finish_copy(policies_.pool, start.row);
    }
  }
}

/// Copies that an abandoned plan perhaps did not make: their rows compute that block from its
/// start.
template <class P>
void SchedulerCore<P>::lose_copies(const PlanRecord& record) noexcept {
  for (const PrefixCopy& start : record.prefix_copies) {
    if (!is_held(start)) {
      continue;
    }
    PoolOptions::finish_copy(policies_.pool, start.row);
    RowState& r = rows_[static_cast<std::size_t>(start.row.value)];
    if (r.phase != RowPhase::Draining) {
      roll_back(start.row.value, static_cast<std::int32_t>(start.first_token), 0,
                RowPhase::Prefill);
      r.committed = r.planned;
    }
  }
}

/// Moves between tiers that an abandoned plan perhaps did not make: who was to be loaded starts
/// over.
template <class P>
void SchedulerCore<P>::lose_moves(const PlanRecord& record) noexcept {
  PoolOptions::lose_swaps(policies_.pool, record.swaps.span());
  for (const TierLoad& load : record.loads) {
    const RowState& r = rows_[static_cast<std::size_t>(load.row.value)];
    if (!is_held(load)) {
      continue;
    }
    policies_.pool.withdraw(load.row, load.first_token);
    if (r.phase != RowPhase::Draining) {
      send_back(load.row.value);
    }
  }
}

template <class P>
Status SchedulerCore<P>::abandon(const StepPlan& plan, AbandonReason why,
                                 TimeNs host_now) noexcept {
  std::int32_t first = 0;
  while (first < num_in_flight_ && &in_flight_plan(first).plan != &plan) {
    ++first;
  }
  if (first == num_in_flight_) {
    return {Errc::WrongPlan, "plan", static_cast<std::int64_t>(plan.id.value), 0,
            "this plan is not in flight"};
  }
  advance_clock(host_now);
  if (flight_.is_on()) {
    flight_.put(FlightKind::Abandon,
                FlightAbandon{plan.id.value, now_.ns, static_cast<std::uint64_t>(why)});
  }
  for (std::int32_t p = num_in_flight_ - 1; p >= first;
       --p) {  // youngest first: each undoes the one before
    PlanRecord& record = in_flight_plan(p);
    for (std::size_t i = record.num_chunks; i > 0; --i) {
      const Chunk& chunk = record.chunks[i - 1];
      RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const ChunkUndo& undo = record.undo[i - 1];
      const bool is_valid = r.epoch == undo.epoch;
      const bool is_lost = why == AbandonReason::Lost;
      undo_chunk(chunk, undo,
                 {.is_youngest = true,
                  .is_charged = is_lost && p == first,
                  .is_spoiled = is_lost,
                  .is_fatal = why == AbandonReason::Fatal},
                 now_);
      // The host may not have seen the plan's deltas: they are told again.
      r.told_blocks = min_of(r.told_blocks, undo.blocks_before);
      if (is_valid && r.phase != RowPhase::Draining && r.phase != RowPhase::Free) {
        r.epoch = undo.epoch;  // the row's older chunks stay valid
      }
    }
    for (const ExpertMove& move : record.moves) {
      policies_.balancer.fail(move.layer);
    }
  }
  for (std::int32_t p = first; p < num_in_flight_; ++p) {
    for (const ForkCopy& fork : in_flight_plan(p).forks) {
      const RowState& r = rows_[static_cast<std::size_t>(fork.row.value)];
      if (r.residence == fork.residence &&
          (r.phase == RowPhase::Decode || r.phase == RowPhase::Prefill)) {
        send_back(fork.row.value);  // the source may be gone: the sample computes its prompt
      }
    }
  }
  for (std::int32_t p = first; p < num_in_flight_; ++p) {
    lose_copies(in_flight_plan(p));
    lose_moves(in_flight_plan(p));
    PoolOptions::lose_plan(policies_.pool, in_flight_plan(p).plan.id);
  }
  reset_readers();
  for (std::int32_t p = num_in_flight_ - 1; p >= first; --p) {
    PlanRecord& record = in_flight_plan(p);
    drop_told_forks(record);
    for (std::size_t i = 0; i < record.num_chunks; ++i) {
      drop_in_flight(record.chunks[i].row.value);
    }
  }
  prune_forks();
  num_in_flight_ = first;
  counters_.in_flight.set(static_cast<std::uint64_t>(num_in_flight_));
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
