// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/belady.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

TEST_CASE("Belady gives up what is used farthest ahead, never before anything") {
  Belady order({.num_times = 100});
  REQUIRE(order.attach(10).is_ok());
  const BlockId first[3] = {BlockId{0}, BlockId{1}, BlockId{2}};
  const std::int64_t uses[3] = {7, 50, 100};
  order.set_next_uses(uses);
  order.insert_backwards(first, 0);
  const BlockId second[4] = {BlockId{3}, BlockId{4}, BlockId{5}, BlockId{6}};
  const std::int64_t other_uses[3] = {8, 50, 99};
  order.set_next_uses(other_uses);  // Beyond them: never.
  order.insert_backwards(second, 0);
  BlockId out[8];
  REQUIRE(order.take(out) == 7);
  const int expected[7] = {2, 6, 5, 1, 4, 3, 0};
  for (int i = 0; i < 7; ++i) {
    CHECK(out[i].value == expected[i]);
  }
  CHECK(Belady({.num_times = 0}).attach(4).field == std::string("num_times"));
}
