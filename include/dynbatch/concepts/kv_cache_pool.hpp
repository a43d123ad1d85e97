// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KVCachePool: owns the KV blocks, the block tables of running rows and the index of cached
/// prefixes.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/detail/optional_loads.hpp>
#include <dynbatch/concepts/detail/optional_pool.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// What a scheduler tells its pool once, at make().
struct PoolAttachment {
  std::int32_t max_rows = 0;            ///< Rows that may hold a table.
  std::int64_t max_context_tokens = 0;  ///< Longest table, in tokens.
  std::int32_t max_plans_in_flight = 1;
  bool in_order = true;               ///< Executor::capabilities().in_order.
  std::int32_t sequence_handles = 0;  ///< Of a sequence-addressed host; 0 = it addresses blocks.
  bool partial_copy = false;          ///< Executor::capabilities().partial_copy.
  std::int64_t max_step_tokens = 0;   ///< Most tokens of a plan; 0 = not bounded.
};

/// Most row operations that a pool for a host with so many sequence handles tells at once.
[[nodiscard]] constexpr std::size_t max_row_ops(std::int32_t sequence_handles) noexcept {
  return static_cast<std::size_t>(sequence_handles) * 16U + 64U;
}

/// Most moves between tiers that a pool tells at once: all that one plan computes, and tables
/// loaded.
[[nodiscard]] constexpr std::int64_t max_swaps(const PoolAttachment& attachment,
                                               std::int64_t block_size) noexcept {
  return std::int64_t{2} * attachment.max_rows *
             (attachment.max_context_tokens / (block_size > 0 ? block_size : 1) + 1) +
         64;
}

/// Result of a look-up; valid for the next acquire() and only while the pool has not changed.
struct PrefixMatch {
  std::int64_t num_tokens = 0;   ///< Reusable leading tokens.
  std::int64_t num_blocks = 0;   ///< Blocks that hold them (first group).
  std::int64_t idle_blocks = 0;  ///< Of these, how many acquire() would take out of `cached`.
  PlanId newest_pending{};   ///< Newest plan that has still to write one of them; kNoPlan = none.
  std::uint64_t ticket = 0;  ///< State of the pool at the look-up.
  std::int64_t num_loaded = 0;  ///< Of num_tokens, how many acquire() has loaded from another tier.
  /// Of num_tokens, the last ones, fewer than a block: they stand at the front of `copy_source`.
  /// acquire() gives the row a block of its own for them and keeps the source until finish_copy();
  /// the plan that admits the row has to copy them.
  std::int64_t num_copied = 0;
  std::int64_t idle_copies = 0;  ///< Of idle_blocks, 1 if the source is one of them.
  BlockId copy_source{};

  /// Leaves only whole blocks.
  constexpr void drop_copy() noexcept {
    num_tokens -= num_copied;
    idle_blocks -= idle_copies;
    num_copied = 0;
    idle_copies = 0;
    copy_source = kNoBlock;
  }
};

/// Laws: docs/policies/kv_cache_pool.md. Positions and counts are tokens unless a name says blocks.
template <class P>
concept KVCachePool = std::movable<P> && detail::HasConfig<P> &&
                      requires(P& p, const P& cp, const PoolAttachment& attachment,
                               const SequenceContentView& content, const PrefixMatch& match,
                               Row row, std::int64_t tokens, PlanId plan, TimeNs time,
                               std::size_t group, std::span<KvEvent> events) {
                        { p.attach(attachment) } noexcept -> std::same_as<Status>;
                        { cp.groups() } noexcept -> std::same_as<std::span<const GroupSpec>>;
                        { cp.can_ever_fit(tokens) } noexcept -> std::same_as<bool>;
                        { cp.shares_prefixes() } noexcept -> std::same_as<bool>;
                        { p.match(content, tokens) } noexcept -> std::same_as<PrefixMatch>;
                        { p.acquire(row, match) } noexcept -> std::same_as<bool>;
                        { p.extend(row, tokens) } noexcept -> std::same_as<bool>;
                        { p.publish(row, content, tokens, plan) } noexcept -> std::same_as<void>;
                        { p.truncate(row, tokens) } noexcept -> std::same_as<void>;
                        { p.fork(row, row, tokens) } noexcept -> std::same_as<Status>;
                        { p.release(row) } noexcept -> std::same_as<void>;
                        { cp.table(group, row) } noexcept -> std::same_as<std::span<const BlockId>>;
                        { p.settle(plan) } noexcept -> std::same_as<void>;
                        { p.withdraw(row, tokens) } noexcept -> std::same_as<std::int64_t>;
                        { cp.reads_withdrawn(row) } noexcept -> std::same_as<bool>;
                        { p.pin(content, tokens, time) } noexcept -> std::same_as<Status>;
                        { p.unpin_expired(time) } noexcept -> std::same_as<void>;
                        { p.resize(tokens) } noexcept -> std::same_as<Status>;
                        { p.clear() } noexcept -> std::same_as<bool>;
                        { p.drain_events(events) } noexcept -> std::same_as<std::size_t>;
                        { cp.stats() } noexcept -> std::same_as<PoolStats>;
                        { cp.check() } noexcept -> std::same_as<Status>;
                      };

