// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

using namespace dynbatch;
using kv_test::admit;
using kv_test::Content;
using kv_test::count_from;

namespace {

TieredPool<> make_pool(std::int64_t blocks, std::int64_t host_blocks, std::int32_t min_load = 1) {
  TieredPool<> pool({.pool = {.num_blocks = blocks, .block_size = 4},
                     .num_host_blocks = host_blocks,
                     .min_load_blocks = min_load});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  return pool;
}

std::vector<BlockSwap> drain(TieredPool<>& pool, std::uint64_t plan) {
  std::vector<BlockSwap> swaps(400);
  swaps.resize(pool.drain_swaps(swaps, PlanId{plan}));
  return swaps;
}

/// A request comes, runs with `plan` and goes; the next plan's moves are returned.
std::vector<BlockSwap> pass(TieredPool<>& pool, const Content& content, std::uint64_t plan) {
  REQUIRE(admit(pool, Row{0}, content, content.length(), PlanId{plan}) >= 0);
  CHECK(drain(pool, plan).empty());  // what this plan computes is not there yet
  pool.settle(PlanId{plan});
  pool.release(Row{0});
  REQUIRE(pool.check().is_ok());
  return drain(pool, plan + 1);
}

}  // namespace

TEST_CASE("TieredPool names what it cannot work with") {
  const auto field = [](TieredPool<>::Config config, bool in_order = true) {
    TieredPool<> pool(config);
    return std::string(
        pool.attach({.max_rows = 1, .max_context_tokens = 64, .in_order = in_order}).field);
  };
  CHECK(field({}) == "num_host_blocks");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4, .min_load_blocks = 0}) ==
        "min_load_blocks");
  CHECK(field({.num_host_blocks = 4}) == "num_blocks");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4, .load_block_ns = -1}) ==
        "load_block_ns");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4, .min_touches = 0}) ==
        "min_touches");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4, .tier = {.token_ns = -1}}) ==
        "tier.token_ns");
  CHECK(field({.pool = {.num_blocks = 4, .prefix_caching = false}, .num_host_blocks = 4}) ==
        "pool");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4}, false) == "capabilities.in_order");
  CHECK(field({.pool = {.num_blocks = 4}, .num_host_blocks = 4}).empty());
}

