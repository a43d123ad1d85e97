// SPDX-License-Identifier: Apache-2.0
/// \file
/// Every order in which up to six operations of a store can end, each well or not, against a model
/// that knows nothing but what each slot must hold.
#include "store_bench.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;
using kv_test::Content;
using kv_test::count_from;
using kv_test::ScriptTier;
using kv_test::StoreBench;

namespace {

Content text(Token first) {
  Content content(count_from(first, 9), 16);  // two blocks and a rest
  content.with_keys(StoreBench::kBlock);
  return content;
}

TierConfig config() {
  TierConfig c;
  c.token_ns = 0;
  c.min_gain_blocks = 1;
  c.breaker.max_failures = 100;
  return c;
}

/// What a store holds after an engine has run these texts.
std::map<ScriptTier::Key, std::vector<std::byte>> stored(const std::vector<Content>& texts) {
  ScriptTier tier;
  StoreBench bench(tier, {}, config());
  for (const Content& t : texts) {
    bench.run_and_flush(t);
    bench.advance();
    tier.finish(tier.ticket_of(TierVerb::Store), 99);
    bench.advance();
  }
  REQUIRE(bench.errors.empty());
  return tier.blocks;
}

struct World {
  std::vector<Content> loaded;
  std::vector<Content> computed;
  std::vector<Content> others;
  std::map<ScriptTier::Key, std::vector<std::byte>> blocks;
};

struct Counts {
  std::int64_t scenarios = 0;
  std::int64_t hits = 0;
};

/// One scenario: operation order[k] is the k-th to end, as `outcomes` says: 0 nothing, 1 a part, 2
/// all of it.
void play(const World& world, const std::vector<int>& order, const std::vector<int>& outcomes,
          Counts& counts) {
  const int num_loads = static_cast<int>(world.loaded.size());
  ScriptTier tier;
  tier.blocks = world.blocks;
  StoreBench bench(tier, {.device = 8, .host = 14}, config());
  for (const Content& c : world.computed) {
    bench.run_and_flush(c);
  }
  bench.advance();
  std::vector<LoadWait> waits(world.loaded.size());
  for (std::size_t i = 0; i < world.loaded.size(); ++i) {
    REQUIRE(bench.asks(world.loaded[i], waits[i]));
  }
  bench.advance();
  // In the order of their beginning: loads as they were asked for, then stores.
  std::vector<ScriptTier::Pending> begun = tier.pending;
  std::ranges::sort(
      begun, {}, [](const auto& op) { return std::pair(op.verb == TierVerb::Store, op.ticket); });
  REQUIRE(begun.size() == order.size());
  for (const auto& op : begun) {
    bench.lent.insert(op.slots.begin(), op.slots.end());
  }
  for (std::size_t k = 0; k < order.size(); ++k) {
    const auto at = static_cast<std::size_t>(order[k]);
    const ScriptTier::Pending& op = begun[at];
    // A store reads now what it was given then; a fetch has its slots to itself until now.
    tier.finish(op.ticket, outcomes[at]);
    for (const std::int32_t slot : op.slots) {
      bench.lent.erase(slot);
    }
    bench.advance();
    if (order[k] < num_loads) {
      const std::int64_t found = bench.run(world.loaded[at]);
      if (found != outcomes[at] * StoreBench::kBlock) {
        bench.fail("a load of " + std::to_string(outcomes[at]) + " blocks gave " +
                   std::to_string(found) + " tokens");
      }
      counts.hits += found;
    }
    bench.run_and_flush(world.others[k]);  // wants host slots
    bench.advance({0});
  }
  // All that the store believes to have is what it should be.
  for (const std::vector<Content>* texts : {&world.loaded, &world.computed}) {
    for (const Content& t : *texts) {
      const auto view = t.view();
      KeyChain chain;
      chain.start({}, StoreBench::kBlock, StoreBench::kSlotBytes);
      REQUIRE(chain.extend(view, 2));
      for (std::int64_t i = 0; i < 2; ++i) {
        const auto it = tier.blocks.find(ScriptTier::key(chain.at(view, chain.root(view), i)));
        std::uint64_t word = 0;
        if (it != tier.blocks.end()) {
          std::memcpy(&word, it->second.data(), sizeof(word));
          if (word != StoreBench::value(t, i)) {
            bench.fail("the store holds something else under a key");
          }
        }
      }
    }
  }
  while (!tier.pending.empty()) {  // stores of the others
    tier.finish(tier.pending[0].ticket, 2);
    bench.advance({0});
  }
  bench.advance(seconds(1));
  if (bench.pool().tier_stats().lent_blocks != 0 || !bench.pool().clear()) {
    bench.fail("slots are lent at the end");
  }
  ++counts.scenarios;
  if (!bench.errors.empty()) {
    std::string name;
    for (const int o : order) {
      name += std::to_string(o);
    }
    name += " outcomes ";
    for (const int o : outcomes) {
      name += std::to_string(o);
    }
    INFO(name);
    FAIL(bench.errors.front());
  }
}

Counts play_all(int num_loads, int num_stores, int num_outcomes) {
  World world;
  for (int i = 0; i < num_loads; ++i) {
    world.loaded.push_back(text(1 + 100 * i));
  }
  for (int i = 0; i < num_stores; ++i) {
    world.computed.push_back(text(1001 + 100 * i));
  }
  for (int i = 0; i < num_loads + num_stores; ++i) {
    world.others.push_back(text(5001 + 100 * i));
  }
  world.blocks = stored(world.loaded);
  Counts counts;
  std::vector<int> order(static_cast<std::size_t>(num_loads + num_stores));
  std::iota(order.begin(), order.end(), 0);
  const int step = num_outcomes == 2 ? 2 : 1;  // nothing and all, or a part as well
  std::int64_t combinations = 1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    combinations *= num_outcomes;
  }
  do {
    for (std::int64_t c = 0; c < combinations; ++c) {
      std::vector<int> outcomes;
      for (std::int64_t rest = c; outcomes.size() < order.size(); rest /= num_outcomes) {
        outcomes.push_back(static_cast<int>(rest % num_outcomes) * step);
      }
      play(world, order, outcomes, counts);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return counts;
}

}  // namespace

TEST_CASE("Three loads and three stores end well or badly in every order") {
  const Counts counts = play_all(3, 3, 2);
  CHECK(counts.scenarios == 720 * 64);
  CHECK(counts.hits == 720 * 32 * 3 * 8);  // each load that ends well is found
}

TEST_CASE("Two loads and two stores end well, half-way or badly in every order") {
  const Counts counts = play_all(2, 2, 3);
  CHECK(counts.scenarios == 24 * 81);
  CHECK(counts.hits == 24 * 27 * 2 * (8 + 4));
}

TEST_CASE("Loads alone and stores alone end in every order") {
  CHECK(play_all(4, 0, 3).scenarios == 24 * 81);
  CHECK(play_all(0, 5, 2).scenarios == 120 * 32);
}