// One rung of the ladder: the expression `call` must be noexcept and return `type`.
#define DYNBATCH_POOL_RUNG(call, type, text)                                          \
  static_assert(                                                                      \
      requires(P& p, const P& cp, const PoolAttachment& attachment,                   \
               const SequenceContentView& content, const PrefixMatch& match, Row row, \
               std::int64_t tokens, PlanId plan, TimeNs time, std::size_t group,      \
               std::span<KvEvent> events) {                                           \
        { call } noexcept -> std::same_as<type>;                                      \
      },                                                                              \
      "dynbatch: a KVCachePool needs '" text " noexcept'. See docs/policies/kv_cache_pool.md")

/// One readable message for each missing requirement; called by the Scheduler.
template <class P>
consteval bool check_kv_cache_pool() {
  static_assert(std::movable<P>,
                "dynbatch: a KVCachePool needs to be movable. See docs/policies/kv_cache_pool.md");
  static_assert(
      detail::HasConfig<P>,
      "dynbatch: a KVCachePool needs 'struct Config { Status validate() const noexcept; }'. "
      "See docs/policies/kv_cache_pool.md");
  DYNBATCH_POOL_RUNG(p.attach(attachment), Status, "Status attach(const PoolAttachment&)");
  DYNBATCH_POOL_RUNG(cp.groups(), std::span<const GroupSpec>,
                     "std::span<const GroupSpec> groups() const");
  DYNBATCH_POOL_RUNG(cp.can_ever_fit(tokens), bool, "bool can_ever_fit(std::int64_t) const");
  DYNBATCH_POOL_RUNG(cp.shares_prefixes(), bool, "bool shares_prefixes() const");
  DYNBATCH_POOL_RUNG(p.match(content, tokens), PrefixMatch,
                     "PrefixMatch match(const SequenceContentView&, std::int64_t)");
  DYNBATCH_POOL_RUNG(p.acquire(row, match), bool, "bool acquire(Row, const PrefixMatch&)");
  DYNBATCH_POOL_RUNG(p.extend(row, tokens), bool, "bool extend(Row, std::int64_t)");
  DYNBATCH_POOL_RUNG(p.publish(row, content, tokens, plan), void,
                     "void publish(Row, const SequenceContentView&, std::int64_t, PlanId)");
  DYNBATCH_POOL_RUNG(p.truncate(row, tokens), void, "void truncate(Row, std::int64_t)");
  DYNBATCH_POOL_RUNG(p.fork(row, row, tokens), Status, "Status fork(Row, Row, std::int64_t)");
  DYNBATCH_POOL_RUNG(p.release(row), void, "void release(Row)");
  DYNBATCH_POOL_RUNG(cp.table(group, row), std::span<const BlockId>,
                     "std::span<const BlockId> table(std::size_t, Row) const");
  DYNBATCH_POOL_RUNG(p.settle(plan), void, "void settle(PlanId)");
  DYNBATCH_POOL_RUNG(p.withdraw(row, tokens), std::int64_t,
                     "std::int64_t withdraw(Row, std::int64_t)");
  DYNBATCH_POOL_RUNG(cp.reads_withdrawn(row), bool, "bool reads_withdrawn(Row) const");
  DYNBATCH_POOL_RUNG(p.pin(content, tokens, time), Status,
                     "Status pin(const SequenceContentView&, std::int64_t, TimeNs)");
  DYNBATCH_POOL_RUNG(p.unpin_expired(time), void, "void unpin_expired(TimeNs)");
  DYNBATCH_POOL_RUNG(p.resize(tokens), Status, "Status resize(std::int64_t)");
  DYNBATCH_POOL_RUNG(p.clear(), bool, "bool clear()");
  DYNBATCH_POOL_RUNG(p.drain_events(events), std::size_t,
                     "std::size_t drain_events(std::span<KvEvent>)");
  DYNBATCH_POOL_RUNG(cp.stats(), PoolStats, "PoolStats stats() const");
  DYNBATCH_POOL_RUNG(cp.check(), Status, "Status check() const");
  return true;
}
#undef DYNBATCH_POOL_RUNG

