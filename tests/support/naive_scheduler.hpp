// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A scheduler that is written to be read: it does what docs/design.md says of a step, recomputes
/// every sum when it needs it, and keeps nothing for speed. The property test compares the real one
/// with it, answer by answer.
#include <dynbatch/scheduler/config.hpp>

#include "naive_policies.hpp"
#include "naive_pool.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

namespace dynbatch::test::naive {

class Scheduler {
 public:
  explicit Scheduler(const Setup& setup) : setup_(setup), pool_(setup.blocks, setup.caching) {
    for (std::int32_t row = setup.rows; row-- > 0;) {
      free_rows_.push_back(row);
    }
  }

  // --- intake ---

  Errc submit(const Submission& given) {
    ++stats_.submitted;
    const Errc refused = refusal(given);
    if (refused != Errc::Ok) {
      ++stats_.rejected;
      return refused;
    }
    auto query = std::make_unique<Query>();
    query->given = given;
    query->prompt_length = given.length();
    query->max_new = given.request.max_new_tokens == kOpenEnded
                         ? setup_.kv_limit() + 1 - query->prompt_length
                         : given.request.max_new_tokens;
    query->cacheable =
        given.request.prompt.kind == PromptKind::Tokens
            ? query->limit()
            : static_cast<std::int64_t>(given.digests.size()) * given.request.prompt.digest_unit;
    for (const MediaSpan& span : given.media) {
      query->cacheable = std::min(query->cacheable, span.first_position);
    }
    query->is_atomic = given.request.atomic_prefill || !setup_.rules.split_prompts;
    for (std::int32_t i = 0; i < given.request.num_samples; ++i) {
      query->samples.push_back(std::make_unique<Sequence>());
      query->samples.back()->query = query.get();
      query->samples.back()->sample = i;
    }
    queries_.push_back(std::move(query));
    return Errc::Ok;
  }

  Errc cancel(std::uint64_t id) {
    for (const auto& query : queries_) {
      if (!query->is_delivered && query->request().id.value == id) {
        if (!query->is_cancelled) {
          query->is_cancelled = true;
          cancels_.push_back(query.get());
        }
        return Errc::Ok;
      }
    }
    return Errc::NotFound;
  }

  void close() { is_closed_ = true; }
  /// 0 = go on, 1 = nobody new, 2 = nothing at all.
  void pause(int mode) { pause_ = mode; }
  bool clear_cache() { return pool_.clear(); }

  /// Hands out everything that there is to report.
  void poll() {
    take_cancels();
    for (const auto& query : queries_) {
      query->is_retired = query->is_delivered;
      query->is_delivered = query->is_over;
    }
  }

  // --- one step ---

  /// The next plan, or nullptr; status() says why.
  const Plan* plan(TimeNs now) {
    now_ = std::max(now_, now);
    take_submissions();
    take_cancels();
    expire();
    drop_stale_copies();
    status_ = {};
    if (queue().empty() && running().empty() && plans_.empty()) {
      status_.state = is_closed_ && stats().live == 0 ? PlanState::Closed : PlanState::Idle;
      return nullptr;
    }
    if (static_cast<std::int32_t>(plans_.size()) == setup_.plans) {
      status_.state = PlanState::InFlightLimit;
      return nullptr;
    }
    if (pause_ == 2) {
      status_.state = PlanState::Paused;
      return nullptr;
    }
    std::size_t before = 0;
    do {  // once more if all that came out of it is a sequence that left
      before = running().size();
      new_plan_.emplace();
      new_plan_->id = next_plan_;
      compose();
      drop_stale_copies();
    } while (new_plan_->pieces.empty() && running().size() < before);
    if (new_plan_->pieces.empty()) {
      new_plan_.reset();
      explain();
      return nullptr;
    }
    plans_.push_back(std::move(*new_plan_));
    new_plan_.reset();
    ++next_plan_;
    Plan& plan = plans_.back();
    for (const Copy& copy : copies_) {
      plan.forks.push_back(copy.target);
    }
    while (!copies_.empty()) {
      copies_.erase(copies_.begin());
      free_seats();
    }
    status_.state = PlanState::Planned;
    ++stats_.plans;
    for (const Piece& piece : plan.pieces) {
      Sequence& s = *piece.seat->sequence;
      if (piece.kind == ChunkKind::Prefill) {
        stats_.prefill_tokens += static_cast<std::uint64_t>(piece.size());
        stats_.recomputed_tokens += static_cast<std::uint64_t>(
            std::max<std::int64_t>(std::min(piece.end(), s.computed_before) - piece.first, 0));
      } else {
        ++stats_.decode_tokens;
        stats_.draft_tokens += static_cast<std::uint64_t>(piece.size() - 1);
      }
      s.computed_before = std::max(s.computed_before, piece.end());
    }
    return &plan;
  }

  [[nodiscard]] const PlanStatus& status() const { return status_; }
  [[nodiscard]] const std::deque<Plan>& plans() const { return plans_; }

