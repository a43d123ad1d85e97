// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: events and statistics.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
void SchedulerCore<P>::push_dirty(std::uint32_t slot) noexcept {
  dirty_.data()[(dirty_head_ + dirty_count_) & dirty_mask_] = slot;
  ++dirty_count_;
}

/// The request has something to report. While it runs its row remembers that.
template <class P>
void SchedulerCore<P>::mark_dirty(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  bool& is_dirty = record.state == RequestState::Running
                       ? rows_[static_cast<std::size_t>(record.row.value)].is_dirty
                       : record.is_dirty;
  if (!is_dirty) {
    is_dirty = true;
    push_dirty(slot);
  }
}

/// Brings the record up to the row's counts.
template <class P>
void SchedulerCore<P>::sync_record(const RowState& r) noexcept {
  RequestRecord& record = desk_[r.slot];
  record.outputs = r.known - r.prompt_end;
  record.first_token_time = TimeNs{r.first_token_ns};
  if (r.last_token_ns != 0) {
    record.event_time = TimeNs{r.last_token_ns};
  }
}

template <class P>
Event SchedulerCore<P>::event_of(std::uint32_t slot, EventKind kind, TimeNs time) const noexcept {
  const RequestRecord& record = desk_[slot];
  Event event;
  event.kind = kind;
  event.request = record.id;
  event.user_data = record.user_data;
  event.sample = record.sample;
  event.time = time;
  return event;
}

/// Reports outputs [delivered, up_to), a page at most an event; false if `out` is full before.
template <class P>
bool SchedulerCore<P>::report_tokens(std::uint32_t slot, std::int64_t up_to, std::span<Event> out,
                                     std::size_t& n) noexcept {
  RequestRecord& record = desk_[slot];
  while (record.delivered < up_to) {
    if (n == out.size()) {
      return false;
    }
    const bool is_first = record.delivered == 0;
    const std::int64_t position = record.prompt_length + record.delivered + record.token_base;
    const std::int64_t in_page =
        desk_.tokens().page_tokens() - position % desk_.tokens().page_tokens();
    const std::int64_t count = is_first ? 1 : min_of(up_to - record.delivered, in_page);
    Event event = event_of(slot, is_first ? EventKind::FirstToken : EventKind::Tokens,
                           is_first ? record.first_token_time : record.event_time);
    event.first_index = record.delivered;
    event.count = count;
    event.tokens = {desk_.tokens().at(slot, position), static_cast<std::size_t>(count)};
    out[n++] = event;
    record.delivered += count;
  }
  return true;
}

/// Reports all that is new about a sequence, in causal order, and the end of its request once every
/// sample is reported; false if `out` is full before.
template <class P>
bool SchedulerCore<P>::report(std::uint32_t slot, std::span<Event> out, std::size_t& n) noexcept {
  RequestRecord& record = desk_[slot];
  RequestRecord& root = desk_[record.root];
  if (record.state == RequestState::Running) {
    sync_record(rows_[static_cast<std::size_t>(record.row.value)]);
  }
  if (record.sample == 0 && !record.accepted_reported) {
    if (n == out.size()) {
      return false;
    }
    record.accepted_reported = true;
    out[n++] = event_of(slot, EventKind::Accepted, record.accepted_time);
  }
  if (record.unreported_preemptions > 0) {
    if (!report_tokens(slot, record.preempted_at, out, n) || n == out.size()) {
      return false;
    }
    Event event = event_of(slot, EventKind::Preempted, record.event_time);
    event.count = record.unreported_preemptions;
    out[n++] = event;
    record.unreported_preemptions = 0;
  }
  if (root.is_beam && !root.is_over) {
    return true;  // what beams have is theirs to change until the end
  }
  if (!report_tokens(slot, record.outputs, out, n)) {
    return false;
  }
  if (record.state == RequestState::Ended && !record.end_reported) {
    if (root.num_samples > 1 && record.reason != FinishReason::None) {
      if (n == out.size()) {
        return false;
      }
      Event event = event_of(slot, EventKind::SampleFinished, record.event_time);
      event.reason = record.reason;
      event.count = record.outputs;
      out[n++] = event;
    }
    record.end_reported = true;
    --root.unreported;
  }
  if (!root.is_over || root.unreported > 0) {
    return true;
  }
  if (record.sample != 0) {
    mark_dirty(record.root);  // its turn comes: all samples are reported now
    return true;
  }
  if (n == out.size()) {
    return false;
  }
  Event event = event_of(slot, record.terminal, record.event_time);
  event.reason = record.terminal_reason;
  event.error = record.error;
  for (std::uint32_t at = slot; at != kNil; at = desk_[at].next_sample) {
    event.count += desk_[at].outputs;
  }
  out[n++] = event;
  record.terminal_reported = true;
  return true;
}

