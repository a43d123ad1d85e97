// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: what goes into the flight log. Nothing here decides anything; all of it is called
/// only while the recorder is on.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Allocates the ring and writes the header, while the host's spans are still there.
template <class P>
Status SchedulerCore<P>::start_recorder(std::span<const GroupSpec> groups) noexcept {
  if (const Status s = flight_.allocate(config_.flight_log_bytes); !s) {
    return s;
  }
  if (const Status s = flight_waits_.allocate(kMaxFlightWaits, "flight_log_bytes"); !s) {
    return s;
  }
  const PoolStats pool = policies_.pool.stats();
  FlightHeader h;
  h.version = static_cast<std::uint32_t>(kVersionMajor << 16 | kVersionMinor << 8 | kVersionPatch);
  h.max_live_requests = config_.max_live_requests;
  h.max_queued_tokens = config_.max_queued_tokens;
  h.max_context_tokens = config_.max_context_tokens;
  for (std::size_t i = 0; i < kMaxResources; ++i) {
    h.resource_caps[i] = config_.resource_caps[i];
  }
  h.max_tokens = caps_.max_tokens;
  h.kv_tokens = caps_.kv_tokens;
  h.total_blocks = pool.total_blocks;
  h.max_plans_in_flight = config_.max_plans_in_flight;
  h.num_ranks = config_.num_ranks;
  h.rank = config_.rank;
  h.max_draft_tokens = config_.max_draft_tokens;
  h.max_retries = config_.max_retries;
  h.max_media_spans = config_.max_media_spans;
  h.max_waiting_requests = config_.max_waiting_requests;
  h.max_predicted_wait = config_.max_predicted_wait.ns;
  h.max_sequences = caps_.max_sequences;
  h.sequence_handles = caps_.sequence_handles;
  h.num_layers = caps_.num_layers;
  h.num_experts = caps_.num_experts;
  h.block_size = pool.block_size;
  h.num_groups = static_cast<std::uint32_t>(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    h.groups[i] = {static_cast<std::int32_t>(groups[i].kind), groups[i].block_size,
                   groups[i].window};
  }
  h.check_level = DYNBATCH_CHECK_LEVEL;
  h.num_graph_sizes = static_cast<std::uint32_t>(graph_sizes_.size());
  h.label_bytes =
      static_cast<std::uint32_t>(min_of(std::strlen(config_.flight_label), kMaxFlightLabel));
  h.has_content = config_.flight_log_prompts ? 1 : 0;
  h.shares_prefixes = shares_prefixes_ ? 1 : 0;
  h.in_order = caps_.in_order ? 1 : 0;
  h.future_tokens = caps_.future_tokens ? 1 : 0;
  h.device_positions = caps_.device_positions ? 1 : 0;
  h.partial_copy = caps_.partial_copy ? 1 : 0;
  h.partial_share = caps_.partial_share ? 1 : 0;
  h.swap = caps_.swap ? 1 : 0;
  h.rollback = caps_.rollback ? 1 : 0;
  if (!flight_.begin(FlightKind::Header,
                     sizeof(h) + graph_sizes_.size() * sizeof(std::int32_t) + h.label_bytes)) {
    return {Errc::InvalidConfig, "flight_log_bytes", config_.flight_log_bytes, 0,
            "is too small for the header of the log"};
  }
  flight_.add(h);
  flight_.add(std::span<const std::int32_t>(graph_sizes_.span()));
  flight_.add(std::span<const char>(config_.flight_label, h.label_bytes));
  flight_.end();
  return kOk;
}

