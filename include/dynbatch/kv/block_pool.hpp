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
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/kv/prefix_index.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

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
      return kOk;
    }
  };

  BlockPool() noexcept : BlockPool(Config{}) {}
  /// Keeps the configuration; attach() validates it.
  explicit BlockPool(const Config& config) noexcept
      : config_(config), group_{GroupKind::Full, config.block_size, 0} {}

  /// Validates and allocates; all blocks are free, all rows empty. Errors: InvalidConfig,
  /// InvalidArgument, OutOfMemory; the pool is then not usable but safe to call.
  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept {
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
                          config_.prefix_caching ? config_.max_kv_events : 0)
          : s;
    if (!s) {
      return s;
    }
    num_matched_ = 0;
    num_withdrawn_ = 0;
    settled_ = 0;
    evictions_ = 0;
    queried_tokens_ = 0;
    hit_tokens_ = 0;
    max_rows_ = attachment.max_rows;
    return kOk;
  }

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

  /// Longest cached prefix of at most `limit` tokens, whole blocks, each verified by content.
  /// O(tokens matched).
  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept {
    PrefixMatch result{};
    result.ticket = ++state_;
    num_matched_ = 0;
    matched_limit_ = max_of<std::int64_t>(limit, 0);
    if (max_rows_ == 0 || !config_.prefix_caching) {
      return result;
    }
    const std::int64_t num_blocks =
        min_of(num_shareable_blocks(content, matched_limit_), max_blocks_per_row_);
    PrefixNode node = kNoNode;
    std::uint64_t newest = 0;
    std::int64_t found = 0;
    detail::ContentCursor cursor(content, config_.block_size, 0);
    while (found < num_blocks) {
      const void* data = cursor.next();
      node = node == kNoNode ? index_.find_root({*content.scope, content.has_digests()}, data)
                             : index_.find_child(node, data, content.has_digests());
      if (node == kNoNode) {
        break;
      }
      PrefixNode first = node;
      std::int64_t run = 1;
      if (cursor.step() != 0 && found + 1 < num_blocks) {
        run += index_.walk(node, cursor.data(), min_of(cursor.num_left(), num_blocks - found - 1),
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
    return result;
  }

  /// References the blocks of the latest match(), or its first `match.num_blocks`, from an empty
  /// row. False, and nothing changes, if the row isn't empty or the pool has changed since; without
  /// blocks there is nothing to become stale. O(blocks).
  bool acquire(Row row, const PrefixMatch& match) noexcept {
    if (!is_row(row) || state_of(row).length != 0) {
      return false;
    }
    const bool is_current = match.ticket == state_;
    if (match.num_blocks != 0 &&
        (!is_current || match.num_blocks < 0 || match.num_blocks > num_matched_)) {
      return false;
    }
    if (is_current) {
      queried_tokens_ += static_cast<std::uint64_t>(matched_limit_);
      hit_tokens_ += static_cast<std::uint64_t>(match.num_blocks * config_.block_size);
    }
    BlockId* table = table_of(row);
    if (match.num_blocks != 0) {
      const auto n = static_cast<std::size_t>(match.num_blocks);
      std::memcpy(static_cast<void*>(table), matched_.data(), n * sizeof(BlockId));
      store_.add_references({matched_.data(), n});
    }
    RowState& r = state_of(row);
    const auto blocks = static_cast<std::int32_t>(match.num_blocks);
    r = {blocks, blocks, blocks, kNoNode, {}};
    ++state_;
    return true;
  }

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
               PlanId plan) noexcept {
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
    if (end == r.num_published + 1 && node != kNoNode && index_.is_leaf(node) &&
        index_.is_blank(table[r.num_published])) {
      // A row that decodes fills one block at a time.
      const std::int64_t position = std::int64_t{r.num_published} * config_.block_size;
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
    while (r.num_published < end) {
      if (node != kNoNode && index_.is_leaf(node)) {
        const std::span<const BlockId> blocks(table + r.num_published, table + end);
        r.num_published +=
            static_cast<std::int32_t>(index_.append(blocks, node, root.is_digest, cursor, plan));
        if (r.num_published == end) {
          break;
        }
      }
      const BlockId block = table[r.num_published];
      if (!index_.is_blank(block) && !make_blank(block)) {
        break;
      }
      node = index_.insert(block, node, root, cursor.next(), plan);
      ++r.num_published;
    }
    note_tail(r, node);
  }

  /// Shortens the table of a row to what `tokens` need. A published block that this cuts through
  /// leaves the index, unless other rows hold it: then this row must not write to it again.
  void truncate(Row row, std::int64_t tokens) noexcept {
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

  /// Makes the empty row `to` share the first `tokens` positions of `from`: whole blocks by
  /// reference; for a rest `to` gets a block of its own, whose first `tokens` mod block_size
  /// tokens the caller has the host copy before anything is written. O(blocks). Errors:
  /// InvalidArgument (a row, or more tokens than `from` has), QueueFull (no block for the rest);
  /// nothing changes then.
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept {
    if (!is_row(from) || !is_row(to) || from == to || state_of(to).length != 0) {
      return {Errc::InvalidArgument, "row", to.value, max_rows_,
              "needs two rows, the second empty"};
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

  /// Drops all references of a row, the last block first. Blocks still pending that nobody else
  /// holds are not kept as cached: nobody could withdraw them.
  void release(Row row) noexcept {
    if (!is_row(row) || state_of(row).length == 0) {
      return;
    }
    drop_blocks(row, 0);
    ++state_;
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
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept {
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

  /// True if a block that the row acquired was withdrawn since. O(1) unless some block is in that
  /// state, then O(acquired blocks).
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept {
    if (num_withdrawn_ == 0 || !is_row(row)) {
      return false;
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

  /// NotSupported.
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept {
    static_cast<void>(content);
    static_cast<void>(until);
    return {Errc::NotSupported, "pin", tokens, 0, "this pool can't pin prefixes"};
  }
  void unpin_expired(TimeNs now) noexcept { static_cast<void>(now); }

  /// Sets the number of usable blocks, in [1, Config::num_blocks]. Shrinking evicts cached blocks
  /// with ids at and beyond it; referenced ones leave when they are released. O(pool).
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept {
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

  /// Forgets all cached content. False, and nothing changes, while a row holds a block. O(cached).
  bool clear() noexcept {
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

  /// Moves the oldest undrained cache events to `events`; returns how many.
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return index_.events().drain(events);
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

  // Leading blocks of the content that lie in its first `tokens` and that may be shared.
  [[nodiscard]] std::int64_t num_shareable_blocks(const SequenceContentView& content,
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
    return max_of<std::int64_t>(end, 0) / config_.block_size;
  }

  // Free blocks first, then victims; the caller knows that there are enough.
  void take_blocks(std::span<BlockId> out) noexcept {
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

  // A decode step takes blocks one by one: what is known of the next ones is on its way by then.
  void prefetch_victims() const noexcept {
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

  // A block about to be published that is marked or still holds a prefix. False: leave it.
  bool make_blank(BlockId block) noexcept {
    if (!index_.is_withdrawn(block)) {
      return false;  // Acquired behind a block that was withdrawn: it belongs to another path.
    }
    if (store_.references(block) != 1) {
      return false;  // Readers of what it held before haven't left it.
    }
    unmark_withdrawn(block);
    return true;
  }

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
  // Drops a reference to any block.
  void drop_block(BlockId block) noexcept {
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

  // Shortens a table; the tail is dropped first, so that it is evicted before the head.
  void drop_blocks(Row row, std::int32_t length) noexcept {
    RowState& r = state_of(row);
    const BlockId* table = table_of(row);
    for (std::int32_t i = r.length; i > length;) {
      // Most often all of them become cached, then they do so at once.
      const std::int32_t end = i;
      while (i > length && becomes_cached(table[i - 1])) {
        --i;
        prefetch(table[max_of(i - kPrefetchDistance, length)]);
      }
      store_.keep_backwards({table + i, static_cast<std::size_t>(end - i)});
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

  Config config_{};
  GroupSpec group_{};
  BlockStore<Eviction> store_;
  PrefixIndex<Hash> index_;
  Buffer<RowState> rows_;    // [max_rows]
  Buffer<BlockId> tables_;   // [max_rows][max_blocks_per_row]
  Buffer<BlockId> matched_;  // [max_blocks_per_row], of the latest match()
  std::int64_t num_matched_ = 0;
  std::int64_t matched_limit_ = 0;
  std::int64_t max_blocks_per_row_ = 0;
  std::int64_t max_context_tokens_ = 0;
  std::int64_t num_withdrawn_ = 0;  // Referenced blocks marked as withdrawn.
  std::uint64_t state_ = 0;         // Counts changes and look-ups: the ticket of a match.
  std::uint64_t settled_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t queried_tokens_ = 0;
  std::uint64_t hit_tokens_ = 0;
  std::int32_t max_rows_ = 0;
};

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
    if (r.num_published != 0 && r.tail != kNoNode && index_.is_alive(r.tail, r.tail_id) &&
        index_.node_of(table(0, Row{i})[static_cast<std::size_t>(r.num_published) - 1]) != r.tail) {
      return {Errc::InternalError, "row", i, r.tail.value, "a row's note of its tail is wrong"};
    }
    for (const BlockId block : table(0, Row{i})) {
      if (block.value < 0 || block.value >= used) {
        return {Errc::InternalError, "row", i, block.value, "a table holds an unknown block"};
      }
      ++counts.data()[block.value];
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
  for (BlockId b = store_.eviction().victim(); b != kNoBlock; b = store_.eviction().after(b)) {
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

static_assert(KVCachePool<BlockPool<>>);

}  // namespace dynbatch::inline DYNBATCH_ABI
