// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The naive scheduler: requests come and end, sequences take seats and leave them.
#include "naive_state.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

class Requests : public State {
 public:
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
    if (kept_media(*query) < given.media.size()) {
      query->cacheable = std::min(query->cacheable, given.media[kept_media(*query)].first_position);
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

 protected:
  explicit Requests(const Setup& setup) : State(setup) {}

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
    s.is_late = false;
    s.is_awaited = false;
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

  /// Whether a copy needs its blocks: one that no plan has told yet as its source; where plans may
  /// overtake each other, one that is not done yet as its source or target.
  [[nodiscard]] bool is_lent(const SeatRef& seat) const {
    const auto reads = [&](const Copy& copy) { return copy.source == seat; };
    const auto needs = [&](const Copy& copy) { return reads(copy) || copy.target == seat; };
    return std::any_of(copies_.begin(), copies_.end(), reads) ||
           std::any_of(plans_.begin(), plans_.end(), [&](const Plan& plan) {
             return !setup_.in_order && std::any_of(plan.copies.begin(), plan.copies.end(), needs);
           });
  }

  void free_seats() {
    for (std::size_t i = 0; i < seats_.size();) {
      const SeatRef seat = seats_[i];
      if (seat->phase != Phase::Draining || is_lent(seat) || in_flight(*seat) > 0) {
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

  /// The copies of a plan are done, or will never be.
  void forget_copies(Plan& plan) {
    while (!plan.copies.empty()) {
      plan.copies.erase(plan.copies.begin());
      free_seats();
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
    seat.sequence->preempted_at = static_cast<std::int64_t>(seat.sequence->outputs.size());
    leave(seat, true);
  }
};

}  // namespace dynbatch::test::naive
