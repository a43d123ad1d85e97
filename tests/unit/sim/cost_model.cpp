// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

using dynbatch::CostResult;
using dynbatch::FormulaCost;
using dynbatch::parse_cost;
using dynbatch::StepPlan;
using dynbatch::StepWork;

TEST_CASE("a linear set gives its formula in exact nanoseconds", "[sim][cost]") {
  const FormulaCost& model = dynbatch::kLlama70bFp8H100Tp4Vllm.model;
  // a + b x 256 + c x 300,000 + d x 1,792 ms
  CHECK(model.step_time(StepWork{1'792, 256, 300'000, 0}, 0).ns ==
        11'020'000 + 54'700 * 256 + 27'910 * 300 + 44'600 * 1'792);
  CHECK(model.step_time(StepWork{}, 0).ns == 11'020'000);
  FormulaCost slow_host = model;
  slow_host.host_overhead = dynbatch::microseconds(2'500);
  CHECK(slow_host.step_time(StepWork{}, 0).ns == 13'520'000);
  CHECK(FormulaCost{}.step_time(StepWork{}, 0).ns == 1);
}

TEST_CASE("a padded plan is charged its padded work", "[sim][cost]") {
  StepPlan plan;
  plan.work = {0, 3, 300, 0};
  plan.num_decode_chunks = 3;
  const FormulaCost& model = dynbatch::kLlama70bFp8H100Tp4Vllm.model;
  CHECK(model.step_time(plan) == model.step_time(StepWork{0, 3, 300, 0}, 0));
  plan.padded = {0, 32, 1'000};
  CHECK(model.step_time(plan) == model.step_time(StepWork{0, 32, 32'000, 0}, 0));
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
  CHECK(error(R"({"form": "x"})").find("'form' is not understood from 'x' on") !=
        std::string::npos);
  for (const char* form :
       {"prefill_ms=1", "prefill_ms=1;decode_ms=", "prefill_ms=1*X;decode_ms=1",
        "prefill_ms=1-2*T;decode_ms=1", "prefill_ms=max(1,2;decode_ms=1",
        "prefill_ms=1;decode_ms=-1", "prefill_ms=1;decode_ms=1 (B<5) else 2 more",
        "prefill_ms=1e400;decode_ms=1", "prefill_ms=nan;decode_ms=1", "prefill_ms=1;decode_ms=1*T",
        "step_us=32*(max(329.3,195.4+1.0782*T))"}) {
    INFO(form);
    CHECK(error((std::string(R"({"form": ")") + form + "\"}").c_str()).find("'form'") !=
          std::string::npos);
  }
  CHECK(error("{\"sets\": 3}").find("must be an array") != std::string::npos);
  CHECK(error("{\"sets\": [{}, {}]}").find("holds 2 sets") != std::string::npos);
  CHECK(error("{\"sets\": [{}, {}]}", "x") == "f.json: holds no set 'x'");
  CHECK(error("{\"sets\": [3]}") == "f.json: a cost set must be a JSON object");
  const CostResult unknown = dynbatch::find_cost("no-such-set");
  CHECK(unknown.error.find("neither a readable file nor a built-in cost set") != std::string::npos);
  CHECK(unknown.error.find(dynbatch::kCostSets[0].name) != std::string::npos);
}

TEST_CASE("phases cost what their formula says, and a mixed step pays both", "[sim][cost]") {
  const FormulaCost& splitwise = dynbatch::kLlama2H100Tp8.model;
  // A prompt of 100 tokens costs the floor, of 2,000 -22.3 + 176.8 + 1.75e-6 x 2000^2.
  const StepWork small = dynbatch::with_prefill({}, 0, 100);
  const StepWork large = dynbatch::with_prefill({}, 0, 2000);
  const StepWork decodes{0, 64, 80'000, 0};
  CHECK(splitwise.step_time(small, 1).ns == 54'100'000);
  CHECK(splitwise.step_time(large, 1).ns == 161'500'000);
  CHECK(splitwise.step_time(decodes, 0).ns == 29'600'000 + 64 * 182'000 + 80'000 * 223);
  CHECK(splitwise.step_time(with_prefill(decodes, 0, 2000), 1).ns ==
        splitwise.step_time(large, 1).ns + splitwise.step_time(decodes, 0).ns);
  // The same prompt in two chunks: as much attention, but the offset is paid twice.
  const StepWork rest = dynbatch::with_prefill({}, 800, 1200);
  const StepWork start = dynbatch::with_prefill({}, 0, 800);
  CHECK(splitwise.step_time(start, 1).ns + splitwise.step_time(rest, 1).ns ==
        161'500'000 - 22'300'000 + (54'100'000 - (70'720'000 + 1'120'000 - 22'300'000)));

  const FormulaCost& opt = dynbatch::kOpt13bA100Tp1.model;
  CHECK(opt.step_time(StepWork{0, 94, 10'000, 0}, 0).ns == 19'930'000 + 94 * 38'500 + 6'270'000);
  CHECK(opt.step_time(StepWork{0, 95, 10'000, 0}, 0).ns == 7'170'000 + 95 * 158'300 + 5'800'000);
  CHECK(opt.step_time(StepWork{}, 0).ns == 1);
}

TEST_CASE("the set of a measured vLLM run is its published formula", "[sim][cost]") {
  dynbatch::SplitMix64 random(1);
  for (int trial = 0; trial < 1000; ++trial) {
    StepWork work;
    work.decode_rows = random.between(0, 128);
    work.kv_tokens = work.decode_rows * random.between(1, 2000);
    double attention = 0.0;
    const std::int64_t chunks = random.between(work.decode_rows > 0 ? 0 : 1, 4);
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t prefix = random.between(0, 3000);
      const std::int64_t tokens = 2 * random.between(1, 512);
      work = dynbatch::with_prefill(work, prefix, tokens);
      attention += 10.8 + 8.07e-5 * static_cast<double>(tokens) *
                              (static_cast<double>(prefix) + static_cast<double>(tokens) / 2.0);
    }
    const auto rows = static_cast<double>(work.decode_rows);
    const double dense =
        std::max(329.3, 195.4 + 1.0782 * (static_cast<double>(work.prefill_tokens) + rows));
    const double decode =
        work.decode_rows > 0 ? 11.57 + 0.112 * rows + 2.855e-3 * static_cast<double>(work.kv_tokens)
                             : 0.0;
    const double us = 32.0 * (dense + decode + attention) + 1314.0 +
                      2.0 * (rows + static_cast<double>(chunks)) + 2500.0;
    const auto ns = dynbatch::kLlama8bRtxPro6000Vllm.model.step_time(work, chunks).ns;
    REQUIRE(static_cast<double>(ns) == Approx(us * 1000.0).margin(5.0));
  }
}

TEST_CASE("costs saturate and are never below a nanosecond", "[sim][cost]") {
  constexpr std::int64_t kMost = INT64_MAX;
  for (const auto& set : dynbatch::kCostSets) {
    INFO(set.name);
    CHECK(set.model.step_time(StepWork{kMost, kMost, kMost, kMost}, kMost).ns > 0);
    CHECK(set.model.step_time(StepWork{}, 0).ns >= 1);
  }
  FormulaCost negative = dynbatch::kLlama2A100Tp4.model;
  negative.phases.floor_ns = 0;
  CHECK(negative.step_time(StepWork{1, 0, 0, 0}, 1).ns >= 1);
}

TEST_CASE("a formula in a file is the set that it writes down", "[sim][cost]") {
  const CostResult one = parse_cost(
      R"({"name": "two", "form": "prefill_ms = max(54.1, -22.3+0.0884*T+1.75e-6*sumL2); )"
      R"(decode_ms=7+0.1*B + 2e-4*KV (B<95) else 3+0.2*B", "host_overhead_ms": 1.5,)"
      R"("mape": [6.2, 1.7]})",
      "", "f.json");
  INFO(one.error);
  REQUIRE(one);
  CHECK(one.cost.mape_percent == 6.2);
  CHECK(one.cost.decode_mape_percent == 1.7);
  CHECK(one.cost.model.host_overhead.ns == 1'500'000);
  CHECK(one.cost.model.phases.pair_fs == 3'500'000);
  CHECK(one.cost.model.phases.many_rows == 95);
  CHECK(one.cost.model.phases.decode_many ==
        dynbatch::PhaseCost::Decode{3'000'000, 200'000'000, 0});
  CHECK(
      to_text(one.cost.model) ==
      "1.5 + max(54.1, -22.3 + 0.0884 T + 3.5e-06 pairs) if T + (7 + 0.1 B + 0.0002 KV) if B < 95, "
      "else (3 + 0.2 B)");
  CHECK(to_text(dynbatch::kLlama70bFp8H100Tp4Vllm.model) ==
        "11.02 + 0.0547 B + 2.791e-05 KV + 0.0446 T");
}

TEST_CASE("built-in sets equal the sets of the calibration data", "[sim][cost]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  const std::string path = std::string(folder) + "/traces/step_time_sets.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  REQUIRE(!text.empty());
  int num_compared = 0;
  for (const auto& set : dynbatch::kCostSets) {
    const CostResult r = parse_cost(text, set.name, path);
    INFO(set.name << " " << r.error);
    if (std::string(set.name) == dynbatch::kLlama8bRtxPro6000Vllm.name) {
      // A form of its own: the test above.
      CHECK(r.error.find("the set of this name is built in") != std::string::npos);
      continue;
    }
    REQUIRE(r);
    CHECK(r.cost.model == set.model);
    CHECK(r.cost.mape_percent == set.mape_percent);
    CHECK(r.cost.decode_mape_percent == set.decode_mape_percent);
    const CostResult by_name = dynbatch::find_cost(path + "#" + set.name);
    CHECK(by_name);
    ++num_compared;
  }
  CHECK(num_compared == 12);
}