TEST_CASE("Full blocks are written with the next plan and loaded when the device has lost them") {
  TieredPool<> pool = make_pool(5, 20);
  const Content a(count_from(1, 18), 16);
  const std::vector<BlockSwap> written = pass(pool, a, 1);
  REQUIRE(written.size() == 4);
  for (const BlockSwap& swap : written) {
    CHECK(swap.to_host);
  }
  CHECK(pool.stats().host_blocks == 4);
  const Content b(count_from(500, 18), 16);
  CHECK(pass(pool, b, 2).size() == 4);  // takes all the blocks of the first
  const PrefixMatch match = pool.match(a.view(), 17);
  CHECK(match.num_tokens == 16);
  CHECK(match.num_loaded == 16);
  CHECK(match.idle_blocks == 4);
  REQUIRE(pool.acquire(Row{1}, match));
  const std::vector<BlockSwap> loads = drain(pool, 4);
  REQUIRE(loads.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK_FALSE(loads[i].to_host);
    CHECK(loads[i].host_slot == written[i].host_slot);
    CHECK(loads[i].device == pool.table(0, Row{1})[i]);
  }
  CHECK(pool.stats().loaded_blocks == 4);
  REQUIRE(pool.extend(Row{1}, 18));
  pool.publish(Row{1}, a.view(), 18, PlanId{4});
  pool.settle(PlanId{4});
  CHECK(drain(pool, 5).empty());  // host memory has them already
  pool.release(Row{1});
  CHECK(pool.match(a.view(), 17).num_loaded == 0);  // the device has them again
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("Fewer blocks than the least are computed, not loaded") {
  TieredPool<> pool = make_pool(5, 20, 5);
  const Content a(count_from(1, 18), 16);
  pass(pool, a, 1);
  pass(pool, Content(count_from(500, 18), 16), 2);
  CHECK(pool.match(a.view(), 17).num_tokens == 0);
}

TEST_CASE("What a failed chunk was to write is neither moved nor found") {
  TieredPool<> pool = make_pool(8, 20);
  const Content a(count_from(1, 18), 16);
  REQUIRE(admit(pool, Row{0}, a, 18, PlanId{1}) == 0);
  pool.withdraw(Row{0}, 8);
  pool.settle(PlanId{1});
  CHECK(drain(pool, 2).size() == 2);
  pool.release(Row{0});
  pass(pool, Content(count_from(500, 32), 16), 2);
  CHECK(pool.match(a.view(), 17).num_tokens == 8);
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("Moves that an abandoned plan did not make are forgotten") {
  TieredPool<> pool = make_pool(5, 20);
  const Content a(count_from(1, 18), 16);
  std::vector<BlockSwap> written = pass(pool, a, 1);
  written.resize(2);  // of the plan that was abandoned
  pool.lose_swaps(written);
  pass(pool, Content(count_from(500, 18), 16), 2);
  CHECK(pool.match(a.view(), 17).num_tokens == 0);  // its first block is gone
  REQUIRE(pool.check().is_ok());
  CHECK(pool.clear());
  CHECK(pool.stats().host_blocks == 0);
}

TEST_CASE("Host memory that is full of what runs ends the writing, not the run") {
  TieredPool<> pool = make_pool(16, 2);
  const Content a(count_from(1, 30), 16);
  REQUIRE(admit(pool, Row{0}, a, 30, PlanId{1}) == 0);
  pool.settle(PlanId{1});
  CHECK(drain(pool, 2).empty());
  const Content b(count_from(100, 9), 16);
  REQUIRE(admit(pool, Row{1}, b, 9, PlanId{2}) == 0);
  pool.settle(PlanId{2});
  CHECK(drain(pool, 3).size() == 2);
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("A row that is given up takes its loads with it, and leaves its writes") {
  TieredPool<> pool = make_pool(5, 20);
  const Content a(count_from(1, 18), 16);
  pass(pool, a, 1);
  pass(pool, Content(count_from(500, 18), 16), 2);
  REQUIRE(pool.acquire(Row{1}, pool.match(a.view(), 17)));
  pool.release(Row{1});
  CHECK(drain(pool, 4).empty());
  const Content c(count_from(900, 9), 16);
  REQUIRE(admit(pool, Row{1}, c, 9, PlanId{5}) == 0);
  pool.settle(PlanId{5});
  pool.release(Row{1});
  REQUIRE(admit(pool, Row{1}, Content(count_from(700, 9), 16), 9, PlanId{6}) == 0);
  pool.withdraw(Row{1}, 0);  // nothing of the sequence before
  CHECK(drain(pool, 6).size() == 2);
}

TEST_CASE("Pins are dropped with everything else, whether there is a store or not") {
  std::byte slots[4]{};
  MemoryStore store({.num_blocks = 4});
  TieredPool<Pinning<BlockPool<>>, AnyKVTier>::Config config;
  config.pool.pool = {.num_blocks = 8, .block_size = 4};
  config.pool.share_permille = 500;
  config.num_host_blocks = 4;
  config.tier.memory = {slots,
                        [](void* memory, std::int32_t slot) noexcept {
                          return std::span(static_cast<std::byte*>(memory) + slot, 1);
                        },
                        1};
  TieredPool<Pinning<BlockPool<>>, AnyKVTier> stored(config, AnyKVTier(store));
  TieredPool<Pinning<BlockPool<>>> plain(
      {.pool = config.pool, .num_host_blocks = 4, .min_load_blocks = 1});
  const Content c(count_from(0, 8), 16);
  const auto run = [&](auto& pool) {
    REQUIRE(pool.attach({.max_rows = 2, .max_context_tokens = 16}));
    REQUIRE(admit(pool, Row{0}, c) == 0);
    pool.settle(PlanId{1});
    CHECK_FALSE(pool.clear());  // a row has blocks
    pool.release(Row{0});
    REQUIRE(pool.pin(c.view(), 8, TimeNs{1000}));
    CHECK(pool.stats().pinned_blocks == 2);
    CHECK(pool.clear());
    CHECK(pool.stats().referenced_blocks == 0);
    CHECK(pool.check());
  };
  run(plain);
  run(stored);
}

TEST_CASE("Blocks that are worth it only when used again are written then, parents first") {
  const std::int32_t least = GENERATE(2, 3);
  TieredPool<> pool(
      {.pool = {.num_blocks = 40, .block_size = 4}, .num_host_blocks = 20, .min_touches = least});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  const Content a(count_from(1, 26), 24);
  std::uint64_t plan = 1;
  const auto use = [&](const Content& content) {
    // As a scheduler does: nothing is published where no further block is full.
    const PrefixMatch match = pool.match(content.view(), content.length() - 1);
    REQUIRE(pool.acquire(Row{0}, match));
    REQUIRE(pool.extend(Row{0}, content.length()));
    if (match.num_blocks < content.length() / 4) {
      pool.publish(Row{0}, content.view(), content.length(), PlanId{plan});
    }
    const std::vector<BlockSwap> swaps = drain(pool, plan);  // with the plan that admits it
    for (std::size_t i = 0; i < swaps.size(); ++i) {
      CHECK(swaps[i].to_host);
      CHECK(swaps[i].device == pool.table(0, Row{0})[6 - swaps.size() + i]);
    }
    pool.settle(PlanId{plan});
    pool.release(Row{0});
    CHECK(drain(pool, ++plan).empty());
    REQUIRE(pool.check().is_ok());
    return swaps.size();
  };
  CHECK(use(a) == 0);  // computed: the first use
  for (std::int32_t n = 2; n < least; ++n) {
    CHECK(use(a) == 0);
  }
  CHECK(use(a) == 6);
  CHECK(pool.stats().host_blocks == 6);
  CHECK(use(a) == 0);  // host memory has them
  // Another prompt shares the first three blocks: they are there, its own three are new.
  std::vector<Token> tokens = count_from(1, 12);
  const std::vector<Token> rest = count_from(900, 14);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  const Content b(tokens, 24);
  for (std::int32_t n = 1; n < least; ++n) {
    CHECK(use(b) == 0);
  }
  CHECK(use(b) == 3);
  CHECK(pool.stats().host_blocks == 9);
}

TEST_CASE("Of what a plan in flight still computes, the write waits for the plan behind it") {
  TieredPool<> pool({.pool = {.num_blocks = 20, .block_size = 4},
                     .num_host_blocks = 20,
                     .min_load_blocks = 1,
                     .min_touches = 2});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  const Content a(count_from(1, 18), 16);
  REQUIRE(admit(pool, Row{0}, a, 18, PlanId{1}) == 0);
  REQUIRE(admit(pool, Row{1}, a, 18, PlanId{1}) == 16);
  CHECK(drain(pool, 1).empty());
  SECTION("it is computed") {
    CHECK(drain(pool, 2).size() == 4);
    pool.settle(PlanId{2});
  }
  SECTION("it fails, and nobody finds it") {
    pool.withdraw(Row{0}, 0);
    REQUIRE(pool.reads_withdrawn(Row{1}));
    pool.withdraw(Row{1}, 16);
    pool.settle(PlanId{1});
    pool.release(Row{0});
    pool.release(Row{1});
    CHECK(drain(pool, 2).empty());
    CHECK(pool.match(a.view(), 17).num_tokens == 0);
    CHECK(pool.stats().host_blocks == 0);
    REQUIRE(admit(pool, Row{0}, a, 18, PlanId{3}) == 0);
    CHECK(drain(pool, 4).empty());  // the first use of what it holds now
  }
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("What is computed anew in place is used for the first time") {
  TieredPool<> pool(
      {.pool = {.num_blocks = 20, .block_size = 4}, .num_host_blocks = 20, .min_touches = 3});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  const Content a(count_from(1, 18), 16);
  REQUIRE(admit(pool, Row{0}, a, 18, PlanId{1}) == 0);
  REQUIRE(admit(pool, Row{1}, a, 18, PlanId{1}) == 16);
  pool.withdraw(Row{0}, 0);
  pool.withdraw(Row{1}, 16);
  pool.settle(PlanId{1});
  pool.release(Row{1});
  pool.publish(Row{0}, a.view(), 18, PlanId{2});
  pool.settle(PlanId{2});
  REQUIRE(admit(pool, Row{1}, a, 18, PlanId{3}) == 16);
  CHECK(drain(pool, 3).empty());
  REQUIRE(admit(pool, Row{2}, a, 18, PlanId{4}) == 16);
  CHECK(drain(pool, 4).size() == 4);
}

TEST_CASE("A block that holds something else starts to count anew") {
  TieredPool<> pool(
      {.pool = {.num_blocks = 5, .block_size = 4}, .num_host_blocks = 20, .min_touches = 2});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  // Three prompts take turns in the same five blocks: nobody finds anything again.
  for (std::uint64_t i = 0; i < 9; ++i) {
    const Content content(count_from(static_cast<Token>(1000 * (i % 3)), 18), 16);
    CHECK(pass(pool, content, 2 * i + 1).empty());
  }
  CHECK(pool.stats().host_blocks == 0);
}

TEST_CASE("What is computed faster than loaded is computed") {
  // 0.1 ms a token: a block of 4 takes 0.4 ms.
  StepCost cost;
  cost.fixed_ns = 50'000'000;  // is there in any case
  cost.prefill_token_ps = 100'000'000;
  cost.version = 1;
  const auto loaded = [](std::int64_t load_block_ns, const StepCost& learned) {
    TieredPool<> pool({.pool = {.num_blocks = 5, .block_size = 4},
                       .num_host_blocks = 20,
                       .min_load_blocks = 1,
                       .load_block_ns = load_block_ns,
                       .tier = {.token_ns = 10'000}});
    REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
    pool.learn_cost(learned);
    const Content a(count_from(1, 18), 16);
    pass(pool, a, 1);
    pass(pool, Content(count_from(500, 18), 16), 2);
    return pool.match(a.view(), 17).num_loaded;
  };
  CHECK(loaded(0, {}) == 16);
  CHECK(loaded(39'999, {}) == 16);  // token_ns until the cost is known
  CHECK(loaded(40'000, {}) == 0);
  CHECK(loaded(399'999, cost) == 16);
  CHECK(loaded(400'000, cost) == 0);
  StepCost attention = cost;
  attention.attention_pair_fs = 1'000'000'000;  // 1 us a pair: 128 us more for 16 tokens
  CHECK(loaded(400'000, attention) == 16);
  CHECK(loaded(432'000, attention) == 0);
}

TEST_CASE("What is computed instead of loaded is not written again") {
  TieredPool<> pool({.pool = {.num_blocks = 5, .block_size = 4},
                     .num_host_blocks = 40,
                     .min_load_blocks = 1,
                     .load_block_ns = 1'000'000'000});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  std::size_t written = 0;
  for (std::uint64_t plan = 1; plan <= 8; ++plan) {
    const Content content(count_from(plan % 2 == 0 ? 1 : 500, 18), 16);
    REQUIRE(pool.match(content.view(), 17).num_tokens == 0);
    const bool acquires = plan % 4 < 2;  // a scheduler needn't, without a hit
    REQUIRE((!acquires || pool.acquire(Row{0}, pool.match(content.view(), 17))));
    REQUIRE(pool.extend(Row{0}, 18));
    pool.publish(Row{0}, content.view(), 18, PlanId{plan});
    pool.settle(PlanId{plan});
    pool.release(Row{0});
    REQUIRE(pool.check().is_ok());
    written += drain(pool, plan + 1).size();
  }
  CHECK(written == 8);
  CHECK(pool.stats().host_blocks == 8);
}

TEST_CASE("Without a time to compute a token, what host memory has is loaded") {
  TieredPool<> pool({.pool = {.num_blocks = 5, .block_size = 4},
                     .num_host_blocks = 40,
                     .min_load_blocks = 1,
                     .load_block_ns = 1'000'000'000,
                     .tier = {.token_ns = 0}});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  const Content a(count_from(1, 18), 16);
  pass(pool, a, 1);
  pass(pool, Content(count_from(500, 18), 16), 2);
  CHECK(pool.match(a.view(), 17).num_loaded == 16);
}
