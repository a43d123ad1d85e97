// SPDX-License-Identifier: Apache-2.0
/// \file
/// The scheduler against a naive one (tests/support/naive_scheduler.hpp): random sequences of
/// operations, every plan, reason, event and counter predicted and compared after each of them.
///
/// What is compared: FcfsAdmission with each Compose and Reserve, and orders by priority, over the
/// three sizers that learn nothing and a BlockPool. Left out, since predicting them would be a copy
/// of them: DynamicSizer, tenant limits, micro-batches, ranks in lock-step, beams, hosts that
/// address KV by sequence, pins and resizing. The law suite runs those.
#include <dynbatch/batch/priority_aging.hpp>

#include "naive_run.hpp"
#include "order_host.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;
using naive::Mix;

namespace {

bool is_long() { return std::getenv("DYNBATCH_LONG") != nullptr; }

/// Compares `sequences` random sequences. DYNBATCH_SEED is the first seed; a failure prints its
/// own and the shortest sequence of operations that fails.
/// Adds to `starts` how many sequences began inside a block.
SchedulerStats compare_all(const char* what, const Mix& mix, std::uint64_t sequences,
                           std::int64_t* starts = nullptr) {
  const char* seed_text = std::getenv("DYNBATCH_SEED");
  const std::uint64_t first = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  std::int64_t operations = 0;
  SchedulerStats sum;
  for (std::uint64_t seed = first; seed < first + sequences; ++seed) {
    const naive::Report report = naive::compare_random(mix, seed);
    if (!report.error.empty()) {
      FAIL(what << ", " << report.error);
    }
    operations += report.operations;
    sum.plans += report.stats.plans;
    sum.finished += report.stats.finished;
    sum.expired += report.stats.expired;
    sum.failed += report.stats.failed;
    sum.preemptions += report.stats.preemptions;
    sum.accepted_draft_tokens += report.stats.accepted_draft_tokens;
    sum.prefix_hit_tokens += report.stats.prefix_hit_tokens;
    if (starts != nullptr) {
      *starts += report.starts;
    }
  }
  if (is_long()) {
    std::printf("reference, %s: %lld operations, %llu plans, %llu preemptions\n", what,
                static_cast<long long>(operations), static_cast<unsigned long long>(sum.plans),
                static_cast<unsigned long long>(sum.preemptions));
  }
  // The sequences must reach what they are meant to test.
  CHECK(operations > static_cast<std::int64_t>(sequences) * 300);
  CHECK(sum.plans > sequences * 50);
  CHECK(sum.finished > sequences * 5);
  CHECK(sum.expired > sequences / 10);
  CHECK(sum.preemptions > sequences / 2);
  return sum;
}

/// Ten million operations in the long form, over all mixes.
std::uint64_t sequences(std::uint64_t usual) { return is_long() ? 30 * usual : usual; }

}  // namespace

TEST_CASE("The naive scheduler predicts every step with one plan in flight") {
  compare_all("one plan", {}, sequences(120));
}

TEST_CASE("The naive scheduler predicts what failing and abandoned steps leave") {
  Mix mix;
  mix.has_faults = true;
  const SchedulerStats stats = compare_all("faults", mix, sequences(150));
  CHECK(stats.failed > 100);
}

TEST_CASE("The naive scheduler predicts several plans in flight") {
  Mix mix;
  mix.has_faults = true;
  mix.plans = 8;
  const SchedulerStats stats = compare_all("several plans", mix, sequences(150));
  CHECK(stats.failed > 100);
}

TEST_CASE("The naive scheduler predicts drafts and samples") {
  Mix mix;
  mix.has_faults = true;
  mix.plans = 8;
  mix.has_drafts = true;
  mix.has_samples = true;
  const SchedulerStats stats = compare_all("drafts and samples", mix, sequences(150));
  CHECK(stats.accepted_draft_tokens > 1000);
}

TEST_CASE("The naive scheduler predicts the prefix cache") {
  Mix mix;
  mix.has_faults = true;
  mix.plans = 8;
  mix.has_drafts = true;
  mix.has_samples = true;
  mix.has_caching = true;
  const SchedulerStats stats = compare_all("prefix cache", mix, sequences(150));
  CHECK(stats.prefix_hit_tokens > 1000);
}

