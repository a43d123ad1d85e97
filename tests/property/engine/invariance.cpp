// SPDX-License-Identifier: Apache-2.0
/// \file
/// Law 10: what a request says does not depend on the schedule. Random mixes of requests, policies,
/// hosts and mishaps on the tiny engine; every token is compared with the request's own run alone.
///   DYNBATCH_INVARIANCE_MIXES=n   runs n mixes and prints what they reached
///   DYNBATCH_SEED=s               begins with seed s; alone, runs that one only
///   DYNBATCH_LONG=1               runs 100,000 (20,000 without optimisation, or with sanitizers)
#include "engine_run.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

using namespace dynbatch::test;

namespace {

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define DYNBATCH_TEST_IS_SLOW 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
#define DYNBATCH_TEST_IS_SLOW 1
#endif

#if defined(DYNBATCH_TEST_IS_SLOW)
constexpr std::uint64_t kUsual = 2'000;
constexpr std::uint64_t kLong = 20'000;
#else
constexpr std::uint64_t kUsual = 4'000;
constexpr std::uint64_t kLong = 100'000;
#endif

struct Range {
  std::uint64_t first = 1;
  std::uint64_t count = kUsual;
  bool is_asked_for = false;
};

Range range() {
  Range out;
  const char* const mixes = std::getenv("DYNBATCH_INVARIANCE_MIXES");
  const char* const seed = std::getenv("DYNBATCH_SEED");
  if (seed != nullptr) {
    out.first = std::strtoull(seed, nullptr, 10);
  }
  if (mixes != nullptr) {
    out.count = std::strtoull(mixes, nullptr, 10);
  } else if (seed != nullptr) {
    out.count = 1;
  } else if (std::getenv("DYNBATCH_LONG") != nullptr) {
    out.count = kLong;
  }
  out.is_asked_for = mixes != nullptr;
  return out;
}

/// A failing mix made as small as it gets, what is wrong with it, and how to have it again.
std::string explain(const Mix& mix) {
  const Mix smallest =
      shrink(mix, [](const Mix& smaller) { return !run_mix(smaller).errors.empty(); });
  std::string text = to_text(smallest);
  for (const std::string& error : run_mix(smallest).errors) {
    text += "  " + error + "\n";
  }
  return text + "again: DYNBATCH_SEED=" + std::to_string(mix.seed) +
         " test_engine 'Tokens do not depend on the schedule'\n";
}

}  // namespace

TEST_CASE("Tokens do not depend on the schedule") {
  const Range seeds = range();
  MixCoverage reached;
  std::uint64_t num_failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count && num_failed < 3;
       ++seed) {
    const Mix mix = make_mix(seed);
    const MixReport report = run_mix(mix);
    reached += report.coverage;
    if (!report.errors.empty()) {
      ++num_failed;
      INFO("as made: " << to_text(mix));
      FAIL_CHECK(explain(mix));
    }
  }
  for (const CoverageField& field : coverage_fields()) {
    INFO(field.name);
    if (seeds.is_asked_for) {
      std::printf("%12lld %s\n", static_cast<long long>(reached.*field.member), field.name);
    }
    // What was hardly reached is not tested.
    CHECK((seeds.count < 1000 ||
           reached.*field.member > static_cast<std::int64_t>(seeds.count) / field.one_in));
  }
}

TEST_CASE("Mixes are what their seed says") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CHECK(make_mix(seed) == make_mix(seed));
    CHECK(!(make_mix(seed) == make_mix(seed + 1)));
  }
  CHECK(to_text(make_mix(7)) == to_text(make_mix(7)));
}

TEST_CASE("Every ingredient appears and can be taken out") {
  for (const Ingredient& ingredient : ingredients()) {
    INFO(ingredient.name);
    int num_there = 0;
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      const Mix with = make_mix(seed);
      Mix without = with;
      ingredient.take_out(without);
      num_there += without == with ? 0 : 1;
    }
    CHECK(num_there > 5);
  }
}
