// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/lru.hpp>

#include <catch2/catch.hpp>

using namespace dynbatch;

TEST_CASE("Lru hands out what was inserted first") {
  Lru lru;
  CHECK(lru.victim() == kNoBlock);
  REQUIRE(lru.attach(4).is_ok());
  CHECK(lru.victim() == kNoBlock);
  lru.insert(BlockId{2});
  lru.insert(BlockId{0});
  lru.insert(BlockId{3});
  CHECK(lru.victim() == BlockId{2});
  CHECK(lru.after(BlockId{2}) == BlockId{0});
  lru.erase(BlockId{0});
  CHECK(lru.after(BlockId{2}) == BlockId{3});
  CHECK(lru.after(BlockId{3}) == kNoBlock);
}

TEST_CASE("Lru take stops at its end") {
  Lru lru;
  REQUIRE(lru.attach(4).is_ok());
  for (int b = 0; b < 4; ++b) {
    lru.insert(BlockId{b});
  }
  BlockId out[3];
  CHECK(lru.take(out) == 3);
  CHECK(out[2] == BlockId{2});
  CHECK(lru.victim() == BlockId{3});
  CHECK(lru.take(out) == 1);
  CHECK(out[0] == BlockId{3});
  CHECK(lru.take(out) == 0);
  CHECK(lru.victim() == kNoBlock);
  lru.insert(BlockId{1});
  CHECK(lru.victim() == BlockId{1});
}
