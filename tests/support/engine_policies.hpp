// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The policies that a mix asks for, and adaptors around them: limits that change, experts that
/// move, pools with an error in them.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/earliest_deadline.hpp>
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/batch/shortest_first.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/batch/unbounded_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/cost_aware.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/kv/ttl.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>
#include <dynbatch/microbatch/no_split.hpp>

#include "engine_groups.hpp"
#include "engine_mix.hpp"
#include "engine_run.hpp"
#include "engine_store.hpp"
#include "model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::test {

/// Any sizer, held down for a while.
struct LimitedSizer {
  using Config = EmptyConfig;
  AnyBatchSizer base;
  std::int64_t tokens = 0;  ///< 0 = no further limit.
  std::int32_t sequences = 0;

  BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out = base.limits(in);
    if (tokens > 0) {
      out.max_tokens = std::min(out.max_tokens, tokens);
      out.max_prefill_tokens = std::min(out.max_prefill_tokens, out.max_tokens);
    }
    if (sequences > 0) {
      out.max_prefill_sequences = std::min(out.max_prefill_sequences, sequences);
      out.max_decode_sequences = std::min(out.max_decode_sequences, sequences);
    }
    return out;
  }
  void observe(const StepFeedback& feedback) noexcept { base.observe(feedback); }
  [[nodiscard]] BatchLimits ceiling() const noexcept { return base.ceiling(); }
  [[nodiscard]] StepCost cost() const noexcept { return base.cost(); }
};

/// Puts a random expert into a random slot whose own expert has a further replica; one move a layer
/// at a time. What it believes to lie in the slots has to come true at the engine.
struct MovingBalancer {
  using Config = EmptyConfig;
  std::int32_t one_in = 0;  ///< Plans; 0 = never.
  SplitMix64 rng{1};
  std::vector<std::vector<std::int32_t>> slots;  ///< [layer][slot]: expert.
  std::vector<ExpertMove> open;                  ///< Told, neither confirmed nor failed.
  std::uint64_t version = 0;

  void observe(const ExpertCounts&) noexcept {}
  bool task() noexcept { return false; }
  [[nodiscard]] std::uint64_t placement() const noexcept { return version; }
  std::int32_t due_moves(std::span<ExpertMove> out) noexcept {
    if (one_in == 0 || out.empty() || !rng.one_in(one_in)) {
      return 0;
    }
    const auto layer = static_cast<std::size_t>(rng.next() % slots.size());
    const auto is_of_layer = [&](const ExpertMove& move) {
      return move.layer == static_cast<std::int32_t>(layer);
    };
    const std::vector<std::int32_t>& experts = slots[layer];
    const auto from = static_cast<std::size_t>(rng.next() % experts.size());
    const auto to = static_cast<std::size_t>(rng.next() % experts.size());
    if (std::any_of(open.begin(), open.end(), is_of_layer) || from == to ||
        std::count(experts.begin(), experts.end(), experts[to]) < 2) {
      return 0;
    }
    out[0] = {static_cast<std::int32_t>(layer), static_cast<std::int32_t>(from),
              static_cast<std::int32_t>(to), experts[from]};
    open.push_back(out[0]);
    return 1;
  }
  void confirm(std::int32_t layer) noexcept { close(layer, true); }
  void fail(std::int32_t layer) noexcept { close(layer, false); }
  void shares(std::int32_t, std::span<const std::uint32_t>, std::span<float> out) const noexcept {
    std::fill(out.begin(), out.end(), 1.0F);
  }

 private:
  void close(std::int32_t layer, bool is_done) noexcept {
    const auto move = std::find_if(open.begin(), open.end(),
                                   [layer](const ExpertMove& m) { return m.layer == layer; });
    if (move == open.end()) {
      return;
    }
    if (is_done) {
      slots[static_cast<std::size_t>(layer)][static_cast<std::size_t>(move->target_slot)] =
          move->expert;
      ++version;
    }
    open.erase(move);
  }
};

/// Planted::PendingKept: what an abandoned plan promised stays visible.
struct PoolThatKeepsPending : BlockPool<> {
  using BlockPool<>::BlockPool;
  std::int64_t withdraw(Row, std::int64_t) noexcept { return 0; }
};

/// Planted::ScopeDropped: all content is of one scope.
struct PoolWithoutScopes : BlockPool<> {
  using BlockPool<>::BlockPool;
  PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept {
    return BlockPool<>::match(without_scope(content), limit);
  }
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept {
    BlockPool<>::publish(row, without_scope(content), tokens, plan);
  }
  static SequenceContentView without_scope(SequenceContentView content) noexcept {
    static constexpr CacheScope kNone{};
    content.scope = &kNone;
    return content;
  }
};

/// Planted::WindowFreedEarly: windows move on one position before they may.
struct PoolThatFreesEarly : GroupedPool<> {
  using GroupedPool<>::GroupedPool;
  void advance(Row row, std::int64_t processed, std::int64_t planned) noexcept {
    // A window of one token has nothing to give up but the block that is written next.
    const std::int32_t early = groups()[1].window > 1 ? 1 : 0;
    GroupedPool<>::advance(row, processed + early, std::max(planned, processed + early));
  }
};

