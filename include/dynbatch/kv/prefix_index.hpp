// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PrefixIndex: which blocks hold which prefixes, verified by content and never by a hash alone.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/detail/block_chunks.hpp>
#include <dynbatch/kv/detail/words.hpp>
#include <dynbatch/kv/kv_event_log.hpp>
#include <dynbatch/model/block_media.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/request.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// The default content hash of the index. A replacement may be arbitrarily bad: it costs speed
/// only.
struct WordHash {
  [[nodiscard]] std::uint64_t operator()(const std::int32_t* words,
                                         std::size_t count) const noexcept {
    return hash_words(words, count, 0);
  }
};

/// A node of the index: one distinct verified prefix, at least one block holds it.
struct PrefixNode {
  std::int32_t value = -1;
  friend constexpr bool operator==(PrefixNode, PrefixNode) noexcept = default;
};
inline constexpr PrefixNode kNoNode{};

/// Where a prefix starts: blocks of different roots are never equal.
struct PrefixRoot {
  CacheScope scope{};
  bool is_digest = false;  ///< Content is digests, not tokens.
};

/// Tree of prefixes in whole blocks. The first child of a node is reached by a link, further ones,
/// those that overlap media items and the roots through a hash table, so a lonely path costs no
/// hashing, and a path without media never looks at any. A node has a PrefixId
/// that is never used again; a child names its parent by it, so what is left below a removed node
/// can never be found. Blocks of equal prefix form a ring; the node goes with the last of them. One
/// thread; no allocation after attach().
template <class Hash = WordHash>
class PrefixIndex {
 public:
  /// Storage for `num_blocks` blocks of `content_bytes` each, which may overlap `max_media` items;
  /// empties the index.
  [[nodiscard]] Status attach(std::int64_t num_blocks, std::size_t content_bytes,
                              std::int64_t max_events, std::int64_t max_media = 0) noexcept;

  /// The node of a first block, or kNoNode.
  [[nodiscard]] PrefixNode find_root(const PrefixRoot& root, const void* content,
                                     const BlockMedia& media = {}) const noexcept;

  /// The node of the block that follows `parent`, or kNoNode.
  [[nodiscard]] PrefixNode find_child(PrefixNode parent, const void* content,
                                      bool is_digest) const noexcept {
    const Node& node = at(parent.value);
    if (node.child >= 0 && has_content(node.child, content, is_digest)) {
      return {node.child};
    }
    if ((node.flags & kHashedChildren) == 0) [[likely]] {
      return kNoNode;
    }
    return find_hashed(parent, content, is_digest);
  }

  /// The node of the block that follows `parent` and overlaps `media`, or kNoNode.
  [[nodiscard]] PrefixNode find_child(PrefixNode parent, const void* content, bool is_digest,
                                      const BlockMedia& media) const noexcept {
    return media.empty() ? find_child(parent, content, is_digest)
                         : find_hashed(parent, content, is_digest, media);
  }

  /// The child that the link leads to, or kNoNode: it overlaps no media.
  [[nodiscard]] PrefixNode first_child(PrefixNode parent) const noexcept {
    return {at(parent.value).child};
  }
  /// Leading tokens that a node given as tokens has in common with the first `count` at `tokens`.
  [[nodiscard]] std::int64_t common_tokens(PrefixNode node, const Token* tokens,
                                           std::int64_t count) const noexcept;

  /// The digest of a node that is given as one.
  [[nodiscard]] const ContentDigest& digest_of(PrefixNode node) const noexcept {
    return digests_.data()[node.value];
  }

  /// Enters `block`, which is in no ring yet, as holder of the prefix `content` below `parent`
  /// (kNoNode: below `root`); `plan` writes it. Returns its node.
  PrefixNode insert(BlockId block, PrefixNode parent, const PrefixRoot& root, const void* content,
                    PlanId plan, const BlockMedia& media = {}) noexcept {
    PrefixNode node = parent == kNoNode ? find_root(root, content, media)
                                        : find_child(parent, content, root.is_digest, media);
    plans_.data()[block.value] = plan.value;
    newest_plan_ = max_of(newest_plan_, plan.value);
    if (node == kNoNode) {
      node = create(parent, root, content, media);
      at(node).block = block.value;
      entry(block) = node.value + 1;
      announce(KvEventKind::Stored, node);
    } else {
      entry(block) = node.value + 1;
      join_ring(block, node);
    }
    return node;
  }

  /// True if nothing is known below `node`, which need not be looked up then.
  [[nodiscard]] bool is_leaf(PrefixNode node) const noexcept {
    const Node& n = at(node.value);
    return n.child < 0 && (n.flags & kHashedChildren) == 0;
  }

