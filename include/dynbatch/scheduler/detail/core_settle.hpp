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
  if (result.tokens.size() != samples || !result.continuations.empty() || !result.drafts.empty() ||
      !result.draft_begin.empty() || result.is_overfull || !result.expert_counts.empty()) {
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
  if (result.is_overfull) {
    return bad(
        "tokens", static_cast<std::int64_t>(result.tokens.size()), 0,
        "the result buffer was made for smaller plans, or more was added than the plan wants");
  }
  if (!result.draft_begin.empty()) {
    bool is_csr = result.draft_begin.size() == samples + 1 && result.draft_begin.front() == 0 &&
                  result.draft_begin.back() == static_cast<std::int64_t>(result.drafts.size());
    for (std::size_t i = 0; is_csr && i < samples; ++i) {
      is_csr = result.draft_begin[i] <= result.draft_begin[i + 1];
    }
    if (!is_csr) {
      return bad("draft_begin", static_cast<std::int64_t>(result.draft_begin.size()),
                 static_cast<std::int64_t>(samples) + 1,
                 "a CSR over the plan's samples from 0 to drafts.size()");
    }
  } else if (!result.drafts.empty()) {
    return bad("drafts", static_cast<std::int64_t>(result.drafts.size()), 0,
               "drafts need draft_begin");
  }
  for (const Token token : result.drafts) {
    if (token < 0) {
      return bad("drafts", token, 0, "token ids must not be negative");
    }
  }
  if (!result.expert_counts.empty() && static_cast<std::int64_t>(result.expert_counts.size()) !=
                                           std::int64_t{caps_.num_layers} * caps_.num_experts) {
    return bad("expert_counts", static_cast<std::int64_t>(result.expert_counts.size()),
               std::int64_t{caps_.num_layers} * caps_.num_experts, "one count a layer and expert");
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
      if (result.token_begin[i + 1] < result.token_begin[i]) {
        return bad("token_begin", result.token_begin[i + 1], result.token_begin[i],
                   "must not descend");
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
    if (outcome.reason > FinishReason::Host) {
      return bad("outcome.reason", static_cast<std::int64_t>(outcome.reason),
                 static_cast<std::int64_t>(FinishReason::Host), "no such reason");
    }
    const bool is_run = outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop;
    const std::int32_t most = chunk.kind == ChunkKind::Decode ? chunk.num_tokens : 1;
    const SampleTokens all{result.tokens.data(),
                           result.token_begin.empty() ? nullptr : result.token_begin.data()};
    for (std::int32_t s = 0; s < chunk.num_samples; ++s) {
      const std::span<const Token> tokens = all.of(chunk.first_sample + s);
      const auto produced = static_cast<std::int64_t>(tokens.size());
      if (produced > most || (is_run && produced == 0)) {
        return bad("token_begin", produced, most,
                   "a sample that ran has one token, and one more for each accepted draft");
      }
      for (std::int64_t d = 0; d + 1 < produced; ++d) {
        const Token draft = plan.tokens[static_cast<std::size_t>(chunk.first_token + 1 + d)];
        if (tokens[static_cast<std::size_t>(d)] != draft) {
          return bad("tokens", tokens[static_cast<std::size_t>(d)], draft,
                     "an accepted draft differs from the token that was sampled");
        }
      }
    }
    if (outcome.kind == OutcomeKind::Partial &&
        (outcome.tokens < 0 || outcome.tokens >= chunk.num_tokens)) {
      return bad("outcome.tokens", outcome.tokens, chunk.num_tokens - 1,
                 "a partial chunk ran fewer tokens than it has");
    }
    if (outcome.kind == OutcomeKind::Stop &&
        (outcome.tokens < 0 ||
         outcome.tokens > (chunk.num_samples == 0
                               ? 0
                               : static_cast<std::int32_t>(all.of(chunk.first_sample).size())))) {
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
  feedback.work = padded_work(plan);
  bool ran_in_full = true;
  for (const Outcome& outcome : result.outcomes) {
    ran_in_full =
        ran_in_full && (outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop);
  }
  feedback.measured = ran_in_full ? result.measured : DurationNs{};
  policies_.sizer.observe(feedback);
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
  for (std::size_t i = 0; i < record.num_chunks && !result.outcomes.empty(); ++i) {
    const Outcome& outcome = result.outcomes[i];
    if (outcome.kind == OutcomeKind::NotRun || outcome.kind == OutcomeKind::Failed) {
      undo_chunk(record.chunks[i], record.undo[i], false, outcome.kind == OutcomeKind::Failed,
                 false, now);
    } else if (outcome.kind == OutcomeKind::Partial) {
      Chunk rest = record.chunks[i];
      // A decode that was cut short produced nothing that stands: it runs again as a whole.
      rest.first_position += rest.kind == ChunkKind::Prefill ? outcome.tokens : 0;
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
      const SampleTokens samples{result.tokens.data(),
                                 result.token_begin.empty() ? nullptr : result.token_begin.data()};
      RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
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

/// A decode with drafts: the accepted ones and the token after them are known, the rest of its
/// positions is forgotten.
template <class P>
void SchedulerCore<P>::settle_drafted(const Chunk& chunk, std::span<const Token> tokens, TimeNs now,
                                      StepFeedback& feedback) noexcept {
  RowState& r = rows_.data()[chunk.row.value];
  FinishReason reason = FinishReason::None;
  std::int32_t taken = 0;
  for (const Token token : tokens) {
    append_output(r, token, now);
    ++taken;
    reason = stop_reason(r, token);
    if (reason != FinishReason::None) {
      break;  // what follows a stop is cut
    }
  }
  counters_.accepted_drafts.add(static_cast<std::uint64_t>(max_of(taken - 1, 0)));
  r.draft_tokens = 0;
  r.committed = chunk.first_position + max_of(taken, 1);
  decoding_kv_ -= r.planned - r.committed;
  r.planned = r.committed;
  r.plain_end = 0;
  if (r.committed >= r.next_publish) {
    policies_.pool.publish(chunk.row, content(r.slot, r.known), min_of(r.committed, r.known),
                           kNoPlan);
    r.next_publish = (r.committed / block_size_ + 1) * block_size_;
  }
  if (reason != FinishReason::None) {
    finish_row(chunk.row.value, reason, now, feedback);
  }
}

/// Keeps the proposals for the sequences' next decodes.
template <class P>
void SchedulerCore<P>::take_drafts(const PlanRecord& record, const StepResult& result) noexcept {
  if (result.draft_begin.empty() || config_.max_draft_tokens == 0) {
    return;
  }
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    const Chunk& chunk = record.chunks[i];
    RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
    if (chunk.num_samples == 0 || r.epoch != record.undo[i].epoch || r.phase != RowPhase::Decode) {
      continue;
    }
    const auto s = static_cast<std::size_t>(chunk.first_sample);
    const auto first = static_cast<std::size_t>(result.draft_begin[s]);
    const auto count = static_cast<std::size_t>(
        min_of(result.draft_begin[s + 1] - result.draft_begin[s], config_.max_draft_tokens));
    Token* to = drafts_.data() + static_cast<std::size_t>(chunk.row.value) *
                                     static_cast<std::size_t>(config_.max_draft_tokens);
    for (std::size_t d = 0; d < count; ++d) {
      to[d] = result.drafts[first + d];
    }
    r.num_drafts = static_cast<std::int32_t>(count);
    if (count > 0) {
      r.plain_end = 0;
    }
  }
}

/// Notes what a fork has to copy; until the next plan tells it, the source keeps its blocks.
template <class P>
void SchedulerCore<P>::lend(std::int32_t source, std::int32_t target, const BlockCopy& copy,
                            std::int32_t tokens) noexcept {
  if (fork_copies_.size() == fork_copies_.capacity()) {
    prune_forks();
  }
  ++rows_[static_cast<std::size_t>(source)].lent;
  const RowState& r = rows_[static_cast<std::size_t>(target)];
  fork_copies_.push_back({copy, Row{source}, Row{target}, r.residence, tokens});
}

/// A further sample starts from the prompt that the first one has computed. It gets the row that
/// was kept for it; the rest of the prompt's last block is copied with the next plan.
template <class P>
void SchedulerCore<P>::fork_sample(std::int32_t row, std::uint32_t child, Token token, TimeNs now,
                                   StepFeedback& feedback) noexcept {
  RowState& parent = rows_[static_cast<std::size_t>(row)];
  --parent.reserved_rows;
  --reserved_rows_;
  if (parent.fork_blocks > 0) {
    --parent.fork_blocks;
    --held_blocks_;
  }
  const std::int32_t target = take_row(child);
  RowState& r = rows_[static_cast<std::size_t>(target)];
  const std::int32_t length = parent.prompt_end;
  r.recompute_end = 0;
  const bool is_forked = policies_.pool.fork(Row{row}, Row{target}, length).is_ok();
  if (is_forked) {
    r.planned = length;
    r.committed = length;
    if (block_size_ > 0) {
      const std::span<const BlockId> from = policies_.pool.table(0, Row{row});
      const std::span<const BlockId> to = policies_.pool.table(0, Row{target});
      r.table_tokens = static_cast<std::int32_t>(to.size()) * block_size_;
      if (length % block_size_ != 0) {
        lend(row, target, {from[to.size() - 1], to.back(), length % block_size_}, length);
      }
    } else {
      lend(row, target, {}, length);
    }
    if (shares_prefixes_) {
      r.next_publish = (length / block_size_ + 1) * block_size_;
    }
  }
  set_phase(target, RowPhase::Decode);
  append_output(r, token, now);
  const FinishReason reason = stop_reason(r, token);
  if (reason != FinishReason::None) {
    finish_row(target, reason, now, feedback);
  } else if (!is_forked) {
    flush_outputs();
    detach_row(target, true);  // a pool that cannot fork: the sample computes its prompt itself
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
  flush_outputs();  // the row takes its outputs out of the sum as it leaves
  ++feedback.num_finished;
  feedback.finished_output_tokens += r.known - r.prompt_end;
  finish_sequence(r.slot, reason, now);
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
  roll_back(row, chunk.first_position,
            is_youngest ? r.pending_samples - (chunk.num_samples > 0 ? 1 : 0) : 0,
            undo.phase_before);
  r.is_stale = !is_youngest && r.in_flight > 1;
  record.retries += is_charged ? 1 : 0;
  if (flight_.is_on()) {
    record_undone(r, is_charged, false);
  }
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
        if (flight_.is_on()) {
          record_undone(r, false, true);
        }
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
  for (std::int32_t p = first; p < num_in_flight_; ++p) {
    for (const ForkCopy& fork : in_flight_plan(p).forks) {
      const RowState& r = rows_[static_cast<std::size_t>(fork.row.value)];
      if (r.residence == fork.residence &&
          (r.phase == RowPhase::Decode || r.phase == RowPhase::Prefill)) {
        detach_row(fork.row.value, true);  // the source may be gone: the sample computes its prompt
      }
    }
  }
  reset_readers();
  for (std::int32_t p = num_in_flight_ - 1; p >= first; --p) {
    PlanRecord& record = in_flight_plan(p);
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
