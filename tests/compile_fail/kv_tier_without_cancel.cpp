// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: a KVTier needs 'void cancel(std::uint64_t) noexcept'. See docs/kv_tier.md
#include <dynbatch/concepts/kv_tier.hpp>

#include <cstdint>

using namespace dynbatch;

struct Tier : NullTier {
#ifndef DYNBATCH_TEST_CORRECTED
  void cancel(std::uint64_t) = delete;
#endif
};

static_assert(check_kv_tier<Tier>());
