// SPDX-License-Identifier: Apache-2.0
/// \file
/// How many may wait, and when a refused request is told to come again.
#include <dynbatch/base/random.hpp>
#include <dynbatch/scheduler/detail/queue_gate.hpp>

#include "small_host.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;
using dynbatch::detail::QueueGate;

TEST_CASE("A request that finds no place among the waiting is told limit, field and time",
          "[scheduler][limits]") {
  SmallOptions o;
  o.rows = 2;
  o.config.max_waiting_requests = 3;
  SmallScheduler s = make_small(o);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    REQUIRE(submit(s, id, 20, 4));
  }
  const Status full = submit(s, 4, 20, 4);
  CHECK(full.code == Errc::QueueFull);
  CHECK(std::string_view(full.field) == "max_waiting_requests");
  CHECK(full.value == 4);
  CHECK(full.limit == 3);
  CHECK(full.retry_after == QueueGate::kDefaultInterval);  // nothing is measured yet
  char text[256];
  format_status(full, text, sizeof(text));
  CHECK(std::string(text) ==
        "queue full: max_waiting_requests = 4 (limit 3): too many requests wait; try again after "
        "1000 ms");
  CHECK(submit(s, 5, 20, 4).retry_after == seconds(2));  // the next place is spoken for

  step(s, TimeNs{1000});  // two of them run
  CHECK(submit(s, 4, 20, 4));
  CHECK(submit(s, 5, 20, 4));
  CHECK(submit(s, 6, 20, 4).code == Errc::QueueFull);
  REQUIRE(s.cancel(RequestId{5}));
  CHECK(submit(s, 6, 20, 4).code == Errc::QueueFull);  // nobody has seen the cancellation yet
  step(s, TimeNs{2000});
  CHECK(submit(s, 6, 20, 4));
  CHECK(run_dry(s));
  CHECK(s.stats().rejected == 4);
}

TEST_CASE("Refused for another reason, a request leaves its place to others",
          "[scheduler][limits]") {
  SmallOptions o;
  o.config.max_waiting_requests = 3;
  o.config.max_live_requests = 8;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 20, 4));
  for (int i = 0; i < 10; ++i) {
    CHECK(submit(s, 1, 20, 4).code == Errc::Duplicate);
    CHECK(submit(s, 2, 0, 4).code == Errc::EmptyPrompt);
  }
  CHECK(submit(s, 2, 20, 4));
  CHECK(submit(s, 3, 20, 4));
  CHECK(submit(s, 4, 20, 4).code == Errc::QueueFull);
}

TEST_CASE("Requests of a flight log were accepted before and pass the gate",
          "[scheduler][limits]") {
  SmallOptions o;
  o.config.max_waiting_requests = 1;
  SmallScheduler s = make_small(o);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    SmallRequest r(id, 20, 4);
    CHECK(s.resubmit(r.view()));
  }
  CHECK(submit(s, 4, 20, 4).value == 4);
  CHECK(run_dry(s));
  CHECK(submit(s, 4, 20, 4));
}

TEST_CASE("The other limits of a queue say when to try again, too", "[scheduler][limits]") {
  SmallOptions o;
  o.config.max_live_requests = 2;
  SmallScheduler s = make_small(o);
  REQUIRE(submit(s, 1, 20, 4));
  REQUIRE(submit(s, 2, 20, 4));
  const Status full = submit(s, 3, 20, 4);
  CHECK(std::string_view(full.field) == "max_live_requests");
  CHECK(full.retry_after == seconds(1));
  CHECK(submit(s, 1, 0, 4).retry_after == DurationNs{});
}

TEST_CASE("Who waits again after a preemption takes nobody's place and is never refused",
          "[scheduler][limits]") {
  SmallOptions o;
  o.rows = 4;
  o.blocks = 12;  // outputs outgrow it
  o.config.max_waiting_requests = 4;
  SmallScheduler s = make_small(o);
  std::uint64_t next = 1;
  std::uint64_t taken = 0;
  for (int i = 0; i < 400; ++i) {
    // As many as never ran count, whoever else waits.
    const QueueHead head = s.queue_head();
    while (submit(s, next, 30, 60).is_ok()) {
      ++next;
      ++taken;
    }
    step(s, TimeNs{1000 * i});
    drain(s);
    CHECK((s.stats().waiting <= 4 || head.is_there));
  }
  CHECK(s.stats().preemptions > 0);
  CHECK(taken > 20);
  CHECK(run_dry(s));
  drain(s);
  for (std::uint64_t id = 1; id <= 4; ++id) {  // all places came back, and no more than that
    CHECK(submit(s, 100000 + id, 30, 4));
  }
  CHECK(submit(s, 100005, 30, 4).code == Errc::QueueFull);
}

