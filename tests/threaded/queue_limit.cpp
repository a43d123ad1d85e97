// SPDX-License-Identifier: Apache-2.0
/// \file
/// A limit of waiting requests is exact whatever comes at once. Runs under ThreadSanitizer.
#include <dynbatch/scheduler/detail/queue_gate.hpp>

#include "small_host.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

constexpr int kThreads = 8;
constexpr std::int64_t kEach = 1'250;
constexpr std::int64_t kLimit = 137;

struct Tally {
  std::int64_t taken = 0;
  std::int64_t refused = 0;
  std::int64_t other = 0;
  std::int64_t bad_times = 0;
};

SmallOptions limited() {
  SmallOptions o;
  o.rows = 16;
  o.budget = 256;
  o.config.max_waiting_requests = kLimit;
  o.config.watch.max_tenants = 4;
  return o;
}

// `kEach` requests of eight threads at the same instant.
std::vector<Tally> burst(SmallScheduler& s, std::uint64_t first_id, std::atomic<int>& done) {
  std::vector<Tally> tallies(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Tally& tally = tallies[static_cast<std::size_t>(t)];
      ready.fetch_add(1);
      while (ready.load() < kThreads) {
      }
      for (std::int64_t i = 0; i < kEach; ++i) {
        SmallRequest r(first_id + static_cast<std::uint64_t>(t * kEach + i), 8, 3);
        r.request.tenant = static_cast<std::uint64_t>(t);
        const Status status = s.submit(r.view());
        tally.taken += status ? 1 : 0;
        tally.refused += status.code == Errc::QueueFull &&
                                 std::string_view(status.field) == "max_waiting_requests"
                             ? 1
                             : 0;
        tally.other += !status && status.code != Errc::QueueFull ? 1 : 0;
        tally.bad_times +=
            !status && (status.retry_after < milliseconds(10) || status.retry_after > seconds(60))
                ? 1
                : 0;
      }
      done.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return tallies;
}

Tally sum(const std::vector<Tally>& tallies) {
  Tally all;
  for (const Tally& tally : tallies) {
    all.taken += tally.taken;
    all.refused += tally.refused;
    all.other += tally.other;
    all.bad_times += tally.bad_times;
  }
  return all;
}

}  // namespace

TEST_CASE("Of ten thousand requests of eight threads at one instant exactly the limit is taken") {
  SmallScheduler s = make_small(limited());
  std::atomic<int> done{0};
  const Tally first = sum(burst(s, 1, done));
  CHECK(first.taken == kLimit);
  CHECK(first.refused == kThreads * kEach - kLimit);
  CHECK(first.other == 0);
  CHECK(first.bad_times == 0);
  // Sixteen run, which frees as many places.
  step(s, TimeNs{1'000'000});
  CHECK(s.stats().running == 16);
  const Tally second = sum(burst(s, 20'000, done));
  CHECK(second.taken == 16);
  CHECK(run_dry(s, TimeNs{2'000'000}));
  drain(s);
  CHECK(s.stats().finished == kLimit + 16);
}

TEST_CASE("A gate under fire from eight threads lets in exactly its limit and loses no place") {
  SchedulerConfig config;
  config.max_waiting_requests = 40'000;
  detail::QueueGate gate;
  gate.configure(config);
  std::atomic<std::int64_t> taken{0};
  std::atomic<int> ready{0};
  std::atomic<int> done{0};
  const auto fire = [&](std::int64_t count) {
    ready.fetch_add(1);
    while (ready.load() < kThreads) {
    }
    std::int64_t mine = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      mine += gate.enter() ? 1 : 0;
    }
    taken.fetch_add(mine);
    done.fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back(fire, 10'000);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(taken.load() == 40'000);
  CHECK(gate.num_waiting() == 40'000);
  // Now one thread gives places back meanwhile.
  ready.store(0);
  done.store(0);
  threads.clear();
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back(fire, 10'000);
  }
  std::int64_t left = 0;
  while (done.load() < kThreads) {
    if (gate.num_waiting() > 20'000) {
      gate.leave();
      ++left;
    }
    CHECK(gate.num_waiting() <= 40'000);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(gate.num_waiting() == taken.load() - left);
  CHECK(gate.num_waiting() <= 40'000);
}

TEST_CASE("While requests start and leave, the count of those that wait loses nothing") {
  SmallScheduler s = make_small(limited());
  std::atomic<int> done{0};
  std::vector<Tally> tallies;
  std::thread submitters([&] { tallies = burst(s, 1, done); });
  std::int64_t now = 0;
  while (done.load() < kThreads || s.stats().live > 0) {
    step(s, TimeNs{now += 1'000'000});
    CHECK(s.stats().waiting <= kLimit);
    drain(s);
  }
  submitters.join();
  const Tally all = sum(tallies);
  CHECK(all.other == 0);
  CHECK(all.bad_times == 0);
  CHECK(all.taken + all.refused == kThreads * kEach);
  CHECK(s.stats().finished == static_cast<std::uint64_t>(all.taken));
  // What was refused is counted by class and by tenant as well.
  const RequestStats interactive = s.class_stats(RequestClass::Interactive);
  CHECK(interactive.submitted == kThreads * kEach);
  CHECK(interactive.refused == static_cast<std::uint64_t>(all.refused));
  std::uint64_t refused = s.other_tenants_stats().refused;
  std::uint64_t submitted = s.other_tenants_stats().submitted;
  for (std::size_t i = 0; i < s.num_tenants(); ++i) {
    refused += s.tenant_stats(i).requests.refused;
    submitted += s.tenant_stats(i).requests.submitted;
  }
  CHECK(refused == static_cast<std::uint64_t>(all.refused));
  CHECK(submitted == kThreads * kEach);
  // Every place is free again: exactly as many fit as at the start.
  std::int64_t fit = 0;
  for (std::uint64_t id = 0; id < 200; ++id) {
    fit += submit(s, 50'000 + id, 8, 3) ? 1 : 0;
  }
  CHECK(fit == kLimit);
}
