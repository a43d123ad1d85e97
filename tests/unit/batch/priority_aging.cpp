// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/priority_aging.hpp>

#include "victims.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace dynbatch;
using dynbatch::test::victim_among;

namespace {

AdmissionRequest request_of(std::int32_t priority, std::int64_t arrival_ns) {
  AdmissionRequest request;
  request.priority = priority;
  request.arrival = {arrival_ns};
  return request;
}

}  // namespace

TEST_CASE("a unit of priority is worth the time it says", "[batch]") {
  PriorityAging admission(PriorityAging::Config{.aging = {100}});
  CHECK(admission.key(request_of(0, 299)) < admission.key(request_of(3, 0)));
  CHECK(admission.key(request_of(3, 0)) < admission.key(request_of(0, 301)));
  CHECK(admission.key(request_of(-1, 100)) < admission.key(request_of(0, 1)));
  CHECK(admission.key(request_of(0, 5)) < admission.key(request_of(0, 6)));
}

TEST_CASE("without ageing priorities are strict", "[batch]") {
  PriorityAging admission(PriorityAging::Config{.aging = kUnbounded});
  CHECK(admission.key(request_of(0, std::numeric_limits<std::int64_t>::max())) <
        admission.key(request_of(1, 0)));
  CHECK(admission.key(request_of(1, 0)) < admission.key(request_of(1, 1)));
}

TEST_CASE("keys at the ends of their range stay in order", "[batch]") {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  PriorityAging admission(PriorityAging::Config{.aging = {kUnbounded.ns - 1}});
  CHECK(admission.key(request_of(kLeast, -1'000)) < admission.key(request_of(0, 0)));
  CHECK(admission.key(request_of(0, 0)) < admission.key(request_of(kMost, 1'000)));
  CHECK(admission.key(request_of(kLeast, std::numeric_limits<std::int64_t>::min())) <=
        admission.key(request_of(kLeast, 0)));
}

TEST_CASE("the victim has the largest priority, then the latest arrival", "[batch]") {
  const PriorityAging admission;
  CHECK(victim_among(admission, {request_of(1, 5), request_of(9, 1), request_of(9, 2),
                                 request_of(9, 2), request_of(0, 7)}) == 2);
  // However much has aged: ageing decides who starts, not who gives way.
  CHECK(victim_among(admission, {request_of(0, seconds(100).ns), request_of(5, 0)}) == 1);
}

TEST_CASE("who gave way often is spared while others are there", "[batch]") {
  const PriorityAging admission(PriorityAging::Config{.rules = {.max_preemptions = 2}});
  AdmissionRequest worst = request_of(9, 0);
  worst.num_preemptions = 2;
  CHECK(victim_among(admission, {request_of(0, 0), worst, request_of(3, 0)}) == 2);
  CHECK(victim_among(admission, {worst, worst}) == 0);
}

TEST_CASE("only a strictly better priority displaces, and not without end", "[batch]") {
  const PriorityAging off;
  const PriorityAging on(PriorityAging::Config{.displace = true, .max_displacements = 2});
  AdmissionRequest running = request_of(5, 0);
  CHECK_FALSE(off.displaces(request_of(0, 9), running));
  CHECK(on.displaces(request_of(4, 9), running));
  CHECK_FALSE(on.displaces(request_of(5, 0), running));
  CHECK_FALSE(on.displaces(request_of(6, 0), running));
  running.num_displacements = 2;
  CHECK_FALSE(on.displaces(request_of(0, 9), running));
}

TEST_CASE("priority ageing refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const PriorityAging::Config& config) {
    CHECK_THROWS_AS(PriorityAging(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.aging = {0}}) == "aging");
  CHECK(field_of({.max_displacements = 0}) == "max_displacements");
  CHECK(field_of({.rules = {.max_bypass = -1}}) == "max_bypass");
}
