// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: what goes into a plan. Decisions only; how a chunk is written is in
/// core_write.hpp, who is let in is in core_admit.hpp.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
RunningList SchedulerCore<P>::running_list() const noexcept {
  return {this, [](const void* context, void* state, RunningList::Take take) noexcept {
            const auto& core = *static_cast<const SchedulerCore*>(context);
            for (std::int32_t row = core.oldest_row_; row >= 0;
                 row = core.rows_[static_cast<std::size_t>(row)].newer) {
              const RowState& r = core.rows_[static_cast<std::size_t>(row)];
              RunningSequence sequence;
              sequence.known_tokens = r.known;
              sequence.held_tokens = r.table_tokens;
              sequence.output_tokens = r.known - r.prompt_end;
              sequence.max_output_tokens = r.known_limit - r.prompt_end;
              sequence.request_class = core.desk_[r.slot].request_class;
              take(state, sequence);
            }
          }};
}

template <class P>
ComposeInput SchedulerCore<P>::compose_input() const noexcept {
  ComposeInput in;
  in.num_decoding = decoding_.size();
  in.num_prefilling = prefilling_.size();
  in.num_waiting = static_cast<std::int64_t>(waiting_.size());
  in.now = now_;
  if (!waiting_.empty()) {
    in.first_arrival = desk_[waiting_.top()].arrival;
  }
  in.step = next_plan_;
  in.block_size = block_size_;
  in.running = running_list();
  return in;
}

template <class P>
SizerInput SchedulerCore<P>::sizer_input(TimeNs now) const noexcept {
  SizerInput in;
  in.now = now;
  in.num_decoding = decoding_.size();
  in.num_prefilling = prefilling_.size();
  in.num_waiting = static_cast<std::int64_t>(waiting_.size());
  in.decoding_kv_tokens = decoding_kv_;
  in.running_output_tokens = running_outputs_;
  in.waiting_prompt_tokens = waiting_tokens_;
  in.plans_in_flight = num_in_flight_;
  in.max_tokens = caps_.max_tokens;
  in.max_sequences = caps_.max_sequences;
  in.pool = policies_.pool.stats();
  in.running = running_list();
  if (num_tpot_ > 0) {
    for (std::int32_t row = oldest_row_; row >= 0;
         row = rows_[static_cast<std::size_t>(row)].newer) {
      const RowState& r = rows_[static_cast<std::size_t>(row)];
      if (r.tpot_ns > 0 && r.known > r.prompt_end) {
        const std::int64_t due =
            saturating_add(r.first_token_ns,
                           saturating_mul(r.tpot_ns, r.known - r.prompt_end + r.pending_samples));
        in.least_tpot = min_of(in.least_tpot, DurationNs{r.tpot_ns});
        if (saturating_add(due, saturating_mul(r.tpot_ns, kForgivenTokens)) >= now.ns) {
          in.next_token_due = min_of(in.next_token_due, TimeNs{due});
        }
      }
    }
  }
  if (!waiting_.empty()) {
    const RequestRecord& head = desk_[waiting_.top()];
    in.first_arrival = head.arrival;
    if (head.slo.ttft < kUnbounded && head.outputs == 0) {
      in.first_token_due = TimeNs{saturating_add(max_of<std::int64_t>(head.arrival.ns, 0),
                                                 max_of<std::int64_t>(head.slo.ttft.ns, 0))};
    }
    in.next_prompt_tokens = head.prompt_length + head.outputs;
  }
  // The first started prompt. Rows that have ended leave holes, so only a few entries are looked
  // at; beyond them the first waiting one stands for it.
  const std::int32_t end = min_of(prefilling_.start() + 8, prefilling_.end());
  for (std::int32_t i = prefilling_.start(); i < end; ++i) {
    if (const std::int32_t row = prefilling_.at(i); row >= 0) {
      const RowState& r = rows_[static_cast<std::size_t>(row)];
      in.next_prompt_position = r.planned;
      in.next_prompt_tokens = r.known - r.planned;
      break;
    }
  }
  return in;
}

