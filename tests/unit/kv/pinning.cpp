// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/microbatch/no_split.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace dynbatch;
using kv_test::admit;
using kv_test::Content;
using kv_test::count_from;

namespace {

using Pool = Pinning<BlockPool<>>;

Pool make_pool(std::int64_t blocks, std::int32_t max_pins = 4, std::int32_t share = 500) {
  Pool pool({.pool = {.num_blocks = blocks, .block_size = 4},
             .max_pins = max_pins,
             .share_permille = share});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 400}).is_ok());
  return pool;
}

/// One request comes and goes.
std::int64_t pass(Pool& pool, Token first, std::int64_t tokens) {
  const Content content(count_from(first, tokens), 16);
  const std::int64_t hit = admit(pool, Row{0}, content);
  pool.release(Row{0});
  return hit;
}

}  // namespace

TEST_CASE("Pinning names the field of a bad configuration") {
  const auto field = [](Pool::Config config) { return std::string(config.validate().field); };
  CHECK(field({}) == "num_blocks");
  CHECK(field({.pool = {.num_blocks = 4}, .max_pins = 0}) == "max_pins");
  CHECK(field({.pool = {.num_blocks = 4}, .share_permille = 901}) == "share_permille");
  CHECK(field({.pool = {.num_blocks = 4}}).empty());
  for (const std::int32_t share : {-1, 0, 901, 1000, 1001, 2147483647}) {  // asked before attach()
    CHECK_FALSE(Pool({.pool = {.num_blocks = 4}, .share_permille = share}).can_ever_fit(4));
  }
}

TEST_CASE("A pin is no query of a request") {
  Pool pool = make_pool(100);
  pass(pool, 1, 200);
  pass(pool, 1, 200);
  const PoolStats before = pool.stats();
  REQUIRE(before.prefix_hit_tokens > 0);
  const Content shared(count_from(1, 200), 16);
  REQUIRE(pool.pin(shared.view(), 200, TimeNs{1000}).is_ok());
  REQUIRE(pool.pin(shared.view(), 200, TimeNs{2000}).is_ok());
  CHECK(pool.pin(shared.view(), 400, TimeNs{2000}).code == Errc::NotFound);
  CHECK(pool.stats().prefix_queries_tokens == before.prefix_queries_tokens);
  CHECK(pool.stats().prefix_hit_tokens == before.prefix_hit_tokens);
  pass(pool, 1, 200);
  CHECK(pool.stats().prefix_queries_tokens > before.prefix_queries_tokens);
}

TEST_CASE("A pinned prefix outlives one-off traffic, until its time is over") {
  Pool pool = make_pool(100);
  REQUIRE(pass(pool, 1, 200) == 0);
  const Content shared(count_from(1, 200), 16);
  REQUIRE(pool.pin(shared.view(), 200, TimeNs{1000}).is_ok());
  CHECK(pool.stats().pinned_blocks == 50);
  for (Token i = 0; i < 30; ++i) {
    CHECK(pass(pool, 10000 + 500 * i, 180) == 0);
    pool.unpin_expired(TimeNs{900});
    REQUIRE(pool.check().is_ok());
  }
  CHECK(pool.match(shared.view(), 200).num_tokens == 200);
  REQUIRE(pool.pin(shared.view(), 200, TimeNs{500}).is_ok());  // never shortened
  pool.unpin_expired(TimeNs{1000});                            // not over yet
  CHECK(pool.stats().pinned_blocks == 50);
  pool.unpin_expired(TimeNs{1001});
  CHECK(pool.stats().pinned_blocks == 0);
  for (Token i = 0; i < 30; ++i) {
    pass(pool, 50000 + 500 * i, 180);
  }
  CHECK(pool.match(shared.view(), 200).num_tokens == 0);
}

TEST_CASE("Pins are bounded, and say what is missing") {
  Pool pool = make_pool(40, 2);
  const Content absent(count_from(7000, 40), 16);
  CHECK(pool.pin(absent.view(), 40, TimeNs{9}).code == Errc::NotFound);
  std::vector<Content> prompts;
  for (Token i = 0; i < 3; ++i) {
    pass(pool, 1 + 100 * i, 40);
    prompts.emplace_back(count_from(1 + 100 * i, 40), 16);
  }
  CHECK(pool.pin(prompts[0].view(), 3, TimeNs{9}).code == Errc::NotFound);  // not one block
  REQUIRE(pool.pin(prompts[0].view(), 40, TimeNs{9}).is_ok());
  const Status much = pool.pin(prompts[1].view(), 40, TimeNs{9});
  REQUIRE(much.is_ok());  // 20 of 40 blocks, half of the pool
  const Status pins = pool.pin(prompts[2].view(), 4, TimeNs{9});
  CHECK(pins.code == Errc::QueueFull);
  CHECK(std::string(pins.field) == "max_pins");
  pool.unpin_expired(TimeNs{10});
  REQUIRE(pool.pin(prompts[0].view(), 40, TimeNs{20}).is_ok());
  Pool small = make_pool(40, 8, 250);
  pass(small, 1, 48);
  const Content big(count_from(1, 48), 16);
  const Status share = small.pin(big.view(), 48, TimeNs{9});
  CHECK(share.code == Errc::QueueFull);
  CHECK(share.value == 12);
  CHECK(share.limit == 10);
  REQUIRE(small.pin(big.view(), 40, TimeNs{9}).is_ok());
  CHECK(small.can_ever_fit(120));
  CHECK_FALSE(small.can_ever_fit(121));
  CHECK(small.clear());
  CHECK(small.stats().free_blocks == 40);
}

TEST_CASE("Content that is not written yet cannot be pinned") {
  Pool pool = make_pool(40);
  const Content content(count_from(1, 41), 16);
  REQUIRE(admit(pool, Row{1}, content, 41, PlanId{3}) == 0);
  CHECK(pool.pin(content.view(), 40, TimeNs{9}).code == Errc::NotFound);
  pool.settle(PlanId{3});
  CHECK(pool.pin(content.view(), 40, TimeNs{9}).is_ok());
  CHECK_FALSE(pool.clear());
  pool.release(Row{1});
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("Pinning tells the eviction order of its pool the time") {
  Pinning<BlockPool<PriorityDuration>> pool({.pool = {.num_blocks = 4, .block_size = 4}});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 16}).is_ok());
  const Content kept(count_from(1, 4), 16);
  const Content other(count_from(100, 4), 16);
  REQUIRE(admit(pool, Row{0}, kept) == 0);
  REQUIRE(pool.pool().retain(Row{0}, 0, 4, {.priority = 90, .duration = {100}}).is_ok());
  pool.release(Row{0});
  pool.unpin_expired(TimeNs{200});  // From now on it is worth no more than the other.
  REQUIRE(admit(pool, Row{1}, other) == 0);
  pool.release(Row{1});
  REQUIRE(pool.extend(Row{2}, 12));  // Evicts one of them, the older one.
  CHECK(pool.match(kept.view(), 4).num_blocks == 0);
  CHECK(pool.match(other.view(), 4).num_blocks == 1);
}
