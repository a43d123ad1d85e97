// SPDX-License-Identifier: Apache-2.0
/// \file
/// A router that reads cache events has the cache's prefixes after every step, also when it has
/// lost some of them and takes a snapshot.
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/block_pool.hpp>

#include "../../unit/kv/content.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <utility>
#include <vector>

using namespace dynbatch;
using kv_test::Content;

namespace {

/// Prefix -> parent and content: what a router keeps.
using Tree = std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>;

/// Follows the events of a pool.
class Reader {
 public:
  int snapshots = 0;
  int events = 0;
  Tree tree;

  void read(BlockPool<>& pool) {
    KvEvent buffer[8];
    for (std::size_t n = pool.drain_events(buffer); n > 0; n = pool.drain_events(buffer)) {
      for (std::size_t i = 0; i < n; ++i) {
        take(buffer[i], pool);
      }
    }
  }

 private:
  void take(const KvEvent& event, const BlockPool<>& pool) {
    if (event.sequence <= seen_) {
      return;  // a snapshot had it
    }
    if (event.sequence != seen_ + 1) {
      ++snapshots;
      std::vector<KvEvent> all(pool.snapshot({}));
      REQUIRE(pool.snapshot(all) == all.size());
      tree.clear();
      seen_ = event.sequence;
      for (const KvEvent& e : all) {
        apply(e);
        seen_ = e.sequence;
      }
      if (!all.empty()) {
        return;
      }
      // An empty cache has no number of its own: what follows is applied one by one.
    }
    seen_ = event.sequence;
    apply(event);
  }
  void apply(const KvEvent& e) {
    ++events;
    if (e.kind == KvEventKind::Stored) {
      tree[e.prefix.value] = {e.parent.value, e.content_hash};
    } else if (e.kind == KvEventKind::Removed) {
      tree.erase(e.prefix.value);
    } else {
      tree.clear();
    }
  }

  std::uint64_t seen_ = 0;
};

Tree tree_of(const BlockPool<>& pool) {
  std::vector<KvEvent> all(pool.snapshot({}));
  pool.snapshot(all);
  Tree tree;
  for (const KvEvent& e : all) {
    CHECK(e.kind == KvEventKind::Stored);
    tree[e.prefix.value] = {e.parent.value, e.content_hash};
  }
  for (const auto& [prefix, node] : tree) {
    CHECK((node.first == 0 || tree.count(node.first) == 0 || node.first < prefix));
  }
  CHECK(tree.size() == all.size());
  return tree;
}

void follow(std::int64_t ring, std::uint64_t seed, int read_every, int& snapshots, int& events) {
  SplitMix64 rng(seed);
  BlockPool<> pool({.num_blocks = 40, .block_size = 4, .max_kv_events = ring});
  REQUIRE(pool.attach({.max_rows = 4, .max_context_tokens = 100}).is_ok());
  Reader reader;
  std::uint64_t plan = 0;
  std::vector<bool> runs(4);
  for (int i = 0; i < 600; ++i) {
    const Row row{static_cast<std::int32_t>(rng.between(0, 3))};
    const auto at = static_cast<std::size_t>(row.value);
    if (rng.one_in(60) && pool.clear()) {
      CHECK(tree_of(pool).empty());
    } else if (runs[at]) {
      if (rng.one_in(4)) {
        pool.withdraw(row, rng.between(0, 40));
      }
      pool.settle(PlanId{plan});
      pool.release(row);
      runs[at] = false;
    } else {
      std::vector<Token> tokens;
      const std::int64_t family = rng.between(0, 3);
      const std::int64_t length = rng.between(1, 60);
      const std::int64_t fork = rng.between(0, length);
      for (std::int64_t p = 0; p < length; ++p) {
        tokens.push_back(static_cast<Token>(p < fork ? family * 100 + p : 1000 + i * 64 + p));
      }
      const Content content(tokens, 64);
      runs[at] = kv_test::admit(pool, row, content, length, PlanId{++plan}) >= 0;
    }
    if (i % read_every == 0) {
      reader.read(pool);
      INFO("operation " << i << ", seed " << seed);
      REQUIRE(reader.tree == tree_of(pool));
    }
  }
  snapshots += reader.snapshots;
  events += reader.events;
}

}  // namespace

TEST_CASE("Events alone rebuild the tree of prefixes after every step") {
  int snapshots = 0;
  int events = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    follow(1000, seed, 1, snapshots, events);
  }
  CHECK(snapshots == 0);
  CHECK(events > 10000);
}

TEST_CASE("After a gap in the numbers a snapshot sets the reader right") {
  int snapshots = 0;
  int events = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    follow(5, seed, 3, snapshots, events);
  }
  CHECK(snapshots > 100);
}
