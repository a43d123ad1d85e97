// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/cost_aware.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

// Attention costs as much as all else at position 1,600.
CostAware::Config steep() {
  CostAware::Config config;
  config.cost = {.prefill_token_ps = 16'000'000, .attention_pair_fs = 10'000'000};
  return config;
}

std::vector<BlockId> path_of(int first, int count) {
  std::vector<BlockId> path;
  for (int i = 0; i < count; ++i) {
    path.push_back(BlockId{first + i});
  }
  return path;
}

}  // namespace

TEST_CASE("CostAware counts quarter octaves of the time to compute a block again") {
  CostAware order(steep());
  CHECK(order.level_of(0) == 0);
  CHECK(order.level_of(100) == 3);  // 3,200 / 1,608: a hair less than an octave.
  CHECK(order.level_of(101) == 4);
  CHECK(order.level_of(1'000'000) == 15);
  CHECK(CostAware().level_of(1000) == 0);
}

TEST_CASE("CostAware gives up a short prompt before an equally old long one, tail first") {
  CostAware order(steep());
  REQUIRE(order.attach(1000).is_ok());
  const auto longer = path_of(0, 300);
  const auto shorter = path_of(500, 10);
  order.insert_backwards(longer, 0);
  order.insert_backwards(shorter, 0);
  BlockId out[11];
  REQUIRE(order.take(out) == 11);
  CHECK(out[0] == BlockId{509});
  CHECK(out[9] == BlockId{500});
  CHECK(out[10] == BlockId{299});
}

TEST_CASE("A head that is in use learns what its tail costs") {
  CostAware order(steep());
  REQUIRE(order.attach(1000).is_ok());
  const auto path = path_of(0, 300);
  order.insert_backwards(path, 10);
  order.insert_backwards(path_of(400, 20), 0);
  order.insert_backwards(std::span(path).first(10), 0);
  CHECK(order.victim() == BlockId{419});
  BlockId out[21];
  REQUIRE(order.take(out) == 21);
  CHECK(out[20] == BlockId{299});
}

TEST_CASE("CostAware refuses negative costs and odd blocks") {
  CostAware::Config config = steep();
  config.cost.attention_pair_fs = -1;
  CHECK(CostAware(config).attach(4).field == std::string("cost"));
  config = steep();
  config.block_size = 0;
  CHECK(CostAware(config).attach(4).field == std::string("block_size"));
  config = steep();
  config.half_life_percent = 0;
  CHECK(CostAware(config).attach(4).field == std::string("half_life_percent"));
}
