// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: who of the waiting is let in.
#include <dynbatch/model/block_media.hpp>
#include <dynbatch/scheduler/detail/core.hpp>

#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Admits those in time or the late ones, in queue order. A request that does not fit may be passed
/// by later ones, a bounded number of times; one that waits for another's prefill may be passed
/// freely, since that prefill goes on.
template <class P>
void SchedulerCore<P>::admit(PlanRecord& record, const BatchLimits& limits, Budget& budget,
                             bool is_late) noexcept {
  if (pause_seen_ != 0) {
    if (!waiting_.empty() && desk_[waiting_.top()].is_late == is_late) {
      note_blocked(waiting_.top(), WaitCause::Paused);
    }
    return;
  }
  if (num_running_ == 0 && num_parked_ > 0) {
    wake_all();
  }
  const SlotHeap& queue = waiting_.part(is_late);
  while (!queue.empty() && !budget.preempted) {
    const std::uint32_t slot = queue.top();
    const HeapKey key = queue.top_key();  // whom it displaces may stand before it then
    WaitCause cause = WaitCause::None;
    const Admit outcome = try_admit(record, slot, limits, budget, cause);
    if (outcome == Admit::Done) {
      bool is_exhausted = false;
      for (const PassedOver& passed : passed_over_) {
        RequestRecord& other = desk_[passed.slot];
        other.bypassed += passed.counts ? 1 : 0;
        is_exhausted =
            is_exhausted || (passed.counts && other.bypassed >= policies_.admission.max_bypass());
      }
      if (is_exhausted) {
        break;
      }
      continue;
    }
    if (outcome == Admit::Late) {
      move_to_late(slot);
      continue;
    }
    note_blocked(slot, cause);
    if (outcome == Admit::Parked) {
      continue;
    }
    const bool counts = cause != WaitCause::Dependency;
    if (outcome == Admit::BudgetSpent || passed_over_.size() == kLookahead ||
        (counts && desk_[slot].bypassed >= policies_.admission.max_bypass())) {
      break;
    }
    passed_over_.push_back({key, slot, counts});
    waiting_.erase(slot);
  }
  for (const PassedOver& passed : passed_over_) {
    waiting_.push(passed.slot, passed.key, is_late);
  }
  passed_over_.clear();
  counters_.waiting.set(num_waiting());
}

