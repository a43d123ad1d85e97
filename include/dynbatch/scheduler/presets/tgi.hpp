// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset tgi. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/served_ratio_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// text-generation-inference (db931fcf): decodes are interrupted for prompts when enough of them
/// wait or 20 steps have passed; blocks for the whole output (at most 1,024 tokens) at the start.
/// `chunking` is its mode with prompt chunks: decodes and prompts share the budget, nobody waits.
struct TgiBundle : BundleBase<TokenBudgetSizer, ServedRatioAdmission> {
  static constexpr const char* kName = "tgi";
  static constexpr const char* kOptions =
      "waiting_served_ratio, max_waiting_tokens, max_batch_prefill_tokens, max_batch_size, "
      "max_concurrent_requests, chunking";

  constexpr TgiBundle() noexcept {
    sizer = {.budget = 4096, .max_sequences = 128};
    admission.rules = kStrict;
    admission.rules.compose = Compose::PrefillFirst;
    admission.rules.split_prompts = false;
  }

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "chunking";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "waiting_served_ratio") {
      double ratio = 0.0;
      const Status status = detail::parse_option(value, "waiting_served_ratio", ratio);
      if (!status) {
        return status;
      }
      if (ratio > 1000.0) {
        return {Errc::InvalidArgument, "waiting_served_ratio", static_cast<std::int64_t>(ratio),
                1000, "is out of range"};
      }
      admission.served_ratio_permille = static_cast<std::int32_t>(ratio * 1000.0 + 0.5);
      return kOk;
    }
    if (key == "max_waiting_tokens") {
      return detail::parse_option(value, "max_waiting_tokens", 1, detail::kMostInt32,
                                  admission.max_waiting_steps);
    }
    if (key == "max_batch_prefill_tokens") {
      return detail::parse_option(value, "max_batch_prefill_tokens", std::int64_t{1},
                                  detail::kMostInt64, sizer.budget);
    }
    if (key == "max_batch_size" || key == "max_concurrent_requests") {
      const bool is_batch = key == "max_batch_size";
      const Status status = detail::parse_option(
          value, is_batch ? "max_batch_size" : "max_concurrent_requests", 1, detail::kMostInt32,
          is_batch ? max_batch_size : max_concurrent_requests);
      sizer.max_sequences = min_of(max_batch_size, max_concurrent_requests);
      return status;
    }
    if (key == "chunking") {
      bool is_chunked = admission.rules.split_prompts;
      const Status status = detail::parse_option(value, "chunking", is_chunked);
      admission.rules.split_prompts = is_chunked;
      admission.rules.compose = is_chunked ? Compose::DecodeFirst : Compose::PrefillFirst;
      return status;
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; tgi knows: waiting_served_ratio, max_waiting_tokens, "
            "max_batch_prefill_tokens, max_batch_size, max_concurrent_requests, chunking"};
  }

  std::int32_t max_batch_size = detail::kMostInt32;
  std::int32_t max_concurrent_requests = 128;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
