// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/kv_event_log.hpp>

#include <catch2/catch.hpp>
#include <cstdint>

using namespace dynbatch;

TEST_CASE("KvEventLog numbers events and loses the oldest with a gap") {
  KvEventLog log;
  CHECK_FALSE(log.is_on());
  REQUIRE(log.attach(3).is_ok());
  CHECK(log.is_on());
  for (int i = 0; i < 5; ++i) {
    log.push(KvEvent{});
  }
  KvEvent out[2];
  REQUIRE(log.drain(out) == 2);
  CHECK(out[0].sequence == 3);
  CHECK(out[1].sequence == 4);
  log.push(KvEvent{});
  REQUIRE(log.drain(out) == 2);
  CHECK(out[0].sequence == 5);
  CHECK(out[1].sequence == 6);
  CHECK(log.drain(out) == 0);
}