TEST_CASE("The naive scheduler predicts prefixes that end inside a block") {
  Mix mix;
  mix.has_faults = true;
  mix.plans = 4;
  mix.has_samples = true;
  mix.has_caching = true;
  mix.has_copies = true;
  std::int64_t starts = 0;
  compare_all("copied fronts", mix, sequences(150), &starts);
  CHECK(starts > 150);
}

// ---- found by the comparison --------------------------------------------------------------------

namespace {

struct FoundOptions {
  std::int64_t budget = 64;
  std::int32_t rows = 4;
  std::int64_t blocks = 64;
  std::int32_t block_size = 16;
  bool caching = false;
  std::int32_t plans = 1;
  std::int32_t drafts = 0;
  bool in_order = true;
  bool future_tokens = false;
};

template <class Order>
OrderScheduler<Order> make_found(const FoundOptions& o, const Order& order) {
  Capabilities host;
  host.max_tokens = 4096;
  host.max_sequences = o.rows;
  host.in_order = o.in_order;
  host.future_tokens = o.future_tokens;
  SchedulerConfig config;
  config.max_context_tokens = 1000;
  config.max_plans_in_flight = o.plans;
  config.max_draft_tokens = o.drafts;
  config.resource_caps[0] = 1;
  return OrderScheduler<Order>(
      config, host, TokenBudgetSizer({.budget = o.budget}), NoSplit{}, NullBalancer{},
      BlockPool<>(
          {.num_blocks = o.blocks, .block_size = o.block_size, .prefix_caching = o.caching}),
      order);
}

PriorityAging by_priority(AdmissionRules rules, DurationNs aging) {
  return PriorityAging({.rules = rules, .aging = aging, .displace = true});
}

/// Commits with the given tokens and proposals for the first sample.
template <class Scheduler>
Status settle_with(Scheduler& s, const StepPlan& plan, const std::vector<Token>& drafts = {}) {
  const auto samples = static_cast<std::size_t>(plan.num_samples);
  const std::vector<Token> tokens(samples, 1);
  std::vector<std::int32_t> begin(samples + 1, static_cast<std::int32_t>(drafts.size()));
  begin[0] = 0;
  StepResult result;
  result.tokens = tokens;
  if (!drafts.empty()) {
    result.draft_begin = begin;
    result.drafts = drafts;
  }
  return s.commit(plan, result, TimeNs{});
}

template <class Scheduler>
void poll_twice(Scheduler& s) {
  Event events[64];
  CHECK(s.poll(events) < 64);
  CHECK(s.poll(events) < 64);
}

}  // namespace

TEST_CASE("Whoever displaces and still does not fit keeps its own rank") {
  AdmissionRules rules;
  rules.reserve = AdmissionRules::Reserve::FirstChunk;
  rules.split_prompts = false;
  FoundOptions o;
  o.rows = 2;
  o.blocks = 4;
  auto s = make_found(o, by_priority(rules, DurationNs{1}));
  REQUIRE(submit_order(s, {.id = 1, .length = 17, .outputs = 3}));
  REQUIRE(submit_order(s, {.id = 2, .length = 4, .outputs = 3, .priority = 5}));
  CHECK(run_one(s) == Scheduled{{1, 17}, {2, 4}});
  // 3 outranks 2 and takes its place, but its whole prompt finds no room. 2 comes back at once.
  REQUIRE(submit_order(s, {.id = 3, .length = 40, .priority = 1, .arrival = {100}}));
  CHECK(run_one(s, TimeNs{100}) == Scheduled{{1, 1}, {2, 5}});
  // The rank of 3 is 101, that of 4 is 55: 4 goes first when both fit.
  REQUIRE(submit_order(s, {.id = 4, .length = 4, .priority = 5, .arrival = {50}}));
  CHECK(run_one(s, TimeNs{100}) == Scheduled{{1, 1}, {2, 1}});
  const StepPlan* plan = s.plan(TimeNs{100});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 2);
  CHECK(plan->chunks[0].request == RequestId{4});
  CHECK(plan->chunks[1].request == RequestId{3});
}

TEST_CASE("A request in the slot of another is asked anew whom it outranks") {
  FoundOptions o;
  o.rows = 1;
  auto s = make_found(o, by_priority({}, kUnbounded));
  REQUIRE(submit_order(s, {.id = 1, .length = 4, .outputs = 9, .priority = 5}));
  CHECK(run_one(s) == Scheduled{{1, 4}});
  REQUIRE(submit_order(s, {.id = 2, .length = 4, .priority = 9}));
  CHECK(run_one(s) == Scheduled{{1, 1}});  // 2 outranks nobody
  REQUIRE(s.cancel(RequestId{2}));
  CHECK(run_one(s) == Scheduled{{1, 1}});
  poll_twice(s);  // its slot is free
  REQUIRE(submit_order(s, {.id = 3, .length = 4, .priority = 0}));
  CHECK(run_one(s) == Scheduled{{3, 4}});
}

