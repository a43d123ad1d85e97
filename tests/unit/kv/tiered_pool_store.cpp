// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

#include "store_bench.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

using namespace dynbatch;
using kv_test::Content;
using kv_test::count_from;
using kv_test::ScriptTier;
using kv_test::StoreBench;
using kv_test::StoredPool;

namespace {

Content text(Token first, std::int64_t tokens = 18, CacheScope scope = {}) {
  Content content(count_from(first, tokens), 16, scope);
  content.with_keys(StoreBench::kBlock);
  return content;
}

/// Fetches always, and soon gives up.
TierConfig eager() {
  TierConfig config;
  config.token_ns = 0;
  config.min_gain_blocks = 1;
  return config;
}

void require_clean(const StoreBench& bench) {
  for (const std::string& error : bench.errors) {
    UNSCOPED_INFO(error);
  }
  REQUIRE(bench.errors.empty());
}

/// Another engine has stored the text; its operation is over.
void store_elsewhere(ScriptTier& tier, const Content& text) {
  StoreBench other(tier, {}, eager());
  other.run_and_flush(text);
  other.advance();
  tier.finish(tier.ticket_of(TierVerb::Store), 99);
  other.advance();
}

/// Others use up device and host memory.
void crowd_out(StoreBench& bench, Token first, int times = 3) {
  for (int i = 0; i < times; ++i) {
    bench.run_and_flush(text(first + 1000 * i, 18));
  }
}

}  // namespace

TEST_CASE("TierConfig names what it cannot work with") {
  const auto field = [](const std::function<void(TierConfig&)>& change) {
    TierConfig config;
    config.memory.bytes = [](void*, std::int32_t) noexcept { return std::span<std::byte>(); };
    config.memory.slot_bytes = 8;
    change(config);
    return std::string(config.validate().field);
  };
  CHECK(field([](TierConfig&) {}).empty());
  CHECK(field([](TierConfig& c) { c.memory.bytes = nullptr; }) == "tier.memory");
  CHECK(field([](TierConfig& c) { c.load_deadline = {0}; }) == "tier.load_deadline");
  CHECK(field([](TierConfig& c) { c.max_loads = 65; }) == "tier.max_loads");
  CHECK(field([](TierConfig& c) { c.max_stores = -1; }) == "tier.max_stores");
  CHECK(field([](TierConfig& c) { c.max_operation_blocks = 0; }) == "tier.max_operation_blocks");
  CHECK(field([](TierConfig& c) { c.min_gain_blocks = 0; }) == "tier.min_gain_blocks");
  CHECK(field([](TierConfig& c) { c.token_ns = -1; }) == "tier.token_ns");
  CHECK(field([](TierConfig& c) { c.store_deadline = {-1}; }) == "tier.store_deadline");
  CHECK(field([](TierConfig& c) { c.max_blocks_in_flight = 0; }) == "tier.max_blocks_in_flight");
  CHECK(field([](TierConfig& c) { c.min_touches = 0; }) == "tier.min_touches");
  CHECK(field([](TierConfig& c) { c.latency = {-1}; }) == "tier.latency");
  CHECK(field([](TierConfig& c) { c.bytes_per_second = 0; }) == "tier.bytes_per_second");
  CHECK(field([](TierConfig& c) { c.breaker.max_failures = 0; }) == "max_failures");
  StoredPool::Config pool{.pool = {.num_blocks = 4}, .num_host_blocks = 4};
  CHECK(std::string(pool.validate().field) == "tier.memory");  // and without a tier it is not read
  CHECK(TieredPool<>::Config{.pool = {.num_blocks = 4}, .num_host_blocks = 4}.validate().is_ok());
}