template <class P>
typename SchedulerCore<P>::Admit SchedulerCore<P>::try_admit(PlanRecord& plan_record,
                                                             std::uint32_t slot,
                                                             const BatchLimits& limits,
                                                             Budget& budget,
                                                             WaitCause& cause) noexcept {
  RequestRecord& record = desk_[slot];
  const bool may_be_late = budget.sorts_late && !record.is_late;
  if (may_be_late && is_past_hope(record, record.prompt_length, limits.max_prefill_tokens)) {
    return Admit::Late;  // even with all of its prompt in the cache
  }
  const std::int64_t left = min_of(budget.tokens, budget.prefill_tokens);
  // All samples of a request start together: their rows are kept from the first chunk on.
  const std::int32_t rows = record.sample == 0 && !record.is_forked ? record.num_samples : 1;
  const bool needs_place = !has_place(limits);
  if ((needs_place && (rows > 1 || !may_displace(slot))) ||
      budget.prefill_chunks >= limits.max_prefill_sequences) {
    cause = WaitCause::Sequences;
    return Admit::BudgetSpent;
  }
  const auto free_rows = static_cast<std::int32_t>(free_rows_.size()) - reserved_rows_;
  if (rows > 1 && (free_rows < rows || (num_running_ > 0 && num_running_ + reserved_rows_ + rows >
                                                                limits.max_decode_sequences))) {
    cause = WaitCause::Sequences;
    return Admit::Blocked;
  }
  if (left == 0) {
    cause = WaitCause::Budget;
    return Admit::BudgetSpent;
  }
  const bool holds_needs = desk_[record.root].running_samples > 0;  // once for all its samples
  for (std::uint8_t i = 0; i < record.num_needs && !holds_needs; ++i) {
    const ResourceNeed& need = record.needs[i];
    if (need.amount > config_.resource_caps[need.resource] - resource_use_[need.resource]) {
      cause = WaitCause::Resource;
      return Admit::Blocked;
    }
  }
  if constexpr (AdmissionOptions::kHasMayAdmit) {
    if (parks(slot)) {
      cause = WaitCause::Quota;
      return Admit::Parked;
    }
  }
  // Cheap answers first: a blocked request must not cost a look-up in every step.
  if (record.waits_row >= 0) {
    const RowState& other = rows_[static_cast<std::size_t>(record.waits_row)];
    if (other.phase == RowPhase::Prefill && desk_[other.slot].order == record.waits_order &&
        other.planned < record.waits_position) {
      cause = WaitCause::Dependency;
      return Admit::Blocked;
    }
    record.waits_row = -1;
  }
  const std::int64_t known = record.prompt_length + record.outputs;
  if constexpr (PoolLoads::kHasLoads) {
    // Whoever goes to wait for the store needs nobody's place yet.
    if (needs_place && outranks(slot) && shares_prefixes_ && !record.no_prefix_read) {
      const PrefixMatch match = policies_.pool.match(content(slot, known), known - 1);
      if (!waits_for_prefill(slot, match.num_tokens - match.num_copied) &&
          starts_loading(slot, known)) {
        cause = WaitCause::Loading;
        return Admit::Parked;
      }
    }
  }
  std::int64_t spare = block_size_ > 0 ? spare_blocks() : std::numeric_limits<std::int32_t>::max();
  if (needs_place) {
    displace(plan_record, slot, spare, budget);
    if (!has_place(limits)) {
      cause = WaitCause::Sequences;
      return Admit::BudgetSpent;
    }
    spare = block_size_ > 0 ? spare_blocks() : spare;
  }
  // What was missing beside others is not what is missing alone: an idle scheduler looks again.
  if (num_running_ > 0 && record.retry_need > spare && next_plan_ < record.retry_plan) {
    cause = WaitCause::Memory;
    return Admit::Blocked;
  }
  PrefixMatch match;
  if (shares_prefixes_ && !record.no_prefix_read) {
    // At least one position is computed, or there would be nothing to sample from.
    match = policies_.pool.match(content(slot, known), known - 1);
    if (!caps_.in_order && num_in_flight_ > 0 && match.newest_pending != kNoPlan) {
      cause = WaitCause::InFlight;  // a plan that may run later has still to write a block of it
      return Admit::Blocked;
    }
    if (by_sequence_ && match.newest_pending == PlanId{next_plan_}) {
      cause = WaitCause::InFlight;  // rows share before the plan runs: what it writes comes later
      return Admit::Blocked;
    }
    if (waits_for_prefill(slot, match.num_tokens - match.num_copied)) {
      cause = WaitCause::Dependency;
      return Admit::Blocked;
    }
    if constexpr (PoolLoads::kHasLoads) {
      if (starts_loading(slot, known)) {
        cause = WaitCause::Loading;
        return Admit::Parked;
      }
    }
  }
  if (may_be_late && is_past_hope(record, match.num_tokens, limits.max_prefill_tokens)) {
    return Admit::Late;
  }
  Claim claim = claim_of(record, rows, known, match, spare);
  if (match.num_copied > 0 &&
      (claim.cost > spare || spare - match.idle_blocks - claim.fork_blocks < 1)) {
    match.drop_copy();  // the block to copy from is the one that would be missing
    claim = claim_of(record, rows, known, match, spare);
  }
  const std::int64_t fork_blocks = claim.fork_blocks;
  if (block_size_ > 0 && claim.cost > spare) {
    record.retry_need = claim.cost;
    record.retry_plan = next_plan_ + kRetryPlans;
    cause = WaitCause::Memory;
    return Admit::Blocked;
  }
  const std::int64_t remaining = known - match.num_tokens;
  const std::int64_t prompt_remaining = record.prompt_length - match.num_tokens;
  std::int64_t n = policies_.admission.chunk({.remaining_tokens = remaining,
                                              .budget_tokens = left,
                                              .block_size = max_of(block_size_, 1),
                                              .is_first_chunk = true,
                                              .is_atomic = record.atomic_prefill});
  // Whatever the policy says, a step that would be empty takes what it can: progress comes first.
  n = clamp_to<std::int64_t>(n, plan_record.num_chunks == 0 && num_running_ == 0 ? 1 : 0,
                             min_of(left, remaining));
  if (record.atomic_prefill && n < prompt_remaining) {
    // A step of its own if need be: submit() made sure that the sizer's ceiling allows it.
    if (num_running_ > 0 || plan_record.num_chunks > 0) {
      cause = WaitCause::Budget;
      return Admit::BudgetSpent;
    }
    n = prompt_remaining;
    budget.tokens = max_of(budget.tokens, n);
    budget.prefill_tokens = max_of(budget.prefill_tokens, n);
  }
  if (has_more_groups() && !record.atomic_prefill) {
    n = PoolOptions::chunk_length(policies_.pool, match.num_tokens, n);
  }
  if (block_size_ > 0) {
    const std::int64_t room =
        (spare - match.idle_blocks + match.num_blocks - fork_blocks) * block_size_;
    n = min_of(n, room - match.num_tokens);
    if (n <= 0 || (record.atomic_prefill && n < prompt_remaining)) {
      cause = n <= 0 && left > 0 ? WaitCause::Memory : WaitCause::Budget;
      return Admit::Blocked;
    }
  } else if (n <= 0) {
    cause = WaitCause::Budget;
    return Admit::BudgetSpent;
  }

  dequeue(slot);
  ++num_admitted_;
  if constexpr (AdmissionOptions::kHasOnAdmit) {
    AdmissionOptions::on_admit(policies_.admission, admission_view(slot));
  }
  const std::int32_t row = take_row(slot);
  RowState& r = rows_[static_cast<std::size_t>(row)];
  if (match.num_tokens > 0) {
    const bool is_acquired = policies_.pool.acquire(Row{row}, match);
    DYNBATCH_ASSERT(is_acquired, "a match must be valid until the next change of the pool");
    r.table_tokens =
        static_cast<std::int32_t>(match.num_blocks + (match.num_copied > 0 ? 1 : 0)) * block_size_;
  }
  if (match.num_copied > 0) {
    begin_copy(plan_record, row, match);
  }
  if (match.num_loaded > 0) {
    if (plan_record.loads.size() == plan_record.loads.capacity()) {
      prune_row_starts(plan_record.loads);
    }
    plan_record.loads.push_back({Row{row}, r.residence, match.num_tokens - match.num_loaded});
  }
  r.planned = static_cast<std::int32_t>(match.num_tokens);
  r.committed = r.planned;
  if (shares_prefixes_) {
    r.next_publish = static_cast<std::int32_t>(match.num_blocks + 1) * block_size_;
    counters_.prefix_query.add(static_cast<std::uint64_t>(known));
    counters_.prefix_hit.add(static_cast<std::uint64_t>(match.num_tokens));
    if (watch_.is_on()) {
      watch_.hit(root_of(r), match.num_tokens);
    }
  }
  r.reserved_rows = rows - 1;
  reserved_rows_ += rows - 1;
  r.fork_blocks = static_cast<std::int32_t>(fork_blocks);
  held_blocks_ += fork_blocks;
  set_phase(row, RowPhase::Prefill);
  append_prefill(plan_record, row, static_cast<std::int32_t>(n), budget);
  hold_blocks(r, max_of<std::int64_t>(claim.held - blocks_for(r.table_tokens), 0));
  if (flight_.is_on()) {
    record_admitted(slot, known, match.num_tokens);
  }
  if constexpr (AdmissionOptions::kHasMayAdmit) {
    record.is_woken = false;
    wake(AdmissionOptions::quota_group(policies_.admission, admission_view(slot)));
  }
  return Admit::Done;
}

