// SPDX-License-Identifier: Apache-2.0
// More than two million random operations on BlockPool, ten times as many with DYNBATCH_LONG,
// against a naive model in standard containers that predicts every table, counter and hit, block by
// block.
#include "block_pool_run.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

struct ConstantHash {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 42; }
};

std::int64_t amount(std::int64_t usual) {
  return std::getenv("DYNBATCH_LONG") != nullptr ? 10 * usual : usual;
}

template <class Pool>
PoolRunCounts run(const char* name, std::uint64_t seed, std::int64_t num_operations,
                  const PoolShape& shape = {}) {
  INFO(name << ", seed " << seed << (shape.partial_copy ? ", copies" : ""));
  SeededChoices choices(seed);
  const PoolRunCounts c =
      BlockPoolRun<Pool, SeededChoices>(choices, shape, seed).run(num_operations);
  // The run means something only if these were common.
  const std::int64_t n = c.operations;
  CHECK(n == num_operations);
  CHECK(c.hits > n / 50);
  CHECK((n < 10000 || c.media_hits > n / 2000));
  CHECK((!shape.partial_copy || c.copies > n / 1000));
  CHECK(c.published > n / 50);
  CHECK(c.withdrawn > n / 500);
  CHECK(c.truncated > n / 200);
  CHECK(c.forks > n / 500);
  CHECK(c.refused_forks > n / 1000);
  CHECK(c.cleared > n / 4000);
  CHECK(c.resized > n / 500);
  CHECK(c.evictions > n / 50);
  return c;
}

struct Total {
  std::int64_t operations = 0;
  std::int64_t hits = 0;
  std::int64_t evictions = 0;

  void add(const PoolRunCounts& c) {
    operations += c.operations;
    hits += c.hits;
    evictions += c.evictions;
  }
};

// What only a pool without Pinning does.
void check_plain(const PoolRunCounts& c) {
  CHECK(c.discarded > c.operations / 500);
  CHECK(c.forgotten > c.operations / 1000);
  CHECK(c.held > c.operations / 5000);
}

template <class Eviction>
void run_order(Total& total, const char* name) {
  using Pool = BlockPool<Eviction>;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const PoolRunCounts plain = run<Pool>(name, seed, amount(48000));
    check_plain(plain);
    total.add(plain);
    for (const std::int32_t least : {1, 3}) {
      const PoolRunCounts copying = run<Pool>(name, seed + 10, amount(24000),
                                              {.partial_copy = true, .min_partial_tokens = least});
      check_plain(copying);
      total.add(copying);
    }
    if constexpr (std::is_same_v<Eviction, PriorityDuration>) {
      CHECK(plain.retained > plain.operations / 200);
    }
  }
}

}  // namespace

TEST_CASE("BlockPool does what a naive model does, under every eviction order") {
  Total total;
  run_order<Lru>(total, "Lru");
  run_order<Slru>(total, "Slru");
  run_order<Lfu>(total, "Lfu");
  run_order<CostAware>(total, "CostAware");
  run_order<AdaptiveLru>(total, "AdaptiveLru");
  run_order<PriorityDuration>(total, "PriorityDuration");
  run_order<Ttl<Lru>>(total, "Ttl<Lru>");
  run_order<Ttl<Slru>>(total, "Ttl<Slru>");
  run_order<Belady>(total, "Belady");
  CHECK(total.operations >= amount(2'500'000));
  std::printf("BlockPool: %lld operations, %lld blocks found, %lld evicted\n",
              static_cast<long long>(total.operations), static_cast<long long>(total.hits),
              static_cast<long long>(total.evictions));
}

TEST_CASE("BlockPool does so with long prompts") {
  const PoolShape shape{.num_blocks = 500,
                        .max_tokens = 1000,
                        .blocks_between_branches = 100,
                        .page_tokens = 256,
                        .blocks_a_digest = 1};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    run<BlockPool<Lru>>("Lru", seed, amount(5000), shape);
    run<BlockPool<AdaptiveLru>>("AdaptiveLru", seed, amount(5000), shape);
  }
}

TEST_CASE("BlockPool does so with a constant hash") {
  run<BlockPool<Lru, ConstantHash>>("Lru", 77, amount(20000));
}

TEMPLATE_TEST_CASE("BlockPool does so below Pinning", "", Lru, PriorityDuration) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const bool copies : {false, true}) {
      const PoolRunCounts c = run<Pinning<BlockPool<TestType>>>("pinned", seed, amount(30000),
                                                                {.partial_copy = copies});
      CHECK(c.pins > c.operations / 500);
      CHECK(c.refused_pins > c.operations / 500);
    }
  }
}
