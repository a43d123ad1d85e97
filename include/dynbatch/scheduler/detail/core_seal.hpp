// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: the last part of a plan: copies, micro-batches, padding, what ranks agree on.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Adds what forks since the last plan have to copy, for the sequences that still run.
template <class P>
void SchedulerCore<P>::emit_copies(PlanRecord& record) noexcept {
  if (record.num_chunks == 0) {
    return;  // nobody executes it if the other ranks have no work either
  }
  prune_forks();
  for (const ForkCopy& fork : fork_copies_) {
    record.forks.push_back(fork);
    if (block_size_ == 0) {
      record.row_ops.push_back({RowOpKind::ShareRange, fork.source, fork.row, 0, fork.tokens, 0});
    } else if (fork.copy.num_tokens > 0) {
      record.copies.push_back(fork.copy);
    }
    rows_[static_cast<std::size_t>(fork.row.value)].copied_in = record.plan.id.value;
    if (caps_.in_order) {
      drop_fork(fork);  // copies come first in their plan: whoever gets the source writes later
    } else {
      ++rows_[static_cast<std::size_t>(fork.row.value)].lent;
    }
  }
  fork_copies_.clear();
  for (const PrefixCopy& start : record.prefix_copies) {
    if (is_held(start)) {
      record.copies.push_back(start.copy);
    }
  }
}

/// Counts what is drafted and what is computed again, once it is certain that it is planned.
template <class P>
void SchedulerCore<P>::count_chunks(const PlanRecord& record) noexcept {
  if (record.plan.num_prefill_chunks == 0 && config_.max_draft_tokens == 0) {
    return;
  }
  std::int64_t drafts = 0;
  std::int64_t again = 0;
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    const Chunk& chunk = record.chunks[i];
    if (chunk.kind == ChunkKind::Decode) {
      drafts += chunk.num_tokens - 1;
    } else {
      const RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
      const std::int32_t old =
          max_of(min_of(chunk.context_length, r.recompute_end) - chunk.first_position, 0);
      again += old;
      if (old > 0 && watch_.is_on()) {
        watch_.recomputed(root_of(r), old);
      }
    }
  }
  if (watch_.is_on()) {
    watch_.planned(again, record.plan.work.prefill_tokens, now_);
  }
  counters_.draft_tokens.add(static_cast<std::uint64_t>(drafts));
  counters_.recomputed_tokens.add(static_cast<std::uint64_t>(again));
}

/// What of a plan may be read before it is sealed.
template <class P>
void SchedulerCore<P>::show_chunks(PlanRecord& record, TimeNs now) noexcept {
  StepPlan& plan = record.plan;
  record.query_start[record.num_chunks] = static_cast<std::int32_t>(record.num_tokens);
  plan.planned_at = now;
  plan.num_samples = record.num_samples;
  plan.chunks = {record.chunks.data(), record.num_chunks};
  plan.tokens = {record.tokens.data(), record.num_tokens};
  plan.positions = {record.positions.data(), record.num_tokens};
  plan.query_start = {record.query_start.data(), record.num_chunks + 1};
  plan.rows = {record.rows.data(), record.num_chunks};
  plan.context_lengths = {record.context_lengths.data(), record.num_chunks};
  plan.is_dummy = record.num_chunks == 0;
  plan.is_sealed = false;
}

/// The captured size for a step of `rows` decodes; `rows` itself beyond the largest or without any.
template <class P>
std::int32_t SchedulerCore<P>::graph_size(std::int32_t rows) const noexcept {
  for (const std::int32_t size : graph_sizes_) {
    if (size >= rows) {
      return size;
    }
  }
  return rows;
}

template <class P>
RankSummary SchedulerCore<P>::summary(const StepPlan& plan) const noexcept {
  RankSummary own;
  own.num_tokens = plan.num_tokens();
  own.prefill_tokens = plan.work.prefill_tokens;
  own.num_rows = static_cast<std::int32_t>(plan.chunks.size());
  own.num_chunks = own.num_rows;
  own.attention_work = saturating_add(plan.work.attention_pairs, plan.work.kv_tokens);
  own.wants_split = !plan.is_dummy;
  return own;
}

template <class P>
Status SchedulerCore<P>::seal(const StepPlan& plan, std::span<const RankSummary> ranks) noexcept {
  if (num_in_flight_ == 0 || &in_flight_plan(num_in_flight_ - 1).plan != &plan || plan.is_sealed) {
    return {Errc::WrongPlan, "plan", static_cast<std::int64_t>(plan.id.value), 0,
            "only the newest plan can be sealed, once"};
  }
  if (static_cast<std::int64_t>(ranks.size()) != config_.num_ranks) {
    return {Errc::InvalidArgument, "summaries", static_cast<std::int64_t>(ranks.size()),
            config_.num_ranks, "one summary a rank"};
  }
  if (ranks[static_cast<std::size_t>(config_.rank)].num_tokens != plan.num_tokens()) {
    return {Errc::InvalidArgument, "summaries",
            ranks[static_cast<std::size_t>(config_.rank)].num_tokens, plan.num_tokens(),
            "this rank's own summary is not the plan's"};
  }
  seal(in_flight_plan(num_in_flight_ - 1), ranks);
  if (flight_.is_on()) {
    record_seal(plan, ranks);
  }
  return kOk;
}

