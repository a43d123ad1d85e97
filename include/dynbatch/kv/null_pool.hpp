// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// NullPool: the do-nothing KVCachePool, for hosts that manage KV memory themselves.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/kv_group.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/stats.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Every request fits, no block exists, nothing is cached; it has no group, and tables are empty.
class NullPool {
 public:
  using Config = EmptyConfig;

  /// Free blocks of one token that stats() reports: more than anybody asks for, small enough to
  /// add.
  static constexpr std::int64_t kUnlimitedBlocks = std::int64_t{1} << 40;

  NullPool() noexcept = default;
  explicit NullPool(const Config& config) noexcept { static_cast<void>(config); }

  [[nodiscard]] Status attach(const PoolAttachment&) noexcept { return kOk; }
  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return {}; }
  [[nodiscard]] bool can_ever_fit(std::int64_t) const noexcept { return true; }
  [[nodiscard]] bool shares_prefixes() const noexcept { return false; }
  [[nodiscard]] PrefixMatch match(const SequenceContentView&, std::int64_t) noexcept { return {}; }
  bool acquire(Row, const PrefixMatch& match) noexcept { return match.num_blocks == 0; }
  bool extend(Row, std::int64_t) noexcept { return true; }
  void publish(Row, const SequenceContentView&, std::int64_t, PlanId) noexcept {}
  void truncate(Row, std::int64_t) noexcept {}
  /// There is nothing to share: always succeeds.
  [[nodiscard]] Status fork(Row, Row, std::int64_t) noexcept { return kOk; }
  void release(Row) noexcept {}
  [[nodiscard]] std::span<const BlockId> table(std::size_t, Row) const noexcept { return {}; }
  void settle(PlanId) noexcept {}
  std::int64_t withdraw(Row, std::int64_t) noexcept { return 0; }
  [[nodiscard]] bool reads_withdrawn(Row) const noexcept { return false; }
  [[nodiscard]] Status pin(const SequenceContentView&, std::int64_t tokens, TimeNs) noexcept {
    return {Errc::NotSupported, "pin", tokens, 0, "nothing is cached here"};
  }
  void unpin_expired(TimeNs) noexcept {}
  [[nodiscard]] Status resize(std::int64_t num_blocks) noexcept {
    return {Errc::NotSupported, "num_blocks", num_blocks, 0, "the host owns the memory"};
  }
  bool clear() noexcept { return true; }
  std::size_t drain_events(std::span<KvEvent>) noexcept { return 0; }
  [[nodiscard]] PoolStats stats() const noexcept {
    PoolStats s{};
    s.total_blocks = kUnlimitedBlocks;
    s.free_blocks = kUnlimitedBlocks;
    s.block_size = 1;
    return s;
  }
  [[nodiscard]] Status check() const noexcept { return kOk; }
};

static_assert(KVCachePool<NullPool>);

}  // namespace dynbatch::inline DYNBATCH_ABI
