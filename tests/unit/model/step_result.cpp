// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/model/step_result.hpp>

#include <catch2/catch.hpp>
#include <vector>

using namespace dynbatch;

TEST_CASE("a result buffer begins with every chunk ok and no token", "[model]") {
  StepResultBuffer buffer;
  REQUIRE(buffer.allocate(4, 4, 8));
  const std::vector<Chunk> chunks(3);
  StepPlan plan;
  plan.chunks = chunks;
  buffer.reset(plan);
  const StepResult result = buffer.view();
  // The short form: everything ran, one token a sample.
  CHECK(result.outcomes.empty());
  CHECK(result.token_begin.empty());
  CHECK(result.tokens.empty());
  buffer.set_outcome(1, {OutcomeKind::NotRun, FinishReason::None, 0});
  const StepResult full = buffer.view();
  REQUIRE(full.outcomes.size() == 3);
  CHECK(full.outcomes[2].kind == OutcomeKind::Ok);
  REQUIRE(full.token_begin.size() == 1);
}

TEST_CASE("samples are kept in order, several tokens or none each", "[model]") {
  StepResultBuffer buffer;
  REQUIRE(buffer.allocate(4, 4, 8));
  const std::vector<Chunk> chunks(3);
  StepPlan plan;
  plan.chunks = chunks;
  buffer.reset(plan);
  buffer.add_sample(7);
  buffer.add_sample(std::vector<Token>{8, 9});
  buffer.add_sample(std::vector<Token>{});
  buffer.set_outcome(2, {OutcomeKind::NotRun, FinishReason::None, 0});
  buffer.set_measured(milliseconds(5));
  const StepResult result = buffer.view();
  CHECK(std::vector<int>(result.token_begin.begin(), result.token_begin.end()) ==
        std::vector<int>{0, 1, 3, 3});
  CHECK(std::vector<Token>(result.tokens.begin(), result.tokens.end()) ==
        std::vector<Token>{7, 8, 9});
  CHECK(result.outcomes[2].kind == OutcomeKind::NotRun);
  CHECK(result.measured == milliseconds(5));

  buffer.reset(plan);
  CHECK(buffer.view().tokens.empty());
  CHECK(buffer.view().measured == DurationNs{});
}