/// Planted::VoidStateKept: what failed has left windows and states as they were.
struct PoolThatKeepsVoidStates : GroupedPool<> {
  using GroupedPool<>::GroupedPool;
  [[nodiscard]] bool must_leave(Row) const noexcept { return false; }
};

/// Planted::LostCopyKept: all plans are carried out.
struct PoolThatLosesNothing : GroupedPool<> {
  using GroupedPool<>::GroupedPool;
  void lose_plan(PlanId) noexcept {}
};

/// Owns the models of a mix. `s` is compatible().
class MixPolicies {
 public:
  /// `store` is null if the mix has none; else it outlives this.
  MixPolicies(const MixSettings& s, Planted planted, const tiny::Model& model, MixStore* store)
      : static_({.batch = s.batch}),
        budget_({.budget = s.budget}),
        dynamic_(dynamic_config()),
        equal_({.parts = std::max(s.parts, 2), .min_tokens = 2, .cut_inside = s.whole_chunks == 0}),
        fcfs_(rules(s)),
        priority_({.rules = rules(s), .aging = milliseconds(2), .displace = s.order == 2}),
        deadline_({.rules = rules(s), .default_due = milliseconds(30)}),
        shortest_({.rules = rules(s), .aging_per_token = microseconds(100)}),
        fair_(fair_config(s)),
        affinity_({.rules = rules(s), .credit_tokens = 4}),
        pool_(pool_config(s)),
        pending_pool_(pool_config(s)),
        scope_pool_(pool_config(s)),
        slru_pool_(pool_config<BlockPool<Slru>>(s)),
        lfu_pool_(pool_config<BlockPool<Lfu>>(s)),
        cost_pool_(pool_config<BlockPool<CostAware>>(s)),
        adaptive_pool_(pool_config<BlockPool<AdaptiveLru>>(s)),
        priority_pool_(pool_config<BlockPool<PriorityDuration>>(s)),
        ttl_pool_(pool_config<BlockPool<Ttl<Lru>>>(s)),
        tiered_pool_({.pool = pool_config(s),
                      .num_host_blocks = std::max(s.host_blocks, 1),
                      .min_load_blocks = s.min_load,
                      .load_block_ns = s.min_load == 2 ? 50'000 : 0,
                      .min_touches = s.min_load == 4 ? 2 : 1}),
        stored_pool_({.pool = pool_config(s),
                      .num_host_blocks = std::max(s.host_blocks, 1),
                      .min_load_blocks = s.min_load,
                      .load_block_ns = s.min_load == 2 ? 50'000 : 0,
                      .tier = tier_config(s, model)},
                     store != nullptr ? AnyKVTier(*store) : AnyKVTier(no_store_)),
        grouped_pool_(groups_config(s)),
        early_pool_(groups_config(s)),
        void_pool_(groups_config(s)),
        lost_pool_(groups_config(s)),
        sizer{choose_sizer(s)},
        splitter(s.parts > 1 ? AnyMicroBatchSplitter(equal_) : AnyMicroBatchSplitter(no_split_)),
        pool(planted == Planted::PendingKept    ? AnyKVCachePool(pending_pool_)
             : planted == Planted::ScopeDropped ? AnyKVCachePool(scope_pool_)
                                                : choose_pool(s, planted)),
        admission(choose_admission(s)) {
    balancer.one_in = s.moves;
    const std::int32_t num_experts = model.config().num_experts;
    balancer.slots.resize(static_cast<std::size_t>(model.config().num_layers));
    for (std::vector<std::int32_t>& layer : balancer.slots) {
      for (std::int32_t slot = 0; slot < 3 * num_experts / 2; ++slot) {
        layer.push_back(slot % num_experts);
      }
    }
  }

  /// Where the store finds the host slots of the engine of this mix.
  HostMemory host_memory;

