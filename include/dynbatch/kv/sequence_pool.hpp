// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SequencePool: KV of hosts that address it by sequence and position instead of by block.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Counts the cells of a host such as llama.cpp, shared ones once, and its sequence handles: a
/// running row uses the handle of its own number; handles from max_rows on are parking places that
/// keep the cached prefixes of rows that have left. What the host has to share and drop is told as
/// row operations. Cells are counted, and prefixes shared, in blocks of `block_size`; a parked
/// prefix that made room loses its tail first, the one parked or used longest ago before others.
///
/// Cost: as BlockPool, plus O(handles) for a request with a hit, for parking and for evicting. One
/// thread; no allocation after attach() except in check().
class SequencePool {
 public:
  struct Config {
    std::int64_t num_tokens = 0;   ///< KV cells of the host; >= block_size.
    std::int32_t block_size = 16;  ///< Cells are counted in blocks of so many, in [1, 65536].
    bool prefix_caching = true;    ///< Off: nothing is parked, every look-up misses.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (block_size < 1 || block_size > 65536) {
        return {Errc::InvalidConfig, "block_size", block_size, 65536, "must be in [1, limit]"};
      }
      if (num_tokens < block_size) {
        return {Errc::InvalidConfig, "num_tokens", num_tokens, block_size,
                "must be at least one block"};
      }
      return kOk;
    }
  };

  SequencePool() noexcept : SequencePool(Config{}) {}
  explicit SequencePool(const Config& config) noexcept
      : config_(config),
        pool_(BlockPool<>::Config{
            .num_blocks = config.block_size > 0 ? config.num_tokens / config.block_size : 0,
            .block_size = config.block_size,
            .prefix_caching = config.prefix_caching}) {}

  /// Needs attachment.sequence_handles >= max_rows.
  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept;

  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return pool_.groups(); }
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    return pool_.can_ever_fit(tokens);
  }
  [[nodiscard]] bool shares_prefixes() const noexcept { return pool_.shares_prefixes(); }

  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept;
  bool acquire(Row row, const PrefixMatch& match) noexcept;
  bool extend(Row row, std::int64_t tokens) noexcept;
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept {
    pool_.publish(row, content, tokens, plan);
  }
  /// Nothing of what the row loses is kept.
  void truncate(Row row, std::int64_t tokens) noexcept;
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept;
  /// Parks what the row has published, if nobody else holds it and a handle is to be had.
  void release(Row row) noexcept;
  /// The row's positions from `tokens` on were not written, or will be written anew.
  void rewind(Row row, std::int64_t tokens) noexcept {
    if (is_running(row)) {
      tell_drop(row, tokens);
    }
  }
  /// The row has to write positions anew that others share still: their cells stay with those, so
  /// the row would need more than it counts. It starts over instead.
  [[nodiscard]] bool must_leave(Row row) const noexcept {
    return is_running(row) && pool_.holds_withdrawn(row);
  }
  /// Numbers of counted blocks; a host that addresses by sequence has no use for them.
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept {
    return pool_.table(group, row);
  }
  void settle(PlanId plan) noexcept { pool_.settle(plan); }
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept {
    return pool_.withdraw(row, tokens);
  }
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept { return pool_.reads_withdrawn(row); }
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept {
    return pool_.pin(content, tokens, until);
  }
  void unpin_expired(TimeNs now) noexcept { pool_.unpin_expired(now); }
  /// In blocks, as BlockPool; a smaller pool forgets all parked prefixes.
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept;
  bool clear() noexcept;
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return pool_.drain_events(events);
  }
  /// `cached_blocks` are those held by parked prefixes alone.
  [[nodiscard]] PoolStats stats() const noexcept;
  [[nodiscard]] Status check() const noexcept;

  /// Moves what the host has to do since the last call to `ops`, oldest first; returns how many.
  std::size_t drain_row_ops(std::span<RowOp> ops) noexcept;

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  /// Prefixes parked now.
  [[nodiscard]] std::int32_t num_parked() const noexcept { return num_parked_; }

 private:
  [[nodiscard]] bool is_running(Row row) const noexcept {
    return row.value >= 0 && row.value < max_rows_;
  }
  [[nodiscard]] bool is_parked_only(BlockId block) const noexcept {
    return pool_.references(block) == parked_references_[static_cast<std::size_t>(block.value)];
  }
  [[nodiscard]] std::int64_t count_parked_only(std::span<const BlockId> blocks) const noexcept {
    std::int64_t n = 0;
    for (const BlockId block : blocks) {
      n += pool_.references(block) > 0 && is_parked_only(block) ? 1 : 0;
    }
    return n;
  }
  [[nodiscard]] std::int64_t num_free() const noexcept {
    return pool_.stats().available_blocks();  // nothing lies cached in the pool itself
  }
  std::span<const BlockId> remember(std::span<const BlockId> blocks) noexcept;
  std::int64_t find_holder(std::span<const BlockId> path) noexcept;
  [[nodiscard]] Row parking_place(std::span<const BlockId> path) noexcept;
  [[nodiscard]] Row least_recent() const noexcept;
  void park(Row row, std::int64_t blocks) noexcept;
  void unpark(Row parked, std::int64_t kept_blocks) noexcept;
  bool make_room(std::int64_t blocks) noexcept;

  /// Room for what one step needs in any case: what is optional waits for the next one.
  [[nodiscard]] bool has_op_room() const noexcept {
    return ops_.size() + 3 * static_cast<std::size_t>(num_handles_) < ops_.capacity();
  }
  void tell_share(Row source, Row target, std::int64_t tokens) noexcept;
  void tell_drop(Row target, std::int64_t first) noexcept;

  Config config_{};
  BlockPool<> pool_;
  FixedVector<RowOp> ops_;
  Buffer<std::int32_t> newest_op_;          // [handles] 1 + index in ops_ of its last one, 0 = none
  Buffer<std::int32_t> parked_references_;  // [blocks] references by parked handles
  Buffer<BlockId> scratch_;                 // [blocks a row]
  Buffer<std::uint64_t> used_;              // [handles] when a parked one was last used, 0 = empty
  std::uint64_t clock_ = 0;
  Row holder_ = kNoRow;               // of what the latest match() found
  std::int64_t num_parked_only_ = 0;  // blocks that only parked handles hold
  std::int32_t num_handles_ = 0;
  std::int32_t max_rows_ = 0;
  std::int32_t num_parked_ = 0;
};

static_assert(KVCachePool<SequencePool>);

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/sequence_pool_parking.hpp>