template <class P>
const StepPlan* SchedulerCore<P>::next_plan(TimeNs host_now) noexcept {
  advance_clock(host_now);
  const TimeNs now = now_;
  // Read once: what other threads change meanwhile counts from the next call on, and a flight log
  // can say which it was.
  pause_seen_ = pause_.load(std::memory_order_acquire);
  closed_seen_ = desk_.is_closed();
  flight_limits_.max_tokens = 0;
  take_in(now);
  expire(now);
  policies_.pool.unpin_expired(now);
  wake_loaded();
  prune_forks();
  status_ = {};
  const bool is_alone = config_.num_ranks == 1;
  const bool is_idle = num_waiting() == 0 && num_running_ == 0;
  if (is_idle && num_in_flight_ == 0 && is_alone) {
    status_.state = closed_seen_ && stats().live == 0 ? PlanState::Closed : PlanState::Idle;
    return nullptr;
  }
  if (num_in_flight_ == config_.max_plans_in_flight) {
    status_.state = PlanState::InFlightLimit;
    return nullptr;
  }
  if (pause_seen_ == 2) {
    status_.state = PlanState::Paused;
    return nullptr;
  }
  if (num_in_flight_ > 0 && !in_flight_plan(num_in_flight_ - 1).plan.is_sealed) {
    status_.state = PlanState::NothingRunnable;  // seal() the last plan first
    status_.cause = WaitCause::InFlight;
    return nullptr;
  }
  BatchLimits limits = policies_.sizer.limits(sizer_input(now));
  limits.max_prefill_sequences = max_of(limits.max_prefill_sequences, 1);
  limits.max_decode_sequences = max_of(limits.max_decode_sequences, 1);
  flight_limits_ = limits;
  const bool is_early = limits.not_before > now;
  if (is_early && is_alone) {
    status_.state = PlanState::NotBefore;
    status_.not_before = limits.not_before;
    return nullptr;
  }
  PlanRecord& record = in_flight_plan(num_in_flight_);
  record.clear();
  record.plan.id = PlanId{next_plan_};
  if (!is_early) {
    if constexpr (AdmissionOptions::kHasOnStep) {
      AdmissionOptions::on_step(policies_.admission, compose_input());
    }
    std::int32_t before = 0;
    do {  // once more if all that came out of it is a sequence that left
      before = num_running_;
      record.clear();
      record.plan.id = PlanId{next_plan_};
      compose(record, limits);
      prune_forks();
    } while (record.num_chunks == 0 && num_running_ < before);
  }
  if (record.num_chunks == 0 && is_alone) {
    explain_empty();
    return nullptr;
  }
  count_chunks(record);
  show_chunks(record, now);
  if (is_alone) {
    seal(record, {});
  }
  ++num_in_flight_;
  ++next_plan_;
  status_.state = PlanState::Planned;
  counters_.plans.add(1);
  counters_.in_flight.set(static_cast<std::uint64_t>(num_in_flight_));
  return &record.plan;
}