  /// Enters a blank block below the leaf `parent`: insert() without a look-up. Returns its node.
  PrefixNode append(BlockId block, PrefixNode parent, bool is_digest, const void* content,
                    PlanId plan) noexcept {
    std::int32_t node = free_node_;
    if (node >= 0) {
      free_node_ = at(node).child;
    } else {
      node = first_unused_++;
    }
    Node& above = at(parent);
    at(PrefixNode{node}) = {++last_id_, above.id,    parent.value,
                            -1,         block.value, is_digest ? kIsDigest : 0};
    above.child = node;
    entry(block) = node + 1;
    plans_.data()[block.value] = plan.value;
    store_content(node, content, is_digest);
    ++num_nodes_;
    newest_plan_ = max_of(newest_plan_, plan.value);
    announce(KvEventKind::Stored, {node});
    return {node};
  }

  /// Enters blocks one below the other, the first below the leaf `parent`, with the next content
  /// of `cursor`. Stops before a block that isn't blank. `parent` ends at the last one; returns how
  /// many. The same as insert() of each, without a look-up.
  template <class Cursor>
  std::int64_t append(std::span<const BlockId> blocks, PrefixNode& parent, bool is_digest,
                      Cursor& cursor, PlanId plan) noexcept;

  /// Takes a block that holds a prefix out of the index; the node goes with its last block.
  void remove(BlockId block) noexcept {
    const PrefixNode node{entry(block) - 1};
    entry(block) = 0;
    if ((at(node).flags & kHasRing) == 0) [[likely]] {
      announce(KvEventKind::Removed, node);
      destroy(node);
    } else {
      leave_ring(block, node);
    }
  }

  /// Gives a node another identity, so that nothing below it can be found any more.
  void rename(PrefixNode node) noexcept;

  /// Marks a block that is in no ring: what was written to it is not what was promised.
  void mark_withdrawn(BlockId block) noexcept { entry(block) = kWithdrawn; }
  void unmark_withdrawn(BlockId block) noexcept { entry(block) = 0; }
  [[nodiscard]] bool is_withdrawn(BlockId block) const noexcept {
    return entries_.data()[block.value] == kWithdrawn;
  }

  /// True if a block holds no prefix and isn't marked.
  [[nodiscard]] bool is_blank(BlockId block) const noexcept {
    return entries_.data()[block.value] == 0;
  }
  /// True while `node` has this identity.
  [[nodiscard]] bool is_alive(PrefixNode node, PrefixId id) const noexcept {
    return at(node.value).id == id.value;
  }

  /// Changes when a node goes that others lie below, or when another block comes to stand for a
  /// prefix: while it doesn't, the path to a node that is alive stays what it was.
  [[nodiscard]] std::uint64_t path_changes() const noexcept { return path_changes_; }

  /// The node whose prefix a block holds, or kNoNode.
  [[nodiscard]] PrefixNode node_of(BlockId block) const noexcept {
    return {max_of(entries_.data()[block.value], 0) - 1};
  }
  [[nodiscard]] bool have_nodes(detail::BlockChunk chunk) const noexcept {
    return detail::are_positive(&entries_.data()[chunk.lowest]);
  }
  /// The plan that writes a block.
  [[nodiscard]] PlanId plan_of(BlockId block) const noexcept {
    return {plans_.data()[block.value]};
  }
  /// The newest plan that any block was entered with.
  [[nodiscard]] PlanId newest_plan() const noexcept { return {newest_plan_}; }
  /// The block that stands for a prefix: its oldest holder.
  [[nodiscard]] BlockId block_of(PrefixNode node) const noexcept { return {at(node.value).block}; }
  /// True while some block holds the node's prefix.
  [[nodiscard]] bool has_prefix(PrefixNode node) const noexcept { return at(node.value).id != 0; }
  [[nodiscard]] PrefixId id_of(PrefixNode node) const noexcept { return {at(node.value).id}; }
  [[nodiscard]] std::int64_t num_prefixes() const noexcept { return num_nodes_; }
  /// A Stored event for each prefix, as far as `out` goes. O(nodes ever used).
  void snapshot(std::span<KvEvent> out) const noexcept;
  [[nodiscard]] KvEventLog& events() noexcept { return events_; }

  /// Between begin_clear() and end_clear() removals are announced as one Cleared event.
  void begin_clear() noexcept { is_clearing_ = true; }
  void end_clear() noexcept {
    is_clearing_ = false;
    if (events_.is_on()) {
      KvEvent event{};
      event.kind = KvEventKind::Cleared;
      events_.push(event);
    }
  }

  /// Starts to load what remove() of a block reads; the more distant one first.
  void prefetch(BlockId near, BlockId distant) const noexcept {
    __builtin_prefetch(&entries_.data()[distant.value]);
    __builtin_prefetch(&nodes_.data()[entries_.data()[near.value] - 1]);
  }
  /// Starts to load what is known of a block itself.
  void prefetch(BlockId block) const noexcept { __builtin_prefetch(&entries_.data()[block.value]); }

