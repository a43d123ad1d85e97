// SPDX-License-Identifier: Apache-2.0
// Required behaviours of the pool: the scenarios of R11, R13, R15, R16, R17 and R18.
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/block_pool.hpp>

#include "content.hpp"

#include <algorithm>
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

namespace {

template <class Pool = BlockPool<>>
Pool make_pool(std::int64_t num_blocks, std::int32_t block_size) {
  Pool pool(typename Pool::Config{.num_blocks = num_blocks, .block_size = block_size});
  REQUIRE(pool.attach({.max_rows = 8, .max_context_tokens = 4096}).is_ok());
  return pool;
}

struct Always42 {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 42; }
};

}  // namespace

TEST_CASE("R11 tables end with a block that holds something") {
  auto pool = make_pool(10, 4);
  REQUIRE(pool.extend(Row{0}, 8));
  CHECK(pool.table(0, Row{0}).size() == 2);
  REQUIRE(pool.extend(Row{0}, 9));
  CHECK(pool.table(0, Row{0}).size() == 3);
}

TEST_CASE("R11 reference counts begin at one and never wrap") {
  BlockStore<> store;
  REQUIRE(store.attach(4).is_ok());
  const BlockId b = store.allocate();
  CHECK(store.references(b) == 1);
  REQUIRE(store.share(b).is_ok());
  CHECK(store.references(b) == 2);
  REQUIRE(store.release(b).is_ok());
  CHECK(store.num_free() == 3);
  REQUIRE(store.release(b).is_ok());
  CHECK(store.num_free() == 4);
  CHECK(store.release(b).code == Errc::InvalidArgument);
  CHECK(store.share(b).code == Errc::InvalidArgument);
  CHECK(store.release(BlockId{4}).code == Errc::InvalidArgument);
  CHECK(store.release(kNoBlock).code == Errc::InvalidArgument);
  CHECK(store.num_free() == 4);
  CHECK(store.references(b) == 0);
  CHECK(store.check().is_ok());
}

TEST_CASE("R11 a recycled block forgets what it held") {
  auto pool = make_pool(1, 4);
  const Content a({1, 2, 3, 4}, 16);
  const Content b({5, 6, 7, 8}, 16);
  REQUIRE(admit(pool, Row{0}, a) == 0);
  pool.release(Row{0});
  CHECK(pool.match(a.view(), 4).num_blocks == 1);
  REQUIRE(admit(pool, Row{0}, b) == 0);
  CHECK(pool.match(a.view(), 4).num_blocks == 0);
  CHECK(pool.match(b.view(), 4).num_blocks == 1);
  CHECK(pool.check().is_ok());
}

TEST_CASE("R13 each physical block is counted once") {
  auto pool = make_pool(100, 16);
  const Content s1(count_from(0, 160), 16);
  auto tokens = count_from(0, 80);
  const auto tail = count_from(5000, 48);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  const Content s2(tokens, 16);
  REQUIRE(admit(pool, Row{0}, s1) == 0);
  REQUIRE(admit(pool, Row{1}, s2) == 80);
  CHECK(pool.stats().referenced_blocks == 13);
  CHECK(pool.stats().free_blocks == 87);
  pool.release(Row{0});
  CHECK(pool.stats().referenced_blocks == 8);
  CHECK(pool.stats().cached_blocks == 5);
  CHECK(pool.stats().free_blocks == 87);
  pool.release(Row{1});
  CHECK(pool.stats().referenced_blocks == 0);
  CHECK(pool.stats().cached_blocks == 13);
  CHECK(pool.stats().free_blocks == 87);
  CHECK(pool.check().is_ok());
}

