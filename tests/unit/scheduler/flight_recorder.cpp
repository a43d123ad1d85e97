// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/scheduler/flight_recorder.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

std::vector<std::byte> drain_all(FlightRecorder& recorder, std::size_t piece = 4096) {
  std::vector<std::byte> out;
  std::vector<std::byte> buffer(piece);
  for (std::size_t n = 1; n > 0;) {
    n = recorder.drain(buffer);
    out.insert(out.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return out;
}

struct Seen {
  FlightKind kind;
  std::uint64_t first;  // first word of the payload
  std::size_t bytes;
};
std::vector<Seen> records_of(const std::vector<std::byte>& log) {
  std::vector<Seen> out;
  for (std::size_t at = 0; at < log.size();) {
    FlightPrefix prefix;
    std::uint64_t first = 0;
    REQUIRE(at + sizeof(prefix) + sizeof(first) <= log.size());
    std::memcpy(&prefix, log.data() + at, sizeof(prefix));
    std::memcpy(&first, log.data() + at + sizeof(prefix), sizeof(first));
    REQUIRE(prefix.bytes % 8 == 0);
    REQUIRE(at + prefix.bytes <= log.size());
    out.push_back({prefix.kind, first, prefix.bytes});
    at += prefix.bytes;
  }
  return out;
}

FlightClear clear_of(std::uint64_t value) { return FlightClear{value}; }

}  // namespace

TEST_CASE("Records come out whole and in order, in pieces of any size") {
  for (const std::size_t piece : {1U, 7U, 64U, 4096U}) {
    FlightRecorder recorder;
    REQUIRE(recorder.allocate(4096));
    CHECK(recorder.is_on());
    for (std::uint64_t i = 0; i < 5; ++i) {
      recorder.put(FlightKind::ClearCache, clear_of(i));
    }
    const auto seen = records_of(drain_all(recorder, piece));
    REQUIRE(seen.size() == 5);
    for (std::uint64_t i = 0; i < 5; ++i) {
      CHECK(seen[i].first == i);
      CHECK(seen[i].bytes == 16);
    }
    CHECK(recorder.used() == 0);
  }
}

TEST_CASE("A record of odd length is padded with zeros") {
  FlightRecorder recorder;
  REQUIRE(recorder.allocate(4096));
  const std::string text = "0123456789";
  REQUIRE(recorder.begin(FlightKind::Header, text.size()));
  recorder.add(std::span<const char>(text));
  recorder.end();
  const auto log = drain_all(recorder);
  REQUIRE(log.size() == 24);
  CHECK(std::memcmp(log.data() + 8, text.data(), text.size()) == 0);
  for (std::size_t i = 18; i < 24; ++i) {
    CHECK(log[i] == std::byte{0});
  }
}

TEST_CASE("What finds no room is counted, and a gap record stands in its place") {
  FlightRecorder recorder;
  REQUIRE(recorder.allocate(160));  // ten records of 16 bytes
  for (std::uint64_t i = 0; i < 14; ++i) {
    recorder.put(FlightKind::ClearCache, clear_of(i));
  }
  CHECK(recorder.lost() == 4);
  std::vector<std::byte> log(16);
  REQUIRE(recorder.drain(log) == 16);
  recorder.put(FlightKind::ClearCache, clear_of(14));  // no room for it and the gap record
  CHECK(recorder.lost() == 5);
  const auto rest = drain_all(recorder);
  log.insert(log.end(), rest.begin(), rest.end());
  recorder.put(FlightKind::ClearCache, clear_of(15));
  const auto after = drain_all(recorder);
  log.insert(log.end(), after.begin(), after.end());
  const auto seen = records_of(log);
  REQUIRE(seen.size() == 12);
  for (std::uint64_t i = 0; i < 10; ++i) {
    CHECK(seen[i].first == i);
  }
  CHECK(seen[10].kind == FlightKind::Gap);
  CHECK(seen[10].first == 5);
  CHECK(seen[11].first == 15);
}

TEST_CASE("A record that is larger than the ring is lost, not the ring") {
  FlightRecorder recorder;
  REQUIRE(recorder.allocate(4096));
  CHECK_FALSE(recorder.begin(FlightKind::Request, 5000));
  CHECK_FALSE(recorder.begin(FlightKind::Request, std::size_t{1} << 40));
  recorder.put(FlightKind::ClearCache, clear_of(3));
  const auto seen = records_of(drain_all(recorder));
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].kind == FlightKind::Gap);
  CHECK(seen[0].first == 2);
  CHECK(seen[1].first == 3);
}

