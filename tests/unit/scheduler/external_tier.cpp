// SPDX-License-Identifier: Apache-2.0
/// \file
/// Host memory and an external store behind the pool, through the scheduler.
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

#include "small_host.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

using Pool = TieredPool<BlockPool<>, AnyKVTier>;

/// A scheduler over a store, and slots of a byte each: what blocks hold is not the matter here.
struct TierOptions {
  std::int64_t blocks = 20;
  std::int64_t host_blocks = 20;
  std::int64_t budget = 256;
  std::int32_t rows = 16;
  std::int32_t max_loads = 8;
};
template <class Admission>
class TierHostOf {
 public:
  using TierScheduler = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, Pool, Admission>;

  TierHostOf(MemoryStore& store, const TierOptions& o, Admission admission = Admission{})
      : slots_(static_cast<std::size_t>(o.host_blocks)) {
    TierConfig tier;
    tier.memory.context = this;
    tier.memory.bytes = [](void* self, std::int32_t slot) noexcept {
      return std::span(&static_cast<TierHostOf*>(self)->slots_.at(static_cast<std::size_t>(slot)),
                       1);
    };
    tier.memory.slot_bytes = 1;
    tier.token_ns = 0;
    tier.min_gain_blocks = 1;
    tier.max_loads = o.max_loads;
    Capabilities caps;
    caps.max_sequences = o.rows;
    caps.swap = true;
    auto made = TierScheduler::make(SchedulerConfig{}, caps,
                                    TokenBudgetSizer(TokenBudgetSizer::Config{.budget = o.budget}),
                                    NoSplit{}, NullBalancer{},
                                    Pool({.pool = {.num_blocks = o.blocks, .block_size = 16},
                                          .num_host_blocks = o.host_blocks,
                                          .min_load_blocks = 1,
                                          .tier = tier},
                                         AnyKVTier(store)),
                                    std::move(admission));
    REQUIRE(made);
    scheduler.emplace(std::move(made).value());
  }
  TierHostOf(const TierHostOf&) = delete;
  TierHostOf& operator=(const TierHostOf&) = delete;

  void submit(std::uint64_t id, std::int64_t length, std::int64_t outputs, bool reads = true) {
    SmallRequest r(id, length, outputs);
    r.request.no_prefix_read = !reads;
    REQUIRE(scheduler->submit(r.view()));
  }
  /// A plan is made and settled; what it scheduled.
  std::map<std::uint64_t, std::int64_t> step(DurationNs takes = milliseconds(1)) {
    const StepPlan* plan = scheduler->plan(now);
    first_positions.clear();
    num_loads = 0;
    const auto tokens = tokens_of(plan);
    if (plan != nullptr) {
      for (const Chunk& c : plan->chunks) {
        first_positions[c.request.value] = c.first_position;
      }
      for (const BlockSwap& swap : plan->groups[0].swaps) {
        num_loads += swap.to_host ? 0 : 1;
      }
      const std::vector<Token> sampled(static_cast<std::size_t>(plan->num_samples), 1);
      StepResult result;
      result.tokens = sampled;
      REQUIRE(scheduler->commit(*plan, result, now + takes));
    }
    now = now + takes;
    Event events[64];
    while (scheduler->poll(events) == std::size(events)) {
    }
    REQUIRE(scheduler->check().is_ok());
    return tokens;
  }
  /// Runs until nothing is live; false if it doesn't come to that.
  bool finish() {
    for (int i = 0; i < 5000 && scheduler->stats().live > 0; ++i) {
      step();
    }
    return scheduler->stats().live == 0;
  }
  TierStats tier() { return scheduler->pool().tier_stats(); }

  std::optional<TierScheduler> scheduler;
  TimeNs now{};
  std::map<std::uint64_t, std::int32_t> first_positions;
  int num_loads = 0;

 private:
  std::vector<std::byte> slots_;
};

using TierHost = TierHostOf<FcfsAdmission>;
using Tokens = std::map<std::uint64_t, std::int64_t>;

/// A store that holds the first `length` tokens of these requests' prompts.
void fill(MemoryStore& store, const std::vector<std::pair<std::uint64_t, std::int64_t>>& prompts) {
  TierHost host(store, {});
  for (const auto& [id, length] : prompts) {
    host.submit(id, length, 2);
    REQUIRE(host.finish());
    host.submit(id + 1000, 3, 3);  // plans in which blocks move on
    REQUIRE(host.finish());
  }
  for (int i = 0; i < 5; ++i) {
    host.step();
  }
}

}  // namespace

