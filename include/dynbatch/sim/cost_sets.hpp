// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Built-in step-cost sets, fitted on real engines.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/sim/cost_model.hpp>

#include <array>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {
/// Nanoseconds a step, picoseconds a row, a context token and a prompt token.
constexpr FormulaCost linear_cost(std::int64_t fixed_ns, std::int64_t row_ps, std::int64_t kv_ps,
                                  std::int64_t prompt_ps) noexcept {
  FormulaCost model;
  model.cost = {fixed_ns, prompt_ps, row_ps, kv_ps, 0, 1};
  return model;
}
/// Phases alone.
constexpr FormulaCost phase_cost(const PhaseCost& phases) noexcept {
  FormulaCost model;
  model.cost.version = 1;
  model.has_phases = true;
  model.phases = phases;
  return model;
}
}  // namespace detail

/// Source of the sets that were fitted on measured end-to-end times per output token.
inline constexpr const char* kSiliconSource =
    "fitted on AIConfigurator 095f58a5 silicon_sample.csv (Apache-2.0)";
/// Source of the sets of an engine of 2023; a squared prompt length is two query-key pairs.
inline constexpr const char* kSplitwiseSource =
    "fitted on splitwise-sim 8f99e7dc data/perf_model.csv (MIT)";
inline constexpr const char* kDistServeSource =
    "DistServe 82831f16 simdistserve/estimators/profile_data (Apache-2.0)";

