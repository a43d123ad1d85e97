// SPDX-License-Identifier: Apache-2.0
/// \file
/// Statistics by class and tenant, the head of the queue, causes of waiting and alerts of a running
/// scheduler.
#include <dynbatch/base/random.hpp>

#include "naive_watch.hpp"
#include "small_host.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

std::string text_of(const RequestStats& s) {
  std::string text;
  for (const std::uint64_t n :
       {s.submitted, s.refused, s.admitted, s.finished, s.cancelled, s.expired, s.failed,
        s.preemptions, s.prompt_tokens, s.output_tokens, s.prefix_hit_tokens, s.recomputed_tokens,
        s.ttft_met, s.ttft_missed, s.tpot_met, s.tpot_missed,
        static_cast<std::uint64_t>(s.queue_time.ns),
        static_cast<std::uint64_t>(s.max_queue_time.ns)}) {
    text += std::to_string(n) + " ";
  }
  return text;
}

// What happens to a scheduler at random.
struct Mix {
  SmallOptions options;
  bool fails = false;
  int length = 600;
};

class RandomRun {
 public:
  RandomRun(const Mix& mix, std::uint64_t seed)
      : mix_(mix),
        rng_(seed),
        scheduler_(make_small(mix.options)),
        naive_(static_cast<std::size_t>(mix.options.config.watch.max_tenants)) {}

  void run() {
    for (int i = 0; i < mix_.length; ++i) {
      now_ += rng_.between(0, 30'000'000);
      if (rng_.one_in(2)) {
        submit_one();
      } else if (rng_.one_in(8)) {
        static_cast<void>(scheduler_.cancel(RequestId{
            static_cast<std::uint64_t>(rng_.between(1, std::max<std::int64_t>(next_, 1)))}));
      } else {
        step_once();
      }
      compare();
    }
    for (int i = 0; i < 5000 && scheduler_.stats().live > 0; ++i) {
      now_ += 10'000'000;
      step_once();
      compare();
    }
    CHECK(scheduler_.stats().live == 0);
  }

  SmallScheduler& scheduler() { return scheduler_; }
  const NaiveWatch& naive() const { return naive_; }

 private:
  void submit_one() {
    // Few contents, so that prefixes are found again.
    const std::int64_t length = rng_.between(0, 90);
    const std::int64_t outputs = rng_.between(0, 40);
    SmallRequest r(static_cast<std::uint64_t>(rng_.between(1, 6)), length, outputs);
    r.request.id = RequestId{static_cast<std::uint64_t>(++next_)};
    r.request.tenant = static_cast<std::uint64_t>(rng_.between(0, 5));
    r.request.request_class = static_cast<RequestClass>(rng_.between(0, 2));
    r.request.arrival = TimeNs{now_ - rng_.between(0, 5'000'000)};
    if (rng_.one_in(2)) {
      r.request.slo.ttft = {rng_.between(0, 400'000'000)};
    }
    if (rng_.one_in(2)) {
      r.request.slo.tpot = {rng_.between(0, 60'000'000)};
    }
    if (rng_.one_in(6)) {
      r.request.num_samples = static_cast<std::int32_t>(rng_.between(1, 3));
    }
    if (rng_.one_in(6)) {
      r.request.finish_by = TimeNs{now_ + rng_.between(0, 600'000'000)};
    }
    const Request request = r.view();
    naive_.submitted(request, scheduler_.submit(request).is_ok());
  }

  void step_once() {
    if (const StepPlan* plan = scheduler_.plan(TimeNs{now_}); plan != nullptr) {
      naive_.planned(*plan);
      in_flight_.push_back(plan);
    }
    see_events();
    const bool is_full = in_flight_.size() == static_cast<std::size_t>(mix_.options.plans);
    if (in_flight_.empty() || (!is_full && rng_.one_in(2) && scheduler_.stats().live > 2)) {
      return;
    }
    now_ += rng_.between(0, 10'000'000);
    if (mix_.fails && rng_.one_in(12)) {
      const StepPlan& plan = *in_flight_.front();
      for (const Chunk& chunk : plan.chunks) {
        naive_.undone(chunk);
      }
      CHECK(scheduler_.abandon(plan, rng_.one_in(2) ? AbandonReason::Lost : AbandonReason::NotRun,
                               TimeNs{now_}));
      in_flight_.clear();
    } else {
      commit(*in_flight_.front());
      in_flight_.erase(in_flight_.begin());
    }
    see_events();
  }