  /// remove() of cached blocks in eviction order: the memory of later ones, and what publishing in
  /// their place will write, is on its way while the earlier ones are removed.
  void remove(std::span<const BlockId> blocks) noexcept;

  /// Walks down while the next node is the next in memory and holds the next of `max_blocks` blocks
  /// of tokens, or digests, at `content`; `node` ends at the last one. Returns how many. No step
  /// waits for the memory of the one before.
  std::int64_t walk(PrefixNode& node, const void* content, std::int64_t max_blocks,
                    bool is_digest) const noexcept;

  /// Verifies rings, links and the table for blocks [0, num_blocks). O(num_blocks + ring lengths).
  [[nodiscard]] Status check(std::int64_t num_blocks) const noexcept;

 private:
  static constexpr std::int32_t kWithdrawn = -1;
  // flags: reached through the table; content is a digest; several blocks hold it; it overlaps
  // media items; the rest counts children in the table.
  static constexpr std::uint32_t kIsHashed = 1;
  static constexpr std::uint32_t kIsDigest = 2;
  static constexpr std::uint32_t kHasRing = 4;
  static constexpr std::uint32_t kHasMedia = 8;
  static constexpr std::uint32_t kHashedChild = 16;
  static constexpr std::uint32_t kHashedChildren = ~std::uint32_t{15};

  // Of a block whose prefix other blocks hold as well; without them it isn't touched.
  struct Ring {
    std::int32_t prev;
    std::int32_t next;
  };
  // Half a cache line, so that walking a path and evicting it touch little.
  struct Node {
    std::uint64_t id;         // PrefixId; 0: the node is free.
    std::uint64_t parent_id;  // 0: a root.
    std::int32_t parent;
    std::int32_t child;  // Also chains free nodes.
    std::int32_t block;
    std::uint32_t flags;
  };
  struct Hashed {
    std::uint64_t key;
    std::int32_t prev;
    std::int32_t next;
  };

  std::int32_t& entry(BlockId block) noexcept { return entries_.data()[block.value]; }
  Ring& ring(std::int32_t block) noexcept { return rings_.data()[block]; }
  Node& at(PrefixNode node) noexcept { return nodes_.data()[node.value]; }
  [[nodiscard]] const Node& at(std::int32_t node) const noexcept { return nodes_.data()[node]; }
  [[nodiscard]] std::size_t bytes_of(bool is_digest) const noexcept {
    return is_digest ? sizeof(ContentDigest) : content_bytes_;
  }
  [[nodiscard]] const void* content_of(std::int32_t node, bool is_digest) const noexcept {
    return is_digest ? static_cast<const void*>(digests_.data() + node)
                     : contents_.data() + static_cast<std::size_t>(node) * content_bytes_;
  }
  [[nodiscard]] bool has_content(std::int32_t node, const void* content,
                                 bool is_digest) const noexcept {
    if (is_digest) {
      return std::memcmp(digests_.data() + node, content, sizeof(ContentDigest)) == 0;
    }
    return detail::equal_words(content_of(node, false), content, content_bytes_);
  }
  void store_content(std::int32_t node, const void* content, bool is_digest) noexcept {
    if (is_digest) {
      std::memcpy(static_cast<void*>(digests_.data() + node), content, sizeof(ContentDigest));
    } else {
      detail::copy_words(contents_.data() + static_cast<std::size_t>(node) * content_bytes_,
                         content, content_bytes_);
    }
  }

  // Behind the others: the oldest holder stands for the prefix.
  void join_ring(BlockId block, PrefixNode node) noexcept;
  void leave_ring(BlockId block, PrefixNode node) noexcept;
  [[nodiscard]] bool is_in_ring(BlockId block, PrefixNode node) const noexcept;
  // Head of a chain; buckets hold node + 1.
  [[nodiscard]] std::int32_t bucket(std::uint64_t key) const noexcept {
    return num_buckets_ == 0 ? -1 : buckets_.data()[key & (num_buckets_ - 1)] - 1;
  }

  [[nodiscard]] static std::uint64_t content_hash(const void* content, std::size_t bytes) noexcept {
    // Digests are pairs of 64-bit words: they are copied to where the hash may read 32-bit ones.
    if (bytes == sizeof(ContentDigest)) {
      std::int32_t words[4];
      std::memcpy(words, content, sizeof(words));
      return Hash{}(words, 4);
    }
    return Hash{}(static_cast<const std::int32_t*>(content), bytes / sizeof(std::int32_t));
  }
  // Everything goes through Hash, so that with a constant one only comparisons decide.
  [[nodiscard]] static std::uint64_t combine(std::uint64_t seed, std::uint64_t value) noexcept {
    const std::uint64_t values[2] = {seed, value};
    std::int32_t words[4];
    std::memcpy(words, values, sizeof(words));
    return Hash{}(words, 4);
  }
  [[nodiscard]] std::uint64_t root_key(const PrefixRoot& root, const void* content) const noexcept;
  [[nodiscard]] std::uint64_t child_key(PrefixNode parent, const void* content,
                                        bool is_digest) const noexcept {
    return combine(at(parent.value).id, content_hash(content, bytes_of(is_digest)));
  }