// G25. Ours computes at least one token and loads whole blocks only: of 64 tokens 48 are loaded and
// the last block is computed, in place of the last token alone. The engine's host memory lies
// between, so the step after the load carries the moves.
TEST_CASE("Golden G25, whole prompt loaded") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 64}});
  store.faults().latency = milliseconds(1);
  TierHost host(store, {.blocks = 20});
  host.submit(1, 64, 2);
  CHECK(host.step().empty());
  CHECK(host.scheduler->status().state == PlanState::NothingRunnable);
  CHECK(host.scheduler->status().cause == WaitCause::Loading);
  CHECK(host.scheduler->status().request == RequestId{1});
  CHECK(host.scheduler->status().not_before == TimeNs{200'000'000});
  CHECK(host.scheduler->stats().waiting == 1);
  CHECK(host.scheduler->pool_stats().referenced_blocks == 0);
  CHECK(host.step().empty());  // the query has answered, the fetch is under way
  CHECK(host.step() == Tokens{{1, 16}});
  CHECK(host.first_positions[1] == 48);
  CHECK(host.num_loads == 3);
  CHECK(host.finish());
}

// G26. Ours loads into host memory: no device block is taken for a load, and two loads go on at
// once. What A has reserved keeps B waiting all the same.
TEST_CASE("Golden G26, reservation") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}, {2, 65}});
  store.faults().latency = milliseconds(1);
  TierHost host(store, {.blocks = 10});
  host.submit(1, 128, 1);
  host.submit(2, 80, 1);
  CHECK(host.step().empty());
  CHECK(host.scheduler->pool_stats().free_blocks == 10);
  CHECK(host.tier().queries == 2);
  CHECK(host.step().empty());
  CHECK(host.step() == Tokens{{1, 64}});
  CHECK(host.first_positions[1] == 64);
  CHECK(host.step() == Tokens{{2, 16}});
  CHECK(host.first_positions[2] == 64);
}

// G27. Ours never lets a step begin with a block that may be bad: what was not loaded well is not
// found, and 32 of 64 tokens are the longest prefix.
TEST_CASE("Golden G27, failed load") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}});
  TierHost host(store, {.blocks = 20});
  KeyChain chain;
  chain.start({}, 16, 1);
  SmallRequest r(1, 100, 1);
  const std::uint32_t page = 0;
  std::vector<BlockKey> keys(8);
  std::int32_t num_keys = 0;
  SequenceContentView view;
  view.scope = &r.request.scope;
  view.storage = r.tokens.data();
  view.pages = &page;
  view.page_tokens = 128;
  view.prompt_length = view.known_length = view.cacheable_length = 100;
  view.keys = keys.data();
  view.num_keys = &num_keys;
  REQUIRE(chain.extend(view, 4));
  REQUIRE(store.harm(keys[2]));
  host.submit(1, 100, 1);
  CHECK(host.step().empty());
  CHECK(host.step().empty());
  CHECK(host.tier().fetches == 1);
  CHECK(host.step() == Tokens{{1, 68}});
  CHECK(host.first_positions[1] == 32);
  CHECK(host.tier().corrupt == 1);
  CHECK(host.finish());
  CHECK(host.scheduler->stats().finished == 1);
}

TEST_CASE("R22, a block that is pending for ever") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}});
  store.faults().never = 1000;
  const auto queries = store.stats().queries + store.stats().fetches;
  TierHost host(store, {.blocks = 100});
  host.submit(1, 100, 2);
  host.submit(7, 20, 300, false);
  TimeNs started = kNever;
  std::int64_t others = 0;
  std::int64_t steps = 0;
  while (started == kNever && host.now < TimeNs{1'000'000'000}) {
    const TimeNs at = host.now;
    const auto tokens = host.step();
    ++steps;
    others += tokens.count(7) != 0 ? 1 : 0;
    started = tokens.count(1) != 0 ? at : started;
  }
  CHECK(started <= TimeNs{201'000'000});
  CHECK(started >= TimeNs{199'000'000});
  CHECK(others == steps);  // in every step
  CHECK(store.stats().queries + store.stats().fetches - queries <= 20);
  CHECK(store.stats().queries + store.stats().fetches - queries == 1);
  CHECK(host.finish());
}

