// SPDX-License-Identifier: Apache-2.0
/// \file
/// Alerts with hysteresis and shares over a window, against naive models.
#include <dynbatch/base/random.hpp>
#include <dynbatch/scheduler/detail/alert_board.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

using namespace dynbatch;
using dynbatch::detail::AlertBoard;
using dynbatch::detail::AlertValues;
using dynbatch::detail::WindowShare;

namespace {

constexpr auto kQueue = static_cast<std::size_t>(AlertKind::QueueLength);

WatchConfig queue_rule(std::int64_t raise_at, std::int64_t clear_at, DurationNs hold = {}) {
  WatchConfig config;
  config.rule(AlertKind::QueueLength) = {raise_at, clear_at, hold};
  return config;
}

std::vector<Alert> drained(AlertBoard& board) {
  std::vector<Alert> out(200);
  out.resize(board.drain(out));
  return out;
}

}  // namespace

TEST_CASE("An alert is raised once above and cleared once below, and rests between",
          "[scheduler][watch]") {
  AlertBoard board;
  board.configure(queue_rule(10, 4));
  std::int64_t now = 0;
  for (const std::int64_t value : {0, 9, 5, 9, 10, 50, 9, 10, 5, 11, 5, 4, 9, 0, 9, 12, 4}) {
    AlertValues values;
    values.of[kQueue] = value;
    board.update(values, TimeNs{++now});
  }
  const std::vector<Alert> alerts = drained(board);
  REQUIRE(alerts.size() == 4);
  CHECK((alerts[0].is_raised && alerts[0].time == TimeNs{5} && alerts[0].value == 10));
  CHECK(alerts[0].bound == 10);
  CHECK((!alerts[1].is_raised && alerts[1].time == TimeNs{12} && alerts[1].value == 4));
  CHECK(alerts[1].bound == 4);
  CHECK((alerts[2].is_raised && alerts[2].time == TimeNs{16}));
  CHECK((!alerts[3].is_raised && alerts[3].time == TimeNs{17}));
  CHECK(!board.is_raised(AlertKind::QueueLength));
}

TEST_CASE("Alerts follow a naive model through random series", "[scheduler][watch]") {
  SplitMix64 rng(11);
  for (int run = 0; run < 200; ++run) {
    WatchConfig config;
    for (AlertRule& rule : config.alerts) {
      if (rng.one_in(4)) {
        continue;
      }
      rule.raise_at = rng.between(1, 50);
      rule.clear_at = rng.between(0, rule.raise_at - 1);
      rule.hold = {rng.one_in(2) ? 0 : rng.between(1, 500)};
    }
    REQUIRE(config.validate());
    AlertBoard board;
    board.configure(config);
    std::vector<std::vector<std::int64_t>> series(kNumAlertKinds);
    std::vector<TimeNs> times;
    std::vector<Alert> alerts;
    std::int64_t now = 0;
    for (int i = 0; i < 300; ++i) {
      now += rng.between(1, 100);
      times.push_back(TimeNs{now});
      AlertValues values;
      for (std::size_t k = 0; k < kNumAlertKinds; ++k) {
        const std::int64_t last = series[k].empty() ? 25 : series[k].back();
        const std::int64_t step = rng.between(-9, 9);
        values.of[k] = std::clamp<std::int64_t>(last + step, 0, 60);
        series[k].push_back(values.of[k]);
      }
      board.update(values, TimeNs{now});
      for (const Alert& alert : drained(board)) {
        alerts.push_back(alert);
      }
    }
    // Naive: at each time, has the condition held at every look for as long as it must?
    std::vector<Alert> expected;
    std::vector<bool> raised(kNumAlertKinds, false);
    std::vector<std::size_t> from(kNumAlertKinds, 0);  // looks before the last change don't count
    for (std::size_t i = 0; i < times.size(); ++i) {
      for (std::size_t k = 0; k < kNumAlertKinds; ++k) {
        const AlertRule& rule = config.alerts[k];
        if (rule.raise_at == 0) {
          continue;
        }
        std::size_t first = i + 1;
        while (first > from[k] && (raised[k] ? series[k][first - 1] <= rule.clear_at
                                             : series[k][first - 1] >= rule.raise_at)) {
          --first;
        }
        if (first <= i && times[i] - times[first] >= rule.hold) {
          raised[k] = !raised[k];
          from[k] = i + 1;
          expected.push_back({static_cast<AlertKind>(k), raised[k], series[k][i],
                              raised[k] ? rule.raise_at : rule.clear_at, times[i]});
        }
      }
    }
    REQUIRE(alerts.size() == expected.size());
    for (std::size_t i = 0; i < alerts.size(); ++i) {
      INFO("run " << run << ", alert " << i);
      CHECK(alerts[i].kind == expected[i].kind);
      CHECK(alerts[i].is_raised == expected[i].is_raised);
      CHECK(alerts[i].value == expected[i].value);
      CHECK(alerts[i].bound == expected[i].bound);
      CHECK(alerts[i].time == expected[i].time);
    }
    for (std::size_t k = 0; k < kNumAlertKinds; ++k) {
      CHECK(board.is_raised(static_cast<AlertKind>(k)) == raised[k]);
    }
    CHECK(board.num_lost() == 0);
  }
}

