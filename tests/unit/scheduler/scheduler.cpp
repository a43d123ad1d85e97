// SPDX-License-Identifier: Apache-2.0
/// \file
/// The scheduler's interface: answers, events, order, limits.
#include "small_host.hpp"

#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

TEST_CASE("make names the field that does not fit") {
  auto refused = [](SchedulerConfig config, Capabilities caps, std::int64_t blocks = 100) {
    auto made = SmallScheduler::make(config, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
                                     BlockPool<>(BlockPool<>::Config{.num_blocks = blocks}),
                                     FcfsAdmission{});
    CHECK_FALSE(made.has_value());
    return std::string(made.status().field);
  };
  CHECK(refused({.max_live_requests = 0}, {}) == "max_live_requests");
  CHECK(refused({.max_queued_tokens = -1}, {}) == "max_queued_tokens");
  CHECK(refused({.max_plans_in_flight = 9}, {}) == "max_plans_in_flight");
  CHECK(refused({.max_retries = -1}, {}) == "max_retries");
  CHECK(refused({}, {.max_tokens = 0}) == "capabilities.max_tokens");
  CHECK(refused({}, {.max_sequences = 0}) == "capabilities.max_sequences");
  CHECK(refused({}, {.kv_tokens = 100}) == "capabilities.kv_tokens");
  CHECK(refused({}, {.sequence_handles = 4}) == "capabilities.sequence_handles");
  const GroupSpec other[] = {{GroupKind::Full, 32, 0}};
  CHECK(refused({}, {.groups = other}) == "capabilities.groups");
  const std::int32_t sizes[] = {4, 4};
  CHECK(refused({}, {.graph_sizes = sizes}) == "capabilities.graph_sizes");
  CHECK(refused({}, {}, 0) == "num_blocks");
}

TEST_CASE("The constructor raises what make returns") {
  CHECK_THROWS_AS(
      SmallScheduler({.max_live_requests = 0}, {}, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
                     BlockPool<>(BlockPool<>::Config{.num_blocks = 8}), FcfsAdmission{}),
      Error);
}

TEST_CASE("submit refuses with the field, the value and the limit") {
  SmallOptions o;
  o.config.resource_caps[0] = 3;
  SmallScheduler s = make_small(o);
  auto code_and_field = [&](auto change) {
    SmallRequest r(1, 20, 5);
    change(r.request, r);
    Request view = r.view();
    const Status status = s.submit(view);
    return std::string(to_string(status.code)) + "/" + status.field;
  };
  using R = Request;
  CHECK(code_and_field([](R& r, auto&) { r.num_samples = 17; }) == "can never fit/num_samples");
  CHECK(code_and_field([](R& r, auto&) { r.num_samples = 65; }) == "invalid argument/num_samples");
  CHECK(code_and_field([](R& r, auto&) { r.num_samples = 0; }) == "invalid argument/num_samples");
  CHECK(code_and_field([](R& r, auto&) { r.max_new_tokens = -7; }) ==
        "invalid argument/max_new_tokens");
  CHECK(code_and_field([](R& r, auto&) { r.min_new_tokens = 6; }) ==
        "invalid argument/min_new_tokens");
  CHECK(code_and_field([](R&, auto& q) { q.tokens[3] = -2; }) == "invalid argument/prompt.tokens");
  CHECK(code_and_field([](R& r, auto&) { r.prompt.length = 19; }) ==
        "invalid argument/prompt.length");
  CHECK(code_and_field([](R& r, auto&) { r.finish_by = TimeNs{-1}; }) == "expired/finish_by");
  static const Token many[9] = {};
  CHECK(code_and_field([](R& r, auto&) { r.stop_tokens = many; }) ==
        "invalid argument/stop_tokens");
  static const ResourceNeed too_much[] = {{0, 4}};
  static const ResourceNeed unknown[] = {{7, 1}};
  CHECK(code_and_field([](R& r, auto&) { r.resources = too_much; }) == "can never fit/resources");
  CHECK(code_and_field([](R& r, auto&) { r.resources = unknown; }) == "invalid argument/resources");
  static const MediaSpan outside[] = {{15, 6, {}}};
  CHECK(code_and_field([](R& r, auto&) { r.media = outside; }) == "invalid argument/media");
  Request digests;
  digests.prompt.kind = PromptKind::Digests;
  digests.prompt.length = 32;
  digests.prompt.digest_unit = 24;
  CHECK(std::string(s.submit(digests).field) == "prompt.digest_unit");
  CHECK(s.stats().rejected == s.stats().submitted);
  CHECK(s.plan(TimeNs{}) == nullptr);
  CHECK(s.status().state == PlanState::Idle);
  CHECK(drain(s).empty());
}

