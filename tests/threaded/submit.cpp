// SPDX-License-Identifier: Apache-2.0
/// \file
/// Many threads submit, cancel, close and ask for statistics while one drives. Runs under
/// ThreadSanitizer.
#include <dynbatch/base/random.hpp>

#include "small_host.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

struct Tally {
  std::uint64_t accepted = 0;
  std::uint64_t duplicate = 0;
  std::uint64_t full = 0;
  std::uint64_t other = 0;
  std::vector<std::uint64_t> tags;
};

}  // namespace

TEST_CASE("Submissions and cancellations from four threads are each answered and ended once") {
  SmallOptions o;
  o.caching = true;
  o.budget = 512;
  o.rows = 32;
  o.config.max_live_requests = 48;  // small: slots are recycled all the time
  o.config.max_queued_tokens = 40000;
  SmallScheduler s = make_small(o);
  constexpr int kThreads = 4;
  constexpr int kEach = 3000;
  std::atomic<int> done{0};
  std::vector<Tally> tallies(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      SplitMix64 rng(static_cast<std::uint64_t>(t) + 1);
      Tally& tally = tallies[static_cast<std::size_t>(t)];
      std::uint64_t sum = 0;
      for (int i = 0; i < kEach; ++i) {
        // Ids from a small range: threads collide on purpose.
        const auto id = static_cast<std::uint64_t>(rng.between(1, 60));
        SmallRequest r(id, rng.between(1, 60), rng.between(0, 6));
        r.request.user_data = static_cast<std::uint64_t>(t) << 32U | static_cast<std::uint64_t>(i);
        const Status status = s.submit(r.view());
        if (status.is_ok()) {
          ++tally.accepted;
          tally.tags.push_back(r.request.user_data);
        } else if (status.code == Errc::Duplicate) {
          ++tally.duplicate;
        } else if (status.code == Errc::QueueFull) {
          ++tally.full;
          std::this_thread::yield();
        } else {
          ++tally.other;
        }
        if (rng.one_in(3)) {
          const Status c = s.cancel(RequestId{static_cast<std::uint64_t>(rng.between(1, 60))});
          tally.other += c.is_ok() || c.code == Errc::NotFound ? 0U : 1U;
        }
        sum += s.stats().live;
      }
      tally.other += sum == ~std::uint64_t{0} ? 1U : 0U;
      done.fetch_add(1);
    });
  }
  std::multiset<std::uint64_t> ended;
  std::vector<std::string> errors;
  auto poll = [&] {
    Event events[16];
    std::size_t n = 0;
    do {
      n = s.poll(events);
      for (std::size_t i = 0; i < n; ++i) {
        if (is_terminal(events[i].kind)) {
          ended.insert(events[i].user_data);
        }
      }
    } while (n == std::size(events));
  };
  std::int64_t now = 0;
  while (done.load() < kThreads || s.stats().live > 0) {
    step(s, TimeNs{now += 1000});
    poll();
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  poll();
  CHECK(s.check());
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::set<std::uint64_t> tags;
  for (const Tally& tally : tallies) {
    accepted += tally.accepted;
    refused += tally.duplicate + tally.full;
    CHECK(tally.other == 0);
    tags.insert(tally.tags.begin(), tally.tags.end());
  }
  const SchedulerStats stats = s.stats();
  CHECK(accepted + refused == kThreads * kEach);
  CHECK(stats.submitted == kThreads * kEach);
  CHECK(stats.rejected == refused);
  CHECK(stats.finished + stats.cancelled == accepted);
  CHECK(stats.cancelled > 0);
  CHECK(stats.queued_tokens == 0);
  CHECK(ended.size() == accepted);
  CHECK(std::set<std::uint64_t>(ended.begin(), ended.end()) == tags);
  // Everything came back: the largest number of requests that ever fitted fits again.
  for (std::uint64_t i = 0; i < 48; ++i) {
    CHECK(submit(s, 1000 + i, 1, 1));
  }
  CHECK(submit(s, 5000, 1, 1).code == Errc::QueueFull);
}

TEST_CASE("Closing while others submit loses nothing") {
  for (int round = 0; round < 20; ++round) {
    SmallScheduler s = make_small();
    std::atomic<std::uint64_t> accepted{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t i = 0; i < 100; ++i) {
          accepted += submit(s, t * 1000 + i, 4, 2).is_ok() ? 1U : 0U;
        }
      });
    }
    for (int i = 0; i < round; ++i) {
      step(s);
    }
    s.close();
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(run_dry(s));
    step(s);
    CHECK(s.stats().finished == accepted.load());
    CHECK(s.status().state == PlanState::Closed);
  }
}
