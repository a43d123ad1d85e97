// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/kv_tier.hpp>

#include <catch2/catch.hpp>
#include <type_traits>

using namespace dynbatch;

namespace {

struct CountingTier : NullTier {
  int calls = 0;
  bool begin(const TierOperation& operation) noexcept {
    calls += static_cast<int>(operation.keys.size());
    return true;
  }
  std::size_t poll(TimeNs now, std::span<TierCompletion> completions) noexcept {
    completions[0] = {static_cast<std::uint64_t>(now.ns), 1, TierResult::Done};
    return 1;
  }
};
static_assert(KVTier<CountingTier>);
static_assert(check_kv_tier<CountingTier>());
static_assert(!KVTier<int>);

}  // namespace

TEST_CASE("NullTier refuses everything") {
  NullTier tier;
  CHECK(tier.attach({}).is_ok());
  CHECK_FALSE(tier.begin({}));
  TierCompletion one[1];
  CHECK(tier.poll({}, one) == 0);
  tier.cancel(1);
}

TEST_CASE("AnyKVTier passes every call on") {
  CountingTier model;
  AnyKVTier tier(model);
  CHECK(tier.attach({}).is_ok());
  const BlockKey keys[3]{};
  CHECK(tier.begin({.keys = keys}));
  CHECK(model.calls == 3);
  TierCompletion one[1];
  CHECK(tier.poll(TimeNs{9}, one) == 1);
  CHECK(one[0].ticket == 9);
}
