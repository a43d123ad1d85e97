// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: takes results in, undoes what did not run.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Shape of a result in which everything ran: one token for each sample. Loops that vectorise.
template <class P>
bool SchedulerCore<P>::is_plain_result(const StepPlan& plan,
                                       const StepResult& result) const noexcept {
  const auto samples = static_cast<std::size_t>(plan.num_samples);
  if (result.tokens.size() != samples || !result.continuations.empty()) {
    return false;
  }
  unsigned kinds = 0;
  for (const Outcome& outcome : result.outcomes) {
    kinds |= static_cast<unsigned>(outcome.kind);
  }
  Token signs = 0;
  for (const Token token : result.tokens) {
    signs |= token;
  }
  std::int32_t shifted = 0;
  if (!result.token_begin.empty()) {
    if (result.token_begin.size() != samples + 1) {
      return false;
    }
    for (std::size_t i = 0; i <= samples; ++i) {
      shifted |= result.token_begin[i] ^ static_cast<std::int32_t>(i);
    }
  }
  return kinds == 0 && signs >= 0 && shifted == 0 &&
         (result.outcomes.empty() || result.outcomes.size() == plan.chunks.size());
}

/// The full check; names what does not fit.
template <class P>
Status SchedulerCore<P>::validate_result(const StepPlan& plan,
                                         const StepResult& result) const noexcept {
  auto bad = [](const char* field, std::int64_t value, std::int64_t limit, const char* text) {
    return Status{Errc::BadResult, field, value, limit, text};
  };
  const auto samples = static_cast<std::size_t>(plan.num_samples);
  if (!result.outcomes.empty() && result.outcomes.size() != plan.chunks.size()) {
    return bad("outcomes", static_cast<std::int64_t>(result.outcomes.size()),
               static_cast<std::int64_t>(plan.chunks.size()),
               "one outcome a chunk, or none at all");
  }
  if (!result.continuations.empty()) {
    return {Errc::NotSupported, "continuations",
            static_cast<std::int64_t>(result.continuations.size()), 0,
            "this version runs no beams"};
  }
  if (!result.token_begin.empty()) {
    if (result.token_begin.size() != samples + 1 || result.token_begin.front() != 0 ||
        result.token_begin.back() != static_cast<std::int64_t>(result.tokens.size())) {
      return bad("token_begin", static_cast<std::int64_t>(result.token_begin.size()),
                 static_cast<std::int64_t>(samples) + 1,
                 "a CSR over the plan's samples from 0 to tokens.size()");
    }
    for (std::size_t i = 0; i < samples; ++i) {
      const std::int64_t n = std::int64_t{result.token_begin[i + 1]} - result.token_begin[i];
      if (n < 0 || n > 1) {
        return bad("token_begin", n, 1,
                   "a sample produces one token, or none if its chunk did not run");
      }
    }
  } else if (result.tokens.size() != samples) {
    return bad("tokens", static_cast<std::int64_t>(result.tokens.size()),
               static_cast<std::int64_t>(samples), "one token a sample");
  }
  for (const Token token : result.tokens) {
    if (token < 0) {
      return bad("tokens", token, 0, "token ids must not be negative");
    }
  }
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    const Outcome outcome = result.outcomes.empty() ? Outcome{} : result.outcomes[i];
    if (outcome.kind > OutcomeKind::Failed) {
      return bad("outcome.kind", static_cast<std::int64_t>(outcome.kind),
                 static_cast<std::int64_t>(OutcomeKind::Failed), "no such outcome");
    }
    const auto s = static_cast<std::size_t>(chunk.first_sample);
    const std::int32_t produced = chunk.num_samples == 0 ? 0
                                  : result.token_begin.empty()
                                      ? 1
                                      : result.token_begin[s + 1] - result.token_begin[s];
    const bool is_run = outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop;
    if (is_run && produced != chunk.num_samples) {
      return bad("token_begin", produced, chunk.num_samples, "a chunk that ran lacks a sample");
    }
    if (outcome.kind == OutcomeKind::Partial &&
        (outcome.tokens < 0 || outcome.tokens >= chunk.num_tokens)) {
      return bad("outcome.tokens", outcome.tokens, chunk.num_tokens - 1,
                 "a partial chunk ran fewer tokens than it has");
    }
    if (outcome.kind == OutcomeKind::Stop &&
        (outcome.tokens < 0 || outcome.tokens > chunk.num_samples)) {
      return bad("outcome.tokens", outcome.tokens, chunk.num_samples,
                 "keeps more tokens than were produced");
    }
  }
  return kOk;
}

