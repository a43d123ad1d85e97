// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset sglang. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/new_token_ratio_admission.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// SGLang (6fa3f9df): prompts in steps of their own, in chunks; a request starts if it fits beside
/// an estimated share of what running ones may still produce; the shortest output is retracted.
struct SglangBundle : BundleBase<TokenBudgetSizer, NewTokenRatioAdmission> {
  static constexpr const char* kName = "sglang";
  static constexpr const char* kOptions =
      "schedule_policy (fcfs|lpm|lof|priority), schedule_conservativeness, chunked_prefill_size "
      "(0 = off), max_prefill_tokens, max_running_requests, enable_mixed_chunk, aging_ms";

  constexpr SglangBundle() noexcept {
    admission.order.rules = kStrict;
    admission.order.rules.compose = Compose::PrefillFirst;
    apply_sizes();
  }

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "enable_mixed_chunk";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    using Order = OrderedAdmission::Order;
    if (key == "schedule_policy") {
      constexpr detail::NamedChoice<Order> kOrders[] = {{"fcfs", Order::Fcfs},
                                                        {"lpm", Order::LongestPrefix},
                                                        {"lof", Order::LongestOutput},
                                                        {"priority", Order::Priority}};
      return detail::parse_choice(value, "schedule_policy", kOrders,
                                  "is fcfs, lpm, lof or priority", admission.order.order);
    }
    if (key == "schedule_conservativeness") {
      return set_conservativeness(value);
    }
    if (key == "chunked_prefill_size" || key == "max_prefill_tokens") {
      const bool is_chunk = key == "chunked_prefill_size";
      const Status status =
          detail::parse_option(value, is_chunk ? "chunked_prefill_size" : "max_prefill_tokens",
                               std::int64_t{is_chunk ? 0 : 1}, detail::kMostInt64,
                               is_chunk ? chunked_prefill_size : max_prefill_tokens);
      apply_sizes();
      return status;
    }
    if (key == "max_running_requests") {
      return detail::parse_option(value, "max_running_requests", 1, detail::kMostInt32,
                                  sizer.max_sequences);
    }
    if (key == "enable_mixed_chunk") {
      bool is_mixed = admission.order.rules.compose == Compose::DecodeFirst;
      const Status status = detail::parse_option(value, "enable_mixed_chunk", is_mixed);
      admission.order.rules.compose = is_mixed ? Compose::DecodeFirst : Compose::PrefillFirst;
      return status;
    }
    if (key == "aging_ms") {
      return detail::parse_aging(value, admission.order.aging);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; sglang knows: schedule_policy, schedule_conservativeness, "
            "chunked_prefill_size, max_prefill_tokens, max_running_requests, enable_mixed_chunk, "
            "aging_ms"};
  }

  std::int64_t chunked_prefill_size = 8192;
  std::int64_t max_prefill_tokens = 16'384;

 private:
  constexpr void apply_sizes() noexcept {
    const bool is_chunked = chunked_prefill_size > 0;
    sizer.budget =
        is_chunked ? min_of(chunked_prefill_size, max_prefill_tokens) : max_prefill_tokens;
    admission.order.rules.split_prompts = is_chunked;
  }
  /// 0.7 x conservativeness, at most 1; the floor is 0.14 of that.
  [[nodiscard]] constexpr Status set_conservativeness(std::string_view value) noexcept {
    double factor = 0.0;
    const Status status = detail::parse_option(value, "schedule_conservativeness", factor);
    if (status && (factor < 0.001 || factor > 1000.0)) {
      return {Errc::InvalidArgument, "schedule_conservativeness", 0, 0,
              "lies between 0.001 and 1000"};
    }
    if (status) {
      const auto ppm = static_cast<std::int64_t>(factor * 700'000.0 + 0.5);
      admission.init_ratio_ppm = static_cast<std::int32_t>(min_of<std::int64_t>(ppm, 1'000'000));
      admission.min_ratio_ppm = max_of(admission.init_ratio_ppm / 100 * 14, 1);
    }
    return status;
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
