// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/token_budget_sizer.hpp>

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;

TEST_CASE("one budget bounds decodes and prompts together", "[batch]") {
  TokenBudgetSizer sizer;
  SizerInput in;
  in.max_tokens = 8192;
  in.max_sequences = 256;
  const BatchLimits limits = sizer.limits(in);
  CHECK(limits.max_tokens == 2048);
  CHECK(limits.max_prefill_tokens == 2048);
  CHECK(limits.max_prefill_sequences == 256);
  CHECK(limits.max_decode_sequences == 256);
}

TEST_CASE("the executor's limits bound the budget", "[batch]") {
  TokenBudgetSizer sizer({.budget = 2048, .max_sequences = 64});
  SizerInput in;
  in.max_tokens = 512;
  in.max_sequences = 256;
  CHECK(sizer.limits(in).max_tokens == 512);
  CHECK(sizer.limits(in).max_decode_sequences == 64);
  CHECK(sizer.ceiling().max_tokens == 2048);
  CHECK(sizer.ceiling().max_decode_sequences == 64);
}

TEST_CASE("a token budget sizer refuses a bad config by the name of the field", "[batch]") {
  CHECK(std::string(TokenBudgetSizer::Config{.budget = 0}.validate().field) == "budget");
  CHECK(std::string(TokenBudgetSizer::Config{.max_sequences = -1}.validate().field) ==
        "max_sequences");
  CHECK_THROWS_AS(TokenBudgetSizer({.budget = -5}), Error);
}
