// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/priority_aging.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

TEST_CASE("every model follows the rules that its config holds", "[batch]") {
  AdmissionRules rules;
  rules.reserve = AdmissionRules::Reserve::NoEvict;
  rules.compose = AdmissionRules::Compose::Exclusive;
  rules.max_chunk_tokens = 100;
  rules.max_bypass = 3;
  const NeedInput need{.known_tokens = 10, .max_total_tokens = 90, .pool = {.total_blocks = 50}};
  const auto check = [&](const auto& model) {
    CHECK(model.need(need).held_tokens == 90);
    CHECK_FALSE(model.compose({.num_decoding = 1}).admit);
    CHECK(model.chunk({.remaining_tokens = 500, .budget_tokens = 400}) == 100);
    CHECK(model.max_bypass() == 3);
    CHECK(model.splits_prompts());
  };
  check(FcfsAdmission(rules));
  check(PriorityAging(PriorityAging::Config{.rules = rules}));
  check(FairShare(FairShare::Config{.rules = rules}));
}

TEST_CASE("who was preempted comes back with room left over, twice as much each time", "[batch]") {
  const FcfsAdmission admission(AdmissionRules{.requeue_blocks = 3});
  NeedInput in{.known_tokens = 10, .max_total_tokens = 90, .pool = {.total_blocks = 100}};
  const auto room_after = [&](std::int32_t preemptions) {
    in.num_preemptions = preemptions;
    return admission.need(in).headroom_blocks;
  };
  CHECK(room_after(0) == 0);
  CHECK(room_after(1) == 3);
  CHECK(room_after(2) == 6);
  CHECK(room_after(6) == 96);
  CHECK(room_after(7) == 99);  // it has the pool to itself
  CHECK(room_after(2'000'000'000) == 99);
  CHECK(FcfsAdmission(AdmissionRules{.requeue_blocks = 0}).need(in).headroom_blocks == 0);
  in.num_preemptions = 1;
  CHECK(FcfsAdmission(AdmissionRules{.watermark_permille = 100}).need(in).headroom_blocks == 10);
}

TEST_CASE("rules are checked by the name of the field", "[batch]") {
  CHECK(std::string(AdmissionRules{.requeue_blocks = -1}.validate().field) == "requeue_blocks");
  CHECK(std::string(AdmissionRules{.max_preemptions = 0}.validate().field) == "max_preemptions");
  CHECK(AdmissionRules{}.validate());
}