TEST_CASE("What reached host memory is stored, and another engine loads it") {
  MemoryStore store({.num_blocks = 64});
  const Content a = text(1);
  {
    StoreBench first(store, {}, eager());
    REQUIRE(first.status.is_ok());
    CHECK(first.run(a) == 0);
    first.advance();
    CHECK(first.pool().tier_stats().stores == 0);  // computed, and not in host memory yet
    first.flush();
    first.advance();  // begins
    CHECK(first.pool().tier_stats().lent_blocks == 4);
    first.advance();
    CHECK(first.pool().tier_stats().stored_blocks == 4);
    CHECK(first.pool().tier_stats().stores == 1);  // one operation, since it is one prefix
    CHECK(first.pool().tier_stats().lent_blocks == 0);
    first.run_and_flush(a);
    first.advance();
    CHECK(first.pool().tier_stats().stores == 1);  // it is known to be there
    require_clean(first);
  }
  StoreBench second(store, {}, eager());
  LoadWait wait;
  REQUIRE(second.asks(a, wait));
  CHECK(wait.load == 0);
  CHECK(second.pool().next_load_end() == wait.until);
  CHECK(second.pool().take_ended_loads() == 0);
  second.advance();  // the answer; the fetch begins
  CHECK(second.pool().take_ended_loads() == 0);
  second.advance();
  CHECK(second.pool().take_ended_loads() == 1);
  CHECK_FALSE(second.asks(a, wait));
  CHECK(second.run(a) == 16);
  CHECK(second.pool().stats().loaded_blocks == 4);
  CHECK(second.pool().tier_stats().fetched_blocks == 4);
  CHECK(second.pool().tier_stats().queries == 1);
  second.flush();
  second.advance();
  CHECK(second.pool().tier_stats().stores == 0);  // it came from there
  require_clean(second);
}

TEST_CASE("R21, a change of any one field is a miss, and counted") {
  MemoryStore store({.num_blocks = 64});
  const KVIdentity identity{.model = "modelA",
                            .revision = "rev1",
                            .format = "fp16",
                            .layout = "NHD",
                            .shard = "1 shard",
                            .format_version = 1};
  CacheScope tenant;
  tenant.has_tenant_salt = true;
  tenant.tenant_salt = 1;
  const auto hits = [&](const KVIdentity& id, const CacheScope& scope) {
    TierConfig config = eager();
    config.identity = id;
    StoreBench bench(store, {}, config);
    REQUIRE(bench.status.is_ok());
    const Content content = text(1, 18, scope);
    LoadWait wait;
    REQUIRE(bench.asks(content, wait));
    bench.advance();
    bench.advance();
    const std::int64_t found = bench.run(content);
    require_clean(bench);
    return found / StoreBench::kBlock;
  };
  {
    TierConfig config = eager();
    config.identity = identity;
    StoreBench writer(store, {}, config);
    writer.run_and_flush(text(1, 18, tenant));
    writer.advance();
    writer.advance();
    REQUIRE(writer.pool().tier_stats().stored_blocks == 4);
  }
  const auto is_mismatch = [&](const std::function<void(KVIdentity&, CacheScope&)>& change) {
    KVIdentity id = identity;
    CacheScope scope = tenant;
    change(id, scope);
    const std::uint64_t before = store.stats().mismatches;
    const std::int64_t found = hits(id, scope);
    return found == 0 && store.stats().mismatches == before + 1;
  };
  CHECK(hits(identity, tenant) == 4);
  CHECK(store.stats().mismatches == 0);
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.model = "modelB"; }));
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.revision = "rev2"; }));
  CHECK(is_mismatch([](KVIdentity&, CacheScope& s) { s.model_epoch = 2; }));
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.format = "fp8"; }));
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.layout = "HND"; }));
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.shard = "2 shards"; }));
  CHECK(is_mismatch([](KVIdentity& i, CacheScope&) { i.format_version = 2; }));
  CHECK(is_mismatch([](KVIdentity&, CacheScope& s) { s.tenant_salt = 2; }));
  CHECK(is_mismatch([](KVIdentity&, CacheScope& s) { s.has_tenant_salt = false; }));
  CHECK(is_mismatch([](KVIdentity&, CacheScope& s) { s.has_adapter = true; }));
  CHECK(hits(identity, tenant) == 4);
  // Another block size: at the key, since a block of another size has another slot size as well.
  const Content content = text(1, 40, tenant);
  KeyChain four;
  KeyChain eight;
  four.start(identity, 4, 32);
  eight.start(identity, 8, 32);
  CHECK_FALSE(four.root(content.view()).digest == eight.root(content.view()).digest);
  CHECK(four.root(content.view()).family == eight.root(content.view()).family);
}

