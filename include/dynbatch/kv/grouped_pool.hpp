// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// GroupedPool: a pool of full attention with further groups beside it: sliding windows, recurrent
/// states.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/detail/companion_cache.hpp>
#include <dynbatch/kv/detail/state_blocks.hpp>
#include <dynbatch/kv/detail/window_tables.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// A group beside the first, with memory of its own.
struct KvGroupConfig {
  GroupSpec spec{};  ///< Window: its block size and the first group's divide one another.
                     ///< Recurrent: block_size 1, a block is a state.
  std::int64_t num_blocks = 0;  ///< At least GroupedPool::blocks_needed(); the rest is cache.
};

/// Adds groups to a pool of full attention. Whatever the rows do they never run short of blocks of
/// a further group, for attach() refuses less than all of them can need: so the first group alone
/// decides who is admitted and who gives way, and stats() tells about that one. What the further
/// groups keep is found through the prefixes of the first group and is void when these are
/// forgotten. match() finds the longest prefix that all groups can serve.
///
/// Windows: blocks are given up as positions are processed, and stay cached until memory is
/// wanted. Recurrent: a state is in place; snapshots are copies of it where a chunk ends on a
/// multiple of `snapshot_interval_tokens`; a state that a failed or abandoned plan may have touched
/// is void, and its sequence starts over from its last snapshot.
///
/// Cost: as Pool, and O(changed blocks) of the further groups. One thread; no allocation after
/// attach() except in check().
template <class Pool = BlockPool<>>
class GroupedPool {
  static_assert(check_kv_cache_pool<Pool>());
  static_assert(
      requires(const Pool& p, BlockId block, Row row) {
        { p.prefix_key(block) } noexcept -> std::same_as<detail::PrefixKey>;
        { p.is_prefix(detail::PrefixKey{}) } noexcept -> std::same_as<bool>;
        { p.matched() } noexcept -> std::same_as<std::span<const BlockId>>;
        { p.num_published_blocks(row) } noexcept -> std::same_as<std::int64_t>;
      },
      "dynbatch: GroupedPool needs a BlockPool; adaptors such as Pinning go around it. "
      "See docs/policies/kv_cache_pool.md");

 public:
  /// Groups beside the first.
  static constexpr std::size_t kMaxFurther = kMaxGroups - 1;

  struct Config {
    typename Pool::Config pool{};         ///< The first group.
    KvGroupConfig groups[kMaxFurther]{};  ///< Further ones, up to the first without blocks.
    /// Recurrent groups: a state is kept where a chunk ends on a multiple of it. Must be one of all
    /// block sizes. 0 = the least such multiple from 512 on.
    std::int64_t snapshot_interval_tokens = 0;
    /// Recurrent groups: prompts are cut so that a chunk ends on the last such multiple in them.
    bool align_chunks = true;

    [[nodiscard]] constexpr Status validate() const noexcept;
    /// Number of further groups.
    [[nodiscard]] constexpr std::size_t num_further() const noexcept {
      std::size_t n = 0;
      while (n < kMaxFurther && groups[n].num_blocks != 0) {
        ++n;
      }
      return n;
    }
    /// Lengths that all groups can share are multiples of it, if block sizes divide one another.
    [[nodiscard]] constexpr std::int64_t unit() const noexcept {
      std::int64_t unit = max_of(pool.block_size, 1);
      for (std::size_t i = 0; i < num_further(); ++i) {
        unit = max_of<std::int64_t>(unit, groups[i].spec.block_size);
      }
      return unit;
    }
    [[nodiscard]] constexpr std::int64_t interval() const noexcept {
      return snapshot_interval_tokens != 0 ? snapshot_interval_tokens
                                           : ceil_div(std::int64_t{512}, unit()) * unit();
    }
  };

  /// Blocks of a group beside the first that all rows together can need at once; what a group has
  /// beyond keeps cached content. A window costs each row its blocks, and all rows together those
  /// of the tokens in flight; a recurrent group needs one state a row.
  [[nodiscard]] static constexpr std::int64_t blocks_needed(
      const GroupSpec& spec, const PoolAttachment& attachment) noexcept;

  GroupedPool() noexcept : GroupedPool(Config{}) {}
  explicit GroupedPool(const Config& config) noexcept : config_(config), pool_(config.pool) {
    specs_[0] = pool_.groups().empty() ? GroupSpec{} : pool_.groups()[0];
    num_groups_ = 1 + config.num_further();
    for (std::size_t i = 1; i < num_groups_; ++i) {
      specs_[i] = config.groups[i - 1].spec;
    }
  }

