// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: beam search. The beams of a request decode in the same plans, go on from each
/// other's states as the host says, keep the blocks they may need to the end and start over
/// together where one of them has to: nothing of them is delivered before the end.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Blocks of one beam that shares nothing, at its full length.
template <class P>
std::int64_t SchedulerCore<P>::beam_blocks(const RequestRecord& record) const noexcept {
  return blocks_for(record.prompt_length + max_of<std::int64_t>(record.max_new - 1, 0));
}

/// Plans one decode of each beam of a request, or of none. False if the budget is too small for all
/// of them: then they come first in the next step, which takes them whatever its budget.
template <class P>
bool SchedulerCore<P>::plan_beams(PlanRecord& record, std::int32_t row, Budget& budget) noexcept {
  const std::uint32_t root = desk_[rows_[static_cast<std::size_t>(row)].slot].root;
  std::int32_t width = 0;
  for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
    if (desk_[at].state != RequestState::Running) {
      continue;
    }
    const RowState& r = rows_[static_cast<std::size_t>(desk_[at].row.value)];
    if (r.phase != RowPhase::Decode || !may_plan(r)) {
      return true;
    }
    ++width;
  }
  if (budget.tokens < width) {
    if (record.num_chunks > 0) {
      return false;
    }
    budget.tokens = width;  // submit() made sure that a step may have as many
  }
  for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
    if (desk_[at].state == RequestState::Running) {
      const std::int32_t beam = desk_[at].row.value;
      const RowState& r = rows_[static_cast<std::size_t>(beam)];
      if (r.planned >= r.table_tokens && !grow(record, beam, r.planned + 1, budget)) {
        return true;
      }
    }
  }
  for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
    if (desk_[at].state == RequestState::Running) {
      budget.tokens -= append_decode(record, desk_[at].row.value, 1);
    }
  }
  return true;
}

/// One behind the last chunk of the beams that stand together from chunk `first` on.
template <class P>
std::size_t SchedulerCore<P>::beams_end(const PlanRecord& record,
                                        std::size_t first) const noexcept {
  std::size_t end = first;
  while (end < record.num_chunks && record.undo[end].is_beam &&
         record.chunks[end].request == record.chunks[first].request) {
    ++end;
  }
  return end;
}

/// Whether every beam that stands with chunk `i` ran.
template <class P>
bool SchedulerCore<P>::beams_ran(const PlanRecord& record, const StepResult& result,
                                 std::size_t i) const noexcept {
  const RequestId request = record.chunks[i].request;
  while (i > 0 && record.undo[i - 1].is_beam && record.chunks[i - 1].request == request) {
    --i;
  }
  for (const std::size_t end = beams_end(record, i); i < end; ++i) {
    const OutcomeKind kind = result.outcomes[i].kind;
    if (kind != OutcomeKind::Ok && kind != OutcomeKind::Stop) {
      return false;
    }
  }
  return true;
}

/// Number of leading continuations whose parents stand in chunks [first, end).
template <class P>
std::size_t SchedulerCore<P>::num_continuations(
    const PlanRecord& record, std::size_t first, std::size_t end,
    std::span<const Continuation> continuations) const noexcept {
  std::size_t n = 0;
  for (; n < continuations.size(); ++n) {
    std::size_t i = first;
    while (i < end && !(record.chunks[i].sequence == continuations[n].parent)) {
      ++i;
    }
    if (i == end) {
      break;
    }
  }
  return n;
}

