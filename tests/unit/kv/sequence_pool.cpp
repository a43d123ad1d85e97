// SPDX-License-Identifier: Apache-2.0
/// \file
/// SequencePool against a host that keeps cells by sequence, and step by step.
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/sequence_pool.hpp>

#include "content.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

using namespace dynbatch;
using kv_test::admit;
using kv_test::Content;
using kv_test::count_from;

namespace {

constexpr std::int32_t kEnd = std::numeric_limits<std::int32_t>::max();

SequencePool make_pool(std::int64_t tokens, std::int32_t rows, std::int32_t handles,
                       std::int32_t block_size = 4) {
  SequencePool pool({.num_tokens = tokens, .block_size = block_size});
  REQUIRE(pool.attach({.max_rows = rows, .max_context_tokens = 256, .sequence_handles = handles})
              .is_ok());
  return pool;
}

std::vector<RowOp> drain(SequencePool& pool) {
  std::vector<RowOp> ops(500);
  ops.resize(pool.drain_row_ops(ops));
  return ops;
}

/// "share 0>5 [0,8)" or "drop 3 [4,)".
std::string text(const RowOp& op) {
  const std::string range =
      "[" + std::to_string(op.first) + "," + (op.last == kEnd ? "" : std::to_string(op.last)) + ")";
  return op.kind == RowOpKind::ShareRange ? "share " + std::to_string(op.source.value) + ">" +
                                                std::to_string(op.target.value) + " " + range
                                          : "drop " + std::to_string(op.target.value) + " " + range;
}
std::vector<std::string> texts(SequencePool& pool) {
  std::vector<std::string> all;
  for (const RowOp& op : drain(pool)) {
    all.push_back(text(op));
  }
  return all;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("SequencePool names the field of a bad configuration") {
  const auto field = [](SequencePool::Config config, std::int32_t handles = 4) {
    SequencePool pool(config);
    return std::string(
        pool.attach({.max_rows = 2, .max_context_tokens = 64, .sequence_handles = handles}).field);
  };
  CHECK(field({}) == "num_tokens");
  CHECK(field({.num_tokens = 15}) == "num_tokens");
  CHECK(field({.num_tokens = 64, .block_size = 0}) == "block_size");
  CHECK(field({.num_tokens = 64}, 1) == "capabilities.sequence_handles");
  CHECK(field({.num_tokens = 64}).empty());
}

TEST_CASE("A row that leaves parks its prefix, and the next one shares it") {
  SequencePool pool = make_pool(64, 2, 4);
  const Content a(count_from(1, 10), 16);
  CHECK(admit(pool, Row{0}, a, 10, PlanId{1}) == 0);
  pool.settle(PlanId{1});
  CHECK(texts(pool).empty());
  pool.release(Row{0});
  CHECK(texts(pool) == Texts{"share 0>3 [0,8)", "drop 0 [0,)"});
  CHECK(pool.stats().cached_blocks == 2);
  CHECK(pool.stats().referenced_blocks == 0);
  CHECK(pool.num_parked() == 1);
  const Content b(kv_test::then(count_from(1, 8), 5, 99), 16);
  CHECK(admit(pool, Row{1}, b, 13, PlanId{2}) == 8);
  CHECK(texts(pool) == Texts{"share 3>1 [0,8)"});
  CHECK(pool.stats().cached_blocks == 0);
  CHECK(pool.stats().referenced_blocks == 4);
  pool.settle(PlanId{2});
  // The longer prefix takes the place of the one it grew from.
  pool.release(Row{1});
  CHECK(texts(pool) == Texts{"drop 3 [0,)", "share 1>3 [0,12)", "drop 1 [0,)"});
  CHECK(pool.num_parked() == 1);
  CHECK(pool.stats().cached_blocks == 3);
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("What was not written, or what others hold, is not parked") {
  SequencePool pool = make_pool(64, 3, 6);
  const Content a(count_from(1, 9), 16);
  CHECK(admit(pool, Row{0}, a, 9, PlanId{5}) == 0);
  pool.release(Row{0});  // plan 5 was never settled
  CHECK(texts(pool) == Texts{"drop 0 [0,)"});
  CHECK(pool.stats().free_blocks == 16);
  CHECK(admit(pool, Row{0}, a, 9, PlanId{6}) == 0);
  pool.settle(PlanId{6});
  CHECK(admit(pool, Row{1}, a, 9, PlanId{7}) == 8);  // from the running row
  CHECK(texts(pool) == Texts{"share 0>1 [0,8)"});
  pool.release(Row{0});
  CHECK(texts(pool) == Texts{"drop 0 [0,)"});
  pool.release(Row{1});
  CHECK(texts(pool) == Texts{"share 1>5 [0,8)", "drop 1 [0,)"});
}

TEST_CASE("Parked prefixes make room, tail first, the one used longest ago before others") {
  SequencePool pool = make_pool(32, 2, 5);
  std::uint64_t plan = 0;
  const auto cache = [&](Token first, std::int64_t n) {
    const Content c(count_from(first, n), 16);
    REQUIRE(admit(pool, Row{0}, c, n, PlanId{++plan}) >= 0);
    pool.settle(PlanId{plan});
    pool.release(Row{0});
  };
  cache(100, 12);
  cache(200, 8);
  cache(300, 8);
  CHECK(pool.stats().free_blocks == 1);
  CHECK(pool.num_parked() == 3);
  drain(pool);
  REQUIRE(pool.extend(Row{1}, 12));  // three blocks: two of the first prefix's tail
  CHECK(texts(pool) == Texts{"drop 4 [4,)"});
  REQUIRE(pool.extend(Row{1}, 24));
  CHECK(texts(pool) == Texts{"drop 4 [0,)", "drop 3 [0,)"});
  CHECK(pool.num_parked() == 1);
  CHECK_FALSE(pool.extend(Row{1}, 36));
  REQUIRE(pool.check().is_ok());
  CHECK_FALSE(pool.clear());
  pool.release(Row{1});
  CHECK(pool.clear());
  CHECK(pool.stats().free_blocks == 8);
}

TEST_CASE("Rows are rewound and forked by operations in their order") {
  SequencePool pool = make_pool(64, 3, 4);
  const Content a(count_from(1, 10), 16);
  CHECK(admit(pool, Row{0}, a, 10, PlanId{1}) == 0);
  pool.settle(PlanId{1});
  REQUIRE(pool.fork(Row{0}, Row{1}, 10).is_ok());
  pool.rewind(Row{0}, 9);
  pool.rewind(Row{0}, 8);
  pool.truncate(Row{1}, 0);
  REQUIRE(pool.fork(Row{0}, Row{1}, 8).is_ok());
  CHECK(texts(pool) == Texts{"share 0>1 [0,10)", "drop 0 [8,)", "drop 1 [0,)", "share 0>1 [0,8)"});
  CHECK(pool.fork(Row{0}, Row{3}, 4).code == Errc::InvalidArgument);
  REQUIRE(pool.check().is_ok());
}

TEST_CASE("A host that does the operations always has the cells that the pool counts") {
  // Positions of a row hold the content they should, and distinct cells never exceed the pool.
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    SplitMix64 rng(seed);
    constexpr std::int32_t kRows = 4;
    const auto handles = static_cast<std::int32_t>(kRows + rng.between(0, 4));
    const std::int64_t tokens = rng.between(12, 40) * 4;
    SequencePool pool = make_pool(tokens, kRows, handles);
    struct Cell {
      Token token;
      std::int64_t id;
    };
    std::map<std::int32_t, std::vector<Cell>> host;
    std::map<std::int32_t, std::vector<Token>> rows;  // what each running row should hold
    std::int64_t next_cell = 0;
    std::uint64_t plan = 0;
    std::int64_t hits = 0;
    const auto apply = [&] {
      for (const RowOp& op : drain(pool)) {
        std::vector<Cell>& target = host[op.target.value];
        if (op.kind == RowOpKind::DropRange) {
          target.resize(std::min<std::size_t>(target.size(), static_cast<std::size_t>(op.first)));
        } else {
          const std::vector<Cell>& source = host[op.source.value];
          REQUIRE(static_cast<std::size_t>(op.last) <= source.size());
          target.assign(source.begin(), source.begin() + op.last);
        }
      }
    };
    for (int i = 0; i < 400; ++i) {
      const Row row{static_cast<std::int32_t>(rng.between(0, kRows - 1))};
      if (rows.count(row.value) == 0) {
        std::vector<Token> prompt;
        const std::int64_t length = rng.between(1, 60);
        const std::int64_t family = rng.between(0, 2);
        const std::int64_t fork = rng.between(0, length);
        for (std::int64_t p = 0; p < length; ++p) {
          prompt.push_back(static_cast<Token>(p < fork ? family * 1000 + p : 9000 + i * 64 + p));
        }
        const Content content(prompt, 64);
        const PrefixMatch match = pool.match(content.view(), length - 1);
        REQUIRE(pool.acquire(row, match));
        hits += match.num_tokens;
        if (!pool.extend(row, length)) {
          pool.release(row);
          continue;
        }
        pool.publish(row, content.view(), length, PlanId{++plan});
        apply();
        REQUIRE(host[row.value].size() == static_cast<std::size_t>(match.num_tokens));
        for (std::int64_t p = 0; p < length; ++p) {
          if (p < match.num_tokens) {
            CHECK(host[row.value][static_cast<std::size_t>(p)].token ==
                  prompt[static_cast<std::size_t>(p)]);
          } else {
            host[row.value].push_back({prompt[static_cast<std::size_t>(p)], next_cell++});
          }
        }
        rows[row.value] = prompt;
        if (rng.one_in(5)) {
          pool.withdraw(row, match.num_tokens);  // its plan did not run
        }
        pool.settle(PlanId{plan});
      } else {
        pool.release(row);
        rows.erase(row.value);
        apply();
      }
      std::set<std::int64_t> cells;
      for (const auto& [handle, held] : host) {
        for (const Cell& cell : held) {
          cells.insert(cell.id);
        }
      }
      CHECK(static_cast<std::int64_t>(cells.size()) <= tokens);
      REQUIRE(pool.check().is_ok());
    }
    CHECK(hits > 0);
  }
}
