// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: how sequences and requests end.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// A sequence leaves queue and row; what it has produced is still to be reported.
template <class P>
void SchedulerCore<P>::end_sequence(std::uint32_t slot, FinishReason reason, TimeNs now) noexcept {
  RequestRecord& record = desk_[slot];
  DYNBATCH_ASSERT(record.state != RequestState::Ended && record.state != RequestState::Free,
                  "a sequence ends once");
  if (record.state == RequestState::Waiting) {
    dequeue(slot);
    if (record.is_woken) {
      wake(record.quota_group);
    }
  } else if (record.state == RequestState::Running) {
    sync_record(rows_[static_cast<std::size_t>(record.row.value)]);
    detach_row(record.row.value, false);
  }
  if (watch_.is_on()) {
    watch_.sample_ended(record, desk_[record.root]);
  }
  sequence_slots_.push_back(record.sequence.slot);
  record.state = RequestState::Ended;
  record.row = kNoRow;
  record.reason = reason;
  record.event_time = now;
  mark_dirty(slot);
}

/// A sequence came to its normal end; with the last one the request does.
template <class P>
void SchedulerCore<P>::finish_sequence(std::uint32_t slot, FinishReason reason,
                                       TimeNs now) noexcept {
  RequestRecord& root = desk_[desk_[slot].root];
  end_sequence(slot, reason, now);
  --root.open_samples;
  if (!root.is_forked) {  // the samples that were to start from its prompt never will
    for (std::uint32_t at = root.next_sample; at != kNil; at = desk_[at].next_sample) {
      end_sequence(at, reason, now);
      --root.open_samples;
    }
  }
  if (root.open_samples == 0) {
    close_request(root.root, EventKind::Finished, root.reason, Errc::Ok, now);
  }
}

/// All that is left of a request ends, in one way.
template <class P>
void SchedulerCore<P>::end_request(std::uint32_t slot, EventKind kind, FinishReason reason,
                                   Errc error, TimeNs now) noexcept {
  const std::uint32_t root = desk_[slot].root;
  for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
    if (desk_[at].state != RequestState::Ended) {
      end_sequence(at, reason, now);
    }
  }
  desk_[root].open_samples = 0;
  close_request(root, kind, reason, error, now);
}

/// The request gets its one terminal event, which poll() hands out after all its tokens.
template <class P>
void SchedulerCore<P>::close_request(std::uint32_t root, EventKind kind, FinishReason reason,
                                     Errc error, TimeNs now) noexcept {
  RequestRecord& record = desk_[root];
  DYNBATCH_ASSERT(!record.is_over, "a request ends once");
  if (deadlines_.contains(root)) {
    deadlines_.erase(root);
  }
  if (!record.was_admitted) {
    desk_.leave_queue(root);
  }
  if constexpr (AdmissionOptions::kHasOnEnd) {
    if (record.was_queued) {
      AdmissionRequest view = admission_view(root);
      view.num_sequences = record.num_samples;
      for (std::uint32_t at = record.next_sample; at != kNil; at = desk_[at].next_sample) {
        view.output_tokens += desk_[at].outputs;
      }
      AdmissionOptions::on_end(policies_.admission, view);
    }
  }
  if (watch_.is_on()) {
    std::int64_t outputs = 0;
    for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
      outputs += desk_[at].outputs;
    }
    watch_.ended(record, kind, outputs, now);
  }
  record.is_over = true;
  record.terminal = kind;
  record.terminal_reason = reason;
  record.error = error;
  record.event_time = now;
  if (record.is_beam) {  // what was held back may be told now
    for (std::uint32_t at = record.next_sample; at != kNil; at = desk_[at].next_sample) {
      mark_dirty(at);
    }
  }
  if (flight_.is_on()) {
    record_ended(record);
  }
  switch (kind) {
    case EventKind::Finished:
      counters_.finished.add(1);
      break;
    case EventKind::Cancelled:
      counters_.cancelled.add(1);
      break;
    case EventKind::Expired:
      counters_.expired.add(1);
      break;
    default:
      counters_.failed.add(1);
      break;
  }
  mark_dirty(root);
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
