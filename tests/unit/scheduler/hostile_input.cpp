// SPDX-License-Identifier: Apache-2.0
/// \file
/// Input at and beyond every limit: typed errors, never a broken book or an undefined step.
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <set>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

std::vector<ContentDigest> chain(std::int64_t count, std::uint64_t family) {
  std::vector<ContentDigest> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back({family, static_cast<std::uint64_t>(i)});
  }
  return out;
}

Request digest_request(std::uint64_t id, const std::vector<ContentDigest>& digests,
                       std::int64_t length, std::int32_t unit, std::int64_t outputs) {
  Request r;
  r.id = RequestId{id};
  r.user_data = id;
  r.prompt.kind = PromptKind::Digests;
  r.prompt.digests = digests;
  r.prompt.length = length;
  r.prompt.digest_unit = unit;
  r.max_new_tokens = outputs;
  return r;
}

}  // namespace

TEST_CASE("Digests of one token each neither overflow a page table nor meet a neighbour's") {
  for (const std::int32_t unit : {1, 2, 3, 4}) {
    SmallOptions o;
    o.block_size = unit;
    o.blocks = 3000;
    o.caching = true;
    o.budget = 4000;
    o.config.max_live_requests = 3;
    o.config.max_queued_tokens = 100000;
    SmallScheduler s = make_small(o);
    const std::int64_t length = 2400;
    const auto a = chain(length / unit, 1);
    const auto b = chain(length / unit, 2);
    const auto c = chain(length / unit, 3);
    REQUIRE(s.submit(digest_request(1, a, length, unit, 3)));
    REQUIRE(s.submit(digest_request(2, b, length / 10, unit, 3)));
    REQUIRE(s.submit(digest_request(3, c, length / 10, unit, 3)));
    CHECK(run_dry(s));
    REQUIRE(s.check());
    const auto ends = terminals(drain(s));
    CHECK(ends.size() == 3);
    for (const auto& [id, e] : ends) {
      CHECK(e.kind == EventKind::Finished);
      CHECK(e.count == 3);
    }
    drain(s);
    // What was read is what was submitted: the same prompts are found again in full.
    const std::uint64_t before = s.stats().prefix_hit_tokens;
    REQUIRE(s.submit(digest_request(4, a, length, unit, 1)));
    CHECK(run_dry(s));
    CHECK(s.stats().prefix_hit_tokens - before >= static_cast<std::uint64_t>(length - 2 * unit));
    drain(s);
    drain(s);
    for (std::uint64_t id = 5; id <= 7; ++id) {  // the last slot, too
      REQUIRE(s.submit(digest_request(id, b, length, unit, 1)));
    }
    CHECK(run_dry(s));
    CHECK(s.check());
  }
}

TEST_CASE("Digest prompts as long as the context, alone and side by side") {
  for (const std::int32_t block_size : {1, 4, 16}) {
    SmallOptions o;
    o.block_size = block_size;
    o.blocks = 4096 / block_size;
    o.caching = true;
    o.budget = 8192;
    o.config.max_live_requests = 2;
    o.config.max_context_tokens = 2048;
    SmallScheduler s = make_small(o);
    const auto a = chain(2048 / block_size, 1);
    const auto b = chain(2048 / block_size, 2);
    const Status first = s.submit(digest_request(1, a, 2048, block_size, kOpenEnded));
    const Status second = s.submit(digest_request(2, b, 2048, block_size, 1));
    CHECK((first.is_ok() || first.code == Errc::QueueFull || first.code == Errc::CanNeverFit));
    CHECK((second.is_ok() || second.code == Errc::QueueFull || second.code == Errc::CanNeverFit));
    CHECK(run_dry(s));
    CHECK(s.check());
  }
}

TEST_CASE("A resource named twice is charged once with the sum") {
  SmallOptions o;
  o.config.resource_caps[0] = 3;
  SmallScheduler s = make_small(o);
  const ResourceNeed twice[] = {{0, 2}, {0, 2}};
  SmallRequest r(1, 4, 2);
  r.request.resources = twice;
  CHECK(s.submit(r.view()).code == Errc::CanNeverFit);
  const ResourceNeed half[] = {{0, 1}, {0, 1}};
  SmallRequest a(2, 4, 2);
  a.request.resources = half;
  SmallRequest b(3, 4, 2);
  b.request.resources = half;
  REQUIRE(s.submit(a.view()));
  REQUIRE(s.submit(b.view()));
  CHECK(step(s) == Scheduled{{2, 4}});  // 2 + 2 are more than 3
  CHECK(run_dry(s));
}

