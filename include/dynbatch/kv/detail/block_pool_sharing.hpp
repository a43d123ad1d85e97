// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: rows share what they have in common, and take back what they promised in vain.
#include <dynbatch/kv/block_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Eviction, class Hash>
bool BlockPool<Eviction, Hash>::acquire(Row row, const PrefixMatch& match) noexcept {
  if (!is_row(row) || state_of(row).length != 0) {
    return false;
  }
  const bool is_current = match.ticket == state_;
  if (match.num_blocks != 0 &&
      (!is_current || match.num_blocks < 0 || match.num_blocks > num_matched_)) {
    return false;
  }
  const bool is_copying = match.num_copied != 0;
  if (is_copying &&
      (!is_current || match.num_blocks != num_matched_ || match.num_copied != matched_copy_ ||
       match.copy_source != copy_source_ || store_.num_available() <= matched_idle_)) {
    return false;
  }
  if (is_current) {
    queried_tokens_ += static_cast<std::uint64_t>(matched_limit_);
    hit_tokens_ +=
        static_cast<std::uint64_t>(match.num_blocks * config_.block_size + match.num_copied);
  }
  BlockId* table = table_of(row);
  if (match.num_blocks != 0) {
    const auto n = static_cast<std::size_t>(match.num_blocks);
    idle_changes_ += matched_idle_ != 0 ? 1U : 0U;
    std::memcpy(static_cast<void*>(table), matched_.data(), n * sizeof(BlockId));
    store_.add_references({matched_.data(), n});
  }
  RowState& r = state_of(row);
  const auto blocks = static_cast<std::int32_t>(match.num_blocks);
  r = {blocks, blocks, blocks, kNoNode, {}, 0};
  if (is_copying) {
    ++idle_changes_;
    store_.add_reference(copy_source_);
    r.copied_from = copy_source_.value + 1;
    take_blocks({table + blocks, 1});
    r.length = blocks + 1;
  }
  ++state_;
  return true;
}