/// What admitting a request that found `match` takes of the blocks that are to be had.
template <class P>
typename SchedulerCore<P>::Claim SchedulerCore<P>::claim_of(const RequestRecord& record,
                                                            std::int32_t rows, std::int64_t known,
                                                            const PrefixMatch& match,
                                                            std::int64_t spare) noexcept {
  const Reservation reservation = policies_.admission.need(
      {.known_tokens = known,
       .max_total_tokens = min_of(record.prompt_length + record.max_new, kv_limit_),
       .cached_tokens = match.num_tokens,
       .num_running = num_running_,
       .pool = policies_.pool.stats(),
       .num_preemptions = record.preemptions});
  Claim claim;
  std::int64_t required =
      blocks_for(clamp_to<std::int64_t>(reservation.required_tokens, 1, kv_limit_));
  claim.held = blocks_for(clamp_to<std::int64_t>(reservation.held_tokens, 0, kv_limit_));
  if (record.is_beam) {  // known exactly, and submit() made sure that the pool can have it
    required = beam_blocks(record);
    claim.held = required;
  }
  const std::int64_t headroom = num_running_ > 0
                                    ? clamp_to<std::int64_t>(reservation.headroom_blocks, 0,
                                                             policies_.pool.stats().total_blocks)
                                    : 0;
  // Idle cached blocks count as available until they are taken: taking them costs as much as new
  // ones.
  claim.fork_blocks = block_size_ > 0 && record.prompt_length % block_size_ != 0 ? rows - 1 : 0;
  if (record.is_beam && block_size_ > 0) {
    claim.fork_blocks = (rows - 1) * (beam_blocks(record) - record.prompt_length / block_size_);
  }
  const std::int64_t own = required - match.num_blocks + match.idle_blocks + headroom;
  if (num_running_ == 0 && !record.is_beam) {
    // Nobody would make room later: samples that find no block then compute the prompt themselves.
    // The prompt itself comes first, whatever the policy asked to have at once.
    const std::int64_t whole = blocks_for(known) - match.num_blocks + match.idle_blocks;
    claim.fork_blocks = clamp_to<std::int64_t>(spare - max_of(own, whole), 0, claim.fork_blocks);
  }
  claim.cost = own + claim.fork_blocks;
  return claim;
}

