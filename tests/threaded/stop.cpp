// SPDX-License-Identifier: Apache-2.0
/// \file
/// Stopping: the driving thread changes, or the scheduler goes away with work queued, running and
/// in flight, as soon as the submitting threads have seen that it is closed.
#include "small_host.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

constexpr std::uint64_t kSubmitters = 4;

/// Submits, cancels and reads until the scheduler is closed; returns how many it got in.
std::uint64_t submit_until_closed(SmallScheduler& s, std::uint64_t thread) {
  std::uint64_t accepted = 0;
  for (std::uint64_t i = 0;; ++i) {
    SmallRequest r(1 + thread + kSubmitters * (i % 50), 5 + static_cast<std::int64_t>(i % 40), 6);
    r.request.num_samples = i % 5 == 0 ? 3 : 1;
    r.request.beam_search = i % 10 == 0;
    const Status status = s.submit(r.view());
    if (status.code == Errc::Closed) {
      return accepted;
    }
    accepted += status.is_ok() ? 1 : 0;
    if (i % 7 == 0) {
      static_cast<void>(s.cancel(RequestId{1 + (i * 13) % 200}));
    }
    if (i % 11 == 0) {
      static_cast<void>(s.stats());
    }
  }
}

SmallOptions options() {
  SmallOptions o;
  o.rows = 8;
  o.plans = 3;
  o.future_tokens = true;
  o.caching = true;
  o.config.max_live_requests = 64;
  o.config.max_queued_tokens = 20000;
  return o;
}

}  // namespace

TEST_CASE("A scheduler may be destroyed with work queued, running and in flight") {
  for (int round = 0; round < 30; ++round) {
    auto s = std::make_unique<SmallScheduler>(make_small(options()));
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < kSubmitters; ++t) {
      threads.emplace_back([&s, t] { submit_until_closed(*s, t); });
    }
    std::vector<const StepPlan*> in_flight;
    for (int i = 0; i < 40 + round; ++i) {
      if (const StepPlan* plan = s->plan(TimeNs{})) {
        in_flight.push_back(plan);
      }
      if (in_flight.size() == 3) {
        REQUIRE(settle(*s, *in_flight.front(), TimeNs{}));
        in_flight.erase(in_flight.begin());
      }
      Event events[8];
      s->poll(events);
    }
    if (round % 2 == 0) {
      s->close();
    } else {
      std::thread([&s] { s->close(); }).join();
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    REQUIRE(s->check());
    s.reset();
  }
}

TEST_CASE("The driving thread may change between two calls") {
  SmallScheduler s = make_small(options());
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> accepted{0};
  for (std::uint64_t t = 0; t < kSubmitters; ++t) {
    threads.emplace_back([&, t] { accepted += submit_until_closed(s, t); });
  }
  std::uint64_t ended = 0;
  for (int shift = 0; shift < 12; ++shift) {
    std::thread driver([&] {
      for (int i = 0; i < 60; ++i) {
        step(s);
        for (const SmallEvent& e : drain(s)) {
          ended += is_terminal(e.kind) ? 1 : 0;
        }
      }
    });
    driver.join();
  }
  s.close();
  for (std::thread& thread : threads) {
    thread.join();
  }
  while (s.stats().live > 0) {
    step(s);
  }
  for (const SmallEvent& e : drain(s)) {
    ended += is_terminal(e.kind) ? 1 : 0;
  }
  CHECK(ended == accepted.load());
  CHECK(s.pool_stats().referenced_blocks == 0);
}