template <class P>
std::size_t SchedulerCore<P>::poll(std::span<Event> out) noexcept {
  // A cancel() may be under way for an ended request: see it, so that its slot can be freed.
  desk_.drain_cancelled([&](std::uint32_t slot) {
    if (desk_.see_cancel(slot) && !desk_[slot].is_over) {
      if (flight_.is_on()) {
        record_cancel(slot, true, now_);
      }
      end_request(slot, EventKind::Cancelled, FinishReason::None, Errc::Ok, now_);
    }
  });
  std::size_t kept = 0;
  for (const std::uint32_t slot : delivered_) {
    if (!desk_.retire(slot)) {
      delivered_[kept++] = slot;
    }
  }
  delivered_.resize(kept);

  std::size_t n = 0;
  while (dirty_count_ > 0 && n < out.size()) {
    const std::uint32_t slot = dirty_[dirty_head_];
    if (!report(slot, out, n)) {
      break;
    }
    dirty_head_ = (dirty_head_ + 1) & dirty_mask_;
    --dirty_count_;
    RequestRecord& record = desk_[slot];
    record.is_dirty = false;
    if (record.state == RequestState::Running) {
      rows_[static_cast<std::size_t>(record.row.value)].is_dirty = false;
    }
    if (record.terminal_reported) {
      desk_.forget_id(slot);
      delivered_.push_back(slot);
    }
  }
  return n;
}

template <class P>
SchedulerStats SchedulerCore<P>::stats() const noexcept {
  SchedulerStats s;
  s.finished = counters_.finished.get();
  s.cancelled = counters_.cancelled.get();
  s.expired = counters_.expired.get();
  s.failed = counters_.failed.get();
  s.rejected = desk_.rejected();
  s.submitted = desk_.submitted();
  s.live = s.submitted - s.rejected - s.finished - s.cancelled - s.expired - s.failed;
  s.waiting = counters_.waiting.get();
  s.running = counters_.running.get();
  s.queued_tokens = desk_.queued_tokens();
  s.plans = counters_.plans.get();
  s.plans_in_flight = counters_.in_flight.get();
  s.preemptions = counters_.preemptions.get();
  s.prefill_tokens = counters_.prefill_tokens.get();
  s.recomputed_tokens = counters_.recomputed_tokens.get();
  s.decode_tokens = counters_.decode_tokens.get();
  s.draft_tokens = counters_.draft_tokens.get();
  s.accepted_draft_tokens = counters_.accepted_drafts.get();
  s.output_tokens = counters_.output_tokens.get();
  s.prefix_hit_tokens = counters_.prefix_hit.get();
  s.prefix_query_tokens = counters_.prefix_query.get();
  s.flight_records_lost = flight_.lost();
  return s;
}

template <class P>
Status SchedulerCore<P>::materialize(const StepPlan& plan, std::span<BlockId> out,
                                     std::size_t stride, std::size_t group) const noexcept {
  const GroupSpec spec = group < plan.groups.size() ? plan.groups[group].spec : group_;
  if (group > 0 && group >= plan.groups.size()) {
    return {Errc::InvalidArgument, "group", static_cast<std::int64_t>(group),
            static_cast<std::int64_t>(plan.groups.size()), "no such group"};
  }
  if (stride > 0 && plan.chunks.size() > out.size() / stride) {
    return {Errc::InvalidArgument, "out", static_cast<std::int64_t>(out.size()),
            static_cast<std::int64_t>(plan.chunks.size()), "one table a chunk"};
  }
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const std::span<const BlockId> table = policies_.pool.table(group, plan.chunks[c].row);
    // Plans in flight may have made the table longer: this plan needs what its context covers.
    const auto needed = static_cast<std::size_t>(
        spec.kind == GroupKind::Recurrent
            ? 1
            : (group == 0 ? blocks_for(plan.chunks[c].context_length)
                          : ceil_div(plan.chunks[c].context_length, spec.block_size)));
    if (needed > stride || needed > table.size()) {
      return {Errc::InvalidArgument, "stride", static_cast<std::int64_t>(stride),
              static_cast<std::int64_t>(needed), "a table is longer"};
    }
    for (std::size_t i = 0; i < stride; ++i) {
      out[c * stride + i] = i < needed ? table[i] : kNoBlock;
    }
  }
  return kOk;
}

