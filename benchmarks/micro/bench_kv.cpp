// SPDX-License-Identifier: Apache-2.0
// Cost of the KV pool's operations. Where a benchmark has to undo what it measures, only the named
// operation is timed (manual time).
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/adaptive_lru.hpp>
#include <dynbatch/kv/block_keys.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/cost_aware.hpp>
#include <dynbatch/kv/lfu.hpp>
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/priority_duration.hpp>
#include <dynbatch/kv/slru.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/kv/ttl.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

using namespace dynbatch;

namespace {

constexpr std::int32_t kBlock = 16;

// One sequence's tokens in pages of 256.
struct Prompt {
  explicit Prompt(std::int64_t n, std::uint64_t seed) : tokens(static_cast<std::size_t>(n)) {
    SplitMix64 random(seed);
    for (Token& t : tokens) {
      t = static_cast<Token>(random.between(0, 128000));
    }
    for (std::int64_t page = 0; page * 256 < n; ++page) {
      pages.push_back(static_cast<std::uint32_t>(page));
    }
  }
  [[nodiscard]] SequenceContentView view() const {
    SequenceContentView v{};
    v.scope = &scope;
    v.storage = tokens.data();
    v.pages = pages.data();
    v.page_tokens = 256;
    v.prompt_length = v.known_length = v.cacheable_length =
        static_cast<std::int64_t>(tokens.size());
    return v;
  }
  CacheScope scope{};
  std::vector<Token> tokens;
  std::vector<std::uint32_t> pages;
};

// One digest for each block, in pages of 64.
struct DigestPrompt {
  DigestPrompt(std::int64_t n, std::uint64_t seed) : length(n) {
    SplitMix64 random(seed);
    for (std::int64_t i = 0; i < n / kBlock; ++i) {
      digests.push_back({random.next(), random.next()});
    }
    for (std::int64_t page = 0; page * 64 < n / kBlock; ++page) {
      pages.push_back(static_cast<std::uint32_t>(page));
    }
  }
  [[nodiscard]] SequenceContentView view() const {
    SequenceContentView v{};
    v.scope = &scope;
    v.storage = reinterpret_cast<const Token*>(digests.data());
    v.pages = pages.data();
    v.page_tokens = 256;
    v.prompt_length = v.known_length = v.cacheable_length = length;
    v.digest_unit = kBlock;
    return v;
  }
  std::int64_t length;
  CacheScope scope{};
  std::vector<ContentDigest> digests;
  std::vector<std::uint32_t> pages;
};

template <class Eviction = Lru>
BlockPool<Eviction> make_pool(std::int64_t num_blocks, std::int32_t rows, std::int64_t context) {
  BlockPool<Eviction> pool({.num_blocks = num_blocks, .block_size = kBlock});
  if (!pool.attach({.max_rows = rows, .max_context_tokens = context})) {
    std::abort();
  }
  return pool;
}

template <class Pool>
void fill(Pool& pool, Row row, const Prompt& prompt) {
  const auto view = prompt.view();
  const auto n = static_cast<std::int64_t>(prompt.tokens.size());
  if (!pool.acquire(row, pool.match(view, n - 1)) || !pool.extend(row, n)) {
    std::abort();
  }
  pool.publish(row, view, n, kNoPlan);
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The whole prompt but its last block is cached and was read just before.
void prefix_match_hot(benchmark::State& state) {
  const auto n = static_cast<std::int64_t>(32768);
  auto pool = make_pool(200000, 4, n);
  const Prompt prompt(n, 1);
  fill(pool, Row{0}, prompt);
  pool.release(Row{0});
  const auto view = prompt.view();
  for (auto _ : state) {
    const PrefixMatch m = pool.match(view, n - 1);
    benchmark::DoNotOptimize(m);
  }
}
BENCHMARK(prefix_match_hot)->Name("BM_PrefixMatch/tokens:32768/hot");

// The same request again, as the head of a queue is looked up in each step; meanwhile a plan was
// settled.
void prefix_match_verified(benchmark::State& state) {
  const auto n = static_cast<std::int64_t>(32768);
  auto pool = make_pool(200000, 4, n);
  const Prompt prompt(n, 1);
  fill(pool, Row{0}, prompt);
  pool.release(Row{0});
  auto view = prompt.view();
  view.version = 1;
  std::uint64_t plan = 0;
  for (auto _ : state) {
    pool.settle(PlanId{++plan});
    const PrefixMatch m = pool.match(view, n - 1);
    benchmark::DoNotOptimize(m);
  }
}
BENCHMARK(prefix_match_verified)->Name("BM_PrefixMatch/tokens:32768/verified");

// The same, after another sequence that shares nothing with it has come and gone: which blocks are
// idle has to be counted again.
void prefix_match_recounted(benchmark::State& state) {
  const auto n = static_cast<std::int64_t>(32768);
  auto pool = make_pool(200000, 4, n);
  const Prompt prompt(n, 1);
  const Prompt other(16, 2);
  fill(pool, Row{0}, prompt);
  pool.release(Row{0});
  fill(pool, Row{1}, other);
  pool.release(Row{1});
  auto view = prompt.view();
  view.version = 1;
  for (auto _ : state) {
    if (!pool.extend(Row{1}, 16)) {
      std::abort();
    }
    pool.release(Row{1});
    const PrefixMatch m = pool.match(view, n - 1);
    benchmark::DoNotOptimize(m);
  }
}
BENCHMARK(prefix_match_recounted)->Name("BM_PrefixMatch/tokens:32768/verified_recounted");

// Prompts given as one digest a block, looked up in turn: they are equal up to `common` tokens.
void prefix_match_digests(benchmark::State& state, std::int64_t common) {
  const auto n = static_cast<std::int64_t>(32768);
  auto pool = make_pool(200000, 4, n);
  DigestPrompt prompts[] = {DigestPrompt(n, 1), DigestPrompt(n, 2)};
  for (std::size_t i = 0; i < static_cast<std::size_t>(common / kBlock); ++i) {
    prompts[1].digests[i] = prompts[0].digests[i];
  }
  for (const DigestPrompt& prompt : prompts) {
    const auto view = prompt.view();
    if (!pool.acquire(Row{0}, pool.match(view, n - 1)) || !pool.extend(Row{0}, n)) {
      std::abort();
    }
    pool.publish(Row{0}, view, n, kNoPlan);
    pool.release(Row{0});
  }
  std::size_t next = 0;
  for (auto _ : state) {
    next = 1 - next;
    const PrefixMatch m = pool.match(prompts[next].view(), n - 1);
    benchmark::DoNotOptimize(m);
  }
}
BENCHMARK_CAPTURE(prefix_match_digests, same, 32768)->Name("BM_PrefixMatch/tokens:32768/digests");
BENCHMARK_CAPTURE(prefix_match_digests, tail, 32768 - 1024)
    ->Name("BM_PrefixMatch/tokens:32768/digests_tails");
BENCHMARK_CAPTURE(prefix_match_digests, apart, 0)
    ->Name("BM_PrefixMatch/tokens:32768/digests_apart");

// A prompt of which nothing is cached: the first block decides.
void prefix_match_miss(benchmark::State& state) {
  auto pool = make_pool(200000, 4, 32768);
  const Prompt stored(32768, 1);
  const Prompt other(32768, 2);
  fill(pool, Row{0}, stored);
  const auto view = other.view();
  for (auto _ : state) {
    const PrefixMatch m = pool.match(view, 32767);
    benchmark::DoNotOptimize(m);
  }
}
BENCHMARK(prefix_match_miss)->Name("BM_PrefixMatch/tokens:32768/miss");

// publish() of a whole prompt; blocks and nodes were used before.
void prefix_insert(benchmark::State& state) {
  auto pool = make_pool(4096, 4, 32768);
  const Prompt prompt(32768, 1);
  const auto view = prompt.view();
  for (auto _ : state) {
    if (!pool.extend(Row{0}, 32768)) {
      std::abort();
    }
    const Stopwatch watch;
    pool.publish(Row{0}, view, 32768, kNoPlan);
    state.SetIterationTime(watch.seconds());
    pool.release(Row{0});
    pool.clear();
  }
}
BENCHMARK(prefix_insert)->Name("BM_PrefixInsert/tokens:32768")->UseManualTime();

// A full pool of 200,000 cached blocks in sequences of 4,096 tokens, half of them referenced.
template <class Eviction>
void evict_allocate(benchmark::State& state) {
  constexpr int kSequences = 781;
  auto pool = make_pool<Eviction>(kSequences * 256, kSequences + 1, 4096);
  std::vector<Prompt> prompts;
  for (int i = 0; i < kSequences; ++i) {
    prompts.emplace_back(4096, static_cast<std::uint64_t>(i));
    fill(pool, Row{i}, prompts.back());
  }
  for (int i = 0; i < kSequences; i += 2) {
    pool.release(Row{i});
  }
  int next = 0;
  const Row row{kSequences};
  for (auto _ : state) {
    const Stopwatch watch;
    const bool ok = pool.extend(row, 4096);
    state.SetIterationTime(watch.seconds());
    if (!ok) {
      std::abort();
    }
    pool.publish(row, prompts[static_cast<std::size_t>(next)].view(), 4096, kNoPlan);
    pool.release(row);
    next = (next + 2) % (kSequences + 1);
  }
}
// One line an eviction order.
#define DYNBATCH_EVICT_ALLOCATE(Eviction, suffix)                            \
  BENCHMARK(evict_allocate<Eviction>)                                        \
      ->Name("BM_EvictAllocate/blocks:256/cached:200000/pinned:half" suffix) \
      ->UseManualTime()
DYNBATCH_EVICT_ALLOCATE(Lru, "");
DYNBATCH_EVICT_ALLOCATE(Ttl<>, "/ttl");
DYNBATCH_EVICT_ALLOCATE(Lfu, "/lfu");
DYNBATCH_EVICT_ALLOCATE(Slru, "/slru");
DYNBATCH_EVICT_ALLOCATE(PriorityDuration, "/priority");
DYNBATCH_EVICT_ALLOCATE(CostAware, "/cost");
DYNBATCH_EVICT_ALLOCATE(AdaptiveLru, "/adaptive");

template <class Eviction>
void release(benchmark::State& state) {
  auto pool = make_pool<Eviction>(200000, 4, 32768);
  const Prompt prompt(32768, 1);
  fill(pool, Row{0}, prompt);
  pool.release(Row{0});
  for (auto _ : state) {
    fill(pool, Row{0}, prompt);
    const Stopwatch watch;
    pool.release(Row{0});
    state.SetIterationTime(watch.seconds());
  }
}
BENCHMARK(release<Lru>)->Name("BM_Release/tokens:32768")->UseManualTime();
BENCHMARK(release<AdaptiveLru>)->Name("BM_Release/tokens:32768/adaptive")->UseManualTime();

template <class Eviction>
void acquire(benchmark::State& state) {
  auto pool = make_pool<Eviction>(200000, 4, 32768);
  const Prompt prompt(32768, 1);
  fill(pool, Row{0}, prompt);
  pool.release(Row{0});
  const auto view = prompt.view();
  for (auto _ : state) {
    const PrefixMatch m = pool.match(view, 32767);
    const Stopwatch watch;
    const bool ok = pool.acquire(Row{0}, m);
    state.SetIterationTime(watch.seconds());
    if (!ok) {
      std::abort();
    }
    pool.release(Row{0});
  }
}
BENCHMARK(acquire<Lru>)->Name("BM_Acquire/tokens:32768")->UseManualTime();
BENCHMARK(acquire<AdaptiveLru>)->Name("BM_Acquire/tokens:32768/adaptive")->UseManualTime();

// One decode step of 1,024 rows of which every sixteenth needs a block: extend and publish.
template <class Eviction>
void extend(benchmark::State& state) {
  constexpr int kRows = 1024;
  constexpr std::int64_t kFirst = 4096;
  constexpr std::int64_t kLast = 4096 + 1024;
  auto pool = make_pool<Eviction>(400000, kRows, kLast + kBlock);
  std::vector<Prompt> prompts;
  std::vector<SequenceContentView> views;
  for (int i = 0; i < kRows; ++i) {
    prompts.emplace_back(kLast + kBlock, static_cast<std::uint64_t>(i));
  }
  for (const Prompt& p : prompts) {
    views.push_back(p.view());
  }
  std::int64_t step = kLast;
  for (auto _ : state) {
    if (step == kLast) {
      state.PauseTiming();
      step = kFirst;
      for (int i = 0; i < kRows; ++i) {
        pool.release(Row{i});
      }
      pool.clear();
      for (int i = 0; i < kRows; ++i) {
        if (!pool.extend(Row{i}, kFirst + i % kBlock)) {
          std::abort();
        }
        pool.publish(Row{i}, views[static_cast<std::size_t>(i)], kFirst + i % kBlock, kNoPlan);
      }
      state.ResumeTiming();
    }
    ++step;
    bool ok = true;
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t tokens = step + i % kBlock;
      ok &= pool.extend(Row{i}, tokens);
      pool.publish(Row{i}, views[static_cast<std::size_t>(i)], tokens, kNoPlan);
    }
    benchmark::DoNotOptimize(ok);
  }
}
BENCHMARK(extend<Lru>)->Name("BM_Extend/rows:1024");
BENCHMARK(extend<AdaptiveLru>)->Name("BM_Extend/rows:1024/adaptive");

// How cost depends on what the pool holds: `blocks` cached blocks in `prompts` prompts that share
// nothing, and one of 32k tokens that is worked on.
struct Filled {
  Filled(std::int64_t blocks, std::int64_t prompts)
      : pool(
            make_pool(blocks + 2 * kHotBlocks, 4, std::max(kHotTokens, blocks / prompts * kBlock))),
        hot(kHotTokens, 1) {
    const std::int64_t tokens = blocks / prompts * kBlock;
    for (std::int64_t i = 0; i < prompts; ++i) {
      fill(pool, Row{0}, Prompt(tokens, static_cast<std::uint64_t>(i) + 7));
      pool.release(Row{0});
    }
  }
  static constexpr std::int64_t kHotTokens = 32768;
  static constexpr std::int64_t kHotBlocks = kHotTokens / kBlock;
  BlockPool<> pool;
  Prompt hot;
};

void match_in_filled(benchmark::State& state) {
  Filled f(state.range(0), state.range(1));
  fill(f.pool, Row{0}, f.hot);
  f.pool.release(Row{0});
  const auto view = f.hot.view();
  for (auto _ : state) {
    const PrefixMatch m = f.pool.match(view, Filled::kHotTokens - 1);
    benchmark::DoNotOptimize(m);
  }
}

// One prompt after another that nobody has seen: look-up, eviction of 2,048 blocks, publishing and
// release, each timed by itself.
enum class Part { Miss, Evict, Insert, Release };
template <Part kPart>
void turn_over(benchmark::State& state) {
  Filled f(state.range(0), state.range(1));
  std::vector<Prompt> prompts;
  for (std::uint64_t i = 0; i < 8; ++i) {
    prompts.emplace_back(Filled::kHotTokens, 1000000 + i);
  }
  std::size_t next = 0;
  std::int32_t round = 0;
  for (auto _ : state) {
    Prompt& prompt = prompts[next];
    next = (next + 1) % prompts.size();
    prompt.tokens[0] = 200000 + round++;  // Never the same again.
    const auto view = prompt.view();
    const Stopwatch miss;
    const PrefixMatch m = f.pool.match(view, Filled::kHotTokens - 1);
    const double miss_s = miss.seconds();
    const Stopwatch evict;
    const bool ok = f.pool.acquire(Row{0}, m) && f.pool.extend(Row{0}, Filled::kHotTokens);
    const double evict_s = evict.seconds();
    const Stopwatch insert;
    f.pool.publish(Row{0}, view, Filled::kHotTokens, kNoPlan);
    const double insert_s = insert.seconds();
    const Stopwatch release;
    f.pool.release(Row{0});
    const double release_s = release.seconds();
    state.SetIterationTime(kPart == Part::Miss     ? miss_s
                           : kPart == Part::Evict  ? evict_s
                           : kPart == Part::Insert ? insert_s
                                                   : release_s);
    if (!ok || m.num_tokens != 0) {
      std::abort();
    }
  }
}
void held(benchmark::internal::Benchmark* b) {
  for (const std::int64_t blocks : {10000, 100000, 1000000}) {
    b->Args({blocks, blocks / 256});
  }
  for (const std::int64_t prompts : {100, 1000, 10000, 60000}) {
    b->Args({480000, prompts});
  }
  b->ArgNames({"blocks", "prompts"});
}
BENCHMARK(match_in_filled)->Name("BM_Held/match:32768")->Apply(held);
BENCHMARK(turn_over<Part::Miss>)->Name("BM_Held/miss:32768")->Apply(held)->UseManualTime();
BENCHMARK(turn_over<Part::Evict>)->Name("BM_Held/evict:2048")->Apply(held)->UseManualTime();
BENCHMARK(turn_over<Part::Insert>)->Name("BM_Held/insert:32768")->Apply(held)->UseManualTime();
BENCHMARK(turn_over<Part::Release>)->Name("BM_Held/release:32768")->Apply(held)->UseManualTime();

// Keys of a prompt for an external tier: once a request.
void block_keys(benchmark::State& state) {
  constexpr std::int64_t kTokens = 32768;
  const Prompt prompt(kTokens, 1);
  std::vector<BlockKey> keys(kTokens / kBlock);
  KeyChain chain;
  chain.start({.model = "org/model", .revision = "main", .format = "bf16"}, kBlock, 65536);
  for (auto _ : state) {
    std::int32_t num_keys = 0;
    SequenceContentView view = prompt.view();
    view.keys = keys.data();
    view.num_keys = &num_keys;
    benchmark::DoNotOptimize(chain.extend(view, kTokens / kBlock));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * (kTokens / kBlock));
}
BENCHMARK(block_keys)->Name("BM_BlockKeys/tokens:32768");

// A prompt that the pool has is admitted, moves and ends: with host memory alone, and with a store
// behind it that has everything. What the store's own time is does not count: nothing is under way.
template <class Tier>
void tiered_pass(benchmark::State& state) {
  constexpr std::int64_t kTokens = 32768;
  const Prompt prompt(kTokens, 1);
  std::vector<BlockKey> keys(kTokens / kBlock);
  std::int32_t num_keys = 0;
  SequenceContentView view = prompt.view();
  view.keys = keys.data();
  view.num_keys = &num_keys;
  TierConfig tier;
  static std::byte slot[1];
  tier.memory.bytes = [](void*, std::int32_t) noexcept { return std::span<std::byte>(slot); };
  tier.memory.slot_bytes = 1;
  tier.max_operation_blocks = 4096;
  tier.max_blocks_in_flight = 1 << 20;
  Tier store = [] {
    if constexpr (requires { typename Tier::Faults; }) {
      return Tier({.num_blocks = 8192});
    } else {
      return Tier{};
    }
  }();
  TieredPool<BlockPool<>, Tier> pool(
      {.pool = {.num_blocks = 4096, .block_size = kBlock}, .num_host_blocks = 4096, .tier = tier},
      std::move(store));
  if (!pool.attach({.max_rows = 4, .max_context_tokens = kTokens})) {
    std::abort();
  }
  std::vector<BlockSwap> swaps(20000);
  std::uint64_t plan = 0;
  for (auto _ : state) {
    ++plan;
    pool.unpin_expired(TimeNs{static_cast<std::int64_t>(plan) * 1'000'000});
    const PrefixMatch match = pool.match(view, kTokens - 1);
    bool ok = pool.acquire(Row{0}, match) && pool.extend(Row{0}, kTokens);
    pool.publish(Row{0}, view, kTokens, PlanId{plan});
    ok = ok && pool.drain_swaps(swaps, PlanId{plan}) <= swaps.size();
    pool.settle(PlanId{plan});
    pool.release(Row{0});
    benchmark::DoNotOptimize(ok);
  }
}
BENCHMARK(tiered_pass<NullTier>)->Name("BM_TieredPass/tokens:32768");
BENCHMARK(tiered_pass<MemoryStore>)->Name("BM_TieredPass/tokens:32768/store");

}  // namespace

BENCHMARK_MAIN();
