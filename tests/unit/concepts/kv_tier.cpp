// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/kv_tier.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

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

// The minimum model of docs/kv_tier.md.
struct ForgetfulTier : NullTier {
  std::uint64_t ticket = 0;
  bool begin(const TierOperation& op) noexcept {
    return op.verb == TierVerb::Query && ticket == 0 ? (ticket = op.ticket, true) : false;
  }
  std::size_t poll(TimeNs, std::span<TierCompletion> out) noexcept {
    if (ticket == 0) {
      return 0;
    }
    out[0] = {std::exchange(ticket, 0), 0, TierResult::Done};
    return 1;
  }
};
static_assert(KVTier<ForgetfulTier>);

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

TEST_CASE("A tier that keeps nothing ends each query once") {
  ForgetfulTier tier;
  CHECK(tier.begin({.verb = TierVerb::Query, .ticket = 7}));
  CHECK_FALSE(tier.begin({.verb = TierVerb::Store, .ticket = 8}));
  TierCompletion one[1];
  REQUIRE(tier.poll({}, one) == 1);
  CHECK(one[0].ticket == 7);
  CHECK(one[0].num_blocks == 0);
  CHECK(tier.poll({}, one) == 0);
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
