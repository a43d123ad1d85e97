// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/eviction_order.hpp>

#include "naive_orders.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace dynbatch;
using kv_test::Naive;

namespace {

std::vector<BlockId> blocks_of(const std::vector<int>& ids) {
  std::vector<BlockId> blocks;
  for (const int id : ids) {
    blocks.push_back(BlockId{id});
  }
  return blocks;
}

template <class Order>
void note_hit(Order& order, const std::vector<BlockId>& path) {
  if constexpr (requires { order.note_hit(path); }) {
    order.note_hit(path);
  }
}

// Twenty prompts that branch off each other, and what a pool does with them: several run at once, a
// block is in the order while nobody holds it. What a node holds is its block's number, so that a
// node that was evicted comes back as new.
template <class Order>
class TreeOfPrompts {
 public:
  static constexpr int kNodes = 120;

  explicit TreeOfPrompts(std::uint64_t seed)
      : random_(seed), order_(Naive<Order>::make(kNodes)), naive_(order_, kNodes) {
    REQUIRE(order_.attach(kNodes).is_ok());
    // Node 0 is the root of all; later nodes hang below any earlier one, most often the last.
    for (int i = 1; i < kNodes; ++i) {
      const int lowest = random_.one_in(4) ? 0 : i - 1;
      parents_.push_back(static_cast<int>(random_.between(lowest, i - 1)));
    }
    parents_.insert(parents_.begin(), -1);
  }

  void run(int num_operations) {
    for (int op = 0; op < num_operations; ++op) {
      INFO("operation " << op);
      const auto kind = random_.between(0, 99);
      if (kind < 40) {
        start();
      } else if (kind < 80) {
        finish();
      } else if (kind < 92) {
        evict(static_cast<int>(random_.between(1, 12)));
      } else if (kind < 95) {
        forget();
      } else {
        pass_time();
      }
      compare();
    }
    CHECK(num_hits_ > num_operations / 20);
    CHECK(num_evicted_ > num_operations / 10);
  }

 private:
  [[nodiscard]] bool is_cached(int node) const {
    return std::find(cached_.begin(), cached_.end(), node) != cached_.end();
  }
  [[nodiscard]] int num_users(int node) const {
    int n = 0;
    for (const auto& path : running_) {
      n += static_cast<int>(std::count(path.begin(), path.end(), node));
    }
    return n;
  }

  void start() {
    if (running_.size() >= 5) {
      return;
    }
    std::vector<int> path;
    for (int node = static_cast<int>(random_.between(0, kNodes - 1)); node >= 0;
         node = parents_[static_cast<std::size_t>(node)]) {
      path.insert(path.begin(), node);
    }
    // The blocks found are the leading ones that are cached or used.
    std::vector<int> found;
    std::vector<int> taken;
    for (const int node : path) {
      if (!is_cached(node) && num_users(node) == 0) {
        break;
      }
      found.push_back(node);
      if (is_cached(node)) {
        taken.push_back(node);
        cached_.erase(std::find(cached_.begin(), cached_.end(), node));
      }
    }
    // Nothing behind a block that isn't there may be: it could never be found.
    for (std::size_t i = found.size(); i < path.size(); ++i) {
      REQUIRE((kIsForecast || !is_cached(path[i])));
      if (is_cached(path[i])) {
        order_.erase(BlockId{path[i]});
        leave(path[i]);
      }
    }
    note_hit(order_, blocks_of(found));
    naive_.note_hit(found);
    const auto blocks = blocks_of(taken);
    order_.erase(std::span<const BlockId>(blocks));
    naive_.erase_used(taken);
    num_hits_ += static_cast<int>(taken.size());
    retain(path);
    running_.push_back(path);
  }

  void retain(const std::vector<int>& path) {
    if constexpr (requires { order_.retain(blocks_of(path), Retention{}); }) {
      if (random_.one_in(2)) {
        const auto end = random_.between(0, static_cast<std::int64_t>(path.size()));
        const auto begin = random_.between(0, end);
        const std::vector<int> range(path.begin() + begin, path.begin() + end);
        const Retention r{.priority = static_cast<std::int32_t>(10 + 30 * random_.between(0, 3)),
                          .duration = {random_.one_in(3) ? INT64_MAX : 20 * random_.between(1, 3)}};
        order_.retain(blocks_of(range), r);
        naive_.retain(range, r.priority, r.duration.ns);
      }
    }
  }

  void finish() {
    if (running_.empty()) {
      return;
    }
    const auto i = random_.between(0, static_cast<std::int64_t>(running_.size()) - 1);
    const std::vector<int> path = running_[static_cast<std::size_t>(i)];
    running_.erase(running_.begin() + i);
    std::size_t first = path.size();
    while (first > 0 && num_users(path[first - 1]) == 0) {
      --first;
    }
    const std::vector<int> kept(path.begin() + static_cast<std::ptrdiff_t>(first), path.end());
    set_next_uses(path.size());
    order_.insert_backwards(blocks_of(path), first);
    naive_.insert_backwards(path, first);
    cached_.insert(cached_.end(), kept.begin(), kept.end());
  }