TEMPLATE_TEST_CASE("R15 each part of the scope separates, absent differs from empty", "", WordHash,
                   Always42) {
  auto pool = make_pool<BlockPool<Lru, TestType>>(100, 16);
  const auto tokens = count_from(0, 32);
  const auto hits = [&](CacheScope scope) {
    return pool.match(Content(tokens, 16, scope).view(), 32).num_blocks;
  };
  CacheScope adapter{};
  adapter.has_adapter = true;
  adapter.adapter_id = 7;
  adapter.adapter_version = 1;
  REQUIRE(admit(pool, Row{0}, Content(tokens, 16, adapter)) == 0);
  pool.release(Row{0});
  CHECK(hits(adapter) == 2);
  CHECK(hits({}) == 0);
  CacheScope salt{};
  salt.has_tenant_salt = true;
  salt.tenant_salt = 7;
  CHECK(hits(salt) == 0);
  CacheScope other = adapter;
  other.adapter_version = 2;
  CHECK(hits(other) == 0);
  other = adapter;
  other.has_tenant_salt = true;
  CHECK(hits(other) == 0);
  other = adapter;
  other.adapter_id = 0;
  CHECK(hits(other) == 0);
  other = adapter;
  other.model_epoch = 1;
  CHECK(hits(other) == 0);
  other = adapter;
  other.tenant_salt = 99;  // Not read: there is no salt.
  CHECK(hits(other) == 2);
}

TEST_CASE("R16 a constant hash costs speed only") {
  auto pool = make_pool<BlockPool<Lru, Always42>>(20000, 4);
  SplitMix64 random(16);
  std::vector<std::vector<Token>> stored;
  for (int i = 0; i < 1000; ++i) {
    INFO("prompt " << i);
    std::vector<Token> tokens;
    const auto length = static_cast<std::size_t>(random.between(1, 48));
    while (tokens.size() < length) {
      tokens.push_back(static_cast<Token>(random.one_in(6) ? 1 : 0));
    }
    std::size_t longest = 0;
    for (const auto& other : stored) {
      std::size_t same = 0;
      while (same < tokens.size() && same < other.size() / 4 * 4 && tokens[same] == other[same]) {
        ++same;
      }
      longest = std::max(longest, same / 4 * 4);
    }
    const Content content(tokens, 16);
    REQUIRE(pool.match(content.view(), content.length()).num_tokens ==
            static_cast<std::int64_t>(longest));
    REQUIRE(admit(pool, Row{0}, content) >= 0);
    pool.release(Row{0});
    stored.push_back(tokens);
  }
  CHECK(pool.check().is_ok());
}

TEST_CASE("R16 near misses of the default hash") {
  auto pool = make_pool(100, 16);
  auto a = count_from(300, 32);
  a[0] = 100;
  a[1] = 200;
  auto b = a;
  b[0] = 131;
  b[1] = 199;
  REQUIRE(admit(pool, Row{0}, Content(a, 16)) == 0);
  CHECK(pool.match(Content(b, 16).view(), 32).num_blocks == 0);
}

TEST_CASE("R17 at least one token is computed") {
  auto pool = make_pool(100, 4);
  const Content all(count_from(0, 40), 16);
  REQUIRE(admit(pool, Row{0}, all) == 0);
  const auto reuse = [&](std::int64_t length) {
    return pool.match(Content(count_from(0, length), 16).view(), length - 1).num_tokens;
  };
  CHECK(reuse(12) == 8);
  CHECK(reuse(13) == 12);
  CHECK(reuse(14) == 12);
  CHECK(reuse(16) == 12);
  CHECK(reuse(17) == 16);
  CHECK(reuse(1) == 0);
}

TEST_CASE("R18 what belongs to a block lives as long as its last reference") {
  auto pool = make_pool(10, 16);
  const Content parent(count_from(0, 40), 16);
  REQUIRE(admit(pool, Row{0}, parent) == 0);
  REQUIRE(admit(pool, Row{1}, parent) == 32);
  pool.release(Row{0});
  REQUIRE(pool.table(0, Row{1}).size() == 3);
  CHECK(pool.match(parent.view(), 40).num_blocks == 2);
  for (const BlockId b : pool.table(0, Row{1})) {
    CHECK(pool.references(b) == 1);
  }
  const auto blocks = ids(pool, Row{1});
  pool.release(Row{1});
  for (const std::int32_t b : blocks) {
    CHECK(pool.references(BlockId{b}) == 0);
  }
  CHECK(pool.stats().cached_blocks == 2);
  CHECK(pool.stats().referenced_blocks == 0);
  CHECK(pool.check().is_ok());
}
