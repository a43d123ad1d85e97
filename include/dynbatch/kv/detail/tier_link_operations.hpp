// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TierLink: operations begin, end, and are given up.
#include <dynbatch/kv/detail/tier_link.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class Tier>
Status TierLink<Tier>::attach(const TierConfig& config, const PoolAttachment& attachment,
                              std::int64_t num_slots, std::int32_t block_size,
                              std::size_t max_moves) noexcept {
  config_ = config;
  block_size_ = block_size;
  first_row_ = attachment.max_rows;
  const std::int64_t per_row = ceil_div(attachment.max_context_tokens, block_size);
  max_blocks_ = static_cast<std::size_t>(
      max_of<std::int64_t>(min_of<std::int64_t>(per_row, config.max_operation_blocks), 1));
  chain_.start(config.identity, block_size, config.memory.slot_bytes);
  config_.identity = {};  // its strings need not outlive the call
  breaker_ = CircuitBreaker(config.breaker);
  estimate_ = TierEstimate(config.latency, saturating_mul(config.memory.slot_bytes, 1'000'000'000) /
                                               config.bytes_per_second);
  const auto num_work = static_cast<std::size_t>(num_rows(config));
  const auto plans = static_cast<std::size_t>(max_of(attachment.max_plans_in_flight, 1));
  Status s = slots_.attach(num_slots, max_moves * (plans + 1));
  s = s ? work_.allocate(num_work, "tier.max_loads") : s;
  s = s ? keys_.allocate(num_work * max_blocks_, "tier.max_operation_blocks") : s;
  s = s ? scratch_.allocate(max_blocks_, "tier.max_operation_blocks") : s;
  s = s ? blocks_.allocate(max_blocks_, "tier.max_operation_blocks") : s;
  for (Work& w : work_.span()) {
    w = Work{};
  }
  stats_ = {};
  lent_ = 0;
  ended_ = 0;
  num_busy_ = 0;
  return s ? tier_.attach({.memory = config.memory,
                           .max_operations = num_rows(config),
                           .max_blocks = static_cast<std::int64_t>(max_blocks_),
                           .max_blocks_in_flight = config.max_blocks_in_flight})
           : s;
}

template <class Tier>
bool TierLink<Tier>::begin(Work& work, TierVerb verb,
                           std::span<const std::int32_t> slots) noexcept {
  TierOperation operation;
  operation.verb = verb;
  operation.ticket = next_ticket_++;
  operation.root = work.root;
  operation.first_block = work.first;
  operation.keys = keys_of(work).first(static_cast<std::size_t>(work.count));
  operation.slots = slots;
  operation.now = now_;
  operation.deadline = work.deadline;
  work.ticket = operation.ticket;
  work.begun = now_;
  if (!tier_.begin(operation)) {
    ++stats_.refusals;
    return false;
  }
  work.era = breaker_.note_begin();
  return true;
}

template <class Tier>
void TierLink<Tier>::advance(TimeNs now, HostPool& host) noexcept {
  now_ = max_of(now_, now);
  // Also while nothing is under way: what was given up may end, and the tier has to get rid of it.
  // Bounded, whatever the tier makes up.
  for (std::size_t left = 2 * work_.size(); left > 0;) {
    TierCompletion ended[16];
    const std::size_t asked = min_of(left, std::size(ended));
    const std::size_t n = min_of(tier_.poll(now_, {ended, asked}), asked);
    for (std::size_t i = 0; i < n; ++i) {
      end_operation(ended[i], host);
    }
    left = n < asked ? 0 : left - n;
  }
  for (Work& w : num_busy_ > 0 ? work_.span() : std::span<Work>{}) {
    if (is_under_way(w) && now_ >= w.deadline) {
      ++stats_.timeouts;
      ++stats_.failures;
      breaker_.note_end(w.era, false, now_);
      give_up(w, host);
    } else if (w.phase == Phase::Arrived && now_ >= w.deadline) {
      free(w, host);
    }
  }
  if (slots_.num_offers() > 0) {
    begin_stores(host);
  }
}

template <class Tier>
void TierLink<Tier>::end_operation(const TierCompletion& completion, HostPool& host) noexcept {
  Work* work = find(completion.ticket);
  if (work == nullptr) {
    ++stats_.nonsense;  // ended before, or never begun
    return;
  }
  if (work->phase == Phase::Lost) {
    lent_ -= work->count;
    free(*work, host);
    return;
  }
  const bool is_sane = completion.num_blocks >= 0 && completion.num_blocks <= work->count &&
                       (completion.result != TierResult::Cancelled || completion.num_blocks == 0);
  const std::int64_t blocks = is_sane ? completion.num_blocks : 0;
  stats_.nonsense += is_sane ? 0 : 1;
  stats_.corrupt += completion.result == TierResult::Corrupt ? 1 : 0;
  const bool is_good = is_sane && completion.result == TierResult::Done;
  // That a query found something is no news: whether the data come the fetch will show.
  const bool is_news = is_good ? work->phase != Phase::Asking || blocks == 0
                               : completion.result != TierResult::Cancelled;
  if (is_news) {
    stats_.failures += is_good ? 0 : 1;
    breaker_.note_end(work->era, is_good, now_);
  } else {
    breaker_.note_void(work->era);
  }
  switch (work->phase) {
    case Phase::Asking:
      stats_.misses += is_good && blocks == 0 ? 1 : 0;
      end_query(*work, is_good ? blocks : 0, host);
      break;
    case Phase::Fetching:
      end_fetch(*work, blocks, host);
      break;
    default:
      end_store(*work, blocks, host);
      break;
  }
}

/// Nobody waits for it any more. Its slots stay lent until the tier says that it is done with them.
template <class Tier>
void TierLink<Tier>::give_up(Work& work, HostPool& host) noexcept {
  wake(work);
  const bool has_slots = work.phase != Phase::Asking;
  const std::uint64_t ticket = work.ticket;
  if (work.phase == Phase::Storing) {
    for (const BlockId block : host.table(0, row_of(work))) {
      slots_[block.value].stored = HostSlots::Stored::No;
    }
  }
  if (has_slots) {
    work.phase = Phase::Lost;
  } else {
    free(work, host);
  }
  tier_.cancel(ticket);
}

template <class Tier>
void TierLink<Tier>::free(Work& work, HostPool& host) noexcept {
  host.release(row_of(work));
  work.phase = Phase::Free;
  work.ticket = 0;
  --num_busy_;
}

template <class Tier>
void TierLink<Tier>::end_store(Work& work, std::int64_t blocks, HostPool& host) noexcept {
  lent_ -= work.count;
  const std::span<const BlockId> slots = host.table(0, row_of(work));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots_[slots[i].value].stored =
        static_cast<std::int64_t>(i) < blocks ? HostSlots::Stored::Yes : HostSlots::Stored::No;
  }
  stats_.stored_blocks += static_cast<std::uint64_t>(blocks);
  free(work, host);
}