  /// InvalidConfig names a further group's num_blocks if it is less than blocks_needed() (limit);
  /// recurrent groups need steps in plan order.
  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept;

  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return {specs_, num_groups_}; }
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    return pool_.can_ever_fit(tokens);
  }
  [[nodiscard]] bool shares_prefixes() const noexcept { return pool_.shares_prefixes(); }

  /// Longest cached prefix that every group can serve: windows need the blocks that the next
  /// position sees, recurrent groups a snapshot of exactly that length. O(tokens matched).
  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept;
  /// With fewer blocks than were matched: only if all groups can serve that length too.
  bool acquire(Row row, const PrefixMatch& match) noexcept;
  /// All groups or none.
  bool extend(Row row, std::int64_t tokens) noexcept;
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept;
  /// See must_leave().
  void truncate(Row row, std::int64_t tokens) noexcept;
  /// Also NotSupported: a window or a state of `from` has moved on from that length. What `to` has
  /// to copy beside the first group's rest is told by drain_copies().
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept;
  void release(Row row) noexcept;
  /// Group 0 is Pool's. A window's entries left of it are kNoBlock; a recurrent group's table is
  /// the row's state.
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept;
  void settle(PlanId plan) noexcept;
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept;
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept { return pool_.reads_withdrawn(row); }
  void finish_copy(Row row) noexcept {
    detail::OptionalPool<Pool>::finish_copy(pool_, row);
    ++state_;
  }
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept {
    return pool_.pin(content, tokens, until);
  }
  void unpin_expired(TimeNs now) noexcept { pool_.unpin_expired(now); }
  /// Of the first group.
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept {
    ++state_;
    return pool_.resize(num_blocks);
  }
  bool clear() noexcept;
  /// Of the first group.
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return pool_.drain_events(events);
  }
  /// Of the first group.
  [[nodiscard]] PoolStats stats() const noexcept { return pool_.stats(); }
  [[nodiscard]] Status check() const noexcept;

  /// `plan` computes positions of the row up to `end`, for which it has been extended.
  void plan_chunk(Row row, std::int64_t end, PlanId plan) noexcept;
  /// `processed` positions of the row are computed for certain, `planned` once all plans in flight
  /// have run: windows let go of what is left of and behind these.
  void advance(Row row, std::int64_t processed, std::int64_t planned) noexcept;
  /// Copies of a further group that `plan` makes before it writes anything. Each plan with chunks
  /// asks once, after its last chunk.
  std::size_t drain_copies(std::size_t group, std::span<BlockCopy> copies, PlanId plan) noexcept;
  /// States of a further group that the plan zeroes before it writes anything; likewise.
  std::size_t drain_zeroes(std::size_t group, std::span<BlockId> blocks) noexcept;
  /// An abandoned plan: its copies were perhaps not made.
  void lose_plan(PlanId plan) noexcept;
  /// At most `tokens`: how long a prompt's chunk from position `first` on should be.
  [[nodiscard]] std::int64_t chunk_length(std::int64_t first, std::int64_t tokens) const noexcept;
  /// After truncate() or withdraw(): a group can't go on from there, its window or state is gone.
  /// The row has to be released before anything is computed for it.
  [[nodiscard]] bool must_leave(Row row) const noexcept;

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] Pool& pool() noexcept { return pool_; }
  /// Counts of one group's blocks.
  [[nodiscard]] PoolStats group_stats(std::size_t group) const noexcept;

 private:
  [[nodiscard]] bool is_row(Row row) const noexcept {
    return row.value >= 0 && row.value < max_rows_;
  }
  [[nodiscard]] bool is_window(std::size_t group) const noexcept {
    return specs_[group].kind == GroupKind::Window;
  }
  // Of one path: the prefix that ends with its i-th block of the first group.
  [[nodiscard]] auto keys_of_match() const noexcept {
    return [this](std::int64_t i) noexcept {
      const std::span<const BlockId> blocks = pool_.matched();
      return i >= 0 && i < static_cast<std::int64_t>(blocks.size())
                 ? pool_.prefix_key(blocks[static_cast<std::size_t>(i)])
                 : detail::PrefixKey{};
    };
  }
  [[nodiscard]] auto keys_of(Row row) const noexcept {
    return [this, row](std::int64_t i) noexcept { return key_of(row, i); };
  }
  [[nodiscard]] detail::PrefixKey key_of(Row row, std::int64_t i) const noexcept {
    return i >= 0 && i < pool_.num_published_blocks(row)
               ? pool_.prefix_key(pool_.table(0, row)[static_cast<std::size_t>(i)])
               : detail::PrefixKey{};
  }
  [[nodiscard]] auto is_alive() const noexcept {
    return [this](const detail::PrefixKey& key) noexcept { return pool_.is_prefix(key); };
  }
  [[nodiscard]] bool serves(std::int64_t blocks) const noexcept;
  [[nodiscard]] std::int64_t clamped(std::int64_t tokens) const noexcept {
    return clamp_to<std::int64_t>(tokens, 0, max_context_tokens_);
  }
  // What a group has is in one of these, at its number less one.
  [[nodiscard]] const detail::CompanionCache& cache_of(std::size_t group) const noexcept {
    return is_window(group) ? windows_[group - 1].cache() : states_[group - 1].cache();
  }
  template <class OnWindow, class OnState>
  void for_each(const OnWindow& on_window, const OnState& on_state) noexcept {
    for (std::size_t i = 1; i < num_groups_; ++i) {
      if (is_window(i)) {
        on_window(windows_[i - 1]);
      } else {
        on_state(states_[i - 1]);
      }
    }
  }

  Config config_{};
  Pool pool_;
  GroupSpec specs_[kMaxGroups]{};
  std::size_t num_groups_ = 1;
  detail::WindowTables windows_[kMaxFurther];
  detail::StateBlocks states_[kMaxFurther];
  std::int64_t block_size_ = 1;
  std::int64_t interval_ = 1;
  std::int64_t max_context_tokens_ = 0;
  std::uint64_t state_ = 0;    // counts changes
  std::uint64_t matched_ = 0;  // its value at the latest match()
  std::int32_t max_rows_ = 0;
  bool in_order_ = true;
  bool has_states_ = false;
};

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/grouped_pool_rows.hpp>
