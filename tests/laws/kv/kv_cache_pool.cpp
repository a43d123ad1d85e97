// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/belady.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/cost_aware.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/kv/sequence_pool.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/kv/ttl.hpp>
#include <dynbatch/laws/kv_cache_pool.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

using namespace dynbatch;

namespace {

struct ConstantHash {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 42; }
};

// The least that satisfies the concept and holds blocks: no sharing, no options.
class ArchetypePool {
 public:
  using Config = EmptyConfig;
  static constexpr int kMaxRows = 8;
  static constexpr int kBlocks = 20;

  Status attach(const PoolAttachment&) noexcept {
    for (int row = 0; row < kMaxRows; ++row) {
      release(Row{row});
    }
    num_free_ = 0;
    for (int b = kBlocks - 1; b >= 0; --b) {
      free_[num_free_++] = BlockId{b};
    }
    return kOk;
  }
  std::span<const GroupSpec> groups() const noexcept { return {&group_, 1}; }
  bool can_ever_fit(std::int64_t tokens) const noexcept { return tokens <= kBlocks * 16; }
  bool shares_prefixes() const noexcept { return false; }
  PrefixMatch match(const SequenceContentView&, std::int64_t) noexcept { return {}; }
  bool acquire(Row row, const PrefixMatch&) noexcept {
    return is_row(row) && length_[row.value] == 0;
  }
  bool extend(Row row, std::int64_t tokens) noexcept {
    const std::int64_t wanted = (tokens + 15) / 16;
    if (!is_row(row) || wanted - length_[row.value] > num_free_) {
      return false;
    }
    while (length_[row.value] < wanted) {
      tables_[row.value][length_[row.value]++] = free_[--num_free_];
    }
    return true;
  }
  void publish(Row, const SequenceContentView&, std::int64_t, PlanId) noexcept {}
  void truncate(Row row, std::int64_t tokens) noexcept {
    while (is_row(row) && length_[row.value] > (tokens + 15) / 16) {
      free_[num_free_++] = tables_[row.value][--length_[row.value]];
    }
  }
  Status fork(Row, Row, std::int64_t) noexcept { return {Errc::NotSupported}; }
  void release(Row row) noexcept { truncate(row, 0); }
  std::span<const BlockId> table(std::size_t, Row row) const noexcept {
    return {tables_[row.value], static_cast<std::size_t>(length_[row.value])};
  }
  void settle(PlanId) noexcept {}
  std::int64_t withdraw(Row, std::int64_t) noexcept { return 0; }
  bool reads_withdrawn(Row) const noexcept { return false; }
  Status pin(const SequenceContentView&, std::int64_t, TimeNs) noexcept {
    return {Errc::NotSupported};
  }
  void unpin_expired(TimeNs) noexcept {}
  Status resize(std::int64_t) noexcept { return {Errc::NotSupported}; }
  bool clear() noexcept { return num_free_ == kBlocks; }
  std::size_t drain_events(std::span<KvEvent>) noexcept { return 0; }
  PoolStats stats() const noexcept {
    PoolStats s{};
    s.total_blocks = kBlocks;
    s.free_blocks = num_free_;
    s.referenced_blocks = kBlocks - num_free_;
    s.block_size = 16;
    return s;
  }
  Status check() const noexcept { return kOk; }

 private:
  static bool is_row(Row row) noexcept { return row.value >= 0 && row.value < 5; }

  GroupSpec group_{};
  BlockId free_[kBlocks * 2];
  BlockId tables_[kMaxRows][kBlocks];
  std::int64_t length_[kMaxRows] = {};
  std::int64_t num_free_ = 0;
};
static_assert(KVCachePool<ArchetypePool>);
static_assert(check_kv_cache_pool<ArchetypePool>());

// A pool that forgets to look at the scope: the laws must notice.
class LeakyPool : public BlockPool<> {
 public:
  using BlockPool<>::BlockPool;
  PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept {
    SequenceContentView v = content;
    v.scope = &scope_;
    return BlockPool<>::match(v, limit);
  }
  void publish(Row row, const SequenceContentView& content, std::int64_t tokens,
               PlanId plan) noexcept {
    SequenceContentView v = content;
    v.scope = &scope_;
    BlockPool<>::publish(row, v, tokens, plan);
  }

 private:
  CacheScope scope_{};
};

