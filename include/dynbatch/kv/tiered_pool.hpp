// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TieredPool: a device pool whose cached prefixes also lie in host memory, and in a store behind
/// it.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/detail/compute_time.hpp>
#include <dynbatch/kv/detail/tier_link.hpp>
#include <dynbatch/kv/tier_config.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/load_wait.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Every full block of known content (Config::min_touches: of content that is used again) is
/// written through to host memory with the plan after the one that computes it, so evicting a
/// device block costs nothing and a preempted sequence finds its blocks again. A prefix that only
/// host memory has is loaded with the plan that admits its request: `Pool` and the host index agree
/// on content, never on ids. Plans carry the moves as GroupPlan::swaps, writes first; the host
/// needs Capabilities::swap and in_order.
///
/// A plan that is committed has moved; what an abandoned plan was to move counts as lost: the
/// blocks it was to write are forgotten, the sequences it was to load start over. Host memory full
/// of referenced blocks just ends the writing of a sequence.
///
/// With a `Tier`, blocks that have reached host memory are also stored outside, and a waiting
/// request whose prefix the tier has longer is loaded into host memory first, outside the plan: the
/// pool says by awaits_load() who should wait, never longer than Config::tier's load_deadline.
/// Whatever the tier does, steps and other requests go on. Contract of a tier: docs/kv_tier.md.
///
/// Cost: as two pools, and O(moves); with a tier also one hash a full block, and O(operations in
/// flight) a plan. One thread; no allocation after attach() except in check().
template <class Pool = BlockPool<>, class Tier = NullTier>
class TieredPool {
  static_assert(check_kv_cache_pool<Pool>());
  static_assert(check_kv_tier<Tier>());
  static_assert(!detail::OptionalPool<Pool>::kHasRowOps && !detail::OptionalPool<Pool>::kHasSwaps &&
                    !detail::OptionalPool<Pool>::kHasGroups,
                "dynbatch: TieredPool needs a pool of one group of blocks, on one device. "
                "See docs/policies/kv_cache_pool.md");
  static constexpr bool kHasTier = !std::same_as<Tier, NullTier>;