/// The row begins with the front of another block: the plan under construction copies it.
template <class P>
void SchedulerCore<P>::begin_copy(PlanRecord& plan_record, std::int32_t row,
                                  const PrefixMatch& match) noexcept {
  if (plan_record.prefix_copies.size() == plan_record.prefix_copies.capacity()) {
    prune_row_starts(plan_record.prefix_copies);
  }
  const BlockId target =
      policies_.pool.table(0, Row{row})[static_cast<std::size_t>(match.num_blocks)];
  plan_record.prefix_copies.push_back(
      {Row{row},
       rows_[static_cast<std::size_t>(row)].residence,
       match.num_blocks * block_size_,
       {match.copy_source, target, static_cast<std::int32_t>(match.num_copied)}});
}

/// True if a started prefill will produce the block that follows the request's cached prefix. The
/// request then waits for it instead of computing the same block again.
template <class P>
bool SchedulerCore<P>::waits_for_prefill(std::uint32_t slot, std::int64_t matched) noexcept {
  RequestRecord& record = desk_[slot];
  const std::int64_t block_end = matched + block_size_;
  if (prefilling_.size() == 0 ||
      block_end > min_of(record.prompt_length + record.outputs - 1, record.cacheable)) {
    return false;
  }
  for (std::int32_t i = 0; i < prefilling_.end(); ++i) {
    const std::int32_t row = prefilling_.at(i);
    if (row < 0) {
      continue;
    }
    const RowState& r = rows_[static_cast<std::size_t>(row)];
    if (r.planned < block_end && r.known >= block_end && desk_[r.slot].cacheable >= block_end &&
        same_content(slot, r.slot, block_end)) {
      desk_[r.slot].is_awaited = desk_[r.slot].is_awaited || !record.is_late;
      record.waits_order = desk_[r.slot].order;
      record.waits_row = row;
      record.waits_position = static_cast<std::int32_t>(block_end);
      return true;
    }
  }
  return false;
}

/// Equal scope and equal content of the first `tokens` positions (a whole number of blocks). The
/// last block is compared first: where prompts differ, they mostly do there.
template <class P>
bool SchedulerCore<P>::same_content(std::uint32_t a, std::uint32_t b,
                                    std::int64_t tokens) const noexcept {
  const RequestRecord& ra = desk_[a];
  const RequestRecord& rb = desk_[b];
  if (!(ra.scope == rb.scope) || ra.digest_unit != rb.digest_unit) {
    return false;
  }
  const SequenceContentView va = content(a, tokens);
  const SequenceContentView vb = content(b, tokens);
  if (!equal_media(va.media, vb.media, tokens)) {
    return false;
  }
  if (va.has_digests()) {  // a digest covers the whole prefix
    return va.digest_at(tokens - 1) == vb.digest_at(tokens - 1);
  }
  for (std::int64_t block = tokens - block_size_; block >= 0; block -= block_size_) {
    if (std::memcmp(va.tokens_at(block), vb.tokens_at(block),
                    static_cast<std::size_t>(block_size_) * sizeof(Token)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