TEST_CASE("Places may change hands any number of times in one step") {
  // Ends the process where a list of rows overflows. 2 to 4 read the same prompt; when 2 loses its
  // place, its readers lose theirs, and all come back at once to outrank it again.
  FoundOptions o;
  o.budget = 1000;
  o.caching = true;
  auto s = make_found(
      o, PriorityAging(
             {.rules = {}, .aging = DurationNs{1}, .displace = true, .max_displacements = 20}));
  REQUIRE(submit_order(s, {.id = 1, .length = 4, .outputs = 100}));
  CHECK(run_one(s) == Scheduled{{1, 4}});
  for (std::int32_t i = 0; i < 3; ++i) {
    SmallRequest r(7, 17, 4);
    r.request.id = RequestId{static_cast<std::uint64_t>(i + 2)};
    r.request.priority = i == 0 ? 9 : 8;
    r.request.arrival = TimeNs{i};
    REQUIRE(s.submit(r.view()));
  }
  REQUIRE(submit_order(s, {.id = 5, .length = 4, .priority = 0, .arrival = {100}}));
  CHECK(run_one(s, TimeNs{100}).count(5) == 1);
  CHECK(run_out(s, TimeNs{100}) > 0);
}

TEST_CASE("A request loses its place so often, whichever of its samples it is") {
  FoundOptions o;
  o.rows = 2;
  auto s = make_found(
      o,
      PriorityAging({.rules = {}, .aging = kUnbounded, .displace = true, .max_displacements = 1}));
  SmallRequest r(1, 4, 9);
  r.request.num_samples = 2;
  r.request.priority = 5;
  REQUIRE(s.submit(r.view()));
  CHECK(run_one(s) == Scheduled{{1, 4}});
  CHECK(run_one(s) == Scheduled{{1, 2}});
  for (std::uint64_t id = 2; id <= 3; ++id) {
    REQUIRE(submit_order(s, {.id = id, .length = 4, .outputs = 9, .priority = 0}));
    CHECK(run_one(s).size() == 2);
  }
  CHECK(s.stats().preemptions == 1);
}

TEST_CASE("What leaves a plan before it is handed out is not counted as planned") {
  FoundOptions o;
  o.rows = 1;
  o.drafts = 3;
  auto s = make_found(o, by_priority({}, kUnbounded));
  REQUIRE(submit_order(s, {.id = 1, .length = 4, .outputs = 9, .priority = 5}));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(settle_with(s, *plan, {7, 7, 7}));
  REQUIRE(submit_order(s, {.id = 2, .length = 4, .priority = 0}));
  plan = s.plan(TimeNs{});
  CHECK(tokens_of(plan) == Scheduled{{2, 4}});
  CHECK(s.stats().decode_tokens == 0);
  CHECK(s.stats().draft_tokens == 0);
}

TEST_CASE("Drafts for a step that is planned already are dropped") {
  FoundOptions o;
  o.plans = 2;
  o.drafts = 3;
  o.future_tokens = true;
  auto s = make_found(o, FcfsAdmission{});
  REQUIRE(submit_order(s, {.id = 1, .length = 4, .outputs = 9}));
  const StepPlan* first = s.plan(TimeNs{});
  const StepPlan* second = s.plan(TimeNs{});
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(second->chunks[0].first_position == 4);
  REQUIRE(settle_with(s, *first, {7, 8, 9}));  // proposals for position 5, which `second` gives
  REQUIRE(settle_with(s, *second));
  const StepPlan* third = s.plan(TimeNs{});
  REQUIRE(third != nullptr);
  CHECK(third->chunks[0].first_position == 5);
  CHECK(third->chunks[0].num_tokens == 1);
}