TEST_CASE("Limits on live requests and queued tokens answer queue full, and come back") {
  SmallOptions o;
  o.config.max_live_requests = 3;
  SmallScheduler s = make_small(o);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    REQUIRE(submit(s, i, 10, 2));
  }
  const Status full = submit(s, 4, 10, 2);
  CHECK(full.code == Errc::QueueFull);
  CHECK(std::string(full.field) == "max_live_requests");
  CHECK(run_dry(s));
  CHECK(submit(s, 4, 10, 2).code == Errc::QueueFull);  // the host has not seen the ends yet
  drain(s);
  drain(s);
  CHECK(submit(s, 4, 10, 2));

  o.config = {};
  o.config.max_live_requests = 8;
  o.config.max_queued_tokens = 1024;
  SmallScheduler t = make_small(o);
  std::uint64_t id = 1;
  while (submit(t, id, 500, 100)) {
    ++id;
  }
  CHECK(id > 1);
  CHECK(id < 9);
  CHECK(std::string(submit(t, 99, 500, 100).field) == "max_queued_tokens");
}

TEST_CASE("Closed schedulers refuse, finish what is live and say closed") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 10, 2));
  s.close();
  CHECK(submit(s, 2, 10, 2).code == Errc::Closed);
  CHECK(run_dry(s));
  CHECK(s.plan(TimeNs{}) == nullptr);
  CHECK(s.status().state == PlanState::Closed);
}

TEST_CASE("Events come in causal order with their tokens and times") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 10, 3));
  const StepPlan* plan = s.plan(TimeNs{100});
  REQUIRE(settle(s, *plan, TimeNs{200}, 11));
  plan = s.plan(TimeNs{300});
  REQUIRE(settle(s, *plan, TimeNs{400}, 12));
  plan = s.plan(TimeNs{500});
  REQUIRE(settle(s, *plan, TimeNs{600}, 13));
  const auto events = drain(s);
  REQUIRE(events.size() == 4);
  CHECK(events[0].kind == EventKind::Accepted);
  CHECK(events[0].time == TimeNs{100});
  CHECK(events[1].kind == EventKind::FirstToken);
  CHECK(events[1].time == TimeNs{200});
  CHECK(events[1].tokens == std::vector<Token>{11});
  CHECK(events[2].kind == EventKind::Tokens);
  CHECK(events[2].tokens == std::vector<Token>{12, 13});
  CHECK(events[2].time == TimeNs{600});
  CHECK(events[3].kind == EventKind::Finished);
  CHECK(events[3].reason == FinishReason::Length);
  CHECK(events[3].count == 3);
}

TEST_CASE("Stop tokens end a request, not before its minimum") {
  SmallScheduler s = make_small();
  const Token stop[] = {1};
  for (const std::int64_t minimum : {0, 3}) {
    SmallRequest r(1, 10, 5);
    r.request.stop_tokens = stop;
    r.request.min_new_tokens = minimum;
    REQUIRE(s.submit(r.view()));
    CHECK(run_dry(s));
    const auto ends = terminals(drain(s));
    CHECK(ends.at(1).reason == FinishReason::StopToken);
    CHECK(ends.at(1).count == (minimum == 0 ? 1 : 3));
    drain(s);
  }
}

TEST_CASE("An open ended request ends with capacity and frees its blocks") {
  SmallOptions o;
  o.blocks = 10;
  o.budget = 256;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 150, kOpenEnded));
  CHECK(run_dry(s));
  const auto ends = terminals(drain(s));
  CHECK(ends.at(1).reason == FinishReason::Capacity);
  CHECK(ends.at(1).count == 11);
  CHECK(s.pool_stats().free_blocks == 10);
  CHECK(s.stats().preemptions == 0);
}

TEST_CASE("Plans are settled in order and once") {
  SmallOptions o;
  o.plans = 2;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 10, 4));
  const StepPlan* first = s.plan(TimeNs{});
  REQUIRE(first != nullptr);
  REQUIRE(submit(s, 2, 10, 4));
  const StepPlan* second = s.plan(TimeNs{});
  REQUIRE(second != nullptr);
  CHECK(s.plan(TimeNs{}) == nullptr);
  CHECK(s.status().state == PlanState::InFlightLimit);
  CHECK(settle(s, *second, TimeNs{}).code == Errc::WrongPlan);
  REQUIRE(settle(s, *first, TimeNs{}));
  CHECK(settle(s, *first, TimeNs{}).code == Errc::WrongPlan);
  REQUIRE(s.abandon(*second, AbandonReason::NotRun, TimeNs{}));
  CHECK(s.abandon(*second, AbandonReason::NotRun, TimeNs{}).code == Errc::WrongPlan);
  CHECK(s.stats().plans_in_flight == 0);
  CHECK(run_dry(s));
}

