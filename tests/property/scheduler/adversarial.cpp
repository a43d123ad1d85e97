// SPDX-License-Identifier: Apache-2.0
/// \file
/// A hostile host and hostile policies: extreme sizes, nonsense answers, every operation between
/// every two others. Nothing of it may abort, hang or break a law.
#include "hostile_run.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

std::uint64_t rounds(std::uint64_t usual) {
  return std::getenv("DYNBATCH_LONG") != nullptr ? 50 * usual : usual;
}

std::uint64_t first_seed() {
  const char* text = std::getenv("DYNBATCH_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

void run_all(const HostileKind& kind, std::uint64_t count) {
  std::int64_t plans = 0;
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    HostileRun run(kind, seed, 350);
    INFO("seed " << seed << ", " << run.name());
    run.run();
    for (const std::string& error : run.errors()) {
      UNSCOPED_INFO(error);
    }
    REQUIRE(run.errors().empty());
    plans += run.plans();
  }
  CHECK(plans > static_cast<std::int64_t>(count) * 10);
}

}  // namespace

TEST_CASE("Extreme sizes and every order of operations keep the laws") { run_all({}, rounds(300)); }

TEST_CASE("A failing and abandoning host costs its own requests only") {
  run_all({.faults = true}, rounds(400));
}

TEST_CASE("Policies that answer nonsense cannot break the books") {
  run_all({.nonsense = true}, rounds(300));
}

TEST_CASE("A failing host and nonsense policies together") {
  run_all({.faults = true, .nonsense = true}, rounds(300));
}

TEST_CASE("Ranks in lock-step with failing and hostile neighbours") {
  run_all({.faults = true, .ranks = true}, rounds(200));
  run_all({.nonsense = true, .ranks = true}, rounds(200));
}
