// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TierLink: what requests wait for, and how it gets into the host index.
#include <dynbatch/kv/detail/tier_link.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class Tier>
bool TierLink<Tier>::awaits(const SequenceContentView& content, std::int64_t total,
                            std::int64_t best, PrefixMatch& match, HostPool& host,
                            LoadWait& wait) noexcept {
  constexpr std::int32_t kMaxWaits = 8;
  const bool is_first = wait.num_waits == 0;
  // Asked before, and less came than was asked for: the store has no more, or fails.
  if (total - best < config_.min_gain_blocks || (!is_first && best <= wait.best_blocks) ||
      wait.num_waits >= kMaxWaits) {
    return false;
  }
  const TimeNs until =
      is_first ? TimeNs{saturating_add(now_.ns, config_.load_deadline.ns)} : wait.until;
  if (now_ >= until || !chain_.extend(content, total)) {
    return false;
  }
  const KeyRoot root = chain_.root(content);
  Work* load = nullptr;
  for (Work& w : loads()) {
    const bool is_open = w.phase == Phase::Asking || w.phase == Phase::Fetching;
    if (is_open && w.deadline <= until && brings(w, content, root, best)) {
      load = &w;
      ++stats_.shared_loads;
      break;
    }
  }
  if (load == nullptr) {
    const std::int64_t first = match.num_blocks;
    const std::int64_t count =
        min_of<std::int64_t>(total - first, static_cast<std::int64_t>(max_blocks_));
    load = unused(loads());
    if (load == nullptr || !breaker_.allows(now_) || match.newest_pending != kNoPlan ||
        first + count - best < config_.min_gain_blocks) {
      return false;
    }
    // The blocks before it stay in host memory meanwhile: without them nobody would find it.
    if (!host.acquire(row_of(*load), match)) {
      return false;
    }
    *load = Work{};
    load->root = root;
    load->first = first;
    load->count = count;
    load->best = best;
    load->deadline = until;
    chain_.copy(content, root, first, keys_of(*load).first(static_cast<std::size_t>(count)));
    if (!begin(*load, TierVerb::Query, {})) {
      host.release(row_of(*load));
      match = host.match(content, total * block_size_);  // same blocks, and valid again
      return false;
    }
    load->phase = Phase::Asking;
    ++num_busy_;
    ++stats_.queries;
    wait.best_blocks = first + count - 1;
  } else {
    wait.best_blocks = best;
  }
  wait.load = static_cast<std::int32_t>(index_of(*load));
  wait.until = until;
  ++wait.num_waits;
  return true;
}

/// Whether a load has the block in it that follows the `best` ones of a content. Keys are chained:
/// where one is equal, all before it are.
template <class Tier>
bool TierLink<Tier>::brings(const Work& work, const SequenceContentView& content,
                            const KeyRoot& root, std::int64_t best) noexcept {
  return work.first <= best && best < work.first + work.count && work.root.digest == root.digest &&
         keys_of(work)[static_cast<std::size_t>(best - work.first)] ==
             chain_.at(content, root, best);
}

template <class Tier>
bool TierLink<Tier>::adopt(const SequenceContentView& content, HostPool& host) noexcept {
  bool has_new = false;
  for (Work& w : num_busy_ > 0 ? loads() : std::span<Work>{}) {
    if (w.phase != Phase::Arrived || content.scope == nullptr) {
      continue;
    }
    const std::int64_t known = min_of(content.known_length, content.cacheable_length) / block_size_;
    const std::int64_t end = min_of(known, w.first + w.count);
    if (end <= w.first || !chain_.extend(content, end)) {
      continue;
    }
    const KeyRoot root = chain_.root(content);
    std::int64_t equal = 0;
    while (w.first + equal < end && w.root.digest == root.digest &&
           keys_of(w)[static_cast<std::size_t>(equal)] ==
               chain_.at(content, root, w.first + equal)) {
      ++equal;
    }
    const std::int64_t before = host.num_published_blocks(row_of(w));
    if (w.first + equal <= before) {
      continue;
    }
    host.publish(row_of(w), content, (w.first + equal) * block_size_, kNoPlan);
    const std::int64_t after = host.num_published_blocks(row_of(w));
    note_writes(content, host.table(0, row_of(w)), before, after);
    for (std::int64_t i = before; i < after; ++i) {
      slots_[host.table(0, row_of(w))[static_cast<std::size_t>(i)].value].stored =
          HostSlots::Stored::Yes;
    }
    stats_.fetched_blocks += static_cast<std::uint64_t>(max_of<std::int64_t>(after - before, 0));
    has_new = has_new || after > before;
    if (after == w.first + w.count) {
      free(w, host);
    }
  }
  return has_new;
}

