// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: KV groups beside the first. Only the first one decides who runs; a pool that has
/// more promises that these never run short (PoolAttachment says what they have to be ready for).
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Whether pool and executor agree on the groups, and what some kinds of groups rule out.
template <class P>
Status SchedulerCore<P>::check_groups(std::span<const GroupSpec> groups) const noexcept {
  const auto count = static_cast<std::int64_t>(groups.size());
  if (groups.size() > kMaxGroups) {
    return {Errc::InvalidConfig, "pool.groups", count, static_cast<std::int64_t>(kMaxGroups),
            "too many KV groups"};
  }
  if (count > 1 && (by_sequence_ || !PoolOptions::tells_groups(policies_.pool))) {
    return {Errc::NotSupported, "pool.groups", count, 1,
            by_sequence_ ? "hosts that address KV by sequence have one group"
                         : "the pool does not tell what its further groups need"};
  }
  for (const GroupSpec& group : groups) {
    if (group.kind == GroupKind::Recurrent && config_.max_draft_tokens > 0) {
      return {Errc::InvalidConfig, "max_draft_tokens", config_.max_draft_tokens, 0,
              "a recurrent state can't take back rejected drafts"};
    }
  }
  if (!caps_.groups.empty()) {
    std::size_t i = 0;
    const std::size_t both = min_of(caps_.groups.size(), groups.size());
    while (i < both && caps_.groups[i] == groups[i]) {
      ++i;
    }
    if (i < both || caps_.groups.size() != groups.size()) {
      return {Errc::InvalidConfig, "capabilities.groups",
              i < caps_.groups.size() ? caps_.groups[i].block_size : 0,
              i < groups.size() ? groups[i].block_size : 0, "differs from the pool's groups"};
    }
  }
  return kOk;
}

template <class P>
Status SchedulerCore<P>::allocate_groups(std::span<const GroupSpec> groups,
                                         std::int64_t max_tokens) noexcept {
  num_groups_ = groups.size();
  for (std::size_t g = 1; g < num_groups_; ++g) {
    const GroupSpec& spec = groups[g];
    has_states_ = has_states_ || spec.kind == GroupKind::Recurrent;
    if (const Status s = told_[g - 1].allocate(rows_.size(), "max_sequences"); !s) {
      return s;
    }
    const std::int64_t max_blocks =
        spec.kind == GroupKind::Recurrent ? 1 : ceil_div(kv_limit_, max_of(spec.block_size, 1));
    for (std::int32_t i = 0; i < config_.max_plans_in_flight; ++i) {
      PlanRecord& record = plans_[static_cast<std::size_t>(i)];
      record.num_further = num_groups_ - 1;
      record.groups[g].spec = spec;
      if (const Status s =
              record.further[g - 1].allocate(caps_.max_sequences, max_tokens, max_blocks);
          !s) {
        return s;
      }
    }
  }
  return kOk;
}

/// Table changes and token slots of a chunk in the groups beside the first.
template <class P>
void SchedulerCore<P>::write_groups(PlanRecord& record, std::int32_t row,
                                    const Chunk& chunk) noexcept {
  for (std::size_t g = 1; g < num_groups_; ++g) {
    GroupRecord& out = record.further[g - 1];
    const GroupSpec& spec = record.groups[g].spec;
    ToldTable& told = told_[g - 1][static_cast<std::size_t>(row)];
    const std::span<const BlockId> table = policies_.pool.table(g, Row{row});
    const auto length = static_cast<std::int32_t>(table.size());
    std::int32_t first = told.first;
    while (first < length && table[static_cast<std::size_t>(first)] == kNoBlock) {
      ++first;
    }
    if (first > told.first) {
      out.deltas.push_back({Row{row}, first - 1, kNoBlock});
    }
    for (std::int32_t i = max_of(told.length, first); i < length; ++i) {
      out.deltas.push_back({Row{row}, i, table[static_cast<std::size_t>(i)]});
    }
    told = {first, length};

    TokenSlot* slots = out.token_slots.data() + chunk.first_token;
    const std::int32_t end = chunk.first_position + chunk.num_tokens;
    if (spec.kind == GroupKind::Recurrent) {
      for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
        slots[i] = TokenSlot{table[0].value};
      }
      continue;
    }
    for (std::int32_t p = chunk.first_position; p < end;) {
      const std::int32_t index = p / spec.block_size;
      const std::int32_t stop = min_of(end, (index + 1) * spec.block_size);
      std::int64_t slot =
          std::int64_t{table[static_cast<std::size_t>(index)].value} * spec.block_size +
          (p - index * spec.block_size);
      for (; p < stop; ++p) {
        *slots++ = TokenSlot{slot++};
      }
    }
  }
  PoolOptions::plan_chunk(policies_.pool, Row{row}, chunk.context_length, record.plan.id);
}