TEST_CASE("Resource amounts near the largest number do not wrap") {
  SmallOptions o;
  o.config.resource_caps[1] = kMax;
  SmallScheduler s = make_small(o);
  const ResourceNeed all[] = {{1, kMax}};
  SmallRequest a(1, 4, 3);
  a.request.resources = all;
  SmallRequest b(2, 4, 3);
  b.request.resources = all;
  REQUIRE(s.submit(a.view()));
  REQUIRE(s.submit(b.view()));
  CHECK(step(s) == Scheduled{{1, 4}});
  CHECK(run_dry(s));
  CHECK(s.stats().finished == 2);
}

TEST_CASE("Times and service levels at both ends of the range are plain numbers") {
  SmallOptions o;
  SmallScheduler s = make_small(o);
  std::uint64_t id = 1;
  std::uint64_t accepted = 0;
  for (const std::int64_t arrival :
       {kMin, kMin + 1, std::int64_t{-1}, std::int64_t{0}, kMax - 1, kMax}) {
    for (const std::int64_t slo :
         {kMin, std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, kMax - 1, kMax}) {
      SmallRequest r(id++, 3, 3);
      r.request.arrival = TimeNs{arrival};
      r.request.slo = {DurationNs{slo}, DurationNs{slo}};
      r.request.priority = std::numeric_limits<std::int32_t>::min();
      accepted += s.submit(r.view()).is_ok() ? 1U : 0U;
      step(s, TimeNs{static_cast<std::int64_t>(id) - 3});
    }
  }
  const std::int64_t times[] = {kMin, 5, kMax - 1, kMax, kMin, kMax};
  for (int i = 0; i < 500; ++i) {
    step(s, TimeNs{times[i % 6]});
  }
  CHECK(run_dry(s, TimeNs{kMax}));
  CHECK(s.stats().finished == accepted);
  CHECK(s.check());
}

TEST_CASE("Identifiers at both ends of the range are as good as others") {
  SmallScheduler s = make_small();
  for (const std::uint64_t id : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{0xFFFFFFFF}}) {
    SmallRequest r(7, 3, 3);
    r.request.id = RequestId{id};
    REQUIRE(s.submit(r.view()));
    CHECK(s.submit(r.view()).code == Errc::Duplicate);
  }
  CHECK(s.cancel(RequestId{~std::uint64_t{0}}));
  CHECK(s.cancel(RequestId{1}).code == Errc::NotFound);
  CHECK(run_dry(s));
  CHECK(terminals(drain(s)).size() == 3);
}

TEST_CASE("Lengths near the largest number are refused with a type") {
  SmallScheduler s = make_small();
  for (const std::int64_t n : {std::int64_t{1} << 62, kMax, kMax - 1, kMax / 2}) {
    SmallRequest r(1, 3, n);
    CHECK(s.submit(r.view()).code == Errc::CanNeverFit);
    CHECK(s.submit(digest_request(1, {}, n, 16, 1)).code == Errc::CanNeverFit);
    CHECK(s.submit(digest_request(1, {}, n, 16, n)).code == Errc::CanNeverFit);
    CHECK(s.submit(digest_request(1, {}, n, 16, kOpenEnded)).code == Errc::CanNeverFit);
  }
  for (const std::int64_t n : {kMin, std::int64_t{-2}}) {
    SmallRequest r(1, 3, n);
    CHECK(s.submit(r.view()).code == Errc::InvalidArgument);
    CHECK(s.submit(digest_request(1, {}, n, 16, 1)).code == Errc::InvalidArgument);
  }
  const MediaSpan spans[] = {{kMax, kMax, {}}};
  SmallRequest m(1, 3, 1);
  m.request.media = spans;
  CHECK(s.submit(m.view()).code == Errc::InvalidArgument);
  CHECK(s.submit(digest_request(1, {}, 10, std::numeric_limits<std::int32_t>::min(), 1)).code ==
        Errc::InvalidArgument);
  CHECK(s.stats().live == 0);
}

