// SPDX-License-Identifier: Apache-2.0
/// \file
/// Required behaviours from public bug reports, with their numbers.
#include "small_host.hpp"

#include <catch2/catch.hpp>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {
TimeNs at_ms(std::int64_t ms) { return TimeNs{ms * 1'000'000}; }
}  // namespace

TEST_CASE("R04 a queued request expires by time alone, while the executor is busy") {
  SmallOptions o;
  o.rows = 1;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 10, 5));
  const StepPlan* running = s.plan(at_ms(0));  // runs 90 s
  REQUIRE(running != nullptr);
  SmallRequest b(2, 10, 5);
  b.request.start_by = at_ms(10'000);
  REQUIRE(s.submit(b.view()));
  std::int64_t b_at = -1;
  std::int64_t c_at = -1;
  for (std::int64_t ms = 0; ms <= 30'000; ms += 100) {
    if (ms == 9'900) {
      SmallRequest c(3, 10, 5);
      c.request.arrival = at_ms(ms);
      c.request.start_by = at_ms(ms + 10'000);
      REQUIRE(s.submit(c.view()));
    }
    CHECK(s.plan(at_ms(ms)) == nullptr);
    CHECK(s.status().state == PlanState::InFlightLimit);
    for (const SmallEvent& e : drain(s)) {
      if (e.kind == EventKind::Expired) {
        (e.id == 2 ? b_at : c_at) = ms;
      }
    }
  }
  CHECK(b_at <= 10'100);
  CHECK(b_at > 10'000);
  CHECK(c_at <= 20'000);
  CHECK(c_at > 19'900);
  CHECK(s.stats().waiting == 0);
  REQUIRE(settle(s, *running, at_ms(90'000)));
  CHECK(run_dry(s, at_ms(90'001)));
  CHECK(s.stats().expired == 2);
  CHECK(s.stats().finished == 1);
}

TEST_CASE("R05 a duplicate id is refused and the first goes on") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 7, 20, 3));
  const Status second = submit(s, 7, 5, 1);
  CHECK(second.code == Errc::Duplicate);
  CHECK(second.value == 7);
  CHECK(s.stats().submitted == 2);
  CHECK(s.stats().rejected == 1);
  CHECK(s.stats().live == 1);
  CHECK(run_dry(s));
  const auto events = drain(s);
  CHECK(terminals(events).at(7).count == 3);
  CHECK(submit(s, 7, 20, 3));
  CHECK(s.cancel(RequestId{7}));
  CHECK(s.cancel(RequestId{7}));
  s.plan(TimeNs{});
  const auto more = drain(s);
  CHECK(terminals(more).at(7).kind == EventKind::Cancelled);
  CHECK(s.cancel(RequestId{7}).code == Errc::NotFound);
  CHECK(s.stats().cancelled == 1);
}

TEST_CASE("R08 a prompt that has to run whole and is longer than a step is refused at submit") {
  SmallOptions o;
  o.budget = 2048;
  o.admission.split_prompts = false;
  SmallScheduler s = make_small(o);
  const Status refused = submit(s, 1, 2715, 1);
  CHECK(refused.code == Errc::CanNeverFit);
  CHECK(refused.value == 2715);
  CHECK(refused.limit == 2048);
  REQUIRE(submit(s, 2, 10, 2));
  CHECK(run_dry(s));
}

TEST_CASE("R08 what outgrows the pool is refused at submit, an exact fit runs") {
  SmallOptions o;
  o.blocks = 10;
  o.budget = 2048;
  SmallScheduler s = make_small(o);
  const Status refused = submit(s, 1, 150, 50);
  CHECK(refused.code == Errc::CanNeverFit);
  CHECK(refused.limit == 160);
  REQUIRE(submit(s, 2, 100, 60));
  REQUIRE(submit(s, 3, 100, 61));  // the last output needs no KV
  CHECK(submit(s, 4, 100, 62).code == Errc::CanNeverFit);
  CHECK(run_dry(s));
  const auto ends = terminals(drain(s));
  CHECK(ends.at(2).count == 60);
  CHECK(ends.at(3).count == 61);
}

TEST_CASE("R08 a long prompt runs in chunks") {
  SmallOptions o;
  o.budget = 2048;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 2715, 1));
  CHECK(step(s) == Scheduled{{1, 2048}});
  CHECK(step(s) == Scheduled{{1, 667}});
  CHECK(s.stats().live == 0);
}

TEST_CASE("R09 degenerate requests get a result of their own and touch nobody") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 20, 4));
  CHECK(submit(s, 2, 0, 4).code == Errc::EmptyPrompt);
  REQUIRE(submit(s, 3, 20, 4));
  REQUIRE(submit(s, 4, 20, 0));
  CHECK(run_dry(s));
  const auto ends = terminals(drain(s));
  CHECK(ends.at(1).count == 4);
  CHECK(ends.at(3).count == 4);
  CHECK(ends.at(4).count == 0);
  CHECK(ends.at(4).kind == EventKind::Finished);
  CHECK(ends.at(4).reason == FinishReason::Length);
}

TEST_CASE("R10 a chunk that gets no blocks is parked and goes on later") {
  SmallOptions o;
  o.blocks = 144;
  o.budget = 2048;
  // Nothing is held for the rest of a prompt: the case in which a chunk can meet an empty pool.
  o.admission.reserve = FcfsAdmission::Reserve::FirstChunk;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 1590, 10));  // 100 blocks, decodes while 2 prefills
  CHECK(step(s) == Scheduled{{1, 1590}});
  REQUIRE(submit(s, 2, 2300, 2));
  std::int64_t total = 0;
  bool decoded_beside = false;
  while (s.stats().live > 0) {
    const StepPlan* plan = s.plan(TimeNs{});
    REQUIRE(plan != nullptr);
    const Scheduled tokens = tokens_of(plan);
    CHECK(plan->num_tokens() <= 2048);
    for (const Chunk& c : plan->chunks) {
      if (c.request.value == 2 && c.kind == ChunkKind::Prefill) {
        total += c.num_tokens;
      }
    }
    if (tokens.count(2) != 0 && tokens.count(1) != 0) {
      CHECK(tokens.at(2) <= 704);  // 44 blocks were free
    }
    decoded_beside = decoded_beside || tokens.count(1) != 0;
    REQUIRE(settle(s, *plan, TimeNs{}));
    REQUIRE(s.check());
  }
  CHECK(decoded_beside);
  CHECK(total == 2300);
  CHECK(s.stats().preemptions == 0);
}

TEST_CASE("R12 an undersized pool makes progress with few evictions") {
  for (const int requests : {3, 20}) {
    SmallOptions o;
    o.blocks = 6;
    o.budget = 2048;
    SmallScheduler s = make_small(o);
    for (int i = 1; i <= requests; ++i) {
      REQUIRE(submit(s, static_cast<std::uint64_t>(i), 32, 40));
    }
    CHECK(run_dry(s));
    CHECK(s.stats().finished == static_cast<std::uint64_t>(requests));
    INFO(s.stats().preemptions);
    CHECK(s.stats().preemptions <= static_cast<std::uint64_t>(requests == 3 ? 5 : 40));
    CHECK(s.pool_stats().free_blocks == 6);
  }
}

TEST_CASE("R41 token counts beyond 32 bits are exact") {
  SmallOptions o;
  o.block_size = 1024;
  o.blocks = 200;
  o.rows = 2;
  o.config.max_live_requests = 40000;
  o.config.max_context_tokens = 131072;
  o.config.max_queued_tokens = std::int64_t{40000} * 2048;
  SmallScheduler s = make_small(o);
  std::vector<ContentDigest> digests(97);
  for (std::uint64_t i = 0; i < 40000; ++i) {
    for (std::size_t d = 0; d < digests.size(); ++d) {
      digests[d] = {i, d};
    }
    Request r;
    r.id = RequestId{i};
    r.prompt.kind = PromptKind::Digests;
    r.prompt.digests = digests;
    r.prompt.digest_unit = 1024;
    r.prompt.length = 100000;
    r.max_new_tokens = 1;
    REQUIRE(s.submit(r));
  }
  CHECK(s.stats().queued_tokens == 4'000'000'000ULL);
  BlockPool<> huge(BlockPool<>::Config{.num_blocks = std::int64_t{1} << 31});
  CHECK_FALSE(huge.attach({.max_rows = 1, .max_context_tokens = 1024}));
}

TEST_CASE("R42 an executor that throws or fails costs its own requests only") {
  struct Throwing {
    int step = 0;
    bool throws = true;
    [[nodiscard]] Capabilities capabilities() const { return {}; }
    void execute(const StepPlan& plan, StepResultBuffer& result) {
      ++step;
      const bool bad = step >= 3 && step <= 5;
      if (bad && throws) {
        throw 42;
      }
      for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
        if (bad) {
          result.set_outcome(i, {OutcomeKind::Failed, FinishReason::None, 0});
        }
        if (plan.chunks[i].num_samples > 0) {
          if (bad) {
            result.add_sample(std::span<const Token>{});
          } else {
            result.add_sample(Token{5});
          }
        }
      }
    }
  };
  for (const bool throws : {true, false}) {
    SmallScheduler s = make_small();
    StepResultBuffer result;
    REQUIRE(s.make_result(result));
    Throwing executor;
    executor.throws = throws;
    for (std::uint64_t i = 1; i <= 8; ++i) {
      REQUIRE(submit(s, i, 8, 6));
    }
    std::int64_t now = 0;
    auto clock = [&] { return TimeNs{now += 1000}; };
    int abandoned = 0;
    while (s.stats().live > 0) {
      const StepReport report = run_step(s, executor, result, clock);
      REQUIRE(report.outcome != StepOutcome::NoPlan);
      abandoned += report.outcome == StepOutcome::Abandoned ? 1 : 0;
      REQUIRE(s.check());
    }
    CHECK(abandoned == (throws ? 3 : 0));
    // Three failures of each request are one more than the two retries it has.
    CHECK(s.stats().failed == 8);
    CHECK(s.pool_stats().referenced_blocks == 0);
    const auto ends = terminals(drain(s));
    CHECK(ends.size() == 8);
    CHECK(ends.at(3).error == Errc::ExecutorFailed);
    for (std::uint64_t i = 11; i <= 18; ++i) {
      REQUIRE(submit(s, i, 8, 6));
    }
    while (s.stats().live > 0) {
      REQUIRE(run_step(s, executor, result, clock).outcome == StepOutcome::Committed);
    }
    CHECK(s.stats().finished == 8);
  }
}

TEST_CASE("R43 submit, cancel and stats between polls are seen in order") {
  SmallScheduler s = make_small();
  REQUIRE(submit(s, 1, 8, 1));
  REQUIRE(submit(s, 3, 8, 50));
  step(s);
  // The end of 1 is reported; the host reacts with a new request and cancels, one of them for 1
  // itself.
  Event event[16];
  const std::size_t n = s.poll(event);
  REQUIRE(n > 0);
  bool saw_end = false;
  for (std::size_t i = 0; i < n; ++i) {
    if (event[i].kind == EventKind::Finished) {
      saw_end = true;
      REQUIRE(submit(s, 2, 8, 1));
      CHECK(s.cancel(RequestId{3}));
      CHECK(s.cancel(event[i].request).code == Errc::NotFound);
      CHECK(s.stats().live == 2);
    }
  }
  CHECK(saw_end);
  CHECK(run_dry(s));
  const auto ends = terminals(drain(s));
  CHECK(ends.at(2).kind == EventKind::Finished);
  CHECK(ends.at(3).kind == EventKind::Cancelled);
}
