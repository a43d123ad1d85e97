// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/lru.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

// A cache of sessions: each turn looks up the session's blocks, computes what is missing and some
// more, and releases all. Counts the blocks found.
template <class Order>
class Sessions {
 public:
  static constexpr int kBlocks = 400;

  explicit Sessions(Order order) : order_(std::move(order)) {
    REQUIRE(order_.attach(kBlocks).is_ok());
    for (int b = kBlocks; b-- > 0;) {
      free_.push_back(BlockId{b});
    }
    owners_.resize(kBlocks);
  }

  std::size_t open(int length) {
    sessions_.push_back({});
    turn(sessions_.size() - 1, length);
    return sessions_.size() - 1;
  }
  std::int64_t turn(std::size_t session, int length) {
    std::vector<BlockId> path = sessions_[session];
    const std::span<const BlockId> found(path);
    if constexpr (requires { order_.note_hit(found); }) {
      order_.note_hit(found);
    }
    order_.erase(found);
    const auto hits = static_cast<std::int64_t>(path.size());
    while (static_cast<int>(path.size()) < length) {
      path.push_back(take());
    }
    sessions_[session] = path;
    for (const BlockId b : path) {
      owners_[static_cast<std::size_t>(b.value)] = session;
    }
    order_.insert_backwards(path, 0);
    return hits;
  }
  [[nodiscard]] const Order& order() const { return order_; }

 private:
  BlockId take() {
    if (!free_.empty()) {
      const BlockId b = free_.back();
      free_.pop_back();
      return b;
    }
    BlockId out[1];
    REQUIRE(order_.take(out) == 1);
    auto& owner = sessions_[owners_[static_cast<std::size_t>(out[0].value)]];
    REQUIRE(owner.back() == out[0]);  // Tails go first.
    owner.pop_back();
    return out[0];
  }

  Order order_;
  std::vector<BlockId> free_;
  std::vector<std::size_t> owners_;
  std::vector<std::vector<BlockId>> sessions_;
};

// 50 sessions of 12 blocks take turns, which is half as much again as the cache holds.
template <class Order>
std::int64_t hits_of_a_loop(Order order) {
  Sessions<Order> cache(std::move(order));
  for (int i = 0; i < 50; ++i) {
    cache.open(12);
  }
  std::int64_t hits = 0;
  for (std::size_t i = 0; i < 3000; ++i) {
    hits += cache.turn(i % 50, 12);
  }
  return hits;
}

// Sessions of eight turns among four times as many prompts that never come back.
template <class Order>
std::int64_t hits_among_scans(Order order) {
  Sessions<Order> cache(std::move(order));
  SplitMix64 random(5);
  std::vector<std::size_t> open;
  std::int64_t hits = 0;
  for (int i = 0; i < 4000; ++i) {
    for (int k = 0; k < 4; ++k) {
      cache.open(8);
    }
    if (open.size() < 20) {
      open.push_back(cache.open(8));
      continue;
    }
    const auto s = static_cast<std::size_t>(random.between(0, 19));
    hits += cache.turn(open[s], 8);
    if (random.one_in(8)) {
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(s));
    }
  }
  return hits;
}

}  // namespace

