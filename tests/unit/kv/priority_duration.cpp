// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/priority_duration.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;

namespace {

std::vector<int> order_of(PriorityDuration order) {
  std::vector<int> ids;
  BlockId out[1];
  while (order.take(out) == 1) {
    ids.push_back(out[0].value);
  }
  return ids;
}
using Ids = std::vector<int>;

// A block of its own for each prompt.
void release(PriorityDuration& order, int block, std::int32_t priority, DurationNs duration) {
  const BlockId path[1] = {BlockId{block}};
  order.retain(path, {.priority = priority, .duration = duration});
  order.insert_backwards(path, 0);
}

}  // namespace

TEST_CASE("PriorityDuration gives up the lowest priority first, 35 where none was given") {
  PriorityDuration order;
  REQUIRE(order.attach(10).is_ok());
  release(order, 0, 100, kUnbounded);
  release(order, 1, 36, kUnbounded);
  const BlockId plain[1] = {BlockId{2}};
  order.insert_backwards(plain, 0);
  release(order, 3, 34, kUnbounded);
  release(order, 4, 0, kUnbounded);
  release(order, 5, 36, kUnbounded);
  CHECK(order_of(std::move(order)) == Ids{4, 3, 2, 1, 5, 0});
}

TEST_CASE("A priority falls to the default one after its duration, and never rises") {
  PriorityDuration order;
  REQUIRE(order.attach(10).is_ok());
  release(order, 0, 80, seconds(10));
  release(order, 1, 80, seconds(20));
  release(order, 2, 20, seconds(5));
  release(order, 3, 35, kUnbounded);
  release(order, 4, 80, kUnbounded);
  SECTION("before") {
    order.advance({seconds(10).ns - 1});
    CHECK(order_of(std::move(order)) == Ids{2, 3, 0, 1, 4});
  }
  SECTION("at the end of one") {
    order.advance({seconds(10).ns});
    CHECK(order_of(std::move(order)) == Ids{2, 3, 0, 1, 4});
  }
  SECTION("after both, by expiry") {
    release(order, 5, 35, kUnbounded);
    order.advance({seconds(100).ns});
    order.advance({seconds(99).ns});
    CHECK(order_of(std::move(order)) == Ids{2, 3, 5, 0, 1, 4});
  }
  SECTION("a use renews") {
    order.advance({seconds(10).ns});
    const BlockId used[1] = {BlockId{0}};
    order.erase(std::span(used));
    order.insert_backwards(used, 0);
    order.advance({seconds(19).ns});
    CHECK(order_of(std::move(order)) == Ids{2, 3, 1, 4, 0});
  }
  SECTION("content that goes takes its priority with it") {
    order.erase(BlockId{4});
    const BlockId again[1] = {BlockId{4}};
    order.insert_backwards(again, 0);
    CHECK(order_of(std::move(order)) == Ids{2, 3, 4, 0, 1});
  }
}

TEST_CASE("A head counts as much and as long as what lies behind it") {
  PriorityDuration order;
  REQUIRE(order.attach(20).is_ok());
  const BlockId path[4] = {BlockId{0}, BlockId{1}, BlockId{2}, BlockId{3}};
  order.retain(std::span(path).subspan(2, 1), {.priority = 60, .duration = seconds(10)});
  SECTION("released together") {
    order.insert_backwards(path, 0);
    const BlockId other[1] = {BlockId{9}};
    order.insert_backwards(other, 0);
    CHECK(order_of(std::move(order)) == Ids{3, 9, 2, 1, 0});
  }
  SECTION("released later") {
    order.insert_backwards(path, 2);
    order.insert_backwards(std::span(path).first(2), 0);
    release(order, 9, 50, kUnbounded);
    CHECK(order_of(std::move(order)) == Ids{3, 9, 2, 1, 0});
  }
  SECTION("a tail of low priority doesn't lower its head") {
    order.retain(std::span(path).subspan(2, 2), {.priority = 10});
    order.insert_backwards(std::span(path).first(2), 1);
    order.insert_backwards(std::span(path).first(1), 0);
    const BlockId low[1] = {BlockId{8}};
    order.retain(low, {.priority = 10});
    const BlockId both[2] = {BlockId{5}, BlockId{8}};
    order.insert_backwards(both, 1);
    order.insert_backwards(std::span(both).first(1), 0);
    release(order, 9, 30, kUnbounded);
    CHECK(order_of(std::move(order)) == Ids{8, 9, 1, 0, 5});
  }
}