/// Checks the continuations of a result; outcomes have been checked for their number.
template <class P>
Status SchedulerCore<P>::validate_continuations(const PlanRecord& record,
                                                const StepResult& result) const noexcept {
  std::span<const Continuation> rest = result.continuations;
  for (const Continuation& c : rest) {
    if (c.token < 0) {
      return {Errc::BadResult, "continuations", c.token, 0, "token ids must not be negative"};
    }
  }
  for (std::size_t i = 0; i < record.num_chunks;) {
    if (!record.undo[i].is_beam) {
      ++i;
      continue;
    }
    const std::size_t end = beams_end(record, i);
    const std::size_t n = num_continuations(record, i, end, rest);
    if (n > end - i) {
      return {Errc::BadResult, "continuations", static_cast<std::int64_t>(n),
              static_cast<std::int64_t>(end - i), "more than the request has beams in the plan"};
    }
    for (; i < end; ++i) {
      if (n > 0 && !result.outcomes.empty() && result.outcomes[i].kind != OutcomeKind::Ok) {
        return {Errc::BadResult, "continuations", static_cast<std::int64_t>(i),
                static_cast<std::int64_t>(n), "a beam of their request did not run to its end"};
      }
    }
    rest = rest.subspan(n);
  }
  if (!rest.empty()) {
    return {Errc::BadResult, "continuations",
            static_cast<std::int64_t>(result.continuations.size() - rest.size()),
            static_cast<std::int64_t>(rest.front().parent.slot),
            "its parent is no beam of this plan, or stands before another request's"};
  }
  return kOk;
}

