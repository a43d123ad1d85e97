// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: rows share what they have in common, and take back what they promised in vain.
#include <dynbatch/kv/block_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Eviction, class Hash>
PrefixMatch BlockPool<Eviction, Hash>::match(const SequenceContentView& content,
                                             std::int64_t limit) noexcept {
  PrefixMatch result{};
  result.ticket = ++state_;
  num_matched_ = 0;
  matched_copy_ = 0;
  matched_idle_ = 0;
  matched_limit_ = max_of<std::int64_t>(limit, 0);
  if (max_rows_ == 0 || !config_.prefix_caching) {
    return result;
  }
  const std::int64_t num_blocks =
      min_of(num_shareable_blocks(content, matched_limit_), max_blocks_per_row_);
  PrefixNode node = kNoNode;
  std::uint64_t newest = 0;
  std::int64_t found = 0;
  if (const std::int64_t known = num_verified(content, num_blocks); known != 0) {
    const std::span<const BlockId> blocks(matched_.data(), static_cast<std::size_t>(known));
    const bool is_all = known == verified_.num_blocks;
    found = known;
    node = is_all ? verified_.end : index_.node_of(blocks.back());
    newest = is_all ? verified_.newest_plan : newest_plan_of(blocks);
    result.idle_blocks = is_all && verified_.idle_changes == idle_changes_ ? verified_.idle_blocks
                                                                           : count_idle(blocks);
  }
  detail::ContentCursor cursor(content, config_.block_size, found);
  MediaCursor media(content.media, config_.block_size, found);
  std::int64_t plain_end = min_of(media.next(), num_blocks);
  while (found < num_blocks) {
    const void* data = cursor.next();
    BlockMedia items;
    if (found == plain_end) [[unlikely]] {
      items = media.take();
      plain_end = min_of(media.next(), num_blocks);
    }
    const PrefixNode child = find_block(content, node, data, items);
    if (child == kNoNode) {
      break;
    }
    PrefixNode first = child;
    node = child;
    std::int64_t run = 1;
    if (cursor.step() != 0 && found + 1 < plain_end) {
      run += index_.walk(node, cursor.data(), min_of(cursor.num_left(), plain_end - found - 1),
                         content.has_digests());
      cursor.skip(run - 1);
    }
    BlockId* out = matched_.data() + found;
    std::int64_t idle = 0;
    for (std::int64_t i = 0; i < run; ++i, ++first.value) {
      out[i] = index_.block_of(first);
      idle += store_.references(out[i]) == 0 ? 1 : 0;
    }
    for (std::int64_t i = 0; i < run && has_pending(); ++i) {
      newest = max_of(newest, index_.plan_of(out[i]).value);
    }
    found += run;
    result.idle_blocks += idle;
  }
  num_matched_ = found;
  result.num_blocks = num_matched_;
  result.num_tokens = num_matched_ * config_.block_size;
  result.newest_pending = newest > settled_ ? PlanId{newest} : kNoPlan;
  note_verified(content, node, newest, result);
  if (copies_ && found < max_blocks_per_row_) {
    match_partly(content, node, result);
  }
  matched_idle_ = result.idle_blocks;
  return result;
}

