// SPDX-License-Identifier: Apache-2.0
// The KV layer without exceptions and run-time type information.
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/laws/kv_cache_pool.hpp>

int main() {
  using namespace dynbatch;
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
