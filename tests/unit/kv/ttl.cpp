// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/ttl.hpp>

#include <catch2/catch.hpp>
#include <span>
#include <string>

using namespace dynbatch;

TEST_CASE("Ttl gives up what is expired before what its inner order would") {
  Ttl<Slru> order;
  REQUIRE(order.attach(10).is_ok());
  const BlockId old[1] = {BlockId{4}};
  order.note_hit(old);
  order.insert_backwards(old, 0);
  order.advance(TimeNs{} + seconds(1000));
  const BlockId scan[1] = {BlockId{6}};
  order.insert_backwards(scan, 0);
  CHECK(order.victim() == BlockId{6});
  order.advance(TimeNs{} + seconds(1799));
  CHECK(order.victim() == BlockId{6});
  order.advance(TimeNs{} + seconds(1800));
  CHECK(order.victim() == BlockId{4});
  SECTION("a use renews") {
    order.note_hit(old);
    order.erase(std::span(old));
    order.insert_backwards(old, 0);
    CHECK(order.victim() == BlockId{6});
    order.advance(TimeNs{} + seconds(3600));
    BlockId out[3];
    CHECK(order.take(out) == 2);
    CHECK(out[0] == BlockId{6});
  }
  SECTION("time never steps back") {
    order.advance(TimeNs{});
    CHECK(order.victim() == BlockId{4});
  }
}

TEST_CASE("Ttl refuses times that are none, and what its inner order refuses") {
  Ttl<> order({.ttl = {0}});
  CHECK(order.attach(4).field == std::string("ttl"));
  Ttl<Lfu> inner({}, Lfu({.half_life_percent = 0}));
  CHECK(inner.attach(4).field == std::string("half_life_percent"));
}