TEST_CASE("Pairs of priority and duration beyond 32 at a time last for good") {
  PriorityDuration order;
  REQUIRE(order.attach(100).is_ok());
  for (int i = 0; i < 40; ++i) {
    release(order, i, 50, {1 + i});
  }
  order.advance({1000});
  release(order, 90, 35, kUnbounded);
  Ids expected;
  for (int i = 0; i < 32; ++i) {
    expected.push_back(i);
  }
  expected.push_back(90);
  for (int i = 32; i < 40; ++i) {
    expected.push_back(i);
  }
  CHECK(order_of(std::move(order)) == expected);
  SECTION("lists that have emptied serve new pairs") {
    PriorityDuration again;
    REQUIRE(again.attach(100).is_ok());
    for (int i = 0; i < 40; ++i) {
      release(again, i, 50, {1 + i});
      again.advance({10 * (i + 1)});
    }
    again.advance({10'000});
    release(again, 90, 36, kUnbounded);
    CHECK(order_of(std::move(again)).back() == 90);
  }
}

TEST_CASE("A pool passes retentions and time on to its eviction order") {
  BlockPool<PriorityDuration> pool({.num_blocks = 6, .block_size = 4});
  REQUIRE(pool.attach({.max_rows = 3, .max_context_tokens = 24}).is_ok());
  const kv_test::Content precious({1, 1, 1, 1, 2, 2, 2, 2}, 4);
  const kv_test::Content plain({3, 3, 3, 3, 4, 4, 4, 4}, 4);
  REQUIRE(kv_test::admit(pool, Row{0}, precious) == 0);
  CHECK(pool.retain(Row{0}, 0, 5, {.priority = 80, .duration = seconds(60)}).is_ok());
  pool.release(Row{0});
  REQUIRE(kv_test::admit(pool, Row{1}, plain) == 0);
  pool.release(Row{1});
  // Two blocks are free; the third comes from the plain prompt although that is younger.
  REQUIRE(pool.extend(Row{2}, 12));
  CHECK(pool.match(precious.view(), 8).num_blocks == 2);
  CHECK(pool.match(plain.view(), 8).num_blocks == 1);
  pool.unpin_expired(TimeNs{} + seconds(60));
  REQUIRE(pool.extend(Row{2}, 20));
  CHECK(pool.match(plain.view(), 8).num_blocks == 0);
  CHECK(pool.match(precious.view(), 8).num_blocks == 1);
  CHECK(pool.check().is_ok());
  SECTION("wrong ones are refused") {
    CHECK(pool.retain(Row{2}, 0, 20, {.priority = 101}).field == std::string("priority"));
    CHECK(pool.retain(Row{2}, 0, 20, {.duration = {0}}).field == std::string("duration"));
    CHECK(pool.retain(Row{2}, 0, 21, {}).field == std::string("tokens"));
    CHECK(pool.retain(Row{2}, 5, 4, {}).field == std::string("tokens"));
    CHECK(pool.retain(Row{-1}, 0, 0, {}).field == std::string("tokens"));
    CHECK(pool.retain(Row{2}, 20, 20, {}).is_ok());
    CHECK(pool.retain(Row{0}, 0, 0, {}).is_ok());
  }
  CHECK(PriorityDuration({.default_priority = 101}).attach(4).field ==
        std::string("default_priority"));
}