TEST_CASE("Requests that share what is being loaded share one load") {
  ScriptTier tier;
  StoreBench bench(tier, {}, eager());
  Content a(kv_test::then(count_from(1, 16), 6, 70), 16);
  Content b(kv_test::then(count_from(1, 16), 6, 80), 16);
  a.with_keys(4);
  b.with_keys(4);
  bench.run_and_flush(a);
  bench.advance();
  tier.finish(tier.ticket_of(TierVerb::Store), 99);
  bench.advance();
  StoreBench other(tier, {}, eager());
  LoadWait wait_a;
  LoadWait wait_b;
  REQUIRE(other.asks(b, wait_b));
  other.advance(milliseconds(0));
  REQUIRE(other.asks(a, wait_a));
  CHECK(wait_a.load == wait_b.load);
  CHECK(tier.num_begun(TierVerb::Query) == 1);
  CHECK(tier.num_begun(TierVerb::Fetch) == 1);
  CHECK(other.pool().tier_stats().shared_loads == 1);
  tier.finish(tier.ticket_of(TierVerb::Fetch), 99);
  other.advance();
  CHECK(other.run(a) == 16);
  CHECK(other.run(b) == 16);
  require_clean(other);
}

TEST_CASE("Part of a load is its longest prefix") {
  for (std::int64_t good = 0; good <= 4; ++good) {
    ScriptTier tier;
    const Content a = text(1);
    store_elsewhere(tier, a);
    StoreBench bench(tier, {}, eager());
    LoadWait wait;
    REQUIRE(bench.asks(a, wait));
    bench.advance();
    tier.finish(tier.ticket_of(TierVerb::Fetch), good);
    bench.advance();
    CHECK(bench.pool().take_ended_loads() == 1);
    CHECK_FALSE(bench.asks(a, wait));  // less than was asked for: there is no more
    CHECK(bench.run(a) == good * 4);
    require_clean(bench);
  }
}

TEST_CASE("A prefix longer than an operation comes in several") {
  MemoryStore store({.num_blocks = 64});
  {
    StoreBench first(store, {.device = 20, .host = 20}, eager());
    first.run_and_flush(text(1, 42));
    first.advance();
    first.advance();
    REQUIRE(first.pool().tier_stats().stored_blocks == 10);
  }
  TierConfig config = eager();
  config.max_operation_blocks = 4;
  StoreBench bench(store, {.device = 20, .host = 20}, config);
  LoadWait wait;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(bench.asks(text(1, 42), wait));
    bench.advance();
    bench.advance();
  }
  CHECK_FALSE(bench.asks(text(1, 42), wait));
  CHECK(bench.run(text(1, 42)) == 40);
  CHECK(bench.pool().tier_stats().queries == 3);
  require_clean(bench);
}

TEST_CASE("A miss is no reason to ask again") {
  ScriptTier tier;
  StoreBench bench(tier, {}, eager());
  const Content a = text(1);
  LoadWait wait;
  REQUIRE(bench.asks(a, wait));
  bench.advance();
  CHECK(bench.pool().take_ended_loads() == 1);
  for (int i = 0; i < 100; ++i) {
    CHECK_FALSE(bench.asks(a, wait));
  }
  CHECK(tier.num_begun(TierVerb::Query) == 1);
  CHECK(bench.pool().tier_stats().misses == 1);
  require_clean(bench);
}

