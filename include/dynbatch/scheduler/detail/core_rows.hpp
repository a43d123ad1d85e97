// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: rows of running sequences, their phases, preemption and roll-back.
#include <dynbatch/scheduler/detail/core.hpp>

#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
SequenceContentView SchedulerCore<P>::content(std::uint32_t slot,
                                              std::int64_t known) const noexcept {
  return desk_.content(slot, known);
}

template <class P>
AdmissionRequest SchedulerCore<P>::admission_view(std::uint32_t slot) const noexcept {
  const RequestRecord& record = desk_[slot];
  AdmissionRequest view;
  view.id = record.id;
  view.tenant = record.tenant;
  view.arrival = record.arrival;
  view.start_by = record.start_by;
  view.finish_by = record.finish_by;
  view.slo = record.slo;
  view.prompt_length = record.prompt_length;
  view.max_new_tokens = record.open_ended ? kOpenEnded : record.max_new;
  view.output_tokens = record.outputs;
  view.priority = record.priority;
  view.num_preemptions = record.preemptions;
  if (record.state == RequestState::Running) {
    view.num_sequences = 1 + rows_[static_cast<std::size_t>(record.row.value)].reserved_rows;
  } else if (record.sample == 0 && !record.is_forked) {
    view.num_sequences = record.num_samples;
  }
  view.num_displacements = desk_[record.root].displacements;
  view.max_total_tokens = min_of(record.prompt_length + record.max_new, kv_limit_);
  view.key = record.key;
  view.was_admitted = record.was_admitted;
  view.request_class = record.request_class;
  return view;
}

/// Gives the request a row; there must be a free one.
template <class P>
std::int32_t SchedulerCore<P>::take_row(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  const std::int32_t row = free_rows_.back();
  free_rows_.pop_back();
  RowState& r = rows_[static_cast<std::size_t>(row)];
  const std::uint32_t epoch = r.epoch + 1;
  const std::uint32_t residence = r.residence + 1;
  r = RowState{};
  r.epoch = epoch;
  r.residence = residence;
  r.slot = slot;
  r.sequence = record.sequence;
  r.request = record.id;
  r.user_data = record.user_data;
  r.sample = record.sample;
  r.prompt_end = static_cast<std::int32_t>(record.prompt_length);
  r.known = static_cast<std::int32_t>(record.prompt_length + record.outputs);
  r.known_limit = static_cast<std::int32_t>(record.prompt_length + record.max_new);
  r.recompute_end = record.was_admitted ? r.known : 0;
  r.next_publish = shares_prefixes_ ? block_size_ : std::numeric_limits<std::int32_t>::max();
  r.checks_tokens = record.num_stop > 0;
  r.is_beam = record.is_beam;
  // Samples fork off a recurrent state only where it stands at the prompt's end.
  r.sync_decode =
      record.sync_decode || record.is_beam || (has_states_ && desk_[record.root].num_samples > 1);
  forget_told(row);
  r.is_dirty = record.is_dirty;
  r.tpot_ns = record.slo.tpot < kUnbounded ? record.slo.tpot.ns : 0;
  r.first_token_ns = record.first_token_time.ns;
  r.older = newest_row_;
  (newest_row_ >= 0 ? rows_[static_cast<std::size_t>(newest_row_)].newer : oldest_row_) = row;
  newest_row_ = row;
  ++num_running_;
  num_tpot_ += r.tpot_ns > 0 ? 1 : 0;
  running_outputs_ += record.outputs;
  // A request holds its resources once, while any of its samples runs.
  if (desk_[record.root].running_samples++ == 0) {
    for (std::uint8_t i = 0; i < record.num_needs; ++i) {
      resource_use_[record.needs[i].resource] += record.needs[i].amount;
    }
  }
  record.row = Row{row};
  record.state = RequestState::Running;
  if (!record.was_admitted) {
    record.was_admitted = true;
    if (watch_.is_on()) {
      watch_.first_run(record, now_);
    }
    desk_.leave_queue(slot);
    set_deadline(slot);
  }
  counters_.running.set(static_cast<std::uint64_t>(num_running_));
  return row;
}