TEST_CASE("Random writes and drains keep the stream, against a queue as reference") {
  SplitMix64 rng(5);
  FlightRecorder recorder;
  REQUIRE(recorder.allocate(1000));
  std::vector<std::byte> log;
  std::uint64_t written = 0;
  for (int i = 0; i < 20000; ++i) {
    if (rng.one_in(3)) {
      std::vector<std::byte> buffer(static_cast<std::size_t>(rng.between(0, 300)));
      const std::size_t n = recorder.drain(buffer);
      log.insert(log.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(n));
    } else {
      const std::vector<std::uint64_t> payload(static_cast<std::size_t>(rng.between(1, 12)),
                                               written++);
      if (recorder.begin(FlightKind::Request, payload.size() * 8)) {
        recorder.add(std::span<const std::uint64_t>(payload));
        recorder.end();
      }
    }
  }
  const auto rest = drain_all(recorder);
  log.insert(log.end(), rest.begin(), rest.end());
  std::uint64_t expected = 0;
  std::uint64_t missing = 0;
  for (const Seen& record : records_of(log)) {
    if (record.kind == FlightKind::Gap) {
      expected += record.first;
      missing += record.first;
    } else {
      CHECK(record.first == expected);
      ++expected;
    }
  }
  CHECK(expected == written);
  CHECK(missing == recorder.lost());
  CHECK(missing > 100);
}

TEST_CASE("The recorder is off by default and its configuration is checked") {
  SmallScheduler s = make_small();
  std::byte buffer[64];
  REQUIRE(submit(s, 1, 10, 2));
  CHECK(run_dry(s));
  CHECK(s.drain_log(buffer) == 0);
  SchedulerConfig config;
  config.flight_log_bytes = 100;
  CHECK(config.validate().code == Errc::InvalidConfig);
  CHECK(std::string(config.validate().field) == "flight_log_bytes");
  config.flight_log_bytes = -1;
  CHECK_FALSE(config.validate());
  config.flight_log_bytes = kMinFlightLogBytes;
  CHECK(config.validate());
  config.flight_label = nullptr;
  CHECK_FALSE(config.validate());
}

TEST_CASE("A ring that nobody drains loses records and changes no plan") {
  SmallOptions options;
  SmallScheduler plain = make_small(options);
  options.config.flight_log_bytes = kMinFlightLogBytes;
  options.config.flight_log_prompts = true;
  SmallScheduler recorded = make_small(options);
  for (std::uint64_t id = 1; id < 60; ++id) {
    REQUIRE(submit(plain, id, 200, 5));
    REQUIRE(submit(recorded, id, 200, 5));
  }
  while (plain.stats().live > 0) {
    REQUIRE(step(plain) == step(recorded));
  }
  CHECK(recorded.stats().flight_records_lost > 50);
  CHECK(plain.stats().flight_records_lost == 0);
}

TEST_CASE("The header knows every field of the configuration and the capabilities") {
  // A field that is added breaks these lines: one that decides goes into FlightHeader,
  // start_recorder() and FlightLogReader, then in here.
  const auto [live, queued, context, plans, ranks, rank, drafts, retries, caps, spans, bytes,
              prompts, label, waiting, wait, min_retry, max_retry, watch] = SchedulerConfig{};
  const auto [tokens, sequences, handles, kv, groups, in_order, future, positions, copy, share,
              swap, rollback, graphs, layers, experts] = Capabilities{};
  CHECK(live > 0);
  CHECK(tokens > 0);
  const auto [id, prompt, max_new, min_new, samples, stop, priority, tenant, request_class, arrival,
              start_by, finish_by, slo, scope, media, resources, user_data, no_read, sync, atomic,
              beams] = Request{};
  CHECK(samples == 1);
}