  void commit(const StepPlan& plan) {
    std::vector<Token> tokens(static_cast<std::size_t>(plan.num_samples), 1);
    std::vector<Outcome> outcomes;
    StepResult result;
    result.tokens = tokens;
    if (mix_.fails && rng_.one_in(3)) {
      for (const Chunk& chunk : plan.chunks) {
        Outcome outcome;
        if (rng_.one_in(6)) {
          const std::int64_t which = rng_.between(0, 2);
          outcome.kind = which == 0   ? OutcomeKind::NotRun
                         : which == 1 ? OutcomeKind::Failed
                                      : OutcomeKind::Stop;
          outcome.tokens = outcome.kind == OutcomeKind::Stop && chunk.num_samples == 1
                               ? static_cast<std::int32_t>(rng_.between(0, 1))
                               : 0;
          if (outcome.kind == OutcomeKind::Stop && chunk.num_samples > 1) {
            outcome.kind = OutcomeKind::Ok;
          }
          if (outcome.kind == OutcomeKind::NotRun || outcome.kind == OutcomeKind::Failed) {
            naive_.undone(chunk);
          }
        }
        outcomes.push_back(outcome);
      }
      result.outcomes = outcomes;
    }
    const Status status = scheduler_.commit(plan, result, TimeNs{now_});
    INFO(status.field << " " << status.text);
    CHECK(status);
  }

  void see_events() {
    Event events[8];
    std::size_t n = 0;
    do {
      n = scheduler_.poll(events);
      for (std::size_t i = 0; i < n; ++i) {
        naive_.see(events[i]);
      }
    } while (n == std::size(events));
    naive_.flush();
  }

  void compare() {
    const auto same = [&](RequestStats a, RequestStats b) {
      if (naive_.has_unseen()) {
        a.prefix_hit_tokens = b.prefix_hit_tokens;
      }
      CHECK(text_of(a) == text_of(b));
    };
    RequestStats all;
    for (std::size_t i = 0; i < 3; ++i) {
      const RequestStats s = scheduler_.class_stats(static_cast<RequestClass>(i));
      same(s, naive_.of_class(i));
      all.submitted += s.submitted;
      all.refused += s.refused;
      all.finished += s.finished;
      all.preemptions += s.preemptions;
      all.prefix_hit_tokens += s.prefix_hit_tokens;
      all.recomputed_tokens += s.recomputed_tokens;
    }
    REQUIRE(scheduler_.num_tenants() == naive_.tenants().size());
    for (std::size_t i = 0; i < scheduler_.num_tenants(); ++i) {
      CHECK(scheduler_.tenant_stats(i).tenant == naive_.tenants()[i].tenant);
      same(scheduler_.tenant_stats(i).requests, naive_.tenants()[i].requests);
    }
    same(scheduler_.other_tenants_stats(), naive_.others());
    const SchedulerStats stats = scheduler_.stats();
    CHECK(all.refused == stats.rejected);
    CHECK(all.finished == stats.finished);
    CHECK(all.preemptions == stats.preemptions);
    CHECK(all.prefix_hit_tokens == stats.prefix_hit_tokens);
    CHECK(all.recomputed_tokens == stats.recomputed_tokens);
  }

  Mix mix_;
  SplitMix64 rng_;
  SmallScheduler scheduler_;
  NaiveWatch naive_;
  std::vector<const StepPlan*> in_flight_;
  std::int64_t now_ = 1'000'000'000;
  std::int64_t next_ = 0;
};

Mix small_pool() {
  Mix mix;
  mix.options.rows = 8;
  mix.options.blocks = 24;
  mix.options.budget = 48;
  mix.options.config.max_waiting_requests = 12;
  mix.options.config.watch.max_tenants = 4;
  return mix;
}

}  // namespace

