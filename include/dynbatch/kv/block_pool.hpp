// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool: the KV blocks of one device, the block tables of its rows and the prefixes they
/// cache.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/block_store.hpp>
#include <dynbatch/kv/detail/content_cursor.hpp>
#include <dynbatch/kv/detail/prefix_key.hpp>
#include <dynbatch/kv/detail/verified_path.hpp>
#include <dynbatch/kv/eviction_order.hpp>
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/kv/prefix_index.hpp>
#include <dynbatch/model/block_media.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Paged KV cache with verified prefix sharing, one group of full attention. Laws and costs:
/// docs/policies/kv_cache_pool.md. One thread; no allocation after attach() except in check().
template <class Eviction = Lru, class Hash = WordHash>
class BlockPool {
 public:
  struct Config {
    std::int64_t num_blocks = 0;     ///< Blocks of KV memory, in [1, 2^31 - 2].
    std::int32_t block_size = 16;    ///< Tokens a block, in [1, 65536].
    bool prefix_caching = true;      ///< Off: nothing is indexed, every look-up misses.
    std::int64_t max_kv_events = 0;  ///< Undrained cache events kept, in [0, 2^30]; 0 = off.
    /// Where the executor has partial_copy, a match may end inside a block that is then copied.
    bool partial_reuse = true;
    std::int32_t min_partial_tokens = 1;  ///< Fewer are computed instead of copied; >= 1.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (num_blocks < 1 || num_blocks > 2147483646) {
        return {Errc::InvalidConfig, "num_blocks", num_blocks, 2147483646, "must be in [1, limit]"};
      }
      if (block_size < 1 || block_size > 65536) {
        return {Errc::InvalidConfig, "block_size", block_size, 65536, "must be in [1, limit]"};
      }
      if (max_kv_events < 0 || max_kv_events > 1073741824) {
        return {Errc::InvalidConfig, "max_kv_events", max_kv_events, 1073741824,
                "must be in [0, limit]"};
      }
      if (min_partial_tokens < 1) {
        return {Errc::InvalidConfig, "min_partial_tokens", min_partial_tokens, 1,
                "must be at least 1"};
      }
      return kOk;
    }
  };

  BlockPool() noexcept : BlockPool(Config{}) {}
  /// Keeps the configuration; attach() validates it.
  explicit BlockPool(const Config& config) noexcept : BlockPool(config, Eviction()) {}
  /// With an eviction order that has a configuration of its own; attach() validates that too.
  BlockPool(const Config& config, Eviction eviction) noexcept
      : config_(config),
        group_{GroupKind::Full, config.block_size, 0},
        store_(std::move(eviction)) {}

  /// Validates and allocates; all blocks are free, all rows empty. Errors: InvalidConfig,
  /// InvalidArgument, OutOfMemory; the pool is then not usable but safe to call.
  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept;

  /// One group of full attention. Like the next two, answered before attach() too.
  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return {&group_, 1}; }

  /// True if an otherwise idle pool can hold a sequence of that many tokens.
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    if (max_rows_ == 0) {
      return config_.validate().is_ok() && tokens <= config_.num_blocks * config_.block_size;
    }
    return tokens <= max_context_tokens_ && tokens <= store_.size() * config_.block_size;
  }

  [[nodiscard]] bool shares_prefixes() const noexcept { return config_.prefix_caching; }

  /// Longest cached prefix of at most `limit` tokens, whole blocks, each verified by content; with
  /// partial reuse the front of one block more, whose plan is settled: the block that the limit
  /// cuts, or of the children that differ the first one. O(tokens matched).
  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept;

  /// References the blocks of the latest match(), or its first `match.num_blocks` without a copy,
  /// from an empty row. False, and nothing changes, if the row isn't empty, the pool has changed
  /// since or there is no block to copy to; without blocks there is nothing to become stale.
  /// O(blocks).
  bool acquire(Row row, const PrefixMatch& match) noexcept;

  /// The copy that the row began with was made, or never will be: its source may go.
  void finish_copy(Row row) noexcept;

  /// Makes the table of a row hold `tokens`: all the blocks it lacks, or none and false. Takes free
  /// blocks before cached ones. O(1) if it holds them, else O(new blocks).
  bool extend(Row row, std::int64_t tokens) noexcept {
    if (!is_row(row)) {
      return false;
    }
    RowState& r = state_of(row);
    if (tokens <= capacity(r)) {
      return true;
    }
    const std::int64_t wanted = ceil_div(tokens, config_.block_size);
    if (tokens > max_context_tokens_ || wanted > max_blocks_per_row_ ||
        wanted - r.length > store_.num_available()) {
      return false;
    }
    take_blocks({table_of(row) + r.length, static_cast<std::size_t>(wanted - r.length)});
    r.length = static_cast<std::int32_t>(wanted);
    ++state_;
    return true;
  }

  /// Enters the blocks of a row that lie wholly in [0, tokens), in the known and in the cacheable
  /// part of its content; they are pending until `plan` is settled. O(1) if there are none.
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept;

  /// Shortens the table of a row to what `tokens` need. A published block that this cuts through
  /// leaves the index, unless other rows hold it: then this row must not write to it again. To
  /// nothing: finish_copy() too.
  void truncate(Row row, std::int64_t tokens) noexcept;

  /// Makes the empty row `to` share the first `tokens` positions of `from`: whole blocks by
  /// reference; for a rest `to` gets a block of its own, whose first `tokens` mod block_size
  /// tokens the caller has the host copy before anything is written. O(blocks). Errors:
  /// InvalidArgument (a row, or more tokens than `from` has), QueueFull (no block for the rest);
  /// nothing changes then.
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept;

  /// Drops all references of a row, the last block first. Blocks still pending that nobody else
  /// holds are not kept as cached: nobody could withdraw them.
  void release(Row row) noexcept {
    finish_copy(row);
    if (!is_row(row) || state_of(row).length == 0) {
      return;
    }
    drop_blocks(row, 0);
    ++state_;
  }

  /// truncate(), but content that nobody else holds is forgotten instead of cached.
  void discard(Row row, std::int64_t tokens) noexcept;

  /// Leading blocks of a row whose content is in the index and written for certain.
  [[nodiscard]] std::int64_t num_settled_blocks(Row row) const noexcept;

  /// True if a block of the row was withdrawn while other rows held it, and they hold it still.
  /// O(1) unless some block is in that state, then O(blocks).
  [[nodiscard]] bool holds_withdrawn(Row row) const noexcept {
    bool found = false;
    for (const BlockId block : num_withdrawn_ > 0 ? table(0, row) : std::span<const BlockId>{}) {
      found = found || (index_.is_withdrawn(block) && store_.references(block) > 1);
    }
    return found;
  }

  /// Newest plan that has still to write one of these blocks of a match; kNoPlan = none.
  [[nodiscard]] PlanId newest_pending(std::span<const BlockId> blocks) const noexcept {
    const std::uint64_t newest = newest_plan_of(blocks);
    return newest > settled_ ? PlanId{newest} : kNoPlan;
  }

  /// The prefix that ends with a block, or none: for what is kept beside it.
  [[nodiscard]] detail::PrefixKey prefix_key(BlockId block) const noexcept {
    const PrefixNode node = config_.prefix_caching ? index_.node_of(block) : kNoNode;
    return node == kNoNode ? detail::PrefixKey{}
                           : detail::PrefixKey{node.value, index_.id_of(node).value};
  }
  [[nodiscard]] bool is_prefix(const detail::PrefixKey& key) const noexcept {
    return key.id != 0 && index_.is_alive(PrefixNode{key.place}, PrefixId{key.id});
  }

  /// Leading blocks of a row that it has entered in the index or found there.
  [[nodiscard]] std::int64_t num_published_blocks(Row row) const noexcept {
    return is_row(row) ? rows_.data()[row.value].num_published : 0;
  }

  /// The block's content is void: nothing finds it any more, nor what lies below it.
  void forget(BlockId block) noexcept;

  /// An empty row takes references of blocks whose content is certain, in any order, so that they
  /// stay while somebody outside reads them; release() gives them back. False, and nothing changes,
  /// if one of them holds nothing that is found, or is still to be written. O(blocks).
  bool hold(Row row, std::span<const BlockId> blocks) noexcept;

  /// The blocks of the latest match().
  [[nodiscard]] std::span<const BlockId> matched() const noexcept {
    return {matched_.data(), static_cast<std::size_t>(num_matched_)};
  }

  /// Block ids of a row, in order of position; valid until the row changes.
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept {
    if (group != 0 || !is_row(row)) {
      return {};
    }
    return {tables_.data() +
                static_cast<std::size_t>(row.value) * static_cast<std::size_t>(max_blocks_per_row_),
            static_cast<std::size_t>(rows_.data()[row.value].length)};
  }

  /// What `plan` and older plans published is pending no more. Plans settle in order.
  void settle(PlanId plan) noexcept {
    settled_ = max_of(settled_, plan.value);
    ++state_;
  }

  /// Takes out of the index what a row published in or behind the block that holds position
  /// `tokens`, and what it acquired there that is still pending. Returns the number of blocks.
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept;

  /// True if a block that the row acquired, or copies from, was withdrawn since. O(1) unless some
  /// block is in that state, then O(acquired blocks).
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept;

  /// NotSupported.
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept {
    static_cast<void>(content);
    static_cast<void>(until);
    return {Errc::NotSupported, "pin", tokens, 0, "this pool can't pin prefixes"};
  }
  /// Also the clock of eviction orders that know time.
  void unpin_expired(TimeNs now) noexcept { store_.advance(now); }

  /// Gives the blocks of a row that lie wholly or in part in [first, end) a retention, for orders
  /// like PriorityDuration; it counts from their release on. O(blocks). Errors: InvalidArgument.
  [[nodiscard]] Status retain(Row row, std::int64_t first, std::int64_t end,
                              const Retention& retention) noexcept
    requires requires(Eviction& e, std::span<const BlockId> blocks) {
      e.retain(blocks, Retention{});
    };

  /// Sets the number of usable blocks, in [1, Config::num_blocks]. Shrinking evicts cached blocks
  /// with ids at and beyond it; referenced ones leave when they are released. O(pool).
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept;

  /// Forgets all cached content. False, and nothing changes, while a row holds a block. O(cached).
  bool clear() noexcept;

  /// Moves the oldest undrained cache events to `events`; returns how many.
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return index_.events().drain(events);
  }

  /// For a reader of events that has met a gap, or is new: a Stored event for each cached prefix,
  /// all with the number of the newest event, which they include; what is still in the event ring
  /// up to that number is old news. Returns how many there are; `out` must have room for all. A
  /// parent that exists has a smaller prefix number than its children. O(pool).
  std::size_t snapshot(std::span<KvEvent> out) const noexcept {
    index_.snapshot(out);
    return static_cast<std::size_t>(index_.num_prefixes());
  }

  [[nodiscard]] PoolStats stats() const noexcept {
    PoolStats s{};
    s.total_blocks = store_.total();
    s.free_blocks = store_.num_free();
    s.cached_blocks = store_.num_cached();
    s.referenced_blocks = store_.num_referenced();
    s.block_size = config_.block_size;
    s.evictions = evictions_;
    s.prefix_queries_tokens = queried_tokens_;
    s.prefix_hit_tokens = hit_tokens_;
    return s;
  }

  /// Verifies every invariant. O(pool); allocates for the time of the call.
  [[nodiscard]] Status check() const noexcept;

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] const Eviction& eviction() const noexcept { return store_.eviction(); }
  [[nodiscard]] Eviction& eviction() noexcept { return store_.eviction(); }
  /// References to a block, for tests and monitoring; 0 for an unknown one.
  [[nodiscard]] std::int32_t references(BlockId block) const noexcept {
    return store_.is_known(block) ? store_.references(block) : 0;
  }

 private:
  // All zero but `tail`, which then isn't read: an empty row.
  struct RowState {
    std::int32_t length;         // Blocks in the table.
    std::int32_t num_acquired;   // Leading blocks that came from the cache.
    std::int32_t num_published;  // Leading blocks that were entered in the index.
    PrefixNode tail;             // Node of the last published block, or kNoNode: not noted.
    PrefixId tail_id;
    std::int32_t copied_from;  // Block + 1 that it keeps as the source of a copy; 0 = none.
  };

  [[nodiscard]] bool is_row(Row row) const noexcept {
    return row.value >= 0 && row.value < max_rows_;
  }
  RowState& state_of(Row row) noexcept { return rows_.data()[row.value]; }
  BlockId* table_of(Row row) noexcept {
    return tables_.data() +
           static_cast<std::size_t>(row.value) * static_cast<std::size_t>(max_blocks_per_row_);
  }
  [[nodiscard]] std::int64_t capacity(const RowState& r) const noexcept {
    return std::int64_t{r.length} * config_.block_size;
  }
  void note_tail(RowState& r, PrefixNode node) noexcept {
    r.tail = node;
    r.tail_id = node == kNoNode ? PrefixId{} : index_.id_of(node);
  }
  [[nodiscard]] bool is_indexed(BlockId block) const noexcept {
    return config_.prefix_caching && index_.node_of(block) != kNoNode;
  }
  [[nodiscard]] bool is_pending(BlockId block) const noexcept {
    return has_pending() && index_.plan_of(block).value > settled_;
  }
  [[nodiscard]] bool has_pending() const noexcept { return index_.newest_plan().value > settled_; }

  // Leading positions of the first `tokens` whose KV may be shared.
  [[nodiscard]] std::int64_t num_shareable_tokens(const SequenceContentView& content,
                                                  std::int64_t tokens) const noexcept {
    // A block must not straddle two pages, nor two units.
    const std::int32_t unit = content.has_digests() ? content.digest_unit : content.page_tokens;
    if (content.scope == nullptr || unit < config_.block_size || unit % config_.block_size != 0) {
      return 0;
    }
    std::int64_t end = min_of(tokens, min_of(content.known_length, content.cacheable_length));
    if (content.has_digests()) {
      end = min_of(end, content.prompt_length / unit * unit);
    }
    return max_of<std::int64_t>(end, 0);
  }
  [[nodiscard]] std::int64_t num_shareable_blocks(const SequenceContentView& content,
                                                  std::int64_t tokens) const noexcept {
    return num_shareable_tokens(content, tokens) / config_.block_size;
  }

  [[nodiscard]] bool may_share(const BlockMedia& media) const noexcept {
    return media.count <= max_block_media(config_.block_size);
  }
  // The node of the block behind `parent`, or of a first block (kNoNode).
  [[nodiscard]] PrefixNode find_block(const SequenceContentView& content, PrefixNode parent,
                                      const void* data, const BlockMedia& media) const noexcept {
    if (!may_share(media)) {
      return kNoNode;
    }
    return parent == kNoNode
               ? index_.find_root({*content.scope, content.has_digests()}, data, media)
               : index_.find_child(parent, data, content.has_digests(), media);
  }

  [[nodiscard]] std::int64_t num_verified(const SequenceContentView& content,
                                          std::int64_t num_blocks) const noexcept;
  void note_verified(const SequenceContentView& content, PrefixNode end, std::uint64_t newest_plan,
                     const PrefixMatch& match) noexcept;
  [[nodiscard]] std::uint64_t newest_plan_of(std::span<const BlockId> blocks) const noexcept {
    std::uint64_t newest = 0;
    for (const BlockId block : has_pending() ? blocks : std::span<const BlockId>{}) {
      newest = max_of(newest, index_.plan_of(block).value);
    }
    return newest;
  }
  [[nodiscard]] std::int64_t count_idle(std::span<const BlockId> blocks) const noexcept {
    std::int64_t idle = 0;
    for (const BlockId block : blocks) {
      idle += store_.references(block) == 0 ? 1 : 0;
    }
    return idle;
  }

  // Adds to a match of whole blocks, which ends at `node`, the front of one block more.
  void match_partly(const SequenceContentView& content, PrefixNode node,
                    PrefixMatch& match) noexcept;

  // Free blocks first, then victims; the caller knows that there are enough.
  void take_blocks(std::span<BlockId> out) noexcept;

  // A decode step takes blocks one by one: what is known of the next ones is on its way by then.
  void prefetch_victims() const noexcept;

  // A block about to be published that is marked or still holds a prefix. False: leave it.
  bool make_blank(BlockId block) noexcept;

  void leave_index(BlockId block) noexcept { index_.remove(block); }
  void unmark_withdrawn(BlockId block) noexcept {
    index_.unmark_withdrawn(block);
    --num_withdrawn_;
  }

  static constexpr std::int32_t kPrefetchDistance = 12;
  void prefetch(BlockId block) const noexcept {
    store_.prefetch(block);
    index_.prefetch(block);
  }
  // True if the row that drops it is its last and leaves nothing but valid content.
  [[nodiscard]] bool becomes_cached(BlockId block) const noexcept {
    return is_indexed(block) && store_.references(block) == 1 && !is_pending(block) &&
           block.value < store_.size();
  }
  // Drops the references of the last blocks of table[length, end) as long as they become cached by
  // that; returns where those begin.
  std::int32_t drop_cacheable(const BlockId* table, std::int32_t length, std::int32_t end) noexcept;
  // Drops a reference to any block.
  void drop_block(BlockId block) noexcept;

  // Shortens a table; the tail is dropped first, so that it is evicted before the head.
  void drop_blocks(Row row, std::int32_t length) noexcept;

  Config config_{};
  GroupSpec group_{};
  BlockStore<Eviction> store_;
  PrefixIndex<Hash> index_;
  Buffer<RowState> rows_;    // [max_rows]
  Buffer<BlockId> tables_;   // [max_rows][max_blocks_per_row]
  Buffer<BlockId> matched_;  // [max_blocks_per_row], of the latest match()
  std::int64_t num_matched_ = 0;
  std::int64_t matched_limit_ = 0;
  std::int64_t matched_copy_ = 0;  // Tokens of its block that are to be copied,
  BlockId copy_source_{};          // from here.
  detail::VerifiedPath verified_{};
  std::int64_t matched_idle_ = 0;
  std::int64_t max_blocks_per_row_ = 0;
  std::int64_t max_context_tokens_ = 0;
  std::int64_t num_withdrawn_ = 0;  // Referenced blocks marked as withdrawn.
  std::uint64_t state_ = 0;         // Counts changes and look-ups: the ticket of a match.
  std::uint64_t idle_changes_ = 0;  // Counts when indexed blocks may have got idle or busy.
  std::uint64_t settled_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t queried_tokens_ = 0;
  std::uint64_t hit_tokens_ = 0;
  std::int32_t max_rows_ = 0;
  bool copies_ = false;  // Matches may end inside a block.
};

static_assert(KVCachePool<BlockPool<>>);

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/block_pool_admin.hpp>
#include <dynbatch/kv/detail/block_pool_blocks.hpp>
#include <dynbatch/kv/detail/block_pool_match.hpp>
#include <dynbatch/kv/detail/block_pool_sharing.hpp>
