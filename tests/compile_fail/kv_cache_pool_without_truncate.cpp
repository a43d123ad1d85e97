// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: a KVCachePool needs 'void truncate(Row, std::int64_t) noexcept'. See
// docs/policies/kv_cache_pool.md
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/kv/null_pool.hpp>

#include <cstdint>

using namespace dynbatch;

struct Pool : NullPool {
#ifndef DYNBATCH_TEST_CORRECTED
  void truncate(Row, std::int64_t) = delete;
#endif
};

static_assert(check_kv_cache_pool<Pool>());