template <class Tier>
void TierLink<Tier>::note_writes(const SequenceContentView& content, std::span<const BlockId> table,
                                 std::int64_t first, std::int64_t end) noexcept {
  if (first >= end) {
    return;
  }
  const bool has_keys = chain_.extend(content, end);
  DYNBATCH_ASSERT_EXPENSIVE(!has_keys || chain_.agrees(content, end),
                            "content has changed and kept its keys");
  const KeyRoot root = chain_.root(content);
  for (std::int64_t i = first; i < end; ++i) {
    HostSlots::Slot& slot = slots_[table[static_cast<std::size_t>(i)].value];
    slot.key = has_keys ? chain_.at(content, root, i) : BlockKey{};
    slot.has_key = has_keys;
    slot.root = root;
    slot.index = static_cast<std::int32_t>(i);
    slot.parent = i > 0 ? table[static_cast<std::size_t>(i - 1)].value : -1;
    slot.parent_check = slot.parent >= 0 ? slots_[slot.parent].key.words[0] : 0;
    slot.touches = 0;
    slot.stored = HostSlots::Stored::No;
  }
}

template <class Tier>
void TierLink<Tier>::touch(std::span<const BlockId> blocks) noexcept {
  for (const BlockId block : blocks) {
    slots_.touch(block.value);
    offer(block.value);
  }
}

/// Whether to fetch so many blocks rather than compute what they save.
template <class Tier>
bool TierLink<Tier>::is_worth(const Work& work, std::int64_t blocks) const noexcept {
  const std::int64_t gain = work.first + blocks - work.best;
  if (gain < config_.min_gain_blocks) {
    return false;
  }
  const std::int64_t tokens = gain * block_size_;
  const DurationNs compute = compute_time(cost_, config_.token_ns, work.best * block_size_, tokens);
  const bool is_free = !cost_.is_known() && config_.token_ns == 0;
  return is_free || estimate_.is_stale(now_) || estimate_.fetch(blocks) < compute;
}

template <class Tier>
void TierLink<Tier>::end_query(Work& work, std::int64_t blocks, HostPool& host) noexcept {
  wake(work);  // unless a fetch follows
  if (blocks == 0) {
    free(work, host);
    return;
  }
  estimate_.note_query(now_ - work.begun);
  // Not more than there is time and room for.
  std::int64_t n = min_of(blocks, config_.max_blocks_in_flight - lent_);
  if (!estimate_.is_stale(now_)) {
    n = min_of(n, estimate_.blocks_in(work.deadline - now_));
  }
  n = min_of(n, host.stats().available_blocks());
  const Row row = row_of(work);
  bool is_begun = is_worth(work, n) && host.extend(row, (work.first + n) * block_size_);
  if (is_begun) {
    const std::span<const BlockId> slots =
        host.table(0, row).subspan(static_cast<std::size_t>(work.first));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      // A move that a plan still has to make would meet the tier there.
      is_begun = is_begun && slots_.is_still(slots[i].value);
      slots_[slots[i].value].has_key = false;
      scratch_[i] = slots[i].value;
    }
    work.count = n;
    is_begun = is_begun && begin(work, TierVerb::Fetch,
                                 {scratch_.data(), static_cast<std::size_t>(work.count)});
  }
  if (!is_begun) {
    ++stats_.declined;
    free(work, host);
    return;
  }
  ended_ &= ~(std::uint64_t{1} << index_of(work));
  work.phase = Phase::Fetching;
  lent_ += n;
  ++stats_.fetches;
}

template <class Tier>
void TierLink<Tier>::end_fetch(Work& work, std::int64_t blocks, HostPool& host) noexcept {
  lent_ -= work.count;
  wake(work);
  if (blocks == 0) {
    free(work, host);
    return;
  }
  estimate_.note_fetch(blocks, now_ - work.begun, now_);
  work.phase = Phase::Arrived;
  work.count = blocks;
  // What nobody enters until then makes room again.
  work.deadline = TimeNs{saturating_add(now_.ns, config_.load_deadline.ns)};
  host.truncate(row_of(work), (work.first + blocks) * block_size_);
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