template <class P>
void SchedulerCore<P>::compose(PlanRecord& record, const BatchLimits& limits) noexcept {
  decoding_.squeeze(rows_.data());
  prefilling_.squeeze(rows_.data());
  first_cause_ = WaitCause::None;
  flight_waits_.clear();
  if (watch_.is_on()) {
    watch_.begin_look();
  }
  const Composition composition = policies_.admission.compose(compose_input());
  Budget budget;
  budget.tokens = clamp_to<std::int64_t>(limits.max_tokens, 1, caps_.max_tokens);
  budget.prefill_tokens = clamp_to<std::int64_t>(limits.max_prefill_tokens, 1, budget.tokens);
  const bool was_empty = num_running_ == 0;
  // Decodes that use up every step would starve a started prefill: it goes first the next time.
  const bool prefill_first = composition.prefill_before_decode || prefill_skipped_;
  prefill_skipped_ = false;
  if (prefill_first) {
    plan_prefill_work(record, limits, composition, budget);
  }
  if (composition.decode && !(composition.stop_decode_if_prefill && budget.prefill_chunks > 0)) {
    plan_decodes(record, budget);
  }
  if (!prefill_first) {
    plan_prefill_work(record, limits, composition, budget);
  }
  if (budget.chunk_dropped) {
    drop_planned_chunks(record);
  }
  if (composition.pad_to_batch) {
    if (was_empty) {
      batch_rows_ = num_running_;
      batch_context_ = 0;
    } else if (budget.prefill_chunks == 0) {
      ++batch_context_;  // rows that have ended stay, and grow with the batch
    }
    for (std::size_t i = 0; i < record.num_chunks; ++i) {
      batch_context_ = max_of(batch_context_, record.chunks[i].context_length);
    }
  }
  record.pads_to_batch = composition.pad_to_batch;
  if (flight_.is_on() && !waiting_.empty()) {
    note_head(budget.preempted);
  }
  if (watch_.is_on() && !waiting_.empty()) {
    watch_head(budget.preempted);
  }
}

template <class P>
void SchedulerCore<P>::plan_prefill_work(PlanRecord& record, const BatchLimits& limits,
                                         const Composition& composition, Budget& budget) noexcept {
  const LateTurn turn = late_turn(limits);
  budget.sorts_late = turn != LateTurn::Off;
  const std::int32_t parts = budget.sorts_late ? 2 : 1;
  for (std::int32_t i = 0; i < parts; ++i) {
    const bool is_late = (i == 1) != (turn == LateTurn::First);
    if (composition.prefill && prefilling_.size() > 0) {
      prefilling_.set_walked(true);
      plan_prefills(record, budget, is_late, i == 0);
      prefilling_.set_walked(false);
    }
    if (composition.admit && !(waiting_.empty() && (num_parked_ == 0 || num_running_ > 0))) {
      admit(record, limits, budget, is_late);
    }
  }
}

template <class P>
void SchedulerCore<P>::plan_decodes(PlanRecord& record, Budget& budget) noexcept {
  // From the first row that the last step left out to the end, then from the front up to there.
  const std::int32_t start = decoding_.start();
  decoding_.set_walked(true);
  if (plan_decodes_between(record, start, decoding_.end(), budget) &&
      plan_decodes_between(record, 0, start, budget)) {
    decoding_.set_start(0);
  }
  decoding_.set_walked(false);
}

/// Plans the decodes of list entries [index, end); false if the budget ran out before.
template <class P>
bool SchedulerCore<P>::plan_decodes_between(PlanRecord& record, std::int32_t index,
                                            std::int32_t end, Budget& budget) noexcept {
  for (; index < end; ++index) {
    if (block_size_ > 0) {
      index = append_plain_decodes(record, index, end, budget.tokens);
      if (index >= end) {
        break;
      }
    }
    const std::int32_t row = decoding_.at(index);
    if (row < 0) {
      continue;
    }
    const RowState& r = rows_[static_cast<std::size_t>(row)];
    if (!may_plan(r) || r.known + r.pending_samples >= r.known_limit) {
      continue;  // it stands in a plan in flight, or in this one, or all it may produce is planned
    }
    if (r.is_beam) {
      if (!plan_beams(record, row, budget)) {
        decoding_.set_start(index);
        return false;
      }
      continue;
    }
    if (budget.tokens == 0) {
      decoding_.set_start(index);  // whom this step leaves out comes first in the next
      return false;
    }
    if (r.planned >= r.table_tokens && !grow(record, row, r.planned + 1, budget)) {
      continue;
    }
    budget.tokens -= append_decode(record, row, budget.tokens);
  }
  return true;
}

