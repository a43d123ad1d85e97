// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/block_pool.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;
using kv_test::admit;
using kv_test::Content;
using kv_test::count_from;
using kv_test::ids;
using Ids = std::vector<std::int32_t>;

namespace {

BlockPool<> make_pool(std::int64_t num_blocks, std::int32_t block_size = 4) {
  BlockPool<> pool({.num_blocks = num_blocks, .block_size = block_size});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 256}).is_ok());
  return pool;
}

}  // namespace

TEST_CASE("BlockPool names the field of a bad configuration") {
  const PoolAttachment rows{.max_rows = 1, .max_context_tokens = 64};
  const auto field = [&](BlockPool<>::Config config) {
    BlockPool<> pool(config);
    return std::string(pool.attach(rows).field);
  };
  CHECK(field({}) == "num_blocks");
  CHECK(field({.num_blocks = std::int64_t{1} << 31}) == "num_blocks");
  CHECK(field({.num_blocks = 1, .block_size = 0}) == "block_size");
  CHECK(field({.num_blocks = 1, .max_kv_events = -1}) == "max_kv_events");
  CHECK(field({.num_blocks = 1}).empty());
  BlockPool<> pool({.num_blocks = 1});
  CHECK(std::string(pool.attach({.max_rows = 0, .max_context_tokens = 1}).field) == "max_rows");
  CHECK(std::string(pool.attach({.max_rows = 1, .max_context_tokens = 0}).field) ==
        "max_context_tokens");
}

TEST_CASE("BlockPool is safe to call before attach and after a failed one") {
  BlockPool<> pool({.num_blocks = 4});
  CHECK(pool.groups()[0].block_size == 16);
  CHECK(pool.can_ever_fit(64));
  CHECK_FALSE(pool.can_ever_fit(65));
  CHECK(pool.shares_prefixes());
  const Content c(count_from(0, 32), 16);
  CHECK(pool.match(c.view(), 32).num_tokens == 0);
  CHECK_FALSE(pool.extend(Row{0}, 1));
  CHECK_FALSE(pool.acquire(Row{0}, {}));
  pool.publish(Row{0}, c.view(), 32, kNoPlan);
  pool.release(Row{0});
  pool.truncate(Row{0}, 0);
  CHECK(pool.withdraw(Row{0}, 0) == 0);
  CHECK(pool.table(0, Row{0}).empty());
  CHECK(pool.stats().total_blocks == 0);
  CHECK(pool.resize(2).code == Errc::InvalidArgument);
  CHECK(pool.clear());
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool limits sequences by context and by blocks") {
  auto pool = make_pool(100);
  CHECK(pool.can_ever_fit(256));
  CHECK_FALSE(pool.can_ever_fit(257));
  CHECK_FALSE(pool.can_ever_fit(std::numeric_limits<std::int64_t>::max()));
  CHECK(pool.extend(Row{0}, 256));
  CHECK_FALSE(pool.extend(Row{0}, 257));
  CHECK_FALSE(pool.extend(Row{0}, std::numeric_limits<std::int64_t>::max()));
  auto small = make_pool(4);
  CHECK(small.can_ever_fit(16));
  CHECK_FALSE(small.can_ever_fit(17));
}

TEST_CASE("BlockPool extend takes all it needs or nothing") {
  auto pool = make_pool(4);
  REQUIRE(pool.extend(Row{0}, 12));
  CHECK_FALSE(pool.extend(Row{1}, 8));
  CHECK(pool.table(0, Row{1}).empty());
  CHECK(pool.stats().free_blocks == 1);
  CHECK(pool.extend(Row{1}, 4));
}

TEST_CASE("BlockPool refuses a stale match and a row in use") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  const PrefixMatch m = pool.match(c.view(), 16);
  CHECK(m.num_blocks == 4);
  CHECK_FALSE(pool.acquire(Row{0}, m));
  REQUIRE(pool.extend(Row{1}, 1));
  CHECK_FALSE(pool.acquire(Row{2}, m));
  PrefixMatch larger = pool.match(c.view(), 8);
  larger.num_blocks = 3;
  CHECK_FALSE(pool.acquire(Row{2}, larger));
  CHECK_FALSE(pool.acquire(Row{4}, {}));
  PrefixMatch part = pool.match(c.view(), 16);
  part.num_blocks = 1;
  REQUIRE(pool.acquire(Row{2}, part));
  CHECK(ids(pool, Row{2}) == Ids{0});
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool sees at a second look that somebody holds what was idle") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  pool.settle(PlanId{1});
  pool.release(Row{0});
  SequenceContentView view = c.view();
  view.version = 1;
  REQUIRE(pool.match(view, 16).idle_blocks == 4);
  REQUIRE(pool.hold(Row{1}, std::vector<BlockId>(pool.matched().begin(), pool.matched().end())));
  CHECK(pool.match(view, 16).idle_blocks == 0);
  pool.release(Row{1});
  CHECK(pool.match(view, 16).idle_blocks == 4);
}

