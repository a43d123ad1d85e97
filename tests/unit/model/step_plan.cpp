// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/model/step_plan.hpp>

#include <catch2/catch.hpp>

using namespace dynbatch;

TEST_CASE("a reference to a future token names its row and is no token", "[model]") {
  for (const int row : {0, 1, 255, 1'000'000}) {
    const Token token = future_token(Row{row});
    CHECK(is_future_token(token));
    CHECK(row_of_future_token(token) == Row{row});
  }
  STATIC_REQUIRE_FALSE(is_future_token(0));
}

TEST_CASE("padded work charges every padded row the padded context", "[model]") {
  StepPlan plan;
  plan.work = {0, 3, 300, 0};
  plan.num_decode_chunks = 3;
  CHECK(padded_work(plan) == plan.work);
  plan.padded.rows = 8;
  plan.padded.context_per_row = 200;
  CHECK(padded_work(plan) == StepWork{0, 8, 1600, 0});
  plan.num_decode_chunks = 0;
  CHECK(padded_work(plan) == plan.work);
}
