// SPDX-License-Identifier: Apache-2.0
// Golden scenarios G01 to G08 of vLLM's pool: hits, block order and events. vLLM keeps block 0 as a
// placeholder, so its pool of 11 blocks is one of 10 here and ids are smaller by one.
#include <dynbatch/kv/block_pool.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace dynbatch;
using kv_test::admit;
using kv_test::Content;
using kv_test::count_from;
using kv_test::ids;
using kv_test::then;
using Ids = std::vector<std::int32_t>;

namespace {

BlockPool<> make_pool(std::int64_t num_blocks, std::int64_t max_kv_events = 0) {
  BlockPool<> pool(BlockPool<>::Config{.num_blocks = num_blocks, .max_kv_events = max_kv_events});
  REQUIRE(pool.attach({.max_rows = 8, .max_context_tokens = 1024}).is_ok());
  return pool;
}

std::vector<Token> common() {
  std::vector<Token> tokens;
  for (Token block = 0; block < 3; ++block) {
    tokens = then(tokens, 16, block);
  }
  return tokens;
}

// The order in which free blocks would be handed out, seen by taking all of them.
Ids free_order(BlockPool<>& pool) {
  const Row probe{7};
  REQUIRE(pool.extend(probe, pool.stats().available_blocks() * 16));
  return ids(pool, probe);
}

}  // namespace

TEST_CASE("G01 hits, sharing and eviction order") {
  auto pool = make_pool(10);
  const Content c0(then(common(), 7, 3), 16);
  const Content c1(then(common(), 5, 3), 16);
  const Content c2(then(common(), 6, 3), 16);
  REQUIRE(admit(pool, Row{0}, c0) == 0);
  CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3});
  REQUIRE(admit(pool, Row{1}, c1) == 48);
  CHECK(ids(pool, Row{1}) == Ids{0, 1, 2, 4});
  CHECK(pool.references(BlockId{0}) == 2);
  CHECK(pool.stats().available_blocks() == 5);
  pool.release(Row{0});
  pool.release(Row{1});
  SECTION("order after both have ended") {
    CHECK(free_order(pool) == Ids{4, 3, 5, 6, 7, 8, 9, 2, 1, 0});
  }
  SECTION("a third request, then a large one") {
    REQUIRE(admit(pool, Row{2}, c2, 53) == 48);
    CHECK(ids(pool, Row{2}) == Ids{0, 1, 2, 4});
    CHECK(pool.stats().available_blocks() == 6);
    pool.release(Row{2});
    const Content c3(count_from(1000, 160), 16);
    REQUIRE(admit(pool, Row{3}, c3) == 0);
    CHECK(ids(pool, Row{3}) == Ids{4, 3, 5, 6, 7, 8, 9, 2, 1, 0});
    CHECK(pool.stats().available_blocks() == 0);
    CHECK(pool.stats().evictions == 3);
  }
  CHECK(pool.check().is_ok());
}

TEST_CASE("G02 least recently used over two finished requests") {
  auto pool = make_pool(10);
  const Content c0(count_from(0, 87), 16);
  const Content c1(count_from(87, 48), 16);
  REQUIRE(admit(pool, Row{0}, c0) == 0);
  CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3, 4, 5});
  REQUIRE(admit(pool, Row{1}, c1) == 0);
  CHECK(ids(pool, Row{1}) == Ids{6, 7, 8});
  pool.release(Row{0});
  pool.release(Row{1});
  SECTION("order after both") { CHECK(free_order(pool) == Ids{5, 9, 4, 3, 2, 1, 0, 8, 7, 6}); }
  SECTION("a hit leaves the middle of the order") {
    const Content c2(count_from(0, 35), 16);
    REQUIRE(admit(pool, Row{2}, c2) == 32);
    CHECK(ids(pool, Row{2}) == Ids{0, 1, 5});
    CHECK(free_order(pool) == Ids{9, 4, 3, 2, 8, 7, 6});
  }
  CHECK(pool.check().is_ok());
}

TEST_CASE("G03 a block that is hit is never the victim") {
  auto pool = make_pool(2);
  const Content a(count_from(0, 16), 16);
  const Content b(count_from(16, 16), 16);
  const Content c(count_from(0, 32), 16);
  REQUIRE(admit(pool, Row{0}, a) == 0);
  REQUIRE(admit(pool, Row{1}, b) == 0);
  pool.release(Row{0});
  pool.release(Row{1});
  REQUIRE(admit(pool, Row{2}, c) == 16);
  CHECK(ids(pool, Row{2}) == Ids{0, 1});
  CHECK(pool.check().is_ok());
}