  // A head is used no later than its tail. In this tree nobody keeps to the forecast.
  void set_next_uses(std::size_t length) {
    if constexpr (requires { order_.set_next_uses(next_uses_); }) {
      next_uses_.assign(length, 0);
      for (std::size_t i = 1; i < length; ++i) {
        next_uses_[i] = std::min<std::int64_t>(20, next_uses_[i - 1] + (random_.one_in(3) ? 1 : 0));
      }
      order_.set_next_uses(next_uses_);
      naive_.set_next_uses(next_uses_);
    }
  }

  void evict(int wanted) {
    BlockId out[16];
    const std::size_t n = order_.take(std::span(out, static_cast<std::size_t>(wanted)));
    REQUIRE(n == std::min(static_cast<std::size_t>(wanted), cached_.size()));
    for (std::size_t i = 0; i < n; ++i) {
      INFO("victim " << i);
      REQUIRE(out[i].value == naive_.victim());
      leave(out[i].value);
      ++num_evicted_;
    }
  }
  void leave(int node) {
    naive_.forget(node);
    cached_.erase(std::find(cached_.begin(), cached_.end(), node));
    if constexpr (!kIsForecast) {
      for (const int other : cached_) {
        REQUIRE(parents_[static_cast<std::size_t>(other)] != node);
      }
    }
  }

  void forget() {
    // Somebody who has no child, as when a pool shrinks nobody asks.
    for (const int node : cached_) {
      const bool has_child = std::any_of(cached_.begin(), cached_.end(), [&](int other) {
        return parents_[static_cast<std::size_t>(other)] == node;
      });
      bool is_used_behind = false;
      for (int other = 0; other < kNodes; ++other) {
        is_used_behind |=
            parents_[static_cast<std::size_t>(other)] == node && num_users(other) != 0;
      }
      if (!has_child && !is_used_behind) {
        order_.erase(BlockId{node});
        leave(node);
        return;
      }
    }
  }

  void pass_time() {
    now_ += random_.between(-2, 30);
    if constexpr (requires { order_.advance(TimeNs{now_}); }) {
      order_.advance(TimeNs{now_});
      naive_.advance(now_);
    }
  }

  void compare() {
    const int victim = naive_.victim();
    REQUIRE(order_.victim() == (victim < 0 ? kNoBlock : BlockId{victim}));
    std::vector<int> listed;
    for (BlockId b = order_.front(); b != kNoBlock; b = order_.after(b)) {
      listed.push_back(b.value);
      REQUIRE(listed.size() <= cached_.size());
    }
    std::sort(listed.begin(), listed.end());
    REQUIRE(listed == naive_.members());
    REQUIRE(listed.size() == cached_.size());
  }

  // Its next uses are a story here, so tails may outlive heads.
  static constexpr bool kIsForecast = std::same_as<Order, Belady>;

  SplitMix64 random_;
  Order order_;
  Naive<Order> naive_;
  std::vector<int> parents_;
  std::vector<int> cached_;
  std::vector<std::vector<int>> running_;
  std::vector<std::int64_t> next_uses_;
  std::int64_t now_ = 0;
  int num_hits_ = 0;
  int num_evicted_ = 0;
};

}  // namespace

TEMPLATE_TEST_CASE("An eviction order does what its naive model does, tails before heads", "", Lru,
                   Slru, Lfu, CostAware, AdaptiveLru, PriorityDuration, Ttl<Lru>, Ttl<Slru>,
                   Belady) {
  const auto seed = GENERATE(range(1, 9));
  INFO("seed " << seed);
  TreeOfPrompts<TestType>(static_cast<std::uint64_t>(seed)).run(3000);
}

TEMPLATE_TEST_CASE("An eviction order answers before attach and is empty after it", "", Lru, Slru,
                   Lfu, CostAware, AdaptiveLru, PriorityDuration, Ttl<Lru>, Ttl<Slru>, Belady) {
  TestType order;
  CHECK(order.victim() == kNoBlock);
  CHECK(order.front() == kNoBlock);
  for (int round = 0; round < 2; ++round) {
    REQUIRE(order.attach(5).is_ok());
    CHECK(order.victim() == kNoBlock);
    BlockId out[2];
    CHECK(order.take(out) == 0);
    const BlockId path[3] = {BlockId{3}, BlockId{0}, BlockId{4}};
    order.insert_backwards(path, 0);
    order.insert_backwards({}, 0);
    CHECK(order.victim() == BlockId{4});
    CHECK(order.take(out) == 2);
    CHECK(out[1] == BlockId{0});
    CHECK(order.victim() == BlockId{3});
  }
}
