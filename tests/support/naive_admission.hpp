// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The naive scheduler: who of those who wait is let in.
#include "naive_chunks.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dynbatch::test::naive {

class Admissions : public Chunks {
  /// NobodyElse: what is missing is missing for all.
  enum class Admit : std::uint8_t { Done, Blocked, NobodyElse };
  struct Answer {
    Admit kind = Admit::Done;
    WaitCause cause = WaitCause::None;
  };

 protected:
  explicit Admissions(const Setup& setup) : Chunks(setup) {}

  /// In the order of the queue. Who does not fit may be passed by later ones, a bounded number of
  /// times; who waits for another's prompt, freely.
  void admit(bool takes_late) {
    struct Passed {
      Sequence* sequence;
      bool counts;  // who waits for another's prompt may be passed freely
    };
    std::vector<Passed> passed;
    if (pause_ != 0) {
      if (!queue().empty() && queue()[0]->is_late == takes_late) {
        note_blocked(*queue()[0], WaitCause::Paused);
      }
      return;
    }
    while (!budget_.preempted) {
      Sequence* next = nullptr;
      for (Sequence* s : queue()) {
        const bool is_passed = std::any_of(passed.begin(), passed.end(),
                                           [&](const Passed& p) { return p.sequence == s; });
        next = next == nullptr && !is_passed && s->is_late == takes_late ? s : next;
      }
      if (next == nullptr) {
        return;
      }
      if (setup_.rules.late_patience > 0 && !takes_late && is_past_hope(*next)) {
        next->is_late = true;
        late_passed_ = std::max(late_passed_, 1);  // this step counts already
        continue;
      }
      const Answer answer = try_admit(*next, passed.empty());
      if (answer.kind == Admit::Done) {
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
      note_blocked(*next, answer.cause);
      const bool counts = answer.cause != WaitCause::Dependency;
      if (answer.kind == Admit::NobodyElse || passed.size() == kLookahead ||
          (counts && next->bypassed >= setup_.rules.max_bypass)) {
        return;
      }
      passed.push_back({next, counts});
    }
  }

  /// The host of these tests publishes no step cost: whose time is over is late.
  [[nodiscard]] bool is_past_hope(const Sequence& s) const {
    const Request& r = s.query->request();
    return r.slo.ttft < kUnbounded && s.outputs.empty() && s.sample == 0 &&
           now_ > std::max(r.arrival, TimeNs{}) + std::max(r.slo.ttft, DurationNs{});
  }

 private:
  Answer try_admit(Sequence& s, bool is_head) {
    const Answer means = has_means(s, is_head);
    if (means.kind != Admit::Done) {
      return means;
    }
    Pool::Match match;
    const Answer waits = look_up(s, match);
    return waits.kind == Admit::Done ? start(s, match) : waits;
  }

  /// All samples of a request start together.
  [[nodiscard]] static std::int32_t rows_for(const Sequence& s) {
    return s.sample == 0 && !s.query->is_forked ? s.query->request().num_samples : 1;
  }

  /// Places, budget and resources, and whether it is worth a look-up.
  Answer has_means(Sequence& s, bool is_head) {
    const std::int32_t rows = rows_for(s);
    const auto has_place = [&] { return free_rows() > 0 && places() > 0; };
    const bool needs_place = !has_place();
    // A place that is on its way serves the head as well. Ranks don't change: who was found to
    // outrank nobody is not asked again before somebody has been admitted.
    const bool may_displace = setup_.displaces && rows == 1 && is_head &&
                              in_phase(Phase::Draining).empty() &&
                              !(outranks_nobody_ == &s && outranked_at_ == admissions_);
    if ((needs_place && !may_displace) || budget_.prompts >= setup_.places()) {
      return {Admit::NobodyElse, WaitCause::Sequences};
    }
    if (rows > 1 && (free_rows() < rows || (!running().empty() && places() < rows))) {
      return {Admit::Blocked, WaitCause::Sequences};
    }
    if (budget_.tokens == 0) {
      return {Admit::NobodyElse, WaitCause::Budget};
    }
    if (!holds_resource(*s.query) && s.query->given.resource() > resource_left()) {
      return {Admit::Blocked, WaitCause::Resource};
    }
    const SeatRef other = s.waits_for != nullptr ? s.waits_for->seat : nullptr;
    if (other != nullptr && other->row == s.waits_row && other->phase == Phase::Prefill &&
        other->planned < s.waits_position) {
      return {Admit::Blocked, WaitCause::Dependency};
    }
    s.waits_for = nullptr;
    if (needs_place) {
      displace_for(s);
      if (!has_place()) {
        return {Admit::NobodyElse, WaitCause::Sequences};
      }
    }
    if (!running().empty() && s.retry_need > spare() && next_plan_ < s.retry_plan) {
      return {Admit::Blocked, WaitCause::Memory};
    }
    return {};
  }

  /// Its cached prefix; at least one position is computed.
  Answer look_up(Sequence& s, Pool::Match& match) {
    if (!setup_.caching || s.query->request().no_prefix_read) {
      return {};
    }
    match = pool_.match(contents(s, known(s) - 1));
    if (setup_.partial && setup_.block_size > 1) {
      pool_.match_partly(match, rest(s, match.blocks.size(), known(s) - 1));
    }
    if (!setup_.in_order && !plans_.empty() && match.is_pending) {
      return {Admit::Blocked, WaitCause::InFlight};  // that plan may run later
    }
    if (waits_for_prompt(s, match)) {
      return {Admit::Blocked, WaitCause::Dependency};
    }
    return {};
  }

  /// Blocks, a first chunk, and a seat.
  Answer start(Sequence& s, Pool::Match match) {
    const Query& query = *s.query;
    const std::int32_t rows = rows_for(s);
    const bool is_alone = running().empty();
    const auto matched_blocks = static_cast<std::int64_t>(match.blocks.size());
    std::int64_t matched = 0;
    std::int64_t found = 0;
    std::int64_t own = 0;
    std::int64_t fork_blocks = 0;
    Needs need;
    const auto reckon = [&] {
      matched = matched_blocks * setup_.block_size + match.copied;
      need = needs(setup_, known(s), std::min(query.limit(), setup_.kv_limit()), matched);
      // Idle cached blocks cost as much as new ones.
      found = matched_blocks - match.idle;
      own = blocks_for(need.required) - found + (is_alone ? 0 : headroom(setup_, s.preemptions));
      fork_blocks = query.prompt_length % setup_.block_size != 0 ? rows - 1 : 0;
      if (is_alone) {
        // Nobody would make room later: samples without a block compute the prompt themselves.
        const std::int64_t least = std::max(own, blocks_for(known(s)) - found);
        fork_blocks = std::clamp<std::int64_t>(spare() - least, 0, fork_blocks);
      }
    };
    reckon();
    if (match.copied > 0 &&
        (own + fork_blocks > spare() || spare() - match.idle - fork_blocks < 1)) {
      match.drop_copy();  // what is missing is the block to copy from
      reckon();
    }
    if (own + fork_blocks > spare()) {
      s.retry_need = own + fork_blocks;
      s.retry_plan = next_plan_ + kRetryPlans;
      return {Admit::Blocked, WaitCause::Memory};
    }

    const std::int64_t whole = query.is_atomic ? query.prompt_length - matched : 0;
    const bool is_first = new_plan_->pieces.empty() && is_alone;
    std::int64_t n = chunk(setup_, known(s) - matched, budget_.tokens, query.is_atomic);
    n = std::max<std::int64_t>(n, is_first ? 1 : 0);  // progress comes first
    if (n < whole) {
      if (!is_first) {
        return {Admit::NobodyElse, WaitCause::Budget};
      }
      n = whole;  // a step of its own
      budget_.tokens = std::max(budget_.tokens, n);
    }
    n = std::min(n, (spare() + found - fork_blocks) * setup_.block_size - matched);
    if (n <= 0 || n < whole) {
      return {Admit::Blocked, n <= 0 ? WaitCause::Memory : WaitCause::Budget};
    }

    ++admissions_;
    const SeatRef seat = sit_down(s);
    pool_.acquire(seat->table, match);
    seat->planned = matched;
    seat->committed = matched;
    seat->next_publish = (matched_blocks + 1) * setup_.block_size;
    if (match.copied > 0) {
      seat->copy_first = matched_blocks * setup_.block_size;
      seat->copied = match.copied;
      new_plan_->starts.push_back(seat);
    }
    seat->reserved = rows - 1;
    seat->fork_blocks = fork_blocks;
    if (setup_.caching) {
      stats_.prefix_query_tokens += static_cast<std::uint64_t>(known(s));
      stats_.prefix_hit_tokens += static_cast<std::uint64_t>(matched);
    }
    append_prefill(seat, n);
    seat->held = std::max<std::int64_t>(
        blocks_for(need.held) - static_cast<std::int64_t>(seat->table.blocks.size()), 0);
    return {};
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
    ++loser->sequence->query->displacements;
    give_way(loser);
    budget_.preempted = false;  // it made room for one: that one is to be admitted
    std::erase_if(new_plan_->pieces, [](const Piece& piece) { return piece.is_settled; });
    budget_.dropped = false;
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
        seat->sequence->is_awaited = seat->sequence->is_awaited || !s.is_late;
        s.waits_for = seat->sequence;
        s.waits_row = seat->row;
        s.waits_position = end;
        return true;
      }
    }
    return false;
  }
};

}  // namespace dynbatch::test::naive
