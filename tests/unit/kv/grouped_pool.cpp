// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/pinning.hpp>

#include "content.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;
using kv_test::Content;
using kv_test::count_from;
using kv_test::then;

namespace {

constexpr GroupSpec window(std::int32_t tokens, std::int32_t block_size) {
  return {GroupKind::Window, block_size, tokens};
}
constexpr GroupSpec kState{GroupKind::Recurrent, 1, 0};

/// A pool with 40 blocks of 2 tokens in its first group.
GroupedPool<> make_pool(std::vector<KvGroupConfig> groups, std::int64_t interval = 0,
                        PoolAttachment attachment = {.max_rows = 4, .max_context_tokens = 64}) {
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 40, .block_size = 2};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    config.groups[i] = groups[i];
  }
  config.snapshot_interval_tokens = interval;
  GroupedPool<> pool(config);
  REQUIRE(pool.attach(attachment).is_ok());
  return pool;
}

std::string refused(GroupedPool<>::Config config,
                    PoolAttachment attachment = {.max_rows = 2, .max_context_tokens = 64}) {
  GroupedPool<> pool(config);
  return std::string(pool.attach(attachment).field);
}

std::vector<std::int32_t> ids(const GroupedPool<>& pool, std::size_t group, Row row) {
  std::vector<std::int32_t> out;
  for (const BlockId b : pool.table(group, row)) {
    out.push_back(b.value);
  }
  return out;
}

std::vector<BlockCopy> copies(GroupedPool<>& pool, std::size_t group, std::uint64_t plan) {
  std::vector<BlockCopy> out(16);
  out.resize(pool.drain_copies(group, out, PlanId{plan}));
  return out;
}
std::vector<BlockId> zeroes(GroupedPool<>& pool, std::size_t group) {
  std::vector<BlockId> out(16);
  out.resize(pool.drain_zeroes(group, out));
  return out;
}

/// One chunk of an otherwise idle pool, computed and settled as plan `plan`.
void compute(GroupedPool<>& pool, Row row, const Content& content, std::int64_t end,
             std::uint64_t plan) {
  REQUIRE(pool.extend(row, end));
  pool.publish(row, content.view(), end, PlanId{plan});
  pool.plan_chunk(row, end, PlanId{plan});
  for (std::size_t g = 1; g < pool.groups().size(); ++g) {
    copies(pool, g, plan);
    zeroes(pool, g);
  }
  pool.settle(PlanId{plan});
  pool.advance(row, end, end);
}

std::int64_t matched(GroupedPool<>& pool, const Content& content) {
  return pool.match(content.view(), content.length() - 1).num_tokens;
}

}  // namespace

TEST_CASE("GroupedPool names what it cannot work with") {
  GroupedPool<>::Config good;
  good.pool = {.num_blocks = 40, .block_size = 4};
  good.groups[0] = {window(8, 4), 100};
  good.groups[1] = {kState, 4};
  CHECK(refused(good).empty());
  auto config = good;
  config.pool.num_blocks = 0;
  CHECK(refused(config) == "num_blocks");
  config = good;
  config.groups[1] = {GroupSpec{}, 40};
  CHECK(refused(config) == "groups.kind");
  config = good;
  config.groups[0].num_blocks = -1;
  CHECK(refused(config) == "groups.num_blocks");
  config.groups[0].num_blocks = 0;  // forgotten: neither this group nor the next is left out
  CHECK(refused(config) == "groups.num_blocks");
  config.groups[1] = {};
  CHECK(refused(config) == "groups.num_blocks");
  config.groups[0] = {};
  CHECK(refused(config).empty());
  for (const std::int32_t size : {0, 3, 6, 65537}) {
    config = good;
    config.groups[0].spec.block_size = size;
    CHECK(refused(config) == "groups.block_size");
  }
  config = good;
  config.groups[1].spec.block_size = 7;
  CHECK(refused(config) == "groups.block_size");
  CHECK(config.validate().value == 7);
  config = good;
  config.groups[1].spec.window = 4;
  CHECK(refused(config) == "groups.window");
  config = good;
  config.groups[0].spec.window = 0;
  CHECK(refused(config) == "groups.window");
  config = good;
  config.snapshot_interval_tokens = 6;
  CHECK(refused(config) == "snapshot_interval_tokens");
  CHECK(refused(good, {.max_rows = 2, .max_context_tokens = 64, .in_order = false}) ==
        "capabilities.in_order");
  // Recurrent: a state a row.
  config = good;
  config.groups[1].num_blocks = 1;
  CHECK(refused(config) == "groups.num_blocks");
  CHECK(GroupedPool<>(good).groups().size() == 3);
  CHECK(GroupedPool<>(good).groups()[2] == kState);
}

