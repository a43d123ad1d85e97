// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: whose first token can't be in time any more. Such requests get what the others
/// leave of a step, and now and then a step of which they come first.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Whether the first token of a request comes too late even if nothing but its prompt and the
/// decodes ran from now on, from position `planned` on, in steps of at most `chunk` prompt tokens.
/// Never while no step cost is known, but for requests whose time is over.
template <class P>
bool SchedulerCore<P>::is_past_hope(const RequestRecord& request, std::int64_t planned,
                                    std::int64_t chunk) const noexcept {
  if (request.slo.ttft >= kUnbounded || request.outputs > 0 || request.sample > 0) {
    return false;
  }
  const std::int64_t due = saturating_add(max_of<std::int64_t>(request.arrival.ns, 0),
                                          max_of<std::int64_t>(request.slo.ttft.ns, 0));
  std::int64_t needed = 0;
  if (const StepCost cost = policies_.sizer.cost(); cost.is_known()) {
    StepWork work;
    work.decode_rows = decoding_.size();
    work.kv_tokens = decoding_kv_;
    const std::int64_t left = max_of<std::int64_t>(request.prompt_length - planned, 1);
    const std::int64_t more_steps = (left - 1) / max_of<std::int64_t>(chunk, 1);
    needed = saturating_add(cost.predict(with_prefill(work, planned, left)).ns,
                            saturating_mul(cost.predict(work).ns, more_steps));
  }
  return saturating_add(now_.ns, needed) > due;
}

/// Judges anew who of those inside their prompt is late, and decides who comes first. Whoever waits
/// and was found late stays so until it is admitted. O(rows inside their prompt).
template <class P>
typename SchedulerCore<P>::LateTurn SchedulerCore<P>::late_turn(
    const BatchLimits& limits) noexcept {
  if (late_patience_ < 1) {
    return LateTurn::Off;
  }
  bool has_late = !waiting_.part(true).empty();
  for (std::int32_t i = 0; i < prefilling_.end(); ++i) {
    if (const std::int32_t row = prefilling_.at(i); row >= 0) {
      const RowState& r = rows_[static_cast<std::size_t>(row)];
      RequestRecord& request = desk_[r.slot];
      request.is_late =
          !request.is_awaited && is_past_hope(request, r.planned, limits.max_prefill_tokens);
      has_late = has_late || request.is_late;
    }
  }
  late_passed_ = has_late ? late_passed_ + 1 : 0;
  return late_passed_ > late_patience_ ? LateTurn::First : LateTurn::Last;
}

/// The request that stands first of those in time goes behind, into the part of the late ones.
template <class P>
void SchedulerCore<P>::move_to_late(std::uint32_t slot) noexcept {
  waiting_.erase(slot);
  desk_[slot].is_late = true;
  push_waiting(slot);
  late_passed_ = max_of(late_passed_, 1);  // this step counts already
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
