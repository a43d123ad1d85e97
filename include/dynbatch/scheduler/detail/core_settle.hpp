// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: takes results in, undoes what did not run.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
Status SchedulerCore<P>::commit(const StepPlan& plan, const StepResult& result,
                                TimeNs host_now) noexcept {
  if (num_in_flight_ == 0 || &in_flight_plan(0).plan != &plan) {
    return {Errc::WrongPlan, "plan", static_cast<std::int64_t>(plan.id.value),
            num_in_flight_ == 0 ? 0 : static_cast<std::int64_t>(in_flight_plan(0).plan.id.value),
            "plans are committed in order, oldest first"};
  }
  if (!plan.is_sealed) {
    return {Errc::WrongPlan, "plan", static_cast<std::int64_t>(plan.id.value), 0,
            "a plan is sealed before it is executed and committed"};
  }
  const bool is_plain = is_plain_result(plan, result);
  if (!is_plain) {
    if (const Status s = validate_result(plan, result); !s) {
      return s;
    }
  }
  advance_clock(host_now);
  const TimeNs now = now_;
  if (flight_.is_on()) {
    record_commit(plan, result, is_plain, now);
  }
  PlanRecord& record = in_flight_plan(0);
  StepFeedback feedback;
  finished_outputs_.clear();
  // What the plan wrote is there before any row leaves, or the pool would not keep it.
  if (is_plain) {
    policies_.pool.settle(plan.id);
    settle_plain(record, result.tokens.data(), now, feedback);
  } else {
    settle_mixed(record, result, now, feedback);
    take_drafts(record, result);
  }
  flush_outputs();
  for (const ExpertMove& move : record.moves) {
    policies_.balancer.confirm(move.layer);
  }
  if (!result.expert_counts.empty()) {
    policies_.balancer.observe({.num_layers = caps_.num_layers,
                                .num_experts = caps_.num_experts,
                                .counts = result.expert_counts,
                                .is_prefill = record.plan.num_prefill_chunks > 0});
  }
  feedback.now = now;
  feedback.finished = finished_outputs_.span();
  feedback.work = padded_work(plan);
  bool ran_in_full = true;
  for (const Outcome& outcome : result.outcomes) {
    ran_in_full =
        ran_in_full && (outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop);
  }
  feedback.measured = ran_in_full ? result.measured : DurationNs{};
  policies_.sizer.observe(feedback);
  drop_told_forks(record);
  finish_copies(record);
  oldest_ = oldest_ + 1 == config_.max_plans_in_flight ? 0 : oldest_ + 1;
  prune_forks();  // also when nothing is planned any more, sources must not wait for ever
  --num_in_flight_;
  counters_.in_flight.set(static_cast<std::uint64_t>(num_in_flight_));
  return kOk;
}

/// Takes in a result in which everything ran. The loop body is the common decode; all else is
/// called.
template <class P>
void SchedulerCore<P>::settle_plain(PlanRecord& record, const Token* tokens, TimeNs now,
                                    StepFeedback& feedback) noexcept {
  RowState* const states = rows_.data();
  const Chunk* const chunks = record.chunks.data();
  const ChunkUndo* const undo = record.undo.data();
  const std::size_t num_chunks = record.num_chunks;
  for (std::size_t i = 0; i < num_chunks; ++i) {
    const Chunk& chunk = chunks[i];
    RowState& r = states[chunk.row.value];
    // Planned as plain, so nothing can end with it; the row may have left, or its page may be full.
    if (undo[i].is_plain && r.epoch == undo[i].epoch && r.phase == RowPhase::Decode &&
        r.write_room > 0) {
      const Token token = tokens[chunk.first_sample];
      r.committed = chunk.context_length;
      --r.pending_samples;
      *r.write++ = token;
      --r.write_room;
      r.last_token = token;
      r.last_token_ns = now.ns;
      ++r.known;
      --r.in_flight;
      ++settled_outputs_;
      if (!r.is_dirty) {
        r.is_dirty = true;
        push_dirty(r.slot);
      }
      continue;
    }
    settle_chunk(chunk, undo[i], {tokens, nullptr}, -1, now, feedback);
    drop_in_flight(chunk.row.value);
  }
}

