// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TierLink: what a TieredPool has under way between host memory and the store behind it.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/kv/block_keys.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/circuit_breaker.hpp>
#include <dynbatch/kv/detail/compute_time.hpp>
#include <dynbatch/kv/detail/host_slots.hpp>
#include <dynbatch/kv/detail/tier_estimate.hpp>
#include <dynbatch/kv/tier_config.hpp>
#include <dynbatch/model/block_key.hpp>
#include <dynbatch/model/load_wait.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Loads: a query, then a fetch into host slots, then the blocks wait to be entered in the host
/// index by the first request that has their content at hand. Stores: blocks whose write to host
/// memory is committed, parents first. The slots of an operation are held by a row of the host pool
/// of its own, until the tier says that it has ended: whatever happens to requests, deadlines and
/// cancellations, no slot is used again before. One thread; no allocation after attach().
template <class Tier>
class TierLink {
  static_assert(check_kv_tier<Tier>());

 public:
  using HostPool = BlockPool<>;

  explicit TierLink(Tier tier) noexcept : tier_(std::move(tier)) {}

  /// Rows that the host pool needs beyond those of sequences.
  [[nodiscard]] static std::int32_t num_rows(const TierConfig& config) noexcept {
    return config.max_loads + config.max_stores;
  }
  [[nodiscard]] Status attach(const TierConfig& config, const PoolAttachment& attachment,
                              std::int64_t num_slots, std::int32_t block_size,
                              std::size_t max_moves) noexcept;

  /// Takes in what has ended, gives up what takes too long, begins stores.
  void advance(TimeNs now, HostPool& host) noexcept;
  /// Enters fetched blocks of this content in the host index. True if there were some.
  bool adopt(const SequenceContentView& content, HostPool& host) noexcept;
  /// Whether a request that finds `best` blocks of `total` should wait; `match` is the host's, its
  /// latest, and still so if it should not.
  bool awaits(const SequenceContentView& content, std::int64_t total, std::int64_t best,
              PrefixMatch& match, HostPool& host, LoadWait& wait) noexcept;
  [[nodiscard]] std::uint64_t take_ended() noexcept { return std::exchange(ended_, 0); }
  [[nodiscard]] TimeNs next_end() const noexcept;
  void learn_cost(const StepCost& cost) noexcept { cost_ = cost.is_known() ? cost : cost_; }

  /// Blocks [first, end) of a row will be written to `table` by a plan; their keys are known.
  void note_writes(const SequenceContentView& content, std::span<const BlockId> table,
                   std::int64_t first, std::int64_t end) noexcept;
  /// These blocks were found again: perhaps they are worth storing now.
  void touch(std::span<const BlockId> blocks) noexcept;
  void note_move(const BlockSwap& swap) noexcept { slots_.add_move(swap); }
  void drop_move(const BlockSwap& swap) noexcept { slots_.drop_move(swap); }
  void tell_move(const BlockSwap& swap, PlanId plan) noexcept { slots_.tell(swap, plan); }
  void lose_told(std::span<const BlockSwap> swaps) noexcept { slots_.lose(swaps); }
  /// The plan and all older ones have moved.
  void settle(PlanId plan) noexcept {
    slots_.settle(plan, [this](std::int32_t slot) {
      slots_.touch(slot);
      offer(slot);
    });
  }
  /// Gives up all that can be given up at once; true if the tier holds no slot.
  bool abort(HostPool& host) noexcept;
  /// Host memory was emptied.
  void forget_all() noexcept { slots_.forget_all(); }

  [[nodiscard]] TierStats stats() const noexcept {
    TierStats s = stats_;
    s.lent_blocks = lent_;
    s.openings = breaker_.num_openings();
    s.dropped = slots_.num_dropped();
    return s;
  }
  [[nodiscard]] Status check(const HostPool& host) const noexcept;
  [[nodiscard]] const CircuitBreaker& breaker() const noexcept { return breaker_; }
  [[nodiscard]] Tier& tier() noexcept { return tier_; }
  [[nodiscard]] const KeyChain& keys() const noexcept { return chain_; }
  [[nodiscard]] TimeNs now() const noexcept { return now_; }