TEST_CASE("The gate counts like a plain counter and measures what left it", "[scheduler][limits]") {
  SplitMix64 rng(7);
  for (int run = 0; run < 20; ++run) {
    SchedulerConfig config;
    config.max_waiting_requests = rng.between(1, 20);
    QueueGate gate;
    gate.configure(config);
    std::int64_t waiting = 0;
    std::int64_t now = 0;
    for (int i = 0; i < 2000; ++i) {
      now += rng.between(0, 20'000'000);
      if (rng.one_in(2)) {
        CHECK(gate.enter().is_ok() == (waiting < config.max_waiting_requests));
        waiting += waiting < config.max_waiting_requests ? 1 : 0;
      } else if (waiting > 0) {
        gate.leave();
        --waiting;
      }
      if (rng.one_in(10)) {
        gate.enter_anyway();
        ++waiting;
      }
      gate.observe(TimeNs{now});
      CHECK(gate.num_waiting() == waiting);
      const DurationNs retry = gate.retry_after();
      CHECK(retry >= config.min_retry_after);
      CHECK(retry <= config.max_retry_after);
    }
  }
}

TEST_CASE("The measured interval follows the drain, and an empty queue teaches nothing",
          "[scheduler][limits]") {
  SchedulerConfig config;
  QueueGate gate;
  gate.configure(config);
  std::int64_t now = 0;
  const auto drain_at = [&](std::int64_t interval_ms, int count) {
    for (int i = 0; i < count; ++i) {
      now += interval_ms * 1'000'000;
      gate.leave();
      gate.enter_anyway();
      gate.observe(TimeNs{now});
    }
    return static_cast<double>(gate.interval().ns) / 1e6;
  };
  CHECK(gate.interval() == seconds(1));
  gate.enter_anyway();
  gate.enter_anyway();
  gate.observe(TimeNs{now});
  CHECK(drain_at(100, 30) == Approx(100.0).epsilon(0.15));
  CHECK(drain_at(400, 100) == Approx(400.0).epsilon(0.15));
  const double last = drain_at(20, 2000);
  CHECK(last == Approx(20.0).epsilon(0.15));
  gate.leave();
  gate.leave();
  for (int i = 0; i < 100; ++i) {
    now += 1'000'000'000;
    gate.observe(TimeNs{now});
  }
  CHECK(static_cast<double>(gate.interval().ns) / 1e6 == last);
}

TEST_CASE("A predicted wait bounds the queue while requests wait, and always lets one in",
          "[scheduler][limits]") {
  SchedulerConfig config;
  config.max_predicted_wait = seconds(2);
  QueueGate gate;
  gate.configure(config);
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(gate.enter());  // nothing is known: no limit
  }
  std::int64_t now = 0;
  for (int i = 0; i < 100; ++i) {  // ten a second leave
    gate.observe(TimeNs{now});
    now += 100'000'000;
    gate.leave();
  }
  const Status late = gate.enter();
  CHECK(late.code == Errc::QueueFull);
  CHECK(std::string_view(late.field) == "max_predicted_wait");
  CHECK(late.limit == seconds(2).ns);
  CHECK(static_cast<double>(late.value) / 1e9 == Approx(90.1).epsilon(0.15));
  while (gate.num_waiting() > 10) {
    gate.leave();
  }
  CHECK(gate.enter());
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(gate.enter());
  }
  CHECK(gate.num_waiting() >= 17);  // 2 s of ten a second
  CHECK(gate.num_waiting() <= 21);
}

// Clients that come again when they were told to, before a queue of which one leaves in each
// `interval`.
namespace {

struct Client {
  std::int64_t at_ms;
  std::int64_t told_ms = 0;   // to the first time that it was told
  std::int64_t since_ms = 0;  // first refusal
  int refusals = 0;
};

}  // namespace

