// SPDX-License-Identifier: Apache-2.0
// TieredPool against a naive model of what is written to host memory and what is loaded from it.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

#include "../../unit/kv/content.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <vector>

using namespace dynbatch;
using kv_test::Content;

namespace {

constexpr std::int32_t kBlock = 4;
constexpr std::int32_t kRows = 4;

/// What the first `i + 1` blocks of a content come to.
std::uint64_t value_of(const Content& content, std::int64_t i) {
  std::uint64_t h = 1;
  for (std::int64_t t = 0; t < (i + 1) * kBlock; ++t) {
    h = combine64(h, static_cast<std::uint64_t>(content.tokens()[static_cast<std::size_t>(t)]));
  }
  return h;
}

/// Token by token, in halves of a query-key pair: twice the time to compute them, in fs.
std::int64_t twice_compute_fs(const StepCost& cost, std::int64_t prefix, std::int64_t tokens) {
  std::int64_t sum = 0;
  for (std::int64_t t = prefix; t < prefix + tokens; ++t) {
    const std::int64_t half_pairs = 2 * prefix + 2 * (t - prefix) + 1;
    sum += 2000 * cost.prefill_token_ps + half_pairs * cost.attention_pair_fs;
  }
  return sum;
}

class TieredRun {
 public:
  TieredRun(std::uint64_t seed, std::int64_t host_blocks)
      : rng_(seed), is_ample_(host_blocks > 1000), host_(static_cast<std::size_t>(host_blocks)) {
    config_.pool = {.num_blocks = kDevice, .block_size = kBlock};
    config_.num_host_blocks = host_blocks;
    config_.min_load_blocks = static_cast<std::int32_t>(rng_.between(1, 4));
    config_.min_touches = static_cast<std::int32_t>(rng_.between(1, 4));
    config_.load_block_ns = rng_.one_in(3) ? 0 : rng_.between(1, 200) * 1000;
    config_.tier.token_ns = rng_.one_in(4) ? 0 : rng_.between(1, 40) * 1000;
    pool_.emplace(config_);
    REQUIRE(pool_->attach({.max_rows = kRows, .max_context_tokens = 64, .max_plans_in_flight = 3}));
  }

  void run(int num_plans) {
    for (int i = 0; i < num_plans; ++i) {
      ++plan_;
      if (rng_.one_in(25)) {
        learn();
      }
      for (std::int32_t row = 0; row < kRows; ++row) {
        if (is_used_[row] && began_[row] <= settled_ && rng_.one_in(2)) {
          pool_->release(Row{row});
          is_used_[row] = false;
        }
      }
      for (std::int64_t n = rng_.between(0, 3); n > 0; --n) {
        admit();
      }
      execute();
      const std::uint64_t late = static_cast<std::uint64_t>(rng_.between(0, 2));
      if (plan_ > settled_ + late) {
        settled_ = plan_ - late;
        pool_->settle(PlanId{settled_});
      }
      REQUIRE(pool_->check());
    }
  }

  int num_written = 0;
  int num_loads = 0;
  int num_declined = 0;  ///< Prefixes that were computed since that is less work.

 private:
  static constexpr std::int64_t kDevice = 26;
  struct Block {
    std::uint64_t value = 0;
    std::int32_t touches = 0;
  };
  struct Computed {
    std::int32_t block = 0;
    std::uint64_t value = 0;
  };

  void learn() {
    cost_.fixed_ns = 5'000'000;  // says nothing about a token more
    cost_.prefill_token_ps = rng_.between(0, 40) * 1'000'000;
    cost_.attention_pair_fs = rng_.between(0, 3) * 1'000'000'000;
    cost_.version = rng_.one_in(5) ? 0 : 1;
    is_known_ = is_known_ || cost_.version != 0;
    known_ = cost_.version != 0 ? cost_ : known_;
    pool_->learn_cost(cost_);
  }

  [[nodiscard]] bool is_worth(std::int64_t held, std::int64_t blocks) const {
    const std::int64_t load = config_.load_block_ns * blocks;
    if (load == 0) {
      return true;
    }
    if (!is_known_) {
      return config_.tier.token_ns == 0 || load < blocks * kBlock * config_.tier.token_ns;
    }
    return load <= twice_compute_fs(known_, held * kBlock, blocks * kBlock) / 2'000'000 - 1;
  }

  Content draw() {
    const std::int64_t family = rng_.between(0, 5);
    const std::int64_t shared = rng_.between(1, 44);
    const std::int64_t own = rng_.between(1, 8);
    std::vector<Token> tokens = kv_test::count_from(static_cast<Token>(1000 * family), shared);
    const auto last = static_cast<Token>(rng_.between(0, 1'000'000));
    tokens = kv_test::then(tokens, own, -1 - last);
    if (tokens.size() % kBlock == 0) {
      tokens.push_back(-1 - last);  // the last block is never whole: all look-ups end alike
    }
    return {tokens, 16};
  }

