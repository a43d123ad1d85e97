// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/trace.hpp>
#include <dynbatch/sim/workload.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string>
#include <vector>

using dynbatch::CacheReplayRun;
using dynbatch::replay_cache;
using dynbatch::Trace;

namespace {

// Prompts of a few chats that go on, fork and end, in blocks of 512 tokens with prefix-chained ids.
Trace make_trace(std::uint64_t num_requests) {
  Trace trace;
  trace.hash_block_tokens = 512;
  std::uint64_t state = 12345;
  const auto random = [&](std::uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33U) % n;
  };
  std::vector<std::vector<std::uint64_t>> chats(7, std::vector<std::uint64_t>{0});
  std::uint64_t next_id = 1;
  for (std::uint64_t i = 0; i < num_requests; ++i) {
    auto& chat = chats[random(chats.size())];
    if (random(5) == 0) {
      chat.resize(1 + random(chat.size()));  // An earlier turn is taken up again.
    }
    for (std::uint64_t k = random(4); k > 0; --k) {
      chat.push_back(next_id++);
    }
    dynbatch::TraceRequest r;
    r.arrival_ns = static_cast<std::int64_t>(i);
    r.input_tokens = static_cast<std::int64_t>(chat.size()) * 512;
    r.output_tokens = 1;
    r.first_hash = trace.hash_ids.size();
    r.num_hashes = static_cast<std::int64_t>(chat.size());
    trace.hash_ids.insert(trace.hash_ids.end(), chat.begin(), chat.end());
    trace.requests.push_back(r);
  }
  return trace;
}

// A list of ids, oldest first; a prompt's last block is older than its first.
std::int64_t reference_hits(const Trace& trace, std::size_t num_blocks) {
  std::list<std::uint64_t> cache;
  std::int64_t hits = 0;
  for (const auto& r : trace.requests) {
    const auto first = trace.hash_ids.begin() + static_cast<std::ptrdiff_t>(r.first_hash);
    const auto n = std::min(static_cast<std::ptrdiff_t>(num_blocks),
                            static_cast<std::ptrdiff_t>(r.num_hashes));
    const std::vector<std::uint64_t> ids(first, first + n);
    std::size_t found = 0;
    while (found < ids.size() && std::find(cache.begin(), cache.end(), ids[found]) != cache.end()) {
      cache.remove(ids[found++]);
    }
    hits += static_cast<std::int64_t>(found) * 512;
    // Copies can't exist: an id behind a missing one was evicted before it.
    while (!cache.empty() && cache.size() + ids.size() > num_blocks) {
      cache.pop_front();
    }
    cache.insert(cache.end(), ids.rbegin(), ids.rend());
  }
  return hits;
}

// The same where who is used farthest ahead goes first, the deeper one among equals.
std::int64_t clairvoyant_hits(const Trace& trace, std::size_t num_blocks) {
  struct Cached {
    std::uint64_t id;
    std::size_t next_use;
    std::size_t depth;
  };
  const auto ids_of = [&](std::size_t i) {
    const auto& r = trace.requests[i];
    const auto first = trace.hash_ids.begin() + static_cast<std::ptrdiff_t>(r.first_hash);
    const auto n = std::min(static_cast<std::ptrdiff_t>(num_blocks),
                            static_cast<std::ptrdiff_t>(r.num_hashes));
    return std::vector<std::uint64_t>(first, first + n);
  };
  std::vector<Cached> cache;
  std::int64_t hits = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const std::vector<std::uint64_t> ids = ids_of(i);
    std::size_t found = 0;
    for (; found < ids.size(); ++found) {
      const auto it = std::find_if(cache.begin(), cache.end(),
                                   [&](const Cached& c) { return c.id == ids[found]; });
      if (it == cache.end()) {
        break;
      }
      cache.erase(it);
    }
    hits += static_cast<std::int64_t>(found) * 512;
    while (!cache.empty() && cache.size() + ids.size() > num_blocks) {
      cache.erase(
          std::max_element(cache.begin(), cache.end(), [](const Cached& a, const Cached& b) {
            return a.next_use != b.next_use ? a.next_use < b.next_use : a.depth < b.depth;
          }));
    }
    for (std::size_t depth = 0; depth < ids.size(); ++depth) {
      std::size_t next = i + 1;
      for (; next < trace.requests.size(); ++next) {
        const auto later = ids_of(next);
        if (std::find(later.begin(), later.end(), ids[depth]) != later.end()) {
          break;
        }
      }
      cache.push_back({ids[depth], next, depth});
    }
  }
  return hits;
}

}  // namespace