TEST_CASE("What is computed faster than fetched is computed") {
  ScriptTier tier;
  const Content a = text(1);
  store_elsewhere(tier, a);
  TierConfig config = eager();
  config.token_ns = 1'000'000;  // 16 ms for 16 tokens
  StoreBench bench(tier, {.device = 5, .host = 5}, config);
  const auto is_fetched = [&](DurationNs takes) {
    const int before = tier.num_begun(TierVerb::Fetch);
    crowd_out(bench, 5000 + static_cast<Token>(bench.now.ns / 1000));
    while (tier.ticket_of(TierVerb::Store) != 0) {
      tier.finish(tier.ticket_of(TierVerb::Store), 0);
      bench.advance({0});
    }
    LoadWait wait;
    REQUIRE(bench.asks(a, wait));
    bench.advance(microseconds(10));
    if (tier.num_begun(TierVerb::Fetch) == before) {
      return false;
    }
    bench.advance(takes);
    tier.finish(tier.ticket_of(TierVerb::Fetch), 99);
    bench.advance({0});
    CHECK(bench.run(a) == 16);
    return true;
  };
  CHECK(is_fetched(milliseconds(2)));
  CHECK(is_fetched(milliseconds(150)));  // learns that it is slow
  CHECK_FALSE(is_fetched(milliseconds(1)));
  CHECK(bench.pool().tier_stats().declined == 1);
  // The sizer's cost counts once it is known.
  bench.pool().learn_cost({.prefill_token_ps = 100'000'000'000, .version = 1});
  CHECK(is_fetched(milliseconds(1)));
  bench.pool().learn_cost({.prefill_token_ps = 1'000, .version = 2});
  CHECK_FALSE(is_fetched(milliseconds(1)));
  bench.advance(seconds(11));  // what was measured then says nothing now
  CHECK(is_fetched(milliseconds(1)));
  require_clean(bench);
}

TEST_CASE("R22, a load that never ends is over at its deadline, and its slots stay lent") {
  ScriptTier tier;
  const Content a = text(1);
  store_elsewhere(tier, a);
  StoreBench bench(tier, {.device = 12, .host = 6}, eager());
  LoadWait wait;
  REQUIRE(bench.asks(a, wait));
  bench.advance();
  const std::uint64_t ticket = tier.ticket_of(TierVerb::Fetch);
  REQUIRE(ticket != 0);
  for (const std::int32_t slot : tier.pending[0].slots) {
    bench.lent.insert(slot);
  }
  bench.advance(milliseconds(198));
  CHECK(bench.pool().take_ended_loads() == 0);
  bench.advance(milliseconds(1));
  CHECK(bench.pool().take_ended_loads() == 1);
  CHECK(tier.pending[0].is_cancelled);
  CHECK_FALSE(bench.asks(a, wait));
  CHECK(bench.run(a) == 0);  // computed
  CHECK(bench.pool().tier_stats().lent_blocks == 4);
  CHECK(bench.pool().tier_stats().timeouts == 1);
  for (int i = 0; i < 20; ++i) {
    bench.run_and_flush(text(1000 * (i + 1)));
    bench.advance();
  }
  CHECK_FALSE(bench.pool().clear());  // the tier may write there yet
  tier.finish(ticket, 99);
  bench.lent.clear();
  while (!tier.pending.empty()) {
    tier.finish(tier.pending[0].ticket, 99);
  }
  bench.advance();
  CHECK(bench.pool().tier_stats().lent_blocks == 0);
  CHECK(bench.pool().clear());
  CHECK(bench.pool().stats().host_blocks == 0);
  require_clean(bench);
}

TEST_CASE("A query that never ends holds nothing") {
  ScriptTier tier;
  tier.answers_queries = false;
  StoreBench bench(tier, {}, eager());
  LoadWait wait;
  REQUIRE(bench.asks(text(1), wait));
  bench.advance(milliseconds(200));
  CHECK(bench.pool().take_ended_loads() == 1);
  CHECK(bench.pool().tier_stats().lent_blocks == 0);
  tier.finish(tier.pending[0].ticket, 0);
  bench.advance();
  CHECK(bench.pool().tier_stats().nonsense == 1);  // nobody waits for that any more
  CHECK(bench.pool().clear());
  require_clean(bench);
}

TEST_CASE("A dead store is soon asked no more, and asked again later") {
  ScriptTier tier;
  tier.answers_queries = false;
  TierConfig config = eager();
  config.max_stores = 0;
  StoreBench bench(tier, {}, config);
  int asked = 0;
  for (Token i = 0; i < 40; ++i) {
    LoadWait wait;
    asked += bench.asks(text(1 + 100 * i), wait) ? 1 : 0;
    bench.advance(milliseconds(210));
    bench.advance({0});
  }
  // Five failures open it; then a trial after 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s.
  CHECK(asked >= 8);
  CHECK(asked <= 12);
  CHECK(bench.pool().tier_state() == CircuitBreaker::State::Open);
  tier.answers_queries = true;
  bench.advance(seconds(31));
  LoadWait wait;
  REQUIRE(bench.asks(text(1), wait));
  LoadWait second;
  CHECK_FALSE(bench.asks(text(7000), second));  // one trial at a time
  bench.advance();
  CHECK(bench.pool().tier_state() == CircuitBreaker::State::Closed);
  CHECK(bench.asks(text(7000), second));
  require_clean(bench);
}

TEST_CASE("A store that knows everything and delivers nothing is soon asked no more") {
  MemoryStore store({.num_blocks = 400});
  {
    StoreBench first(store, {}, eager());
    for (Token i = 0; i < 40; ++i) {
      first.run_and_flush(text(1 + 100 * i));
      first.advance();
      first.advance();
    }
    REQUIRE(first.pool().tier_stats().stored_blocks == 160);
  }
  store.faults().fetch_fails = 1000;
  TierConfig config = eager();
  config.max_stores = 0;
  StoreBench bench(store, {}, config);
  int asked = 0;
  for (Token i = 0; i < 40; ++i) {
    LoadWait wait;
    asked += bench.asks(text(1 + 100 * i), wait) ? 1 : 0;
    for (int k = 0; k < 21; ++k) {
      bench.advance(milliseconds(10));
    }
  }
  CHECK(bench.pool().tier_stats().fetched_blocks == 0);
  // As a dead one: a query that is answered is no sign that data come.
  CHECK(asked >= 8);
  CHECK(asked <= 12);
  CHECK(bench.pool().tier_state() == CircuitBreaker::State::Open);
  store.faults().fetch_fails = 0;
  bench.advance(seconds(31));
  LoadWait wait;
  REQUIRE(bench.asks(text(1), wait));
  LoadWait second;
  CHECK_FALSE(bench.asks(text(101), second));
  bench.advance();
  CHECK_FALSE(bench.asks(text(101), second));  // the fetch is the trial
  bench.advance();
  CHECK(bench.pool().tier_state() == CircuitBreaker::State::Closed);
  CHECK(bench.run(text(1)) == 16);
  require_clean(bench);
}

TEST_CASE("Nonsense from a tier is counted and believed nowhere") {
  ScriptTier tier;
  const Content a = text(1);
  store_elsewhere(tier, a);
  StoreBench bench(tier, {}, eager());
  LoadWait wait;
  REQUIRE(bench.asks(a, wait));
  bench.advance();
  const std::uint64_t ticket = tier.ticket_of(TierVerb::Fetch);
  tier.ended.push_back({ticket + 1000, 4, TierResult::Done});  // never begun
  tier.ended.push_back({0, 4, TierResult::Done});
  bench.advance();
  CHECK(bench.pool().tier_stats().nonsense == 2);
  tier.ended.push_back({ticket, 5, TierResult::Done});  // more than was asked for
  tier.ended.push_back({ticket, 4, TierResult::Done});  // twice
  bench.advance();
  CHECK(bench.pool().tier_stats().nonsense == 4);
  CHECK(bench.run(a) == 0);
  for (int i = 0; i < 1000; ++i) {
    tier.ended.push_back({static_cast<std::uint64_t>(i), -1, TierResult::Corrupt});
  }
  LoadWait other;
  REQUIRE(bench.asks(text(5000), other));
  bench.advance();  // comes back, however much there is
  require_clean(bench);
}

TEST_CASE("A block is stored after its parent, or not at all") {
  ScriptTier tier;
  TierConfig config = eager();
  config.max_operation_blocks = 2;
  StoreBench bench(tier, {}, config);
  const Content a = text(1);
  bench.run_and_flush(a);
  bench.advance();
  REQUIRE(tier.pending.size() == 1);  // the second half waits for the first
  CHECK(tier.pending[0].keys.size() == 2);
  tier.finish(tier.pending[0].ticket, 1);  // fails half-way
  bench.advance();
  CHECK(tier.pending.empty());
  CHECK(bench.pool().tier_stats().stored_blocks == 1);
  bench.run_and_flush(a);  // found again: worth another try
  bench.advance();
  REQUIRE(tier.pending.size() == 1);
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  REQUIRE(tier.pending.size() == 1);
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  CHECK(tier.blocks.size() == 4);
  require_clean(bench);
}

TEST_CASE("Where that was asked for, blocks are stored when they are found again") {
  ScriptTier tier;
  TierConfig config = eager();
  config.min_touches = 2;
  StoreBench bench(tier, {}, config);
  const Content a = text(1);
  bench.run_and_flush(a);
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 0);
  bench.run_and_flush(a);
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 1);
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  require_clean(bench);
}

TEST_CASE("A write to host memory that was abandoned is not stored") {
  const bool are_made = GENERATE(false, true);
  ScriptTier tier;
  StoreBench bench(tier, {}, eager());
  const Content a = text(1);
  CHECK(bench.run(a) == 0);
  bench.flush_and_abandon(are_made);
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 0);
  bench.flush();
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 0);
  require_clean(bench);
}