TEST_CASE("Window blocks are freed on processed tokens") {
  // Window 4, block size 2, 6 tokens on three blocks: after 4 processed tokens nothing is freed,
  // after 5 and 6 the first block, after 7 two, after 11 all three.
  GroupedPool<> pool = make_pool({{window(4, 2), 200}});
  const Content content(count_from(100, 20), 8);
  REQUIRE(pool.extend(Row{0}, 6));
  CHECK(ids(pool, 1, Row{0}) == std::vector<std::int32_t>{0, 1, 2});
  const std::vector<std::vector<std::int32_t>> expected = {
      {0, 1, 2}, {-1, 1, 2}, {-1, 1, 2}, {-1, -1, 2}, {-1, -1, -1}};
  const std::int64_t processed[] = {4, 5, 6, 7, 11};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    pool.advance(Row{0}, processed[i], 11);
    CHECK(ids(pool, 1, Row{0}) == expected[i]);
    CHECK(pool.check().is_ok());
  }
  CHECK(pool.group_stats(1).referenced_blocks == 0);
  CHECK(pool.table(0, Row{0}).size() == 3);

  detail::WindowTables tables;
  REQUIRE(tables.attach(window(4, 2), {.max_rows = 1, .max_context_tokens = 64}, 30, 2, 40));
  std::vector<std::int64_t> skipped;
  for (const std::int64_t n : {0, 3, 4, 5, 7, 11}) {
    skipped.push_back(tables.skipped(n));
  }
  CHECK(skipped == std::vector<std::int64_t>{0, 0, 1, 2, 4, 8});
}

TEST_CASE("A window that has moved on stays cached under its prefix") {
  GroupedPool<> pool = make_pool({{window(4, 2), 200}});
  const Content content(count_from(100, 30), 8);
  compute(pool, Row{0}, content, 8, 1);
  compute(pool, Row{0}, content, 20, 2);
  CHECK(pool.group_stats(1).referenced_blocks == 2);  // of [17, 20)
  CHECK(pool.group_stats(1).cached_blocks == 8);
  // A prompt that ends early in it finds the window it needs there.
  const Content head(then(count_from(100, 8), 4, 7), 8);
  CHECK(matched(pool, head) == 8);
  REQUIRE(pool.acquire(Row{1}, pool.match(head.view(), 11)));
  CHECK(ids(pool, 1, Row{1}) == std::vector<std::int32_t>{-1, -1, 2, 3});  // positions [5, 8)
  CHECK(pool.check().is_ok());
  pool.release(Row{0});
  pool.release(Row{1});
  CHECK(pool.group_stats(1).referenced_blocks == 0);
  CHECK(matched(pool, content) == 20);
}

TEST_CASE("A match needs the last window only, and never promises more than acquire gives") {
  GroupedPool<> pool =
      make_pool({{window(4, 2), 36}}, 0, {.max_rows = 1, .max_context_tokens = 64});
  const Content content(count_from(100, 24), 8);
  compute(pool, Row{0}, content, 24, 1);
  pool.release(Row{0});
  // What the window left behind first is forgotten first: 4 of 12 blocks, and 22 tokens need none
  // of them.
  REQUIRE(pool.extend(Row{0}, 56));
  pool.release(Row{0});
  CHECK(pool.group_stats(1).cached_blocks == 8);
  const PrefixMatch m = pool.match(content.view(), 23);
  CHECK(m.num_tokens == 22);
  CHECK(m.num_blocks == 11);
  CHECK(m.idle_blocks == 11);
  const Content head(then(count_from(100, 8), 4, 7), 8);
  CHECK(pool.pool().match(head.view(), 11).num_tokens == 8);
  const PrefixMatch short_one = pool.match(head.view(), 11);
  CHECK(short_one.num_tokens == 0);  // positions [5, 8) are gone
  CHECK(short_one.idle_blocks == 0);
  REQUIRE(pool.acquire(Row{0}, short_one));
  pool.release(Row{0});
  // Fewer blocks than were matched: only where the window is there too.
  PrefixMatch less = pool.match(content.view(), 23);
  less.num_blocks = 4;
  CHECK_FALSE(pool.acquire(Row{0}, less));
  CHECK(pool.table(0, Row{0}).empty());
  less.num_blocks = 11;
  CHECK(pool.acquire(Row{0}, less));
  CHECK(pool.check().is_ok());
  pool.release(Row{0});
  // A match is void after any change, of a further group too.
  const PrefixMatch old = pool.match(content.view(), 23);
  pool.advance(Row{0}, 0, 0);
  CHECK_FALSE(pool.acquire(Row{0}, old));
}