TEST_CASE("Alerts that nobody fetches are dropped oldest first and counted", "[scheduler][watch]") {
  AlertBoard board;
  board.configure(queue_rule(1, 0));
  for (std::int64_t i = 0; i < 100; ++i) {
    AlertValues values;
    values.of[kQueue] = i % 2 == 0 ? 1 : 0;
    board.update(values, TimeNs{i});
  }
  CHECK(board.num_lost() == 100 - kMaxPendingAlerts);
  Alert some[10];
  REQUIRE(board.drain(some) == 10);
  CHECK(some[0].time == TimeNs{36});
  const std::vector<Alert> rest = drained(board);
  CHECK(rest.size() == kMaxPendingAlerts - 10);
  CHECK(rest.back().time == TimeNs{99});
  CHECK(board.drain(some) == 0);
}

TEST_CASE("A share is that of a naive list over the newest sixteen slices", "[scheduler][watch]") {
  SplitMix64 rng(3);
  for (int run = 0; run < 50; ++run) {
    const std::int64_t slice = rng.between(1, 1000);
    WindowShare share;
    share.configure({16 * slice + rng.between(0, 15)});
    struct Entry {
      std::int64_t slice, part, whole;
    };
    std::deque<Entry> all;
    std::int64_t now = rng.between(-100000, 1000);
    for (int i = 0; i < 500; ++i) {
      now += rng.one_in(20) ? rng.between(0, 20 * slice) : rng.between(0, slice);
      const auto at = static_cast<std::int64_t>(
          std::floor(static_cast<double>(now) / static_cast<double>(slice)));
      if (!rng.one_in(3)) {
        const std::int64_t whole = rng.between(0, 9);
        const std::int64_t part = rng.between(0, whole);
        share.add(TimeNs{now}, part, whole);
        all.push_back({at, part, whole});
      }
      std::int64_t part = 0;
      std::int64_t whole = 0;
      for (const Entry& e : all) {
        if (e.slice > at - 16) {
          part += e.part;
          whole += e.whole;
        }
      }
      CHECK(share.permille(TimeNs{now}, 5) == (whole < 5 ? 0 : part * 1000 / whole));
      CHECK(share.permille(TimeNs{now}, 0) == (whole < 1 ? 0 : part * 1000 / whole));
    }
  }
}

TEST_CASE("Rules that cannot work are refused by name", "[scheduler][watch]") {
  CHECK(queue_rule(10, 4).validate());
  CHECK(queue_rule(1, 0).validate());
  CHECK(queue_rule(0, 7).validate());  // off
  CHECK(std::string_view(queue_rule(10, 10).validate().field) == "watch.alerts.clear_at");
  CHECK(queue_rule(10, 10).validate().value == 10);
  CHECK(std::string_view(queue_rule(10, -1).validate().field) == "watch.alerts.clear_at");
  CHECK(std::string_view(queue_rule(-1, 0).validate().field) == "watch.alerts.raise_at");
  CHECK(std::string_view(queue_rule(2, 1, {-1}).validate().field) == "watch.alerts.hold");
  WatchConfig config;
  CHECK(!config.is_on());
  config.max_tenants = kMaxWatchedTenants + 1;
  CHECK(std::string_view(config.validate().field) == "watch.max_tenants");
  config = {};
  config.window = {15};
  CHECK(std::string_view(config.validate().field) == "watch.window");
  config = {};
  config.min_judged = 0;
  CHECK(std::string_view(config.validate().field) == "watch.min_judged");
}