  void admit() {
    const auto free = std::find(std::begin(is_used_), std::end(is_used_), false);
    if (free == std::end(is_used_)) {
      return;
    }
    const Row row{static_cast<std::int32_t>(free - std::begin(is_used_))};
    const Content content = draw();
    const SequenceContentView view = content.view();
    const std::int64_t whole = content.length() / kBlock;
    const PrefixMatch match = pool_->match(view, content.length() - 1);
    const PoolStats stats = pool_->stats();
    if (match.idle_blocks > stats.free_blocks + stats.cached_blocks) {
      CHECK((match.num_loaded > 0 && !pool_->acquire(row, match)));  // and nothing changes
      return;
    }
    const std::int64_t found = match.num_blocks - match.num_loaded / kBlock;
    std::int64_t written = 0;
    bool is_pending = false;
    while (written < whole && in_host_.count(value_of(content, written)) != 0) {
      is_pending = is_pending || in_host_[value_of(content, written)] > settled_;
      ++written;
    }
    if (is_ample_) {
      const std::int64_t more = written - found;
      const bool may_load = more >= config_.min_load_blocks && !is_pending;
      const bool loads = may_load && is_worth(found, more);
      CHECK(match.num_blocks == (loads ? written : found));
      num_loads += loads ? 1 : 0;
      num_declined += may_load && !loads ? 1 : 0;
    }
    const bool acquires = match.num_tokens > 0 || rng_.one_in(2);  // a scheduler needn't
    REQUIRE((!acquires || pool_->acquire(row, match)));
    if (match.num_tokens == 0 && config_.load_block_ns == 0) {
      written = 0;  // nobody looks whether host memory has the few blocks that aren't loaded
    }
    if (!pool_->extend(row, content.length())) {
      // Its use counts all the same, and what that made worth writing is written.
      note(row, content, found, match, written, is_pending, found);
      pool_->release(row);
      return;
    }
    is_used_[row.value] = true;
    began_[row.value] = plan_;
    pool_->publish(row, view, content.length(), PlanId{plan_});
    note(row, content, found, match, written, is_pending, whole);
  }

  void note(Row row, const Content& content, std::int64_t found, const PrefixMatch& match,
            std::int64_t written, bool is_pending, std::int64_t whole) {
    const auto table = pool_->table(0, row);
    std::int64_t enough = 0;
    for (std::int64_t i = 0; i < std::max(whole, match.num_blocks); ++i) {
      const std::int32_t id = table[static_cast<std::size_t>(i)].value;
      const std::uint64_t value = value_of(content, i);
      Block& block = blocks_[id];
      if (i < found) {
        CHECK(block.value == value);
        ++block.touches;
      } else if (i < match.num_blocks) {
        block = {value, 1};
      } else {
        block = {value, 1};
        computed_.push_back({id, value});
      }
      enough += i == enough && i < found && block.touches >= config_.min_touches ? 1 : 0;
    }
    const std::int64_t first = is_pending || !is_ample_ ? 0 : written;
    std::int64_t end = enough;
    std::uint64_t writer = match.newest_pending.value;
    if (config_.min_touches == 1) {
      end = is_used_[row.value] ? whole : 0;
      writer = plan_;
    } else if (is_pending && is_ample_) {
      return;
    }
    for (std::int64_t i = first; i < end; ++i) {
      expected_.emplace(value_of(content, i), writer);
      if (is_used_[row.value] || writer <= settled_) {  // else nobody could take it back
        in_host_.emplace(value_of(content, i), writer);
      }
    }
  }

  /// Moves as the host makes them, then the forward pass.
  void execute() {
    std::vector<BlockSwap> swaps(4000);
    swaps.resize(pool_->drain_swaps(swaps, PlanId{plan_}));
    for (const BlockSwap& swap : swaps) {
      std::uint64_t& slot = host_[static_cast<std::size_t>(swap.host_slot)];
      if (swap.to_host) {
        slot = device_[swap.device.value];
        const auto it = expected_.find(slot);
        REQUIRE(it != expected_.end());  // used often enough, and by now computed
        CHECK(it->second < plan_);
        expected_.erase(it);
        ++num_written;
      } else {
        device_[swap.device.value] = slot;
        CHECK(slot == blocks_[swap.device.value].value);
      }
    }
    for (const Computed& c : computed_) {
      device_[c.block] = c.value;
    }
    computed_.clear();
    for (auto it = expected_.begin(); it != expected_.end();) {
      CHECK((!is_ample_ || it->second == plan_));  // all that could be written has been
      it = it->second < plan_ ? expected_.erase(it) : std::next(it);
    }
  }

  SplitMix64 rng_;
  TieredPool<>::Config config_;
  std::optional<TieredPool<>> pool_;
  bool is_ample_ = false;
  bool is_used_[kRows] = {};
  std::uint64_t began_[kRows] = {};  ///< With which plan.
  StepCost cost_{};
  StepCost known_{};
  bool is_known_ = false;
  std::uint64_t plan_ = 0;
  std::uint64_t settled_ = 0;
  std::map<std::int32_t, Block> blocks_;                  ///< As the pool believes.
  std::map<std::int32_t, std::uint64_t> device_;          ///< What device memory holds.
  std::vector<std::uint64_t> host_;                       ///< What host memory holds.
  std::map<std::uint64_t, std::uint64_t> in_host_;        ///< Value, and the plan that computes it.
  std::multimap<std::uint64_t, std::uint64_t> expected_;  ///< To be written, and after which plan.
  std::vector<Computed> computed_;                        ///< By this plan.
};

}  // namespace

TEST_CASE("Host memory gets what is used often enough, and gives back what is worth the copy") {
  int written = 0;
  int loads = 0;
  int declined = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    TieredRun run(seed, 100'000);
    run.run(150);
    written += run.num_written;
    loads += run.num_loads;
    declined += run.num_declined;
  }
  CHECK(written > 2000);
  CHECK(loads > 500);
  CHECK(declined > 100);
}

TEST_CASE("Host memory that forgets gives back nothing wrong") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    TieredRun run(seed, static_cast<std::int64_t>(seed % 7) * 9 + 3);
    run.run(150);
  }
}
