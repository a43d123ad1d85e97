// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the naive scheduler remembers, and who is where: found by scans, never counted along.
#include "naive_policies.hpp"
#include "naive_pool.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

class State {
 protected:
  /// What one step may still take.
  struct Budget {
    std::int64_t tokens = 0;
    std::int32_t prompts = 0;  ///< Chunks of prompts so far.
    bool dropped = false;      ///< A chunk has left the new plan: who was to read it leaves too.
    bool preempted = false;    ///< Somebody lost its blocks: nobody is admitted.
  };

  explicit State(const Setup& setup) : setup_(setup), pool_(setup.blocks, setup.caching) {
    for (std::int32_t row = setup.rows; row-- > 0;) {
      free_rows_.push_back(row);
    }
  }

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
    const auto is_before = [&](const SeatRef& seat) { return seat->since < from; };
    std::rotate(out.begin(), std::find_if_not(out.begin(), out.end(), is_before), out.end());
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
      return std::tuple(a->is_late, a->key, !a->was_admitted, a->order) <
             std::tuple(b->is_late, b->key, !b->was_admitted, b->order);
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
      // Where plans may overtake each other, a copy that another plan tells has to be done first.
      return setup_.in_order || std::none_of(plans_.begin(), plans_.end(), [&](const Plan& plan) {
               return plan.id == seat.copied_in;
             });
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

  // --- content ---

  [[nodiscard]] static Token token_at(const Sequence& s, std::int64_t position) {
    const Query& query = *s.query;
    if (position >= query.prompt_length) {
      return s.outputs[static_cast<std::size_t>(position - query.prompt_length)];
    }
    return query.request().prompt.kind == PromptKind::Tokens
               ? query.given.prompt[static_cast<std::size_t>(position)]
               : 0;
  }

  [[nodiscard]] std::size_t kept_media(const Query& query) const {
    return std::min(query.given.media.size(), static_cast<std::size_t>(setup_.media_spans));
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
      std::int64_t items = 0;
      for (std::size_t i = 0; i < kept_media(query); ++i) {
        const MediaSpan& item = query.given.media[i];
        if (item.first_position < p + setup_.block_size && item.first_position + item.length > p) {
          content.insert(content.end(), {-1, static_cast<std::int64_t>(item.content.high),
                                         static_cast<std::int64_t>(item.content.low),
                                         p - item.first_position, item.length});
          ++items;
        }
      }
      if (items > setup_.block_size / 4 + 2) {
        return out;  // nothing from here on is shared
      }
      out.push_back(std::move(content));
    }
    return out;
  }

  /// What is known behind the `blocks` whole ones that a look-up of `limit` tokens found.
  [[nodiscard]] Pool::Rest rest(const Sequence& s, std::size_t blocks, std::int64_t limit) const {
    const Query& query = *s.query;
    const bool has_digests = query.request().prompt.kind == PromptKind::Digests;
    const std::int64_t begin = static_cast<std::int64_t>(blocks) * setup_.block_size;
    Pool::Rest out;
    out.least = setup_.min_partial;
    std::vector<Content> all = contents(s, begin + setup_.block_size);
    if (all.size() > blocks) {
      out.block.push_back(all[blocks]);
    }
    const std::int64_t end =
        std::min({limit, known(s), query.cacheable, begin + setup_.block_size});
    out.tokens = std::max<std::int64_t>(end - begin, 0);
    for (std::int64_t p = begin; p < end && !has_digests; ++p) {
      for (std::size_t i = 0; i < kept_media(query); ++i) {
        const MediaSpan& item = query.given.media[i];
        if (p >= item.first_position && p < item.first_position + item.length) {
          return out;
        }
      }
      out.front.push_back(token_at(s, p));
    }
    return out;
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
  std::vector<Copy> copies_;  ///< For the next plan to tell: until then sources keep their blocks.
  std::deque<Plan> plans_;    ///< In flight, oldest first.
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
  std::int32_t late_passed_ = 0;    ///< Steps in a row without a prompt token for late requests.
  std::uint64_t prefill_from_ = 0;  ///< The same among started prompts,
  bool prompt_left_out_ = false;    ///< and whether there was one.
  bool is_closed_ = false;
  int pause_ = 0;
};

}  // namespace dynbatch::test::naive
