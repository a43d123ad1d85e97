// SPDX-License-Identifier: Apache-2.0
/// \file
/// Law 7: the flight log of a random run holds all that its plans depend on.
// Two fuzz targets are linked into one test program: each entry point needs a name of its own.
#define LLVMFuzzerTestOneInput flight_log_one_input
#include "../../fuzz/flight_log.cpp"

#include <dynbatch/base/random.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include "law_run.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

/// Records a run, then replays its log with fresh policies of the same mix.
FlightReplay record_and_replay(const LawMix& mix, std::uint64_t seed, int operations, LawLog kind,
                               std::int64_t& plans) {
  LawRun run(mix, seed, operations, kind);
  run.run();
  for (const std::string& error : run.errors()) {
    UNSCOPED_INFO(error);
  }
  REQUIRE(run.errors().empty());
  plans = run.plans();
  FlightLogReader log(run.log());
  LawRun fresh(mix, seed, 0);
  return replay_log(log, fresh.scheduler());
}

}  // namespace

TEST_CASE("A recorded run replays to the same plans over the pairwise cover of policies") {
  const std::uint64_t rounds = std::getenv("DYNBATCH_LONG") != nullptr ? 20 : 2;
  std::int64_t total = 0;
  for (const LawMix& mix : pairwise_cover()) {
    for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
      INFO(mix.name() << ", seed " << seed);
      std::int64_t plans = 0;
      const FlightReplay replay = record_and_replay(mix, seed, 400, LawLog::Full, plans);
      INFO(describe_fault(replay.fault, replay.offset)
           << ", " << replay.what << " at plan " << replay.plan);
      REQUIRE(replay.is_equal());
      CHECK(static_cast<std::int64_t>(replay.num_plans) == plans);
      total += plans;
    }
  }
  CHECK(total > 10000);
}

TEST_CASE("A log without content replays where the pool shares no prefixes, else it says no") {
  std::int64_t total = 0;
  for (const LawMix& mix : pairwise_cover()) {
    INFO(mix.name());
    std::int64_t plans = 0;
    const FlightReplay replay = record_and_replay(mix, 3, 300, LawLog::Hidden, plans);
    INFO(describe_fault(replay.fault, replay.offset)
         << ", " << replay.what << " at plan " << replay.plan);
    if (mix.pool == 0 || mix.pool >= 3) {
      CHECK(replay.fault == FlightFault::NoContent);
      continue;
    }
    REQUIRE(replay.is_equal());
    CHECK(static_cast<std::int64_t>(replay.num_plans) == plans);
    total += plans;
  }
  CHECK(total > 3000);
}

TEST_CASE("The recorder changes no plan") {
  for (const LawMix& mix : pairwise_cover()) {
    INFO(mix.name());
    LawRun off(mix, 9, 200);
    LawRun on(mix, 9, 200, LawLog::Full);
    off.run();
    on.run();
    CHECK(off.digest() == on.digest());
  }
}

TEST_CASE("A changed input shows as a difference at its place") {
  const LawMix mix = pairwise_cover().front();
  LawRun run(mix, 4, 300, LawLog::Full);
  run.run();
  FlightLogReader log(run.log());
  FlightRecord record;
  // The 20th plan's recorded time: another time gives another digest.
  std::size_t at = 0;
  std::uint64_t plan = 0;
  for (int n = 0; n < 20 && log.next(record);) {
    if (record.kind == FlightKind::Plan && record.plan.plan != 0) {
      ++n;
      at = static_cast<std::size_t>(record.offset) + sizeof(FlightPrefix);
      plan = record.plan.plan;
    }
  }
  REQUIRE(plan == 20);
  std::vector<std::byte> bytes = run.log();
  bytes[at + 2] ^= std::byte{0x10};
  FlightLogReader damaged(bytes);
  LawRun fresh(mix, 4, 0);
  const FlightReplay replay = replay_log(damaged, fresh.scheduler());
  CHECK(replay.fault == FlightFault::Difference);
  CHECK(replay.plan == 20);
  CHECK(replay.num_plans == 19);
  CHECK(std::string(replay.what) == "plan");
  CHECK(replay.expected != replay.actual);
}

TEST_CASE("Every record of a random run is of a request, plan or kind that exists") {
  std::map<FlightKind, int> kinds;
  for (const LawMix& mix : pairwise_cover()) {
    LawRun run(mix, 6, 200, LawLog::Full);
    run.run();
    FlightLogReader log(run.log());
    FlightRecord record;
    while (log.next(record)) {
      ++kinds[record.kind];
    }
    CHECK(log.fault() == FlightFault::None);
    CHECK(log.offset() == run.log().size());
  }
  for (const FlightKind kind :
       {FlightKind::Request, FlightKind::Cancel, FlightKind::Plan, FlightKind::Commit,
        FlightKind::Abandon, FlightKind::Cost, FlightKind::Admitted, FlightKind::Preempted,
        FlightKind::Undone, FlightKind::Ended}) {
    INFO(static_cast<int>(kind));
    CHECK(kinds[kind] > 0);
  }
  CHECK(kinds[FlightKind::Gap] == 0);
}

TEST_CASE("Damaged logs never do more harm than a fault") {
  const bool is_long = std::getenv("DYNBATCH_LONG") != nullptr;
  LawMix mix;
  mix.extras = 3;
  mix.faults = 2;
  LawRun run(mix, 8, 120, LawLog::Full);
  run.run();
  const auto read_all = [](const std::vector<std::byte>& bytes) {
    CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                 bytes.size()) == 0);
    FlightLogReader log(bytes);
    FlightRecord record;
    while (log.next(record)) {
    }
    return log.fault();
  };
  SECTION("cut anywhere") {
    const std::size_t step = is_long ? 1 : 37;
    for (std::size_t n = 0; n < run.log().size(); n += step) {
      const std::vector<std::byte> bytes(run.log().begin(),
                                         run.log().begin() + static_cast<std::ptrdiff_t>(n));
      const FlightFault fault = read_all(bytes);
      CHECK((fault == FlightFault::None || fault == FlightFault::Truncated ||
             (fault == FlightFault::NotALog && n < 16) ||
             (fault == FlightFault::UnknownVersion && n < 20)));
    }
  }
  SECTION("bytes changed") {
    SplitMix64 rng(12);
    for (int i = 0; i < (is_long ? 20000 : 500); ++i) {
      std::vector<std::byte> bytes = run.log();
      for (std::int64_t k = rng.between(1, 20); k > 0; --k) {
        bytes[static_cast<std::size_t>(
            rng.between(0, static_cast<std::int64_t>(bytes.size()) - 1))] =
            static_cast<std::byte>(rng.between(0, 255));
      }
      (void)read_all(bytes);
    }
  }
  SECTION("random bytes") {
    SplitMix64 rng(13);
    for (int i = 0; i < 2000; ++i) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(rng.between(0, 600)));
      for (std::byte& b : bytes) {
        b = static_cast<std::byte>(rng.between(0, rng.one_in(2) ? 20 : 255));
      }
      // Half of them behind a good header.
      if (i % 2 == 0) {
        bytes.insert(bytes.begin(), run.log().begin(), run.log().begin() + 400);
      }
      (void)read_all(bytes);
    }
  }
}