template <class P>
std::int64_t SchedulerCore<P>::common_prefix_blocks() const noexcept {
  std::span<const BlockId> common;
  for (std::int32_t row = newest_row_; row >= 0; row = rows_[static_cast<std::size_t>(row)].older) {
    const std::span<const BlockId> table = policies_.pool.table(0, Row{row});
    if (row == newest_row_) {
      common = table;
    }
    std::size_t n = 0;
    while (n < common.size() && n < table.size() && common[n] == table[n]) {
      ++n;
    }
    common = common.first(n);
  }
  return static_cast<std::int64_t>(common.size());
}

/// Full check of the scheduler's own books and the pool's. O(everything); usable in release builds.
template <class P>
Status SchedulerCore<P>::check() const noexcept {
  auto broken = [](const char* field, std::int64_t value, std::int64_t expected) {
    return Status{Errc::InternalError, field, value, expected, "an invariant does not hold"};
  };
  std::int32_t running = 0;
  std::int32_t decoding = 0;
  std::int32_t prefilling = 0;
  std::int32_t draining = 0;
  std::int32_t lending = 0;
  std::int64_t kv = 0;
  std::int64_t held = 0;
  std::int64_t outputs = 0;
  std::int32_t reserved = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const RowState& r = rows_[i];
    if (r.phase == RowPhase::Free) {
      continue;
    }
    std::int32_t named = 0;
    std::int32_t pending = 0;
    for (std::int32_t p = 0; p < num_in_flight_; ++p) {
      const PlanRecord& record =
          plans_[static_cast<std::size_t>((oldest_ + p) % config_.max_plans_in_flight)];
      for (std::size_t c = 0; c < record.num_chunks; ++c) {
        if (record.chunks[c].row.value == static_cast<std::int32_t>(i)) {
          ++named;
          pending += record.undo[c].epoch == r.epoch && record.chunks[c].num_samples > 0 ? 1 : 0;
        }
      }
    }
    if (named != r.in_flight) {
      return broken("row.in_flight", r.in_flight, named);
    }
    if (r.phase != RowPhase::Draining && pending != r.pending_samples) {
      return broken("row.pending_samples", r.pending_samples, pending);
    }
    if (r.phase == RowPhase::Draining) {
      ++draining;
      lending += r.lent > 0 ? 1 : 0;
      continue;
    }
    ++running;
    decoding += r.phase == RowPhase::Decode ? 1 : 0;
    prefilling += r.phase == RowPhase::Prefill ? 1 : 0;
    kv += r.phase == RowPhase::Decode ? r.planned : 0;
    held += r.held_blocks + r.fork_blocks;
    reserved += r.reserved_rows;
    outputs += r.known - r.prompt_end;
    const RequestRecord& record = desk_[r.slot];
    if (record.state != RequestState::Running || record.row.value != static_cast<std::int32_t>(i)) {
      return broken("row", static_cast<std::int64_t>(i), record.row.value);
    }
    if (r.planned > r.known + r.pending_samples + r.draft_tokens || r.committed > r.planned ||
        r.known > r.known_limit) {
      return broken("row.planned", r.planned, r.known + r.pending_samples);
    }
    if (block_size_ > 0 && r.planned > r.table_tokens) {
      return broken("row.table_tokens", r.table_tokens, r.planned);
    }
    const std::size_t blocks = policies_.pool.table(0, Row{static_cast<std::int32_t>(i)}).size();
    if (block_size_ > 0 && static_cast<std::int64_t>(blocks) * block_size_ != r.table_tokens) {
      return broken("row.table", static_cast<std::int64_t>(blocks) * block_size_, r.table_tokens);
    }
  }
  if (running != num_running_) {
    return broken("running", running, num_running_);
  }
  if (draining != num_draining_) {
    return broken("draining", draining, num_draining_);
  }
  if (decoding != decoding_.size() || prefilling != prefilling_.size()) {
    return broken("decoding", decoding, decoding_.size());
  }
  if (kv != decoding_kv_) {
    return broken("decoding_kv", kv, decoding_kv_);
  }
  if (reserved != reserved_rows_ ||
      reserved > static_cast<std::int32_t>(free_rows_.size()) + draining) {
    return broken("reserved_rows", reserved, reserved_rows_);
  }
  if (held != held_blocks_) {
    return broken("held_blocks", held, held_blocks_);
  }
  if (outputs != running_outputs_) {
    return broken("running_outputs", outputs, running_outputs_);
  }
  if (static_cast<std::size_t>(running + draining) + free_rows_.size() != rows_.size()) {
    return broken("free_rows", static_cast<std::int64_t>(free_rows_.size()), running);
  }
  if (num_in_flight_ == 0 && draining != lending) {
    return broken("draining", draining, 0);
  }
  return policies_.pool.check();
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
