// SPDX-License-Identifier: Apache-2.0
// The KV layer without exceptions and run-time type information.
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/laws/kv_cache_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

int main() {
  using namespace dynbatch;
  TierConfig tier;
  static std::byte slots[40];
  tier.memory.bytes = [](void*, std::int32_t slot) noexcept { return std::span(slots + slot, 1); };
  tier.memory.slot_bytes = 1;
  TieredPool<BlockPool<>, MemoryStore> stored(
      {.pool = {.num_blocks = 20, .block_size = 4}, .num_host_blocks = 40, .tier = tier},
      MemoryStore({.num_blocks = 30}));
  if (!stored.attach({.max_rows = 2, .max_context_tokens = 64})) {
    return 4;
  }
  stored.unpin_expired(TimeNs{1});
  BlockPool<> pool({.num_blocks = 20, .block_size = 4});
  if (!check_kv_cache_pool_laws(pool, 1, 200)) {
    return 1;
  }
  NullPool null;
  if (!check_kv_cache_pool_laws(null, 1, 200)) {
    return 2;
  }
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 20, .block_size = 4};
  config.groups[0] = {{GroupKind::Window, 2, 5}, 200};
  config.groups[1] = {{GroupKind::Recurrent, 1, 0}, 9};
  GroupedPool<> grouped(config);
  if (!check_kv_cache_pool_laws(grouped, 1, 200)) {
    return 4;
  }
  BlockPool<> bad({.num_blocks = 0});
  return bad.attach({.max_rows = 1, .max_context_tokens = 1}).code == Errc::InvalidConfig ? 0 : 3;
}