 private:
  static AdmissionRules rules(const MixSettings& s) {
    AdmissionRules out;
    out.compose = static_cast<AdmissionRules::Compose>(s.compose);
    out.reserve = static_cast<AdmissionRules::Reserve>(s.reserve);
    out.reserve_tokens = 40;
    out.watermark_permille = s.watermark;
    out.split_prompts = s.whole_prompts == 0;
    out.max_chunk_tokens = s.whole_prompts == 0 ? s.max_chunk : 0;
    out.chunk_unit = s.chunk_unit;
    out.max_bypass = s.bypass;
    return out;
  }
  static DynamicSizer::Config dynamic_config() {
    DynamicSizer::Config out;
    out.max_prefill_tokens = 64;
    out.min_prefill_tokens = 4;
    out.recompute_ns = 3'000'000;
    return out;
  }
  static FairShare::Config fair_config(const MixSettings& s) {
    FairShare::Config out;
    out.rules = rules(s);
    out.other = {.max_running_sequences = 3, .max_running_tokens = 600};
    out.shares[0] = {.tenant = 1, .weight = 3, .max_running_sequences = 2};
    out.num_shares = 1;
    out.expected_outputs = 10;
    return out;
  }
  template <class Pool = BlockPool<>>
  static typename Pool::Config pool_config(const MixSettings& s) {
    return {.num_blocks = s.blocks,
            .block_size = s.block_size,
            .prefix_caching = s.caching != 0,
            .partial_reuse = s.partial != 0,
            .min_partial_tokens = s.partial != 0 ? s.partial : 1};
  }
  TierConfig tier_config(const MixSettings& s, const tiny::Model& model) {
    TierConfig out;
    out.memory = {&host_memory, HostMemory::bytes,
                  static_cast<std::int64_t>(sizeof(float) * model.kv_floats()) * s.block_size *
                      model.config().num_layers};
    out.load_deadline = s.store_deadline > 0 ? microseconds(s.store_deadline) : out.load_deadline;
    out.store_deadline = milliseconds(50);
    out.max_loads = 3;
    out.max_stores = 3;
    out.max_blocks_in_flight = 24;
    out.min_gain_blocks = 1;
    out.token_ns = 0;  // whatever it takes: compared with a tiny model everything is slow
    out.breaker = {.max_failures = 4, .first_pause = milliseconds(3)};
    return out;
  }
  static GroupedPool<>::Config groups_config(const MixSettings& s) {
    GroupedPool<>::Config out;
    out.pool = pool_config(s);
    std::size_t n = 0;
    if (s.window > 0) {
      out.groups[n++] = {window_group(s), blocks_of(window_group(s), s)};
    }
    if (s.recurrent > 0) {
      out.groups[n] = {state_group(), blocks_of(state_group(), s)};
    }
    out.snapshot_interval_tokens = out.unit() * s.snapshots;
    return out;
  }
  AnyBatchSizer choose_sizer(const MixSettings& s) {
    const AnyBatchSizer all[] = {AnyBatchSizer(unbounded_), AnyBatchSizer(static_),
                                 AnyBatchSizer(budget_), AnyBatchSizer(dynamic_)};
    return all[s.sizer];
  }
  AnyKVCachePool choose_pool(const MixSettings& s, Planted planted) {
    if (s.window > 0 || s.recurrent > 0) {
      return planted == Planted::WindowFreedEarly ? AnyKVCachePool(early_pool_)
             : planted == Planted::VoidStateKept  ? AnyKVCachePool(void_pool_)
             : planted == Planted::LostCopyKept   ? AnyKVCachePool(lost_pool_)
                                                  : AnyKVCachePool(grouped_pool_);
    }
    if (s.host_blocks > 0) {
      return s.store > 0 ? AnyKVCachePool(stored_pool_) : AnyKVCachePool(tiered_pool_);
    }
    const AnyKVCachePool all[] = {AnyKVCachePool(pool_),          AnyKVCachePool(slru_pool_),
                                  AnyKVCachePool(lfu_pool_),      AnyKVCachePool(cost_pool_),
                                  AnyKVCachePool(adaptive_pool_), AnyKVCachePool(priority_pool_),
                                  AnyKVCachePool(ttl_pool_)};
    return all[s.eviction];
  }
  AnyAdmission choose_admission(const MixSettings& s) {
    const AnyAdmission all[] = {AnyAdmission(fcfs_),     AnyAdmission(priority_),
                                AnyAdmission(priority_), AnyAdmission(deadline_),
                                AnyAdmission(shortest_), AnyAdmission(fair_),
                                AnyAdmission(affinity_)};
    return all[s.order];
  }

  UnboundedSizer unbounded_;
  StaticSizer static_;
  TokenBudgetSizer budget_;
  DynamicSizer dynamic_;
  NoSplit no_split_;
  EqualTokens equal_;
  FcfsAdmission fcfs_;
  PriorityAging priority_;
  EarliestDeadline deadline_;
  ShortestFirst shortest_;
  FairShare fair_;
  PrefixAffinity affinity_;
  BlockPool<> pool_;
  PoolThatKeepsPending pending_pool_;
  PoolWithoutScopes scope_pool_;
  BlockPool<Slru> slru_pool_;
  BlockPool<Lfu> lfu_pool_;
  BlockPool<CostAware> cost_pool_;
  BlockPool<AdaptiveLru> adaptive_pool_;
  BlockPool<PriorityDuration> priority_pool_;
  BlockPool<Ttl<Lru>> ttl_pool_;
  TieredPool<> tiered_pool_;
  NullTier no_store_;
  TieredPool<BlockPool<>, AnyKVTier> stored_pool_;
  GroupedPool<> grouped_pool_;
  PoolThatFreesEarly early_pool_;
  PoolThatKeepsVoidStates void_pool_;
  PoolThatLosesNothing lost_pool_;

 public:
  /// What the pool counts of the store.
  [[nodiscard]] TierStats store_stats() const noexcept { return stored_pool_.tier_stats(); }

  LimitedSizer sizer;
  AnyMicroBatchSplitter splitter;
  MovingBalancer balancer;
  AnyKVCachePool pool;
  AnyAdmission admission;
};

}  // namespace dynbatch::test
