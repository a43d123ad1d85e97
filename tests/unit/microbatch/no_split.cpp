// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/microbatch/no_split.hpp>

#include <catch2/catch.hpp>
#include <vector>

using namespace dynbatch;

TEST_CASE("no split leaves every step whole", "[microbatch]") {
  std::vector<Chunk> chunks(100);
  SplitInput in;
  in.chunks = chunks;
  in.num_tokens = 100;
  NoSplit splitter;
  CHECK(splitter.split(in).count == 0);
  CHECK(splitter.split({}).count == 0);
}
