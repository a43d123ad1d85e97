// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/detail/aged_lists.hpp>
#include <dynbatch/kv/lfu.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

using namespace dynbatch;

namespace {

// A stream of prompts of one block that nobody finds again passes through the order.
void release_others(Lfu& lfu, int count) {
  for (int i = 0; i < count; ++i) {
    const BlockId path[1] = {BlockId{50 + i % 50}};
    lfu.insert_backwards(path, 0);
    lfu.erase(path[0]);
  }
}

}  // namespace

TEST_CASE("Lfu keeps what is found often for half lives longer") {
  Lfu lfu({.half_life_percent = 100});
  REQUIRE(lfu.attach(100).is_ok());
  const BlockId favourite[1] = {BlockId{0}};
  for (int i = 0; i < 3; ++i) {
    lfu.note_hit(favourite);
  }
  lfu.insert_backwards(favourite, 0);
  // Four times as much worth as one that was never found: two half lives of 100 releases.
  const BlockId other[1] = {BlockId{1}};
  release_others(lfu, 198);
  lfu.insert_backwards(other, 0);
  CHECK(lfu.victim() == BlockId{1});
  lfu.erase(std::span(other));
  release_others(lfu, 2);
  lfu.insert_backwards(other, 0);
  CHECK(lfu.victim() == BlockId{0});
}

TEST_CASE("Lfu forgets how often a block was found with its content") {
  Lfu lfu;
  REQUIRE(lfu.attach(100).is_ok());
  const BlockId pair[2] = {BlockId{0}, BlockId{1}};
  lfu.note_hit(pair);
  lfu.insert_backwards(pair, 0);
  BlockId out[1];
  REQUIRE(lfu.take(out) == 1);
  REQUIRE(out[0] == BlockId{1});
  lfu.insert_backwards(out, 0);
  CHECK(lfu.victim() == BlockId{1});
  lfu.erase(BlockId{0});
  lfu.insert_backwards({pair, 1}, 0);
  CHECK(lfu.victim() == BlockId{1});
  CHECK(Lfu({.half_life_percent = 100'001}).attach(4).field == std::string("half_life_percent"));
}

TEST_CASE("The integer logarithm is right to a tenth of an octave and never falls") {
  CHECK(detail::log2_q8(0) == 0);
  CHECK(detail::log2_q8(1) == 0);
  CHECK(detail::log2_q8(2) == 256);
  CHECK(detail::log2_q8(std::uint64_t{1} << 63U) == 63 * 256);
  CHECK(detail::log2_q8(~std::uint64_t{0}) == 63 * 256 + 255);
  std::int64_t before = 0;
  for (std::uint64_t v = 1; v < 100'000; v += 1 + v / 50) {
    const std::int64_t log = detail::log2_q8(v);
    CHECK(log >= before);
    CHECK(std::fabs(static_cast<double>(log) / 256.0 - std::log2(static_cast<double>(v))) < 0.1);
    before = log;
  }
}