TEST_CASE("A dead store delays nobody else, however many wait for it") {
  MemoryStore store({.num_blocks = 64, .faults = {.never = 1000}});
  TierHost host(store, {.blocks = 4000, .budget = 4096, .rows = 100, .max_loads = 64});
  for (std::uint64_t id = 1; id <= 40; ++id) {
    host.submit(id, 64, 1);
  }
  for (std::uint64_t id = 101; id <= 120; ++id) {
    host.submit(id, 64, 1, false);
  }
  const auto first = host.step();
  CHECK(first.size() == 20);
  CHECK(first.begin()->first == 101);
  CHECK(host.scheduler->stats().waiting == 40);
  // The breaker opens at the first deadline; from then on nobody waits for the store at all.
  host.now = TimeNs{200'000'000};
  CHECK(host.step().size() == 40);
  for (std::uint64_t id = 201; id <= 220; ++id) {
    host.submit(id, 64, 1);
  }
  CHECK(host.step().size() == 20);
  CHECK(host.finish());
}

TEST_CASE("A dead store costs the whole of a load no more than its deadline") {
  const auto ends_at = [](bool is_dead) {
    MemoryStore store({.num_blocks = 64, .faults = {.never = is_dead ? 1000 : 0}});
    TierHost host(store, {.blocks = 400, .budget = 128, .rows = 8});
    std::uint64_t id = 1;
    while (id <= 400) {
      for (int i = 0; i < 2 && id <= 400; ++i, ++id) {
        host.submit(id, 64, 4);
      }
      host.step();
    }
    REQUIRE(host.finish());
    return host.now;
  };
  const TimeNs dead = ends_at(true);
  const TimeNs alive = ends_at(false);
  INFO(dead.ns << " against " << alive.ns);
  CHECK(dead.ns - alive.ns <= 200'000'000);
}

TEST_CASE("Nobody gives up a place to a request that goes to wait for the store") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}});
  store.faults().latency = milliseconds(5);
  TierHostOf<PriorityAging> host(store, {.rows = 1}, PriorityAging({.displace = true}));
  host.submit(9, 20, 100, false);
  CHECK(host.step() == Tokens{{9, 20}});
  SmallRequest urgent(1, 80, 1);
  urgent.request.priority = -1;
  REQUIRE(host.scheduler->submit(urgent.view()));
  int waited = 0;
  for (; waited < 50 && host.step() == Tokens{{9, 1}}; ++waited) {
    CHECK(host.scheduler->stats().preemptions == 0);
    CHECK(host.scheduler->stats().waiting == 1);
  }
  CHECK(waited >= 10);  // a query and a fetch
  CHECK(waited < 20);
  CHECK(host.scheduler->stats().preemptions == 1);
  CHECK(host.first_positions[1] == 64);
  CHECK(host.finish());
  CHECK(host.scheduler->stats().preemptions == 1);
}

TEST_CASE("Whoever outranks nobody asks the store when there is a place") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}});
  TierHostOf<PriorityAging> host(store, {.rows = 1}, PriorityAging({.displace = true}));
  host.submit(9, 20, 260, false);
  CHECK(host.step() == Tokens{{9, 20}});
  host.submit(1, 80, 1);
  for (int i = 0; i < 240; ++i) {  // longer than blocks that have arrived are kept
    host.step();
  }
  CHECK(host.tier().queries == 0);
  REQUIRE(host.scheduler->cancel(RequestId{9}));
  CHECK(host.finish());
  CHECK(host.first_positions[1] == 64);
}