TEST_CASE(
    "In a steady drain who waits as told is taken in within twice that time, and no herd comes",
    "[scheduler][limits]") {
  const std::int64_t interval_ms = GENERATE(20, 100, 450);
  SchedulerConfig config;
  config.max_waiting_requests = 10;
  config.max_retry_after = seconds(600);
  QueueGate gate;
  gate.configure(config);
  std::vector<Client> clients(10 + 100, Client{5'000});
  std::int64_t taken = 0;
  std::int64_t most_at_once = 0;
  double worst = 0.0;
  // A warm queue first: someone always waits.
  for (int i = 0; i < 10; ++i) {
    REQUIRE(gate.enter());
  }
  for (std::int64_t ms = 0; taken < 110 && ms < 1'000'000; ++ms) {
    const TimeNs now{ms * 1'000'000};
    if (ms % interval_ms == 0 && gate.num_waiting() > 0) {
      gate.leave();
      if (ms < 5'000) {
        REQUIRE(gate.enter());
      }
    }
    gate.observe(now);
    std::int64_t at_once = 0;
    for (Client& c : clients) {
      if (c.at_ms != ms) {
        continue;
      }
      at_once += c.refusals > 0 ? 1 : 0;
      const Status status = gate.enter();
      if (status) {
        ++taken;
        c.at_ms = -1;
        if (c.refusals > 0) {
          worst = std::max(worst,
                           static_cast<double>(ms - c.since_ms) / static_cast<double>(c.told_ms));
        }
        continue;
      }
      const std::int64_t told = (gate.retry_after().ns + 999'999) / 1'000'000;
      if (c.refusals++ == 0) {
        c.since_ms = ms;
        c.told_ms = told;
      }
      c.at_ms = ms + told;
    }
    most_at_once = std::max(most_at_once, at_once);
  }
  CHECK(taken == 110);
  CHECK(worst <= 2.0);
  CHECK(most_at_once <= 2);
}

TEST_CASE(
    "Clients of a busy scheduler that come again as told are served at its pace, in small groups",
    "[scheduler][limits]") {
  SmallOptions o;
  o.rows = 4;
  o.budget = 64;
  o.config.max_waiting_requests = 8;
  o.config.max_retry_after = seconds(600);
  SmallScheduler s = make_small(o);
  constexpr std::int64_t kStepMs = 10;
  std::uint64_t next_id = 1;
  // A second in which somebody always waits.
  std::int64_t ms = 0;
  const auto go = [&] {
    step(s, TimeNs{ms * 1'000'000});
    drain(s);
    ms += kStepMs;
  };
  while (ms < 3'000) {
    while (submit(s, next_id, 20, 10)) {
      ++next_id;
    }
    go();
  }
  const std::uint64_t finished = s.stats().finished;
  const double per_second = static_cast<double>(finished) / 3.0;
  std::vector<Client> clients(150, Client{ms});
  std::int64_t first_ms = ms;
  std::int64_t taken = 0;
  std::int64_t most_at_once = 0;
  double worst = 0.0;
  while (taken < 150 && ms < 600'000) {
    std::int64_t at_once = 0;
    for (Client& c : clients) {
      if (c.at_ms < 0 || c.at_ms > ms) {
        continue;
      }
      at_once += c.refusals > 0 ? 1 : 0;
      const Status status = submit(s, next_id++, 20, 10);
      if (status) {
        ++taken;
        c.at_ms = -1;
        if (c.refusals > 0) {
          worst = std::max(worst,
                           static_cast<double>(ms - c.since_ms) / static_cast<double>(c.told_ms));
        }
        continue;
      }
      const std::int64_t told = status.retry_after.ns / 1'000'000 + 1;
      if (c.refusals++ == 0) {
        c.since_ms = ms;
        c.told_ms = std::max(told, kStepMs);
      }
      c.at_ms = ms + told;
    }
    most_at_once = std::max(most_at_once, at_once);
    go();
  }
  CHECK(taken == 150);
  CHECK(worst <= 2.0);
  CHECK(most_at_once <= 4);
  // Hardly slower than the scheduler works through a queue that never runs dry.
  CHECK(static_cast<double>(ms - first_ms) / 1000.0 <= 150.0 / per_second * 1.5);
}

TEST_CASE("Promises to those who never come again are forgotten", "[scheduler][limits]") {
  SchedulerConfig config;
  config.max_waiting_requests = 4;
  QueueGate gate;
  gate.configure(config);
  std::int64_t now = 0;
  const auto look = [&] { gate.observe(TimeNs{now += 50'000'000}); };
  while (gate.enter()) {
  }
  look();
  CHECK(gate.retry_after() == seconds(1));
  CHECK(gate.retry_after() == seconds(2));
  CHECK(gate.retry_after() == seconds(3));
  look();  // full still: all three may come
  const std::int64_t interval = gate.interval().ns;
  CHECK(gate.retry_after() == DurationNs{4 * interval});
  gate.leave();
  REQUIRE(gate.enter());
  look();  // one of them came
  CHECK(gate.retry_after() == DurationNs{4 * gate.interval().ns});
  gate.leave();
  look();  // a place is free and nobody came
  CHECK(gate.retry_after() == gate.interval());
}

TEST_CASE("Beyond the longest time, times are spread over its later half", "[scheduler][limits]") {
  SchedulerConfig config;
  config.max_waiting_requests = 1;
  config.max_retry_after = seconds(30);
  QueueGate gate;
  gate.configure(config);
  std::vector<std::int64_t> told(31);
  for (int i = 0; i < 3000; ++i) {  // nothing measured: a place a second
    ++told[static_cast<std::size_t>(gate.retry_after().ns / seconds(1).ns)];
  }
  CHECK(told[1] == 1);
  CHECK(told[14] == 1);
  for (std::size_t s = 15; s < 30; ++s) {
    CHECK(told[s] >= 198);
    CHECK(told[s] <= 200);
  }
}

TEST_CASE("Wrong limits are refused by name", "[scheduler][limits]") {
  SchedulerConfig config;
  CHECK(config.validate());
  config.max_waiting_requests = -1;
  CHECK(std::string_view(config.validate().field) == "max_waiting_requests");
  config = {};
  config.max_predicted_wait = {};
  CHECK(std::string_view(config.validate().field) == "max_predicted_wait");
  config = {};
  config.min_retry_after = seconds(61);
  CHECK(std::string_view(config.validate().field) == "min_retry_after");
  config = {};
  config.max_retry_after = seconds(86'401);
  CHECK(std::string_view(config.validate().field) == "max_retry_after");
}
