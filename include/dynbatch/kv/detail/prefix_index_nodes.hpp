// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PrefixIndex: storage, single nodes, events and the check of all invariants.
#include <dynbatch/kv/prefix_index.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Hash>
Status PrefixIndex<Hash>::attach(std::int64_t num_blocks, std::size_t content_bytes,
                                 std::int64_t max_events, std::int64_t max_media) noexcept {
  const auto n = static_cast<std::size_t>(num_blocks);
  content_bytes_ = content_bytes;
  max_media_ = max_media;
  first_unused_ = 0;
  free_node_ = -1;
  num_nodes_ = 0;
  newest_plan_ = 0;
  num_buckets_ = static_cast<std::uint64_t>(next_power_of_two(num_blocks));
  Status s = entries_.allocate(n, "num_blocks", PageUse::Dense);
  s = s ? rings_.allocate(n, "num_blocks", PageUse::Dense) : s;
  s = s ? plans_.allocate(n, "num_blocks", PageUse::Dense) : s;
  s = s ? nodes_.allocate(n, "num_blocks", PageUse::Dense) : s;
  s = s ? hashed_.allocate(n, "num_blocks", PageUse::Dense) : s;
  s = s ? roots_.allocate(n, "num_blocks") : s;
  s = s ? digests_.allocate(n, "num_blocks") : s;
  s = s ? contents_.allocate(n * content_bytes_, "num_blocks", PageUse::Dense) : s;
  s = s ? media_.allocate(n * static_cast<std::size_t>(max_media_), "num_blocks") : s;
  s = s ? buckets_.allocate(num_buckets_, "num_blocks", PageUse::Dense) : s;
  s = s ? events_.attach(max_events) : s;
  return s;
}

template <class Hash>
Status PrefixIndex<Hash>::check(std::int64_t num_blocks) const noexcept {
  std::int64_t heads = 0;
  for (std::int64_t id = 0; id < num_blocks; ++id) {
    const BlockId block{static_cast<std::int32_t>(id)};
    const PrefixNode node = node_of(block);
    if (node == kNoNode) {
      continue;
    }
    if (at(node.value).id == 0 || !is_in_ring(block, node)) {
      return {Errc::InternalError, "ring", id, node.value, "a ring of equal blocks is broken"};
    }
    if (block_of(node) == block) {
      ++heads;
      if (!is_linked(node)) {
        return {Errc::InternalError, "node", node.value, id, "a prefix can't be reached"};
      }
    } else if (node_of(block_of(node)) != node) {
      return {Errc::InternalError, "node", node.value, id, "a prefix names a wrong block"};
    }
  }
  if (heads != num_nodes_) {
    return {Errc::InternalError, "nodes", num_nodes_, heads, "a prefix without a block"};
  }
  return kOk;
}

template <class Hash>
bool PrefixIndex<Hash>::is_linked(PrefixNode node) const noexcept {
  const Node& n = at(node.value);
  if ((n.flags & kIsHashed) == 0) {
    return n.parent >= 0 && (at(n.parent).id != n.parent_id || at(n.parent).child == node.value);
  }
  for (std::int32_t i = bucket(hashed_.data()[node.value].key); i >= 0;
       i = hashed_.data()[i].next) {
    if (i == node.value) {
      return true;
    }
  }
  return false;
}

template <class Hash>
bool PrefixIndex<Hash>::is_in_ring(BlockId block, PrefixNode node) const noexcept {
  if ((at(node.value).flags & kHasRing) == 0) {
    return at(node.value).block == block.value;
  }
  const Ring& r = rings_.data()[block.value];
  return r.next != block.value && rings_.data()[r.next].prev == block.value &&
         rings_.data()[r.prev].next == block.value && node_of(BlockId{r.next}) == node;
}

template <class Hash>
std::uint64_t PrefixIndex<Hash>::root_key(const PrefixRoot& root,
                                          const void* content) const noexcept {
  const CacheScope& s = root.scope;
  std::uint64_t key =
      combine(s.model_epoch, (s.has_tenant_salt ? 1U : 0U) | (s.has_adapter ? 2U : 0U) |
                                 (root.is_digest ? 4U : 0U));
  if (s.has_tenant_salt) {
    key = combine(key, s.tenant_salt);
  }
  if (s.has_adapter) {
    key = combine(combine(key, s.adapter_id), s.adapter_version);
  }
  return combine(key, content_hash(content, bytes_of(root.is_digest)));
}

