// SPDX-License-Identifier: Apache-2.0
/// \file
/// Six threads against a driving one over tables of one to four slots: slots and ids are recycled
/// with nearly every call. Runs under ThreadSanitizer.
#include <dynbatch/base/random.hpp>

#include "small_host.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

/// How long one table is under attack.
std::chrono::milliseconds attack_time() {
  const char* text = std::getenv("DYNBATCH_ATTACK_MS");
  return std::chrono::milliseconds(text != nullptr ? std::atoi(text) : 400);
}

void attack(std::int64_t slots, std::int64_t ids, std::uint64_t seed) {
  SmallOptions o;
  o.caching = true;
  o.block_size = 4;
  o.blocks = 60;
  o.budget = 40;
  o.rows = 4;
  o.plans = 2;
  o.config.max_live_requests = slots;
  o.config.max_queued_tokens = 2000;
  SmallScheduler s = make_small(o);
  constexpr std::size_t kThreads = 6;
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> done{0};
  struct Tally {
    std::multiset<std::uint64_t> accepted;
    std::uint64_t calls = 0;
    std::uint64_t refused = 0;
    std::uint64_t odd = 0;
  };
  std::vector<Tally> tallies(kThreads);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 rng(seed * 100 + t);
      Tally& tally = tallies[t];
      std::uint64_t count = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        const auto id = static_cast<std::uint64_t>(rng.between(0, ids - 1));
        switch (rng.between(0, 7)) {
          case 0:
          case 1:
          case 2: {
            SmallRequest r(id, rng.between(1, 12), rng.between(0, 3));
            r.request.num_samples = rng.one_in(4) && r.request.max_new_tokens > 0 ? 2 : 1;
            r.request.user_data = (static_cast<std::uint64_t>(t) << 40U) | count++;
            const Status status = s.submit(r.view());
            ++tally.calls;
            if (status.is_ok()) {
              tally.accepted.insert(r.request.user_data);
            } else {
              ++tally.refused;
              tally.odd += status.code != Errc::Duplicate && status.code != Errc::QueueFull &&
                                   status.code != Errc::Closed
                               ? 1U
                               : 0U;
            }
            break;
          }
          case 3:
          case 4:
          case 5: {
            const Status status = s.cancel(RequestId{id});
            tally.odd += status.is_ok() || status.code == Errc::NotFound ? 0U : 1U;
            break;
          }
          case 6: {
            const SchedulerStats stats = s.stats();
            tally.odd += stats.live > stats.submitted ? 1U : 0U;
            break;
          }
          default:
            s.pause(rng.one_in(2) ? PauseMode::New : PauseMode::All);
            s.resume();
            break;
        }
      }
      s.resume();
      done.fetch_add(1);
    });
  }
  std::multiset<std::uint64_t> ended;
  SplitMix64 rng(seed);
  const auto end = std::chrono::steady_clock::now() + attack_time();
  std::int64_t now = 0;
  while (done.load() < kThreads || s.stats().live > 0) {
    if (std::chrono::steady_clock::now() > end && !stop.load()) {
      s.close();
      stop.store(true);
    }
    step(s, TimeNs{now += 1000});
    Event events[3];
    const std::size_t room = static_cast<std::size_t>(rng.between(0, 3));
    const std::size_t n = s.poll(std::span(events).first(room));
    for (std::size_t i = 0; i < n; ++i) {
      if (is_terminal(events[i].kind)) {
        ended.insert(events[i].user_data);
      }
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < 100; ++i) {
    Event events[3];
    const std::size_t n = s.poll(events);
    for (std::size_t e = 0; e < n; ++e) {
      if (is_terminal(events[e].kind)) {
        ended.insert(events[e].user_data);
      }
    }
  }
  std::multiset<std::uint64_t> accepted;
  std::uint64_t calls = 0;
  std::uint64_t odd = 0;
  for (const Tally& tally : tallies) {
    accepted.insert(tally.accepted.begin(), tally.accepted.end());
    calls += tally.calls;
    odd += tally.odd;
  }
  CHECK(odd == 0);
  CHECK(ended == accepted);
  const SchedulerStats stats = s.stats();
  CHECK(stats.submitted == calls);
  CHECK(stats.submitted == stats.rejected + stats.finished + stats.cancelled);
  CHECK(stats.live == 0);
  CHECK(stats.queued_tokens == 0);
  CHECK(s.pool_stats().referenced_blocks == 0);
  CHECK(s.check());
  CHECK_FALSE(accepted.empty());
}

}  // namespace

TEST_CASE("Six threads over a table of one slot") { attack(1, 2, 1); }
TEST_CASE("Six threads over a table of two slots and one id") { attack(2, 1, 2); }
TEST_CASE("Six threads over a table of four slots and three ids") { attack(4, 3, 3); }
TEST_CASE("Six threads over a table of four slots and many ids") { attack(4, 40, 4); }

TEST_CASE("Closed means that nothing accepted is left behind") {
  for (int round = 0; round < 20; ++round) {
    SmallScheduler s = make_small({.config = {.max_live_requests = 8}});
    std::uint64_t accepted = 0;
    SmallRequest r(1, 15000, 1);
    const Request request = r.view();
    std::thread thread([&] { accepted += s.submit(request).is_ok() ? 1U : 0U; });
    while (s.stats().submitted == 0) {
    }
    s.close();
    for (;;) {  // a host's loop: it stops for good when the scheduler says closed
      const StepPlan* plan = s.plan(TimeNs{});
      if (plan != nullptr) {
        REQUIRE(settle(s, *plan, TimeNs{}));
      } else if (s.status().state == PlanState::Closed) {
        break;
      }
    }
    const std::uint64_t finished = s.stats().finished;
    thread.join();
    CHECK(finished == accepted);
  }
}
