// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The naive scheduler: chunks enter the new plan, others give way for them.
#include "naive_requests.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

class Chunks : public Requests {
 protected:
  explicit Chunks(const Setup& setup) : Requests(setup) {}

  void note_blocked(const Sequence& s, WaitCause cause) {
    if (first_cause_ == WaitCause::None) {
      first_cause_ = cause;
      first_blocked_ = s.query->request().id;
    }
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
    late_passed_ = seat->sequence->is_late ? 0 : late_passed_;
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

  // --- giving way ---

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
    while (budget_.dropped) {
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
        budget_.dropped = true;
        return;
      }
    }
  }
};

}  // namespace dynbatch::test::naive
