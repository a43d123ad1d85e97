// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: looking up prefixes, whole blocks and the front of one more.
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
  const detail::VerifiedPath& v = verified_;
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
  detail::VerifiedPath& v = verified_;
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

}  // namespace dynbatch::inline DYNBATCH_ABI
