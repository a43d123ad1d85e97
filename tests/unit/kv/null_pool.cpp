// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/null_pool.hpp>

#include <catch2/catch.hpp>
#include <limits>

using namespace dynbatch;

TEST_CASE("NullPool lets everything fit and holds nothing") {
  NullPool pool;
  REQUIRE(pool.attach({}).is_ok());
  CHECK(pool.groups().empty());
  CHECK(pool.can_ever_fit(std::numeric_limits<std::int64_t>::max()));
  CHECK(pool.extend(Row{0}, 1000000));
  CHECK(pool.table(0, Row{0}).empty());
  CHECK(pool.match({}, 100).num_tokens == 0);
  CHECK(pool.acquire(Row{0}, {}));
  CHECK(pool.stats().available_blocks() == NullPool::kUnlimitedBlocks);
  CHECK(pool.resize(4).code == Errc::NotSupported);
  CHECK(pool.clear());
}