TEST_CASE("Statistics by class and tenant equal those of whoever adds up the events",
          "[scheduler][watch]") {
  std::uint64_t preemptions = 0;
  std::uint64_t again = 0;
  std::uint64_t missed = 0;
  std::uint64_t met = 0;
  std::uint64_t refused = 0;
  std::uint64_t hits = 0;
  const int kind = GENERATE(0, 1, 2, 3);
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("kind " << kind << ", seed " << seed);
    Mix mix = small_pool();
    mix.options.caching = kind == 1;
    mix.fails = kind == 2;
    mix.options.plans = kind == 3 ? 3 : 1;
    mix.options.future_tokens = kind == 3;
    RandomRun run(mix, seed);
    run.run();
    for (std::size_t i = 0; i < 3; ++i) {
      const RequestStats s = run.naive().of_class(i);
      preemptions += s.preemptions;
      again += s.recomputed_tokens;
      missed += s.tpot_missed + s.ttft_missed;
      met += s.tpot_met + s.ttft_met;
      refused += s.refused;
      hits += s.prefix_hit_tokens;
    }
  }
  CHECK(preemptions > 20);
  CHECK(again > 500);
  CHECK(missed > 50);
  CHECK(met > 50);
  CHECK(refused > 50);
  CHECK((hits > 500) == (kind == 1));
}

TEST_CASE("Tenants beyond the table count together, and nothing is counted while all is off",
          "[scheduler][watch]") {
  SmallOptions o;
  o.config.watch.max_tenants = 2;
  SmallScheduler s = make_small(o);
  for (std::uint64_t id = 1; id <= 5; ++id) {
    SmallRequest r(id, 10, 1);
    r.request.tenant = id % 4;
    REQUIRE(s.submit(r.view()));
  }
  CHECK(run_dry(s));
  REQUIRE(s.num_tenants() == 2);
  CHECK(s.tenant_stats(0).tenant == 1);
  CHECK(s.tenant_stats(0).requests.finished == 2);
  CHECK(s.tenant_stats(1).tenant == 2);
  CHECK(s.tenant_stats(1).requests.finished == 1);
  CHECK(s.other_tenants_stats().finished == 2);
  CHECK(s.tenant_stats(2).requests == RequestStats{});

  SmallScheduler off = make_small();
  CHECK(submit(off, 1, 10, 1));
  CHECK(submit(off, 1, 10, 1).code == Errc::Duplicate);
  CHECK(run_dry(off));
  CHECK(off.class_stats(RequestClass::Interactive) == RequestStats{});
  CHECK(off.other_tenants_stats() == RequestStats{});
  CHECK(off.num_tenants() == 0);
  CHECK(off.waits(WaitCause::Memory) == 0);
}

TEST_CASE("The head of the queue is told with its cause and since when it waits",
          "[scheduler][watch]") {
  SmallOptions o;
  o.rows = 1;
  o.config.watch.has_statistics = true;
  SmallScheduler s = make_small(o);
  CHECK(!s.queue_head().is_there);
  REQUIRE(submit(s, 1, 20, 8));
  step(s, TimeNs{1000});
  CHECK(!s.queue_head().is_there);
  REQUIRE(submit(s, 2, 20, 1));
  REQUIRE(submit(s, 3, 20, 1));
  step(s, TimeNs{2000});
  QueueHead head = s.queue_head();
  CHECK(head.is_there);
  CHECK(head.request == RequestId{2});
  CHECK(head.cause == WaitCause::Sequences);
  CHECK(head.since == TimeNs{2000});
  CHECK(s.waits(WaitCause::Sequences) == 1);
  step(s, TimeNs{3000});
  CHECK(s.queue_head().since == TimeNs{2000});
  CHECK(s.waits(WaitCause::Sequences) == 2);
  s.pause(PauseMode::New);
  step(s, TimeNs{4000});
  CHECK(s.queue_head().cause == WaitCause::Paused);
  CHECK(s.waits(WaitCause::Paused) == 1);
  s.resume();
  REQUIRE(s.cancel(RequestId{2}));
  step(s, TimeNs{5000});
  head = s.queue_head();
  CHECK(head.request == RequestId{3});
  CHECK(head.since == TimeNs{2000});
  CHECK(run_dry(s, TimeNs{6000}));
  CHECK(!s.queue_head().is_there);
}

