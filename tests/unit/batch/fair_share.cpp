// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/fair_share.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

AdmissionRequest request_of(std::uint64_t tenant, std::int64_t prompt = 10,
                            std::int64_t outputs = 0) {
  AdmissionRequest request;
  request.tenant = tenant;
  request.prompt_length = prompt;
  request.max_new_tokens = outputs;
  request.max_total_tokens = prompt + outputs;
  return request;
}

AdmissionRequest enter(FairShare& fair, AdmissionRequest request) {
  request.key = fair.key(request);
  return request;
}

AdmissionRequest start(FairShare& fair, AdmissionRequest request) {
  fair.on_admit(request);
  request.was_admitted = true;
  return request;
}

void end(FairShare& fair, AdmissionRequest request, std::int64_t outputs) {
  request.output_tokens = outputs;
  fair.on_leave(request);
  fair.on_end(request);
}

FairShare::Config two_shares() {
  FairShare::Config config;
  config.shares[0] = {.tenant = 7, .weight = 4};
  config.shares[1] = {
      .tenant = 8, .weight = 1, .max_running_sequences = 2, .max_running_tokens = 100};
  config.num_shares = 2;
  return config;
}

}  // namespace

TEST_CASE("a burst of one tenant is spread, another's first request goes between", "[batch]") {
  FairShare fair;
  const AdmissionRequest first = enter(fair, request_of(1));
  const AdmissionRequest second = enter(fair, request_of(1));
  const AdmissionRequest third = enter(fair, request_of(1));
  const AdmissionRequest other = enter(fair, request_of(2));
  CHECK(first.key < second.key);
  CHECK(second.key < third.key);
  CHECK(other.key == first.key);
  CHECK(other.key < second.key);
}

TEST_CASE("a weight of four advances a quarter as fast", "[batch]") {
  FairShare fair(two_shares());
  std::map<std::uint64_t, std::vector<std::int64_t>> starts;
  for (int i = 0; i < 9; ++i) {
    for (const std::uint64_t tenant : {7U, 8U}) {
      starts[tenant].push_back(enter(fair, request_of(tenant)).key.primary);
    }
  }
  CHECK(starts[7][8] == starts[8][2]);
}

TEST_CASE("who was idle starts at the present", "[batch]") {
  FairShare fair;
  for (int i = 0; i < 20; ++i) {
    end(fair, start(fair, enter(fair, request_of(1))), 0);
  }
  const AdmissionRequest next = enter(fair, request_of(1));
  const AdmissionRequest late = enter(fair, request_of(2));
  CHECK(late.key.primary > 0);
  CHECK(late.key < next.key);
  // By one request at most, the newest that was admitted: nothing was banked.
  CHECK(next.key.primary - late.key.primary == next.key.primary / 20);
}