  /// Settles the oldest plan.
  void commit(const std::vector<Result>& results, TimeNs now) {
    now_ = std::max(now_, now);
    Plan& plan = plans_.front();
    bool all_ran = true;
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      Piece& piece = plan.pieces[i];
      const Outcome& outcome = results[i].outcome;
      const bool has_run = outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop;
      all_ran = all_ran && has_run;
      if (!has_run) {
        // A decode that was cut short produced nothing that stands.
        const std::int64_t done =
            outcome.kind == OutcomeKind::Partial && piece.kind == ChunkKind::Prefill
                ? outcome.tokens
                : 0;
        if (is_live(piece) && outcome.kind == OutcomeKind::Partial) {
          piece.seat->committed = piece.first + done;
        }
        undo(piece, piece.first + done, false, outcome.kind == OutcomeKind::Failed, false);
      }
    }
    if (!all_ran) {
      reset_readers();
    }
    pool_.settle(plan.id);
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      const OutcomeKind kind = results[i].outcome.kind;
      if (kind == OutcomeKind::Ok || kind == OutcomeKind::Stop) {
        settle(plan.pieces[i], results[i]);
      }
      plan.pieces[i].is_settled = true;
      free_seats();
    }
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      const Piece& piece = plan.pieces[i];
      if (piece.samples > 0 && !piece.is_void && piece.seat->phase == Phase::Decode) {
        take_drafts(*piece.seat, results[i]);
      }
    }
    drop_stale_copies();
    plans_.pop_front();
  }

  /// Settles plan `first` and the younger ones as never committed.
  void abandon(std::size_t first, AbandonReason why, TimeNs now) {
    now_ = std::max(now_, now);
    for (std::size_t p = plans_.size(); p-- > first;) {  // each undoes the one before
      for (std::size_t i = plans_[p].pieces.size(); i-- > 0;) {
        Piece& piece = plans_[p].pieces[i];
        undo(piece, piece.first, true, why == AbandonReason::Lost && p == first,
             why == AbandonReason::Fatal);
      }
    }
    for (std::size_t p = first; p < plans_.size(); ++p) {
      for (const SeatRef& seat : plans_[p].forks) {
        if (is_running(*seat)) {
          leave(*seat, true);  // the source of its copy may be gone: it computes the prompt itself
        }
      }
    }
    reset_readers();
    for (std::size_t p = plans_.size(); p-- > first;) {
      for (Piece& piece : plans_[p].pieces) {
        piece.is_settled = true;
        free_seats();
      }
    }
    drop_stale_copies();
    plans_.resize(first);
  }

  // --- what is compared ---

  [[nodiscard]] SchedulerStats stats() const {
    SchedulerStats s = stats_;
    for (const auto& query : queries_) {
      s.live += query->is_over ? 0 : 1;
      s.finished += query->end == EventKind::Finished ? 1 : 0;
      s.cancelled += query->end == EventKind::Cancelled ? 1 : 0;
      s.expired += query->end == EventKind::Expired ? 1 : 0;
      s.failed += query->end == EventKind::Failed ? 1 : 0;
      if (!query->is_over && !query->samples[0]->was_admitted) {
        s.queued_tokens += static_cast<std::uint64_t>(query->prompt_length);
      }
      for (const auto& sample : query->samples) {
        s.preemptions += static_cast<std::uint64_t>(sample->preemptions);
        s.output_tokens += sample->outputs.size();
      }
    }
    s.waiting = queue().size();
    s.running = running().size();
    s.plans_in_flight = plans_.size();
    return s;
  }
  [[nodiscard]] PoolStats pool_stats() const {
    PoolStats s;
    s.total_blocks = pool_.total();
    s.cached_blocks = pool_.cached();
    s.referenced_blocks = pool_.referenced();
    s.free_blocks = s.total_blocks - s.cached_blocks - s.referenced_blocks;
    s.evictions = pool_.evictions();
    return s;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Query>>& queries() const { return queries_; }

 private:
  /// A fork that the next plan tells the host: until then the source keeps its blocks.
  struct Copy {
    SeatRef source;
    SeatRef target;
  };
  struct Budget {
    std::int64_t tokens = 0;
    std::int32_t prompts = 0;
    bool preempted = false;
  };
  enum class Admit : std::uint8_t { Done, Blocked, NobodyElse };

  // --- who is where, by scans ---

  [[nodiscard]] static std::int64_t known(const Sequence& s) {
    return s.query->prompt_length + static_cast<std::int64_t>(s.outputs.size());
  }
  [[nodiscard]] static bool is_running(const Seat& seat) {
    return seat.phase == Phase::Prefill || seat.phase == Phase::Decode;
  }
  /// In the order of admission.
  [[nodiscard]] std::vector<SeatRef> running() const {
    std::vector<SeatRef> out;
    for (const SeatRef& seat : seats_) {
      if (is_running(*seat)) {
        out.push_back(seat);
      }
    }
    return out;
  }
  /// In the order in which they entered the phase.
  [[nodiscard]] std::vector<SeatRef> in_phase(Phase phase) const {
    std::vector<SeatRef> out;
    for (const SeatRef& seat : seats_) {
      if (seat->phase == phase) {
        out.push_back(seat);
      }
    }
    std::sort(out.begin(), out.end(),
              [](const SeatRef& a, const SeatRef& b) { return a->since < b->since; });
    return out;
  }
  /// The same, from the first that entered at `from` or later, and around.
  [[nodiscard]] std::vector<SeatRef> in_turn(Phase phase, std::uint64_t from) const {
    std::vector<SeatRef> out = in_phase(phase);
    std::stable_partition(out.begin(), out.end(),
                          [&](const SeatRef& seat) { return seat->since >= from; });
    return out;
  }
  /// Those who wait, the next one first.
  [[nodiscard]] std::vector<Sequence*> queue() const {
    std::vector<Sequence*> out;
    for (const auto& query : queries_) {
      for (const auto& sample : query->samples) {
        if (query->is_taken_in && sample->where == Where::Waiting) {
          out.push_back(sample.get());
        }
      }
    }
    std::sort(out.begin(), out.end(), [](const Sequence* a, const Sequence* b) {
      return std::tuple(a->key, !a->was_admitted, a->order) <
             std::tuple(b->key, !b->was_admitted, b->order);
    });
    return out;
  }
  /// Calls f with each chunk of the seat that is not settled, those of the new plan included.
  template <class F>
  void each_piece(const Seat& seat, F&& f) const {
    auto visit = [&](const Plan& plan) {
      for (const Piece& piece : plan.pieces) {
        if (piece.seat.get() == &seat && !piece.is_settled) {
          f(piece);
        }
      }
    };
    for (const Plan& plan : plans_) {
      visit(plan);
    }
    if (new_plan_) {
      visit(*new_plan_);
    }
  }
  [[nodiscard]] std::int64_t in_flight(const Seat& seat) const {
    std::int64_t n = 0;
    each_piece(seat, [&](const Piece&) { ++n; });
    return n;
  }
  [[nodiscard]] bool is_in_new_plan(const Seat& seat) const {
    return new_plan_ &&
           std::any_of(new_plan_->pieces.begin(), new_plan_->pieces.end(),
                       [&](const Piece& p) { return p.seat.get() == &seat && !p.is_settled; });
  }
  /// Tokens that plans in flight will produce.
  [[nodiscard]] std::int64_t pending(const Seat& seat) const {
    std::int64_t n = 0;
    each_piece(seat, [&](const Piece& p) { n += !p.is_void && p.samples > 0 ? 1 : 0; });
    return n;
  }
  [[nodiscard]] static bool is_live(const Piece& piece) {
    return !piece.is_void && is_running(*piece.seat);
  }
  /// A sequence stands in two plans only where the executor can name a token that is to come, it
  /// has no drafts in flight, nothing of it was rolled back, and the host needn't see each token.
  [[nodiscard]] bool may_plan(const Seat& seat) const {
    if (in_flight(seat) == 0) {
      return true;
    }
    bool has_drafts = false;
    bool is_stale = false;
    each_piece(seat, [&](const Piece& p) {
      is_stale = is_stale || p.is_void;
      has_drafts = has_drafts || (p.kind == ChunkKind::Decode && p.size() > 1 && !p.is_void);
    });
    return setup_.future_tokens && setup_.in_order && !is_stale && !has_drafts &&
           !is_in_new_plan(seat) && !seat.sequence->query->request().sync_decode;
  }
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + setup_.block_size - 1) / setup_.block_size;
  }
  [[nodiscard]] std::int64_t room(const Seat& seat) const {
    return static_cast<std::int64_t>(seat.table.blocks.size()) * setup_.block_size;
  }
  /// Blocks that are neither referenced nor kept for somebody.
  [[nodiscard]] std::int64_t spare() const {
    std::int64_t n = pool_.available();
    for (const SeatRef& seat : seats_) {
      n -= seat->held + seat->fork_blocks;
    }
    return n;
  }
  [[nodiscard]] std::int32_t reserved_rows() const {
    std::int32_t n = 0;
    for (const SeatRef& seat : seats_) {
      n += seat->reserved;
    }
    return n;
  }
  [[nodiscard]] std::int32_t free_rows() const {
    return static_cast<std::int32_t>(free_rows_.size()) - reserved_rows();
  }
  [[nodiscard]] std::int32_t places() const {
    return setup_.places() - static_cast<std::int32_t>(running().size()) - reserved_rows();
  }
  /// Of the named resource, what no running request holds.
  [[nodiscard]] std::int64_t resource_left() const {
    std::int64_t left = setup_.resource;
    for (const auto& query : queries_) {
      left -= holds_resource(*query) ? query->given.resource() : 0;
    }
    return left;
  }
  /// Once, while any of its samples runs.
  [[nodiscard]] static bool holds_resource(const Query& query) {
    return std::any_of(query.samples.begin(), query.samples.end(),
                       [](const auto& sample) { return sample->where == Where::Running; });
  }

  // --- intake, ends ---

  [[nodiscard]] Errc refusal(const Submission& given) const {
    const Request& r = given.request;
    const std::int64_t length = given.length();
    const std::int64_t outputs = r.max_new_tokens == kOpenEnded ? 1 : r.max_new_tokens;
    if (is_closed_) {
      return Errc::Closed;
    }
    if (length == 0) {
      return Errc::EmptyPrompt;
    }
    if (r.num_samples > setup_.places() || given.resource() > setup_.resource ||
        length + std::max<std::int64_t>(outputs - 1, 0) > setup_.kv_limit() ||
        ((r.atomic_prefill || !setup_.rules.split_prompts) && length > setup_.tokens())) {
      return Errc::CanNeverFit;
    }
    if (std::min(r.start_by, r.finish_by) < std::max(now_, r.arrival)) {
      return Errc::Expired;
    }
    std::int64_t slots = setup_.max_live - r.num_samples;
    bool is_alive = false;
    for (const auto& query : queries_) {
      slots -= query->is_retired ? 0 : query->request().num_samples;
      is_alive = is_alive || (!query->is_delivered && query->request().id == r.id);
    }
    return slots < 0 ? Errc::QueueFull : (is_alive ? Errc::Duplicate : Errc::Ok);
  }

  void take_submissions() {
    for (const auto& query : queries_) {
      if (query->is_taken_in) {
        continue;
      }
      query->is_taken_in = true;
      query->accepted_at = now_;
      for (const auto& sample : query->samples) {
        sample->order = ++last_order_;
        // A further sample waits until the first one has computed the prompt.
        sample->was_admitted = sample->sample > 0;
      }
      if (query->saw_cancel) {
        end(*query, EventKind::Cancelled);
      } else {
        enqueue(*query->samples[0]);
      }
    }
  }

  void take_cancels() {
    for (Query* query : cancels_) {
      query->saw_cancel = true;
      if (query->is_taken_in && !query->is_over) {
        end(*query, EventKind::Cancelled);
      }
    }
    cancels_.clear();
  }

  /// Deadlines are times until which all is well: the request ends after them.
  void expire() {
    std::vector<std::tuple<TimeNs, std::uint64_t, Query*>> due;
    for (const auto& query : queries_) {
      const Request& r = query->request();
      const TimeNs until =
          query->samples[0]->was_admitted ? r.finish_by : std::min(r.start_by, r.finish_by);
      if (query->is_taken_in && !query->is_over && until < now_) {
        due.emplace_back(until, query->samples[0]->order, query.get());
      }
    }
    std::sort(due.begin(), due.end());
    for (const auto& [until, order, query] : due) {
      end(*query, EventKind::Expired);
    }
  }

  void enqueue(Sequence& s) {
    s.where = Where::Waiting;
    s.key = queue_key(setup_, s);
    s.bypassed = 0;
    s.retry_need = 0;
  }

  void end_sequence(Sequence& s, FinishReason reason) {
    if (s.where == Where::Running) {
      leave(*s.seat, false);
    }
    s.where = Where::Ended;
    s.reason = reason;
  }

  /// All that is left of a request ends.
  void end(Query& query, EventKind kind, FinishReason reason = FinishReason::None,
           Errc error = Errc::Ok) {
    for (const auto& sample : query.samples) {
      if (sample->where != Where::Ended) {
        end_sequence(*sample, reason);
      }
    }
    query.is_over = true;
    query.end = kind;
    query.reason = reason;
    query.error = error;
    query.ended_at = now_;
  }

  /// A sequence came to its normal end; with the last one the request does. Samples that were to
  /// start from its prompt never will.
  void finish(Sequence& s, FinishReason reason) {
    Query& query = *s.query;
    end_sequence(s, reason);
    for (const auto& sample : query.samples) {
      if (!query.is_forked && sample->where != Where::Ended) {
        end_sequence(*sample, reason);
      }
    }
    if (std::all_of(query.samples.begin(), query.samples.end(),
                    [](const auto& sample) { return sample->where == Where::Ended; })) {
      end(query, EventKind::Finished, query.samples[0]->reason);
    }
  }

  // --- seats ---

  SeatRef sit_down(Sequence& s) {
    auto seat = std::make_shared<Seat>();
    seat->row = free_rows_.back();
    free_rows_.pop_back();
    seat->sequence = &s;
    seat->since = ++entries_;
    seat->next_publish = setup_.block_size;
    seats_.push_back(seat);
    ++admissions_;
    s.seat = seat;
    s.where = Where::Running;
    s.computed_before = s.was_admitted ? known(s) : 0;  // all of it counts as computed before
    s.was_admitted = true;
    return seat;
  }

  void enter_phase(Seat& seat, Phase phase) {
    if (seat.phase != phase) {
      seat.phase = phase;
      seat.since = ++entries_;
    }
  }

  /// It stops running. Its blocks go back when no plan names it and no fork copies from it.
  void leave(Seat& seat, bool comes_back) {
    seat.phase = Phase::Draining;
    seat.held = 0;
    seat.fork_blocks = 0;
    seat.reserved = 0;
    seat.comes_back = comes_back;
    seat.sequence->where = comes_back ? Where::Leaving : Where::Ended;
    free_seats();
  }

  void free_seats() {
    for (std::size_t i = 0; i < seats_.size();) {
      const SeatRef seat = seats_[i];
      const bool is_lent = std::any_of(copies_.begin(), copies_.end(),
                                       [&](const Copy& copy) { return copy.source == seat; });
      if (seat->phase != Phase::Draining || is_lent || in_flight(*seat) > 0) {
        ++i;
        continue;
      }
      pool_.release(seat->table);
      seat->phase = Phase::Gone;
      free_rows_.push_back(seat->row);
      seats_.erase(seats_.begin() + static_cast<std::ptrdiff_t>(i));
      if (seat->comes_back && seat->sequence->where == Where::Leaving) {
        enqueue(*seat->sequence);
      }
    }
  }

  /// Forgets copies for sequences that have lost their seat.
  void drop_stale_copies() {
    for (std::size_t i = 0; i < copies_.size();) {
      if (copies_[i].target->phase == Phase::Decode) {
        ++i;
      } else {
        copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
        free_seats();
      }
    }
  }

  /// The seat stands again where it stood before a chunk at `position`.
  void roll_back(Seat& seat, std::int64_t position, Phase phase) {
    pool_.withdraw(seat.table, static_cast<std::size_t>(position / setup_.block_size));
    seat.planned = position;
    seat.drafts.clear();
    seat.next_publish = (position / setup_.block_size + 1) * setup_.block_size;
    enter_phase(seat, phase);
  }

  /// It loses its blocks, computes them anew later, and is heard of it.
  void preempt(Seat& seat) {
    ++seat.sequence->preemptions;
    leave(seat, true);
  }

  // --- composing ---

  void compose() {
    first_cause_ = WaitCause::None;
    const Mixture mix =
        mixture(setup_, in_phase(Phase::Decode).size(), in_phase(Phase::Prefill).size());
    budget_ = {.tokens = setup_.tokens()};
    const bool was_empty = running().empty();
    // Decodes that use up every step would starve a started prompt: it goes first the next time.
    const bool prompts_first = mix.prompts_first || prompt_left_out_;
    prompt_left_out_ = false;
    if (prompts_first) {
      plan_prompts(mix);
    }
    if (!(mix.prompts_alone && budget_.prompts > 0)) {
      plan_decodes();
    }
    if (!prompts_first) {
      plan_prompts(mix);
    }
    std::erase_if(new_plan_->pieces, [](const Piece& piece) { return piece.is_settled; });
    if (mix.pads) {
      // Rows that have ended stay and grow with the batch.
      if (was_empty) {
        batch_ = {0, static_cast<std::int32_t>(running().size()), 0};
      } else if (budget_.prompts == 0) {
        ++batch_.context_per_row;
      }
      for (const Piece& piece : new_plan_->pieces) {
        batch_.context_per_row =
            std::max(batch_.context_per_row, static_cast<std::int32_t>(piece.end()));
        new_plan_->padded.tokens += piece.size();
      }
      new_plan_->padded.rows = batch_.rows;
      new_plan_->padded.context_per_row = batch_.context_per_row;
    }
  }

  void plan_prompts(const Mixture& mix) {
    continue_prompts();
    if (mix.admits) {
      admit();
    }
  }

  void plan_decodes() {
    for (const SeatRef& seat : in_turn(Phase::Decode, decode_from_)) {
      if (seat->phase != Phase::Decode || !may_plan(*seat) ||
          known(*seat->sequence) + pending(*seat) >= seat->sequence->query->limit()) {
        continue;  // gave way, stands in a plan already, or all it may produce is planned
      }
      if (budget_.tokens == 0) {
        decode_from_ = seat->since;  // whom this step leaves out comes first in the next
        return;
      }
      if (seat->planned >= room(*seat)) {
        if (!make_room(seat, 1)) {
          note_blocked(*seat->sequence, WaitCause::Memory);
          continue;
        }
        extend(*seat, seat->planned + 1);
      }
      append_decode(seat);
    }
    decode_from_ = 0;
  }

  void continue_prompts() {
    for (const SeatRef& seat : in_turn(Phase::Prefill, prefill_from_)) {
      if (seat->phase != Phase::Prefill || !may_plan(*seat)) {
        continue;
      }
      if (budget_.tokens == 0) {
        prefill_from_ = seat->since;
        prompt_left_out_ = true;
        return;
      }
      const Query& query = *seat->sequence->query;
      const bool is_first = new_plan_->pieces.empty();
      const std::int64_t remaining = known(*seat->sequence) - seat->planned;
      std::int64_t n =
          std::max<std::int64_t>(chunk(setup_, remaining, budget_.tokens, false), is_first ? 1 : 0);
      const std::int64_t whole = query.is_atomic ? query.prompt_length - seat->planned : 0;
      if (n < whole) {
        if (!is_first) {
          prompt_left_out_ = true;
          note_blocked(*seat->sequence, WaitCause::Budget);
          continue;
        }
        n = whole;
        budget_.tokens = std::max(budget_.tokens, n);
      }
      const std::int64_t missing =
          blocks_for(seat->planned + n) - static_cast<std::int64_t>(seat->table.blocks.size());
      if (n > 0 && missing > spare() + seat->held) {
        // Who has run longest takes blocks from others, so that somebody always gets on.
        if (seat == running().front()) {
          make_room(seat, missing);
          if (seat->phase != Phase::Prefill) {
            continue;
          }
        }
        const std::int64_t end =
            room(*seat) + std::max<std::int64_t>(spare() + seat->held, 0) * setup_.block_size;
        n = std::min(n, end - seat->planned);
        n = n < whole ? 0 : n;
      }
      if (n <= 0) {
        note_blocked(*seat->sequence,
                     seat->planned >= room(*seat) ? WaitCause::Memory : WaitCause::Budget);
        continue;
      }
      append_prefill(seat, n);
    }
    prefill_from_ = 0;
  }

  /// Others give way until `blocks` are to be had for the seat. False if they are not: then it may
  /// have given way itself, or ended because nobody else holds anything.
  bool make_room(const SeatRef& seat, std::int64_t blocks) {
    while (spare() + seat->held < blocks) {
      std::vector<SeatRef> candidates;
      for (const SeatRef& other : running()) {
        if (in_flight(*other) == (is_in_new_plan(*other) ? 1 : 0)) {
          candidates.insert(candidates.begin(), other);
        }
      }
      if (candidates.empty()) {
        return false;
      }
      const SeatRef loser = victim(setup_, candidates);
      if (loser != seat) {
        give_way(loser);
        continue;
      }
      if (!plans_.empty() || !in_phase(Phase::Draining).empty()) {
        return false;  // blocks come back when these plans are settled
      }
      if (running().size() == 1 && seat->fork_blocks > 0) {
        seat->fork_blocks = 0;  // samples that find no block will compute the prompt themselves
        continue;
      }
      if (running().size() == 1) {
        finish(*seat->sequence, FinishReason::Capacity);
      } else {
        give_way(seat);
      }
      return false;
    }
    return true;
  }

  /// Preempts a seat, and whoever was to read what its chunk in the new plan would have written.
  void give_way(const SeatRef& seat) {
    budget_.preempted = true;
    drop_new_piece(*seat);
    preempt(*seat);
    for (;;) {
      SeatRef reader;
      for (const SeatRef& other : running()) {
        reader = pool_.reads_withdrawn(other->table) ? other : reader;
      }
      if (reader == nullptr) {
        return;
      }
      drop_new_piece(*reader);
      preempt(*reader);
    }
  }

  /// Its tokens are not given back to the budget.
  void drop_new_piece(Seat& seat) {
    for (Piece& piece : new_plan_->pieces) {
      if (piece.seat.get() == &seat && !piece.is_settled) {
        budget_.prompts -= piece.kind == ChunkKind::Prefill ? 1 : 0;
        roll_back(seat, piece.first, piece.phase_before);
        piece.is_settled = true;
        return;
      }
    }
  }

  // --- admission ---

  void admit() {
    struct Passed {
      Sequence* sequence;
      bool counts;  // who waits for another's prompt may be passed freely
    };
    std::vector<Passed> passed;
    if (pause_ != 0) {
      if (!queue().empty()) {
        note_blocked(*queue()[0], WaitCause::Paused);
      }
      return;
    }
    while (!budget_.preempted) {
      Sequence* next = nullptr;
      for (Sequence* s : queue()) {
        const bool is_passed = std::any_of(passed.begin(), passed.end(),
                                           [&](const Passed& p) { return p.sequence == s; });
        next = next == nullptr && !is_passed ? s : next;
      }
      if (next == nullptr) {
        return;
      }
      WaitCause cause = WaitCause::None;
      const Admit answer = try_admit(*next, passed.empty(), cause);
      if (answer == Admit::Done) {
        bool is_exhausted = false;
        for (const Passed& p : passed) {
          p.sequence->bypassed += p.counts ? 1 : 0;
          is_exhausted =
              is_exhausted || (p.counts && p.sequence->bypassed >= setup_.rules.max_bypass);
        }
        if (is_exhausted) {
          return;
        }
        continue;
      }
      note_blocked(*next, cause);
      const bool counts = cause != WaitCause::Dependency;
      if (answer == Admit::NobodyElse || passed.size() == kLookahead ||
          (counts && next->bypassed >= setup_.rules.max_bypass)) {
        return;
      }
      passed.push_back({next, counts});
    }
  }

  Admit try_admit(Sequence& s, bool is_head, WaitCause& cause) {
    Query& query = *s.query;
    // All samples of a request start together.
    const std::int32_t rows = s.sample == 0 && !query.is_forked ? query.request().num_samples : 1;
    const auto has_place = [&] { return free_rows() > 0 && places() > 0; };
    const bool needs_place = !has_place();
    // A place that is on its way serves the head as well. Ranks don't change: who was found to
    // outrank nobody is not asked again before somebody has been admitted.
    const bool may_displace = setup_.by_priority && rows == 1 && is_head &&
                              in_phase(Phase::Draining).empty() &&
                              !(outranks_nobody_ == &s && outranked_at_ == admissions_);
    if ((needs_place && !may_displace) || budget_.prompts >= setup_.places()) {
      cause = WaitCause::Sequences;
      return Admit::NobodyElse;
    }
    if (rows > 1 && (free_rows() < rows || (!running().empty() && places() < rows))) {
      cause = WaitCause::Sequences;
      return Admit::Blocked;
    }
    if (budget_.tokens == 0) {
      cause = WaitCause::Budget;
      return Admit::NobodyElse;
    }
    if (!holds_resource(query) && query.given.resource() > resource_left()) {
      cause = WaitCause::Resource;
      return Admit::Blocked;
    }
    if (s.waits_for != nullptr && s.waits_for->phase == Phase::Prefill &&
        s.waits_for->planned < s.waits_position) {
      cause = WaitCause::Dependency;
      return Admit::Blocked;
    }
    s.waits_for = nullptr;
    if (needs_place) {
      displace_for(s);
      if (!has_place()) {
        cause = WaitCause::Sequences;
        return Admit::NobodyElse;
      }
    }
    const bool is_alone = running().empty();
    if (!is_alone && s.retry_need > spare() && next_plan_ < s.retry_plan) {
      cause = WaitCause::Memory;
      return Admit::Blocked;
    }

    const std::int64_t all = known(s);
    Pool::Match match;
    if (setup_.caching && !query.request().no_prefix_read) {
      match = pool_.match(contents(s, all - 1));  // at least one position is computed
      if (!setup_.in_order && !plans_.empty() && match.is_pending) {
        cause = WaitCause::InFlight;
        return Admit::Blocked;
      }
      if (waits_for_prompt(s, match)) {
        cause = WaitCause::Dependency;
        return Admit::Blocked;
      }
    }
    const auto matched_blocks = static_cast<std::int64_t>(match.blocks.size());
    const std::int64_t matched = matched_blocks * setup_.block_size;
    const Needs need = needs(setup_, all, std::min(query.limit(), setup_.kv_limit()), matched);
    // Idle cached blocks cost as much as new ones.
    const std::int64_t found = matched_blocks - match.idle;
    const std::int64_t own =
        blocks_for(need.required) - found + (is_alone ? 0 : headroom(setup_, s.preemptions));
    std::int64_t fork_blocks = query.prompt_length % setup_.block_size != 0 ? rows - 1 : 0;
    if (is_alone) {
      // Nobody would make room later: samples without a block compute the prompt themselves.
      const std::int64_t whole = blocks_for(all) - found;
      fork_blocks = std::clamp<std::int64_t>(spare() - std::max(own, whole), 0, fork_blocks);
    }
    if (own + fork_blocks > spare()) {
      s.retry_need = own + fork_blocks;
      s.retry_plan = next_plan_ + kRetryPlans;
      cause = WaitCause::Memory;
      return Admit::Blocked;
    }

    const std::int64_t whole = query.is_atomic ? query.prompt_length - matched : 0;
    const bool is_first = new_plan_->pieces.empty() && is_alone;
    std::int64_t n = std::max<std::int64_t>(
        chunk(setup_, all - matched, budget_.tokens, query.is_atomic), is_first ? 1 : 0);
    if (n < whole) {
      if (!new_plan_->pieces.empty() || !is_alone) {
        cause = WaitCause::Budget;
        return Admit::NobodyElse;
      }
      n = whole;  // a step of its own
      budget_.tokens = std::max(budget_.tokens, n);
    }
    n = std::min(n, (spare() + found - fork_blocks) * setup_.block_size - matched);
    if (n <= 0 || n < whole) {
      cause = n <= 0 ? WaitCause::Memory : WaitCause::Budget;
      return Admit::Blocked;
    }

    const SeatRef seat = sit_down(s);
    pool_.acquire(seat->table, match);
    seat->planned = matched;
    seat->committed = matched;
    seat->next_publish = matched + setup_.block_size;
    seat->reserved = rows - 1;
    seat->fork_blocks = fork_blocks;
    if (setup_.caching) {
      stats_.prefix_query_tokens += static_cast<std::uint64_t>(all);
      stats_.prefix_hit_tokens += static_cast<std::uint64_t>(matched);
    }
    append_prefill(seat, n);
    seat->held = std::max<std::int64_t>(
        blocks_for(need.held) - static_cast<std::int64_t>(seat->table.blocks.size()), 0);
    return Admit::Done;
  }

  /// The worst of those whom the head of the queue outranks loses its place, if the blocks that
  /// come free with it certainly suffice.
  void displace_for(const Sequence& s) {
    std::vector<SeatRef> candidates;
    for (const SeatRef& seat : running()) {
      if (displaces(setup_, s, *seat->sequence)) {
        candidates.insert(candidates.begin(), seat);
      }
    }
    if (candidates.empty()) {
      outranks_nobody_ = &s;
      outranked_at_ = admissions_;
      return;
    }
    const SeatRef loser = victim(setup_, candidates);
    const Needs need = needs(setup_, known(s), std::min(s.query->limit(), setup_.kv_limit()), 0);
    const std::int64_t blocks =
        blocks_for(need.required) + (running().size() > 1 ? headroom(setup_, s.preemptions) : 0);
    if (blocks > spare() + static_cast<std::int64_t>(loser->table.blocks.size()) + loser->held) {
      return;
    }
    ++loser->sequence->displacements;
    give_way(loser);
    budget_.preempted = false;  // it made room for one: that one is to be admitted
    std::erase_if(new_plan_->pieces, [](const Piece& piece) { return piece.is_settled; });
  }

  /// Whether a started prompt will produce the block behind those that were found.
  bool waits_for_prompt(Sequence& s, const Pool::Match& match) {
    const std::int64_t end =
        (static_cast<std::int64_t>(match.blocks.size()) + 1) * setup_.block_size;
    const std::vector<Content> own = contents(s, known(s) - 1);
    const auto count = static_cast<std::size_t>(end / setup_.block_size);
    if (own.size() < count) {
      return false;
    }
    for (const SeatRef& seat : in_phase(Phase::Prefill)) {
      const std::vector<Content> other = contents(*seat->sequence, known(*seat->sequence));
      if (seat->planned < end && other.size() >= count &&
          std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(count),
                     other.begin())) {
        s.waits_for = seat;
        s.waits_position = end;
        return true;
      }
    }
    return false;
  }

  void note_blocked(const Sequence& s, WaitCause cause) {
    if (first_cause_ == WaitCause::None) {
      first_cause_ = cause;
      first_blocked_ = s.query->request().id;
    }
  }

  void explain() {
    status_.state = PlanState::NothingRunnable;
    if (first_cause_ != WaitCause::None) {
      status_.cause = first_cause_;
      status_.request = first_blocked_;
    } else if (!plans_.empty()) {
      status_.cause = WaitCause::InFlight;
      if (!running().empty()) {
        status_.request = running().front()->sequence->query->request().id;
      }
    } else if (!queue().empty()) {
      status_.cause = pause_ != 0 ? WaitCause::Paused : WaitCause::Composition;
      status_.request = queue().front()->query->request().id;
    } else if (running().empty()) {
      status_.state = is_closed_ && stats().live == 0 ? PlanState::Closed : PlanState::Idle;
    }
  }

  // --- chunks ---

  [[nodiscard]] static Token token_at(const Sequence& s, std::int64_t position) {
    const Query& query = *s.query;
    if (position >= query.prompt_length) {
      return s.outputs[static_cast<std::size_t>(position - query.prompt_length)];
    }
    return query.request().prompt.kind == PromptKind::Tokens
               ? query.given.prompt[static_cast<std::size_t>(position)]
               : 0;
  }

  /// What stands in the whole blocks of the first `tokens` positions that may be shared.
  [[nodiscard]] std::vector<Content> contents(const Sequence& s, std::int64_t tokens) const {
    const Query& query = *s.query;
    const Request& r = query.request();
    std::vector<Content> out;
    const std::int64_t end = std::min({tokens, known(s), query.cacheable});
    for (std::int64_t p = 0; p + setup_.block_size <= end; p += setup_.block_size) {
      Content content;
      if (p == 0) {
        content = {r.scope.has_tenant_salt ? 1 : 0,
                   r.scope.has_tenant_salt ? static_cast<std::int64_t>(r.scope.tenant_salt) : 0,
                   r.prompt.digest_unit};
      }
      if (r.prompt.kind == PromptKind::Digests) {
        const ContentDigest& d =
            query.given.digests[static_cast<std::size_t>(p / r.prompt.digest_unit)];
        content.push_back(static_cast<std::int64_t>(d.high));
        content.push_back(static_cast<std::int64_t>(d.low));
      } else {
        for (std::int64_t i = p; i < p + setup_.block_size; ++i) {
          content.push_back(token_at(s, i));
        }
      }
      out.push_back(std::move(content));
    }
    return out;
  }

  /// Table room for `tokens`, which can be had; what was kept for the seat is used first.
  void extend(Seat& seat, std::int64_t tokens) {
    const std::int64_t added =
        blocks_for(tokens) - static_cast<std::int64_t>(seat.table.blocks.size());
    if (added > 0) {
      pool_.extend(seat.table, blocks_for(tokens));
      seat.held = std::max<std::int64_t>(seat.held - added, 0);
    }
  }

  void append_prefill(const SeatRef& seat, std::int64_t n) {
    extend(*seat, seat->planned + n);
    budget_.tokens -= n;
    ++budget_.prompts;
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < n; ++i) {
      tokens.push_back(token_at(*seat->sequence, seat->planned + i));
    }
    append(seat, ChunkKind::Prefill, std::move(tokens));
  }

  /// A decode with as many drafts as fit: they never take blocks or budget from others, and never
  /// lead beyond the end of the sequence.
  void append_decode(const SeatRef& seat) {
    const Sequence& s = *seat->sequence;
    const bool is_future = pending(*seat) > 0;
    std::int64_t n = 0;
    if (!is_future && !s.query->request().sync_decode) {
      n = std::min({static_cast<std::int64_t>(seat->drafts.size()), s.query->limit() - known(s) - 1,
                    budget_.tokens - 1});
      const std::int64_t missing =
          blocks_for(seat->planned + 1 + n) - static_cast<std::int64_t>(seat->table.blocks.size());
      if (missing > 0 && missing > spare() + seat->held) {
        n = room(*seat) - seat->planned - 1;
      }
      extend(*seat, seat->planned + 1 + n);
    }
    std::vector<Token> tokens{is_future ? future_token(Row{seat->row}) : token_at(s, known(s) - 1)};
    tokens.insert(tokens.end(), seat->drafts.begin(), seat->drafts.begin() + n);
    seat->drafts.clear();
    budget_.tokens -= 1 + n;
    append(seat, ChunkKind::Decode, std::move(tokens));
  }

  void append(const SeatRef& seat, ChunkKind kind, std::vector<Token> tokens) {
    const Sequence& s = *seat->sequence;
    Piece piece;
    piece.seat = seat;
    piece.request = s.query->request().id.value;
    piece.sample = s.sample;
    piece.kind = kind;
    piece.first = seat->planned;
    piece.tokens = std::move(tokens);
    piece.phase_before = seat->phase;
    const std::int64_t reachable = known(s) + pending(*seat);
    if (piece.end() >= reachable && reachable < s.query->limit()) {
      piece.samples = kind == ChunkKind::Prefill ? 1 + seat->reserved : 1;
    }
    seat->planned = piece.end();
    if (kind == ChunkKind::Prefill && piece.end() == reachable) {
      enter_phase(*seat, Phase::Decode);
    }
    new_plan_->pieces.push_back(piece);
    publish(*seat, std::min(piece.end(), known(s)), new_plan_->id);
  }

  /// Once for each block that fills up: what is known of the first `tokens` positions may be found.
  void publish(Seat& seat, std::int64_t tokens, std::uint64_t plan) {
    if (setup_.caching && tokens >= seat.next_publish) {
      pool_.publish(seat.table, contents(*seat.sequence, tokens), plan);
      seat.next_publish = (tokens / setup_.block_size + 1) * setup_.block_size;
    }
  }

  // --- results ---

  void settle(const Piece& piece, const Result& result) {
    if (!is_live(piece)) {
      return;  // rolled back, reset or ended meanwhile: the surplus is dropped
    }
    Seat& seat = *piece.seat;
    Sequence& s = *seat.sequence;
    const bool is_stop = result.outcome.kind == OutcomeKind::Stop;
    seat.committed = piece.end();
    if (piece.samples == 0) {
      if (known(s) == s.query->limit() && piece.end() == known(s)) {
        finish(s, FinishReason::Length);  // no output is wanted: the prompt was all
      }
    } else {
      for (std::int32_t i = 1; i < piece.samples; ++i) {
        s.query->is_forked = true;
        fork(piece.seat, *s.query->samples[static_cast<std::size_t>(i)],
             result.samples[static_cast<std::size_t>(i)][0]);
      }
      std::vector<Token> tokens = result.samples[0];
      if (is_stop) {
        tokens.resize(static_cast<std::size_t>(result.outcome.tokens));
      }
      const bool is_drafted = piece.kind == ChunkKind::Decode && piece.size() > 1;
      FinishReason reason = FinishReason::None;
      std::int64_t taken = 0;
      for (const Token token : tokens) {
        if (reason == FinishReason::None) {
          ++taken;
          reason = produce(s, token);
        }
      }
      if (is_drafted) {
        // The rest of its positions is forgotten.
        stats_.accepted_draft_tokens +=
            static_cast<std::uint64_t>(std::max<std::int64_t>(taken - 1, 0));
        seat.committed = piece.first + std::max<std::int64_t>(taken, 1);
        seat.planned = seat.committed;
        publish(seat, std::min(seat.committed, known(s)), 0);
      }
      if (reason != FinishReason::None) {
        finish(s, reason);
      }
    }
    if (is_stop && s.where != Where::Ended) {
      const FinishReason given = result.outcome.reason;
      finish(s, given == FinishReason::None ? FinishReason::Host : given);
    }
  }

  /// One more output; whether it is the last.
  FinishReason produce(Sequence& s, Token token) {
    s.outputs.push_back(token);
    const std::vector<Token>& stop = s.query->given.stop;
    if (static_cast<std::int64_t>(s.outputs.size()) >= s.query->request().min_new_tokens &&
        std::count(stop.begin(), stop.end(), token) > 0) {
      return FinishReason::StopToken;
    }
    if (known(s) < s.query->limit()) {
      return FinishReason::None;
    }
    return s.query->request().max_new_tokens == kOpenEnded ? FinishReason::Capacity
                                                           : FinishReason::Length;
  }

  /// A further sample starts from the prompt that the first one has computed; the rest of the
  /// prompt's last block is copied with the next plan.
  void fork(const SeatRef& source, Sequence& s, Token token) {
    --source->reserved;
    source->fork_blocks = std::max<std::int64_t>(source->fork_blocks - 1, 0);
    const SeatRef seat = sit_down(s);
    const std::int64_t length = s.query->prompt_length;
    const bool is_forked = pool_.fork(source->table, seat->table, length, setup_.block_size);
    seat->planned = is_forked ? length : 0;
    seat->committed = seat->planned;
    seat->next_publish = (seat->planned / setup_.block_size + 1) * setup_.block_size;
    s.computed_before = length;
    if (is_forked && length % setup_.block_size != 0) {
      copies_.push_back({source, seat});
    }
    enter_phase(*seat, Phase::Decode);
    const FinishReason reason = produce(s, token);
    if (reason != FinishReason::None) {
      finish(s, reason);
    } else if (!is_forked) {
      leave(*seat, true);
    }
  }

  void take_drafts(Seat& seat, const Result& result) {
    seat.drafts = result.drafts;
    if (static_cast<std::int32_t>(seat.drafts.size()) > setup_.drafts) {
      seat.drafts.resize(static_cast<std::size_t>(setup_.drafts));
    }
  }

  /// A chunk that did not run beyond `position`. If younger chunks of its seat may be in flight,
  /// they are void.
  void undo(Piece& piece, std::int64_t position, bool is_youngest, bool is_charged, bool is_fatal) {
    Seat& seat = *piece.seat;
    if (!is_live(piece)) {
      // It is on its way out; what it made visible was never written.
      pool_.withdraw(seat.table, static_cast<std::size_t>(position / setup_.block_size));
      return;
    }
    make_void(seat, is_youngest ? &piece : nullptr);
    roll_back(seat, position, piece.phase_before);
    Sequence& s = *seat.sequence;
    s.retries += is_charged ? 1 : 0;
    if (is_fatal || s.retries > setup_.retries) {
      end(*s.query, EventKind::Failed, FinishReason::None, Errc::ExecutorFailed);
    }
  }

  /// All chunks of a seat, or one of them.
  void make_void(const Seat& seat, const Piece* only) {
    for (Plan& plan : plans_) {
      for (Piece& piece : plan.pieces) {
        if (piece.seat.get() == &seat && (only == nullptr || only == &piece)) {
          piece.is_void = true;
        }
      }
    }
  }

  /// Sequences that read blocks which were never written start over.
  void reset_readers() {
    for (bool found = true; found;) {
      found = false;
      std::vector<SeatRef> by_row = seats_;
      std::sort(by_row.begin(), by_row.end(),
                [](const SeatRef& a, const SeatRef& b) { return a->row < b->row; });
      for (const SeatRef& seat : by_row) {
        if (seat->phase == Phase::Gone || seat->is_reset || !pool_.reads_withdrawn(seat->table)) {
          continue;
        }
        found = true;
        seat->is_reset = true;
        make_void(*seat, nullptr);
        pool_.withdraw(seat->table, static_cast<std::size_t>(seat->committed / setup_.block_size));
        if (seat->phase != Phase::Draining) {
          leave(*seat, true);
        }
      }
    }
  }

  /// Candidates that are looked at behind one that does not fit.
  static constexpr std::size_t kLookahead = 16;
  /// Plans after which a request that did not fit is looked at again whatever is free.
  static constexpr std::uint64_t kRetryPlans = 64;

  Setup setup_;
  Pool pool_;
  std::vector<std::unique_ptr<Query>> queries_;  ///< In the order of submission.
  std::vector<Query*> cancels_;                  ///< Not taken in yet.
  std::vector<SeatRef> seats_;                   ///< In the order of admission.
  std::vector<std::int32_t> free_rows_;          ///< The last one is taken next.
  std::vector<Copy> copies_;
  std::deque<Plan> plans_;  ///< In flight, oldest first.
  std::optional<Plan> new_plan_;
  Budget budget_;
  PaddedSize batch_{};
  PlanStatus status_{};
  WaitCause first_cause_ = WaitCause::None;
  RequestId first_blocked_{};
  SchedulerStats stats_{};  ///< Only what can't be recomputed.
  TimeNs now_{};
  std::uint64_t next_plan_ = 1;
  std::uint64_t last_order_ = 0;
  std::uint64_t entries_ = 0;
  std::uint64_t admissions_ = 0;
  const Sequence* outranks_nobody_ = nullptr;  ///< Who was last found to, and after how many.
  std::uint64_t outranked_at_ = 0;
  std::uint64_t decode_from_ = 0;   ///< Whom the last step left out for want of budget.
  std::uint64_t prefill_from_ = 0;  ///< The same among started prompts,
  bool prompt_left_out_ = false;    ///< and whether there was one.
  bool is_closed_ = false;
  int pause_ = 0;
};

}  // namespace dynbatch::test::naive