TEST_CASE("A store that takes no more is offered the same blocks later") {
  ScriptTier tier;
  tier.refuses = true;
  StoreBench bench(tier, {}, eager());
  const Content a = text(1);
  bench.run_and_flush(a);
  for (int i = 0; i < 5; ++i) {
    bench.advance();
  }
  CHECK(bench.pool().tier_stats().refusals == 5);
  CHECK(bench.pool().tier_stats().lent_blocks == 0);
  LoadWait wait;
  CHECK_FALSE(bench.asks(text(900), wait));  // a refusal is a miss: nobody waits for it
  tier.refuses = false;
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 6);
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  CHECK(tier.blocks.size() == 4);
  require_clean(bench);
}

TEST_CASE("A match outlives a query that the store refused") {
  ScriptTier tier;
  StoreBench bench(tier, {.device = 8, .host = 20}, eager());
  bench.run_and_flush(text(1));
  bench.run_and_flush(text(1000));
  bench.run_and_flush(text(2000));  // the device has lost the first one
  tier.refuses = true;
  const Content longer = text(1, 30);
  const auto view = longer.view();
  const PrefixMatch match = bench.pool().match(view, longer.length() - 1);
  REQUIRE(match.num_loaded == 16);
  LoadWait wait;
  CHECK_FALSE(bench.pool().awaits_load(view, longer.length() - 1, wait));
  REQUIRE(tier.num_begun(TierVerb::Query) == 1);
  CHECK(bench.pool().acquire(Row{0}, match));
  CHECK(bench.pool().stats().loaded_blocks == 4);
  bench.pool().release(Row{0});
  bench.check();
  require_clean(bench);
}