  [[nodiscard]] PrefixNode find_hashed(PrefixNode parent, const void* content, bool is_digest,
                                       const BlockMedia& media = {}) const noexcept;

  // Content of block i is at `content` + i * `step`.
  std::int64_t append_side_by_side(std::span<const BlockId> blocks, PrefixNode& parent, PlanId plan,
                                   const unsigned char* content, std::size_t step,
                                   std::uint32_t flags) noexcept;

  // The first of kChunk free nodes in order of memory, or -1, and where free ones then begin.
  struct NodeRun {
    std::int32_t first;
    std::int32_t next_free;
    std::int32_t next_unused;
  };
  [[nodiscard]] NodeRun free_run(std::int32_t free_node, std::int32_t first_unused) const noexcept;
  // append_side_by_side() of a chunk of blank blocks. False: it is none.
  bool append_chunk(const BlockId* blocks, std::int32_t first, std::int32_t above,
                    std::uint64_t last_id, PlanId plan, std::uint32_t flags) noexcept;
  // Stores the content of `count` nodes from `node` on, which lies side by side at `content`.
  void copy_contents(std::int32_t node, const void* content, std::int32_t count,
                     std::uint32_t flags) noexcept;

  PrefixNode create(PrefixNode parent, const PrefixRoot& root, const void* content,
                    const BlockMedia& media) noexcept;

  [[nodiscard]] static std::uint64_t entry_key(std::uint64_t key, const MediaEntry& entry) noexcept;
  [[nodiscard]] static std::uint64_t media_key(std::uint64_t key, const BlockMedia& media) noexcept;
  [[nodiscard]] MediaEntry* media_of(std::int32_t node) noexcept {
    return media_.data() + node * max_media_;
  }
  [[nodiscard]] const MediaEntry* media_of(std::int32_t node) const noexcept {
    return media_.data() + node * max_media_;
  }
  [[nodiscard]] bool has_media(std::int32_t node, const BlockMedia& media) const noexcept {
    if (media.empty() || (at(node).flags & kHasMedia) == 0) [[likely]] {
      return media.empty() && (at(node).flags & kHasMedia) == 0;
    }
    return equal_entries(media_of(node), media);
  }
  [[nodiscard]] bool equal_entries(const MediaEntry* entries,
                                   const BlockMedia& media) const noexcept;

  void destroy(PrefixNode node) noexcept;

  void enter(PrefixNode node, std::uint64_t key) noexcept;
  void leave(PrefixNode node) noexcept;

  // True if a walk from the parent, if that still exists, or the table reaches the node.
  [[nodiscard]] bool is_linked(PrefixNode node) const noexcept;

  void announce(KvEventKind kind, PrefixNode node) noexcept {
    if (events_.is_on() && !is_clearing_) [[unlikely]] {
      events_.push(event_of(kind, node));
    }
  }
  [[nodiscard]] KvEvent event_of(KvEventKind kind, PrefixNode node) const noexcept;

  Buffer<std::int32_t> entries_;    // [num_blocks]: node + 1, or 0, or kWithdrawn
  Buffer<Ring> rings_;              // [num_blocks]
  Buffer<std::uint64_t> plans_;     // [num_blocks]; apart, as it matters only while plans run
  Buffer<Node> nodes_;              // [num_blocks]
  Buffer<Hashed> hashed_;           // [num_blocks], by node
  Buffer<PrefixRoot> roots_;        // [num_blocks], by node; written for roots only
  Buffer<ContentDigest> digests_;   // [num_blocks], by node; apart from tokens as they are short
  Buffer<unsigned char> contents_;  // [num_blocks][content_bytes], by node
  Buffer<MediaEntry> media_;        // [num_blocks][max_media], by node; written for media only
  Buffer<std::int32_t> buckets_;    // [num_buckets]
  KvEventLog events_;
  std::size_t content_bytes_ = 0;
  std::int64_t max_media_ = 0;
  std::uint64_t num_buckets_ = 0;
  std::uint64_t last_id_ = 0;
  std::uint64_t newest_plan_ = 0;
  std::uint64_t path_changes_ = 0;
  std::int64_t num_nodes_ = 0;
  std::int32_t first_unused_ = 0;
  std::int32_t free_node_ = -1;
  bool is_clearing_ = false;
};

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/prefix_index_nodes.hpp>
#include <dynbatch/kv/detail/prefix_index_runs.hpp>