template <class P>
Status SchedulerCore<P>::commit(const StepPlan& plan, const StepResult& result,
                                TimeNs host_now) noexcept {
  if (num_in_flight_ == 0 || &in_flight_plan(0).plan != &plan) {
    return {Errc::WrongPlan, "plan", static_cast<std::int64_t>(plan.id.value),
            num_in_flight_ == 0 ? 0 : static_cast<std::int64_t>(in_flight_plan(0).plan.id.value),
            "plans are committed in order, oldest first"};
  }
  const bool is_plain = is_plain_result(plan, result);
  if (!is_plain) {
    if (const Status s = validate_result(plan, result); !s) {
      return s;
    }
  }
  advance_clock(host_now);
  const TimeNs now = now_;
  PlanRecord& record = in_flight_plan(0);
  StepFeedback feedback;
  // What the plan wrote is there before any row leaves, or the pool would not keep it.
  if (is_plain) {
    policies_.pool.settle(plan.id);
    settle_plain(record, result.tokens.data(), now, feedback);
  } else {
    settle_mixed(record, result, now, feedback);
  }
  counters_.output_tokens.add(static_cast<std::uint64_t>(settled_outputs_));
  running_outputs_ += settled_outputs_;
  settled_outputs_ = 0;
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
  feedback.work = padded_work(plan);
  bool ran_in_full = true;
  for (const Outcome& outcome : result.outcomes) {
    ran_in_full =
        ran_in_full && (outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop);
  }
  feedback.measured = ran_in_full ? result.measured : DurationNs{};
  policies_.sizer.observe(feedback);
  oldest_ = oldest_ + 1 == config_.max_plans_in_flight ? 0 : oldest_ + 1;
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
    if (r.epoch == undo[i].epoch && r.phase == RowPhase::Decode && chunk.num_samples == 1 &&
        r.in_flight == 1 && r.write_room > 0 && !r.checks_tokens && r.known + 1 < r.known_limit &&
        r.known != r.prompt_end) {
      const Token token = tokens[chunk.first_sample];
      r.committed = chunk.context_length;
      --r.pending_samples;
      *r.write++ = token;
      --r.write_room;
      r.last_token = token;
      r.last_token_ns = now.ns;
      ++r.known;
      r.in_flight = 0;
      r.is_stale = false;
      ++settled_outputs_;
      if (!r.is_dirty) {
        r.is_dirty = true;
        push_dirty(r.slot);
      }
      continue;
    }
    settle_chunk(chunk, undo[i], chunk.num_samples > 0 ? tokens + chunk.first_sample : nullptr, now,
                 feedback);
    drop_in_flight(chunk.row.value);
  }
}

/// Takes in a result with outcomes of all kinds. First what did not run: its readers, in this plan
/// too, must not count as done.
template <class P>
void SchedulerCore<P>::settle_mixed(PlanRecord& record, const StepResult& result, TimeNs now,
                                    StepFeedback& feedback) noexcept {
  for (std::size_t i = 0; i < record.num_chunks && !result.outcomes.empty(); ++i) {
    const Outcome& outcome = result.outcomes[i];
    if (outcome.kind == OutcomeKind::NotRun || outcome.kind == OutcomeKind::Failed) {
      undo_chunk(record.chunks[i], record.undo[i], false, outcome.kind == OutcomeKind::Failed,
                 false, now);
    } else if (outcome.kind == OutcomeKind::Partial) {
      Chunk rest = record.chunks[i];
      rest.first_position += outcome.tokens;
      RowState& r = rows_[static_cast<std::size_t>(rest.row.value)];
      if (r.epoch == record.undo[i].epoch && r.phase != RowPhase::Draining) {
        r.committed = rest.first_position;
      }
      undo_chunk(rest, record.undo[i], false, false, false, now);
    }
  }
  reset_readers();
  policies_.pool.settle(record.plan.id);
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    const Chunk& chunk = record.chunks[i];
    const Outcome outcome = result.outcomes.empty() ? Outcome{} : result.outcomes[i];
    if (outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop) {
      const auto s = static_cast<std::size_t>(chunk.first_sample);
      const std::size_t at =
          result.token_begin.empty() ? s : static_cast<std::size_t>(result.token_begin[s]);
      const bool keeps =
          chunk.num_samples > 0 && (outcome.kind == OutcomeKind::Ok || outcome.tokens > 0);
      RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const bool is_live = r.epoch == record.undo[i].epoch && r.phase != RowPhase::Draining;
      settle_chunk(chunk, record.undo[i], keeps ? &result.tokens[at] : nullptr, now, feedback);
      if (outcome.kind == OutcomeKind::Stop && is_live && r.phase != RowPhase::Draining) {
        finish_row(chunk.row.value,
                   outcome.reason == FinishReason::None ? FinishReason::Host : outcome.reason, now,
                   feedback);
      }
    }
    drop_in_flight(chunk.row.value);
  }
}