/// Splits, pads and publishes the rest of the plan's spans. Whatever ranks must agree on is a
/// function of the summaries alone.
template <class P>
void SchedulerCore<P>::seal(PlanRecord& record, std::span<const RankSummary> ranks) noexcept {
  StepPlan& plan = record.plan;
  const auto num_chunks = static_cast<std::int32_t>(record.num_chunks);
  const auto num_tokens = static_cast<std::int32_t>(record.num_tokens);
  plan.is_sealed = true;

  SplitDecision split = policies_.splitter.split({.chunks = plan.chunks,
                                                  .num_tokens = num_tokens,
                                                  .cost = policies_.sizer.cost(),
                                                  .ranks = ranks,
                                                  .own_rank = config_.rank});
  split.count =
      clamp_to<std::int32_t>(split.count, 0, static_cast<std::int32_t>(kMaxMicroBatches) - 1);
  MicroBatch part{0, 0, 0, 0};
  for (std::int32_t i = 0; i < split.count; ++i) {
    const Cut cut = split.cuts[i];
    if (cut.chunk < 0 || cut.chunk >= num_chunks || cut.token < 0 ||
        cut.token >= plan.chunks[static_cast<std::size_t>(cut.chunk)].num_tokens) {
      continue;  // a cut outside the step cuts nothing
    }
    const std::int32_t token =
        plan.chunks[static_cast<std::size_t>(cut.chunk)].first_token + cut.token;
    if (token <= part.first_token) {
      continue;
    }
    part.last_chunk = cut.token > 0 ? cut.chunk + 1 : cut.chunk;
    part.last_token = token;
    record.micro_batches.push_back(part);
    part.first_chunk = cut.chunk;
    part.first_token = token;
  }
  part.last_chunk = num_chunks;
  part.last_token = num_tokens;
  record.micro_batches.push_back(part);
  plan.micro_batches = record.micro_batches.span();

  emit_copies(record);
  if (by_sequence_ && record.num_chunks > 0) {
    record.row_ops.resize(record.row_ops.capacity());
    record.row_ops.resize(PoolOptions::drain_row_ops(policies_.pool, record.row_ops.span()));
  }
  plan.row_ops = record.row_ops.span();
  if (record.num_chunks > 0 && record.swaps.capacity() > 0) {
    record.swaps.resize(record.swaps.capacity());
    record.swaps.resize(
        PoolOptions::drain_swaps(policies_.pool, record.swaps.span(), record.plan.id));
  }
  if (block_size_ > 0 && !by_sequence_) {
    GroupPlan& group = record.groups[0];
    group.spec = group_;
    group.token_slots = {record.token_slots.data(), record.num_tokens};
    group.deltas = record.deltas.span();
    group.copies = record.copies.span();
    group.swaps = record.swaps.span();
    plan.groups = {record.groups, 1};
    if (has_more_groups()) {
      seal_groups(record);
    }
  }
  if (record.pads_to_batch) {
    plan.padded = {num_tokens, batch_rows_, batch_context_};
  } else if (!ranks.empty() || !graph_sizes_.empty()) {
    std::int64_t tokens = num_tokens;
    std::int64_t prefill = plan.work.prefill_tokens;
    std::int32_t rows = num_chunks;
    for (const RankSummary& other : ranks) {
      tokens = max_of(tokens, other.num_tokens);
      prefill = max_of(prefill, other.prefill_tokens);
      rows = max_of(rows, other.num_rows);
    }
    if (prefill == 0 && tokens == rows && rows > 0) {  // decodes alone, without drafts
      rows = graph_size(rows);
      tokens = rows;
    }
    plan.padded = {tokens, rows, 0};
  }
  record.moves.resize(PlanRecord::kMaxMovesPerPlan);
  const std::int32_t due = policies_.balancer.due_moves(record.moves.span());
  record.moves.resize(static_cast<std::size_t>(
      clamp_to<std::int32_t>(due, 0, static_cast<std::int32_t>(PlanRecord::kMaxMovesPerPlan))));
  plan.expert_moves = record.moves.span();
  plan.placement_version = policies_.balancer.placement();
  counters_.prefill_tokens.add(static_cast<std::uint64_t>(plan.work.prefill_tokens));
  counters_.decode_tokens.add(static_cast<std::uint64_t>(plan.work.decode_rows));
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