TEST_CASE("What was attached to a forgotten prefix is never found again") {
  GroupedPool<> pool = make_pool({{window(3, 2), 200}, {kState, 8}}, 2);
  const Content content(count_from(100, 9), 8);
  compute(pool, Row{0}, content, 8, 1);
  compute(pool, Row{0}, content, 9, 2);
  pool.release(Row{0});
  CHECK(matched(pool, content) == 8);
  // The first group forgets the prefix and learns it again, from a row that computed nothing yet.
  REQUIRE(pool.resize(1).is_ok());
  REQUIRE(pool.resize(40).is_ok());
  CHECK(matched(pool, content) == 0);
  REQUIRE(pool.extend(Row{0}, 8));
  pool.publish(Row{0}, content.view(), 8, PlanId{3});
  CHECK(pool.pool().match(content.view(), 8).num_tokens == 8);
  CHECK(matched(pool, content) == 0);  // neither the old window nor the old state
  CHECK(pool.check().is_ok());
  pool.plan_chunk(Row{0}, 8, PlanId{3});
  zeroes(pool, 2);
  pool.settle(PlanId{3});
  pool.advance(Row{0}, 8, 8);
  CHECK(matched(pool, content) == 0);  // the state was not copied yet
  CHECK(copies(pool, 2, 4).size() == 1);
  CHECK(matched(pool, content) == 0);  // nor is it certain that it will be
  pool.settle(PlanId{4});
  CHECK(matched(pool, content) == 8);
  CHECK(pool.check().is_ok());
}

TEST_CASE("All groups hold more, or none") {
  GroupedPool<> pool = make_pool({{window(64, 8), 36}, {kState, 4}});
  // The first group refuses: nothing was taken from the others.
  REQUIRE(pool.extend(Row{0}, 60));
  CHECK(pool.group_stats(1).referenced_blocks == 8);
  CHECK(pool.extend(Row{1}, 20));
  CHECK(pool.stats().available_blocks() == 0);
  CHECK_FALSE(pool.extend(Row{1}, 22));
  CHECK_FALSE(pool.extend(Row{2}, 1));
  CHECK(pool.group_stats(1).referenced_blocks == 11);
  CHECK(pool.group_stats(2).referenced_blocks == 2);
  CHECK_FALSE(pool.extend(Row{7}, 1));
  CHECK_FALSE(pool.acquire(Row{-1}, {}));
  CHECK(pool.table(1, Row{9}).empty());
  CHECK(pool.table(3, Row{0}).empty());
  CHECK(pool.check().is_ok());
}

