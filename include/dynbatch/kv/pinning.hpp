// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Pinning: a pool whose cached prefixes can be kept from eviction for a time.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Adds pin() to a pool of blocks. A pin is a row of the inner pool that no sequence uses: its
/// blocks are referenced, so no eviction order ever meets them. Pins are bounded in number and in
/// blocks, and each has an end. can_ever_fit() leaves room for the most that pins may hold, so that
/// what was accepted always fits.
///
/// Cost: pin() O(tokens + pins), unpin_expired() O(1) while none expires, else O(pins + blocks).
template <class Pool>
class Pinning {
  static_assert(check_kv_cache_pool<Pool>());
  static_assert(!detail::OptionalPool<Pool>::kHasRowOps,
                "dynbatch: Pinning needs a pool that addresses blocks. "
                "See docs/policies/kv_cache_pool.md");
  static_assert(!detail::OptionalPool<Pool>::kHasSwaps,
                "dynbatch: Pinning goes inside a TieredPool, as TieredPool<Pinning<Pool>>: around "
                "it nobody would be told the moves. See docs/policies/kv_cache_pool.md");

 public:
  static constexpr bool kHasGroups = detail::OptionalPool<Pool>::kHasGroups;

  struct Config {
    typename Pool::Config pool{};
    std::int32_t max_pins = 64;         ///< Prefixes pinned at once, in [1, 65536].
    std::int32_t share_permille = 250;  ///< Most of the pool's blocks that pins may hold, each pin
                                        ///< counted in full, in 1/1000, in [1, 900].

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (max_pins < 1 || max_pins > 65536) {
        return {Errc::InvalidConfig, "max_pins", max_pins, 65536, "must be in [1, limit]"};
      }
      if (share_permille < 1 || share_permille > 900) {
        return {Errc::InvalidConfig, "share_permille", share_permille, 900,
                "must be in [1, limit]"};
      }
      return pool.validate();
    }
  };

  Pinning() noexcept : Pinning(Config{}) {}
  explicit Pinning(const Config& config) noexcept : config_(config), pool_(config.pool) {}

  [[nodiscard]] Status attach(const PoolAttachment& attachment) noexcept {
    if (const Status s = config_.validate(); !s) {
      return s;
    }
    PoolAttachment inner = attachment;
    inner.max_rows = attachment.max_rows + config_.max_pins + 1;  // one to try in
    Status s = pool_.attach(inner);
    s = s ? pins_.allocate(static_cast<std::size_t>(config_.max_pins), "max_pins") : s;
    max_rows_ = s ? attachment.max_rows : 0;
    for (Pin& pin : pins_.span()) {
      pin = Pin{};
    }
    num_pinned_ = 0;
    pin_queries_ = pin_hits_ = 0;
    first_end_ = kNever;
    return s;
  }

  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return pool_.groups(); }
  /// Whatever is pinned: an idle pool has that many blocks beside the most that pins may hold.
  [[nodiscard]] bool can_ever_fit(std::int64_t tokens) const noexcept {
    if (!config_.validate()) {
      return false;
    }
    const std::int64_t block = max_of(pool_.groups().empty() ? 1 : pool_.groups()[0].block_size, 1);
    const std::int64_t blocks = ceil_div(max_of<std::int64_t>(tokens, 0), block);
    std::int64_t total =
        max_of(saturating_mul(blocks, 1000) / (1000 - config_.share_permille) - 2, blocks);
    while (total - most_of(total) < blocks) {  // at most four times
      ++total;
    }
    return pool_.can_ever_fit(saturating_mul(total, block));
  }
  [[nodiscard]] bool shares_prefixes() const noexcept { return pool_.shares_prefixes(); }

  [[nodiscard]] PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept {
    return pool_.match(content, limit);
  }
  bool acquire(Row row, const PrefixMatch& match) noexcept {
    return is_row(row) && pool_.acquire(row, match);
  }
  bool extend(Row row, std::int64_t tokens) noexcept {
    return is_row(row) && pool_.extend(row, tokens);
  }
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept {
    if (is_row(row)) {
      pool_.publish(row, content, tokens, plan);
    }
  }
  void truncate(Row row, std::int64_t tokens) noexcept {
    if (is_row(row)) {
      pool_.truncate(row, tokens);
    }
  }
  [[nodiscard]] Status fork(Row from, Row to, std::int64_t tokens) noexcept {
    if (!is_row(from) || !is_row(to)) {
      return {Errc::InvalidArgument, "row", to.value, max_rows_, "no such row"};
    }
    return pool_.fork(from, to, tokens);
  }
  void release(Row row) noexcept {
    if (is_row(row)) {
      pool_.release(row);
    }
  }
  [[nodiscard]] std::span<const BlockId> table(std::size_t group, Row row) const noexcept {
    return is_row(row) ? pool_.table(group, row) : std::span<const BlockId>{};
  }
  void settle(PlanId plan) noexcept { pool_.settle(plan); }
  std::int64_t withdraw(Row row, std::int64_t tokens) noexcept {
    return is_row(row) ? pool_.withdraw(row, tokens) : 0;
  }
  [[nodiscard]] bool reads_withdrawn(Row row) const noexcept {
    return is_row(row) && pool_.reads_withdrawn(row);
  }
  void finish_copy(Row row) noexcept {
    if (is_row(row)) {
      detail::OptionalPool<Pool>::finish_copy(pool_, row);
    }
  }

  /// Keeps the first `tokens` positions of a cached prefix, in whole blocks, until `until`; a pin
  /// of the same prefix is prolonged, never shortened. Errors, and nothing changes: NotFound (value
  /// = tokens that are cached and written), QueueFull (too many pins, or too many blocks pinned).
  [[nodiscard]] Status pin(const SequenceContentView& content, std::int64_t tokens,
                           TimeNs until) noexcept;

  void unpin_expired(TimeNs now) noexcept {
    pool_.unpin_expired(now);
    if (now > first_end_) {
      drop_pins(now);
    }
  }

  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept { return pool_.resize(num_blocks); }
  /// Drops the pins too, unless a row holds a block.
  bool clear() noexcept {
    for (std::int32_t row = 0; row < max_rows_; ++row) {
      if (!pool_.table(0, Row{row}).empty()) {
        return false;
      }
    }
    drop_pins(kNever);
    return pool_.clear();
  }
  std::size_t drain_events(std::span<KvEvent> events) noexcept {
    return pool_.drain_events(events);
  }
  [[nodiscard]] PoolStats stats() const noexcept {
    PoolStats s = pool_.stats();
    s.pinned_blocks = num_pinned_;
    s.prefix_queries_tokens -= pin_queries_;
    s.prefix_hit_tokens -= pin_hits_;
    return s;
  }
  [[nodiscard]] Status check() const noexcept {
    std::int64_t pinned = 0;
    for (std::size_t i = 0; i < pins_.size(); ++i) {
      const auto blocks = static_cast<std::int64_t>(pool_.table(0, row_of(i)).size());
      pinned += blocks;
      if (blocks != pins_[i].blocks) {
        return {Errc::InternalError, "pins", blocks, pins_[i].blocks, "a pin lost blocks"};
      }
    }
    if (pinned != num_pinned_) {
      return {Errc::InternalError, "pins", pinned, num_pinned_, "wrong counter"};
    }
    return pool_.check();
  }

  // What a pool of several groups has beyond the concept.
  void plan_chunk(Row row, std::int64_t end, PlanId plan) noexcept
    requires kHasGroups
  {
    pool_.plan_chunk(row, end, plan);
  }
  void advance(Row row, std::int64_t processed, std::int64_t planned) noexcept
    requires kHasGroups
  {
    pool_.advance(row, processed, planned);
  }
  std::size_t drain_copies(std::size_t group, std::span<BlockCopy> copies, PlanId plan) noexcept
    requires kHasGroups
  {
    return pool_.drain_copies(group, copies, plan);
  }
  std::size_t drain_zeroes(std::size_t group, std::span<BlockId> blocks) noexcept
    requires kHasGroups
  {
    return pool_.drain_zeroes(group, blocks);
  }
  void lose_plan(PlanId plan) noexcept
    requires kHasGroups
  {
    pool_.lose_plan(plan);
  }
  [[nodiscard]] std::int64_t chunk_length(std::int64_t first, std::int64_t tokens) const noexcept
    requires kHasGroups
  {
    return pool_.chunk_length(first, tokens);
  }
  [[nodiscard]] bool must_leave(Row row) const noexcept
    requires kHasGroups
  {
    return pool_.must_leave(row);
  }

  [[nodiscard]] Pool& pool() noexcept { return pool_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  struct Pin {
    TimeNs until{};
    std::int64_t blocks = 0;  ///< 0 = unused.
  };

  [[nodiscard]] bool is_row(Row row) const noexcept {
    return row.value >= 0 && row.value < max_rows_;
  }
  [[nodiscard]] Row row_of(std::size_t pin) const noexcept {
    return Row{max_rows_ + static_cast<std::int32_t>(pin)};
  }
  [[nodiscard]] std::int64_t most_of(std::int64_t blocks) const noexcept {
    return saturating_mul(blocks, config_.share_permille) / 1000;
  }
  [[nodiscard]] std::int64_t most_pinned() const noexcept {
    return most_of(pool_.stats().total_blocks);
  }
  [[nodiscard]] bool is_same(Row a, Row b) const noexcept {
    const std::span<const BlockId> x = pool_.table(0, a);
    const std::span<const BlockId> y = pool_.table(0, b);
    for (std::size_t i = x.size(); i-- > 0;) {
      if (x[i] != y[i]) {
        return false;
      }
    }
    return true;
  }
  // acquire() for a pin: no request has asked, so it counts neither as a query nor as a hit.
  bool acquire_pin(Row row, const PrefixMatch& match) noexcept {
    const PoolStats before = pool_.stats();
    const bool is_acquired = pool_.acquire(row, match);
    const PoolStats after = pool_.stats();
    pin_queries_ += after.prefix_queries_tokens - before.prefix_queries_tokens;
    pin_hits_ += after.prefix_hit_tokens - before.prefix_hit_tokens;
    return is_acquired;
  }
  void drop_pins(TimeNs now) noexcept {
    first_end_ = kNever;
    for (std::size_t i = 0; i < pins_.size(); ++i) {
      Pin& pin = pins_[i];
      if (pin.blocks > 0 && pin.until < now) {
        pool_.release(row_of(i));
        num_pinned_ -= pin.blocks;
        pin = Pin{};
      } else if (pin.blocks > 0) {
        first_end_ = min_of(first_end_, pin.until);
      }
    }
  }

  Config config_{};
  Pool pool_;
  Buffer<Pin> pins_;
  std::int64_t num_pinned_ = 0;
  std::uint64_t pin_queries_ = 0;  // What the inner pool has counted for pins.
  std::uint64_t pin_hits_ = 0;
  TimeNs first_end_ = kNever;
  std::int32_t max_rows_ = 0;
};