 private:
  enum class Phase : std::uint8_t {
    Free,
    Asking,    ///< The tier looks how much it has.
    Fetching,  ///< The tier writes to slots.
    Arrived,   ///< Slots hold blocks that no index knows yet.
    Storing,   ///< The tier reads slots.
    Lost,      ///< Given up; the tier has not said yet that it is done with the slots.
  };
  /// An operation and what it serves. Loads come first in `work_`, then stores.
  struct Work {
    Phase phase = Phase::Free;
    std::uint64_t ticket = 0;
    std::uint64_t era = 0;  ///< Of the circuit breaker.
    TimeNs begun{};
    TimeNs deadline{};
    KeyRoot root{};
    std::int64_t first = 0;  ///< Place of its first block in the prefix.
    std::int64_t count = 0;  ///< Blocks asked for, fetched, arrived or stored.
    std::int64_t best = 0;   ///< What the request that began it has without it.
  };

  [[nodiscard]] std::size_t index_of(const Work& work) const noexcept {
    return static_cast<std::size_t>(&work - work_.data());
  }
  [[nodiscard]] Row row_of(const Work& work) const noexcept {
    return Row{first_row_ + static_cast<std::int32_t>(index_of(work))};
  }
  [[nodiscard]] std::span<BlockKey> keys_of(const Work& work) noexcept {
    return {keys_.data() + index_of(work) * max_blocks_, max_blocks_};
  }
  [[nodiscard]] std::span<Work> loads() noexcept {
    return work_.span().first(static_cast<std::size_t>(config_.max_loads));
  }
  [[nodiscard]] std::span<Work> stores() noexcept {
    return work_.span().subspan(static_cast<std::size_t>(config_.max_loads));
  }
  [[nodiscard]] bool is_load(const Work& work) const noexcept {
    return index_of(work) < static_cast<std::size_t>(config_.max_loads);
  }
  [[nodiscard]] static Work* unused(std::span<Work> work) noexcept {
    for (Work& w : work) {
      if (w.phase == Phase::Free) {
        return &w;
      }
    }
    return nullptr;
  }
  [[nodiscard]] static bool is_under_way(const Work& w) noexcept {
    return w.phase == Phase::Asking || w.phase == Phase::Fetching || w.phase == Phase::Storing;
  }
  [[nodiscard]] Work* find(std::uint64_t ticket) noexcept {
    for (Work& w : work_.span()) {
      if (ticket != 0 && w.ticket == ticket && (is_under_way(w) || w.phase == Phase::Lost)) {
        return &w;
      }
    }
    return nullptr;
  }

  bool begin(Work& work, TierVerb verb, std::span<const std::int32_t> slots) noexcept;
  void end_operation(const TierCompletion& completion, HostPool& host) noexcept;
  void end_query(Work& work, std::int64_t blocks, HostPool& host) noexcept;
  void end_fetch(Work& work, std::int64_t blocks, HostPool& host) noexcept;
  void end_store(Work& work, std::int64_t blocks, HostPool& host) noexcept;
  void give_up(Work& work, HostPool& host) noexcept;
  void free(Work& work, HostPool& host) noexcept;
  void wake(const Work& work) noexcept {
    if (is_load(work)) {
      ended_ |= std::uint64_t{1} << index_of(work);
    }
  }
  [[nodiscard]] bool is_worth(const Work& work, std::int64_t blocks) const noexcept;
  [[nodiscard]] bool brings(const Work& work, const SequenceContentView& content,
                            const KeyRoot& root, std::int64_t best) noexcept;
  void offer(std::int32_t slot) noexcept {
    if (config_.max_stores > 0) {
      slots_.offer(slot, config_.min_touches);
    }
  }
  void begin_stores(HostPool& host) noexcept;

  Tier tier_;
  TierConfig config_{};
  KeyChain chain_;
  CircuitBreaker breaker_;
  TierEstimate estimate_;
  StepCost cost_{};
  TierStats stats_{};
  HostSlots slots_;
  Buffer<Work> work_;             // [max_loads + max_stores]
  Buffer<BlockKey> keys_;         // [work][max_blocks]
  Buffer<std::int32_t> scratch_;  // [max_blocks], slots of an operation that begins, and
  Buffer<BlockId> blocks_;        // [max_blocks], the same as blocks
  std::size_t max_blocks_ = 0;
  std::int64_t lent_ = 0;
  std::uint64_t next_ticket_ = 1;
  std::uint64_t ended_ = 0;  // Loads whose waiting requests have not been told, a bit each.
  TimeNs now_{};
  std::int32_t num_busy_ = 0;  // Work that isn't free.
  std::int32_t first_row_ = 0;
  std::int32_t block_size_ = 1;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/tier_link_loads.hpp>
#include <dynbatch/kv/detail/tier_link_operations.hpp>
