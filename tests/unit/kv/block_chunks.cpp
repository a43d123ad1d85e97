// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/block_store.hpp>
#include <dynbatch/kv/detail/block_chunks.hpp>
#include <dynbatch/kv/lru.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

using namespace dynbatch;
using detail::kChunk;

namespace {

std::vector<BlockId> stretch(std::int32_t first, std::int32_t step, std::size_t count) {
  std::vector<BlockId> path;
  for (std::size_t i = 0; i < count; ++i) {
    path.push_back(BlockId{first + step * static_cast<std::int32_t>(i)});
  }
  return path;
}

// All ids below `n` once, in stretches that rise, fall or jump.
std::vector<BlockId> shuffled_stretches(SplitMix64& random, std::int32_t n) {
  std::vector<std::vector<BlockId>> parts;
  for (std::int32_t first = 0; first < n;) {
    const auto count = static_cast<std::int32_t>(
        std::min<std::int64_t>(n - first, random.one_in(3) ? 1 : random.between(1, 70)));
    auto part = stretch(first, 1, static_cast<std::size_t>(count));
    if (random.one_in(2)) {
      std::reverse(part.begin(), part.end());
    }
    parts.push_back(part);
    first += count;
  }
  for (std::size_t i = parts.size(); i > 1; --i) {
    std::swap(parts[i - 1],
              parts[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  }
  std::vector<BlockId> path;
  for (const auto& part : parts) {
    path.insert(path.end(), part.begin(), part.end());
  }
  return path;
}

}  // namespace

TEST_CASE("A chunk is told by its ids, up or down, all of them") {
  for (const std::int32_t step : {1, -1}) {
    auto path = stretch(100, step, kChunk);
    CHECK(detail::chunk_at(path.data()).step == step);
    CHECK(detail::chunk_at(path.data()).lowest == (step > 0 ? 100 : 85));
    for (std::size_t k = 0; k < kChunk; ++k) {
      const BlockId kept = std::exchange(path[k], BlockId{777});
      INFO(k);
      CHECK(detail::chunk_at(path.data()).step == 0);
      path[k] = kept;
    }
  }
  CHECK(detail::chunk_at(stretch(4, 2, kChunk).data()).step == 0);
  CHECK(detail::chunk_at(stretch(4, 0, kChunk).data()).step == 0);
}

TEST_CASE("What is asked of all values of a chunk is asked of each") {
  std::int32_t values[kChunk];
  std::fill(std::begin(values), std::end(values), 1);
  CHECK(detail::are_one(values));
  CHECK(detail::are_positive(values));
  for (std::int32_t& value : values) {
    for (const std::int32_t odd : {0, -1, 2, 1 << 30, -(1 << 30)}) {
      value = odd;
      CHECK_FALSE(detail::are_one(values));
      CHECK(detail::are_positive(values) == (odd > 0));
    }
    value = 1;
  }
}

TEST_CASE("Lru keeps long paths in order, whatever their ids") {
  const auto seed = GENERATE(range(1, 40));
  INFO("seed " << seed);
  SplitMix64 random(static_cast<std::uint64_t>(seed));
  const std::int32_t n = static_cast<std::int32_t>(random.between(30, 400));
  const auto path = shuffled_stretches(random, n);
  Lru lru;
  REQUIRE(lru.attach(n).is_ok());
  // Released in a few parts, each from its end back.
  std::vector<BlockId> expected;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t count = std::min<std::size_t>(
        path.size() - begin, static_cast<std::size_t>(random.between(1, 200)));
    const auto part = std::span(path).subspan(begin, count);
    lru.insert_backwards(part);
    expected.insert(expected.end(), part.rbegin(), part.rend());
    begin += count;
  }
  std::vector<BlockId> listed;
  for (BlockId b = lru.front(); b != kNoBlock && listed.size() <= path.size(); b = lru.after(b)) {
    listed.push_back(b);
  }
  REQUIRE(listed == expected);
  // The links back hold too: whoever leaves, leaves the others in order.
  for (int i = 0; i < 10; ++i) {
    const auto at = random.between(0, static_cast<std::int64_t>(expected.size()) - 1);
    lru.erase(expected[static_cast<std::size_t>(at)]);
    expected.erase(expected.begin() + at);
  }
  std::vector<BlockId> out(path.size());
  REQUIRE(lru.take(out) == expected.size());
  out.resize(expected.size());
  CHECK(out == expected);
}

TEST_CASE("A store keeps long paths and nothing else of their neighbours") {
  const auto seed = GENERATE(range(1, 20));
  INFO("seed " << seed);
  SplitMix64 random(static_cast<std::uint64_t>(seed));
  constexpr std::int32_t kBlocks = 300;
  BlockStore<> store;
  REQUIRE(store.attach(kBlocks).is_ok());
  for (int i = 0; i < kBlocks; ++i) {
    REQUIRE(store.allocate() != kNoBlock);
  }
  const auto path = shuffled_stretches(random, kBlocks);
  const auto first = static_cast<std::size_t>(random.between(0, 200));
  const auto end = static_cast<std::size_t>(random.between(static_cast<std::int64_t>(first), 300));
  for (std::size_t i = first; i < end; ++i) {
    store.drop_only_reference(path[i]);
  }
  store.keep_backwards(std::span(path).first(end), first);
  for (std::size_t i = 0; i < path.size(); ++i) {
    INFO(i);
    CHECK(store.references(path[i]) == (i >= first && i < end ? 0 : 1));
  }
  CHECK(store.num_cached() == static_cast<std::int64_t>(end - first));
  CHECK(store.check().is_ok());
}