/// The tokens of a chunk move to the front, over those of chunks that were dropped.
template <class P>
void SchedulerCore<P>::close_group_gaps(PlanRecord& record, std::size_t to, std::size_t from,
                                        std::size_t n) noexcept {
  for (std::size_t i = 0; i < record.num_further; ++i) {
    TokenSlot* slots = record.further[i].token_slots.data();
    std::memmove(static_cast<void*>(slots + to), slots + from, n * sizeof(TokenSlot));
  }
}

/// Forgets the deltas of rows that have left the plan under construction.
template <class P>
void SchedulerCore<P>::drop_group_deltas(PlanRecord& record) noexcept {
  for (std::size_t i = 0; i < record.num_further; ++i) {
    FixedVector<BlockDelta>& deltas = record.further[i].deltas;
    std::size_t kept = 0;
    for (const BlockDelta& delta : deltas) {
      const RowPhase phase = rows_[static_cast<std::size_t>(delta.row.value)].phase;
      if (phase == RowPhase::Prefill || phase == RowPhase::Decode) {
        deltas[kept++] = delta;
      }
    }
    deltas.resize(kept);
  }
}

template <class P>
void SchedulerCore<P>::seal_groups(PlanRecord& record) noexcept {
  for (std::size_t g = 1; g < num_groups_; ++g) {
    GroupRecord& from = record.further[g - 1];
    if (record.num_chunks > 0) {
      from.copies.resize(from.copies.capacity());
      from.copies.resize(
          PoolOptions::drain_copies(policies_.pool, g, from.copies.span(), record.plan.id));
      from.zeroes.resize(from.zeroes.capacity());
      from.zeroes.resize(PoolOptions::drain_zeroes(policies_.pool, g, from.zeroes.span()));
    }
    GroupPlan& group = record.groups[g];
    group.token_slots = {from.token_slots.data(), record.num_tokens};
    group.deltas = from.deltas.span();
    group.copies = from.copies.span();
    group.zeroes = from.zeroes.span();
  }
  record.plan.groups = {record.groups, num_groups_};
}

/// More of the row is computed for certain, or less of it is planned.
template <class P>
void SchedulerCore<P>::advance_groups(std::int32_t row) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  PoolOptions::advance(policies_.pool, Row{row}, r.committed, r.planned);
  for (std::size_t g = 1; g < num_groups_; ++g) {
    ToldTable& told = told_[g - 1][static_cast<std::size_t>(row)];
    told.length =
        min_of(told.length, static_cast<std::int32_t>(policies_.pool.table(g, Row{row}).size()));
  }
}

/// Nothing of the chunk ran, though the plan's copies were made: the row's states are still what
/// they were before it, unless a younger plan works on them already.
template <class P>
void SchedulerCore<P>::keep_states(const Chunk& chunk, const ChunkUndo& undo,
                                   PlanId plan) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(chunk.row.value)];
  if (r.epoch == undo.epoch && r.phase != RowPhase::Draining && r.in_flight == 1) {
    PoolOptions::plan_chunk(policies_.pool, chunk.row, chunk.first_position, plan);
  }
}

/// The host is told all of the row's table again.
template <class P>
void SchedulerCore<P>::forget_told(std::int32_t row) noexcept {
  for (std::size_t g = 1; has_more_groups() && g < num_groups_; ++g) {
    told_[g - 1][static_cast<std::size_t>(row)] = {0, 0};
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