template <class Pool>
Status Pinning<Pool>::pin(const SequenceContentView& content, std::int64_t tokens,
                          TimeNs until) noexcept {
  if (max_rows_ == 0 || pool_.groups().empty()) {
    return {Errc::NotSupported, "pin", tokens, 0, "this pool has no blocks to pin"};
  }
  const std::int64_t block = pool_.groups()[0].block_size;
  const std::int64_t wanted = max_of<std::int64_t>(tokens, 0) / block;
  const PrefixMatch match = pool_.match(content, wanted * block);
  if (wanted == 0 || match.num_blocks < wanted || match.newest_pending != kNoPlan) {
    return {Errc::NotFound, "tokens",
            match.newest_pending != kNoPlan ? 0 : match.num_blocks * block, wanted * block,
            "the prefix is not cached in full"};
  }
  const Row trial = row_of(pins_.size());
  if (!acquire_pin(trial, match)) {
    return {Errc::InternalError, "pin", tokens, 0, "the match was refused"};
  }
  std::size_t unused = pins_.size();
  for (std::size_t i = pins_.size(); i-- > 0;) {
    if (pins_[i].blocks == 0) {
      unused = i;
    } else if (pins_[i].blocks == wanted && is_same(row_of(i), trial)) {
      pool_.release(trial);
      pins_[i].until = max_of(pins_[i].until, until);
      return kOk;
    }
  }
  pool_.release(trial);
  if (unused == pins_.size()) {
    return {Errc::QueueFull, "max_pins", static_cast<std::int64_t>(pins_.size()) + 1,
            static_cast<std::int64_t>(pins_.size()), "too many prefixes are pinned"};
  }
  if (num_pinned_ + wanted > most_pinned()) {
    return {Errc::QueueFull, "share_permille", num_pinned_ + wanted, most_pinned(),
            "too many blocks are pinned"};
  }
  if (!acquire_pin(row_of(unused), pool_.match(content, wanted * block))) {
    return {Errc::InternalError, "pin", tokens, 0, "the match was refused"};
  }
  pins_[unused] = {until, wanted};
  num_pinned_ += wanted;
  first_end_ = min_of(first_end_, until);
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
