// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/slru.hpp>

#include <catch2/catch.hpp>
#include <span>
#include <string>

using namespace dynbatch;

TEST_CASE("Slru gives up what was never found first") {
  Slru slru;
  REQUIRE(slru.attach(10).is_ok());
  const BlockId chat[2] = {BlockId{0}, BlockId{1}};
  slru.insert_backwards(chat, 0);
  slru.note_hit(chat);
  slru.erase(std::span(chat));
  slru.insert_backwards(chat, 0);
  const BlockId scan[3] = {BlockId{5}, BlockId{6}, BlockId{7}};
  slru.insert_backwards(scan, 0);
  BlockId out[4];
  CHECK(slru.take(out) == 4);
  CHECK(out[0] == BlockId{7});
  CHECK(out[2] == BlockId{5});
  CHECK(out[3] == BlockId{1});
  SECTION("and forgets hits with the content") {
    slru.insert_backwards({&out[3], 1}, 0);
    slru.insert_backwards(scan, 0);
    CHECK(slru.victim() == BlockId{1});
  }
}

TEST_CASE("Slru protects a share of the pool only") {
  Slru slru({.protected_percent = 20});
  REQUIRE(slru.attach(10).is_ok());
  for (int b = 0; b < 3; ++b) {
    const BlockId path[1] = {BlockId{b}};
    slru.note_hit(path);
    slru.insert_backwards(path, 0);
  }
  // Two are protected; the oldest stands behind what comes in now.
  const BlockId path[1] = {BlockId{9}};
  slru.insert_backwards(path, 0);
  BlockId out[4];
  REQUIRE(slru.take(out) == 4);
  CHECK(out[0] == BlockId{0});
  CHECK(out[1] == BlockId{9});
  CHECK(out[2] == BlockId{1});
  Slru odd({.protected_percent = 101});
  CHECK(odd.attach(10).field == std::string("protected_percent"));
}