TEST_CASE("AdaptiveLru finds a part of a loop that is too large for Lru") {
  CHECK(hits_of_a_loop(Lru()) == 0);
  // Of 36,000; who knows the future finds two thirds.
  CHECK(hits_of_a_loop(AdaptiveLru()) > 7'000);
}

TEST_CASE("AdaptiveLru keeps sessions among prompts that never come back") {
  const std::int64_t lru = hits_among_scans(Lru());
  const std::int64_t adaptive = hits_among_scans(AdaptiveLru());
  CHECK(lru > 0);
  CHECK(adaptive > lru + lru / 2);
}

TEST_CASE("AdaptiveLru is Lru if it may not step") {
  CHECK(hits_of_a_loop(AdaptiveLru({.step_percent = 0})) == 0);
  CHECK(hits_among_scans(AdaptiveLru({.step_percent = 0})) == hits_among_scans(Lru()));
}

TEST_CASE("Lifetimes stay in order, what goes on and what was drawn is never shorter") {
  SplitMix64 random(3);
  Sessions<AdaptiveLru> cache{AdaptiveLru({.step_percent = 100, .prior_blocks = 1})};
  std::size_t num_open = 0;
  std::int64_t widest = 0;
  for (int i = 0; i < 3000; ++i) {
    if (num_open < 30 || random.one_in(3)) {
      cache.open(static_cast<int>(random.between(1, 60)));
      ++num_open;
    } else {
      const auto last = static_cast<std::int64_t>(num_open) - 1;
      cache.turn(
          static_cast<std::size_t>(random.between(std::max<std::int64_t>(last - 30, 0), last)),
          static_cast<int>(random.between(1, 80)));
    }
    const auto life = [&](int c) { return cache.order().life_of(c); };
    REQUIRE(life(0) <= life(1));
    REQUIRE(life(1) <= life(3));
    REQUIRE(life(1) <= life(2));
    REQUIRE(life(2) - life(1) == life(4) - life(3));
    widest = std::max(widest, life(4) - life(0));
  }
  CHECK(widest > Sessions<AdaptiveLru>::kBlocks);
  CHECK(widest <= 24 * Sessions<AdaptiveLru>::kBlocks);
}

TEST_CASE("AdaptiveLru gives up the last block of a prompt first where it is never found") {
  // What a prompt's last block holds ends with it: the next turn replaces it.
  AdaptiveLru order;
  constexpr int kBlocks = 64;
  REQUIRE(order.attach(kBlocks).is_ok());
  std::vector<BlockId> idle;
  for (int b = 0; b < kBlocks; ++b) {
    idle.push_back(BlockId{b});
  }
  std::vector<std::vector<BlockId>> sessions(7);
  for (int i = 0; i < 4000; ++i) {
    std::vector<BlockId>& path = sessions[static_cast<std::size_t>(i) % sessions.size()];
    path.resize(std::min<std::size_t>(path.size(), 7));
    order.note_hit(path);
    order.erase(std::span<const BlockId>(path));
    while (path.size() < 8) {
      if (idle.empty()) {
        BlockId out[1];
        REQUIRE(order.take(out) == 1);
        idle.push_back(out[0]);
        for (auto& other : sessions) {
          other.resize(static_cast<std::size_t>(std::find(other.begin(), other.end(), out[0]) -
                                                other.begin()));
        }
      }
      path.push_back(idle.back());
      idle.pop_back();
    }
    order.insert_backwards(path, 0);
  }
  CHECK(order.life_of(0) < order.life_of(3));
}

TEST_CASE("A split is tried only where Lru finds next to nothing, and stays while it gains") {
  detail::SplitTrial trial;
  trial.attach(800);
  const auto turn_over = [&](int times, std::int64_t num_found, std::int64_t age) {
    for (int i = 0; i < 8 * times; ++i) {
      trial.note_released(75, 25);
      for (std::int64_t k = 0; k < num_found; ++k) {
        trial.note_found(age, k % 4 == 0, 500);
      }
      trial.adapt();
    }
  };
  SECTION("Lru finds something") {
    turn_over(20, 8, 700);
    CHECK(trial.bonus() == 0);
  }
  SECTION("Lru finds nothing, longer lives find something") {
    turn_over(3, 0, 0);
    CHECK(trial.bonus() == 0);  // Too early to say.
    turn_over(4, 0, 0);
    CHECK(trial.bonus() > 0);
    turn_over(8, 12, 2000);
    CHECK(trial.bonus() == 8 * 800);
    // The prompts come back sooner: what all would find, LRU finds too.
    turn_over(20, 40, 700);
    CHECK(trial.bonus() == 0);
  }
}

TEST_CASE("AdaptiveLru refuses odd configurations") {
  CHECK(AdaptiveLru({.step_percent = -1}).attach(4).field == std::string("step_percent"));
  CHECK(AdaptiveLru({.step_percent = 101}).attach(4).field == std::string("step_percent"));
  CHECK(AdaptiveLru({.prior_blocks = 0}).attach(4).field == std::string("prior_blocks"));
}
