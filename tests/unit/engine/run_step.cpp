// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tiny engine behind a scheduler with the default policies, as docs/engine.md shows it.
#include <dynbatch/scheduler/run_step.hpp>

#include "alone.hpp"
#include "engine.hpp"
#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

TimeNs tick() {
  static TimeNs now{0};
  return now = now + milliseconds(1);
}

}  // namespace

TEST_CASE("Requests served together say what each says alone") {
  tiny::ModelConfig model_config;
  model_config.max_positions = 256;
  const tiny::Model model(model_config);
  tiny::EngineConfig config;
  config.num_blocks = 28;
  config.block_size = 4;
  config.max_rows = 8;
  config.max_tokens = 32;
  config.max_context = 256;
  tiny::Engine engine(model, config);
  auto made = SmallScheduler::make(
      {.max_context_tokens = config.max_context}, engine.capabilities(),
      TokenBudgetSizer({.budget = 24}), NoSplit{}, NullBalancer{},
      BlockPool<>({.num_blocks = config.num_blocks, .block_size = config.block_size}),
      FcfsAdmission({.reserve = FcfsAdmission::Reserve::FirstChunk}));
  REQUIRE(made.has_value());
  SmallScheduler scheduler = std::move(made).value();
  StepResultBuffer result;
  REQUIRE(scheduler.make_result(result));
  std::map<std::uint64_t, std::vector<Token>> prompts;
  for (std::uint64_t id = 1; id <= 12; ++id) {
    std::vector<Token>& prompt = prompts[id];
    for (std::uint64_t i = 0; i < 10 + 3 * id; ++i) {
      prompt.push_back(static_cast<Token>((i < 10 ? i * 7 : i * id) % 128));  // they begin alike
    }
    Request request;
    request.id = {id};
    request.prompt.tokens = prompt;
    request.max_new_tokens = 8;
    request.user_data = tiny::Sampling{static_cast<std::uint32_t>(id), 80, 0}.user_data();
    REQUIRE(scheduler.submit(request));
  }
  std::map<std::uint64_t, std::vector<Token>> outputs;
  while (run_step(scheduler, engine, result, tick).outcome == StepOutcome::Committed) {
    for (const SmallEvent& event : drain(scheduler)) {
      std::vector<Token>& out = outputs[event.id];
      out.insert(out.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  CHECK(scheduler.stats().finished == 12);
  CHECK(scheduler.stats().prefix_hit_tokens > 0);
  CHECK(scheduler.stats().preemptions > 0);
  for (const auto& [id, prompt] : prompts) {
    tiny::Alone alone(model, prompt, {static_cast<std::uint32_t>(id), 80, 0}, 0);
    REQUIRE(outputs[id].size() == 8);
    for (std::size_t i = 0; i < 8; ++i) {
      CHECK(outputs[id][i] == alone.output(i));
    }
  }
}
