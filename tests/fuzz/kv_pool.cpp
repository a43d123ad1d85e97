// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of the KV pool: the bytes choose operations, which a naive model predicts, see
// tests/support/block_pool_run.hpp. Preset `fuzz` builds it as fuzz_kv_pool;
// tests/unit/kv/block_pool_corpus.cpp runs its corpus.
#include "../support/block_pool_run.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kv_pool_fuzz {

using namespace dynbatch;
using test::ByteChoices;
using test::PoolRunCounts;
using test::PoolShape;

/// Every prefix is in the same place of the table.
struct OneHash {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 1; }
};

template <class Pool>
PoolRunCounts run(ByteChoices& choices, const PoolShape& shape, std::uint64_t seed) {
  constexpr std::int64_t kMostOperations = 4000;
  return test::BlockPoolRun<Pool, ByteChoices>(choices, shape, seed).run(kMostOperations);
}

/// The first bytes choose the pool and the contents, all others the operations. Throws a
/// test::Violation.
inline PoolRunCounts run_bytes(std::span<const std::uint8_t> bytes) {
  ByteChoices choices(bytes);
  PoolShape shape;
  shape.num_stories = 12;
  shape.check_every = 8;
  const std::int64_t pool = choices.between(0, 11);
  shape.num_blocks = choices.between(4, 24);
  shape.partial_copy = choices.one_in(2);
  shape.min_partial_tokens = static_cast<std::int32_t>(choices.between(1, 3));
  const auto seed = static_cast<std::uint64_t>(choices.between(0, 255));
  switch (pool) {
    case 0:
      return run<BlockPool<Lru>>(choices, shape, seed);
    case 1:
      return run<BlockPool<Slru>>(choices, shape, seed);
    case 2:
      return run<BlockPool<Lfu>>(choices, shape, seed);
    case 3:
      return run<BlockPool<CostAware>>(choices, shape, seed);
    case 4:
      return run<BlockPool<AdaptiveLru>>(choices, shape, seed);
    case 5:
      return run<BlockPool<PriorityDuration>>(choices, shape, seed);
    case 6:
      return run<BlockPool<Ttl<Lru>>>(choices, shape, seed);
    case 7:
      return run<BlockPool<Ttl<Slru>>>(choices, shape, seed);
    case 8:
      return run<BlockPool<Belady>>(choices, shape, seed);
    case 9:
      return run<BlockPool<Lru, OneHash>>(choices, shape, seed);
    case 10:
      return run<Pinning<BlockPool<Lru>>>(choices, shape, seed);
    default:
      return run<Pinning<BlockPool<PriorityDuration>>>(choices, shape, seed);
  }
}

}  // namespace kv_pool_fuzz

// Aborts where a test fails.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    static_cast<void>(kv_pool_fuzz::run_bytes({data, size}));
  } catch (const dynbatch::test::Violation& violation) {
    std::fprintf(stderr, "%s\n", violation.what());
    std::abort();
  }
  return 0;
}