TEST_CASE("A stride whose product wraps is refused by materialize") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 20, 5));
  REQUIRE(submit(s, 2, 20, 5));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 2);
  std::vector<BlockId> out(8);
  for (const std::size_t stride :
       {std::size_t{1} << 63U, ~std::size_t{0}, ~std::size_t{0} / 2 + 2}) {
    CHECK(s.materialize(*plan, out, stride).code == Errc::InvalidArgument);
  }
  CHECK(s.materialize(*plan, out, 4));
  CHECK(s.materialize(*plan, out, 1).code == Errc::InvalidArgument);
  REQUIRE(settle(s, *plan, TimeNs{}));
}

namespace {
/// Answers whatever it was told to.
struct OddSizer {
  using Config = EmptyConfig;
  BatchLimits out;
  BatchLimits limits(const SizerInput&) noexcept { return out; }
  void observe(const StepFeedback&) noexcept {}
  BatchLimits ceiling() const noexcept { return out; }
  StepCost cost() const noexcept { return {}; }
};
struct OddAdmission : FcfsAdmission {
  Reservation reservation{};
  Reservation need(const NeedInput&) const noexcept { return reservation; }
};
struct CountingBalancer {
  using Config = EmptyConfig;
  std::shared_ptr<int> wrong = std::make_shared<int>(0);
  void observe(const ExpertCounts& c) noexcept {
    *wrong += c.counts.size() != static_cast<std::size_t>(c.num_layers) *
                                     static_cast<std::size_t>(c.num_experts)
                  ? 1
                  : 0;
  }
  bool task() noexcept { return false; }
  std::uint64_t placement() const noexcept { return 0; }
  std::int32_t due_moves(std::span<ExpertMove>) noexcept { return 0; }
  void confirm(std::int32_t) noexcept {}
  void fail(std::int32_t) noexcept {}
  void shares(std::int32_t, std::span<const std::uint32_t>, std::span<float>) const noexcept {}
};
}  // namespace

TEST_CASE("A sizer that answers less than one lets one sequence and one token through") {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}, kMin}) {
    using S = Scheduler<OddSizer, NoSplit, NullBalancer, BlockPool<>>;
    const auto n32 = static_cast<std::int32_t>(std::max<std::int64_t>(n, INT32_MIN));
    auto made = S::make({}, {}, OddSizer{{n32, n32, n, n, TimeNs{kMin}}}, NoSplit{}, NullBalancer{},
                        BlockPool<>({.num_blocks = 100}), FcfsAdmission{});
    REQUIRE(made.has_value());
    S s = std::move(made).value();
    SmallRequest r(1, 3, 3);
    REQUIRE(s.submit(r.view()));
    for (int i = 0; i < 50 && s.stats().live > 0; ++i) {
      const StepPlan* plan = s.plan(TimeNs{});
      if (plan != nullptr) {
        const std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
        StepResult result;
        result.tokens = tokens;
        REQUIRE(s.commit(*plan, result, TimeNs{}));
      }
    }
    CHECK(s.stats().finished == 1);
    // What runs whole is still refused or run, never stuck.
    SmallRequest whole(2, 3, 3);
    whole.request.atomic_prefill = true;
    const Status status = s.submit(whole.view());
    CHECK((status.is_ok() || status.code == Errc::CanNeverFit));
  }
}

TEST_CASE("An admission policy may ask for any number of blocks") {
  for (const std::int64_t n : {kMin, std::int64_t{-1}, std::int64_t{0}, kMax - 1, kMax}) {
    using S = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, OddAdmission>;
    OddAdmission admission;
    admission.reservation = {n, n, n};
    auto made = S::make({}, {}, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
                        BlockPool<>({.num_blocks = 100}), admission);
    REQUIRE(made.has_value());
    S s = std::move(made).value();
    for (std::uint64_t id = 1; id <= 5; ++id) {
      SmallRequest r(id, 30, 3);
      REQUIRE(s.submit(r.view()));
    }
    for (int i = 0; i < 200 && s.stats().live > 0; ++i) {
      const StepPlan* plan = s.plan(TimeNs{});
      REQUIRE(plan != nullptr);
      if (n == kMax) {
        CHECK(plan->chunks.size() == 1);  // nobody fits beside one who wants everything
      }
      const std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
      StepResult result;
      result.tokens = tokens;
      REQUIRE(s.commit(*plan, result, TimeNs{}));
      REQUIRE(s.check());
    }
    CHECK(s.stats().finished == 5);
  }
}