template <class P>
void SchedulerCore<P>::plan_prefills(PlanRecord& record, Budget& budget, bool is_late,
                                     bool is_first) noexcept {
  const std::int32_t end = prefilling_.end();
  std::int32_t index = prefilling_.start();
  for (std::int32_t i = 0; i < end; ++i, ++index) {
    if (index >= end) {
      index = 0;
    }
    const std::int32_t row = prefilling_.at(index);
    if (row < 0) {
      continue;
    }
    const RowState& r = rows_[static_cast<std::size_t>(row)];
    if (!may_plan(r) || (budget.sorts_late && desk_[r.slot].is_late != is_late)) {
      continue;
    }
    const std::int64_t left = min_of(budget.tokens, budget.prefill_tokens);
    if (left == 0) {
      if (is_first) {  // whose turn is over anyway waits for the next one
        prefilling_.set_start(index);
        prefill_skipped_ = true;
      }
      return;
    }
    const std::int64_t remaining = r.known - r.planned;
    std::int64_t n = policies_.admission.chunk({.remaining_tokens = remaining,
                                                .budget_tokens = left,
                                                .block_size = max_of(block_size_, 1)});
    n = clamp_to<std::int64_t>(n, record.num_chunks == 0 ? 1 : 0, min_of(left, remaining));
    // A chunk that did not run leaves an atomic prompt unstarted: it still runs whole, first in its
    // step.
    const std::int64_t whole = desk_[r.slot].atomic_prefill ? r.prompt_end - r.planned : 0;
    if (n < whole) {
      if (record.num_chunks > 0) {
        prefill_skipped_ = prefill_skipped_ || is_first;
        note_blocked(r.slot, WaitCause::Budget);
        continue;
      }
      n = whole;
      budget.tokens = max_of(budget.tokens, n);
      budget.prefill_tokens = max_of(budget.prefill_tokens, n);
    }
    if (has_more_groups() && whole == 0) {
      n = PoolOptions::chunk_length(policies_.pool, r.planned, n);
    }
    if (n > 0 && block_size_ > 0) {
      const std::int64_t missing = blocks_for(r.planned + n) - blocks_for(r.table_tokens);
      if (missing > spare_blocks() + r.held_blocks) {
        // The longest running sequence takes blocks from others, so that somebody always gets on;
        // the others make do with what there is, and wait.
        if (r.older < 0 && !make_room(record, row, missing, budget) &&
            r.phase != RowPhase::Prefill) {
          continue;  // it gave way itself, or ended
        }
        const std::int64_t room =
            r.table_tokens + max_of<std::int64_t>(spare_blocks() + r.held_blocks, 0) * block_size_;
        n = min_of(n, room - r.planned);
        n = n < whole ? 0 : n;
      }
    }
    if (n <= 0) {
      note_blocked(r.slot, block_size_ > 0 && r.planned >= r.table_tokens ? WaitCause::Memory
                                                                          : WaitCause::Budget);
      continue;
    }
    append_prefill(record, row, static_cast<std::int32_t>(n), budget);
  }
  if (is_first) {
    prefilling_.set_start(0);
  }
}

template <class P>
void SchedulerCore<P>::explain_empty() noexcept {
  status_.state = PlanState::NothingRunnable;
  if (num_loading_ > 0) {
    status_.not_before = PoolLoads::next_load_end(policies_.pool);
  }
  if (first_cause_ != WaitCause::None) {
    status_.cause = first_cause_;
    status_.request = first_blocked_;
  } else if (num_in_flight_ > 0) {
    status_.cause = WaitCause::InFlight;
    const std::int32_t row = oldest_row_;
    if (row >= 0) {
      status_.request = desk_[rows_[static_cast<std::size_t>(row)].slot].id;
    }
  } else if (!waiting_.empty()) {
    status_.cause = pause_seen_ != 0 ? WaitCause::Paused : WaitCause::Composition;
    status_.request = desk_[waiting_.top()].id;
  } else if (num_loading_ > 0) {
    status_.cause = WaitCause::Loading;
    for (const SlotList& list : loading_.span()) {
      status_.request = list.first != kNoSlot ? desk_[list.first].id : status_.request;
    }
  } else if (num_running_ == 0) {
    status_.state = closed_seen_ && stats().live == 0 ? PlanState::Closed : PlanState::Idle;
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