TEST_CASE("A result that does not match its plan changes nothing") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 10, 4));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  const Token none[] = {1, 2};
  StepResult wrong;
  wrong.tokens = none;
  CHECK(s.commit(*plan, wrong, TimeNs{}).code == Errc::BadResult);
  const Token negative[] = {-5};
  wrong.tokens = negative;
  const Status status = s.commit(*plan, wrong, TimeNs{});
  CHECK(status.code == Errc::BadResult);
  CHECK(status.value == -5);
  const Outcome outcomes[] = {{OutcomeKind::Partial, FinishReason::None, 10}};
  wrong.tokens = {};
  wrong.outcomes = outcomes;
  const std::int32_t begin[] = {0, 0};
  wrong.token_begin = begin;
  CHECK(std::string(s.commit(*plan, wrong, TimeNs{}).field) == "outcome.tokens");
  const Outcome missing[] = {{OutcomeKind::Ok, FinishReason::None, 0}};
  wrong.outcomes = missing;
  CHECK(std::string(s.commit(*plan, wrong, TimeNs{}).field) == "token_begin");
  REQUIRE(settle(s, *plan, TimeNs{}));
  CHECK(run_dry(s));
  CHECK(s.stats().finished == 1);
}

TEST_CASE("The clock of the host may stand still or jump back") {
  SmallScheduler s = make_small();
  SmallRequest r(1, 10, 3);
  r.request.finish_by = TimeNs{1000};
  REQUIRE(s.submit(r.view()));
  REQUIRE(s.plan(TimeNs{500}) != nullptr);
  CHECK(s.plan(TimeNs{-100}) == nullptr);
  CHECK(s.stats().expired == 0);
  s.plan(TimeNs{1001});
  CHECK(s.stats().expired == 1);
  s.plan(TimeNs{0});
  const auto events = drain(s);
  CHECK(terminals(events).at(1).time == TimeNs{1001});
}

TEST_CASE("A head that does not fit is passed a bounded number of times") {
  SmallOptions o;
  o.blocks = 20;
  o.budget = 512;
  o.admission.max_bypass = 3;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 150, 100));  // 10 blocks at first
  step(s);
  REQUIRE(submit(s, 2, 250, 2));  // needs 16, waits
  for (std::uint64_t i = 10; i < 20; ++i) {
    REQUIRE(submit(s, i, 16, 1));
  }
  std::uint64_t passed = 0;
  while (s.stats().live > 0) {
    const Scheduled tokens = step(s);
    if (tokens.count(2) != 0) {
      break;
    }
    for (std::uint64_t i = 10; i < 20; ++i) {
      passed += tokens.count(i);
    }
  }
  CHECK(passed == 3);
  CHECK(run_dry(s));
}

TEST_CASE("A request waits for the prefill that produces its prefix") {
  SmallOptions o;
  o.budget = 64;
  o.caching = true;
  SmallScheduler s = make_small(o);
  SmallRequest a(1, 200, 4);
  SmallRequest b(2, 200, 4);
  b.tokens = a.tokens;
  b.tokens.back() = 5;
  REQUIRE(s.submit(a.view()));
  REQUIRE(s.submit(b.view()));
  REQUIRE(submit(s, 3, 16, 4));
  CHECK(step(s) == Scheduled{{1, 64}});
  CHECK(step(s) == Scheduled{{1, 64}});
  CHECK(step(s) == Scheduled{{1, 64}});
  // 1 ends its prompt; 2 finds 192 of its tokens; 3 comes after, in order.
  CHECK(step(s) == Scheduled{{1, 8}, {2, 8}, {3, 16}});
  CHECK(s.stats().prefix_hit_tokens == 192);
  CHECK(run_dry(s));
}

TEST_CASE(
    "A cancelled or expired request in flight ends at once and frees its blocks when settled") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 40, 4));
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  REQUIRE(s.cancel(RequestId{1}));
  s.plan(TimeNs{});
  const auto events = drain(s);
  CHECK(terminals(events).at(1).kind == EventKind::Cancelled);
  CHECK(s.pool_stats().referenced_blocks == 3);
  REQUIRE(s.check());
  REQUIRE(settle(s, *plan, TimeNs{}));
  CHECK(s.pool_stats().referenced_blocks == 0);
  CHECK(drain(s).empty());
}

TEST_CASE("pause stops admission or everything, resume goes on") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 8, 9));
  step(s);
  REQUIRE(submit(s, 2, 8, 9));
  s.pause(PauseMode::New);
  CHECK(step(s) == Scheduled{{1, 1}});
  s.pause(PauseMode::All);
  CHECK(step(s).empty());
  CHECK(s.status().state == PlanState::Paused);
  s.resume();
  CHECK(step(s) == Scheduled{{1, 1}, {2, 8}});
  CHECK(run_dry(s));
}

