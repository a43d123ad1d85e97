// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/new_token_ratio_admission.hpp>

#include "victims.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;
using dynbatch::test::victim_among;

namespace {

using Running = std::vector<RunningSequence>;

RunningSequence sequence_of(std::int64_t outputs, std::int64_t most) {
  RunningSequence sequence;
  sequence.output_tokens = outputs;
  sequence.max_output_tokens = most;
  return sequence;
}

ComposeInput step_of(std::uint64_t step, const Running& running, std::int32_t prefilling = 0) {
  ComposeInput in;
  in.step = step;
  in.num_prefilling = prefilling;
  in.num_decoding = static_cast<std::int32_t>(running.size()) - prefilling;
  in.block_size = 16;
  in.running =
      RunningList(&running, [](const void* context, void* state, RunningList::Take take) noexcept {
        for (const RunningSequence& sequence : *static_cast<const Running*>(context)) {
          take(state, sequence);
        }
      });
  return in;
}

NeedInput need_of(std::int64_t known, std::int64_t most) {
  NeedInput in;
  in.known_tokens = known;
  in.max_total_tokens = most;
  in.pool.total_blocks = 100'000;
  in.pool.block_size = 16;
  return in;
}

AdmissionRequest request_of(std::int64_t prompt, std::int64_t most, std::int64_t outputs) {
  AdmissionRequest request;
  request.prompt_length = prompt;
  request.max_total_tokens = prompt + most;
  request.output_tokens = outputs;
  return request;
}

}  // namespace

TEST_CASE("a request must fit beside the estimated rest of those that run", "[batch]") {
  NewTokenRatioAdmission admission;
  admission.on_step(step_of(1, {}));
  CHECK(admission.need(need_of(100, 300)).required_tokens == 300);
  CHECK(admission.need(need_of(100, 300)).headroom_blocks == 2);
  CHECK(admission.need(need_of(100, 9000)).required_tokens == 4196);  // 4,096 outputs count
  // 100 tokens to come and 5,000, of which 4,096 count: 4,196 x 0.7 = 2,937 tokens, 183 blocks.
  const Running running{sequence_of(900, 1000), sequence_of(0, 5000)};
  admission.on_step(step_of(2, running));
  CHECK(admission.need(need_of(100, 300)).headroom_blocks == 183 + 2);
  // Who was admitted in this step counts in full: 3,137 tokens.
  admission.on_admit(request_of(100, 200, 0));
  CHECK(admission.need(need_of(100, 300)).headroom_blocks == 196 + 2);
  admission.on_step(step_of(3, running));
  CHECK(admission.need(need_of(100, 300)).headroom_blocks == 183 + 2);
}

TEST_CASE("the ratio decays over 600 steps of decodes, and starts anew when idle", "[batch]") {
  NewTokenRatioAdmission admission;
  const Running running{sequence_of(1, 1000), sequence_of(1, 1000)};
  admission.on_step(step_of(1, running));
  CHECK(admission.ratio_ppb() == 700'000'000);
  admission.on_step(step_of(1, running));  // the plan stayed empty: no step
  CHECK(admission.ratio_ppb() == 700'000'000);
  for (std::uint64_t step = 2; step <= 301; ++step) {
    admission.on_step(step_of(step, running));
  }
  CHECK(admission.ratio_ppb() == 700'000'000 - 300 * std::int64_t{1'003'333});
  // A step with a prompt is none of decodes alone.
  admission.on_step(step_of(302, running, 1));
  const std::int64_t before = admission.ratio_ppb();
  admission.on_step(step_of(303, running));
  CHECK(admission.ratio_ppb() == before);
  admission.on_admit(request_of(10, 10, 0));
  admission.on_step(step_of(304, running));
  CHECK(admission.ratio_ppb() == before);
  for (std::uint64_t step = 305; step <= 900; ++step) {
    admission.on_step(step_of(step, running));
  }
  CHECK(admission.ratio_ppb() == 98'000'000);
  admission.on_step(step_of(901, {}));
  CHECK(admission.ratio_ppb() == 700'000'000);
}

TEST_CASE("a retraction sets the ratio to what the others need", "[batch]") {
  NewTokenRatioAdmission admission;
  admission.on_step(
      step_of(1, {sequence_of(50, 1000), sequence_of(100, 1000), sequence_of(150, 1000)}));
  AdmissionRequest retracted = request_of(10, 1000, 50);
  retracted.was_admitted = true;
  retracted.num_preemptions = 1;
  CHECK(admission.key(retracted) == AdmissionKey{});
  CHECK(admission.ratio_ppb() == std::int64_t{290'000'000'000} / 2001);  // (250 + 20 x 2) / 2,001
  retracted.output_tokens = 100;
  CHECK(admission.key(retracted) == AdmissionKey{});
  CHECK(admission.ratio_ppb() == std::int64_t{170'000'000'000} / 1001);
  // At most 1.
  admission.on_step(step_of(2, {sequence_of(5, 10), sequence_of(9, 10)}));
  retracted = request_of(10, 10, 5);
  retracted.was_admitted = true;
  retracted.num_preemptions = 1;
  CHECK(admission.key(retracted) == AdmissionKey{});
  CHECK(admission.ratio_ppb() == 1'000'000'000);
}

TEST_CASE("the shortest output gives way, of these the longest prompt", "[batch]") {
  const NewTokenRatioAdmission admission;
  CHECK(victim_among(admission, {request_of(10, 99, 5), request_of(10, 99, 3),
                                 request_of(40, 99, 3), request_of(40, 99, 3)}) == 2);
  NewTokenRatioAdmission::Config by_priority;
  by_priority.order.order = OrderedAdmission::Order::Priority;
  std::vector<AdmissionRequest> running{request_of(10, 99, 3), request_of(10, 99, 50)};
  running[1].priority = 4;
  CHECK(victim_among(NewTokenRatioAdmission(by_priority), running) == 1);
}

TEST_CASE("a ratio's configuration names what it refuses", "[batch]") {
  using Config = NewTokenRatioAdmission::Config;
  CHECK(std::string(Config{.init_ratio_ppm = 0}.validate().field) == "init_ratio_ppm");
  CHECK(std::string(Config{.init_ratio_ppm = 1'000'001}.validate().field) == "init_ratio_ppm");
  CHECK(std::string(Config{.min_ratio_ppm = 700'001}.validate().field) == "min_ratio_ppm");
  CHECK(std::string(Config{.decay_steps = 0}.validate().field) == "decay_steps");
  CHECK(std::string(Config{.retract_steps = -1}.validate().field) == "retract_steps");
  CHECK(std::string(Config{.clip_outputs = 0}.validate().field) == "clip_outputs");
}
