// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/cost_model.hpp>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

using dynbatch::CostResult;
using dynbatch::LinearCost;
using dynbatch::parse_cost;
using dynbatch::StepPlan;
using dynbatch::StepWork;

TEST_CASE("a linear set gives its formula in exact nanoseconds", "[sim][cost]") {
  const LinearCost& model = dynbatch::kLlama70bFp8H100Tp4Vllm.model;
  // a + b x 256 + c x 300,000 + d x 1,792 ms
  CHECK(model.step_time(StepWork{1'792, 256, 300'000, 0}).ns ==
        11'020'000 + 54'700 * 256 + 27'910 * 300 + 44'600 * 1'792);
  CHECK(model.step_time(StepWork{}).ns == 11'020'000);
  LinearCost slow_host = model;
  slow_host.host_overhead = dynbatch::microseconds(2'500);
  CHECK(slow_host.step_time(StepWork{}).ns == 13'520'000);
  CHECK(LinearCost{}.step_time(StepWork{}).ns == 1);
}

TEST_CASE("a padded plan is charged its padded work", "[sim][cost]") {
  StepPlan plan;
  plan.work = {0, 3, 300, 0};
  plan.num_decode_chunks = 3;
  const LinearCost& model = dynbatch::kLlama70bFp8H100Tp4Vllm.model;
  CHECK(model.step_time(plan) == model.step_time(StepWork{0, 3, 300, 0}));
  plan.padded = {0, 32, 1'000};
  CHECK(model.step_time(plan) == model.step_time(StepWork{0, 32, 32'000, 0}));
}

TEST_CASE("built-in sets have distinct names, sources and a known cost", "[sim][cost]") {
  std::set<std::string> names;
  for (const auto& set : dynbatch::kCostSets) {
    INFO(set.name);
    CHECK(names.insert(set.name).second);
    CHECK(std::string(set.source).size() > 10);
    CHECK(set.model.cost.is_known());
    const CostResult found = dynbatch::find_cost(set.name);
    REQUIRE(found);
    CHECK(found.cost.model.cost == set.model.cost);
  }
}

TEST_CASE("a cost file gives a set with integer coefficients", "[sim][cost]") {
  const CostResult r = parse_cost(
      R"({"name": "mine", "a_ms": 11.02, "b_ms_per_req": 0.0547, "c_ms_per_kv_token": 2.791e-05,
          "d_ms_per_prefill_token": 0.0446, "host_overhead_ms": 2.5, "mape": 3, "source": "me"})",
      "", "f.json");
  REQUIRE(r);
  CHECK(r.cost.model.cost == dynbatch::kLlama70bFp8H100Tp4Vllm.model.cost);
  CHECK(r.cost.model.host_overhead.ns == 2'500'000);
  CHECK(r.cost.name == "mine");
  CHECK(r.cost.source == "me");
  CHECK(r.cost.mape_percent == 3.0);
}

TEST_CASE("bad cost files say what is wrong", "[sim][cost]") {
  const auto error = [](const char* text, const char* set = "") {
    return parse_cost(text, set, "f.json").error;
  };
  CHECK(error("{") == "f.json: not JSON");
  CHECK(error("[1]") == "f.json: a cost set must be a JSON object");
  CHECK(error("{\"a_ms\": 1}").find("'b_ms_per_req' must be a number") != std::string::npos);
  CHECK(error("{\"a_ms\": -1}").find("'a_ms'") != std::string::npos);
  CHECK(error("{\"a_ms\": \"x\"}").find("'a_ms'") != std::string::npos);
  CHECK(error("{\"a_ms\": 1e300}").find("'a_ms'") != std::string::npos);
  CHECK(error("{\"form\": \"x\"}").find("formulas") != std::string::npos);
  CHECK(error("{\"sets\": 3}").find("must be an array") != std::string::npos);
  CHECK(error("{\"sets\": [{}, {}]}").find("holds 2 sets") != std::string::npos);
  CHECK(error("{\"sets\": [{}, {}]}", "x") == "f.json: holds no set 'x'");
  CHECK(error("{\"sets\": [3]}") == "f.json: a cost set must be a JSON object");
  const CostResult unknown = dynbatch::find_cost("no-such-set");
  CHECK(unknown.error.find("neither a readable file nor a built-in cost set") != std::string::npos);
  CHECK(unknown.error.find(dynbatch::kCostSets[0].name) != std::string::npos);
}

TEST_CASE("built-in sets equal the linear sets of the calibration data", "[sim][cost]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  const std::string path = std::string(folder) + "/traces/step_time_sets.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  REQUIRE(!text.empty());
  for (const auto& set : dynbatch::kCostSets) {
    const CostResult r = parse_cost(text, set.name, path);
    INFO(set.name << " " << r.error);
    REQUIRE(r);
    CHECK(r.cost.model.cost == set.model.cost);
    CHECK(r.cost.mape_percent == set.mape_percent);
    const CostResult by_name = dynbatch::find_cost(path + "#" + set.name);
    CHECK(by_name);
  }
}
