// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Step-cost models: how long a simulated step takes. Sets fitted on real engines, and a file
/// reader.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// Says how long an engine needs for a plan. A pure function, at least 1 ns: virtual time must
/// pass.
template <class M>
concept StepCostModel = std::copyable<M> && requires(const M& m, const StepPlan& plan) {
  { m.step_time(plan) } noexcept -> std::same_as<DurationNs>;
};

/// fixed + b x decoding rows + c x their context tokens + d x prompt tokens + host overhead, padded
/// work where the plan is padded. Integers: the same on every machine.
struct LinearCost {
  StepCost cost{};
  DurationNs host_overhead{};  ///< Added to every step: what the host does between two steps.

  [[nodiscard]] constexpr DurationNs step_time(const StepWork& work) const noexcept {
    return {max_of<std::int64_t>(saturating_add(cost.predict(work).ns, host_overhead.ns), 1)};
  }
  [[nodiscard]] DurationNs step_time(const StepPlan& plan) const noexcept {
    return step_time(padded_work(plan));
  }
};

static_assert(StepCostModel<LinearCost>);

/// A linear set and where it comes from.
struct CostSet {
  const char* name = "";
  LinearCost model{};
  double mape_percent =
      -1.0;  ///< Mean absolute error of the fit; negative = the source gives none.
  const char* source = "";
};

namespace detail {
/// Nanoseconds a step, picoseconds a row, a context token and a prompt token.
constexpr LinearCost linear_cost(std::int64_t fixed_ns, std::int64_t row_ps, std::int64_t kv_ps,
                                 std::int64_t prompt_ps) noexcept {
  return {StepCost{fixed_ns, prompt_ps, row_ps, kv_ps, 0, 1}, DurationNs{}};
}
}  // namespace detail

/// Source of the sets that were fitted on measured end-to-end times per output token.
inline constexpr const char* kSiliconSource =
    "fitted on AIConfigurator 095f58a5 silicon_sample.csv (Apache-2.0)";

/// Llama-3.1-70B fp8, vLLM, 4 H100; 15 points, concurrency 4 to 64.
inline constexpr CostSet kLlama70bFp8H100Tp4Vllm{
    "llama3.1-70b_fp8_h100_tp4_vllm",
    detail::linear_cost(11'020'000, 54'700'000, 27'910, 44'600'000), 2.2, kSiliconSource};
/// Llama-3.1-70B fp8, vLLM, 8 H100.
inline constexpr CostSet kLlama70bFp8H100Tp8Vllm{
    "llama3.1-70b_fp8_h100_tp8_vllm",
    detail::linear_cost(8'820'000, 63'000'000, 11'500, 29'800'000), 2.5, kSiliconSource};
/// Llama-3.1-8B, TensorRT-LLM, 1 H100; 42 points, concurrency 8 to 128.
inline constexpr CostSet kLlama8bH100Tp1TrtLlm{
    "llama3.1-8b_h100_tp1_trtllm", detail::linear_cost(6'420'000, 0, 49'940, 19'600'000), 1.8,
    kSiliconSource};
/// Llama-3.1-8B, vLLM, 1 H100.
inline constexpr CostSet kLlama8bH100Tp1VllmBlis{
    "llama3.1-8b_h100_tp1_vllm_blis", detail::linear_cost(5'753'000, 6'000'000, 0, 17'250'000),
    -1.0, "inference-sim f90a1e3a testdata/goldendataset.json (Apache-2.0)"};
/// Qwen3-235B-A22B fp8, TensorRT-LLM, 4 H100, experts over all 4; 62 points, concurrency 4 to 128.
inline constexpr CostSet kQwen235bFp8H100Tp4TrtLlm{
    "qwen3-235b-a22b_fp8_h100_tp4ep4_trtllm",
    detail::linear_cost(14'100'000, 144'000'000, 10'970, 37'500'000), 6.5, kSiliconSource};
/// DeepSeek-R1 fp8, SGLang, 8 H200; 30 points, concurrency 4 to 64.
inline constexpr CostSet kDeepSeekR1Fp8H200Tp8Sglang{
    "deepseek-r1_fp8_h200_tp8_sglang", detail::linear_cost(9'110'000, 364'000'000, 0, 38'400'000),
    4.1, kSiliconSource};

/// All built-in sets; the first is the tool's default.
inline constexpr std::array<CostSet, 6> kCostSets{
    kLlama70bFp8H100Tp4Vllm, kLlama70bFp8H100Tp8Vllm,   kLlama8bH100Tp1TrtLlm,
    kLlama8bH100Tp1VllmBlis, kQwen235bFp8H100Tp4TrtLlm, kDeepSeekR1Fp8H200Tp8Sglang};

/// A set that owns its strings: a built-in one or one read from a file.
struct NamedCost {
  std::string name;
  std::string source;
  LinearCost model{};
  double mape_percent = -1.0;  ///< Negative = not given.
};

/// A set, or the sentence that says why there is none.
struct [[nodiscard]] CostResult {
  NamedCost cost;
  std::string error;

  [[nodiscard]] bool is_ok() const noexcept { return error.empty(); }
  explicit operator bool() const noexcept { return is_ok(); }
};

/// Reads a set from JSON text: {"name", "a_ms", "b_ms_per_req", "c_ms_per_kv_token",
/// "d_ms_per_prefill_token" [, "host_overhead_ms", "mape", "source"]}, or {"sets": [...]} of these,
/// of which `set_name` is taken (the only one if empty). `file` stands in errors.
DYNBATCH_API CostResult parse_cost(std::string_view text, std::string_view set_name,
                                   std::string_view file);

/// The built-in set of this name, else the set of the file "PATH" or "PATH#SET".
DYNBATCH_API CostResult find_cost(const std::string& name_or_file);

}  // namespace dynbatch::inline DYNBATCH_ABI