TEST_CASE("Expert counts of another shape are refused before the balancer sees them") {
  using S = Scheduler<TokenBudgetSizer, NoSplit, CountingBalancer, BlockPool<>>;
  Capabilities caps;
  caps.num_layers = 2;
  caps.num_experts = 4;
  CountingBalancer balancer;
  auto made = S::make({}, caps, TokenBudgetSizer{}, NoSplit{}, balancer,
                      BlockPool<>({.num_blocks = 100}), FcfsAdmission{});
  REQUIRE(made.has_value());
  S s = std::move(made).value();
  SmallRequest r(1, 3, 3);
  REQUIRE(s.submit(r.view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  const Token token = 1;
  const std::uint32_t counts[9] = {};
  StepResult result;
  result.tokens = {&token, 1};
  for (const std::size_t n : {1U, 7U, 9U}) {
    result.expert_counts = {counts, n};
    CHECK(s.commit(*plan, result, TimeNs{}).code == Errc::BadResult);
  }
  result.expert_counts = {counts, 8};
  CHECK(s.commit(*plan, result, TimeNs{}));
  CHECK(*balancer.wrong == 0);
}

TEST_CASE("A reason that does not exist is refused with the result") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 3, 3));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  const Token token = 1;
  const Outcome outcome{OutcomeKind::Stop, static_cast<FinishReason>(99), 1};
  StepResult result;
  result.tokens = {&token, 1};
  result.outcomes = {&outcome, 1};
  CHECK(s.commit(*plan, result, TimeNs{}).code == Errc::BadResult);
  CHECK(settle(s, *plan, TimeNs{}));
}

TEST_CASE("No block is both source and target of the copies of one plan") {
  SmallOptions o;
  o.rows = 8;
  o.block_size = 16;
  SmallScheduler s = make_small(o);
  const Token stop[] = {9};
  for (std::uint64_t id = 1; id <= 2; ++id) {
    SmallRequest r(id, 10, 5);
    r.request.num_samples = 2;
    if (id == 1) {
      r.request.stop_tokens = stop;
    }
    REQUIRE(s.submit(r.view()));
  }
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->num_samples == 4);
  const Token tokens[] = {9, 1, 1, 1};  // the first sample of the first request ends at once
  StepResult result;
  result.tokens = tokens;
  REQUIRE(s.commit(*plan, result, TimeNs{}));
  plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->groups[0].copies.size() == 2);
  std::set<std::int32_t> sources;
  std::set<std::int32_t> targets;
  for (const BlockCopy& copy : plan->groups[0].copies) {
    sources.insert(copy.source.value);
    targets.insert(copy.target.value);
  }
  for (const std::int32_t block : targets) {
    CHECK(sources.count(block) == 0);
  }
}

TEST_CASE("Summaries of other ranks may hold any numbers") {
  using S = Scheduler<TokenBudgetSizer, EqualTokens, NullBalancer, BlockPool<>>;
  for (const std::int64_t n : {kMin, std::int64_t{-1}, kMax}) {
    SchedulerConfig config;
    config.num_ranks = 3;
    auto made = S::make(config, {}, TokenBudgetSizer{}, EqualTokens({.parts = 2, .min_tokens = 1}),
                        NullBalancer{}, BlockPool<>({.num_blocks = 100}), FcfsAdmission{});
    REQUIRE(made.has_value());
    S s = std::move(made).value();
    SmallRequest r(1, 30, 3);
    REQUIRE(s.submit(r.view()));
    for (int i = 0; i < 10; ++i) {
      const StepPlan* plan = s.plan(TimeNs{});
      REQUIRE(plan != nullptr);
      const auto n32 = static_cast<std::int32_t>(std::clamp<std::int64_t>(n, INT32_MIN, INT32_MAX));
      const RankSummary odd{n, n, n32, n32, n, true};
      const RankSummary all[] = {s.summary(*plan), odd, odd};
      const Status sealed = s.seal(*plan, all);
      if (!sealed) {
        CHECK(sealed.code == Errc::InvalidArgument);
        REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));
        continue;
      }
      const std::vector<Token> tokens(static_cast<std::size_t>(plan->num_samples), 1);
      StepResult result;
      result.tokens = tokens;
      REQUIRE(s.commit(*plan, result, TimeNs{}));
      REQUIRE(s.check());
    }
  }
}