/// Takes in a result with outcomes of all kinds. First what did not run: its readers, in this plan
/// too, must not count as done.
template <class P>
void SchedulerCore<P>::settle_mixed(PlanRecord& record, const StepResult& result, TimeNs now,
                                    StepFeedback& feedback) noexcept {
  bool is_withdrawn = false;
  for (std::size_t i = 0; i < record.num_chunks && !result.outcomes.empty(); ++i) {
    Outcome outcome = result.outcomes[i];
    if (record.undo[i].is_beam && outcome.kind != OutcomeKind::Failed &&
        !beams_ran(record, result, i)) {
      outcome = {OutcomeKind::NotRun, FinishReason::None, 0};  // one for all, all for one
    }
    is_withdrawn =
        is_withdrawn || (outcome.kind != OutcomeKind::Ok && outcome.kind != OutcomeKind::Stop);
    if (outcome.kind == OutcomeKind::NotRun || outcome.kind == OutcomeKind::Failed) {
      const bool has_failed = outcome.kind == OutcomeKind::Failed;
      if (has_more_groups() && result.outcomes[i].kind == OutcomeKind::NotRun) {
        keep_states(record.chunks[i], record.undo[i], record.plan.id);
      }
      undo_chunk(record.chunks[i], record.undo[i],
                 {.is_charged = has_failed,
                  .is_spoiled = has_failed || result.outcomes[i].kind != OutcomeKind::NotRun},
                 now);
    } else if (outcome.kind == OutcomeKind::Partial) {
      Chunk rest = record.chunks[i];
      // A decode that was cut short produced nothing that stands: it runs again as a whole.
      rest.first_position += rest.kind == ChunkKind::Prefill ? outcome.tokens : 0;
      RowState& r = rows_[static_cast<std::size_t>(rest.row.value)];
      if (r.epoch == record.undo[i].epoch && r.phase != RowPhase::Draining) {
        r.committed = rest.first_position;
      }
      undo_chunk(rest, record.undo[i], {}, now);
      if (has_more_groups() && r.phase != RowPhase::Draining && r.phase != RowPhase::Free) {
        advance_groups(rest.row.value);
      }
    }
  }
  if (is_withdrawn) {
    reset_readers();
  }
  policies_.pool.settle(record.plan.id);
  std::span<const Continuation> continuations = result.continuations;
  std::size_t continued_end = 0;  // chunks before it went on by continuations
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    const Chunk& chunk = record.chunks[i];
    if (!continuations.empty() && i >= continued_end && record.undo[i].is_beam) {
      const std::size_t end = beams_end(record, i);
      const std::size_t n = num_continuations(record, i, end, continuations);
      if (n > 0) {
        settle_beams(record, i, end, continuations.first(n), now, feedback);
        continuations = continuations.subspan(n);
        continued_end = end;
      }
    }
    if (i < continued_end) {
      drop_in_flight(chunk.row.value);
      continue;
    }
    const Outcome outcome = result.outcomes.empty() ? Outcome{} : result.outcomes[i];
    if (outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop) {
      const SampleTokens samples{result.tokens.data(),
                                 result.token_begin.empty() ? nullptr : result.token_begin.data()};
      const RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const bool is_live = r.epoch == record.undo[i].epoch && r.phase != RowPhase::Draining;
      const bool is_stop = outcome.kind == OutcomeKind::Stop;
      settle_chunk(chunk, record.undo[i], samples, is_stop ? outcome.tokens : -1, now, feedback);
      if (is_stop && is_live && r.phase != RowPhase::Draining) {
        finish_row(chunk.row.value,
                   outcome.reason == FinishReason::None ? FinishReason::Host : outcome.reason, now,
                   feedback);
      }
    }
    drop_in_flight(chunk.row.value);
  }
}

/// A chunk that ran: its positions are in KV, its samples are known. `kept` >= 0 bounds the tokens
/// that the host keeps of them.
template <class P>
void SchedulerCore<P>::settle_chunk(const Chunk& chunk, const ChunkUndo& undo,
                                    const SampleTokens& samples, std::int32_t kept, TimeNs now,
                                    StepFeedback& feedback) noexcept {
  RowState& r = rows_.data()[chunk.row.value];
  if (r.epoch != undo.epoch || r.phase == RowPhase::Draining) {
    return;  // rolled back, reset or ended meanwhile: the surplus is dropped
  }
  r.committed = chunk.first_position + chunk.num_tokens;
  if (has_more_groups() && r.draft_tokens == 0) {
    advance_groups(chunk.row.value);
  }
  if (chunk.num_samples == 0) {
    if (r.known == r.known_limit && r.committed == r.known) {
      finish_row(chunk.row.value, FinishReason::Length, now,
                 feedback);  // max_new_tokens = 0: the prompt was all
    }
    return;
  }
  --r.pending_samples;
  std::span<const Token> tokens = samples.of(chunk.first_sample);
  if (kept >= 0) {
    tokens = tokens.first(static_cast<std::size_t>(kept));
  }
  if (r.draft_tokens > 0) {
    settle_drafted(chunk, tokens, now, feedback);
    return;
  }
  if (chunk.num_samples > 1) {
    RequestRecord& root = desk_[r.slot];
    root.is_forked = true;
    std::uint32_t child = root.next_sample;
    for (std::int32_t i = 1; i < chunk.num_samples; ++i) {
      const std::uint32_t next = desk_[child].next_sample;
      fork_sample(chunk.row.value, child, samples.of(chunk.first_sample + i)[0], now, feedback);
      child = next;
    }
  }
  if (!tokens.empty()) {
    append_output(r, tokens[0], now);
    const FinishReason reason = stop_reason(r, tokens[0]);
    if (reason != FinishReason::None) {
      finish_row(chunk.row.value, reason, now, feedback);
    }
  }
}