/// Stores what waits for it, one stretch of a prefix an operation, while the tier takes more.
template <class Tier>
void TierLink<Tier>::begin_stores(HostPool& host) noexcept {
  while (slots_.num_offers() > 0 && breaker_.allows(now_)) {
    const std::int32_t head = slots_.offered(0);
    const HostSlots::Stored parent = head >= 0 ? slots_.parent_of(head) : HostSlots::Stored::No;
    if (parent == HostSlots::Stored::UnderWay) {
      return;  // if that one fails this one is of no use
    }
    if (parent != HostSlots::Stored::Yes) {
      if (head >= 0) {
        slots_[head].stored = HostSlots::Stored::No;  // its turn comes with its parent's
      }
      slots_.pop_offers(1);
      continue;
    }
    Work* work = unused(stores());
    const std::int64_t room = config_.max_blocks_in_flight - lent_;
    if (work == nullptr || room < 1) {
      return;
    }
    *work = Work{};
    work->root = slots_[head].root;
    work->first = slots_[head].index;
    work->deadline = TimeNs{saturating_add(now_.ns, config_.store_deadline.ns)};
    const std::size_t most = min_of(max_blocks_, static_cast<std::size_t>(room));
    std::size_t n = 0;
    for (; n < most && n < slots_.num_offers(); ++n) {
      const std::int32_t slot = slots_.offered(n);
      if (slot < 0 || (n > 0 && (slots_[slot].parent != scratch_[n - 1] ||
                                 !(slots_[slot].root == work->root)))) {
        break;
      }
      scratch_[n] = slot;
      blocks_[n] = BlockId{slot};
      keys_of(*work)[n] = slots_[slot].key;
    }
    work->count = static_cast<std::int64_t>(n);
    const bool is_held = host.hold(row_of(*work), {blocks_.data(), n});
    if (is_held && !begin(*work, TierVerb::Store, {scratch_.data(), n})) {
      host.release(row_of(*work));
      return;  // it has enough to do
    }
    for (std::size_t i = 0; i < n; ++i) {
      slots_[scratch_[i]].stored = is_held ? HostSlots::Stored::UnderWay : HostSlots::Stored::No;
    }
    slots_.pop_offers(n);
    if (is_held) {
      work->phase = Phase::Storing;
      ++num_busy_;
      lent_ += static_cast<std::int64_t>(n);
      ++stats_.stores;
    }
  }
}

template <class Tier>
bool TierLink<Tier>::abort(HostPool& host) noexcept {
  for (Work& w : work_.span()) {
    if (is_under_way(w)) {
      breaker_.note_void(w.era);
      give_up(w, host);
    } else if (w.phase == Phase::Arrived) {
      free(w, host);
    }
  }
  return num_busy_ == 0;
}

template <class Tier>
TimeNs TierLink<Tier>::next_end() const noexcept {
  TimeNs next = kNever;
  for (std::size_t i = 0; i < static_cast<std::size_t>(config_.max_loads) && num_busy_ > 0; ++i) {
    const Work& w = work_.data()[i];
    next = w.phase == Phase::Asking || w.phase == Phase::Fetching ? min_of(next, w.deadline) : next;
  }
  return next;
}

template <class Tier>
Status TierLink<Tier>::check(const HostPool& host) const noexcept {
  std::int64_t lent = 0;
  std::int32_t busy = 0;
  for (std::size_t i = 0; i < work_.size(); ++i) {
    const Work& w = work_.data()[i];
    const auto held = static_cast<std::int64_t>(
        host.table(0, Row{first_row_ + static_cast<std::int32_t>(i)}).size());
    busy += w.phase == Phase::Free ? 0 : 1;
    const bool is_lent =
        w.phase == Phase::Fetching || w.phase == Phase::Storing || w.phase == Phase::Lost;
    lent += is_lent ? w.count : 0;
    const bool is_store = i >= static_cast<std::size_t>(config_.max_loads);
    const std::int64_t expected = w.phase == Phase::Free     ? 0
                                  : w.phase == Phase::Asking ? w.first
                                  : is_store                 ? w.count
                                                             : w.first + w.count;
    if (held != expected) {
      return {Errc::InternalError, "tier", held, expected, "an operation holds other slots"};
    }
  }
  if (lent != lent_ || busy != num_busy_) {
    return {Errc::InternalError, "tier", lent_, lent, "wrong counter"};
  }
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