TEST_CASE("A pool that shrinks below a waiting request does not stop the others") {
  SmallOptions o;
  o.blocks = 20;
  o.block_size = 4;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 8, 4));
  step(s);
  REQUIRE(s.pool().resize(2));
  REQUIRE(s.check());
  REQUIRE(submit(s, 2, 4, 2));
  for (int i = 0; i < 20; ++i) {
    step(s);
    REQUIRE(s.check());
  }
  REQUIRE(s.pool().resize(20));
  CHECK(run_dry(s));
  CHECK(s.check());
}

TEST_CASE("A host that stops a prompt half way ends all its samples") {
  SmallOptions o;
  o.budget = 8;
  SmallScheduler s = make_small(o);
  SmallRequest r(1, 12, 5);
  r.request.num_samples = 3;
  REQUIRE(s.submit(r.view()));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->num_samples == 0);
  const Outcome stop{OutcomeKind::Stop, FinishReason::Host, 0};
  StepResult result;
  result.outcomes = {&stop, 1};
  REQUIRE(s.commit(*plan, result, TimeNs{}));
  CHECK(run_dry(s, TimeNs{}, 100));
  const auto ends = terminals(drain(s));
  REQUIRE(ends.size() == 1);
  CHECK(ends.at(1).kind == EventKind::Finished);
  CHECK(ends.at(1).reason == FinishReason::Host);
  CHECK(s.check());
}

TEST_CASE("A prompt that outgrows a shrunken pool ends all its samples") {
  SmallOptions o;
  o.budget = 8;
  o.blocks = 20;
  o.block_size = 4;
  o.admission.reserve = FcfsAdmission::Reserve::FirstChunk;
  SmallScheduler s = make_small(o);
  SmallRequest r(1, 40, 5);
  r.request.num_samples = 2;
  REQUIRE(s.submit(r.view()));
  CHECK(step(s) == Scheduled{{1, 8}});
  REQUIRE(s.pool().resize(3));
  for (int i = 0; i < 10; ++i) {
    step(s);
  }
  CHECK(s.stats().live == 0);
  CHECK(terminals(drain(s)).size() == 1);
}

TEST_CASE("A sequence that fills a shrunken pool does not cost the next one its step") {
  SmallOptions o;
  o.rows = 1;
  o.blocks = 20;
  o.block_size = 4;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 8, 20));
  CHECK(step(s) == Scheduled{{1, 8}});
  REQUIRE(submit(s, 2, 4, 2));
  REQUIRE(s.pool().resize(2));
  // The first one finds no further block and ends; the second runs in the same step.
  CHECK(step(s) == Scheduled{{2, 4}});
  CHECK(run_dry(s));
  CHECK(s.stats().finished == 2);
}

TEST_CASE("A step that no rank executes leaves copies to the next one") {
  using S = Scheduler<OddSizer, NoSplit, NullBalancer, BlockPool<>>;
  SchedulerConfig config;
  config.num_ranks = 2;
  auto made = S::make(config, {}, OddSizer{{256, 256, 64, 64, TimeNs{}}}, NoSplit{}, NullBalancer{},
                      BlockPool<>({.num_blocks = 100}), FcfsAdmission{});
  REQUIRE(made.has_value());
  S s = std::move(made).value();
  SmallRequest r(1, 10, 5);
  r.request.num_samples = 2;
  REQUIRE(s.submit(r.view()));
  auto next = [&] {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    const RankSummary all[] = {s.summary(*plan), {}};
    REQUIRE(s.seal(*plan, all));
    return plan;
  };
  auto commit = [&](const StepPlan& plan) {
    const std::vector<Token> tokens(static_cast<std::size_t>(plan.num_samples), 1);
    StepResult result;
    result.tokens = tokens;
    REQUIRE(s.commit(plan, result, TimeNs{}));
  };
  const StepPlan* plan = next();
  REQUIRE(plan->num_samples == 2);
  commit(*plan);
  s.sizer().out.not_before = TimeNs{1000};  // nothing runs yet
  plan = next();
  REQUIRE(plan->is_dummy);
  CHECK(plan->padded.tokens == 0);
  CHECK((plan->groups.empty() || plan->groups[0].copies.empty()));
  commit(*plan);
  s.sizer().out.not_before = TimeNs{};
  plan = next();
  REQUIRE(plan->chunks.size() == 2);
  CHECK(plan->groups[0].copies.size() == 1);
  commit(*plan);
}