/// Moves a row between the phase lists and keeps their sums.
template <class P>
void SchedulerCore<P>::set_phase(std::int32_t row, RowPhase phase) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.phase == phase) {
    return;
  }
  if (r.phase == RowPhase::Decode) {
    decoding_.remove(r);
    decoding_kv_ -= r.planned;
  } else if (r.phase == RowPhase::Prefill) {
    prefilling_.remove(r);
  }
  r.phase = phase;
  if (phase == RowPhase::Decode) {
    decoding_.add(row, rows_.data());
    decoding_kv_ += r.planned;
  } else if (phase == RowPhase::Prefill) {
    prefilling_.add(row, rows_.data());
  }
}

template <class P>
void SchedulerCore<P>::hold_blocks(RowState& r, std::int64_t blocks) noexcept {
  held_blocks_ += blocks - r.held_blocks;
  r.held_blocks = static_cast<std::int32_t>(blocks);
}

/// The sequence stops running. Its blocks go back at once, or when the last plan that names it is
/// settled.
template <class P>
void SchedulerCore<P>::detach_row(std::int32_t row, bool requeue) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  const AdmissionRequest leaving = AdmissionOptions::kHasOnLeave || AdmissionOptions::kHasMayAdmit
                                       ? admission_view(r.slot)
                                       : AdmissionRequest{};
  set_phase(row, RowPhase::Draining);
  hold_blocks(r, 0);
  held_blocks_ -= r.fork_blocks;
  r.fork_blocks = 0;
  reserved_rows_ -= r.reserved_rows;
  r.reserved_rows = 0;
  r.num_drafts = 0;
  (r.older >= 0 ? rows_[static_cast<std::size_t>(r.older)].newer : oldest_row_) = r.newer;
  (r.newer >= 0 ? rows_[static_cast<std::size_t>(r.newer)].older : newest_row_) = r.older;
  --num_running_;
  ++num_draining_;
  num_tpot_ -= r.tpot_ns > 0 ? 1 : 0;
  running_outputs_ -= r.known - r.prompt_end;
  const RequestRecord& record = desk_[r.slot];
  if (--desk_[record.root].running_samples == 0) {
    for (std::uint8_t i = 0; i < record.num_needs; ++i) {
      resource_use_[record.needs[i].resource] -= record.needs[i].amount;
    }
  }
  desk_[r.slot].is_dirty = r.is_dirty;
  r.requeue = requeue;
  if (requeue) {
    sync_record(r);
    desk_[r.slot].state = RequestState::Leaving;
  }
  if constexpr (AdmissionOptions::kHasOnLeave || AdmissionOptions::kHasMayAdmit) {
    AdmissionOptions::on_leave(policies_.admission, leaving);
    wake(AdmissionOptions::quota_group(policies_.admission, leaving));
  }
  counters_.running.set(static_cast<std::uint64_t>(num_running_));
  if (r.in_flight == 0) {
    finish_detach(row);
  }
}

template <class P>
void SchedulerCore<P>::finish_detach(std::int32_t row) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.lent > 0) {
    if (has_more_groups()) {
      // A fork without a rest in the first group may wait for a block, which must not be one that
      // only this row keeps.
      r.planned = min_of(r.committed, lent_tokens(row));
      policies_.pool.truncate(Row{row}, r.planned);
      advance_groups(row);
    }
    return;  // a fork has still to copy from its blocks: drop_fork() comes back to this
  }
  policies_.pool.release(Row{row});
  const bool requeue = r.requeue;
  const std::uint32_t slot = r.slot;
  r.phase = RowPhase::Free;
  --num_draining_;
  free_rows_.push_back(row);
  if (requeue && desk_[slot].state == RequestState::Leaving && desk_[slot].row == Row{row}) {
    desk_[slot].row = kNoRow;
    enqueue(slot);
  }
}

