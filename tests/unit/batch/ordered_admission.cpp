// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/ordered_admission.hpp>

#include "victims.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;
using dynbatch::test::victim_among;

namespace {

using Order = OrderedAdmission::Order;

OrderedAdmission ordered(Order order) {
  return OrderedAdmission(OrderedAdmission::Config{.order = order});
}

AdmissionRequest request_of(std::int64_t arrival_ms, std::int32_t priority = 0,
                            std::int64_t max_new = 10) {
  AdmissionRequest request;
  request.arrival = TimeNs{} + milliseconds(arrival_ms);
  request.priority = priority;
  request.max_new_tokens = max_new;
  request.prompt_length = 1000;
  return request;
}

}  // namespace

TEST_CASE("every named order is that of its model", "[batch]") {
  OrderedAdmission fcfs = ordered(Order::Fcfs);
  CHECK(fcfs.key(request_of(5, 9)) == fcfs.key(request_of(7, 1)));
  CHECK(victim_among(fcfs, {request_of(1, 9), request_of(2, 0)}) == 0);

  OrderedAdmission priority = ordered(Order::Priority);
  CHECK(priority.key(request_of(5000, 1)) < priority.key(request_of(1, 2)));
  CHECK(priority.key(request_of(1, 1)) < priority.key(request_of(2, 1)));
  CHECK(priority.key(request_of(1, 2)) < priority.key(request_of(60'002, 1)));  // a minute a unit
  CHECK(victim_among(priority, {request_of(1, 1), request_of(2, 3), request_of(3, 3)}) == 2);

  OrderedAdmission prefix = ordered(Order::LongestPrefix);
  AdmissionRequest cached = request_of(9);
  cached.cached_tokens = 500;
  CHECK(prefix.wants_cached_tokens());
  CHECK_FALSE(fcfs.wants_cached_tokens());
  CHECK(prefix.key(cached) < prefix.key(request_of(1)));
  for (int i = 0; i < 2; ++i) {
    prefix.on_admit({});  // two passes are worth 512 tokens
  }
  AdmissionRequest first = request_of(1);
  CHECK(OrderedAdmission(ordered(Order::LongestPrefix)).key(first) < prefix.key(cached));

  OrderedAdmission longest = ordered(Order::LongestOutput);
  CHECK(longest.key(request_of(2, 0, 500)) < longest.key(request_of(1, 0, 10)));
  CHECK(longest.key(request_of(1, 0, 10)) < longest.key(request_of(4902, 0, 500)));  // 10 ms each
  CHECK(longest.key(request_of(1, 0, kOpenEnded)) == longest.key(request_of(1, 0, 4096)));

  OrderedAdmission deadline = ordered(Order::Deadline);
  AdmissionRequest urgent = request_of(9);
  urgent.finish_by = TimeNs{} + milliseconds(20);
  CHECK(deadline.key(urgent) < deadline.key(request_of(1)));
  CHECK(victim_among(deadline, {urgent, request_of(1)}) == 1);
}

TEST_CASE("the batch class gives way first where that is asked for", "[batch]") {
  std::vector<AdmissionRequest> running{request_of(3), request_of(2), request_of(1)};
  running[1].request_class = RequestClass::Batch;
  running[2].request_class = RequestClass::Batch;
  CHECK(victim_among(ordered(Order::Fcfs), running) == 0);
  const OrderedAdmission spares(OrderedAdmission::Config{.batch_gives_way = true});
  CHECK(victim_among(spares, running) == 1);
  running[1].num_preemptions = 8;  // often enough
  CHECK(victim_among(spares, running) == 2);
  running[2].num_preemptions = 8;
  CHECK(victim_among(spares, running) == 0);
}

TEST_CASE("an order's configuration names what it refuses", "[batch]") {
  using Config = OrderedAdmission::Config;
  CHECK(std::string(Config{.order = static_cast<Order>(9)}.validate().field) == "order");
  CHECK(std::string(Config{.aging = {0}}.validate().field) == "aging");
  CHECK(std::string(Config{.aging_per_token = {0}}.validate().field) == "aging_per_token");
  CHECK(std::string(Config{.aging_per_token = kUnbounded}.validate().field) == "aging_per_token");
  CHECK(std::string(Config{.most_outputs = -1}.validate().field) == "most_outputs");
  CHECK(Config{.aging = kUnbounded}.validate());
}
