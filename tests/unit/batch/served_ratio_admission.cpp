// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/served_ratio_admission.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

ComposeInput step_of(std::uint64_t step, std::int32_t decoding, std::int64_t waiting) {
  ComposeInput in;
  in.step = step;
  in.num_decoding = decoding;
  in.num_waiting = waiting;
  return in;
}

bool admits(ServedRatioAdmission& admission, const ComposeInput& in) {
  admission.on_step(in);
  const bool admits = admission.compose(in).admit;
  if (admits && in.num_waiting > 0) {
    admission.on_admit({});
  }
  return admits;
}

}  // namespace

TEST_CASE("decodes are interrupted for enough waiting requests, or after 20 steps", "[batch]") {
  ServedRatioAdmission admission;
  CHECK(admits(admission, step_of(1, 0, 10)));  // nothing runs
  for (std::uint64_t step = 2; step <= 20; ++step) {
    INFO(step);
    CHECK_FALSE(admits(admission, step_of(step, 10, 2)));  // 3 would be enough
  }
  CHECK(admits(admission, step_of(21, 10, 2)));
  CHECK_FALSE(admits(admission, step_of(22, 12, 3)));  // enough, but the decodes are next
  CHECK(admits(admission, step_of(23, 12, 3)));
  CHECK_FALSE(admits(admission, step_of(25, 12, 2)));
}

TEST_CASE("a batch that starts from nothing may grow at once", "[batch]") {
  ServedRatioAdmission admission;
  CHECK(admits(admission, step_of(1, 0, 10)));
  CHECK(admits(admission, step_of(2, 10, 3)));
  CHECK_FALSE(admits(admission, step_of(3, 13, 9)));
}

TEST_CASE("at most 1,024 outputs of a request are reserved", "[batch]") {
  const ServedRatioAdmission admission;
  NeedInput in;
  in.known_tokens = 16;
  in.max_total_tokens = 2016;
  in.pool.total_blocks = 1000;
  CHECK(admission.need(in).required_tokens == 1040);
  CHECK(admission.need(in).held_tokens == 1040);
  in.max_total_tokens = 116;
  CHECK(admission.need(in).required_tokens == 116);
}

TEST_CASE("a served ratio's configuration names what it refuses", "[batch]") {
  using Config = ServedRatioAdmission::Config;
  CHECK(std::string(Config{.served_ratio_permille = -1}.validate().field) ==
        "served_ratio_permille");
  CHECK(std::string(Config{.max_waiting_steps = 0}.validate().field) == "max_waiting_steps");
  CHECK(std::string(Config{.max_reserved_outputs = 0}.validate().field) == "max_reserved_outputs");
}