TEST_CASE("G04 the whole prompt is cached") {
  const Content c(common(), 16);
  SECTION("the same prompt computes its last block again") {
    auto pool = make_pool(10);
    REQUIRE(admit(pool, Row{0}, c) == 0);
    pool.release(Row{0});
    REQUIRE(admit(pool, Row{0}, c) == 32);
    CHECK(ids(pool, Row{0}) == Ids{0, 1, 3});
    CHECK(pool.check().is_ok());
  }
  SECTION("one more token reuses all of it") {
    auto pool = make_pool(10);
    REQUIRE(admit(pool, Row{0}, c) == 0);
    pool.release(Row{0});
    const Content longer(then(common(), 1, 9), 16);
    REQUIRE(admit(pool, Row{0}, longer) == 48);
    CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3});
  }
}

TEST_CASE("G05 growth while decoding") {
  auto pool = make_pool(10);
  const Content all(count_from(0, 78), 16);
  const auto view = all.view();
  REQUIRE(pool.acquire(Row{0}, pool.match(view, 54)));
  REQUIRE(pool.extend(Row{0}, 55));
  pool.publish(Row{0}, view, 55, kNoPlan);
  CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3});
  REQUIRE(pool.extend(Row{0}, 59));
  pool.publish(Row{0}, view, 59, kNoPlan);
  CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3});
  CHECK(pool.match(view, 78).num_blocks == 3);
  REQUIRE(pool.extend(Row{0}, 78));
  pool.publish(Row{0}, view, 78, kNoPlan);
  CHECK(ids(pool, Row{0}) == Ids{0, 1, 2, 3, 4});
  CHECK(pool.match(view, 78).num_blocks == 4);
}

TEST_CASE("G06 a salt separates") {
  auto pool = make_pool(10);
  CacheScope s1{};
  s1.has_tenant_salt = true;
  s1.tenant_salt = 1;
  CacheScope s2 = s1;
  s2.tenant_salt = 2;
  const auto tokens = then(common(), 7, 3);
  REQUIRE(admit(pool, Row{0}, Content(tokens, 16, s1)) == 0);
  pool.release(Row{0});
  CHECK(pool.match(Content(tokens, 16, s1).view(), 54).num_tokens == 48);
  CHECK(pool.match(Content(tokens, 16, s2).view(), 54).num_tokens == 0);
  CHECK(pool.match(Content(tokens, 16).view(), 54).num_tokens == 0);
}

TEST_CASE("G07 reset of the cache") {
  auto pool = make_pool(10);
  const Content c(common(), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  const PoolStats before = pool.stats();
  CHECK_FALSE(pool.clear());
  CHECK(pool.stats().free_blocks == before.free_blocks);
  CHECK(pool.match(c.view(), 48).num_tokens == 48);
  pool.release(Row{0});
  CHECK(pool.clear());
  CHECK(admit(pool, Row{0}, Content(then(common(), 1, 4), 16)) == 0);
  CHECK(pool.check().is_ok());
}

TEST_CASE("G08 events") {
  auto pool = make_pool(3, 64);
  const Content c(common(), 16);
  KvEvent e[16];
  REQUIRE(admit(pool, Row{0}, c) == 0);
  REQUIRE(pool.drain_events(e) == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(e[i].kind == KvEventKind::Stored);
    CHECK(e[i].sequence == i + 1);
    CHECK(e[i].parent == (i == 0 ? PrefixId{} : e[i - 1].prefix));
  }
  const PrefixId tail = e[2].prefix;
  pool.release(Row{0});
  CHECK(pool.drain_events(e) == 0);

  // The same content again, without a look-up.
  REQUIRE(pool.extend(Row{0}, 48));
  pool.publish(Row{0}, c.view(), 48, kNoPlan);
  REQUIRE(pool.drain_events(e) == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(e[i].kind == (i < 3 ? KvEventKind::Removed : KvEventKind::Stored));
    CHECK(e[i].sequence == i + 4);
  }
  CHECK(e[0].prefix == tail);
  CHECK(e[0].content_hash == e[5].content_hash);
  CHECK(e[3].prefix.value > tail.value);
  pool.release(Row{0});
  CHECK(pool.clear());
  REQUIRE(pool.drain_events(e) == 1);
  CHECK(e[0].kind == KvEventKind::Cleared);
  CHECK(e[0].sequence == 10);
}