TEST_CASE("Blocks kept for further samples do not end a prompt that needs the whole pool") {
  SmallOptions o;
  o.budget = 8;
  o.blocks = 5;
  o.block_size = 4;
  o.admission.reserve = FcfsAdmission::Reserve::FirstChunk;
  SmallScheduler s = make_small(o);
  SmallRequest r(1, 18, 2);
  r.request.num_samples = 2;
  REQUIRE(s.submit(r.view()));
  CHECK(run_dry(s, TimeNs{}, 200));
  const auto ends = terminals(drain(s));
  REQUIRE(ends.size() == 1);
  CHECK(ends.at(1).reason == FinishReason::Length);
  CHECK(ends.at(1).count == 4);
}

TEST_CASE("A request of several samples holds its resources once") {
  SmallOptions o;
  o.config.resource_caps[0] = 2;
  SmallScheduler s = make_small(o);
  const ResourceNeed one[] = {{0, 1}};
  SmallRequest a(1, 4, 8);
  a.request.num_samples = 2;
  a.request.resources = one;
  SmallRequest b(2, 4, 2);
  b.request.resources = one;
  REQUIRE(s.submit(a.view()));
  CHECK(step(s) == Scheduled{{1, 4}});
  REQUIRE(s.submit(b.view()));
  CHECK(step(s) == Scheduled{{1, 2}, {2, 4}});  // 1 + 1 are not more than 2
  CHECK(run_dry(s));
}

TEST_CASE("Blocks kept for further samples do not block a prompt that runs whole") {
  SmallOptions o;
  o.blocks = 2;
  o.block_size = 5;
  o.admission.reserve = FcfsAdmission::Reserve::FirstChunk;
  SmallScheduler s = make_small(o);
  SmallRequest r(1, 8, 2);
  r.request.num_samples = 2;
  r.request.atomic_prefill = true;
  REQUIRE(s.submit(r.view()));
  CHECK(run_dry(s, TimeNs{}, 200));
}

TEST_CASE("Tokens of a preempted chunk are not planned a second time over") {
  // Who is planned first in its step may give way later in it. The plan's arrays hold as many
  // tokens as the executor takes, those that were lost again included.
  std::uint64_t preemptions = 0;
  SplitMix64 rng(3);
  for (int round = 0; round < 300; ++round) {
    Capabilities caps;
    caps.max_tokens = rng.between(2, 8);
    caps.max_sequences = 6;
    const auto block_size = static_cast<std::int32_t>(rng.between(1, 4));
    auto made =
        SmallScheduler::make({}, caps, TokenBudgetSizer({.budget = 8}), NoSplit{}, NullBalancer{},
                             BlockPool<>({.num_blocks = 24 / block_size, .block_size = block_size}),
                             FcfsAdmission({.reserve = FcfsAdmission::Reserve::FirstChunk}));
    REQUIRE(made.has_value());
    SmallScheduler s = std::move(made).value();
    for (std::uint64_t id = 1; id <= 12; ++id) {
      SmallRequest r(id, rng.between(1, 10), rng.between(1, 12));
      r.request.num_samples = static_cast<std::int32_t>(rng.between(1, 4));
      REQUIRE(s.submit(r.view()));
    }
    for (int i = 0; i < 2000 && s.stats().live > 0; ++i) {
      const StepPlan* plan = s.plan(TimeNs{});
      REQUIRE(plan != nullptr);
      REQUIRE(plan->num_tokens() <= caps.max_tokens);
      REQUIRE(settle(s, *plan, TimeNs{}));
      REQUIRE(s.check());
    }
    CHECK(s.stats().finished == 12);
    preemptions += s.stats().preemptions;
  }
  CHECK(preemptions > 100);
}
