// SPDX-License-Identifier: Apache-2.0
// Blocks behind placeholder tokens: shared only where the media items are the same at the same
// place.
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/model/block_media.hpp>

#include "../kv/content.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace dynbatch;
using kv_test::Content;

namespace {

constexpr ContentDigest kCat{1, 2};
constexpr ContentDigest kDog{1, 3};

// 40 equal placeholder tokens in blocks of 4, with these items.
Content with_media(std::vector<MediaSpan> media, std::int64_t length = 40) {
  Content content(std::vector<Token>(static_cast<std::size_t>(length), 9), 16);
  content.set_media(std::move(media));
  return content;
}

template <class Pool = BlockPool<>>
Pool make_pool() {
  Pool pool({.num_blocks = 64, .block_size = 4, .max_kv_events = 64});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64}).is_ok());
  return pool;
}

// Blocks of `second` that are found when `first` is all that the pool has.
std::int64_t shared_blocks(const Content& first, const Content& second) {
  BlockPool<> pool = make_pool();
  REQUIRE(kv_test::admit(pool, Row{0}, first) == 0);
  const std::int64_t found = pool.match(second.view(), second.length()).num_blocks;
  REQUIRE(pool.check().is_ok());
  return found;
}

}  // namespace

TEST_CASE("Equal tokens with different items share only what lies before the item") {
  const Content cat = with_media({{9, 6, kCat}});
  CHECK(shared_blocks(cat, cat) == 10);
  CHECK(shared_blocks(cat, with_media({{9, 6, kDog}})) == 2);
  CHECK(shared_blocks(cat, with_media({})) == 2);
  CHECK(shared_blocks(with_media({}), cat) == 2);
  CHECK(shared_blocks(with_media({{0, 3, kCat}}), with_media({{0, 3, kDog}})) == 0);
  CHECK(shared_blocks(with_media({{0, 3, kCat}}), with_media({{0, 3, kCat}})) == 10);
}

TEST_CASE("An item in one block separates all blocks behind it") {
  const Content cat = with_media({{0, 2, kCat}, {30, 4, kDog}});
  CHECK(shared_blocks(cat, with_media({{0, 2, kDog}, {30, 4, kDog}})) == 0);
  CHECK(shared_blocks(cat, with_media({{0, 2, kCat}, {30, 4, kCat}})) == 7);
}

TEST_CASE("Where an item begins and how long it is counts, token by token") {
  const Content cat = with_media({{9, 6, kCat}});
  CHECK(shared_blocks(cat, with_media({{10, 6, kCat}})) == 2);
  CHECK(shared_blocks(cat, with_media({{9, 7, kCat}})) == 2);
  CHECK(shared_blocks(cat, with_media({{9, 3, kCat}, {12, 3, kCat}})) == 2);
  // The block in the middle is covered in full by both: it lies at another place of the item.
  CHECK(shared_blocks(with_media({{8, 16, kCat}}), with_media({{4, 16, kCat}})) == 1);
}

