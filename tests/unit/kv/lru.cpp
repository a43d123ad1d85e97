// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/lru.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <span>
#include <vector>

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

TEST_CASE("Lru inserts a path from its end and erases it wherever its blocks have gone") {
  Lru lru;
  REQUIRE(lru.attach(8).is_ok());
  const BlockId path[5] = {BlockId{5}, BlockId{1}, BlockId{4}, BlockId{0}, BlockId{3}};
  const auto order = [&] {
    std::vector<std::int32_t> ids;
    for (BlockId b = lru.victim(); b != kNoBlock; b = lru.after(b)) {
      ids.push_back(b.value);
    }
    return ids;
  };
  using Ids = std::vector<std::int32_t>;
  lru.insert(BlockId{7});
  lru.insert_backwards(path);
  lru.insert_backwards({});
  lru.insert(BlockId{6});
  CHECK(order() == Ids{7, 3, 0, 4, 1, 5, 6});
  SECTION("as a whole") {
    lru.erase(std::span(path));
    CHECK(order() == Ids{7, 6});
  }
  SECTION("with a block that came back behind the others") {
    lru.erase(BlockId{4});
    lru.insert(BlockId{4});
    CHECK(order() == Ids{7, 3, 0, 1, 5, 6, 4});
    lru.erase(std::span(path));
    CHECK(order() == Ids{7, 6});
  }
  SECTION("with only its end left") {
    BlockId out[4];
    CHECK(lru.take(out) == 4);
    CHECK(out[3] == BlockId{4});
    lru.erase(std::span(path).first(2));
    CHECK(order() == Ids{6});
  }
  lru.erase(std::span<const BlockId>{});
  lru.insert(BlockId{2});
  CHECK(order().back() == 2);
}