/// Llama-3.1-70B fp8, vLLM, 4 H100; 15 points, concurrency 4 to 64.
inline constexpr CostSet kLlama70bFp8H100Tp4Vllm{
    "llama3.1-70b_fp8_h100_tp4_vllm",
    detail::linear_cost(11'020'000, 54'700'000, 27'910, 44'600'000), 2.2, -1.0, kSiliconSource};
/// Llama-3.1-70B fp8, vLLM, 8 H100.
inline constexpr CostSet kLlama70bFp8H100Tp8Vllm{
    "llama3.1-70b_fp8_h100_tp8_vllm",
    detail::linear_cost(8'820'000, 63'000'000, 11'500, 29'800'000), 2.5, -1.0, kSiliconSource};
/// Llama-3.1-8B, TensorRT-LLM, 1 H100; 42 points, concurrency 8 to 128.
inline constexpr CostSet kLlama8bH100Tp1TrtLlm{
    "llama3.1-8b_h100_tp1_trtllm", detail::linear_cost(6'420'000, 0, 49'940, 19'600'000), 1.8, -1.0,
    kSiliconSource};
/// Llama-3.1-8B, vLLM, 1 H100.
inline constexpr CostSet kLlama8bH100Tp1VllmBlis{
    "llama3.1-8b_h100_tp1_vllm_blis", detail::linear_cost(5'753'000, 6'000'000, 0, 17'250'000),
    -1.0, -1.0, "inference-sim f90a1e3a testdata/goldendataset.json (Apache-2.0)"};
/// Qwen3-235B-A22B fp8, TensorRT-LLM, 4 H100, experts over all 4; 62 points, concurrency 4 to 128.
inline constexpr CostSet kQwen235bFp8H100Tp4TrtLlm{
    "qwen3-235b-a22b_fp8_h100_tp4ep4_trtllm",
    detail::linear_cost(14'100'000, 144'000'000, 10'970, 37'500'000), 6.5, -1.0, kSiliconSource};
/// DeepSeek-R1 fp8, SGLang, 8 H200; 30 points, concurrency 4 to 64.
inline constexpr CostSet kDeepSeekR1Fp8H200Tp8Sglang{
    "deepseek-r1_fp8_h200_tp8_sglang", detail::linear_cost(9'110'000, 364'000'000, 0, 38'400'000),
    4.1, -1.0, kSiliconSource};

/// Llama-2-70B, 8 A100.
inline constexpr CostSet kLlama2A100Tp8{
    "llama2-70b_a100_tp8",
    detail::phase_cost({.floor_ns = 66'000'000,
                        .offset_ns = -600'000,
                        .token_ps = 176'300'000,
                        .decode = {43'700'000, 159'000'000, 405'000}}),
    10.7, 1.9, kSplitwiseSource};
/// Llama-2-70B, 4 A100.
inline constexpr CostSet kLlama2A100Tp4{
    "llama2-70b_a100_tp4",
    detail::phase_cost({.floor_ns = 69'600'000,
                        .offset_ns = -22'000'000,
                        .token_ps = 286'800'000,
                        .decode = {43'100'000, 138'000'000, 461'000}}),
    9.4, 2.7, kSplitwiseSource};
/// Llama-2-70B, 8 H100.
inline constexpr CostSet kLlama2H100Tp8{
    "llama2-70b_h100_tp8",
    detail::phase_cost({.floor_ns = 54'100'000,
                        .offset_ns = -22'300'000,
                        .token_ps = 88'400'000,
                        .pair_fs = 3'500'000,
                        .decode = {29'600'000, 182'000'000, 223'000}}),
    6.2, 1.7, kSplitwiseSource};
/// Llama-2-70B, 4 H100.
inline constexpr CostSet kLlama2H100Tp4{
    "llama2-70b_h100_tp4",
    detail::phase_cost({.floor_ns = 50'000'000,
                        .offset_ns = 7'300'000,
                        .token_ps = 99'900'000,
                        .pair_fs = 3'560'000,
                        .decode = {28'800'000, 265'000'000, 101'000}}),
    3.7, 2.1, kSplitwiseSource};
/// OPT-13B, 1 A100: decodes cost otherwise from 95 sequences on.
inline constexpr CostSet kOpt13bA100Tp1{
    "opt-13b_a100_tp1_distserve",
    detail::phase_cost({.offset_ns = 18'100'000,
                        .token_ps = 101'910'000,
                        .pair_fs = 14'240'000,
                        .decode = {19'930'000, 38'500'000, 627'000},
                        .many_rows = 95,
                        .decode_many = {7'170'000, 158'300'000, 580'000}}),
    -1.0, -1.0, kDistServeSource};
/// OPT-66B, 4 A100; fitted below 95 sequences only.
inline constexpr CostSet kOpt66bA100Tp4{
    "opt-66b_a100_tp4_distserve",
    detail::phase_cost({.offset_ns = 29'440'000,
                        .token_ps = 151'350'000,
                        .pair_fs = 16'640'000,
                        .decode = {30'760'000, 63'300'000, 452'000}}),
    -1.0, -1.0, kDistServeSource};

namespace detail {
/// In us: 32 layers of max(329.3, 195.4 + 1.0782 tokens), decodes counted, + 11.57 + 0.112 rows +
/// 2.855e-3 context if there are rows, + 10.8 + 8.07e-5 pairs for each chunk; 1,314 + 2 for each
/// row and chunk once; and 2,500 of the host, the one figure fitted on the measured run.
constexpr FormulaCost rtxpro6000_cost() noexcept {
  FormulaCost model;
  model.cost = {.fixed_ns = 1'314'000, .attention_pair_fs = 2'582'400, .version = 1};
  model.host_overhead = microseconds(2'500);
  model.has_phases = true;
  model.phases = {.floor_ns = 10'537'600,
                  .offset_ns = 6'252'800,
                  .token_ps = 34'502'400,
                  .counts_rows = true,
                  .chunk_ns = 347'600,
                  .decode = {370'240, 5'584'000, 91'360}};
  return model;
}
}  // namespace detail

/// Llama-3.1-8B, vLLM 0.19, 1 RTX PRO 6000.
inline constexpr CostSet kLlama8bRtxPro6000Vllm{
    "llama3.1-8b_rtxpro6000_vllm0.19", detail::rtxpro6000_cost(), -1.0, -1.0,
    "fitted on LLMServingSim 5daddb21 profiler/perf, host overhead on bench/examples (MIT)"};

/// All built-in sets; the first is the tool's default.
inline constexpr std::array<CostSet, 13> kCostSets{kLlama70bFp8H100Tp4Vllm,
                                                   kLlama70bFp8H100Tp8Vllm,
                                                   kLlama8bH100Tp1TrtLlm,
                                                   kLlama8bH100Tp1VllmBlis,
                                                   kQwen235bFp8H100Tp4TrtLlm,
                                                   kDeepSeekR1Fp8H200Tp8Sglang,
                                                   kLlama2A100Tp8,
                                                   kLlama2A100Tp4,
                                                   kLlama2H100Tp8,
                                                   kLlama2H100Tp4,
                                                   kOpt13bA100Tp1,
                                                   kOpt66bA100Tp4,
                                                   kLlama8bRtxPro6000Vllm};

}  // namespace dynbatch::inline DYNBATCH_ABI