/// A view of any KVCachePool for run-time choice; the caller keeps the model alive.
class AnyKVCachePool {
 public:
  using Config = EmptyConfig;

  template <class P>
    requires(!std::same_as<std::remove_const_t<P>, AnyKVCachePool> && KVCachePool<P>)
  explicit AnyKVCachePool(P& model) noexcept : self_(&model), table_(&kTable<P>) {}

  [[nodiscard]] Status attach(const PoolAttachment& a) noexcept { return table_->attach(self_, a); }
  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return table_->groups(self_); }
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    return table_->can_ever_fit(self_, tokens);
  }
  [[nodiscard]] bool shares_prefixes() const noexcept { return table_->shares_prefixes(self_); }
  [[nodiscard]] PrefixMatch match(const SequenceContentView& c, std::int64_t limit) noexcept {
    return table_->match(self_, c, limit);
  }
  bool acquire(Row row, const PrefixMatch& m) noexcept { return table_->acquire(self_, row, m); }
  bool extend(Row row, std::int64_t tokens) noexcept { return table_->extend(self_, row, tokens); }
  void publish(Row row, const SequenceContentView& c, std::int64_t tokens, PlanId plan) noexcept {
    table_->publish(self_, row, c, tokens, plan);
  }
  void truncate(Row row, std::int64_t tokens) noexcept { table_->truncate(self_, row, tokens); }
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept {
    return table_->fork(self_, from, to, tokens);
  }
  void release(Row row) noexcept { table_->release(self_, row); }
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept {
    return table_->table(self_, group, row);
  }
  void settle(PlanId plan) noexcept { table_->settle(self_, plan); }
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept {
    return table_->withdraw(self_, row, tokens);
  }
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept {
    return table_->reads_withdrawn(self_, row);
  }
  [[nodiscard]] Status pin(const SequenceContentView& c, std::int64_t tokens,
                           TimeNs until) noexcept {
    return table_->pin(self_, c, tokens, until);
  }
  void unpin_expired(TimeNs now) noexcept { table_->unpin_expired(self_, now); }
  [[nodiscard]] Status resize(std::int64_t blocks) noexcept {
    return table_->resize(self_, blocks);
  }
  bool clear() noexcept { return table_->clear(self_); }
  std::size_t drain_events(std::span<KvEvent> out) noexcept {
    return table_->drain_events(self_, out);
  }
  [[nodiscard]] PoolStats stats() const noexcept { return table_->stats(self_); }
  [[nodiscard]] Status check() const noexcept { return table_->check(self_); }
  /// Whether the model is one for sequence-addressed hosts; else the next two do nothing.
  [[nodiscard]] bool tells_row_ops() const noexcept { return table_->tells_row_ops; }
  std::size_t drain_row_ops(std::span<RowOp> ops) noexcept {
    return table_->drain_row_ops(self_, ops);
  }
  void rewind(Row row, std::int64_t tokens) noexcept { table_->rewind(self_, row, tokens); }
  [[nodiscard]] bool must_leave(Row row) const noexcept { return table_->must_leave(self_, row); }
  /// Whether the model moves blocks between tiers; else the next two do nothing.
  [[nodiscard]] bool tells_swaps() const noexcept { return table_->tells_swaps; }
  std::size_t drain_swaps(std::span<BlockSwap> swaps, PlanId plan) noexcept {
    return table_->drain_swaps(self_, swaps, plan);
  }
  void lose_swaps(std::span<const BlockSwap> swaps) noexcept { table_->lose_swaps(self_, swaps); }
  /// Does nothing if the model's matches never end inside a block.
  void finish_copy(Row row) noexcept { table_->finish_copy(self_, row); }
  /// Whether the model has an asynchronous store behind it; else the next five do nothing.
  [[nodiscard]] bool tells_loads() const noexcept { return table_->loads.has_loads; }
  bool awaits_load(const SequenceContentView& c, std::int64_t limit, LoadWait& wait) noexcept {
    return table_->loads.awaits_load(self_, c, limit, wait);
  }
  std::uint64_t take_ended_loads() noexcept { return table_->loads.take_ended_loads(self_); }
  [[nodiscard]] TimeNs next_load_end() const noexcept { return table_->loads.next_load_end(self_); }
  void learn_cost(const StepCost& cost) noexcept { table_->loads.learn_cost(self_, cost); }
  void name_blocks(const SequenceContentView& c) const noexcept {
    table_->loads.name_blocks(self_, c);
  }
  /// Whether the model serves further groups; else the next six do nothing.
  [[nodiscard]] bool tells_groups() const noexcept { return table_->tells_groups; }
  void plan_chunk(Row row, std::int64_t end, PlanId plan) noexcept {
    table_->plan_chunk(self_, row, end, plan);
  }
  void advance(Row row, std::int64_t processed, std::int64_t planned) noexcept {
    table_->advance(self_, row, processed, planned);
  }
  std::size_t drain_copies(std::size_t group, std::span<BlockCopy> copies, PlanId plan) noexcept {
    return table_->drain_copies(self_, group, copies, plan);
  }
  std::size_t drain_zeroes(std::size_t group, std::span<BlockId> blocks) noexcept {
    return table_->drain_zeroes(self_, group, blocks);
  }
  void lose_plan(PlanId plan) noexcept { table_->lose_plan(self_, plan); }
  [[nodiscard]] std::int64_t chunk_length(std::int64_t first, std::int64_t tokens) const noexcept {
    return table_->chunk_length(self_, first, tokens);
  }

 private:
  struct Table {
    Status (*attach)(void*, const PoolAttachment&) noexcept;
    std::span<const GroupSpec> (*groups)(const void*) noexcept;
    bool (*can_ever_fit)(const void*, std::int64_t) noexcept;
    bool (*shares_prefixes)(const void*) noexcept;
    PrefixMatch (*match)(void*, const SequenceContentView&, std::int64_t) noexcept;
    bool (*acquire)(void*, Row, const PrefixMatch&) noexcept;
    bool (*extend)(void*, Row, std::int64_t) noexcept;
    void (*publish)(void*, Row, const SequenceContentView&, std::int64_t, PlanId) noexcept;
    void (*truncate)(void*, Row, std::int64_t) noexcept;
    Status (*fork)(void*, Row, Row, std::int64_t) noexcept;
    void (*release)(void*, Row) noexcept;
    std::span<const BlockId> (*table)(const void*, std::size_t, Row) noexcept;
    void (*settle)(void*, PlanId) noexcept;
    std::int64_t (*withdraw)(void*, Row, std::int64_t) noexcept;
    bool (*reads_withdrawn)(const void*, Row) noexcept;
    Status (*pin)(void*, const SequenceContentView&, std::int64_t, TimeNs) noexcept;
    void (*unpin_expired)(void*, TimeNs) noexcept;
    Status (*resize)(void*, std::int64_t) noexcept;
    bool (*clear)(void*) noexcept;
    std::size_t (*drain_events)(void*, std::span<KvEvent>) noexcept;
    PoolStats (*stats)(const void*) noexcept;
    Status (*check)(const void*) noexcept;
    std::size_t (*drain_row_ops)(void*, std::span<RowOp>) noexcept;
    void (*rewind)(void*, Row, std::int64_t) noexcept;
    bool (*must_leave)(const void*, Row) noexcept;
    std::size_t (*drain_swaps)(void*, std::span<BlockSwap>, PlanId) noexcept;
    void (*lose_swaps)(void*, std::span<const BlockSwap>) noexcept;
    void (*finish_copy)(void*, Row) noexcept;
    detail::LoadTable loads;
    void (*plan_chunk)(void*, Row, std::int64_t, PlanId) noexcept;
    void (*advance)(void*, Row, std::int64_t, std::int64_t) noexcept;
    std::size_t (*drain_copies)(void*, std::size_t, std::span<BlockCopy>, PlanId) noexcept;
    std::size_t (*drain_zeroes)(void*, std::size_t, std::span<BlockId>) noexcept;
    void (*lose_plan)(void*, PlanId) noexcept;
    std::int64_t (*chunk_length)(const void*, std::int64_t, std::int64_t) noexcept;
    bool tells_row_ops;
    bool tells_swaps;
    bool tells_groups;
  };
  template <class P>
  static constexpr Table kTable{
      [](void* p, const PoolAttachment& a) noexcept { return static_cast<P*>(p)->attach(a); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->groups(); },
      [](const void* p, std::int64_t t) noexcept {
        return static_cast<const P*>(p)->can_ever_fit(t);
      },
      [](const void* p) noexcept { return static_cast<const P*>(p)->shares_prefixes(); },
      [](void* p, const SequenceContentView& c, std::int64_t t) noexcept {
        return static_cast<P*>(p)->match(c, t);
      },
      [](void* p, Row r, const PrefixMatch& m) noexcept {
        return static_cast<P*>(p)->acquire(r, m);
      },
      [](void* p, Row r, std::int64_t t) noexcept { return static_cast<P*>(p)->extend(r, t); },
      [](void* p, Row r, const SequenceContentView& c, std::int64_t t, PlanId plan) noexcept {
        static_cast<P*>(p)->publish(r, c, t, plan);
      },
      [](void* p, Row r, std::int64_t t) noexcept { static_cast<P*>(p)->truncate(r, t); },
      [](void* p, Row a, Row b, std::int64_t t) noexcept {
        return static_cast<P*>(p)->fork(a, b, t);
      },
      [](void* p, Row r) noexcept { static_cast<P*>(p)->release(r); },
      [](const void* p, std::size_t g, Row r) noexcept {
        return static_cast<const P*>(p)->table(g, r);
      },
      [](void* p, PlanId plan) noexcept { static_cast<P*>(p)->settle(plan); },
      [](void* p, Row r, std::int64_t t) noexcept { return static_cast<P*>(p)->withdraw(r, t); },
      [](const void* p, Row r) noexcept { return static_cast<const P*>(p)->reads_withdrawn(r); },
      [](void* p, const SequenceContentView& c, std::int64_t t, TimeNs u) noexcept {
        return static_cast<P*>(p)->pin(c, t, u);
      },
      [](void* p, TimeNs t) noexcept { static_cast<P*>(p)->unpin_expired(t); },
      [](void* p, std::int64_t b) noexcept { return static_cast<P*>(p)->resize(b); },
      [](void* p) noexcept { return static_cast<P*>(p)->clear(); },
      [](void* p, std::span<KvEvent> e) noexcept { return static_cast<P*>(p)->drain_events(e); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->stats(); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->check(); },
      [](void* p, std::span<RowOp> ops) noexcept {
        return detail::OptionalPool<P>::drain_row_ops(*static_cast<P*>(p), ops);
      },
      [](void* p, Row r, std::int64_t t) noexcept {
        detail::OptionalPool<P>::rewind(*static_cast<P*>(p), r, t);
      },
      [](const void* p, Row r) noexcept {
        return detail::OptionalPool<P>::must_leave(*static_cast<const P*>(p), r);
      },
      [](void* p, std::span<BlockSwap> swaps, PlanId plan) noexcept {
        return detail::OptionalPool<P>::drain_swaps(*static_cast<P*>(p), swaps, plan);
      },
      [](void* p, std::span<const BlockSwap> swaps) noexcept {
        detail::OptionalPool<P>::lose_swaps(*static_cast<P*>(p), swaps);
      },
      [](void* p, Row r) noexcept { detail::OptionalPool<P>::finish_copy(*static_cast<P*>(p), r); },
      detail::kLoadTable<P>,
      [](void* p, Row r, std::int64_t end, PlanId plan) noexcept {
        detail::OptionalPool<P>::plan_chunk(*static_cast<P*>(p), r, end, plan);
      },
      [](void* p, Row r, std::int64_t processed, std::int64_t planned) noexcept {
        detail::OptionalPool<P>::advance(*static_cast<P*>(p), r, processed, planned);
      },
      [](void* p, std::size_t g, std::span<BlockCopy> copies, PlanId plan) noexcept {
        return detail::OptionalPool<P>::drain_copies(*static_cast<P*>(p), g, copies, plan);
      },
      [](void* p, std::size_t g, std::span<BlockId> blocks) noexcept {
        return detail::OptionalPool<P>::drain_zeroes(*static_cast<P*>(p), g, blocks);
      },
      [](void* p, PlanId plan) noexcept {
        detail::OptionalPool<P>::lose_plan(*static_cast<P*>(p), plan);
      },
      [](const void* p, std::int64_t first, std::int64_t tokens) noexcept {
        return detail::OptionalPool<P>::chunk_length(*static_cast<const P*>(p), first, tokens);
      },
      detail::OptionalPool<P>::kHasRowOps,
      detail::OptionalPool<P>::kHasSwaps,
      detail::OptionalPool<P>::kHasGroups};

  void* self_;
  const Table* table_;
};

static_assert(KVCachePool<AnyKVCachePool>);

}  // namespace dynbatch::inline DYNBATCH_ABI
