// SPDX-License-Identifier: Apache-2.0
/// \file
/// The invariance suite has to fail where something is wrong: errors are put into the host and into
/// the pool, and each has to be found among the mixes that the suite runs.
#include "engine_run.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <string>

using namespace dynbatch::test;

namespace {

/// The first seed whose mix shows the error; 0 if none does.
std::uint64_t first_seed(Planted planted) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    if (!run_mix(make_mix(seed), planted).errors.empty()) {
      return seed;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("Every planted error is found among the suite's mixes") {
  for (const PlantedError& error : planted_errors()) {
    INFO(error.what);
    const std::uint64_t seed = first_seed(error.kind);
    REQUIRE(seed > 0);
    // It is the error that is found: without it the mix is in order.
    CHECK(run_mix(make_mix(seed)).errors.empty());
  }
}

TEST_CASE("A failing mix shrinks to one that a person can follow") {
  for (const Planted planted :
       {Planted::MissingCopy, Planted::PendingKept, Planted::ScopeDropped, Planted::WrongDraft}) {
    const std::function<bool(const Mix&)> fails = [planted](const Mix& mix) {
      return !run_mix(mix, planted).errors.empty();
    };
    const Mix mix = make_mix(first_seed(planted));
    const Mix smallest = shrink(mix, fails);
    INFO(to_text(mix) << to_text(smallest));
    CHECK(fails(smallest));
    CHECK(smallest.requests.size() <= 3);
    CHECK(smallest.incidents.size() <= 2);
    CHECK(shrink(mix, fails) == smallest);
    // Nothing of it is superfluous: one request less, and it is in order.
    for (std::size_t i = 0; i < smallest.requests.size(); ++i) {
      Mix smaller = smallest;
      smaller.requests.erase(smaller.requests.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK_FALSE(fails(smaller));
    }
  }
}

TEST_CASE("Shrinking stops when it has run often enough") {
  int runs = 0;
  const Mix mix = make_mix(3);
  const Mix smaller = shrink(mix, [&](const Mix&) { return ++runs > 0; }, 5);
  CHECK(runs == 5);
  CHECK(!(smaller == mix));
}