template <class Eviction, class Hash>
bool BlockPool<Eviction, Hash>::hold(Row row, std::span<const BlockId> blocks) noexcept {
  if (!is_row(row) || state_of(row).length != 0 ||
      static_cast<std::int64_t>(blocks.size()) > max_blocks_per_row_) {
    return false;
  }
  for (const BlockId block : blocks) {
    if (!store_.is_known(block) || !is_indexed(block) || is_pending(block)) {
      return false;
    }
  }
  if (!blocks.empty()) {
    std::memcpy(static_cast<void*>(table_of(row)), blocks.data(), blocks.size_bytes());
    ++idle_changes_;
    store_.add_references(blocks);
  }
  state_of(row) = RowState{};
  state_of(row).length = static_cast<std::int32_t>(blocks.size());
  state_of(row).tail = kNoNode;
  ++state_;
  return true;
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::publish(Row row, const SequenceContentView& content,
                                        std::int64_t tokens, PlanId plan) noexcept {
  if (!is_row(row) || !config_.prefix_caching) {
    return;
  }
  RowState& r = state_of(row);
  if (tokens < (std::int64_t{r.num_published} + 1) * config_.block_size) {
    return;
  }
  const std::int64_t end = min_of<std::int64_t>(num_shareable_blocks(content, tokens), r.length);
  if (end <= r.num_published) {
    return;
  }
  const BlockId* table = table_of(row);
  PrefixNode node = kNoNode;
  if (r.num_published != 0) {
    // The row's own note saves two cache misses; it is void once the node's identity changes.
    node = r.tail != kNoNode && index_.is_alive(r.tail, r.tail_id)
               ? r.tail
               : index_.node_of(table[r.num_published - 1]);
    if (node == kNoNode) {
      return;  // Withdrawn: nothing may be found below it.
    }
  }
  ++state_;
  const std::int64_t position = std::int64_t{r.num_published} * config_.block_size;
  if (end == r.num_published + 1 && node != kNoNode && index_.is_leaf(node) &&
      index_.is_blank(table[r.num_published]) && content.is_behind_media(position)) {
    // A row that decodes fills one block at a time.
    const void* data = content.has_digests()
                           ? static_cast<const void*>(content.digest_bytes_at(position))
                           : content.tokens_at(position);
    node = index_.append(table[r.num_published], node, content.has_digests(), data, plan);
    ++r.num_published;
    note_tail(r, node);
    return;
  }
  const PrefixRoot root{*content.scope, content.has_digests()};
  detail::ContentCursor cursor(content, config_.block_size, r.num_published);
  MediaCursor media(content.media, config_.block_size, r.num_published);
  while (r.num_published < end) {
    const std::int64_t plain_end = min_of(media.next(), end);
    if (node != kNoNode && index_.is_leaf(node) && r.num_published < plain_end) {
      const std::span<const BlockId> blocks(table + r.num_published, table + plain_end);
      r.num_published +=
          static_cast<std::int32_t>(index_.append(blocks, node, root.is_digest, cursor, plan));
      if (r.num_published == end) {
        break;
      }
    }
    const BlockId block = table[r.num_published];
    const BlockMedia items = r.num_published == media.next() ? media.take() : BlockMedia{};
    if (!may_share(items) || (!index_.is_blank(block) && !make_blank(block))) {
      break;
    }
    node = index_.insert(block, node, root, cursor.next(), plan, items);
    ++r.num_published;
  }
  note_tail(r, node);
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::truncate(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return;
  }
  RowState& r = state_of(row);
  const std::int64_t kept = max_of<std::int64_t>(tokens, 0);
  if (kept == 0) {
    finish_copy(row);  // A row without a block must keep no source: it may begin anew.
  }
  if (kept >= capacity(r)) {
    return;
  }
  const auto length = static_cast<std::int32_t>(ceil_div(kept, config_.block_size));
  drop_blocks(row, length);
  if (kept % config_.block_size != 0 && r.num_published == length) {
    const BlockId block = table_of(row)[length - 1];
    if (is_indexed(block) && store_.references(block) == 1) {
      leave_index(block);
      r.num_published = length - 1;
      r.tail = kNoNode;
      r.num_acquired = min_of(r.num_acquired, length - 1);
    }
  }
  ++state_;
}

template <class Eviction, class Hash>
Status BlockPool<Eviction, Hash>::retain(Row row, std::int64_t first, std::int64_t end,
                                         const Retention& retention) noexcept
  requires requires(Eviction& e, std::span<const BlockId> blocks) { e.retain(blocks, Retention{}); }
{
  if (Status s = retention.validate(); !s) {
    return s;
  }
  if (!is_row(row) || first < 0 || first > end || end > capacity(state_of(row))) {
    return {Errc::InvalidArgument, "tokens", end, is_row(row) ? capacity(state_of(row)) : 0,
            "a range that the row doesn't hold"};
  }
  const std::int64_t begin = first / config_.block_size;
  const std::int64_t num_blocks = first < end ? ceil_div(end, config_.block_size) - begin : 0;
  store_.eviction().retain({table_of(row) + begin, static_cast<std::size_t>(num_blocks)},
                           retention);
  return kOk;
}

template <class Eviction, class Hash>
Status BlockPool<Eviction, Hash>::fork(Row from, Row to, std::int64_t tokens) noexcept {
  if (!is_row(from) || !is_row(to) || from == to || state_of(to).length != 0) {
    return {Errc::InvalidArgument, "row", to.value, max_rows_, "needs two rows, the second empty"};
  }
  const RowState& parent = state_of(from);
  if (tokens < 0 || tokens > capacity(parent)) {
    return {Errc::InvalidArgument, "tokens", tokens, capacity(parent), "more than the row holds"};
  }
  const auto whole = static_cast<std::int32_t>(tokens / config_.block_size);
  const bool has_rest = tokens % config_.block_size != 0;
  if (has_rest && store_.num_available() == 0) {
    return {Errc::QueueFull, "blocks", 1, 0, "no block for the rest of the fork"};
  }
  const BlockId* source = table_of(from);
  BlockId* target = table_of(to);
  for (std::int32_t i = 0; i < whole; ++i) {
    target[i] = source[i];
    store_.add_reference(target[i]);
  }
  RowState& child = state_of(to);
  child = RowState{};
  child.length = whole;
  child.num_acquired = whole;
  child.num_published = min_of(whole, parent.num_published);
  child.tail = kNoNode;
  if (has_rest) {
    take_blocks({target + whole, 1});
    child.length = whole + 1;
  }
  ++state_;
  return kOk;
}

template <class Eviction, class Hash>
std::int64_t BlockPool<Eviction, Hash>::withdraw(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return 0;
  }
  RowState& r = state_of(row);
  const std::int64_t first = max_of<std::int64_t>(tokens, 0) / config_.block_size;
  std::int64_t withdrawn = 0;
  const BlockId* table = table_of(row);
  std::int32_t published = r.num_published;
  for (std::int32_t i = r.num_published - 1; i >= first; --i) {
    const BlockId block = table[i];
    const PrefixNode node = index_.node_of(block);
    if (node == kNoNode) {
      published = i;
      continue;
    }
    if (i < r.num_acquired && !is_pending(block)) {
      continue;  // Valid, whatever happens to this row.
    }
    const bool has_readers = store_.references(block) > 1;
    leave_index(block);
    if (has_readers) {
      index_.mark_withdrawn(block);
      ++num_withdrawn_;
      if (index_.has_prefix(node)) {
        index_.rename(node);  // What the readers published below it must not be found.
      }
    }
    published = i;
    ++withdrawn;
  }
  r.num_published = published;
  r.tail = kNoNode;
  ++state_;
  return withdrawn;
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::discard(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return;
  }
  const std::int64_t kept = ceil_div(max_of<std::int64_t>(tokens, 0), config_.block_size);
  const BlockId* table = table_of(row);
  for (std::int64_t i = state_of(row).length - 1; i >= kept; --i) {
    if (is_indexed(table[i]) && store_.references(table[i]) == 1) {
      leave_index(table[i]);
    }
  }
  truncate(row, tokens);
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::forget(BlockId block) noexcept {
  if (!store_.is_known(block) || !is_indexed(block)) {
    return;
  }
  const PrefixNode node = index_.node_of(block);
  leave_index(block);
  if (index_.has_prefix(node)) {
    index_.rename(node);  // What was computed from this block must not be found below its copies.
  }
  if (store_.references(block) == 0) {
    store_.forget(block);
  }
  ++state_;
}

template <class Eviction, class Hash>
std::int64_t BlockPool<Eviction, Hash>::num_settled_blocks(Row row) const noexcept {
  const std::span<const BlockId> blocks = table(0, row);
  std::size_t n = 0;
  while (n < blocks.size() && is_indexed(blocks[n]) && !is_pending(blocks[n])) {
    ++n;
  }
  return static_cast<std::int64_t>(n);
}

template <class Eviction, class Hash>
bool BlockPool<Eviction, Hash>::reads_withdrawn(Row row) const noexcept {
  if (num_withdrawn_ == 0 || !is_row(row)) {
    return false;
  }
  const std::int32_t source = rows_.data()[row.value].copied_from - 1;
  if (source >= 0 && index_.is_withdrawn(BlockId{source})) {
    return true;
  }
  const std::span<const BlockId> blocks = table(0, row);
  const auto acquired = static_cast<std::size_t>(rows_.data()[row.value].num_acquired);
  for (const BlockId block : blocks.first(acquired)) {
    if (index_.is_withdrawn(block)) {
      return true;
    }
  }
  return false;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