/// Leading positions of a row that forks have still to copy from.
template <class P>
std::int32_t SchedulerCore<P>::lent_tokens(std::int32_t row) const noexcept {
  std::int32_t tokens = 0;
  const auto see = [&](const FixedVector<ForkCopy>& forks) noexcept {
    for (const ForkCopy& fork : forks) {
      tokens = fork.source.value == row ? max_of(tokens, fork.tokens) : tokens;
    }
  };
  see(fork_copies_);
  for (std::int32_t i = 0; i < num_in_flight_; ++i) {
    see(plans_[static_cast<std::size_t>((oldest_ + i) % config_.max_plans_in_flight)].forks);
  }
  return tokens;
}

/// One copy less needs the row's blocks: with the last one they may go.
template <class P>
void SchedulerCore<P>::drop_loan(std::int32_t row) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  --r.lent;
  if (r.lent == 0 && r.phase == RowPhase::Draining && r.in_flight == 0) {
    finish_detach(row);
  }
}

/// The fork's copy was told, or is not needed any more: its source may go.
template <class P>
void SchedulerCore<P>::drop_fork(const ForkCopy& fork) noexcept {
  drop_loan(fork.source.value);
}

/// Where plans may overtake each other, source and target keep their blocks until the copy is done.
template <class P>
void SchedulerCore<P>::drop_told_forks(const PlanRecord& record) noexcept {
  for (std::size_t i = 0; !caps_.in_order && i < record.forks.size(); ++i) {
    drop_loan(record.forks[i].source.value);
    drop_loan(record.forks[i].row.value);
  }
}

/// Forgets the copies for sequences that have lost their row since.
template <class P>
void SchedulerCore<P>::prune_forks() noexcept {
  std::size_t kept = 0;
  for (const ForkCopy& fork : fork_copies_) {
    const RowState& r = rows_[static_cast<std::size_t>(fork.row.value)];
    if (r.residence == fork.residence && r.phase == RowPhase::Decode) {
      fork_copies_[kept++] = fork;
    } else {
      drop_fork(fork);
    }
  }
  fork_copies_.resize(kept);
}

/// One plan in flight no longer names the row.
template <class P>
void SchedulerCore<P>::drop_in_flight(std::int32_t row) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (--r.in_flight == 0) {
    r.is_stale = false;
    if (r.phase == RowPhase::Draining) {
      finish_detach(row);
    }
  }
}

/// The row stands again where it stood before a chunk at `position`; blocks that it made visible
/// beyond become invisible. Younger plans that name it are void.
template <class P>
void SchedulerCore<P>::roll_back(std::int32_t row, std::int32_t position, std::int32_t pending,
                                 RowPhase phase) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  policies_.pool.withdraw(Row{row}, position);
  PoolOptions::rewind(policies_.pool, Row{row}, position);
  forget_told(row);
  if (r.phase == RowPhase::Decode) {
    decoding_kv_ -= r.planned - position;
  }
  r.recompute_end = max_of(r.recompute_end, r.planned);
  r.planned = position;
  r.pending_samples = pending;
  r.plain_end = 0;
  r.num_drafts = 0;
  r.draft_tokens = 0;
  ++r.epoch;
  if (block_size_ > 0 && shares_prefixes_) {
    r.next_publish = (position / block_size_ + 1) * block_size_;
  }
  set_phase(row, phase);
}

/// A sequence leaves its row to compute everything anew; with a beam all beams of its request do.
template <class P>
void SchedulerCore<P>::send_back(std::int32_t row) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.is_beam) {
    restart_beams(r.slot);
  } else {
    detach_row(row, true);
  }
}

/// Takes a running sequence's blocks away, at once or when the last plan in flight that names it is
/// settled; it waits again and computes them anew.
template <class P>
void SchedulerCore<P>::preempt(std::int32_t row, Budget& budget) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  RequestRecord& record = desk_[r.is_beam ? desk_[r.slot].root : r.slot];
  budget.preempted = true;
  ++record.preemptions;
  ++record.unreported_preemptions;
  counters_.preemptions.add(1);
  if (watch_.is_on()) {
    watch_.preempted(root_of(r));
  }
  mark_dirty(r.slot);
  if (flight_.is_on()) {
    record_preempted(r);
  }
  send_back(row);
  record.preempted_at = record.outputs;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