template <class P>
void SchedulerCore<P>::record_request(std::uint32_t slot, bool was_cancelled, TimeNs now) noexcept {
  const RequestRecord& r = desk_[slot];
  FlightRequest f;
  f.id = r.id.value;
  f.user_data = r.user_data;
  f.tenant = r.tenant;
  f.now = now.ns;
  f.arrival = r.arrival.ns;
  f.start_by = r.start_by.ns;
  f.finish_by = r.finish_by.ns;
  f.ttft = r.slo.ttft.ns;
  f.tpot = r.slo.tpot.ns;
  put_scope(f, r.scope);
  f.prompt_length = r.prompt_length;
  f.max_new_tokens = r.open_ended ? kOpenEnded : r.max_new;
  f.min_new_tokens = r.min_new;
  f.cacheable = r.cacheable;
  f.digest_unit = r.digest_unit;
  f.num_samples = r.num_samples;
  f.priority = r.priority;
  f.num_needs = r.num_needs;
  f.num_stop = r.num_stop;
  f.request_class = static_cast<std::uint8_t>(r.request_class);
  f.no_prefix_read = r.no_prefix_read ? 1 : 0;
  f.sync_decode = r.sync_decode ? 1 : 0;
  f.atomic_prefill = r.atomic_prefill ? 1 : 0;
  f.was_cancelled = was_cancelled ? 1 : 0;
  f.beam_search = r.is_beam ? 1 : 0;
  const bool has_digests = r.digest_unit != 0;
  if (config_.flight_log_prompts) {
    // Digests behind the cacheable part are never compared.
    f.num_content =
        has_digests ? ceil_div(r.cacheable, std::int64_t{r.digest_unit}) : r.prompt_length;
    f.num_media = static_cast<std::uint64_t>(r.num_media);
  }
  const std::size_t unit = has_digests ? sizeof(ContentDigest) : sizeof(Token);
  const std::size_t content_bytes = static_cast<std::size_t>(f.num_content) * unit;
  if (!flight_.begin(FlightKind::Request, sizeof(f) + r.num_needs * sizeof(FlightNeed) +
                                              f.num_media * sizeof(FlightMedia) + content_bytes +
                                              r.num_stop * sizeof(Token))) {
    return;
  }
  flight_.add(f);
  for (std::uint8_t i = 0; i < r.num_needs; ++i) {
    flight_.add(FlightNeed{r.needs[i].resource, r.needs[i].amount});
  }
  record_media(desk_.media(slot).first(f.num_media));
  // Tokens and digests lie alike in the pages of the token store.
  const auto words = static_cast<std::int64_t>(content_bytes / sizeof(Token));
  const std::int64_t page_tokens = desk_.tokens().page_tokens();
  for (std::int64_t p = 0; p < words; p += page_tokens) {
    flight_.add(std::span<const Token>(desk_.tokens().at(slot, p),
                                       static_cast<std::size_t>(min_of(page_tokens, words - p))));
  }
  flight_.add(std::span<const Token>(r.stop_tokens, r.num_stop));
  flight_.end();
}

/// Part of a record.
template <class P>
void SchedulerCore<P>::record_media(std::span<const MediaSpan> media) noexcept {
  for (const MediaSpan& item : media) {
    flight_.add(FlightMedia{item.first_position, item.length, item.content.high, item.content.low});
  }
}

template <class P>
void SchedulerCore<P>::record_cancel(std::uint32_t slot, bool is_in_poll, TimeNs now) noexcept {
  flight_.put(FlightKind::Cancel,
              FlightCancel{desk_[slot].id.value, now.ns, is_in_poll ? std::uint64_t{1} : 0});
}

template <class P>
void SchedulerCore<P>::note_wait(std::uint32_t slot, WaitCause cause) noexcept {
  if (flight_waits_.size() < flight_waits_.capacity()) {
    flight_waits_.push_back(
        {desk_[slot].id.value,
         static_cast<std::uint8_t>(cause),
         desk_[slot].state == RequestState::Running ? FlightBool{1} : FlightBool{0},
         {}});
  }
}

/// Whoever is first in the queue at the end of a plan waits for something, be it that nobody was
/// looked at.
template <class P>
void SchedulerCore<P>::note_head(bool is_preempted) noexcept {
  const std::uint64_t head = desk_[waiting_.top()].id.value;
  for (const FlightWait& wait : flight_waits_) {
    if (wait.request == head && wait.is_running == 0) {
      return;
    }
  }
  note_wait(waiting_.top(), is_preempted ? WaitCause::Memory : WaitCause::Composition);
}