/// A chunk that ran: its positions are in KV. `token` is what it produced, nullptr = nothing.
template <class P>
void SchedulerCore<P>::settle_chunk(const Chunk& chunk, const ChunkUndo& undo, const Token* token,
                                    TimeNs now, StepFeedback& feedback) noexcept {
  RowState& r = rows_.data()[chunk.row.value];
  if (r.epoch != undo.epoch || r.phase == RowPhase::Draining) {
    return;  // rolled back, reset or ended meanwhile: the surplus is dropped
  }
  r.committed = chunk.first_position + chunk.num_tokens;
  r.pending_samples -= chunk.num_samples;
  if (token != nullptr) {
    append_output(r, *token, now);
    const FinishReason reason = stop_reason(r, *token);
    if (reason != FinishReason::None) {
      finish_row(chunk.row.value, reason, now, feedback);
    }
  } else if (r.known == r.known_limit && r.committed == r.known && chunk.num_samples == 0) {
    finish_row(chunk.row.value, FinishReason::Length, now,
               feedback);  // max_new_tokens = 0: the prompt was all
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
  running_outputs_ += settled_outputs_;  // the row takes its outputs out of the sum as it leaves
  counters_.output_tokens.add(static_cast<std::uint64_t>(settled_outputs_));
  settled_outputs_ = 0;
  ++feedback.num_finished;
  feedback.finished_output_tokens += r.known - r.prompt_end;
  end_request(r.slot, EventKind::Finished, reason, Errc::Ok, now);
}

/// A chunk that did not run, or not to its end: the row stands again at the chunk's first position.
/// If it isn't the youngest one of its row, the younger ones become void.
template <class P>
void SchedulerCore<P>::undo_chunk(const Chunk& chunk, const ChunkUndo& undo, bool is_youngest,
                                  bool is_charged, bool is_fatal, TimeNs now) noexcept {
  const std::int32_t row = chunk.row.value;
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.epoch != undo.epoch || r.phase == RowPhase::Draining) {
    // It is on its way out; what it made visible was never written.
    policies_.pool.withdraw(Row{row}, chunk.first_position);
    return;
  }
  RequestRecord& record = desk_[r.slot];
  roll_back(row, chunk.first_position, is_youngest ? r.pending_samples - chunk.num_samples : 0,
            undo.phase_before);
  r.is_stale = !is_youngest && r.in_flight > 1;
  record.retries += is_charged ? 1 : 0;
  if (is_fatal || record.retries > config_.max_retries) {
    end_request(r.slot, EventKind::Failed, FinishReason::None, Errc::ExecutorFailed, now);
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
        detach_row(row.value, true);
      }
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
  for (std::int32_t p = num_in_flight_ - 1; p >= first;
       --p) {  // youngest first: each undoes the one before
    PlanRecord& record = in_flight_plan(p);
    for (std::size_t i = record.num_chunks; i > 0; --i) {
      const Chunk& chunk = record.chunks[i - 1];
      RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const ChunkUndo& undo = record.undo[i - 1];
      const bool is_valid = r.epoch == undo.epoch;
      undo_chunk(chunk, undo, true, why == AbandonReason::Lost && p == first,
                 why == AbandonReason::Fatal, now_);
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
  reset_readers();
  for (std::int32_t p = num_in_flight_ - 1; p >= first; --p) {
    PlanRecord& record = in_flight_plan(p);
    for (std::size_t i = 0; i < record.num_chunks; ++i) {
      drop_in_flight(record.chunks[i].row.value);
    }
  }
  num_in_flight_ = first;
  counters_.in_flight.set(static_cast<std::uint64_t>(num_in_flight_));
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
