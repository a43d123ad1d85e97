// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: blocks come and go, one by one or many at once.
#include <dynbatch/kv/block_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::take_blocks(std::span<BlockId> out) noexcept {
  std::size_t n = 0;
  for (; n < out.size(); ++n) {
    out[n] = store_.allocate();
    if (out[n] == kNoBlock) {
      break;
    }
  }
  const std::span<BlockId> evicted = out.subspan(n);
  if (evicted.empty()) {
    return;
  }
  n = store_.evict(evicted);
  DYNBATCH_ASSERT(n == evicted.size(), "the counters promise blocks that aren't there");
  index_.remove(evicted);
  evictions_ += n;
  prefetch_victims();
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::prefetch_victims() const noexcept {
  constexpr int kNear = 3;
  constexpr int kDistant = 6;
  BlockId near = store_.eviction().victim();
  for (int i = 0; i < kNear && near != kNoBlock; ++i) {
    near = store_.eviction().after(near);
  }
  BlockId distant = near;
  for (int i = kNear; i < kDistant && distant != kNoBlock; ++i) {
    distant = store_.eviction().after(distant);
  }
  if (distant != kNoBlock) {
    store_.prefetch(distant);
    index_.prefetch(near, distant);
  }
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::drop_block(BlockId block) noexcept {
  if (store_.references(block) > 1 || !config_.prefix_caching) {
    store_.drop_reference(block, false);
    return;
  }
  bool keep = is_indexed(block);
  if (keep && (is_pending(block) || block.value >= store_.size())) {
    leave_index(block);
    keep = false;
  } else if (index_.is_withdrawn(block)) {
    unmark_withdrawn(block);
  }
  store_.drop_reference(block, keep);
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::drop_blocks(Row row, std::int32_t length) noexcept {
  RowState& r = state_of(row);
  const BlockId* table = table_of(row);
  ++idle_changes_;
  for (std::int32_t i = r.length; i > length;) {
    // Most often all of them become cached, then they do so at once.
    const std::int32_t end = i;
    i = drop_cacheable(table, length, i);
    store_.keep_backwards({table, static_cast<std::size_t>(end)}, static_cast<std::size_t>(i));
    if (i > length) {
      drop_block(table[--i]);
    }
  }
  r.length = length;
  r.num_acquired = min_of(r.num_acquired, length);
  if (r.num_published > length) {
    r.num_published = length;
    r.tail = kNoNode;
  }
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::finish_copy(Row row) noexcept {
  if (is_row(row) && state_of(row).copied_from != 0) {
    const BlockId source{state_of(row).copied_from - 1};
    state_of(row).copied_from = 0;
    ++idle_changes_;
    drop_block(source);
    ++state_;
  }
}

template <class Eviction, class Hash>
std::int32_t BlockPool<Eviction, Hash>::drop_cacheable(const BlockId* table, std::int32_t length,
                                                       std::int32_t end) noexcept {
  constexpr auto kChunk = static_cast<std::int32_t>(detail::kChunk);
  const bool sees_chunks = config_.prefix_caching && !has_pending();
  for (std::int32_t i = end; i > length;) {
    if (sees_chunks && i - length >= kChunk) {
      const auto chunk = detail::chunk_at(table + i - kChunk);
      if (chunk.step != 0 && index_.have_nodes(chunk) && store_.are_held_once(chunk)) {
        store_.drop_only_reference(chunk);
        i -= kChunk;
        continue;
      }
    }
    for (const std::int32_t stop = max_of(i - kChunk, length); i > stop; --i) {
      if (!becomes_cached(table[i - 1])) {
        return i;
      }
      store_.drop_only_reference(table[i - 1]);
      prefetch(table[max_of(i - 1 - kPrefetchDistance, length)]);
    }
  }
  return length;
}

template <class Eviction, class Hash>
bool BlockPool<Eviction, Hash>::make_blank(BlockId block) noexcept {
  if (!index_.is_withdrawn(block)) {
    return false;  // Acquired behind a block that was withdrawn: it belongs to another path.
  }
  if (store_.references(block) != 1) {
    return false;  // Readers of what it held before haven't left it.
  }
  unmark_withdrawn(block);
  return true;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