TEST_CASE(
    "a cache replay that knows the future finds what an exhaustive one does, and no less "
    "than any other",
    "[sim][cache]") {
  const Trace trace = make_trace(300);
  for (const std::int64_t num_blocks : {1, 7, 30, 60, 200}) {
    INFO(num_blocks);
    std::vector<std::int64_t> hits;
    for (const auto& e : dynbatch::kCacheEvictions) {
      const CacheReplayRun run = replay_cache(
          trace, {.num_blocks = num_blocks, .block_size = 512, .eviction = e.eviction});
      REQUIRE(run.is_ok());
      CHECK(run.num_requests == 300);
      hits.push_back(run.hit_tokens);
    }
    CHECK(dynbatch::kCacheEvictions.back().name == "belady");
    CHECK(hits.back() == clairvoyant_hits(trace, static_cast<std::size_t>(num_blocks)));
    CHECK(*std::max_element(hits.begin(), hits.end()) == hits.back());
    // Without priorities, and with times of an instant, these are least recently used.
    CHECK(hits[1] == hits[0]);
    CHECK(hits[4] == hits[0]);
  }
}

TEST_CASE("a cache replay finds what a list of least recently used blocks finds", "[sim][cache]") {
  const Trace trace = make_trace(400);
  for (const std::int64_t num_blocks : {1, 7, 30, 60, 200, 100'000}) {
    INFO(num_blocks);
    const CacheReplayRun run = replay_cache(trace, {.num_blocks = num_blocks, .block_size = 512});
    REQUIRE(run.is_ok());
    CHECK(run.num_requests == 400);
    CHECK(run.hit_tokens == reference_hits(trace, static_cast<std::size_t>(num_blocks)));
    CHECK(run.hit_tokens <= run.input_tokens);
  }
}

TEST_CASE("a cache replay gives its golden figures", "[sim][cache]") {
  const Trace trace = make_trace(400);
  const CacheReplayRun run = replay_cache(trace, {.num_blocks = 60, .block_size = 512});
  REQUIRE(run.is_ok());
  CHECK(run.input_tokens == 3'229'696);
  CHECK(run.hit_tokens == 1'598'464);
  CHECK(run.num_requests_hit == 399);
  CHECK(run.evictions == 3'126);
  // Found heads are cheaper than the tails that were not.
  CHECK(run.saved_ratio() == Approx(0.48382).margin(0.000005));
  CHECK(run.saved_ratio() < run.hit_ratio());
  CHECK(run.num_cut == 0);
}

TEST_CASE("a cache replay counts a last block that is not full, once its ids are known",
          "[sim][cache]") {
  Trace trace;
  trace.hash_block_tokens = 512;
  trace.hash_ids = {4, 5, 4, 5, 4, 5, 6};
  for (std::uint64_t i = 0; i < 3; ++i) {
    dynbatch::TraceRequest r;
    r.input_tokens = 600;
    r.output_tokens = 1;
    r.first_hash = i * 2;
    r.num_hashes = 2;
    trace.requests.push_back(r);
  }
  const auto hits = [&](std::int32_t block_size) {
    const CacheReplayRun run = replay_cache(trace, {.num_blocks = 500, .block_size = block_size});
    REQUIRE(run.is_ok());
    CHECK(run.input_tokens == 1800);
    return run.hit_tokens;
  };
  CHECK(hits(512) == 1200);
  CHECK(hits(1024) == 1200);
  CHECK(hits(16) == 1200);
  SECTION("left out of the ids: nothing is known of it") {
    for (auto& r : trace.requests) {
      r.num_hashes = 1;
    }
    CHECK(hits(512) == 1024);
    CHECK(hits(1024) == 0);
    CHECK(hits(16) == 1024);
  }
}

TEST_CASE("eviction orders give their golden figures", "[sim][cache]") {
  const Trace trace = make_trace(400);
  const std::int64_t blocks[] = {2175, 2175, 2227, 2211, 2175, 2242, 2177, 2819};
  for (std::size_t i = 0; i < dynbatch::kCacheEvictions.size(); ++i) {
    const auto& e = dynbatch::kCacheEvictions[i];
    INFO(e.name);
    const CacheReplayRun run =
        replay_cache(trace, {.num_blocks = 40, .block_size = 512, .eviction = e.eviction});
    REQUIRE(run.is_ok());
    CHECK(run.hit_tokens / 512 == blocks[i]);
  }
}

TEST_CASE("a cache replay refuses what it can not simulate", "[sim][cache]") {
  const Trace trace = make_trace(3);
  CHECK(std::string(replay_cache(trace, {.num_blocks = 0, .block_size = 512}).status.field) ==
        "num_blocks");
  CHECK(std::string(replay_cache(trace, {.num_blocks = 1, .block_size = 24}).status.field) ==
        "block_size");
  CHECK(std::string(replay_cache(trace, {.num_blocks = 9,
                                         .block_size = 512,
                                         .eviction = static_cast<dynbatch::CacheEviction>(99)})
                        .status.field) == "eviction");
  const CacheReplayRun none = replay_cache(Trace{}, {.num_blocks = 4});
  CHECK(none.is_ok());
  CHECK(none.hit_ratio() == 0.0);
}

TEST_CASE("a cache replay finds the shared prefixes of a generated workload", "[sim][cache]") {
  dynbatch::WorkloadConfig config;
  config.num_requests = 50;
  config.input.parts[0] = {.weight = 1.0, .median = 100.0};
  config.output.parts[0] = {.weight = 1.0, .median = 5.0};
  config.num_prefix_groups = 1;
  config.prefix_tokens = 160;
  const Trace trace = dynbatch::generate_trace(config, "groups");
  const CacheReplayRun run = replay_cache(trace, {.num_blocks = 10'000});
  REQUIRE(run.is_ok());
  CHECK(run.hit_tokens == 49 * 160);
  CHECK(run.num_requests_hit == 49);
}

TEST_CASE("the hit ratios of the public Mooncake conversation trace come out", "[sim][cache]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  const auto read = dynbatch::read_trace(
      std::string(folder) + "/traces/mooncake_conversation_min00-30.jsonl", {});
  REQUIRE(read);
  struct Point {
    std::int64_t num_blocks;
    double ratio;
  };
  for (const Point& p : {Point{1'000, .044}, Point{3'000, .065}, Point{10'000, .209},
                         Point{30'000, .318}, Point{100'000, .347}}) {
    const auto hit_ratio = [&](dynbatch::CacheEviction eviction) {
      const CacheReplayRun run = replay_cache(
          read.trace, {.num_blocks = p.num_blocks, .block_size = 512, .eviction = eviction});
      REQUIRE(run.is_ok());
      return run.hit_ratio();
    };
    INFO(p.num_blocks);
    const double lru = hit_ratio(dynbatch::CacheEviction::Lru);
    CHECK(lru == Approx(p.ratio).margin(0.0006));
    const double belady = hit_ratio(dynbatch::CacheEviction::Belady);
    const double adaptive = hit_ratio(dynbatch::CacheEviction::Adaptive);
    CHECK(adaptive <= belady);
    CHECK((belady < lru + 0.02 ? adaptive > lru - 0.003 : adaptive > lru));
  }
}