TEST_CASE("Rows that all run at their worst never run short of window blocks") {
  // Every row in the middle of a block at both ends of what it holds, and all tokens that plans may
  // have in flight in one of them: blocks_needed() is just enough.
  const PoolAttachment attachment{
      .max_rows = 4, .max_context_tokens = 300, .max_plans_in_flight = 2, .max_step_tokens = 16};
  for (const GroupSpec spec : {window(7, 4), window(1, 4), window(16, 8), window(9, 2)}) {
    GroupedPool<>::Config config;
    config.pool = {.num_blocks = 2000, .block_size = 4};
    config.groups[0] = {spec, GroupedPool<>::blocks_needed(spec, attachment)};
    INFO("window " << spec.window << " block " << spec.block_size << " blocks "
                   << config.groups[0].num_blocks);
    GroupedPool<> pool(config);
    REQUIRE(pool.attach(attachment).is_ok());
    bool all = true;
    std::int64_t most = 0;
    for (std::int64_t turn = 0; turn < 4; ++turn) {
      for (std::int32_t row = 0; row < 4; ++row) {
        for (std::int64_t at = 0; at < 60; ++at) {  // one token each plan
          all = all && pool.extend(Row{row}, at + 1);
          pool.advance(Row{row}, at + 1, at + 1);
        }
        all = all && pool.extend(Row{row}, row == turn ? 92 : 60);
        most = std::max(most, pool.group_stats(1).referenced_blocks);
      }
      for (std::int32_t row = 0; row < 4; ++row) {
        pool.release(Row{row});
      }
    }
    CHECK(all);
    CHECK(most >= 4 * ((spec.window - 1) / spec.block_size) + 32 / spec.block_size);
    CHECK(pool.check().is_ok());
    // Fewer are refused at once, naming how many it takes.
    --config.groups[0].num_blocks;
    const Status s = GroupedPool<>(config).attach(attachment);
    CHECK(s.code == Errc::InvalidConfig);
    CHECK(s.limit == config.groups[0].num_blocks + 1);
  }
}

TEST_CASE("Blocks planned in vain go back as soon as the row is told so") {
  GroupedPool<> pool = make_pool({{window(4, 2), 200}});
  REQUIRE(pool.extend(Row{0}, 20));
  CHECK(pool.group_stats(1).referenced_blocks == 10);
  pool.advance(Row{0}, 6, 7);  // of 14 drafts none came true
  CHECK(ids(pool, 1, Row{0}) == std::vector<std::int32_t>{-1, 1, 2, 3});
  pool.withdraw(Row{0}, 6);
  CHECK(ids(pool, 1, Row{0}) == std::vector<std::int32_t>{-1, 1, 2});
  CHECK(pool.table(0, Row{0}).size() == 10);
  CHECK_FALSE(pool.must_leave(Row{0}));
  pool.truncate(Row{0}, 4);  // its window was given up
  CHECK(pool.must_leave(Row{0}));
  pool.release(Row{0});
  CHECK_FALSE(pool.must_leave(Row{0}));
  CHECK(pool.check().is_ok());
}

TEST_CASE("A fork shares the window and copies the rest of its last block") {
  for (const bool in_order : {true, false}) {
    GroupedPool<> pool = make_pool({{window(8, 4), 200}}, 0,
                                   {.max_rows = 4, .max_context_tokens = 64, .in_order = in_order});
    const Content content(count_from(100, 30), 8);
    compute(pool, Row{0}, content, 18, 1);
    REQUIRE(pool.fork(Row{0}, Row{1}, 18).is_ok());
    CHECK(ids(pool, 1, Row{0}) == std::vector<std::int32_t>{-1, -1, 2, 3, 4});
    CHECK(ids(pool, 1, Row{1}) == std::vector<std::int32_t>{-1, -1, 2, 3, 5});
    // The source leaves before the copy is told: its block stays until then.
    pool.release(Row{0});
    CHECK(pool.group_stats(1).referenced_blocks == 4);
    const auto told = copies(pool, 1, 2);
    REQUIRE(told.size() == 1);
    CHECK(told[0].source == BlockId{4});
    CHECK(told[0].target == BlockId{5});
    CHECK(told[0].num_tokens == 2);
    // Where plans may overtake each other it stays until the copy is made.
    CHECK(pool.group_stats(1).referenced_blocks == (in_order ? 3 : 4));
    CHECK(copies(pool, 1, 3).empty());
    CHECK(pool.check().is_ok());
    pool.settle(PlanId{2});
    CHECK(pool.group_stats(1).referenced_blocks == 3);
    // A copy for who has left is not made.
    REQUIRE(pool.fork(Row{1}, Row{2}, 18).is_ok());
    pool.release(Row{2});
    CHECK(copies(pool, 1, 4).empty());
    // Behind the window's start nothing can be forked.
    CHECK(pool.fork(Row{1}, Row{2}, 4).code == Errc::NotSupported);
    CHECK(pool.table(0, Row{2}).empty());
    CHECK(pool.check().is_ok());
  }
}

