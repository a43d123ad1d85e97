// SPDX-License-Identifier: Apache-2.0
/// \file
/// Pins at the host's word, through the scheduler.
#include <dynbatch/kv/pinning.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

using PinScheduler = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, Pinning<BlockPool<>>>;

PinScheduler make_pinning() {
  Capabilities caps;
  caps.max_sequences = 4;
  SchedulerConfig config;
  auto made = PinScheduler::make(
      config, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
      Pinning<BlockPool<>>({.pool = {.num_blocks = 40, .block_size = 16}}), FcfsAdmission{});
  REQUIRE(made);
  return std::move(made).value();
}

/// Runs a request alone; returns its first chunk's number of tokens.
std::int64_t run_alone(PinScheduler& s, SmallRequest& r, TimeNs now) {
  REQUIRE(s.submit(r.view()));
  std::int64_t first = 0;
  while (s.stats().live > 0) {
    const StepPlan* plan = s.plan(now);
    REQUIRE(plan != nullptr);
    first = first == 0 ? plan->num_tokens() : first;
    const std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
    StepResult result;
    result.tokens = tokens;
    REQUIRE(s.commit(*plan, result, now));
    Event events[16];
    s.poll(events);
  }
  Event events[16];
  s.poll(events);
  return first;
}

}  // namespace

TEST_CASE("The host pins a prompt until a time") {
  PinScheduler s = make_pinning();
  SmallRequest system(1, 129, 1);
  run_alone(s, system, TimeNs{1});
  const Prompt prompt = system.view().prompt;
  CHECK(s.pin(prompt, {}, 0, TimeNs{1000}).code == Errc::InvalidArgument);
  CHECK(s.pin(prompt, {}, 130, TimeNs{1000}).code == Errc::InvalidArgument);
  CacheScope other;
  other.model_epoch = 5;
  CHECK(s.pin(prompt, other, 128, TimeNs{1000}).code == Errc::NotFound);
  REQUIRE(s.pin(prompt, {}, 128, TimeNs{1000}));
  CHECK(s.pool_stats().pinned_blocks == 8);
  const auto flood = [&](std::uint64_t from, TimeNs now) {
    for (std::uint64_t id = from; id < from + 10; ++id) {
      SmallRequest r(id, 400, 1);
      CHECK(run_alone(s, r, now) == 400);
    }
  };
  flood(10, TimeNs{500});
  CHECK(run_alone(s, system, TimeNs{600}) == 1);  // all but the last token were kept
  flood(30, TimeNs{2000});
  CHECK(run_alone(s, system, TimeNs{2000}) == 129);
  REQUIRE(s.check());
}

TEST_CASE("A pool without pins says so") {
  SmallScheduler s = make_small();
  SmallRequest r(1, 64, 1);
  CHECK(s.pin(r.view().prompt, {}, 64, TimeNs{1}).code == Errc::NotSupported);
}
