// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A scheduler that is written to be read: it does what docs/design.md says of a step, recomputes
/// every sum when it needs it, and keeps nothing for speed. The property test compares the real one
/// with it, answer by answer.
#include <dynbatch/scheduler/config.hpp>

#include "naive_admission.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

class Scheduler : public Admissions {
 public:
  explicit Scheduler(const Setup& setup) : Admissions(setup) {}

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
    plan.copies = copies_;
    for (const Copy& copy : plan.copies) {
      copy.target->copied_in = plan.id;
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
    forget_copies(plan);
    for (const SeatRef& seat : plan.starts) {
      pool_.finish_copy(seat->table);
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
      for (const Copy& copy : plans_[p].copies) {
        if (is_running(*copy.target)) {
          leave(*copy.target, true);  // the source may be gone: it computes the prompt itself
        }
      }
    }
    for (std::size_t p = first; p < plans_.size(); ++p) {
      for (const SeatRef& seat : plans_[p].starts) {
        pool_.finish_copy(seat->table);
        if (is_running(*seat)) {  // that block is computed from its start
          roll_back(*seat, seat->copy_first, Phase::Prefill);
          seat->committed = seat->planned;
        }
      }
    }
    reset_readers();
    for (std::size_t p = plans_.size(); p-- > first;) {
      forget_copies(plans_[p]);
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
      s.live += query->is_over ? 0U : 1U;
      s.finished += query->end == EventKind::Finished ? 1U : 0U;
      s.cancelled += query->end == EventKind::Cancelled ? 1U : 0U;
      s.expired += query->end == EventKind::Expired ? 1U : 0U;
      s.failed += query->end == EventKind::Failed ? 1U : 0U;
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
    const bool sorts_late = setup_.rules.late_patience > 0;
    bool late_first = false;
    if (sorts_late) {
      const std::vector<Sequence*> waiting = queue();
      bool has_late =
          std::any_of(waiting.begin(), waiting.end(), [](const Sequence* s) { return s->is_late; });
      for (const SeatRef& seat : in_phase(Phase::Prefill)) {
        Sequence& s = *seat->sequence;
        s.is_late = !s.is_awaited && is_past_hope(s);
        has_late = has_late || s.is_late;
      }
      late_passed_ = has_late ? late_passed_ + 1 : 0;
      late_first = late_passed_ > setup_.rules.late_patience;
    }
    for (int part = 0; part < (sorts_late ? 2 : 1); ++part) {
      const bool takes_late = (part == 1) != late_first;
      continue_prompts(takes_late, part == 0);
      if (mix.admits) {
        admit(takes_late);
      }
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

  void continue_prompts(bool takes_late, bool is_first_part) {
    for (const SeatRef& seat : in_turn(Phase::Prefill, prefill_from_)) {
      if (seat->phase != Phase::Prefill || !may_plan(*seat) ||
          (setup_.rules.late_patience > 0 && seat->sequence->is_late != takes_late)) {
        continue;
      }
      if (budget_.tokens == 0) {
        if (is_first_part) {
          prefill_from_ = seat->since;
          prompt_left_out_ = true;
        }
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
          prompt_left_out_ = prompt_left_out_ || is_first_part;
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
    if (is_first_part) {
      prefill_from_ = 0;
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
};

}  // namespace dynbatch::test::naive