TEST_CASE("Contents that differ by an item below a common parent stand side by side") {
  BlockPool<> pool = make_pool();
  const Content plain = with_media({});
  const Content cat = with_media({{9, 6, kCat}});
  const Content dog = with_media({{9, 6, kDog}});
  REQUIRE(kv_test::admit(pool, Row{0}, cat) == 0);
  REQUIRE(kv_test::admit(pool, Row{1}, dog) == 8);
  REQUIRE(kv_test::admit(pool, Row{2}, plain) == 8);
  REQUIRE(pool.check().is_ok());
  for (const Content* content : {&plain, &cat, &dog}) {
    CHECK(pool.match(content->view(), 40).num_blocks == 10);
  }
  pool.release(Row{0});
  pool.release(Row{1});
  pool.release(Row{2});
  REQUIRE(pool.check().is_ok());
  REQUIRE(pool.resize(10).is_ok());
  CHECK(pool.match(cat.view(), 40).num_blocks == 10);
  CHECK(pool.match(dog.view(), 40).num_blocks == 2);
  CHECK(pool.match(plain.view(), 40).num_blocks == 2);
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("A block that too many items overlap ends what is shared") {
  REQUIRE(max_block_media(4) == 3);
  std::vector<MediaSpan> items{{8, 1, kCat}, {9, 1, kCat}, {10, 1, kDog}};
  CHECK(shared_blocks(with_media(items), with_media(items)) == 10);
  items.push_back({11, 1, kCat});
  CHECK(shared_blocks(with_media(items), with_media(items)) == 2);
}

TEST_CASE("Digests and items are both compared") {
  const std::vector<ContentDigest> digests{{1, 1}, {2, 2}, {3, 3}};
  Content one(digests, 8, 24, 16);
  Content other(digests, 8, 24, 16);
  one.set_media({{9, 6, kCat}});
  CHECK(shared_blocks(one, one) == 6);
  CHECK(shared_blocks(one, other) == 2);
  other.set_media({{9, 6, kDog}});
  CHECK(shared_blocks(one, other) == 2);
}

TEST_CASE("The events of equal tokens with different items differ") {
  const auto hashes_of = [](const Content& content) {
    BlockPool<> pool = make_pool();
    REQUIRE(kv_test::admit(pool, Row{0}, content) == 0);
    std::vector<KvEvent> events(16);
    events.resize(pool.drain_events(events));
    std::vector<KvEvent> snapshot(16);
    snapshot.resize(pool.snapshot(snapshot));
    std::vector<std::uint64_t> hashes;
    for (std::size_t i = 0; i < events.size(); ++i) {
      hashes.push_back(events[i].content_hash);
      CHECK(events[i].content_hash == snapshot[i].content_hash);
    }
    return hashes;
  };
  const auto cat = hashes_of(with_media({{5, 2, kCat}}, 16));
  const auto dog = hashes_of(with_media({{5, 2, kDog}}, 16));
  REQUIRE(cat.size() == 4);
  REQUIRE(dog.size() == 4);
  CHECK(cat[0] == dog[0]);
  CHECK(cat[1] != dog[1]);
  CHECK(cat[2] == dog[2]);
  CHECK(cat == hashes_of(with_media({{5, 2, kCat}}, 16)));
}

TEST_CASE("Pins and host memory tell items apart too") {
  Pinning<BlockPool<>> pinning({.pool = {.num_blocks = 64, .block_size = 4}});
  REQUIRE(pinning.attach({.max_rows = 2, .max_context_tokens = 64}).is_ok());
  REQUIRE(kv_test::admit(pinning, Row{0}, with_media({{9, 6, kCat}})) == 0);
  CHECK(pinning.pin(with_media({{9, 6, kDog}}).view(), 16, TimeNs{9}).code == Errc::NotFound);
  CHECK(pinning.pin(with_media({{9, 6, kCat}}).view(), 16, TimeNs{9}).is_ok());

  TieredPool<> tiered(
      {.pool = {.num_blocks = 10, .block_size = 4}, .num_host_blocks = 40, .min_load_blocks = 1});
  REQUIRE(tiered.attach({.max_rows = 2, .max_context_tokens = 64}).is_ok());
  const Content cat = with_media({{9, 6, kCat}});
  REQUIRE(kv_test::admit(tiered, Row{0}, cat, 40, PlanId{1}) == 0);
  tiered.settle(PlanId{1});
  std::vector<BlockSwap> swaps(64);
  REQUIRE(tiered.drain_swaps(swaps, PlanId{2}) == 10);
  tiered.settle(PlanId{2});
  tiered.release(Row{0});
  REQUIRE(tiered.resize(1).is_ok());  // all but one block are in host memory only
  REQUIRE(tiered.resize(10).is_ok());
  CHECK(tiered.match(with_media({{9, 6, kDog}}).view(), 40).num_blocks == 2);
  CHECK(tiered.match(cat.view(), 40).num_blocks == 10);
}

TEST_CASE("A cursor names the blocks that items overlap") {
  const Content content = with_media({{5, 2, kCat}, {7, 1, kDog}, {15, 2, kCat}});
  MediaCursor cursor(content.view().media, 4, 0);
  REQUIRE(cursor.next() == 1);
  const BlockMedia first = cursor.take();
  CHECK(first.count == 2);
  CHECK(first.entry(0) == MediaEntry{kCat, -1, 2});
  CHECK(first.entry(1) == MediaEntry{kDog, -3, 1});
  REQUIRE(cursor.next() == 3);
  CHECK(cursor.take().entry(0) == MediaEntry{kCat, -3, 2});
  REQUIRE(cursor.next() == 4);
  CHECK(cursor.take().entry(0) == MediaEntry{kCat, 1, 2});
  CHECK(cursor.next() == MediaCursor::kNoBlock);
  CHECK(MediaCursor(content.view().media, 4, 2).next() == 3);
  CHECK(content.view().is_behind_media(17));
  CHECK_FALSE(content.view().is_behind_media(16));
}
