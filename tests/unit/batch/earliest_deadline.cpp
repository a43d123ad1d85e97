// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/earliest_deadline.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>

using namespace dynbatch;

namespace {

AdmissionRequest request_at(std::int64_t arrival_ns) {
  AdmissionRequest request;
  request.arrival = {arrival_ns};
  return request;
}

}  // namespace

TEST_CASE("the earliest of the three deadlines counts", "[batch]") {
  EarliestDeadline admission;
  AdmissionRequest request = request_at(100);
  request.finish_by = {5'000};
  CHECK(admission.key(request).primary == 5'000);
  request.start_by = {3'000};
  CHECK(admission.key(request).primary == 3'000);
  request.slo.ttft = {2'000};
  CHECK(admission.key(request).primary == 2'100);
  request.slo.ttft = {9'000};
  CHECK(admission.key(request).primary == 3'000);
}

TEST_CASE("a request without a deadline is due some time after its arrival", "[batch]") {
  EarliestDeadline admission(EarliestDeadline::Config{.default_due = {700}});
  CHECK(admission.key(request_at(100)).primary == 800);
  AdmissionRequest dated = request_at(200);
  dated.slo.ttft = {599};
  CHECK(admission.key(dated) < admission.key(request_at(100)));
  dated.slo.ttft = {601};
  CHECK(admission.key(request_at(100)) < admission.key(dated));
}

TEST_CASE("times at the ends of their range do not wrap", "[batch]") {
  EarliestDeadline admission;
  AdmissionRequest late = request_at(std::numeric_limits<std::int64_t>::max() - 5);
  CHECK(admission.key(late).primary == std::numeric_limits<std::int64_t>::max());
  late.slo.ttft = {100};
  CHECK(admission.key(late).primary == std::numeric_limits<std::int64_t>::max());
  AdmissionRequest early = request_at(std::numeric_limits<std::int64_t>::min());
  early.slo.ttft = {-100};
  CHECK(admission.key(early).primary == std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("who is due last gives way", "[batch]") {
  const EarliestDeadline admission(EarliestDeadline::Config{.default_due = {1'000}});
  const VictimList victims(
      nullptr,
      [](const void*, std::int32_t index) noexcept {
        VictimCandidate candidate;
        candidate.request = request_at(index * 10);
        candidate.request.finish_by = index == 1 ? TimeNs{5'000} : kNever;
        return candidate;
      },
      3);
  CHECK(admission.victim(victims) == 1);
}

TEST_CASE("earliest deadline refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const EarliestDeadline::Config& config) {
    CHECK_THROWS_AS(EarliestDeadline(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.default_due = {-1}}) == "default_due");
  CHECK(field_of({.rules = {.requeue_blocks = -1}}) == "requeue_blocks");
}