TEST_CASE("A state begins with zeroes, or with a copy of a snapshot") {
  GroupedPool<> pool = make_pool({{kState, 8}}, 4);
  const Content content(count_from(100, 13), 8);
  REQUIRE(pool.extend(Row{0}, 8));
  CHECK(zeroes(pool, 1) == std::vector<BlockId>{BlockId{0}});
  pool.publish(Row{0}, content.view(), 8, PlanId{1});
  pool.plan_chunk(Row{0}, 8, PlanId{1});
  CHECK(copies(pool, 1, 1).empty());
  // Before the next plan goes on, the state at 8 is copied.
  REQUIRE(pool.extend(Row{0}, 13));
  CHECK(zeroes(pool, 1).empty());
  pool.publish(Row{0}, content.view(), 13, PlanId{2});
  pool.plan_chunk(Row{0}, 13, PlanId{2});
  auto told = copies(pool, 1, 2);
  REQUIRE(told.size() == 1);
  CHECK(told[0].source == BlockId{0});
  CHECK(told[0].target == BlockId{1});
  CHECK(told[0].num_tokens == 1);
  pool.settle(PlanId{1});
  CHECK(matched(pool, content) == 0);
  pool.settle(PlanId{2});
  const PrefixMatch m = pool.match(content.view(), 12);
  CHECK(m.num_tokens == 8);  // 12 was passed in the middle of a chunk
  REQUIRE(pool.acquire(Row{1}, m));
  CHECK(pool.table(1, Row{1}).empty());
  REQUIRE(pool.extend(Row{1}, 9));
  told = copies(pool, 1, 3);
  REQUIRE(told.size() == 1);
  CHECK(told[0].source == BlockId{1});
  CHECK(told[0].target == pool.table(1, Row{1})[0]);
  CHECK(zeroes(pool, 1).empty());
  CHECK(pool.check().is_ok());
}

TEST_CASE("A state that a failed plan may have touched is void, its snapshots before it are not") {
  GroupedPool<> pool = make_pool({{kState, 8}}, 4);
  const Content content(count_from(100, 20), 8);
  compute(pool, Row{0}, content, 8, 1);
  REQUIRE(pool.extend(Row{0}, 12));
  pool.publish(Row{0}, content.view(), 12, PlanId{2});
  pool.plan_chunk(Row{0}, 12, PlanId{2});
  CHECK(copies(pool, 1, 2).size() == 1);
  SECTION("the chunk fails in a plan that ran") {
    pool.withdraw(Row{0}, 8);
    CHECK(pool.must_leave(Row{0}));
    pool.settle(PlanId{2});
    pool.release(Row{0});
    CHECK(copies(pool, 1, 3).empty());  // the state at 12 is nobody's
    CHECK(matched(pool, content) == 8);
  }
  SECTION("the plan is abandoned, and with it the copy") {
    pool.withdraw(Row{0}, 8);
    pool.lose_plan(PlanId{2});
    CHECK(pool.must_leave(Row{0}));
    pool.release(Row{0});
    pool.settle(PlanId{3});
    CHECK(matched(pool, content) == 0);
    CHECK(pool.group_stats(1).free_blocks == 8);
  }
  SECTION("from the first position on it starts over in place") {
    pool.withdraw(Row{0}, 0);
    CHECK_FALSE(pool.must_leave(Row{0}));
    REQUIRE(pool.extend(Row{0}, 4));
    CHECK(zeroes(pool, 1).size() == 1);
  }
  CHECK(pool.check().is_ok());
}