TEST_CASE("BlockPool counts look-ups at admission only") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 17), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  for (int i = 0; i < 5; ++i) {
    CHECK(pool.match(c.view(), 16).num_tokens == 16);
  }
  REQUIRE(admit(pool, Row{1}, c) == 16);
  CHECK(pool.stats().prefix_queries_tokens == 32);
  CHECK(pool.stats().prefix_hit_tokens == 16);
}

TEST_CASE("BlockPool shows pending blocks with their newest plan") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(pool.extend(Row{0}, 16));
  pool.publish(Row{0}, c.view(), 8, PlanId{1});
  pool.publish(Row{0}, c.view(), 16, PlanId{2});
  CHECK(pool.match(c.view(), 16).newest_pending == PlanId{2});
  CHECK(pool.match(c.view(), 8).newest_pending == PlanId{1});
  pool.settle(PlanId{1});
  CHECK(pool.match(c.view(), 8).newest_pending == kNoPlan);
  CHECK(pool.match(c.view(), 16).newest_pending == PlanId{2});
  pool.settle(PlanId{2});
  CHECK(pool.match(c.view(), 16).newest_pending == kNoPlan);
}

TEST_CASE("BlockPool publishes only known and cacheable whole blocks") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(pool.extend(Row{0}, 16));
  auto view = c.view();
  view.known_length = 7;
  pool.publish(Row{0}, view, 16, kNoPlan);
  CHECK(pool.match(c.view(), 16).num_blocks == 1);
  view.known_length = 16;
  view.cacheable_length = 11;
  pool.publish(Row{0}, view, 16, kNoPlan);
  CHECK(pool.match(c.view(), 16).num_blocks == 2);
  CHECK(pool.match(view, 16).num_blocks == 2);
}