template <class P>
void SchedulerCore<P>::append_output(RowState& r, Token token, TimeNs now) noexcept {
  if (r.write_room == 0) {
    open_page(r);
  }
  *r.write++ = token;
  --r.write_room;
  r.last_token = token;
  r.last_token_ns = now.ns;
  if (r.known++ == r.prompt_end) {
    r.first_token_ns = now.ns;
    if (watch_.is_on()) {
      watch_.first_token(root_of(r), now);
    }
  }
  ++settled_outputs_;
  if (!r.is_dirty) {
    r.is_dirty = true;
    push_dirty(r.slot);
  }
}

/// Finds the place of the next output: the rest of a page, or a new one from the request's promise.
template <class P>
void SchedulerCore<P>::open_page(RowState& r) noexcept {
  RequestRecord& record = desk_[r.slot];
  const std::int64_t position = r.known + record.token_base;
  const std::int64_t page_tokens = desk_.tokens().page_tokens();
  const std::int64_t page = position / page_tokens;
  if (page >= record.pages) {
    desk_.tokens().add_pages(r.slot, record.pages, page + 1);
    record.pages = page + 1;
  }
  r.write = desk_.tokens().at(r.slot, position);
  r.write_room = static_cast<std::int32_t>(page_tokens - position % page_tokens);
}

template <class P>
FinishReason SchedulerCore<P>::stop_reason(const RowState& r, Token token) const noexcept {
  if (r.checks_tokens) {
    const RequestRecord& record = desk_[r.slot];
    if (r.known - r.prompt_end >= record.min_new) {
      for (std::uint8_t i = 0; i < record.num_stop; ++i) {
        if (record.stop_tokens[i] == token) {
          return FinishReason::StopToken;
        }
      }
    }
  }
  if (r.known < r.known_limit) {
    return FinishReason::None;
  }
  return desk_[r.slot].open_ended ? FinishReason::Capacity : FinishReason::Length;
}

template <class P>
void SchedulerCore<P>::finish_row(std::int32_t row, FinishReason reason, TimeNs now,
                                  StepFeedback& feedback) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  flush_outputs();  // the row takes its outputs out of the sum as it leaves
  finished_outputs_.push_back({r.known - r.prompt_end, desk_[r.slot].request_class, r.prompt_end});
  ++feedback.num_finished;
  feedback.finished_output_tokens += r.known - r.prompt_end;
  finish_sequence(r.slot, reason, now);
}

/// A chunk that did not run, or not to its end: the row stands again at the chunk's first position.
/// If it isn't the youngest one of its row, the younger ones become void.
template <class P>
void SchedulerCore<P>::undo_chunk(const Chunk& chunk, const ChunkUndo& undo, const Undoing& how,
                                  TimeNs now) noexcept {
  const std::int32_t row = chunk.row.value;
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.epoch != undo.epoch || r.phase == RowPhase::Draining) {
    // It is on its way out; what it made visible was never written.
    policies_.pool.withdraw(Row{row}, chunk.first_position);
    return;
  }
  RequestRecord& record = desk_[r.slot];
  roll_back(row, chunk.first_position,
            how.is_youngest ? r.pending_samples - (chunk.num_samples > 0 ? 1 : 0) : 0,
            undo.phase_before);
  r.is_stale = !how.is_youngest && r.in_flight > 1;
  record.retries += how.is_charged ? 1 : 0;
  if (flight_.is_on()) {
    record_undone(r, how.is_charged, false);
  }
  if (how.is_fatal || record.retries > config_.max_retries) {
    end_request(r.slot, EventKind::Failed, FinishReason::None, Errc::ExecutorFailed, now);
  } else if ((!caps_.rollback && how.is_spoiled) ||
             PoolOptions::must_leave(policies_.pool, Row{row})) {
    send_back(row);
  }
}

/// Sequences that read blocks which were never written start over; what they wrote on top is as
/// wrong. Failure path: O(rows) for each generation of readers.
template <class P>
void SchedulerCore<P>::reset_readers() noexcept {
  for (bool found = true; found;) {
    found = false;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      RowState& r = rows_[i];
      const Row row{static_cast<std::int32_t>(i)};
      if (r.phase == RowPhase::Free || r.is_reset || !policies_.pool.reads_withdrawn(row)) {
        continue;
      }
      found = true;
      r.is_reset = true;
      ++r.epoch;
      policies_.pool.withdraw(row, r.committed);
      if (r.phase != RowPhase::Draining) {
        if (flight_.is_on()) {
          record_undone(r, false, true);
        }
        send_back(row.value);
      }
    }
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