TEST_CASE("Rows come before snapshots") {
  // Two rows, three blocks: one snapshot at most, and none that a row still needs.
  GroupedPool<> pool = make_pool({{kState, 3}}, 2, {.max_rows = 2, .max_context_tokens = 64});
  const Content a(count_from(100, 9), 8);
  const Content b(count_from(500, 9), 8);
  compute(pool, Row{0}, a, 4, 1);
  compute(pool, Row{0}, a, 8, 2);
  compute(pool, Row{0}, a, 9, 3);
  pool.release(Row{0});
  CHECK(matched(pool, a) == 8);  // the newer one is left
  compute(pool, Row{0}, b, 1, 4);
  const PrefixMatch m = pool.match(a.view(), 8);
  CHECK(m.num_tokens == 8);
  REQUIRE(pool.acquire(Row{1}, m));
  REQUIRE(pool.extend(Row{1}, 9));  // its state, while the snapshot is still to be copied
  CHECK(pool.group_stats(1).referenced_blocks == 3);
  CHECK(copies(pool, 1, 5).size() == 1);
  CHECK(pool.group_stats(1).cached_blocks == 1);
  CHECK(pool.check().is_ok());
  // Without a block beyond one a row there are no snapshots.
  GroupedPool<> bare = make_pool({{kState, 2}}, 2, {.max_rows = 2, .max_context_tokens = 64});
  compute(bare, Row{0}, a, 4, 1);
  compute(bare, Row{0}, a, 9, 2);
  CHECK(matched(bare, a) == 0);
}

TEST_CASE("Chunks are cut so that they end where a state is worth keeping") {
  GroupedPool<> pool = make_pool({{kState, 8}}, 8);
  CHECK(pool.chunk_length(0, 5) == 5);
  CHECK(pool.chunk_length(0, 8) == 8);
  CHECK(pool.chunk_length(0, 30) == 24);
  CHECK(pool.chunk_length(24, 6) == 6);
  CHECK(pool.chunk_length(3, 20) == 13);
  CHECK(pool.chunk_length(8, 0) == 0);
  GroupedPool<> windows = make_pool({{window(4, 2), 200}});
  CHECK(windows.chunk_length(0, 30) == 30);
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 8, .block_size = 16};
  config.groups[0] = {window(8, 64), 8};
  CHECK(config.interval() == 512);
  config.groups[0].spec.block_size = 384;
  CHECK(config.interval() == 768);
}

TEST_CASE("Pins keep the windows and states of a prefix too") {
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 60, .block_size = 2};
  config.groups[0] = {window(4, 2), 300};
  config.groups[1] = {kState, 9};
  config.snapshot_interval_tokens = 8;
  Pinning<GroupedPool<>> pool({.pool = config, .max_pins = 2, .share_permille = 500});
  REQUIRE(pool.attach({.max_rows = 2, .max_context_tokens = 64}).is_ok());
  const Content content(count_from(100, 17), 8);
  compute(pool.pool(), Row{0}, content, 8, 1);
  compute(pool.pool(), Row{0}, content, 16, 2);
  compute(pool.pool(), Row{0}, content, 17, 3);
  pool.release(Row{0});
  REQUIRE(pool.pin(content.view(), 16, TimeNs{1000}).is_ok());
  CHECK(pool.pin(content.view(), 10, TimeNs{1000}).code == Errc::NotFound);  // no state there
  // Others come and go until nothing that isn't pinned is left.
  for (std::int32_t i = 1; i < 20; ++i) {
    const Content other(count_from(1000 * i, 33), 8);
    compute(pool.pool(), Row{0}, other, 32, static_cast<std::uint64_t>(10 * i));
    compute(pool.pool(), Row{0}, other, 33, static_cast<std::uint64_t>(10 * i + 1));
    pool.release(Row{0});
  }
  CHECK(pool.match(content.view(), 16).num_tokens == 16);
  CHECK(pool.check().is_ok());
  pool.unpin_expired(TimeNs{1001});
  CHECK(pool.clear());
  CHECK(pool.check().is_ok());
}

TEST_CASE("Windows need a small part of the memory that full attention needs") {
  // Gemma's proportions: five window layers to one full one, 1,024 tokens of 128k.
  const PoolAttachment attachment{.max_rows = 64,
                                  .max_context_tokens = 131072,
                                  .max_plans_in_flight = 1,
                                  .max_step_tokens = 8192};
  const GroupSpec spec = window(1024, 16);
  const std::int64_t full = attachment.max_rows * attachment.max_context_tokens / 16;
  CHECK(GroupedPool<>::blocks_needed(spec, attachment) == 64 * 1037 / 16 + 8256 / 16 + 2 + 64 + 64);
  CHECK(GroupedPool<>::blocks_needed(spec, attachment) * 100 < full);
  // Short contexts never cost more than they are long.
  CHECK(GroupedPool<>::blocks_needed(spec, {.max_rows = 4, .max_context_tokens = 32}) == 12);
}