template <class Hash>
KvEvent PrefixIndex<Hash>::event_of(KvEventKind kind, PrefixNode node) const noexcept {
  const Node& n = at(node.value);
  KvEvent event{};
  event.kind = kind;
  event.prefix = {n.id};
  event.parent = {n.parent_id};
  event.block = block_of(node);
  const bool is_digest = (n.flags & kIsDigest) != 0;
  event.content_hash = content_hash(content_of(node.value, is_digest), bytes_of(is_digest));
  if ((n.flags & kHasMedia) != 0) {
    const MediaEntry* entry = media_of(node.value);
    for (std::int64_t i = 0; i < max_media_ && entry->length != 0; ++i, ++entry) {
      event.content_hash = entry_key(event.content_hash, *entry);
    }
  }
  return event;
}

template <class Hash>
std::uint64_t PrefixIndex<Hash>::entry_key(std::uint64_t key, const MediaEntry& entry) noexcept {
  key = combine(combine(key, entry.content.high), entry.content.low);
  return combine(combine(key, static_cast<std::uint64_t>(entry.offset)),
                 static_cast<std::uint64_t>(entry.length));
}

template <class Hash>
std::uint64_t PrefixIndex<Hash>::media_key(std::uint64_t key, const BlockMedia& media) noexcept {
  for (std::int64_t i = 0; i < media.count; ++i) {
    key = entry_key(key, media.entry(i));
  }
  return key;
}

template <class Hash>
bool PrefixIndex<Hash>::equal_entries(const MediaEntry* entries,
                                      const BlockMedia& media) const noexcept {
  for (std::int64_t i = 0; i < media.count; ++i) {
    if (i == max_media_ || !(entries[i] == media.entry(i))) {
      return false;
    }
  }
  return media.count == max_media_ || entries[media.count].length == 0;
}

template <class Hash>
PrefixNode PrefixIndex<Hash>::create(PrefixNode parent, const PrefixRoot& root, const void* content,
                                     const BlockMedia& media) noexcept {
  const PrefixNode node{free_node_ >= 0 ? free_node_ : first_unused_};
  Node& n = at(node);
  if (free_node_ >= 0) {
    free_node_ = n.child;
  } else {
    ++first_unused_;
  }
  ++num_nodes_;
  store_content(node.value, content, root.is_digest);
  std::uint32_t flags = root.is_digest ? kIsDigest : 0;
  if (!media.empty()) {
    DYNBATCH_ASSERT(media.count <= max_media_, "more media items than there is room for");
    flags |= kHasMedia;
    for (std::int64_t i = 0; i < media.count; ++i) {
      media_of(node.value)[i] = media.entry(i);
    }
    if (media.count < max_media_) {
      media_of(node.value)[media.count] = {};
    }
  }
  if (parent == kNoNode) {
    n = {++last_id_, 0, -1, -1, -1, flags};
    roots_.data()[node.value] = root;
    enter(node, media_key(root_key(root, content), media));
    return node;
  }
  Node& p = at(parent);
  n = {++last_id_, p.id, parent.value, -1, -1, flags};
  if (p.child < 0 && media.empty()) {
    p.child = node.value;  // who follows links needn't ask for media
  } else {
    p.flags += kHashedChild;
    enter(node, media_key(child_key(parent, content, root.is_digest), media));
  }
  return node;
}

template <class Hash>
void PrefixIndex<Hash>::rename(PrefixNode node) noexcept {
  announce(KvEventKind::Removed, node);
  ++path_changes_;
  at(node).id = ++last_id_;
  at(node).child = -1;
  at(node).flags &= kIsHashed | kIsDigest | kHasRing | kHasMedia;
  announce(KvEventKind::Stored, node);
}

template <class Hash>
void PrefixIndex<Hash>::snapshot(std::span<KvEvent> out) const noexcept {
  std::size_t n = 0;
  for (std::int32_t i = 0; i < first_unused_ && n < out.size(); ++i) {
    if (at(i).id != 0) {
      out[n] = event_of(KvEventKind::Stored, PrefixNode{i});
      out[n++].sequence = events_.sequence();
    }
  }
}

