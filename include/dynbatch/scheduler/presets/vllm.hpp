// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset vllm. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// vLLM V1 (7cfb97e3): one token budget a step, decodes first, prompts in chunks, the whole prompt
/// must fit when it starts, first come first served or by priority. The rules of `chunked` under
/// vLLM's names.
struct VllmBundle : BundleBase<TokenBudgetSizer, OrderedAdmission> {
  static constexpr const char* kName = "vllm";
  static constexpr const char* kOptions =
      "max_num_batched_tokens, max_num_seqs, policy (fcfs|priority), aging_ms, "
      "enable_chunked_prefill, long_prefill_token_threshold, watermark, "
      "scheduler_reserve_full_isl";

  constexpr VllmBundle() noexcept {
    sizer = {.budget = 2048, .max_sequences = 256};
    admission.rules = kStrict;
  }

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "enable_chunked_prefill" || key == "scheduler_reserve_full_isl";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    using Order = OrderedAdmission::Order;
    AdmissionRules& rules = admission.rules;
    if (key == "max_num_batched_tokens") {
      return detail::parse_option(value, "max_num_batched_tokens", std::int64_t{1},
                                  detail::kMostInt64, sizer.budget);
    }
    if (key == "max_num_seqs") {
      return detail::parse_option(value, "max_num_seqs", 1, detail::kMostInt32,
                                  sizer.max_sequences);
    }
    if (key == "policy") {
      constexpr detail::NamedChoice<Order> kOrders[] = {{"fcfs", Order::Fcfs},
                                                        {"priority", Order::Priority}};
      return detail::parse_choice(value, "policy", kOrders, "is fcfs or priority", admission.order);
    }
    if (key == "aging_ms") {
      return detail::parse_aging(value, admission.aging);
    }
    if (key == "enable_chunked_prefill") {
      return detail::parse_option(value, "enable_chunked_prefill", rules.split_prompts);
    }
    if (key == "long_prefill_token_threshold") {
      return detail::parse_option(value, "long_prefill_token_threshold", std::int64_t{0},
                                  detail::kMostInt64, rules.max_chunk_tokens);
    }
    if (key == "watermark") {
      return detail::parse_permille(value, "watermark", rules.watermark_permille);
    }
    if (key == "scheduler_reserve_full_isl") {
      bool is_full = rules.reserve == Reserve::WholePrompt;
      const Status status = detail::parse_option(value, "scheduler_reserve_full_isl", is_full);
      rules.reserve = is_full ? Reserve::WholePrompt : Reserve::FirstChunk;
      return status;
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; vllm knows: max_num_batched_tokens, max_num_seqs, policy, aging_ms, "
            "enable_chunked_prefill, long_prefill_token_threshold, watermark, "
            "scheduler_reserve_full_isl"};
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
