// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: allocation, the inbox, the waiting queue, deadlines and ends of requests.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
Status SchedulerCore<P>::initialise() noexcept {
  if (const Status s = config_.validate(); !s) {
    return s;
  }
  if (const Status s = caps_.validate(); !s) {
    return s;
  }
  auto& pool = policies_.pool;
  by_sequence_ = caps_.sequence_handles > 0;
  if (const Status s = check_addressing(); !s) {
    return s;
  }
  const std::span<const GroupSpec> groups = pool.groups();
  if (const Status s = check_groups(groups); !s) {
    return s;
  }
  const auto largest_fit = [&pool](std::int64_t high) {  // that an otherwise idle pool holds
    std::int64_t low = 0;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (pool.can_ever_fit(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  };
  kv_limit_ = largest_fit(config_.max_context_tokens > 0 ? config_.max_context_tokens : 131072);
  const std::int64_t pool_tokens = largest_fit(std::int64_t{1} << 40);
  if (kv_limit_ < 1) {
    // Most often since its configuration is wrong: then it knows better what is.
    const PoolAttachment least{.max_rows = caps_.max_sequences,
                               .max_context_tokens = 1,
                               .max_plans_in_flight = config_.max_plans_in_flight,
                               .in_order = caps_.in_order,
                               .sequence_handles = caps_.sequence_handles};
    if (const Status s = pool.attach(least); !s) {
      return s;
    }
    return {Errc::InvalidConfig, "pool", kv_limit_, 1, "the pool holds no sequence at all"};
  }
  // A step computes at most what all rows can hold.
  const std::int64_t max_tokens =
      min_of(caps_.max_tokens, saturating_mul(caps_.max_sequences, kv_limit_));
  if (const Status s = pool.attach({.max_rows = caps_.max_sequences,
                                    .max_context_tokens = kv_limit_,
                                    .max_plans_in_flight = config_.max_plans_in_flight,
                                    .in_order = caps_.in_order,
                                    .sequence_handles = caps_.sequence_handles,
                                    .partial_copy = caps_.partial_copy && groups.size() == 1,
                                    .max_step_tokens = max_tokens});
      !s) {
    return s;
  }
  if (caps_.kv_tokens > 0 && !groups.empty() &&
      pool.stats().total_blocks * groups[0].block_size > caps_.kv_tokens) {
    return {Errc::InvalidConfig, "capabilities.kv_tokens", caps_.kv_tokens,
            pool.stats().total_blocks * groups[0].block_size,
            "the pool has more KV places than the executor"};
  }
  if (!groups.empty()) {
    group_ = groups[0];
    block_size_ = group_.block_size;
    for (int shift = 0; shift < 30; ++shift) {
      if ((std::int32_t{1} << shift) == block_size_) {
        block_shift_ = shift;
      }
    }
  }
  late_patience_ = AdmissionOptions::late_patience(policies_.admission);
  shares_prefixes_ = pool.shares_prefixes();

  IntakeLimits limits;
  limits.kv_limit = kv_limit_;
  limits.block_size = max_of(block_size_, 1);
  limits.max_samples =
      min_of(caps_.max_sequences, max_of(policies_.sizer.ceiling().max_decode_sequences, 1));
  if (by_sequence_ && !caps_.partial_share) {
    limits.max_samples = 1;
  }
  limits.all_atomic = !policies_.admission.splits_prompts();
  const BatchLimits ceiling = policies_.sizer.ceiling();
  limits.max_beams = min_of(ceiling.max_tokens, caps_.max_tokens);
  limits.total_blocks = block_size_ > 0 ? pool_tokens / block_size_ : 0;
  limits.atomic_limit =
      min_of(min_of(ceiling.max_tokens, ceiling.max_prefill_tokens), caps_.max_tokens);
  for (std::size_t i = 0; i < kMaxResources; ++i) {
    limits.resource_caps[i] = config_.resource_caps[i];
  }
  const auto slots = static_cast<std::size_t>(config_.max_live_requests);
  const auto rows = static_cast<std::size_t>(caps_.max_sequences);
  const auto ring = static_cast<std::size_t>(next_power_of_two(config_.max_live_requests));
  for (const Status& s :
       {desk_.allocate(config_, limits),
        watch_.allocate(config_.watch),
        waiting_.allocate(slots, "max_live_requests"),
        deadlines_.allocate(slots, "max_live_requests"),
        sequence_slots_.allocate(slots, "max_live_requests"),
        sequence_generations_.allocate(slots, "max_live_requests"),
        dirty_.allocate(ring, "max_live_requests"),
        delivered_.allocate(slots, "max_live_requests"),
        passed_over_.allocate(kLookahead + 1, "lookahead"),
        fork_copies_.allocate(rows, "max_sequences"),
        finished_outputs_.allocate(rows, "max_sequences"),
        drafts_.allocate(rows * static_cast<std::size_t>(config_.max_draft_tokens),
                         "max_draft_tokens"),
        rows_.allocate(rows, "max_sequences"),
        free_rows_.allocate(rows, "max_sequences"),
        candidates_.allocate(rows, "max_sequences"),
        parked_.allocate(AdmissionOptions::kHasMayAdmit ? kMaxQuotaGroups : 1, "quota_group"),
        loading_.allocate(PoolLoads::tells_loads(pool) ? kMaxLoads : 0, "max_loads"),
        PoolLoads::tells_loads(pool)
            ? desk_.allocate_keys(
                  max_of(block_size_, 1),
                  [](const void* p, const SequenceContentView& content) noexcept {
                    PoolLoads::name_blocks(*static_cast<const decltype(P::pool)*>(p), content);
                  },
                  &policies_.pool)
            : kOk,
        decoding_.allocate(rows),
        prefilling_.allocate(rows)}) {
    if (!s) {
      return s;
    }
  }
  dirty_.resize(ring);
  dirty_mask_ = ring - 1;
  for (SlotList& list : parked_.span()) {
    list = SlotList{};
  }
  for (SlotList& list : loading_.span()) {
    list = SlotList{};
  }
  for (std::size_t i = slots; i > 0; --i) {
    sequence_slots_.push_back(static_cast<std::uint32_t>(i - 1));
  }
  for (std::size_t i = rows; i > 0; --i) {
    free_rows_.push_back(static_cast<std::int32_t>(i - 1));
  }
  plans_.reset(new (std::nothrow)
                   PlanRecord[static_cast<std::size_t>(config_.max_plans_in_flight)]);
  if (plans_ == nullptr) {
    return {Errc::OutOfMemory, "max_plans_in_flight", config_.max_plans_in_flight, 0,
            "allocation failed"};
  }
  const std::int64_t max_deltas = block_size_ > 0 && !by_sequence_
                                      ? caps_.max_sequences * (ceil_div(kv_limit_, block_size_) + 1)
                                      : 0;
  const std::size_t max_swaps =
      PoolOptions::tells_swaps(pool)
          ? static_cast<std::size_t>(dynbatch::max_swaps(
                {.max_rows = caps_.max_sequences, .max_context_tokens = kv_limit_}, block_size_))
          : 0;
  const std::size_t max_ops = by_sequence_ ? max_row_ops(caps_.sequence_handles) : rows;
  for (std::int32_t i = 0; i < config_.max_plans_in_flight; ++i) {
    if (const Status s = plans_[static_cast<std::size_t>(i)].allocate(
            caps_.max_sequences, max_tokens, max_deltas, max_ops, max_swaps);
        !s) {
      return s;
    }
  }
  if (const Status s = allocate_groups(groups, max_tokens); !s) {
    return s;
  }
  // The host's spans need not outlive make().
  if (const Status s = graph_sizes_.allocate(caps_.graph_sizes.size(), "capabilities.graph_sizes");
      !s) {
    return s;
  }
  for (const std::int32_t size : caps_.graph_sizes) {
    graph_sizes_.push_back(size);
  }
  if (config_.flight_log_bytes > 0) {
    if (const Status s = start_recorder(groups); !s) {
      return s;
    }
  }
  if (watch_.is_on()) {
    desk_.count_refusals(&watch_);
  }
  config_.flight_label = "";
  caps_.groups = {};
  caps_.graph_sizes = {};
  return kOk;
}

/// Whether pool and executor address KV in the same way, and what the executor's way rules out.
template <class P>
Status SchedulerCore<P>::check_addressing() const noexcept {
  const bool shares = policies_.pool.shares_prefixes();
  if (by_sequence_ != PoolOptions::tells_row_ops(policies_.pool)) {
    return {Errc::InvalidConfig, "capabilities.sequence_handles", caps_.sequence_handles, 0,
            by_sequence_ ? "the pool tells no row operations" : "the pool needs sequence handles"};
  }
  if (PoolOptions::tells_swaps(policies_.pool) && !caps_.swap) {
    return {Errc::InvalidConfig, "capabilities.swap", 0, 1,
            "a pool with another tier of memory needs it"};
  }
  if (by_sequence_ && caps_.sequence_handles < caps_.max_sequences) {
    return {Errc::InvalidConfig, "capabilities.sequence_handles", caps_.sequence_handles,
            caps_.max_sequences, "must be at least max_sequences"};
  }
  if (by_sequence_ && !caps_.in_order) {
    return {Errc::InvalidConfig, "capabilities.in_order", 0, 1,
            "row operations need steps in plan order"};
  }
  if (by_sequence_ && shares && !caps_.partial_share) {
    return {Errc::InvalidConfig, "capabilities.partial_share", 0, 1,
            "a pool that shares prefixes needs it"};
  }
  if (!caps_.rollback && (shares || config_.max_draft_tokens > 0)) {
    return {Errc::InvalidConfig, "capabilities.rollback", 0, 1,
            shares ? "a pool that shares prefixes needs it" : "max_draft_tokens needs it"};
  }
  return kOk;
}

/// Time never runs backwards for the scheduler, whatever the host's clock does.
template <class P>
void SchedulerCore<P>::advance_clock(TimeNs now) noexcept {
  if (now > now_) {
    now_ = now;
    desk_.set_now(now);
  }
}

template <class P>
void SchedulerCore<P>::take_in(TimeNs now) noexcept {
  desk_.drain_submitted([&](std::uint32_t slot) { accept(slot, now); });
  desk_.drain_cancelled([&](std::uint32_t slot) {
    if (desk_.see_cancel(slot) && !desk_[slot].is_over) {
      if (flight_.is_on()) {
        record_cancel(slot, false, now);
      }
      end_request(slot, EventKind::Cancelled, FinishReason::None, Errc::Ok, now);
    }
  });
}

template <class P>
void SchedulerCore<P>::accept(std::uint32_t slot, TimeNs now) noexcept {
  const bool is_cancelled = desk_.take_over(slot);
  if (watch_.is_on()) {
    watch_.take_in(desk_[slot]);
  }
  if (flight_.is_on()) {
    record_request(slot, is_cancelled, now);
  }
  for (std::uint32_t at = slot; at != kNil; at = desk_[at].next_sample) {
    RequestRecord& record = desk_[at];
    record.order = next_order_++;
    record.sequence.slot = sequence_slots_.back();
    sequence_slots_.pop_back();
    record.sequence.generation = ++sequence_generations_[record.sequence.slot];
    record.accepted_time = now;
    record.event_time = now;
    // A further sample waits outside the queue until the first one has computed the prompt.
    record.state = RequestState::Forking;
    record.was_admitted = at != slot;
  }
  mark_dirty(slot);
  if (is_cancelled) {
    end_request(slot, EventKind::Cancelled, FinishReason::None, Errc::Ok, now);
    return;
  }
  if (!AdmissionOptions::can_ever_admit(policies_.admission, admission_view(slot))) {
    end_request(slot, EventKind::Failed, FinishReason::None, Errc::CanNeverFit, now);
    return;
  }
  enqueue(slot);
  for (std::uint32_t at = desk_[slot].next_sample; at != kNil; at = desk_[at].next_sample) {
    desk_[at].key = desk_[slot].key;
  }
  set_deadline(slot);
}

template <class P>
void SchedulerCore<P>::enqueue(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  AdmissionRequest view = admission_view(slot);
  if (shares_prefixes_ && !record.no_prefix_read && !record.was_admitted &&
      AdmissionOptions::wants_cached_tokens(policies_.admission)) {
    const std::int64_t known = record.prompt_length + record.outputs;
    view.cached_tokens = policies_.pool.match(content(slot, known), known - 1).num_tokens;
  }
  record.key = policies_.admission.key(view);
  record.was_queued = true;
  record.state = RequestState::Waiting;
  record.is_late = false;
  record.is_awaited = false;
  record.bypassed = 0;
  record.retry_need = 0;
  record.load = {};
  record.waits_since = now_;
  record.wait_cause = WaitCause::None;
  waiting_tokens_ += record.prompt_length + record.outputs;
  push_waiting(slot);
}

/// Into the queue. Among equals who has run before goes ahead, then the earlier submission.
template <class P>
void SchedulerCore<P>::push_waiting(std::uint32_t slot) noexcept {
  constexpr std::uint64_t kNeverRan = std::uint64_t{1} << 63U;
  const RequestRecord& record = desk_[slot];
  waiting_.push(slot,
                {record.key.primary, record.key.secondary,
                 record.order | (record.was_admitted ? 0 : kNeverRan)},
                record.is_late);
  counters_.waiting.set(num_waiting());
}

template <class P>
void SchedulerCore<P>::dequeue(std::uint32_t slot) noexcept {
  const RequestRecord& record = desk_[slot];
  waiting_tokens_ -= record.prompt_length + record.outputs;
  if (record.is_loading) {
    stop_loading(slot);
  } else if (record.is_parked) {
    unpark(slot);
  } else {
    waiting_.erase(slot);
  }
  counters_.waiting.set(num_waiting());
}

/// The earliest deadline that still applies: start_by until the first chunk, finish_by always.
template <class P>
void SchedulerCore<P>::set_deadline(std::uint32_t slot) noexcept {
  const RequestRecord& record = desk_[slot];
  if (deadlines_.contains(slot)) {
    deadlines_.erase(slot);
  }
  const TimeNs due =
      record.was_admitted ? record.finish_by : min_of(record.start_by, record.finish_by);
  if (due < kNever) {
    deadlines_.push(slot, {due.ns, 0, record.order});
  }
}

template <class P>
void SchedulerCore<P>::expire(TimeNs now) noexcept {
  while (!deadlines_.empty() && deadlines_.top_key().primary < now.ns) {
    end_request(deadlines_.top(), EventKind::Expired, FinishReason::None, Errc::Ok, now);
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