/// Leading blocks of the content that the latest match() has found, if nothing has happened to
/// them. O(1); of another content, given as digests, O(log blocks).
template <class Eviction, class Hash>
std::int64_t BlockPool<Eviction, Hash>::num_verified(const SequenceContentView& content,
                                                     std::int64_t num_blocks) const noexcept {
  const Verified& v = verified_;
  const std::int64_t most = min_of(v.num_blocks, num_blocks);
  if (most == 0 || v.path_changes != index_.path_changes() || !index_.is_alive(v.end, v.end_id)) {
    return 0;
  }
  if (content.version != 0 && content.version == v.version) {
    return most;
  }
  if (v.digest_unit == 0 || content.digest_unit != v.digest_unit || !content.media.empty() ||
      !(v.scope == *content.scope)) {
    return 0;
  }
  // A digest stands for all that is before it: where one differs, so do those behind it.
  const auto is_equal = [&](std::int64_t blocks) {
    const BlockId last = matched_.data()[blocks - 1];
    return content.digest_at(blocks * config_.block_size - 1) ==
           index_.digest_of(index_.node_of(last));
  };
  if (is_equal(most)) {
    return most;
  }
  std::int64_t equal = 0;
  for (std::int64_t differs = most; differs - equal > 1;) {
    const std::int64_t middle = equal + (differs - equal) / 2;
    (is_equal(middle) ? equal : differs) = middle;
  }
  return equal;
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::note_verified(const SequenceContentView& content, PrefixNode end,
                                              std::uint64_t newest_plan,
                                              const PrefixMatch& match) noexcept {
  Verified& v = verified_;
  v.num_blocks = match.num_blocks;
  if (match.num_blocks == 0) {
    return;
  }
  v.end = end;
  v.end_id = index_.id_of(end);
  v.version = content.version;
  v.digest_unit = content.media.empty() ? content.digest_unit : 0;
  if (v.digest_unit != 0) {
    v.scope = *content.scope;
  }
  v.newest_plan = newest_plan;
  v.path_changes = index_.path_changes();
  v.idle_changes = idle_changes_;
  v.idle_blocks = match.idle_blocks;
}

template <class Eviction, class Hash>
void BlockPool<Eviction, Hash>::match_partly(const SequenceContentView& content, PrefixNode node,
                                             PrefixMatch& match) noexcept {
  const std::int64_t position = match.num_tokens;
  std::int64_t tokens = min_of<std::int64_t>(
      num_shareable_tokens(content, matched_limit_) - position, config_.block_size);
  if (tokens < config_.min_partial_tokens) {
    return;
  }
  MediaCursor media(content.media, config_.block_size, match.num_blocks);
  const BlockMedia items = media.next() == match.num_blocks ? media.take() : BlockMedia{};
  PrefixNode child = kNoNode;
  if (num_shareable_blocks(content, position + config_.block_size) > match.num_blocks) {
    // All of the block is known: only the limit has kept it from being found.
    detail::ContentCursor cursor(content, config_.block_size, match.num_blocks);
    child = find_block(content, node, cursor.next(), items);
  }
  if (child == kNoNode && node != kNoNode && !content.has_digests()) {
    // First children overlap no items.
    tokens = items.empty() ? tokens : min_of(tokens, items.items[0].first_position - position);
    child = index_.first_child(node);
    tokens = child == kNoNode ? 0
                              : index_.common_tokens(child, content.tokens_at(position),
                                                     max_of<std::int64_t>(tokens, 0));
  }
  if (child == kNoNode || tokens < config_.min_partial_tokens) {
    return;
  }
  const BlockId source = index_.block_of(child);
  if (is_pending(source)) {
    return;  // A copy reads what an older plan has written for certain.
  }
  matched_copy_ = tokens;
  copy_source_ = source;
  match.num_copied = tokens;
  match.num_tokens += tokens;
  match.copy_source = source;
  match.idle_copies = store_.references(source) == 0 ? 1 : 0;
  match.idle_blocks += match.idle_copies;
}

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
  if (tokens < 0 || tokens > parent.length * config_.block_size) {
    return {Errc::InvalidArgument, "tokens", tokens, parent.length * config_.block_size,
            "more than the row holds"};
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

template <class Eviction, class Hash>
std::int32_t BlockPool<Eviction, Hash>::first_becoming_cached(const BlockId* table,
                                                              std::int32_t length,
                                                              std::int32_t end) const noexcept {
  constexpr auto kChunk = static_cast<std::int32_t>(detail::kChunk);
  const bool sees_chunks = config_.prefix_caching && !has_pending();
  for (std::int32_t i = end; i > length;) {
    if (sees_chunks && i - length >= kChunk) {
      const auto chunk = detail::chunk_at(table + i - kChunk);
      if (chunk.step != 0 && index_.have_nodes(chunk) && store_.are_held_once(chunk)) {
        i -= kChunk;
        continue;
      }
    }
    for (const std::int32_t stop = max_of(i - kChunk, length); i > stop; --i) {
      if (!becomes_cached(table[i - 1])) {
        return i;
      }
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
