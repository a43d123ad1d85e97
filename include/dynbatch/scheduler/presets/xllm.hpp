// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset xllm. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/slo_budget_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// xLLM (87e8d6ed): a time budget a step from service levels and a learned step time, 5 % of the
/// pool left free by an admission, requests of class Batch give way first.
struct XllmBundle : BundleBase<SloBudgetSizer, OrderedAdmission> {
  static constexpr const char* kName = "xllm";
  static constexpr const char* kOptions =
      "max_tokens_per_batch, max_seqs_per_batch, priority_strategy (fcfs|priority|deadline), "
      "max_tokens_per_chunk (0 = off), memory_threshold, online_preempts_offline, aging_ms";

  constexpr XllmBundle() noexcept {
    admission.rules = kStrict;
    admission.rules.watermark_permille = 50;
    admission.batch_gives_way = true;
  }

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "online_preempts_offline";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    using Order = OrderedAdmission::Order;
    if (key == "max_tokens_per_batch") {
      return detail::parse_option(value, "max_tokens_per_batch", std::int64_t{1},
                                  detail::kMostInt64, sizer.max_tokens);
    }
    if (key == "max_seqs_per_batch") {
      return detail::parse_option(value, "max_seqs_per_batch", 1, detail::kMostInt32,
                                  sizer.max_sequences);
    }
    if (key == "priority_strategy") {
      constexpr detail::NamedChoice<Order> kOrders[] = {
          {"fcfs", Order::Fcfs}, {"priority", Order::Priority}, {"deadline", Order::Deadline}};
      return detail::parse_choice(value, "priority_strategy", kOrders,
                                  "is fcfs, priority or deadline", admission.order);
    }
    if (key == "max_tokens_per_chunk") {
      return detail::parse_option(value, "max_tokens_per_chunk", std::int64_t{0},
                                  detail::kMostInt64, admission.rules.max_chunk_tokens);
    }
    if (key == "memory_threshold") {
      std::int32_t used = 0;
      const Status status = detail::parse_permille(value, "memory_threshold", used);
      if (status && used == 0) {
        return {Errc::InvalidArgument, "memory_threshold", 0, 0, "must be above 0"};
      }
      if (status) {
        admission.rules.watermark_permille = 1000 - used;
      }
      return status;
    }
    if (key == "online_preempts_offline") {
      return detail::parse_option(value, "online_preempts_offline", admission.batch_gives_way);
    }
    if (key == "aging_ms") {
      return detail::parse_aging(value, admission.aging);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; xllm knows: max_tokens_per_batch, max_seqs_per_batch, "
            "priority_strategy, max_tokens_per_chunk, memory_threshold, online_preempts_offline, "
            "aging_ms"};
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