template <class P>
void SchedulerCore<P>::record_plan(const StepPlan* plan) noexcept {
  const StepCost cost = policies_.sizer.cost();
  if (cost.version != flight_cost_) {
    flight_cost_ = cost.version;
    flight_.put(FlightKind::Cost,
                FlightCost{cost.fixed_ns, cost.prefill_token_ps, cost.decode_row_ps,
                           cost.kv_token_ps, cost.attention_pair_fs, cost.version});
  }
  FlightPlan f;
  f.request = status_.request.value;
  f.not_before = status_.not_before.ns;
  f.state = static_cast<std::uint8_t>(status_.state);
  f.cause = static_cast<std::uint8_t>(status_.cause);
  f.pause = static_cast<std::uint8_t>(pause_seen_);
  f.is_closed = closed_seen_ ? 1 : 0;
  f.num_waiting = static_cast<std::int32_t>(waiting_.size());
  f.num_parked = static_cast<std::int32_t>(num_parked_);
  f.num_running = num_running_;
  const bool was_composed = flight_limits_.max_tokens > 0;
  if (!was_composed) {
    // Nothing was asked and nothing changed: the same answer again says nothing. The clock has
    // moved on, but the next call brings it there anyhow; save for an external store, which the
    // pool asks in each call.
    if (!PoolLoads::tells_loads(policies_.pool) && flight_mark_ == flight_.num_records() &&
        f.state == flight_last_.state && f.pause == flight_last_.pause &&
        f.is_closed == flight_last_.is_closed) {
      return;
    }
    flight_last_ = f;
    flight_waits_.clear();
  }
  f.now = now_.ns;
  if (was_composed) {
    f.max_tokens = flight_limits_.max_tokens;
    f.max_prefill_tokens = flight_limits_.max_prefill_tokens;
    f.max_prefill_sequences = flight_limits_.max_prefill_sequences;
    f.max_decode_sequences = flight_limits_.max_decode_sequences;
    f.bound = static_cast<std::uint8_t>(sizer_bound(policies_.sizer));
    flight_last_ = {};
    flight_last_.state = 0xFF;
  }
  if (plan != nullptr) {
    f.plan = plan->id.value;
    f.digest = flight_digest(*plan);
    f.num_decodes = plan->num_decode_chunks;
    f.num_chunks = static_cast<std::uint32_t>(plan->num_prefill_chunks);
  }
  f.num_waits = static_cast<std::uint32_t>(flight_waits_.size());
  if (flight_.begin(FlightKind::Plan, sizeof(f) + f.num_waits * sizeof(FlightWait) +
                                          f.num_chunks * sizeof(FlightChunk))) {
    flight_.add(f);
    flight_.add(std::span<const FlightWait>(flight_waits_.span()));
    for (std::size_t i = 0; f.num_chunks > 0 && i < plan->chunks.size(); ++i) {
      const Chunk& c = plan->chunks[i];
      if (c.kind == ChunkKind::Prefill) {
        flight_.add(
            FlightChunk{c.request.value, c.sample, c.first_position, c.num_tokens, c.num_samples});
      }
    }
    flight_.end();
  }
  flight_waits_.clear();
  flight_mark_ = flight_.num_records();
}

template <class P>
void SchedulerCore<P>::record_seal(const StepPlan& plan,
                                   std::span<const RankSummary> ranks) noexcept {
  if (!flight_.begin(FlightKind::Seal, sizeof(FlightSeal) + ranks.size() * sizeof(FlightRank))) {
    return;
  }
  flight_.add(FlightSeal{plan.id.value, flight_digest(plan), ranks.size()});
  for (const RankSummary& rank : ranks) {
    flight_.add(FlightRank{rank.num_tokens, rank.prefill_tokens, rank.attention_work, rank.num_rows,
                           rank.num_chunks, rank.wants_split ? std::uint64_t{1} : 0});
  }
  flight_.end();
}

/// Before the result changes anything. A plain result needs no outcomes and no CSR.
template <class P>
void SchedulerCore<P>::record_commit(const StepPlan& plan, const StepResult& result, bool is_plain,
                                     TimeNs now) noexcept {
  bool ran_in_full = true;
  for (const Outcome& outcome : result.outcomes) {
    ran_in_full = ran_in_full && outcome.kind == OutcomeKind::Ok;
  }
  FlightCommit f;
  f.plan = plan.id.value;
  f.now = now.ns;
  f.measured = result.measured.ns;
  f.num_tokens = static_cast<std::uint32_t>(result.tokens.size());
  if (!is_plain) {
    f.num_outcomes = ran_in_full ? 0 : static_cast<std::uint32_t>(result.outcomes.size());
    f.num_token_begin = static_cast<std::uint32_t>(result.token_begin.size());
    f.num_draft_begin = static_cast<std::uint32_t>(result.draft_begin.size());
    f.num_drafts = static_cast<std::uint32_t>(result.drafts.size());
    f.num_continuations = static_cast<std::uint32_t>(result.continuations.size());
  }
  const std::size_t words =
      std::size_t{f.num_token_begin} + f.num_draft_begin + f.num_tokens + f.num_drafts;
  if (!flight_.begin(FlightKind::Commit, sizeof(f) + f.num_outcomes * sizeof(FlightOutcome) +
                                             f.num_continuations * sizeof(FlightContinuation) +
                                             words * sizeof(std::int32_t))) {
    return;
  }
  flight_.add(f);
  for (std::uint32_t i = 0; i < f.num_outcomes; ++i) {
    const Outcome& outcome = result.outcomes[i];
    flight_.add(FlightOutcome{static_cast<std::uint8_t>(outcome.kind),
                              static_cast<std::uint8_t>(outcome.reason),
                              {},
                              outcome.tokens});
  }
  record_continuations(in_flight_plan(0), result);
  flight_.add(result.token_begin.first(f.num_token_begin));
  flight_.add(result.draft_begin.first(f.num_draft_begin));
  if (config_.flight_log_prompts) {
    flight_.add(result.tokens);
    flight_.add(result.drafts.first(f.num_drafts));
  } else {
    record_tokens(plan, result);
  }
  flight_.end();
}