TEST_CASE("Named resources bound who runs together") {
  SmallOptions o;
  o.config.resource_caps[1] = 2;
  o.admission.max_bypass = 100;
  SmallScheduler s = make_small(o);
  const ResourceNeed one[] = {{1, 1}};
  for (std::uint64_t i = 1; i <= 4; ++i) {
    SmallRequest r(i, 8, 3);
    r.request.resources = one;
    REQUIRE(s.submit(r.view()));
  }
  REQUIRE(submit(s, 5, 8, 3));
  CHECK(step(s) == Scheduled{{1, 8}, {2, 8}, {5, 8}});
  CHECK(step(s) == Scheduled{{1, 1}, {2, 1}, {5, 1}});
  CHECK(step(s) == Scheduled{{1, 1}, {2, 1}, {5, 1}});
  CHECK(step(s) == Scheduled{{3, 8}, {4, 8}});
  CHECK(run_dry(s));
}

TEST_CASE("With future tokens a sequence stands in several plans and nothing is computed twice") {
  for (const std::int64_t outputs : {1, 2, 5}) {
    SmallOptions o;
    o.budget = 1000;
    o.blocks = 100;
    o.plans = 2;
    o.future_tokens = true;
    SmallScheduler s = make_small(o);
    REQUIRE(submit(s, 1, 10, outputs));
    const StepPlan* older = s.plan(TimeNs{});
    REQUIRE(older != nullptr);
    std::int64_t total = older->num_tokens();
    REQUIRE(submit(s, 2, 10, outputs));
    while (s.stats().live > 0) {
      const StepPlan* younger = s.plan(TimeNs{});
      total += younger != nullptr ? younger->num_tokens() : 0;
      if (younger != nullptr && younger->num_decode_chunks > 0 && older != nullptr) {
        CHECK(is_future_token(
            younger->tokens[static_cast<std::size_t>(younger->chunks[0].first_token)]));
      }
      if (older != nullptr) {
        REQUIRE(settle(s, *older, TimeNs{}));
      }
      older = younger;
    }
    CHECK(total == 2 * (10 + outputs - 1));
  }
}

TEST_CASE("Decodes that fill every step do not starve a started prefill, nor one another") {
  SmallOptions o;
  o.budget = 8;
  o.rows = 16;
  SmallScheduler s = make_small(o);
  for (std::uint64_t i = 1; i <= 8; ++i) {
    REQUIRE(submit(s, i, 1, 200));
  }
  step(s);
  step(s);
  REQUIRE(submit(s, 20, 60, 5));
  std::map<std::uint64_t, int> gap;
  int worst = 0;
  for (int i = 0; i < 300 && s.stats().finished == 0; ++i) {
    const Scheduled tokens = step(s);
    for (const std::uint64_t id : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 20U}) {
      gap[id] = tokens.count(id) != 0 ? 0 : gap[id] + 1;
      worst = std::max(worst, id == 20 && s.stats().running < 9 ? 0 : gap[id]);
    }
  }
  CHECK(run_dry(s));
  INFO(worst);
  CHECK(worst <= 9);  // ceil((8 + 60) / 8)
}

TEST_CASE("A prompt that ends in a step is not decoded in the same step") {
  // Decodes with drafts use up a step and leave a started prompt out. It goes first in the next
  // step, ends there, and then stands among the decodes while that plan is still under
  // construction.
  SmallOptions o;
  o.budget = 8;
  o.plans = 3;
  o.future_tokens = true;
  o.config.max_draft_tokens = 2;
  SmallScheduler s = make_small(o);
  StepResultBuffer result;
  REQUIRE(s.make_result(result));
  for (std::uint64_t i = 1; i <= 3; ++i) {
    REQUIRE(submit(s, i, 1, 60));
  }
  const Token drafts[] = {1, 1};
  const Token one[] = {1};
  const Scheduled expected[] = {
      {{1, 1}, {2, 1}, {3, 1}},          // prompts
      {{1, 3}, {2, 3}, {3, 1}, {9, 1}},  // what two sequences' drafts leave of the step
      {{1, 3}, {2, 3}, {3, 2}},          // nothing is left
      {{9, 2}, {1, 1}, {2, 1}, {3, 1}},  // the prompt first; its own decode comes later
      {{1, 1}, {2, 1}, {3, 1}, {9, 1}}};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    CHECK(tokens_of(plan) == expected[i]);
    CHECK(plan->chunks.size() == expected[i].size());
    result.reset(*plan);
    for (const Chunk& c : plan->chunks) {
      const bool has_drafts = i == 1 || (i == 0 && c.request.value < 3);
      if (c.num_samples > 0) {
        result.add_sample(one,
                          has_drafts ? std::span<const Token>(drafts) : std::span<const Token>());
      }
    }
    REQUIRE(s.commit(*plan, result.view(), TimeNs{}));
    if (i == 0) {
      REQUIRE(submit(s, 9, 3, 60));
    }
  }
}
