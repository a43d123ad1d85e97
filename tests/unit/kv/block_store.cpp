// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/block_store.hpp>

#include <catch2/catch.hpp>

using namespace dynbatch;

TEST_CASE("BlockStore hands out freed blocks before unused ones, cached ones last") {
  BlockStore<> store;
  REQUIRE(store.attach(4).is_ok());
  for (int b = 0; b < 3; ++b) {
    CHECK(store.allocate() == BlockId{b});
  }
  REQUIRE(store.release(BlockId{1}, true).is_ok());
  REQUIRE(store.release(BlockId{0}).is_ok());
  CHECK(store.num_free() == 2);
  CHECK(store.num_cached() == 1);
  CHECK(store.allocate() == BlockId{0});
  CHECK(store.allocate() == BlockId{3});
  CHECK(store.allocate() == kNoBlock);
  BlockId out[2];
  CHECK(store.evict(out) == 1);
  CHECK(out[0] == BlockId{1});
  CHECK(store.references(BlockId{1}) == 1);
  CHECK(store.evict(out) == 0);
  CHECK(store.num_available() == 0);
  CHECK(store.check().is_ok());
}

TEST_CASE("BlockStore takes a cached block back when it is shared") {
  BlockStore<> store;
  REQUIRE(store.attach(2).is_ok());
  const BlockId b = store.allocate();
  REQUIRE(store.release(b, true).is_ok());
  CHECK(store.share(b).code == Errc::InvalidArgument);
  REQUIRE(store.share(b, true).is_ok());
  CHECK(store.references(b) == 1);
  CHECK(store.num_cached() == 0);
  CHECK(store.check().is_ok());
}

TEST_CASE("BlockStore shrinks to a target and grows again") {
  BlockStore<> store;
  REQUIRE(store.attach(6).is_ok());
  for (int b = 0; b < 5; ++b) {
    CHECK(store.allocate() == BlockId{b});
  }
  REQUIRE(store.release(BlockId{0}).is_ok());
  REQUIRE(store.release(BlockId{4}).is_ok());
  store.resize(2);
  CHECK(store.total() == 4);  // Blocks 2 and 3 are still referenced.
  CHECK(store.num_free() == 1);
  REQUIRE(store.release(BlockId{3}, true).is_ok());
  CHECK(store.total() == 3);
  CHECK(store.num_cached() == 0);
  CHECK(store.allocate() == BlockId{0});
  CHECK(store.allocate() == kNoBlock);
  CHECK(store.check().is_ok());
  store.resize(6);
  CHECK(store.total() == 6);
  CHECK(store.num_free() == 3);
  CHECK(store.check().is_ok());
}

TEST_CASE("BlockStore takes and keeps a path as it would its blocks one by one") {
  BlockStore<> store;
  REQUIRE(store.attach(6).is_ok());
  BlockId path[4];
  for (BlockId& b : path) {
    b = store.allocate();
  }
  for (const BlockId b : path) {
    store.drop_only_reference(b);
  }
  store.keep_backwards(path, 0);
  CHECK(store.num_cached() == 4);
  CHECK(store.num_referenced() == 0);
  CHECK(store.eviction().victim() == path[3]);
  REQUIRE(store.check().is_ok());
  // The second is referenced already, so the path is not cached as a whole.
  store.add_reference(path[1]);
  store.add_references(path);
  CHECK(store.num_cached() == 0);
  CHECK(store.num_referenced() == 4);
  CHECK(store.references(path[0]) == 1);
  CHECK(store.references(path[1]) == 2);
  CHECK(store.references(path[3]) == 1);
  CHECK(store.eviction().victim() == kNoBlock);
  CHECK(store.check().is_ok());
}
