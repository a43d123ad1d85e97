// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset trtllm. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/table_tuner_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// TensorRT-LLM's C++ batch manager (0165bd7a): a capacity policy picks who fits, decodes go first,
/// prompts run whole or in chunks of whole blocks, batch size and token budget may follow tables.
struct TrtllmBundle : BundleBase<TableTunerSizer, FcfsAdmission> {
  static constexpr const char* kName = "trtllm";
  static constexpr const char* kOptions =
      "capacity_scheduler_policy (guaranteed_no_evict|max_utilization|static_batch|max_requests), "
      "context_chunking_policy (none|fcfs), max_batch_size, max_num_tokens, "
      "enable_batch_size_tuning, enable_max_num_tokens_tuning, "
      "dynamic_batch_moving_average_window";

  constexpr TrtllmBundle() noexcept {
    sizer = {.max_batch_size = 2048, .max_num_tokens = 8192};
    admission = kStrict;
    admission.reserve = Reserve::NoEvict;
    admission.split_prompts = false;
    admission.chunk_unit = 0;
  }

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "enable_batch_size_tuning" || key == "enable_max_num_tokens_tuning";
  }
  [[nodiscard]] constexpr Status validate() const noexcept {
    if (sizer.tunes_num_tokens && !admission.split_prompts) {
      return {Errc::InvalidConfig, "enable_max_num_tokens_tuning", 1, 0,
              "needs context_chunking_policy=fcfs, or a prompt longer than the tuned budget would "
              "not run"};
    }
    return BundleBase::validate();
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "capacity_scheduler_policy") {
      return set_capacity(value);
    }
    if (key == "context_chunking_policy") {
      constexpr detail::NamedChoice<bool> kPolicies[] = {
          {"none", false}, {"fcfs", true}, {"first_come_first_served", true}};
      return detail::parse_choice(value, "context_chunking_policy", kPolicies,
                                  "is none or fcfs; equal_progress needs all prompts of a step at "
                                  "once, an Admission sees one",
                                  admission.split_prompts);
    }
    if (key == "max_batch_size") {
      return detail::parse_option(value, "max_batch_size", 1, detail::kMostInt32,
                                  sizer.max_batch_size);
    }
    if (key == "max_num_tokens") {
      return detail::parse_option(value, "max_num_tokens", std::int64_t{1}, detail::kMostInt64,
                                  sizer.max_num_tokens);
    }
    if (key == "enable_batch_size_tuning") {
      return detail::parse_option(value, "enable_batch_size_tuning", sizer.tunes_batch_size);
    }
    if (key == "enable_max_num_tokens_tuning") {
      return detail::parse_option(value, "enable_max_num_tokens_tuning", sizer.tunes_num_tokens);
    }
    if (key == "dynamic_batch_moving_average_window") {
      return detail::parse_option(value, "dynamic_batch_moving_average_window", 1,
                                  TableTunerSizer::kMostWindow, sizer.window);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; trtllm knows: capacity_scheduler_policy, context_chunking_policy, "
            "max_batch_size, max_num_tokens, enable_batch_size_tuning, "
            "enable_max_num_tokens_tuning, dynamic_batch_moving_average_window"};
  }

 private:
  [[nodiscard]] constexpr Status set_capacity(std::string_view value) noexcept {
    struct Capacity {
      Reserve reserve;
      Compose compose;
    };
    constexpr detail::NamedChoice<Capacity> kPolicies[] = {
        {"guaranteed_no_evict", {Reserve::NoEvict, Compose::DecodeFirst}},
        {"max_utilization", {Reserve::WholePrompt, Compose::DecodeFirst}},
        {"static_batch", {Reserve::NoEvict, Compose::WhenIdle}},
        {"max_requests", {Reserve::FirstChunk, Compose::DecodeFirst}}};
    Capacity capacity{};
    const Status status = detail::parse_choice(
        value, "capacity_scheduler_policy", kPolicies,
        "is guaranteed_no_evict, max_utilization, static_batch or max_requests", capacity);
    if (status) {
      admission.reserve = capacity.reserve;
      admission.compose = capacity.compose;
    }
    return status;
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
