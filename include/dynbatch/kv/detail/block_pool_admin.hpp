// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: set-up, resizing, forgetting everything, and the check of all invariants.
#include <dynbatch/kv/block_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Eviction, class Hash>
Status BlockPool<Eviction, Hash>::attach(const PoolAttachment& attachment) noexcept {
  max_rows_ = 0;
  if (Status s = config_.validate(); !s) {
    return s;
  }
  if (attachment.max_rows < 1) {
    return {Errc::InvalidArgument, "max_rows", attachment.max_rows, 1, "must be at least 1"};
  }
  if (attachment.max_context_tokens < 1) {
    return {Errc::InvalidArgument, "max_context_tokens", attachment.max_context_tokens, 1,
            "must be at least 1"};
  }
  // A table longer than the pool can never be filled.
  max_blocks_per_row_ =
      min_of(ceil_div(attachment.max_context_tokens, config_.block_size), config_.num_blocks);
  max_context_tokens_ = attachment.max_context_tokens;
  const auto rows = static_cast<std::size_t>(attachment.max_rows);
  const auto blocks_per_row = static_cast<std::size_t>(max_blocks_per_row_);
  Status s = rows_.allocate(rows, "max_rows");
  s = s ? tables_.allocate(rows * blocks_per_row, "max_context_tokens") : s;
  s = s ? matched_.allocate(blocks_per_row, "max_context_tokens") : s;
  s = s ? store_.attach(config_.num_blocks) : s;
  const auto block_bytes = static_cast<std::size_t>(config_.block_size) * sizeof(Token);
  s = s ? index_.attach(config_.prefix_caching ? config_.num_blocks : 0, block_bytes,
                        config_.prefix_caching ? config_.max_kv_events : 0,
                        max_block_media(config_.block_size))
        : s;
  if (!s) {
    return s;
  }
  copies_ = config_.prefix_caching && config_.partial_reuse && attachment.partial_copy &&
            config_.block_size > 1;
  num_matched_ = 0;
  verified_ = {};
  num_withdrawn_ = 0;
  settled_ = 0;
  evictions_ = 0;
  queried_tokens_ = 0;
  hit_tokens_ = 0;
  max_rows_ = attachment.max_rows;
  return kOk;
}

template <class Eviction, class Hash>
Status BlockPool<Eviction, Hash>::resize(std::int64_t num_blocks) noexcept {
  if (max_rows_ == 0 || num_blocks < 1 || num_blocks > config_.num_blocks) {
    return {Errc::InvalidArgument, "num_blocks", num_blocks, config_.num_blocks,
            "must be in [1, limit]"};
  }
  const std::int64_t end = min_of(store_.first_unused(), store_.size());
  for (std::int64_t id = num_blocks; id < end; ++id) {
    const BlockId block{static_cast<std::int32_t>(id)};
    if (store_.references(block) == 0 && is_indexed(block)) {
      leave_index(block);
      store_.forget(block);
      ++evictions_;
    }
  }
  store_.resize(num_blocks);
  ++state_;
  return kOk;
}

template <class Eviction, class Hash>
bool BlockPool<Eviction, Hash>::clear() noexcept {
  if (store_.num_referenced() != 0) {
    return false;
  }
  index_.begin_clear();
  for (BlockId block = store_.eviction().victim(); block != kNoBlock;
       block = store_.eviction().victim()) {
    leave_index(block);
    store_.forget(block);
  }
  index_.end_clear();
  ++state_;
  return true;
}

template <class Eviction, class Hash>
Status BlockPool<Eviction, Hash>::check() const noexcept {
  if (max_rows_ == 0) {
    return kOk;
  }
  if (Status s = store_.check(); !s) {
    return s;
  }
  const std::int64_t used = store_.first_unused();
  Buffer<std::int32_t> counts;
  if (Status s = counts.allocate(static_cast<std::size_t>(used), "num_blocks"); !s) {
    return s;
  }
  for (std::int32_t i = 0; i < max_rows_; ++i) {
    const RowState& r = rows_.data()[i];
    if (r.length < 0 || r.length > max_blocks_per_row_ || r.num_published > r.length ||
        r.num_acquired > r.length) {
      return {Errc::InternalError, "row", i, r.length, "a row's counters contradict each other"};
    }
    const PrefixNode last =
        r.num_published != 0
            ? index_.node_of(table(0, Row{i})[static_cast<std::size_t>(r.num_published) - 1])
            : kNoNode;
    // A block that was forgotten has no node, while a copy may keep its prefix alive.
    if (last != kNoNode && r.tail != kNoNode && index_.is_alive(r.tail, r.tail_id) &&
        last != r.tail) {
      return {Errc::InternalError, "row", i, r.tail.value, "a row's note of its tail is wrong"};
    }
    for (const BlockId block : table(0, Row{i})) {
      if (block.value < 0 || block.value >= used) {
        return {Errc::InternalError, "row", i, block.value, "a table holds an unknown block"};
      }
      ++counts.data()[block.value];
    }
    if (r.copied_from < 0 || r.copied_from > used || (r.copied_from != 0 && r.length == 0)) {
      return {Errc::InternalError, "row", i, r.copied_from, "a row copies from a wrong block"};
    }
    if (r.copied_from != 0) {
      ++counts.data()[r.copied_from - 1];
    }
  }
  std::int64_t withdrawn = 0;
  for (std::int64_t id = 0; id < used; ++id) {
    const BlockId block{static_cast<std::int32_t>(id)};
    if (counts.data()[id] != store_.references(block)) {
      return {Errc::InternalError, "references", id, store_.references(block),
              "a reference count differs from the tables"};
    }
    if (config_.prefix_caching) {
      withdrawn += index_.is_withdrawn(block) ? 1 : 0;
      if (is_indexed(block) && store_.references(block) == 0 && is_pending(block)) {
        return {Errc::InternalError, "block", id, 0, "a pending block is cached"};
      }
    }
  }
  if (withdrawn != num_withdrawn_) {
    return {Errc::InternalError, "withdrawn", num_withdrawn_, withdrawn, "wrong counter"};
  }
  std::int64_t cached = 0;
  for (BlockId b = store_.eviction().front(); b != kNoBlock; b = store_.eviction().after(b)) {
    if (!is_indexed(b)) {
      return {Errc::InternalError, "block", b.value, 0, "a cached block holds nothing"};
    }
    ++cached;
  }
  for (std::int64_t id = 0; id < used && config_.prefix_caching; ++id) {
    const BlockId block{static_cast<std::int32_t>(id)};
    cached -= is_indexed(block) && store_.references(block) == 0 ? 1 : 0;
  }
  if (cached != 0) {
    return {Errc::InternalError, "cached", cached, 0, "an indexed block is free"};
  }
  return config_.prefix_caching ? index_.check(used) : kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