/// All beams of chunks [first, end) ran: they go on as the host says.
template <class P>
void SchedulerCore<P>::settle_beams(const PlanRecord& record, std::size_t first, std::size_t end,
                                    std::span<const Continuation> continuations, TimeNs now,
                                    StepFeedback& feedback) noexcept {
  const auto width = static_cast<std::int32_t>(end - first);
  std::int32_t parents[kMaxSamples]{};
  std::int32_t targets[kMaxSamples]{};
  for (std::size_t i = 0; i < continuations.size(); ++i) {
    while (!(record.chunks[first + static_cast<std::size_t>(parents[i])].sequence ==
             continuations[i].parent)) {
      ++parents[i];
    }
  }
  const auto row_of = [&](std::int32_t beam) {
    return record.chunks[first + static_cast<std::size_t>(beam)].row.value;
  };
  for (std::int32_t i = 0; i < width; ++i) {
    const RowState& r = rows_[static_cast<std::size_t>(row_of(i))];
    if (r.epoch != record.undo[first + static_cast<std::size_t>(i)].epoch ||
        r.phase == RowPhase::Draining) {
      return;  // they all left meanwhile
    }
  }
  for (std::int32_t i = 0; i < width; ++i) {
    RowState& r = rows_[static_cast<std::size_t>(row_of(i))];
    r.committed = record.chunks[first + static_cast<std::size_t>(i)].context_length;
    --r.pending_samples;
    if (has_more_groups()) {
      advance_groups(row_of(i));
    }
  }
  const std::size_t n = continuations.size();
  assign_beams({parents, n}, width, {targets, n});
  std::uint64_t alive = 0;
  for (std::size_t i = 0; i < n; ++i) {
    alive |= std::uint64_t{1} << static_cast<unsigned>(targets[i]);
    if (targets[i] != parents[i] && !replant_beam(row_of(parents[i]), row_of(targets[i]))) {
      end_request(rows_[static_cast<std::size_t>(row_of(0))].slot, EventKind::Failed,
                  FinishReason::None, Errc::NotSupported, now);
      return;
    }
  }
  for (std::int32_t i = 0; i < width; ++i) {
    if (((alive >> static_cast<unsigned>(i)) & 1U) == 0) {
      finish_row(row_of(i), FinishReason::Host, now, feedback);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    RowState& r = rows_[static_cast<std::size_t>(row_of(targets[i]))];
    append_output(r, continuations[i].token, now);
    const FinishReason reason = stop_reason(r, continuations[i].token);
    if (reason != FinishReason::None) {
      finish_row(row_of(targets[i]), reason, now, feedback);
    }
  }
}

/// The beam in row `target` forgets its state and goes on from that of row `source`: shared blocks,
/// the rest of the last one copied with the next plan, and a copy of the outputs. O(blocks +
/// outputs). False if the pool can't fork.
template <class P>
bool SchedulerCore<P>::replant_beam(std::int32_t source, std::int32_t target) noexcept {
  const RowState& parent = rows_[static_cast<std::size_t>(source)];
  RowState& r = rows_[static_cast<std::size_t>(target)];
  const std::int32_t length = parent.committed;
  std::int32_t same = 0;  // leading blocks that the host knows already
  if (block_size_ > 0) {
    const std::span<const BlockId> mine = policies_.pool.table(0, Row{target});
    const std::span<const BlockId> theirs = policies_.pool.table(0, Row{source});
    while (same < r.told_blocks &&
           mine[static_cast<std::size_t>(same)] == theirs[static_cast<std::size_t>(same)]) {
      ++same;
    }
  }
  policies_.pool.truncate(Row{target}, 0);  // nobody will ask for a branch that died
  if (!policies_.pool.fork(Row{source}, Row{target}, length)) {
    return false;
  }
  if (block_size_ > 0) {
    const std::span<const BlockId> from = policies_.pool.table(0, Row{source});
    const std::span<const BlockId> to = policies_.pool.table(0, Row{target});
    const auto blocks = static_cast<std::int64_t>(to.size());
    r.table_tokens = static_cast<std::int32_t>(blocks) * block_size_;
    r.told_blocks = same;
    hold_blocks(r, max_of<std::int64_t>(beam_blocks(desk_[r.slot]) - blocks, 0));
    forget_told(target);
    if (length % block_size_ != 0 || has_more_groups()) {
      lend(source, target, {from[to.size() - 1], to.back(), length % block_size_}, length);
    }
    if (shares_prefixes_) {
      r.next_publish = (length / block_size_ + 1) * block_size_;
    }
  } else {
    lend(source, target, {}, length);
  }
  r.planned = r.committed = length;
  r.plain_end = 0;
  copy_outputs(parent, r);
  return true;
}

/// Gives `to` the outputs of `from`, which has as many.
template <class P>
void SchedulerCore<P>::copy_outputs(const RowState& from, RowState& to) noexcept {
  const std::int64_t base = desk_[from.slot].token_base;
  const std::int64_t page_tokens = desk_.tokens().page_tokens();
  for (std::int64_t p = from.prompt_end + base, end = from.known + base; p < end;) {
    const std::int64_t n = min_of(end - p, page_tokens - p % page_tokens);
    std::memcpy(desk_.tokens().at(to.slot, p), desk_.tokens().at(from.slot, p),
                static_cast<std::size_t>(n) * sizeof(Token));
    p += n;
  }
  // Keys of outputs are void with them; those of the prompt stay.
  RequestRecord& record = desk_[to.slot];
  record.num_keys = block_size_ > 0 ? min_of(record.num_keys, to.prompt_end / block_size_) : 0;
  to.known = from.known;
  to.last_token = from.last_token;
  to.write_room = 0;
}

/// All beams of a request forget what they have produced; the first one waits again.
template <class P>
void SchedulerCore<P>::restart_beams(std::uint32_t slot) noexcept {
  flush_outputs();
  const std::uint32_t root = desk_[slot].root;
  desk_[root].is_forked = false;
  desk_[root].open_samples = desk_[root].num_samples;
  desk_[root].is_tpot_judged = false;  // what ended runs again
  desk_[root].is_tpot_missed = false;
  for (std::uint32_t at = root; at != kNil; at = desk_[at].next_sample) {
    RequestRecord& record = desk_[at];
    const RequestState was = record.state;
    record.outputs = 0;
    desk_.renew_content(record);
    record.num_keys = 0;
    record.reason = FinishReason::None;
    if (was == RequestState::Ended) {
      record.sequence.slot = sequence_slots_.back();
      sequence_slots_.pop_back();
      record.sequence.generation = ++sequence_generations_[record.sequence.slot];
    }
    if (was == RequestState::Running) {
      RowState& r = rows_[static_cast<std::size_t>(record.row.value)];
      running_outputs_ -= r.known - r.prompt_end;
      r.known = r.prompt_end;
      detach_row(record.row.value, at == root);
    }
    if (at != root) {
      record.state = RequestState::Forking;
      record.row = kNoRow;
    } else if (was == RequestState::Ended) {
      enqueue(root);
    }
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
