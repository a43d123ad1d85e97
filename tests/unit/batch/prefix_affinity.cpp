// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/prefix_affinity.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

AdmissionRequest request_of(std::int64_t cached) {
  AdmissionRequest request;
  request.cached_tokens = cached;
  return request;
}

void pass(PrefixAffinity& admission, int times) {
  for (int i = 0; i < times; ++i) {
    admission.on_admit(request_of(0));
  }
}

}  // namespace

TEST_CASE("what the cache holds goes first", "[batch]") {
  PrefixAffinity admission;
  CHECK(admission.wants_cached_tokens());
  CHECK(admission.key(request_of(100)) < admission.key(request_of(99)));
  CHECK(admission.key(request_of(0)) == admission.key(request_of(0)));
}

TEST_CASE("each pass is worth its credit to those who wait", "[batch]") {
  PrefixAffinity admission(PrefixAffinity::Config{.credit_tokens = 100});
  const AdmissionKey cold = admission.key(request_of(0));
  pass(admission, 9);
  CHECK(admission.key(request_of(1'000)) < cold);
  pass(admission, 1);
  CHECK(admission.key(request_of(1'000)) == cold);  // a tie goes to the earlier one
  pass(admission, 1);
  CHECK(cold < admission.key(request_of(1'000)));
}

TEST_CASE("the longest prefix counts up to the cap only", "[batch]") {
  PrefixAffinity admission(
      PrefixAffinity::Config{.credit_tokens = 100, .max_affinity_tokens = 500});
  const AdmissionKey cold = admission.key(request_of(0));
  pass(admission, 6);
  CHECK(cold < admission.key(request_of(1'000'000)));
}

TEST_CASE("a preempted request keeps its key and is no new pass", "[batch]") {
  PrefixAffinity admission(PrefixAffinity::Config{.credit_tokens = 100});
  AdmissionRequest request = request_of(300);
  request.key = admission.key(request);
  pass(admission, 5);
  request.was_admitted = true;
  CHECK(admission.key(request) == AdmissionKey{-300, 0});
  const AdmissionKey before = admission.key(request_of(0));
  admission.on_admit(request);
  CHECK(admission.key(request_of(0)) == before);
}

TEST_CASE("the one with the least affinity gives way", "[batch]") {
  const PrefixAffinity admission;
  const VictimList victims(
      nullptr,
      [](const void*, std::int32_t index) noexcept {
        VictimCandidate candidate;
        candidate.request.key = {index == 1 ? 50 : -index, 0};
        return candidate;
      },
      4);
  CHECK(admission.victim(victims) == 1);
}

TEST_CASE("prefix affinity refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const PrefixAffinity::Config& config) {
    CHECK_THROWS_AS(PrefixAffinity(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.credit_tokens = 0}) == "credit_tokens");
  CHECK(field_of({.max_affinity_tokens = -1}) == "max_affinity_tokens");
  CHECK(field_of({.rules = {.max_preemptions = 0}}) == "max_preemptions");
}
