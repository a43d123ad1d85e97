// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/shortest_first.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>

using namespace dynbatch;

namespace {

AdmissionRequest request_of(std::int64_t prompt, std::int64_t max_new,
                            std::int64_t arrival_ns = 0) {
  AdmissionRequest request;
  request.prompt_length = prompt;
  request.max_new_tokens = max_new;
  request.arrival = {arrival_ns};
  return request;
}

}  // namespace

TEST_CASE("prompt and expected outputs make the length", "[batch]") {
  ShortestFirst admission(ShortestFirst::Config{.aging_per_token = {10}, .expected_outputs = 100});
  CHECK(admission.key(request_of(50, 20)).primary == 700);
  CHECK(admission.key(request_of(50, 500)).primary == 1'500);
  CHECK(admission.key(request_of(50, kOpenEnded)).primary == 1'500);
  CHECK(admission.key(request_of(30, 20)) < admission.key(request_of(30, 21)));
}

TEST_CASE("waiting makes up for length", "[batch]") {
  ShortestFirst admission(ShortestFirst::Config{.aging_per_token = {10}});
  const AdmissionKey longer = admission.key(request_of(200, 0, 0));
  CHECK(admission.key(request_of(100, 0, 999)) < longer);
  CHECK(longer < admission.key(request_of(100, 0, 1'001)));
  // The same work: the earlier arrival.
  CHECK(longer < admission.key(request_of(200, 0, 1)));
}

TEST_CASE("lengths and times at the ends of their range do not wrap", "[batch]") {
  ShortestFirst admission;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(admission.key(request_of(kMost, kMost, kMost)).primary == kMost);
  CHECK(admission.key(request_of(1, 0, std::numeric_limits<std::int64_t>::min())) <
        admission.key(request_of(1, 0, 0)));
}

TEST_CASE("the longest gives way", "[batch]") {
  const ShortestFirst admission;
  const VictimList victims(
      nullptr,
      [](const void*, std::int32_t index) noexcept {
        VictimCandidate candidate;
        candidate.request = request_of(index == 2 ? 5'000 : 100, 10, index);
        return candidate;
      },
      4);
  CHECK(admission.victim(victims) == 2);
}

TEST_CASE("shortest first refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const ShortestFirst::Config& config) {
    CHECK_THROWS_AS(ShortestFirst(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.aging_per_token = {0}}) == "aging_per_token");
  CHECK(field_of({.aging_per_token = kUnbounded}) == "aging_per_token");
  CHECK(field_of({.expected_outputs = -1}) == "expected_outputs");
  CHECK(field_of({.rules = {.chunk_unit = -1}}) == "chunk_unit");
}