TEST_CASE("Host memory without room, and slots with moves under way, are no place for a fetch") {
  ScriptTier tier;
  const Content a = text(1);
  store_elsewhere(tier, a);
  TierConfig config = eager();
  config.max_stores = 0;
  StoreBench bench(tier, {.device = 12, .host = 4}, config);
  const Content b = text(3000);
  CHECK(bench.run(b) == 0);  // its writes are not even told yet
  LoadWait wait;
  REQUIRE(bench.asks(a, wait));
  bench.advance();
  CHECK(bench.pool().tier_stats().declined == 1);
  CHECK(tier.num_begun(TierVerb::Fetch) == 0);
  bench.flush();
  LoadWait again;
  REQUIRE(bench.asks(a, again));
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Fetch) == 1);
  bench.run_and_flush(text(5000));  // finds no host slot: all are lent
  CHECK(bench.pool().stats().host_blocks == 4);
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  CHECK(bench.run(a) == 16);
  require_clean(bench);
}

TEST_CASE("What arrived for somebody who left makes room again") {
  ScriptTier tier;
  const Content a = text(1);
  store_elsewhere(tier, a);
  StoreBench bench(tier, {}, eager());
  LoadWait wait;
  REQUIRE(bench.asks(a, wait));
  bench.advance();
  tier.finish(tier.pending[0].ticket, 99);
  bench.advance();
  CHECK(bench.pool().stats().host_blocks == 4);
  bench.advance(milliseconds(200));
  CHECK(bench.pool().stats().host_blocks == 0);
  CHECK(bench.run(a) == 0);
  require_clean(bench);
}

TEST_CASE("A content without room for keys never meets the store") {
  ScriptTier tier;
  StoreBench bench(tier, {}, eager());
  const Content a(count_from(1, 18), 16);
  LoadWait wait;
  CHECK_FALSE(bench.asks(a, wait));
  bench.run_and_flush(a);
  bench.advance();
  CHECK(tier.num_begun(TierVerb::Store) == 0);
  require_clean(bench);
}