TEST_CASE("Causes of waiting add up to what the flight log notes", "[scheduler][watch]") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Mix mix = small_pool();
    mix.fails = seed % 2 == 0;
    mix.length = 400;
    mix.options.config.flight_log_bytes = 1 << 24;
    RandomRun run(mix, seed);
    run.run();
    std::vector<std::byte> log(1 << 24);
    log.resize(run.scheduler().drain_log(log));
    std::array<std::uint64_t, 11> waits{};
    for (std::size_t at = 0; at < log.size();) {
      FlightPrefix prefix;
      std::memcpy(&prefix, log.data() + at, sizeof(prefix));
      if (prefix.kind == FlightKind::Plan) {
        FlightPlan plan;
        std::memcpy(&plan, log.data() + at + sizeof(prefix), sizeof(plan));
        CHECK(plan.num_waits < kMaxFlightWaits);  // or some would be missing
        for (std::uint32_t w = 0; w < plan.num_waits; ++w) {
          FlightWait wait;
          std::memcpy(&wait,
                      log.data() + at + sizeof(prefix) + sizeof(plan) + w * sizeof(FlightWait),
                      sizeof(wait));
          ++waits[wait.cause];
        }
      }
      at += prefix.bytes;
    }
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < waits.size(); ++i) {
      CHECK(run.scheduler().waits(static_cast<WaitCause>(i)) == waits[i]);
      sum += waits[i];
    }
    CHECK(sum > 100);
  }
}

TEST_CASE("Alerts are raised and cleared as queue, KV and lateness come and go",
          "[scheduler][watch]") {
  SmallOptions o;
  o.rows = 8;
  o.blocks = 26;
  o.config.watch.rule(AlertKind::QueueLength) = {8, 2, {}};
  o.config.watch.rule(AlertKind::QueueHeadAge) = {1'000, 100, {}};
  o.config.watch.rule(AlertKind::KvUse) = {900, 300, {}};
  o.config.watch.rule(AlertKind::TtftMisses) = {500, 200, {}};
  o.config.watch.rule(AlertKind::TpotMisses) = {500, 200, {}};
  o.config.watch.rule(AlertKind::RecomputedTokens) = {20, 5, {}};
  o.config.watch.window = seconds(4);
  SmallScheduler s = make_small(o);
  std::int64_t now = 0;
  std::vector<Alert> alerts;
  const auto go = [&](int steps) {
    Alert some[3];
    for (int i = 0; i < steps; ++i) {
      step(s, TimeNs{now += 50'000'000});
      drain(s);
      for (std::size_t n = 1; n > 0;) {
        n = s.drain_alerts(some);
        alerts.insert(alerts.end(), some, some + n);
      }
    }
  };
  std::uint64_t id = 0;
  const auto send = [&](DurationNs ttft, DurationNs tpot) {
    SmallRequest r(++id, 40, 40);
    r.request.arrival = TimeNs{now};
    r.request.slo = {ttft, tpot};
    REQUIRE(s.submit(r.view()));
  };
  go(10);
  CHECK(alerts.empty());
  for (int i = 0; i < 40; ++i) {
    send(milliseconds(500), milliseconds(49));
  }
  go(1500);
  CHECK(s.stats().live == 0);
  CHECK(s.stats().preemptions > 0);
  // Each was raised once and cleared once, in this order.
  std::array<int, kNumAlertKinds> raised{};
  std::array<int, kNumAlertKinds> cleared{};
  for (const Alert& alert : alerts) {
    const auto k = static_cast<std::size_t>(alert.kind);
    ++(alert.is_raised ? raised[k] : cleared[k]);
    CHECK(raised[k] - cleared[k] == (alert.is_raised ? 1 : 0));
    const AlertRule& rule = o.config.watch.alerts[k];
    CHECK((alert.is_raised ? alert.value >= rule.raise_at : alert.value <= rule.clear_at));
  }
  for (std::size_t k = 0; k < kNumAlertKinds; ++k) {
    INFO(to_string(static_cast<AlertKind>(k)));
    CHECK(raised[k] >= 1);
    CHECK(raised[k] == cleared[k]);
    CHECK(!s.is_raised(static_cast<AlertKind>(k)));
  }
  const auto once = [&](AlertKind kind) { return raised[static_cast<std::size_t>(kind)] == 1; };
  CHECK(once(AlertKind::QueueLength));
  CHECK(once(AlertKind::TtftMisses));
  CHECK(once(AlertKind::TpotMisses));
  CHECK(s.alerts_lost() == 0);
}
