// SPDX-License-Identifier: Apache-2.0
// A host drives the scheduler step by step. Its model is a toy that counts on: 1 2 3 -> 4 5 6.
//
// Output:
// request 1: 4 5 end
// request 2: 4 5 6 end
// request 3: 4 5 6 7 end
#include <dynbatch/dynbatch.hpp>

#include <string>
#include <vector>

#include <fmt/core.h>

struct CountingModel {
  static dynbatch::Capabilities capabilities() { return {.max_tokens = 64, .max_sequences = 8}; }
  static void execute(const dynbatch::StepPlan& plan, dynbatch::StepResultBuffer& result) {
    for (const dynbatch::Chunk& chunk : plan.chunks) {
      if (chunk.num_samples > 0) {  // 0 until the whole prompt has run
        result.add_sample(chunk.context_length + 1);
      }
    }
  }
};

static void append(std::string& line, const dynbatch::Event& event) {
  for (const dynbatch::Token token : event.tokens) {
    line += fmt::format(" {}", token);
  }
  line += is_terminal(event.kind) ? " end\n" : "";
}

int main() {
  std::string lines[4];
  auto now = [ns = std::int64_t{0}]() mutable { return dynbatch::TimeNs{ns += 1'000'000}; };
  // [readme]
  CountingModel model;  // yours: capabilities() and execute(plan, result)
  dynbatch::Scheduler scheduler({}, model.capabilities(), dynbatch::DynamicSizer(),
                                dynbatch::NoSplit(), dynbatch::NullBalancer(),
                                dynbatch::BlockPool<>({.num_blocks = 64}),
                                dynbatch::FcfsAdmission());
  dynbatch::StepResultBuffer result;
  bool is_ok = scheduler.make_result(result).is_ok();

  const std::vector<dynbatch::Token> prompt{1, 2, 3};
  for (std::uint64_t id = 1; id <= 3; ++id) {
    dynbatch::Request request{.id = {id}, .prompt = {.tokens = prompt}};
    request.max_new_tokens = static_cast<std::int64_t>(id) + 1;
    is_ok &= scheduler.submit(request).is_ok();  // from any thread; its Status says what is wrong
  }
  while (run_step(scheduler, model, result, now).outcome == dynbatch::StepOutcome::Committed) {
    dynbatch::Event events[16];  // with more requests: poll until fewer than 16 come
    for (const dynbatch::Event& event : std::span(events, scheduler.poll(events))) {
      append(lines[event.request.value], event);
    }
  }
  // [readme]
  fmt::print("request 1:{}request 2:{}request 3:{}", lines[1], lines[2], lines[3]);
  return is_ok ? 0 : 1;
}
