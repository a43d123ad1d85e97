// SPDX-License-Identifier: Apache-2.0
/// \file
/// What a mistake would not break but make slow or late.
#include "small_host.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

/// A pool that counts its look-ups.
class CountingPool : public BlockPool<> {
 public:
  CountingPool(const Config& config, int* lookups) noexcept
      : BlockPool<>(config), lookups_(lookups) {}
  PrefixMatch match(const SequenceContentView& content, std::int64_t limit) noexcept {
    ++*lookups_;
    return BlockPool<>::match(content, limit);
  }

 private:
  int* lookups_;
};

/// Order of the kinds of a plan's chunks, as "DDP".
std::string kinds(const StepPlan* plan) {
  std::string text;
  if (plan != nullptr) {
    for (const Chunk& c : plan->chunks) {
      text += c.kind == ChunkKind::Decode ? 'D' : 'P';
    }
  }
  return text;
}

}  // namespace

TEST_CASE("A request that does not fit is looked up now and then, not in every plan") {
  int lookups = 0;
  Capabilities caps;
  caps.max_sequences = 8;
  auto made = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, CountingPool>::make(
      {}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
      CountingPool({.num_blocks = 40, .block_size = 16}, &lookups), FcfsAdmission{});
  REQUIRE(made);
  const auto step_once = [&] {
    const StepPlan* plan = made->plan(TimeNs{});
    REQUIRE(plan != nullptr);
    const std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
    StepResult result;
    result.tokens = tokens;
    REQUIRE(made->commit(*plan, result, TimeNs{}));
  };
  SmallRequest long_one(1, 300, 300);
  SmallRequest blocked(2, 400, 10);
  REQUIRE(made->submit(long_one.view()));
  step_once();
  REQUIRE(made->submit(blocked.view()));
  lookups = 0;
  for (int i = 0; i < 200; ++i) {
    step_once();
  }
  CHECK(lookups >= 2);
  CHECK(lookups <= 6);
}

TEST_CASE("A started prompt that was left out comes first once, then decodes do again") {
  SmallOptions o;
  o.budget = 4;
  SmallScheduler s = make_small(o);
  const auto step_kinds = [&] {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    const std::string text = kinds(plan);
    REQUIRE(settle(s, *plan, TimeNs{}));
    return text;
  };
  REQUIRE(submit(s, 1, 1, 60));
  SmallRequest three(2, 1, 60);
  three.request.num_samples = 3;
  REQUIRE(s.submit(three.view()));
  REQUIRE(submit(s, 3, 20, 2));
  CHECK(step_kinds() == "PPP");  // the third begins with the two tokens that are left
  // From now on four decodes want all four tokens of a step.
  for (int i = 0; i < 4; ++i) {
    CHECK(step_kinds() == "DDDD");
    CHECK(step_kinds() == "P");
  }
}

TEST_CASE("Who waits for a prefix is let in as soon as the block it needs is planned") {
  SmallOptions o;
  o.budget = 64;
  o.caching = true;
  o.admission.max_chunk_tokens = 32;
  SmallScheduler s = make_small(o);
  SmallRequest writer(1, 200, 2);
  SmallRequest reader(2, 20, 2);
  std::copy_n(writer.tokens.begin(), 16, reader.tokens.begin());
  REQUIRE(s.submit(writer.view()));
  CHECK(step(s) == Scheduled{{1, 32}});
  REQUIRE(s.submit(reader.view()));
  // The writer goes on for many steps; the reader's only block is there already.
  CHECK(step(s) == Scheduled{{1, 32}, {2, 4}});
}
