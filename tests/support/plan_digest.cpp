// SPDX-License-Identifier: Apache-2.0
/// \file
/// Prints digests of the schedules of fixed runs: builds by different compilers must print the
/// same.
#include "law_run.hpp"

#include <cstdio>

int main() {
  using namespace dynbatch::test;
  int i = 0;
  for (const LawMix& mix : pairwise_cover()) {
    LawRun run(mix, 11, 250);
    run.run();
    std::printf("%d %016llx %lld\n", i++, static_cast<unsigned long long>(run.digest()),
                static_cast<long long>(run.plans()));
  }
  return 0;
}