/// What stands for a token in a log without content: a stop token itself, else a stand-in that is
/// none.
template <class P>
Token SchedulerCore<P>::hidden_token(const RequestRecord& request, Token token) const noexcept {
  const std::span<const Token> stops(request.stop_tokens, request.num_stop);
  const auto is_stop = [&](Token t) {
    for (const Token stop : stops) {
      if (stop == t) {
        return true;
      }
    }
    return false;
  };
  Token hidden = kHiddenToken;
  while (is_stop(hidden)) {
    --hidden;
  }
  return is_stop(token) ? token : hidden;
}

template <class P>
void SchedulerCore<P>::record_continuations(const PlanRecord& record,
                                            const StepResult& result) noexcept {
  std::size_t i = 0;  // the chunk of the last parent; parents come in plan order of their requests
  for (const Continuation& c : result.continuations) {
    for (std::size_t n = 0; n < record.num_chunks && !(record.chunks[i].sequence == c.parent);
         ++n) {
      i = i + 1 < record.num_chunks ? i + 1 : 0;
    }
    const RowState& r = rows_[static_cast<std::size_t>(record.chunks[i].row.value)];
    flight_.add(FlightContinuation{
        c.parent.slot, c.parent.generation,
        config_.flight_log_prompts ? c.token : hidden_token(desk_[r.slot], c.token), 0});
  }
}

/// The tokens of a log without content: stop tokens of their own request as they are, for they
/// decide; a stand-in for all others. Drafts likewise, behind the tokens.
template <class P>
void SchedulerCore<P>::record_tokens(const StepPlan& plan, const StepResult& result) noexcept {
  for (const bool is_draft : {false, true}) {
    const std::span<const std::int32_t> begin = is_draft ? result.draft_begin : result.token_begin;
    const std::span<const Token> tokens = is_draft ? result.drafts : result.tokens;
    if (tokens.empty()) {
      continue;
    }
    for (const Chunk& chunk : plan.chunks) {
      const RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const RequestRecord& request = desk_[r.slot];
      for (std::int32_t s = chunk.first_sample; s < chunk.first_sample + chunk.num_samples; ++s) {
        const std::int32_t first = begin.empty() ? s : begin[static_cast<std::size_t>(s)];
        const std::int32_t last = begin.empty() ? s + 1 : begin[static_cast<std::size_t>(s) + 1];
        for (std::int32_t t = first; t < last; ++t) {
          flight_.add(hidden_token(request, tokens[static_cast<std::size_t>(t)]));
        }
      }
    }
  }
}

template <class P>
void SchedulerCore<P>::record_admitted(std::uint32_t slot, std::int64_t known,
                                       std::int64_t hit) noexcept {
  const RequestRecord& r = desk_[slot];
  flight_.put(FlightKind::Admitted,
              FlightAdmitted{r.id.value, next_plan_, known, hit, r.sample, r.row.value});
}

template <class P>
void SchedulerCore<P>::record_preempted(const RowState& r) noexcept {
  flight_.put(
      FlightKind::Preempted,
      FlightPreempted{r.request.value, next_plan_, r.known - r.prompt_end, r.sample,
                      desk_[r.slot].preemptions, desk_[desk_[r.slot].root].displacements, 0});
}

template <class P>
void SchedulerCore<P>::record_undone(const RowState& r, bool is_charged, bool is_reader) noexcept {
  FlightUndone f;
  f.request = r.request.value;
  f.now = now_.ns;
  f.sample = r.sample;
  f.position = is_reader ? 0 : r.planned;
  f.retries = desk_[r.slot].retries;
  f.is_charged = is_charged ? 1 : 0;
  f.is_reader = is_reader ? 1 : 0;
  flight_.put(FlightKind::Undone, f);
}

template <class P>
void SchedulerCore<P>::record_ended(const RequestRecord& root) noexcept {
  FlightEnded f;
  f.request = root.id.value;
  f.now = root.event_time.ns;
  for (std::uint32_t at = root.root; at != kNil; at = desk_[at].next_sample) {
    f.outputs += desk_[at].outputs;
  }
  f.kind = static_cast<std::uint8_t>(root.terminal);
  f.reason = static_cast<std::uint8_t>(root.terminal_reason);
  f.error = static_cast<std::uint8_t>(root.error);
  flight_.put(FlightKind::Ended, f);
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
