// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: drafted tokens, and further samples that fork off the first.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

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
  if (r.planned > r.committed) {
    PoolOptions::rewind(policies_.pool, chunk.row, r.committed);
  }
  r.planned = r.committed;
  r.plain_end = 0;
  if (r.committed >= r.next_publish) {
    policies_.pool.publish(chunk.row, content(r.slot, r.known), min_of(r.committed, r.known),
                           kNoPlan);
    r.next_publish = (r.committed / block_size_ + 1) * block_size_;
  }
  if (has_more_groups()) {
    advance_groups(chunk.row.value);
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
    if (chunk.num_samples == 0 || r.epoch != record.undo[i].epoch || r.phase != RowPhase::Decode ||
        r.in_flight > 0) {
      continue;  // ended, reset, or its next step is planned already
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
  if (by_sequence_) {
    return;  // the pool tells it in its place among the row operations
  }
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
  const std::int32_t kept =
      parent.is_beam ? parent.fork_blocks / parent.reserved_rows : min_of(parent.fork_blocks, 1);
  --parent.reserved_rows;
  --reserved_rows_;
  parent.fork_blocks -= kept;
  held_blocks_ -= kept;
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
      if (length % block_size_ != 0 || has_more_groups()) {  // other groups may have rests
        lend(row, target, {from[to.size() - 1], to.back(), length % block_size_}, length);
      }
      if (r.is_beam) {
        hold_blocks(r, kept - (length % block_size_ != 0 ? 1 : 0));
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
  } else if (!is_forked && r.is_beam) {
    end_request(child, EventKind::Failed, FinishReason::None, Errc::NotSupported, now);
  } else if (!is_forked) {
    flush_outputs();
    detach_row(target, true);  // a pool that cannot fork: the sample computes its prompt itself
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