TEST_CASE("BlockPool withdraws what a failed plan promised, readers are told") {
  auto pool = make_pool(16);
  const Content c(count_from(0, 16), 16);
  const Content longer(count_from(0, 24), 16);
  REQUIRE(pool.extend(Row{0}, 16));
  pool.publish(Row{0}, c.view(), 8, PlanId{1});
  pool.settle(PlanId{1});
  pool.publish(Row{0}, c.view(), 16, PlanId{2});
  REQUIRE(admit(pool, Row{1}, longer, 24, PlanId{2}) == 16);
  CHECK(pool.match(longer.view(), 24).num_blocks == 6);

  CHECK(pool.withdraw(Row{0}, 8) == 2);
  CHECK(pool.match(longer.view(), 24).num_blocks == 2);
  CHECK(pool.reads_withdrawn(Row{1}));
  CHECK_FALSE(pool.reads_withdrawn(Row{0}));
  CHECK(pool.check().is_ok());

  // What the writer computes again stays unpublished while somebody reads the old content.
  pool.publish(Row{0}, c.view(), 16, PlanId{3});
  CHECK(pool.match(c.view(), 16).num_blocks == 2);
  CHECK(pool.withdraw(Row{1}, 0) == 2);
  pool.release(Row{1});
  CHECK_FALSE(pool.reads_withdrawn(Row{1}));
  pool.publish(Row{0}, c.view(), 16, PlanId{3});
  CHECK(pool.match(longer.view(), 24).num_blocks == 4);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool hides what readers of a withdrawn block published, though a copy remains") {
  auto pool = make_pool(16);
  const Content c(count_from(0, 8), 16);
  const Content longer(count_from(0, 16), 16);
  // Rows 0 and 1 compute the same two blocks; row 2 reads those of row 0 and goes on.
  REQUIRE(pool.extend(Row{0}, 8));
  REQUIRE(pool.extend(Row{1}, 8));
  pool.publish(Row{0}, c.view(), 8, PlanId{1});
  pool.publish(Row{1}, c.view(), 8, kNoPlan);
  REQUIRE(admit(pool, Row{2}, longer, 16, PlanId{1}) == 8);
  CHECK(pool.withdraw(Row{0}, 0) == 2);
  const PrefixMatch m = pool.match(longer.view(), 16);
  CHECK(m.num_blocks == 1);  // The copy's first block; behind it nothing is certain.
  CHECK(m.newest_pending == kNoPlan);
  CHECK(pool.reads_withdrawn(Row{2}));
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool does not enter a block twice behind a withdrawn one") {
  auto pool = make_pool(16);
  const Content c(count_from(0, 8), 16);
  REQUIRE(pool.extend(Row{0}, 4));
  REQUIRE(pool.extend(Row{1}, 8));
  pool.publish(Row{0}, c.view(), 4, PlanId{5});
  pool.publish(Row{1}, c.view(), 8, kNoPlan);
  // Reads the pending first block of row 0 and the settled second one of row 1.
  const PrefixMatch m = pool.match(c.view(), 8);
  REQUIRE(m.num_blocks == 2);
  REQUIRE(pool.acquire(Row{2}, m));
  CHECK(pool.withdraw(Row{2}, 0) == 1);
  CHECK(pool.check().is_ok());
  pool.release(Row{0});
  pool.publish(Row{2}, c.view(), 8, PlanId{6});
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool does not keep pending blocks of a row that leaves") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 8), 16);
  REQUIRE(pool.extend(Row{0}, 8));
  pool.publish(Row{0}, c.view(), 4, PlanId{1});
  pool.settle(PlanId{1});
  pool.publish(Row{0}, c.view(), 8, PlanId{2});
  pool.release(Row{0});
  CHECK(pool.stats().cached_blocks == 1);
  CHECK(pool.match(c.view(), 8).num_blocks == 1);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool withdraws nothing that other plans have written") {
  auto pool = make_pool(16);
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  REQUIRE(admit(pool, Row{1}, c, 16, PlanId{1}) == 12);
  CHECK(pool.withdraw(Row{1}, 0) == 1);
  CHECK(pool.match(c.view(), 16).num_blocks == 4);
  CHECK_FALSE(pool.reads_withdrawn(Row{0}));
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool truncate frees the tail and unpublishes a block it cuts") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  pool.truncate(Row{0}, 16);
  CHECK(pool.table(0, Row{0}).size() == 4);
  pool.truncate(Row{0}, 12);
  CHECK(pool.stats().cached_blocks == 1);
  CHECK(pool.match(c.view(), 16).num_blocks == 4);
  pool.truncate(Row{0}, 6);
  CHECK(ids(pool, Row{0}) == Ids{0, 1});
  CHECK(pool.match(c.view(), 16).num_blocks == 1);
  pool.publish(Row{0}, c.view(), 8, kNoPlan);
  CHECK(pool.match(c.view(), 16).num_blocks == 2);
  CHECK(pool.check().is_ok());
  SECTION("not while another row holds it") {
    REQUIRE(pool.acquire(Row{1}, pool.match(c.view(), 8)));
    pool.truncate(Row{0}, 5);
    CHECK(pool.match(c.view(), 8).num_blocks == 2);
    CHECK(pool.check().is_ok());
  }
}