// A pool that leaves failed blocks where they are.
class StalePool : public BlockPool<> {
 public:
  using BlockPool<>::BlockPool;
  std::int64_t withdraw(Row, std::int64_t) noexcept { return 0; }
};

template <class Pool>
void obeys(Pool& pool) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Status s = check_kv_cache_pool_laws(pool, seed);
    INFO("seed " << seed << ": " << s.text << " " << s.value << " " << s.limit);
    REQUIRE(s.is_ok());
  }
}

}  // namespace

TEST_CASE("The shipped pools obey the laws") {
  const std::int32_t block_size = GENERATE(1, 4, 16);
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  INFO("block size " << block_size << ", blocks " << num_blocks);
  BlockPool<> pool({.num_blocks = num_blocks, .block_size = block_size, .max_kv_events = 4});
  obeys(pool);
}

TEST_CASE("A pool with pins obeys the laws") {
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  INFO("blocks " << num_blocks);
  Pinning<BlockPool<>> pool({.pool = {.num_blocks = num_blocks, .block_size = 4}, .max_pins = 3});
  obeys(pool);
}

TEST_CASE("A pool with further groups obeys the laws") {
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  INFO("blocks " << num_blocks);
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = num_blocks, .block_size = 4};
  config.groups[0] = {{GroupKind::Window, 2, 5}, 200};
  config.groups[1] = {{GroupKind::Recurrent, 1, 0}, 9};
  GroupedPool<> pool(config);
  obeys(pool);
}

TEST_CASE("A pool with host memory behind obeys the laws") {
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  const std::int64_t host_blocks = GENERATE(5, 100);
  INFO("blocks " << num_blocks << ", in host memory " << host_blocks);
  TieredPool<> pool({.pool = {.num_blocks = num_blocks, .block_size = 4},
                     .num_host_blocks = host_blocks,
                     .min_load_blocks = 1000});  // the laws know one tier
  obeys(pool);
}

TEST_CASE("A pool with host memory and a store behind it obeys the laws") {
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  TierConfig tier;
  static std::byte slots[40];
  tier.memory.bytes = [](void*, std::int32_t slot) noexcept { return std::span(slots + slot, 1); };
  tier.memory.slot_bytes = 1;
  TieredPool<BlockPool<>, MemoryStore> pool({.pool = {.num_blocks = num_blocks, .block_size = 4},
                                             .num_host_blocks = 40,
                                             .min_load_blocks = 1000,
                                             .tier = tier},
                                            MemoryStore({.num_blocks = 100}));
  obeys(pool);
}

TEST_CASE("A pool of sequences obeys the laws") {
  const std::int32_t block_size = GENERATE(1, 4, 16);
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  INFO("block size " << block_size << ", blocks " << num_blocks);
  SequencePool pool({.num_tokens = num_blocks * block_size, .block_size = block_size});
  obeys(pool);
}

TEMPLATE_TEST_CASE("Pools obey the laws under every eviction order", "", Slru, Lfu, CostAware,
                   AdaptiveLru, PriorityDuration, Ttl<Lru>, Ttl<Slru>, Belady) {
  const std::int64_t num_blocks = GENERATE(8, 20, 60);
  INFO("blocks " << num_blocks);
  BlockPool<TestType> pool({.num_blocks = num_blocks, .block_size = 4, .max_kv_events = 4});
  obeys(pool);
}

TEST_CASE("A constant hash and a pool without caching obey the laws") {
  BlockPool<Lru, ConstantHash> constant({.num_blocks = 20, .block_size = 4});
  obeys(constant);
  BlockPool<> plain({.num_blocks = 20, .block_size = 4, .prefix_caching = false});
  obeys(plain);
}

TEST_CASE("The do-nothing pool and the archetype obey the laws") {
  NullPool null;
  obeys(null);
  ArchetypePool archetype;
  obeys(archetype);
}

TEST_CASE("A pool obeys the laws through its Any model") {
  BlockPool<> pool({.num_blocks = 20, .block_size = 4});
  AnyKVCachePool any(pool);
  obeys(any);
}

TEST_CASE("The laws notice a pool that ignores scopes and one that keeps failed blocks") {
  LeakyPool leaky({.num_blocks = 20, .block_size = 4});
  CHECK(check_kv_cache_pool_laws(leaky, 1).text[0] == '6');
  StalePool stale({.num_blocks = 20, .block_size = 4});
  CHECK(check_kv_cache_pool_laws(stale, 1).code == Errc::InternalError);
}