 public:
  struct Config {
    typename Pool::Config pool{};
    std::int64_t num_host_blocks = 0;  ///< Blocks of host memory, in [1, 2^31 - 2].
    std::int32_t min_load_blocks = 4;  ///< Load only if host memory has so many blocks more than
                                       ///< the device; fewer are computed; >= 1.
    /// Time to copy a block from host to device memory. A prefix is computed instead of loaded if
    /// that is predicted to be faster, by the sizer's step cost, or `tier.token_ns` a token until
    /// it is known; 0 = loading is always faster.
    std::int64_t load_block_ns = 0;
    /// Write a block when it is computed (1), or when its prefix is used for the so-many-th time:
    /// less is written, and what is used once is computed again after an eviction or a preemption.
    std::int32_t min_touches = 1;
    TierConfig tier{};  ///< But for `token_ns` read only if there is an external tier.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (num_host_blocks < 1 || num_host_blocks > 2147483646) {
        return {Errc::InvalidConfig, "num_host_blocks", num_host_blocks, 2147483646,
                "must be in [1, limit]"};
      }
      if (min_load_blocks < 1) {
        return {Errc::InvalidConfig, "min_load_blocks", min_load_blocks, 1, "must be at least 1"};
      }
      if (min_touches < 1) {
        return {Errc::InvalidConfig, "min_touches", min_touches, 1, "must be at least 1"};
      }
      if (load_block_ns < 0) {
        return {Errc::InvalidConfig, "load_block_ns", load_block_ns, 0, "must not be negative"};
      }
      if (tier.token_ns < 0) {
        return {Errc::InvalidConfig, "tier.token_ns", tier.token_ns, 0, "must not be negative"};
      }
      if (const Status s = kHasTier ? tier.validate() : kOk; !s) {
        return s;
      }
      return pool.validate();
    }
  };

  TieredPool() noexcept
    requires std::default_initializable<Tier>
      : TieredPool(Config{}) {}
  explicit TieredPool(const Config& config) noexcept
    requires std::default_initializable<Tier>
      : TieredPool(config, Tier{}) {}
  TieredPool(const Config& config, Tier tier) noexcept
      : config_(config),
        pool_(config.pool),
        host_(BlockPool<>::Config{
            .num_blocks = config.num_host_blocks,
            .block_size = pool_.groups().empty() ? 1 : pool_.groups()[0].block_size,
            .partial_reuse = false}),
        link_(std::move(tier)) {}

  /// Refuses a pool without blocks or without prefix sharing.
  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept;

  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return pool_.groups(); }
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    return pool_.can_ever_fit(tokens);
  }
  [[nodiscard]] bool shares_prefixes() const noexcept { return pool_.shares_prefixes(); }

  /// `num_loaded` of the match come from host memory; `idle_blocks` counts the blocks they need.
  /// With min_touches > 1 the content has to stay where it is until acquire().
  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept;
  bool acquire(Row row, const PrefixMatch& match) noexcept;
  bool extend(Row row, std::int64_t tokens) noexcept {
    const std::size_t held = config_.min_touches > 1 ? pool_.table(0, row).size() : 0;
    const bool is_extended = pool_.extend(row, tokens);
    if (config_.min_touches > 1) {
      forget_touches(row, held);
    }
    return is_extended;
  }
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept;
  void truncate(Row row, std::int64_t tokens) noexcept;
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept;
  void release(Row row) noexcept;
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept {
    return pool_.table(group, row);
  }
  void settle(PlanId plan) noexcept {
    pool_.settle(plan);
    host_.settle(plan);
    if constexpr (kHasTier) {
      link_.settle(plan);
    }
  }
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept {
    // Who read what was never written has written that through as well, as its own.
    const std::int64_t first = pool_.reads_withdrawn(row) ? 0 : max_of<std::int64_t>(tokens, 0);
    cancel(row, first / block_size_, true);
    host_.withdraw(row, first);
    host_.truncate(row, first / block_size_ * block_size_);
    if (config_.min_touches > 1) {
      forget_touches(row, static_cast<std::size_t>(max_of<std::int64_t>(tokens, 0) / block_size_));
    }
    return pool_.withdraw(row, tokens);
  }
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept { return pool_.reads_withdrawn(row); }
  void finish_copy(Row row) noexcept { detail::OptionalPool<Pool>::finish_copy(pool_, row); }
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept {
    return pool_.pin(content, tokens, until);
  }
  /// Also the clock of the external tier: what has ended there is taken in.
  void unpin_expired(TimeNs now) noexcept {
    pool_.unpin_expired(now);
    if constexpr (kHasTier) {
      link_.advance(now, host_);
    }
  }
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept { return pool_.resize(num_blocks); }
  /// False too, and the device keeps what it has, while a tier holds slots of host memory.
  bool clear() noexcept {
    if constexpr (kHasTier) {
      const PoolStats s = pool_.stats();
      if (s.referenced_blocks > s.pinned_blocks || !link_.abort(host_)) {
        return false;
      }
    }
    if (!pool_.clear()) {
      return false;
    }
    clear_moves();
    if constexpr (kHasTier) {
      link_.forget_all();
    }
    return host_.clear();
  }
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return pool_.drain_events(events);
  }
  [[nodiscard]] PoolStats stats() const noexcept {
    PoolStats s = pool_.stats();
    s.host_blocks = host_.stats().cached_blocks + host_.stats().referenced_blocks;
    s.loaded_blocks = num_loaded_;
    return s;
  }
  [[nodiscard]] Status check() const noexcept;

  /// Moves that `plan` has to make: writes of what older plans computed, then loads. At most
  /// swaps.size(); what is left follows with the next plan.
  std::size_t drain_swaps(std::span<BlockSwap> swaps, PlanId plan) noexcept;
  /// These moves of an abandoned plan were perhaps not made: what they were to write is forgotten.
  void lose_swaps(std::span<const BlockSwap> swaps) noexcept;

  /// Right after match() of a content that waits: whether its request should wait for the external
  /// tier. `wait` belongs to the request; take_ended_loads() says when to ask again.
  bool awaits_load(const SequenceContentView& content, std::int64_t limit, LoadWait& wait) noexcept
    requires kHasTier;
  /// Loads that have come to an end since the last call, a bit each.
  [[nodiscard]] std::uint64_t take_ended_loads() noexcept
    requires kHasTier
  {
    return link_.take_ended();
  }
  /// By when the next load will have ended, one way or the other; kNever if there is none.
  [[nodiscard]] TimeNs next_load_end() const noexcept
    requires kHasTier
  {
    return link_.next_end();
  }
  /// What it costs to compute instead.
  void learn_cost(const StepCost& cost) noexcept {
    cost_ = cost.is_known() ? cost : cost_;
    if constexpr (kHasTier) {
      link_.learn_cost(cost);
    }
  }
  /// Computes the keys of a content's whole blocks as far as they are missing. Any thread that owns
  /// the content; the scheduler does it in submit(). O(blocks without a key).
  void name_blocks(const SequenceContentView& content) const noexcept
    requires kHasTier
  {
    const std::int64_t end = min_of(content.known_length, content.cacheable_length);
    if (content.scope != nullptr) {
      link_.keys().extend(content, max_of<std::int64_t>(end, 0) / block_size_);
    }
  }
  [[nodiscard]] TierStats tier_stats() const noexcept
    requires kHasTier
  {
    return link_.stats();
  }
  [[nodiscard]] CircuitBreaker::State tier_state() const noexcept
    requires kHasTier
  {
    return link_.breaker().state();
  }
  [[nodiscard]] Tier& tier() noexcept
    requires kHasTier
  {
    return link_.tier();
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  struct Move {
    BlockSwap swap{};
    Row row{};
    std::int32_t index = 0;  ///< In the row's table.
    PlanId writer{};         ///< Plan that computes the block; its move comes with a later one.
  };

  void push_move(const Move& move) noexcept {
    moves_.push_back(move);
    if constexpr (kHasTier) {
      link_.note_move(move.swap);
    }
  }
  void drop_move(const Move& move) noexcept {
    if constexpr (kHasTier) {
      link_.drop_move(move.swap);
    }
  }
  void clear_moves() noexcept {
    for (const Move& move : moves_) {
      drop_move(move);
    }
    moves_.clear();
  }
  /// Blocks of the row's table from `first` on hold something new.
  void forget_touches(Row row, std::size_t first) noexcept {
    const std::span<const BlockId> table = pool_.table(0, row);
    for (std::size_t i = first; i < table.size(); ++i) {
      touches_[static_cast<std::size_t>(table[i].value)] = 0;
    }
  }
  [[nodiscard]] std::int64_t count_touches(Row row, std::int64_t found) noexcept;
  /// Enters the row's blocks up to `end` in the host index and notes their moves.
  void write(Row row, const SequenceContentView& content, std::int64_t end, PlanId plan) noexcept;
  /// A row that was not given what host memory has holds it now, so as not to write it again.
  void hold_written(Row row, const SequenceContentView& content, std::int64_t end) noexcept;
  /// Whether loading `more` blocks behind `held` ones is predicted to be faster than computing
  /// them.
  [[nodiscard]] bool is_load_faster(std::int64_t held, std::int64_t more) const noexcept {
    return config_.load_block_ns == 0 || (!cost_.is_known() && config_.tier.token_ns == 0) ||
           saturating_mul(more, config_.load_block_ns) <
               detail::compute_time(cost_, config_.tier.token_ns, held * block_size_,
                                    more * block_size_)
                   .ns;
  }
  void write_through(Row row, std::int64_t first, std::int64_t end, PlanId plan) noexcept;
  void cancel(Row row, std::int64_t first, bool with_writes) noexcept;

  Config config_{};
  Pool pool_;
  BlockPool<> host_;         // rows as in pool_: a row's table there are its leading blocks in host
  FixedVector<Move> moves_;  // not told yet, oldest first
  // Only where min_touches is above 1.
  Buffer<std::int32_t> touches_;  // by device block: how often its content was found
  struct NoLink {
    explicit NoLink(Tier tier) noexcept { static_cast<void>(tier); }
  };
  [[no_unique_address]] std::conditional_t<kHasTier, detail::TierLink<Tier>, NoLink> link_;
  PrefixMatch device_match_{};
  PrefixMatch host_match_{};
  SequenceContentView matched_{};  // of the latest match, if uses are counted
  StepCost cost_{};
  std::int64_t block_size_ = 1;
  std::uint64_t num_loaded_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/tiered_pool_moves.hpp>