TEST_CASE("A sample that comes back shares what its request holds") {
  FoundOptions o;
  auto s = make_found(o, FcfsAdmission{});
  SmallRequest r(1, 5, 9);
  const ResourceNeed need{0, 1};
  r.request.num_samples = 2;
  r.request.resources = {&need, 1};
  REQUIRE(s.submit(r.view()));
  CHECK(run_one(s) == Scheduled{{1, 5}});
  const StepPlan* plan = s.plan(TimeNs{});
  CHECK(tokens_of(plan) == Scheduled{{1, 2}});
  REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));  // with the copy for the sample
  CHECK(run_one(s) == Scheduled{{1, 1 + 6}});
}

TEST_CASE("Who waits for a prompt does not wait for another one in its row") {
  AdmissionRules rules;
  rules.max_chunk_tokens = 16;
  FoundOptions o;
  o.caching = true;
  auto s = make_found(o, PriorityAging({.rules = rules, .aging = kUnbounded}));
  SmallRequest first(1, 64, 4);
  SmallRequest same = first;
  same.request.id = RequestId{2};
  same.request.priority = 5;
  REQUIRE(s.submit(first.view()));
  REQUIRE(s.submit(same.view()));
  CHECK(run_one(s) == Scheduled{{1, 16}});  // 2 waits for the next block of 1
  REQUIRE(s.cancel(RequestId{1}));
  s.pause(PauseMode::All);
  CHECK(s.plan(TimeNs{}) == nullptr);
  poll_twice(s);  // the row and the slot of 1 are free
  s.resume();
  REQUIRE(submit_order(s, {.id = 3, .length = 64}));  // and go to 3, which shares nothing with 2
  CHECK(run_one(s) == Scheduled{{2, 16}, {3, 16}});
}

TEST_CASE("Where plans may overtake each other a fork waits for its own copy") {
  FoundOptions o;
  o.budget = 2;
  o.rows = 5;
  o.block_size = 2;
  o.plans = 3;
  o.in_order = false;
  auto s = make_found(o, FcfsAdmission{});
  REQUIRE(submit_order(s, {.id = 1, .length = 1, .outputs = 50}));
  CHECK(run_one(s) == Scheduled{{1, 1}});
  SmallRequest r(2, 1, 9);
  r.request.num_samples = 2;
  REQUIRE(s.submit(r.view()));
  CHECK(run_one(s) == Scheduled{{1, 1}, {2, 1}});
  // The copy for the second sample is told here, and the budget leaves the sample out.
  const StepPlan* copying = s.plan(TimeNs{});
  CHECK(tokens_of(copying) == Scheduled{{1, 1}, {2, 1}});
  REQUIRE(copying->groups[0].copies.size() == 1);
  REQUIRE(submit_order(s, {.id = 3, .length = 1}));
  const StepPlan* other = s.plan(TimeNs{});
  CHECK(tokens_of(other) == Scheduled{{3, 1}});
  REQUIRE(s.abandon(*other, AbandonReason::NotRun, TimeNs{}));
  CHECK(tokens_of(s.plan(TimeNs{})) == Scheduled{{3, 1}});  // `copying` may still run later
}

TEST_CASE("The order of started prompts does not depend on who has left") {
  // 1 and 2 start, 7 and 8 go on with them, and all four are abandoned: they come back youngest
  // first. 3 to 5 have come and gone; the places that they left in a list must not be seen.
  for (const bool had_others : {false, true}) {
    AdmissionRules rules;
    rules.max_chunk_tokens = 4;
    FoundOptions o;
    auto s = make_found(o, FcfsAdmission(rules));
    REQUIRE(submit_order(s, {.id = 1, .length = 12}));
    REQUIRE(submit_order(s, {.id = 2, .length = 12}));
    for (std::uint64_t id = 3; id <= 5 && had_others; ++id) {
      REQUIRE(submit_order(s, {.id = id, .length = 1}));
    }
    for (int i = 0; i < 2; ++i) {
      const Scheduled tokens = run_one(s);
      CHECK(tokens.at(1) + tokens.at(2) == 8);
    }
    REQUIRE(submit_order(s, {.id = 7, .length = 4}));
    REQUIRE(submit_order(s, {.id = 8, .length = 4}));
    const StepPlan* plan = s.plan(TimeNs{});
    CHECK(tokens_of(plan) == Scheduled{{1, 4}, {2, 4}, {7, 4}, {8, 4}});
    REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));
    plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    std::vector<std::uint64_t> order;
    for (const Chunk& chunk : plan->chunks) {
      order.push_back(chunk.request.value);
    }
    CHECK(order == std::vector<std::uint64_t>{8, 7, 2, 1});
  }
}
