// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: who may take another's place, and who is held back by a quota.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Whether the request, found at the head of the queue with all places taken, outranks somebody
/// who runs. Looked up once for each head and admission: ranks don't change meanwhile.
template <class P>
bool SchedulerCore<P>::may_displace(std::uint32_t slot) const noexcept {
  if constexpr (AdmissionOptions::kHasDisplaces) {
    // A place that is on its way serves the head as well.
    return passed_over_.empty() && num_draining_ == 0 &&
           !(outranks_nobody_ == desk_[slot].order && outranks_nobody_since_ == num_admitted_);
  } else {
    static_cast<void>(slot);
    return false;
  }
}

/// Looks for those who would have to give way to the request.
template <class P>
bool SchedulerCore<P>::outranks(std::uint32_t slot) noexcept {
  candidates_.clear();
  if constexpr (AdmissionOptions::kHasDisplaces) {
    const AdmissionRequest waiting = admission_view(slot);
    for (std::int32_t at = newest_row_; at >= 0; at = rows_[static_cast<std::size_t>(at)].older) {
      const std::uint32_t running = rows_[static_cast<std::size_t>(at)].slot;
      if (!rows_[static_cast<std::size_t>(at)].is_beam &&
          AdmissionOptions::displaces(policies_.admission, waiting, admission_view(running))) {
        candidates_.push_back(at);
      }
    }
  }
  return !candidates_.empty();
}

/// Takes the place of a running sequence that the request outranks, if the blocks that come free
/// with it certainly suffice. Its victim waits again; it may stand in the plan under construction,
/// which it then leaves, or in older ones, whose results for it are dropped.
template <class P>
void SchedulerCore<P>::displace(PlanRecord& record, std::uint32_t slot, std::int64_t spare,
                                Budget& budget) noexcept {
  if constexpr (AdmissionOptions::kHasDisplaces) {
    const AdmissionRequest waiting = admission_view(slot);
    if (!outranks(slot)) {
      outranks_nobody_ = desk_[slot].order;
      outranks_nobody_since_ = num_admitted_;
      return;
    }
    const std::int32_t victim = choose_victim();
    const RowState& r = rows_[static_cast<std::size_t>(victim)];
    const RequestRecord& request = desk_[slot];
    const std::int64_t known = request.prompt_length + request.outputs;
    const Reservation reservation =
        policies_.admission.need({.known_tokens = known,
                                  .max_total_tokens = waiting.max_total_tokens,
                                  .num_running = num_running_ - 1,
                                  .pool = policies_.pool.stats(),
                                  .num_preemptions = request.preemptions});
    const std::int64_t need =
        blocks_for(clamp_to<std::int64_t>(reservation.required_tokens, 1, kv_limit_)) +
        (num_running_ > 1 ? max_of<std::int64_t>(reservation.headroom_blocks, 0) : 0);
    if (block_size_ > 0 && need > spare + blocks_for(r.table_tokens) + r.held_blocks) {
      return;
    }
    ++desk_[desk_[r.slot].root].displacements;
    const bool was_preempted = budget.preempted;
    give_way(record, victim, budget);
    budget.preempted = was_preempted;  // it made room for one: that one is to be admitted
    if (budget.chunk_dropped) {
      // At once: the plan has room for one chunk a row, and the victim's row may be used again.
      drop_planned_chunks(record);
      budget.chunk_dropped = false;
    }
  }
}

/// Whether the request's quota holds it back; it then stands in its group's list until one of the
/// group leaves. A group with a list has been refused already: who comes new stands behind.
template <class P>
bool SchedulerCore<P>::parks(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  const AdmissionRequest view = admission_view(slot);
  record.quota_group = static_cast<std::int16_t>(
      clamp_to(AdmissionOptions::quota_group(policies_.admission, view), 0, kMaxQuotaGroups - 1));
  SlotList& list = parked_[static_cast<std::size_t>(record.quota_group)];
  const bool is_first = record.is_woken || record.was_admitted;
  if ((is_first || list.first == kNoSlot) &&
      AdmissionOptions::may_admit(policies_.admission, view)) {
    return false;
  }
  waiting_.erase(slot);
  record.is_parked = true;
  record.is_woken = false;
  link(list, slot, is_first);
  ++num_parked_;
  return true;
}

/// A request stands in at most one list: at its front or at its end.
template <class P>
void SchedulerCore<P>::link(SlotList& list, std::uint32_t slot, bool is_first) noexcept {
  RequestRecord& record = desk_[slot];
  record.list_before = is_first ? kNoSlot : list.last;
  record.list_after = is_first ? list.first : kNoSlot;
  (record.list_before == kNoSlot ? list.first : desk_[record.list_before].list_after) = slot;
  (record.list_after == kNoSlot ? list.last : desk_[record.list_after].list_before) = slot;
}

template <class P>
void SchedulerCore<P>::unlink(SlotList& list, std::uint32_t slot) noexcept {
  const RequestRecord& record = desk_[slot];
  (record.list_before == kNoSlot ? list.first : desk_[record.list_before].list_after) =
      record.list_after;
  (record.list_after == kNoSlot ? list.last : desk_[record.list_after].list_before) =
      record.list_before;
}

template <class P>
void SchedulerCore<P>::unpark(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  unlink(parked_[static_cast<std::size_t>(record.quota_group)], slot);
  record.is_parked = false;
  --num_parked_;
}

/// The quota of a group may have room: its first goes back into the queue to be asked again.
template <class P>
void SchedulerCore<P>::wake(std::int32_t group) noexcept {
  if constexpr (AdmissionOptions::kHasMayAdmit) {
    const std::uint32_t slot =
        parked_[static_cast<std::size_t>(clamp_to(group, 0, kMaxQuotaGroups - 1))].first;
    if (slot != kNoSlot) {
      unpark(slot);
      desk_[slot].is_woken = true;
      push_waiting(slot);
    }
  }
}

template <class P>
void SchedulerCore<P>::wake_all() noexcept {
  for (std::int32_t group = 0; group < kMaxQuotaGroups; ++group) {
    wake(group);
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