TEST_CASE("Requests that wait for a load can be cancelled, expire, and keep their rank") {
  MemoryStore store({.num_blocks = 64});
  fill(store, {{1, 65}, {2, 65}, {3, 65}});
  store.faults().latency = milliseconds(2);
  TierHost host(store, {.budget = 40});
  host.submit(1, 80, 1);
  SmallRequest late(2, 80, 1);
  late.request.start_by = TimeNs{500'000};
  REQUIRE(host.scheduler->submit(late.view()));
  host.submit(3, 80, 1);
  host.submit(4, 70, 1, false);  // does not wait for any of them
  CHECK(host.step() == Tokens{{4, 40}});
  CHECK(host.scheduler->stats().waiting == 3);
  REQUIRE(host.scheduler->cancel(RequestId{3}));
  CHECK(host.step() == Tokens{{4, 30}});
  CHECK(host.scheduler->stats().expired == 1);
  CHECK(host.scheduler->stats().cancelled == 1);
  CHECK(host.scheduler->stats().waiting == 1);
  CHECK(host.finish());
  CHECK(host.scheduler->stats().finished == 2);
  for (int i = 0; i < 300; ++i) {
    host.step();
  }
  CHECK(host.tier().lent_blocks == 0);
  CHECK(host.scheduler->clear_cache());
  CHECK(host.scheduler->pool_stats().host_blocks == 0);
}

// R14. Host memory is written through, so "out" means that the device has given B's blocks away and
// host memory has them still; nothing of it is held by B then.
TEST_CASE("R14, a sequence that was swapped out resumes before later arrivals") {
  MemoryStore store({.num_blocks = 64});
  const std::int64_t host_blocks = GENERATE(4, 1);
  const bool is_aborted = GENERATE(false, true);
  TierHost host(store, {.blocks = 4, .host_blocks = host_blocks});
  host.submit(1, 32, 10);
  host.submit(2, 32, 10);
  for (int i = 0; i < 4 && host.scheduler->stats().running != 2; ++i) {
    host.step();
  }
  REQUIRE(host.scheduler->stats().running == 2);
  for (int i = 0; i < 4 && host.scheduler->stats().preemptions == 0; ++i) {
    host.step();
  }
  REQUIRE(host.scheduler->stats().preemptions == 1);  // A needed a block, B is out
  host.submit(3, 32, 1);
  if (is_aborted) {
    REQUIRE(host.scheduler->cancel(RequestId{2}));
  }
  bool has_resumed = false;
  for (int i = 0; i < 100 && host.scheduler->stats().live > 0; ++i) {
    const auto tokens = host.step();
    if (tokens.count(2) != 0 && !has_resumed) {
      has_resumed = true;
      CHECK((host.num_loads > 0) == (host_blocks == 4));  // or it is computed
    }
    if (tokens.count(3) != 0 && !is_aborted) {
      CHECK(has_resumed);
    }
  }
  CHECK(has_resumed != is_aborted);
  CHECK(host.scheduler->stats().live == 0);
  CHECK(host.scheduler->stats().finished == (is_aborted ? 2 : 3));
  CHECK(host.scheduler->pool_stats().host_blocks <= host_blocks);
  for (int i = 0; i < 5; ++i) {
    host.step();
  }
  CHECK(host.scheduler->clear_cache());
  CHECK(host.scheduler->pool_stats().host_blocks == 0);
}

TEST_CASE("A pool with a tier needs an engine that swaps, in order") {
  MemoryStore store({.num_blocks = 4});
  TierConfig tier;
  tier.memory.bytes = [](void*, std::int32_t) noexcept { return std::span<std::byte>(); };
  tier.memory.slot_bytes = 1;
  Capabilities caps;
  const auto field = [&] {
    auto made = TierHost::TierScheduler::make(
        SchedulerConfig{}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
        Pool({.pool = {.num_blocks = 8, .block_size = 16}, .num_host_blocks = 8, .tier = tier},
             AnyKVTier(store)),
        FcfsAdmission{});
    return std::string(made.status().field);
  };
  CHECK(field() == "capabilities.swap");
  caps.swap = true;
  caps.in_order = false;
  CHECK(field() == "capabilities.in_order");
}

TEST_CASE("Keys of a prompt are computed by who submits it") {
  // A pool of which only the naming counts.
  struct NamingPool : Pool {
    using Pool::Pool;
    void name_blocks(const SequenceContentView& content) const noexcept {
      Pool::name_blocks(content);
      ++*num_named;
      *num_keys = *content.num_keys;
    }
    int* num_named = nullptr;
    std::int32_t* num_keys = nullptr;
  };
  MemoryStore store({.num_blocks = 4});
  TierConfig tier;
  static std::byte slot[1];
  tier.memory.bytes = [](void*, std::int32_t) noexcept { return std::span<std::byte>(slot); };
  tier.memory.slot_bytes = 1;
  Capabilities caps;
  caps.swap = true;
  NamingPool pool(
      {.pool = {.num_blocks = 20, .block_size = 16}, .num_host_blocks = 8, .tier = tier},
      AnyKVTier(store));
  int num_named = 0;
  std::int32_t num_keys = 0;
  pool.num_named = &num_named;
  pool.num_keys = &num_keys;
  auto made = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, NamingPool>::make(
      SchedulerConfig{}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{}, std::move(pool),
      FcfsAdmission{});
  REQUIRE(made);
  SmallRequest r(1, 100, 1);
  REQUIRE(made.value().submit(r.view()));
  CHECK(num_named == 1);
  CHECK(num_keys == 6);
  REQUIRE(made.value().plan(TimeNs{}) == nullptr);  // it waits for the store
  CHECK(num_named == 1);
}
