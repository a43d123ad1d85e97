// SPDX-License-Identifier: Apache-2.0
/// \file
/// Prints digests of the schedules of fixed runs and of their flight logs, replayed: builds by
/// different compilers must print the same.
#if defined(DYNBATCH_TEST_WITH_LIBRARY)
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>
#endif

#include "law_run.hpp"

#include <cstdio>

int main() {
  using namespace dynbatch::test;
  int i = 0;
  for (const LawMix& mix : pairwise_cover()) {
    LawRun run(mix, 11, 250, LawLog::Full);
    run.run();
    std::printf("%d %016llx %lld\n", i++, static_cast<unsigned long long>(run.digest()),
                static_cast<long long>(run.plans()));
#if defined(DYNBATCH_TEST_WITH_LIBRARY)
    dynbatch::FlightLogReader log(run.log());
    LawRun fresh(mix, 11, 0);
    const dynbatch::FlightReplay replay = dynbatch::replay_log(log, fresh.scheduler());
    std::printf("  log %zu bytes %s %016llx\n", run.log().size(), to_string(replay.fault),
                static_cast<unsigned long long>(replay.digest));
#endif
  }
  return 0;
}