TEST_CASE("BlockPool lets the source of a copy go when its row is truncated to nothing") {
  BlockPool<> pool({.num_blocks = 8, .block_size = 4});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 64, .partial_copy = true}).is_ok());
  const Content content(count_from(1, 8), 16);
  REQUIRE(admit(pool, Row{0}, content) == 0);
  const PrefixMatch match = pool.match(content.view(), 6);
  REQUIRE(match.num_copied == 2);
  REQUIRE(pool.acquire(Row{1}, match));
  CHECK(pool.references(match.copy_source) == 2);
  pool.truncate(Row{1}, 4);  // The row goes on with what it shares.
  CHECK(pool.references(match.copy_source) == 2);
  pool.truncate(Row{1}, 0);
  CHECK(pool.references(match.copy_source) == 1);
  REQUIRE(pool.fork(Row{0}, Row{1}, 4).is_ok());
  pool.release(Row{0});
  pool.release(Row{1});
  CHECK(pool.stats().referenced_blocks == 0);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool hides what a row computed from a forgotten block, though a copy remains") {
  BlockPool<> pool = make_pool(16);
  const Content content(count_from(1, 12), 16);
  for (const Row row : {Row{0}, Row{1}}) {
    REQUIRE(pool.extend(row, 12));
    pool.publish(row, content.view(), 4, kNoPlan);
  }
  pool.forget(pool.table(0, Row{1})[0]);
  CHECK(pool.match(content.view(), 12).num_blocks == 1);
  pool.publish(Row{1}, content.view(), 12, kNoPlan);
  CHECK(pool.match(content.view(), 12).num_blocks == 1);
  pool.publish(Row{0}, content.view(), 12, kNoPlan);
  CHECK(pool.match(content.view(), 12).num_blocks == 3);
  CHECK(pool.matched()[2] == pool.table(0, Row{0})[2]);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool counts held blocks as busy when it looks up a path again") {
  BlockPool<> pool = make_pool(16);
  const Content content(count_from(1, 12), 16);
  REQUIRE(admit(pool, Row{0}, content) == 0);
  pool.release(Row{0});
  SequenceContentView view = content.view();
  view.version = 1;
  REQUIRE(pool.match(view, 12).idle_blocks == 3);
  const BlockId first = pool.matched()[0];
  REQUIRE(pool.hold(Row{1}, {&first, 1}));
  CHECK(pool.match(view, 12).idle_blocks == 2);
}

TEST_CASE("BlockPool shares digest prompts in whole units") {
  auto pool = make_pool(16);
  const std::vector<ContentDigest> digests{{1, 1}, {2, 2}, {3, 3}};
  const Content a(digests, 8, 27, 16);
  REQUIRE(pool.extend(Row{0}, 27));
  pool.publish(Row{0}, a.view(), 27, kNoPlan);
  CHECK(pool.match(a.view(), 27).num_tokens == 24);
  // Two units and a half: the half is not shared.
  const Content shorter({{1, 1}, {2, 2}}, 8, 20, 16);
  CHECK(pool.match(shorter.view(), 19).num_tokens == 16);
  const Content other({{1, 1}, {9, 9}, {3, 3}}, 8, 24, 16);
  CHECK(pool.match(other.view(), 24).num_tokens == 8);
  // Behind the prompt nothing is indexed.
  auto grown = a.view();
  grown.known_length = grown.cacheable_length = 40;
  REQUIRE(pool.extend(Row{0}, 40));
  pool.publish(Row{0}, grown, 40, kNoPlan);
  CHECK(pool.match(grown, 40).num_tokens == 24);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool without prefix caching shares nothing") {
  BlockPool<> pool({.num_blocks = 8, .block_size = 4, .prefix_caching = false});
  REQUIRE(pool.attach({.max_rows = 2, .max_context_tokens = 64}).is_ok());
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  CHECK(pool.match(c.view(), 16).num_blocks == 0);
  pool.release(Row{0});
  CHECK(pool.stats().free_blocks == 8);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool shrinks to a target and grows again") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  const Content other(count_from(100, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  REQUIRE(admit(pool, Row{1}, other) == 0);
  pool.release(Row{0});
  REQUIRE(pool.resize(2).is_ok());
  CHECK(pool.stats().total_blocks == 6);  // Row 1 keeps its four until it ends.
  CHECK(pool.stats().cached_blocks == 2);
  CHECK_FALSE(pool.can_ever_fit(9));
  pool.release(Row{1});
  CHECK(pool.stats().total_blocks == 2);
  CHECK(pool.match(other.view(), 16).num_blocks == 0);
  CHECK(pool.match(c.view(), 16).num_blocks == 2);
  CHECK(pool.check().is_ok());
  REQUIRE(pool.resize(8).is_ok());
  CHECK(pool.stats().available_blocks() == 8);
  CHECK(pool.resize(9).code == Errc::InvalidArgument);
  CHECK(pool.resize(0).code == Errc::InvalidArgument);
  CHECK(pool.check().is_ok());
}

TEST_CASE("BlockPool says what it does not do") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  CHECK(pool.pin(c.view(), 16, TimeNs{}).code == Errc::NotSupported);
}

TEST_CASE("BlockPool can be moved") {
  auto pool = make_pool(8);
  const Content c(count_from(0, 16), 16);
  REQUIRE(admit(pool, Row{0}, c) == 0);
  BlockPool<> moved(std::move(pool));
  CHECK(moved.match(c.view(), 16).num_blocks == 4);
  CHECK(moved.groups()[0].block_size == 4);
  CHECK(moved.check().is_ok());
}