TEST_CASE("what was not served is given back", "[batch]") {
  FairShare fair;
  const AdmissionRequest served = enter(fair, request_of(1, 10, 100));
  const AdmissionRequest cancelled = enter(fair, request_of(1, 500, 0));
  fair.on_end(cancelled);
  end(fair, start(fair, served), 5);
  CHECK(fair.served_tokens(1) == 15);
  const AdmissionRequest next = enter(fair, request_of(1));
  CHECK(next.key.primary == 15 * 65'536);
}

TEST_CASE("a preempted request keeps its key and is charged once", "[batch]") {
  FairShare fair;
  AdmissionRequest request = start(fair, enter(fair, request_of(1, 10, 10)));
  fair.on_leave(request);
  CHECK(fair.running_sequences(1) == 0);
  ++request.num_preemptions;
  CHECK(fair.key(request) == request.key);
  end(fair, start(fair, request), 10);
  CHECK(fair.served_tokens(1) == 20);
  CHECK(enter(fair, request_of(1)).key.primary == 20 * 65'536);
}

TEST_CASE("a request of several samples is charged for their outputs together", "[batch]") {
  FairShare fair;
  AdmissionRequest request = request_of(1, 10, 20);
  request.num_sequences = 3;
  request = enter(fair, request);
  CHECK(request.key.secondary == 70);
  request = start(fair, request);
  CHECK(fair.running_sequences(1) == 3);
  // Two of them go first, each with its row; the request is over with the last.
  for (int i = 0; i < 3; ++i) {
    AdmissionRequest sample = request;
    sample.num_sequences = 1;
    fair.on_leave(sample);
  }
  CHECK(fair.running_sequences(1) == 0);
  request.output_tokens = 60;
  fair.on_end(request);
  CHECK(fair.served_tokens(1) == 70);
  CHECK(enter(fair, request_of(1)).key.primary == 70 * 65'536);
}

TEST_CASE("limits hold for the tenants that have them", "[batch]") {
  FairShare fair(two_shares());
  CHECK(fair.can_ever_admit(request_of(8, 90, 10)));
  CHECK_FALSE(fair.can_ever_admit(request_of(8, 90, 11)));
  CHECK(fair.can_ever_admit(request_of(7, 90'000, 11)));
  const AdmissionRequest a = start(fair, enter(fair, request_of(8, 40)));
  CHECK(fair.may_admit(request_of(8, 60)));
  CHECK_FALSE(fair.may_admit(request_of(8, 61)));
  const AdmissionRequest b = start(fair, enter(fair, request_of(8, 20)));
  CHECK_FALSE(fair.may_admit(request_of(8, 1)));
  CHECK(fair.may_admit(request_of(7, 1'000)));
  CHECK(fair.may_admit(request_of(9, 1'000)));
  end(fair, a, 0);
  CHECK(fair.may_admit(request_of(8, 80)));
  CHECK_FALSE(fair.may_admit(request_of(8, 81)));
  end(fair, b, 0);
  CHECK(fair.quota_group(request_of(7)) != fair.quota_group(request_of(8)));
}

TEST_CASE("tenants beyond the table share one entry until it is empty", "[batch]") {
  FairShare::Config config = two_shares();
  config.other.max_running_sequences = 1;
  FairShare fair(config);
  std::vector<AdmissionRequest> live;
  for (std::uint64_t tenant = 100; tenant < 100 + FairShare::kMaxTenants - 2; ++tenant) {
    live.push_back(start(fair, enter(fair, request_of(tenant))));
  }
  AdmissionRequest x = start(fair, enter(fair, request_of(1'001)));
  AdmissionRequest y = enter(fair, request_of(1'002));
  CHECK(fair.quota_group(x) == FairShare::kMaxTenants);
  CHECK(fair.quota_group(y) == FairShare::kMaxTenants);
  CHECK(x.key < y.key);                  // one tenant to the order
  CHECK_FALSE(fair.may_admit(y));        // and to the limits
  CHECK(fair.may_admit(request_of(7)));  // whoever is listed has an entry of its own
  CHECK(fair.quota_group(request_of(8)) == 1);
  // An entry that comes free is not given to one that the common entry still knows.
  end(fair, live[5], 0);
  for (std::uint64_t i = 0; i < 50; ++i) {  // time passes it
    end(fair, start(fair, enter(fair, request_of(7, 1'000))), 0);
  }
  const AdmissionRequest again = enter(fair, request_of(1'001));
  CHECK(fair.quota_group(again) == FairShare::kMaxTenants);
  fair.on_end(again);
  end(fair, x, 0);
  end(fair, start(fair, y), 0);
  CHECK(fair.running_sequences(1'001) == 0);
  CHECK(fair.quota_group(enter(fair, request_of(1'001))) == 2 + 5);
  CHECK(fair.quota_group(request_of(105)) == FairShare::kMaxTenants);  // forgotten without a loss
}

TEST_CASE("the tenant furthest ahead of its share gives way", "[batch]") {
  const FairShare fair;
  const VictimList victims(
      nullptr,
      [](const void*, std::int32_t index) noexcept {
        VictimCandidate candidate;
        candidate.request.key = {index == 3 ? 900 : 10 * index, 0};
        return candidate;
      },
      5);
  CHECK(fair.victim(victims) == 3);
}

TEST_CASE("fair share refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](void (*spoil)(FairShare::Config&)) {
    FairShare::Config config = two_shares();
    REQUIRE(config.validate());
    spoil(config);
    CHECK_THROWS_AS(FairShare(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of([](FairShare::Config& c) { c.num_shares = -1; }) == "num_shares");
  CHECK(field_of([](FairShare::Config& c) { c.num_shares = 33; }) == "num_shares");
  CHECK(field_of([](FairShare::Config& c) { c.other.weight = 0; }) == "weight");
  CHECK(field_of([](FairShare::Config& c) { c.shares[1].weight = 65'537; }) == "weight");
  CHECK(field_of([](FairShare::Config& c) { c.shares[1].tenant = 7; }) == "shares");
  CHECK(field_of([](FairShare::Config& c) { c.shares[0].max_running_sequences = -1; }) ==
        "max_running_sequences");
  CHECK(field_of([](FairShare::Config& c) { c.shares[0].max_running_tokens = -1; }) ==
        "max_running_tokens");
  CHECK(field_of([](FairShare::Config& c) { c.expected_outputs = -1; }) == "expected_outputs");
  CHECK(field_of([](FairShare::Config& c) { c.rules.reserve_tokens = 0; }) == "reserve_tokens");
}