template <class Hash>
void PrefixIndex<Hash>::destroy(PrefixNode node) noexcept {
  Node& n = at(node);
  path_changes_ += is_leaf(node) ? 0U : 1U;
  // A parent that is gone, or renamed, knows nothing of this child.
  if (n.parent >= 0 && at(n.parent).id == n.parent_id) {
    Node& p = at(PrefixNode{n.parent});
    if ((n.flags & kIsHashed) != 0) {
      p.flags -= kHashedChild;
    } else {
      p.child = -1;
    }
  }
  if ((n.flags & kIsHashed) != 0) [[unlikely]] {
    leave(node);
  }
  n.id = 0;
  n.child = free_node_;
  free_node_ = node.value;
  --num_nodes_;
}

template <class Hash>
void PrefixIndex<Hash>::join_ring(BlockId block, PrefixNode node) noexcept {
  const std::int32_t first = at(node).block;
  if ((at(node).flags & kHasRing) == 0) {
    at(node).flags |= kHasRing;
    ring(first) = {first, first};
  }
  const std::int32_t last = ring(first).prev;
  ring(block.value) = {last, first};
  ring(last).next = block.value;
  ring(first).prev = block.value;
}

template <class Hash>
void PrefixIndex<Hash>::leave_ring(BlockId block, PrefixNode node) noexcept {
  const Ring r = ring(block.value);
  ring(r.prev).next = r.next;
  ring(r.next).prev = r.prev;
  if (at(node).block == block.value) {
    at(node).block = r.next;
    ++path_changes_;
  }
  if (r.prev == r.next) {  // One is left.
    at(node).flags &= ~kHasRing;
  }
}

template <class Hash>
void PrefixIndex<Hash>::enter(PrefixNode node, std::uint64_t key) noexcept {
  std::int32_t& head = buckets_.data()[key & (num_buckets_ - 1)];
  hashed_.data()[node.value] = {key, -1, head - 1};
  if (head != 0) {
    hashed_.data()[head - 1].prev = node.value;
  }
  head = node.value + 1;
  at(node).flags |= kIsHashed;
}

template <class Hash>
void PrefixIndex<Hash>::leave(PrefixNode node) noexcept {
  const Hashed h = hashed_.data()[node.value];
  if (h.prev >= 0) {
    hashed_.data()[h.prev].next = h.next;
  } else {
    buckets_.data()[h.key & (num_buckets_ - 1)] = h.next + 1;
  }
  if (h.next >= 0) {
    hashed_.data()[h.next].prev = h.prev;
  }
}

template <class Hash>
PrefixNode PrefixIndex<Hash>::find_root(const PrefixRoot& root, const void* content,
                                        const BlockMedia& media) const noexcept {
  const std::uint64_t key = media_key(root_key(root, content), media);
  for (std::int32_t i = bucket(key); i >= 0; i = hashed_.data()[i].next) {
    if (hashed_.data()[i].key == key && at(i).parent < 0 && roots_.data()[i].scope == root.scope &&
        roots_.data()[i].is_digest == root.is_digest && has_content(i, content, root.is_digest) &&
        has_media(i, media)) {
      return {i};
    }
  }
  return kNoNode;
}

template <class Hash>
PrefixNode PrefixIndex<Hash>::find_hashed(PrefixNode parent, const void* content, bool is_digest,
                                          const BlockMedia& media) const noexcept {
  const std::uint64_t key = media_key(child_key(parent, content, is_digest), media);
  const std::uint64_t parent_id = at(parent.value).id;
  for (std::int32_t i = bucket(key); i >= 0; i = hashed_.data()[i].next) {
    if (hashed_.data()[i].key == key && at(i).parent_id == parent_id &&
        has_content(i, content, is_digest) && has_media(i, media)) {
      return {i};
    }
  }
  return kNoNode;
}

template <class Hash>
std::int64_t PrefixIndex<Hash>::common_tokens(PrefixNode node, const Token* tokens,
                                              std::int64_t count) const noexcept {
  const unsigned char* own =
      contents_.data() + static_cast<std::size_t>(node.value) * content_bytes_;
  std::int64_t n = 0;
  while (n < count && std::memcmp(own + static_cast<std::size_t>(n) * sizeof(Token), tokens + n,
                                  sizeof(Token)) == 0) {
    ++n;
  }
  return n;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
