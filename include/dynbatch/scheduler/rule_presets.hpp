// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Presets that reproduce single rules of peers: orca, prefill_first, no_evict, max_util.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// What bundles of one rule share: a token budget a step, first come first served.
struct BudgetBundle : BundleBase<TokenBudgetSizer, FcfsAdmission> {
  constexpr BudgetBundle() noexcept { admission = kStrict; }

 protected:
  /// The presets of peers begin with the budget that these have by default.
  constexpr BudgetBundle(const AdmissionRules& rules, std::int64_t budget) noexcept {
    sizer.budget = budget;
    admission = rules;
  }
  [[nodiscard]] static constexpr bool is_budget_option(std::string_view key) noexcept {
    return key == "budget" || key == "max_seqs";
  }
  [[nodiscard]] constexpr Status set_budget(std::string_view key, std::string_view value) noexcept {
    return key == "budget" ? detail::parse_option(value, "budget", std::int64_t{1},
                                                  detail::kMostInt64, sizer.budget)
                           : detail::parse_option(value, "max_seqs", 1, detail::kMostInt32,
                                                  sizer.max_sequences);
  }
};

/// Orca: KV for the whole request is reserved at admission (prompt + the most it may produce, or
/// `reserve` tokens in total, prompt included), prompts run in steps of their own of up to 8,192
/// tokens. `mixed` runs prompts and decodes in one step, as published.
struct OrcaBundle : BudgetBundle {
  static constexpr const char* kName = "orca";
  static constexpr const char* kOptions = "reserve, mixed, budget, max_seqs";

  constexpr OrcaBundle() noexcept
      : BudgetBundle({.compose = Compose::PrefillFirst,
                      .reserve = Reserve::NoEvict,
                      .max_bypass = 0,
                      .requeue_blocks = 0},
                     8192) {}

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "mixed";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (is_budget_option(key)) {
      return set_budget(key, value);
    }
    if (key == "reserve") {
      const Status status = detail::parse_option(value, "reserve", std::int64_t{1},
                                                 detail::kMostInt64, admission.reserve_tokens);
      admission.reserve = status ? Reserve::Fixed : admission.reserve;
      return status;
    }
    if (key == "mixed") {
      bool is_mixed = admission.compose == Compose::DecodeFirst;
      const Status status = detail::parse_option(value, "mixed", is_mixed);
      admission.compose = is_mixed ? Compose::DecodeFirst : Compose::PrefillFirst;
      return status;
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; orca knows: reserve, mixed, budget, max_seqs"};
  }
};

/// The rules of vLLM V0: prompts in steps of their own of up to 8,192 tokens, decodes only when no
/// prompt can run, 1 % of the pool left free by an admission. split=0 runs prompts whole only and
/// refuses those beyond the budget.
struct PrefillFirstBundle : BudgetBundle {
  static constexpr const char* kName = "prefill_first";
  static constexpr const char* kOptions = "budget, max_seqs, watermark_permille, split";

  constexpr PrefillFirstBundle() noexcept
      : BudgetBundle({.compose = Compose::PrefillFirst,
                      .watermark_permille = 40,
                      .max_bypass = 0,
                      .requeue_blocks = 0},
                     8192) {}

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "split";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (is_budget_option(key)) {
      return set_budget(key, value);
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    if (key == "split") {
      return detail::parse_option(value, "split", admission.split_prompts);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; prefill_first knows: budget, max_seqs, watermark_permille, split"};
  }
};

/// What the bundles after TensorRT-LLM share: prompts run whole unless `chunked` is set.
struct WholePromptBundle : BudgetBundle {
  static constexpr const char* kOptions = "budget, max_seqs, chunked";

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "chunked";
  }

 protected:
  constexpr explicit WholePromptBundle(Reserve reserve) noexcept
      : BudgetBundle({.reserve = reserve,
                      .split_prompts = false,
                      .chunk_unit = 0,
                      .max_bypass = 0,
                      .requeue_blocks = 0},
                     8192) {}
  [[nodiscard]] constexpr Status set_option(std::string_view key, std::string_view value,
                                            const char* unknown) noexcept {
    if (is_budget_option(key)) {
      return set_budget(key, value);
    }
    if (key == "chunked") {
      return detail::parse_option(value, "chunked", admission.split_prompts);
    }
    return {Errc::InvalidArgument, "option", 0, 0, unknown};
  }
};

/// TensorRT-LLM's GUARANTEED_NO_EVICT: blocks for prompt + the most it may produce at admission, in
/// order, ended by the first that does not fit; decodes first, then prompts. `chunked` is its first
/// come, first served context chunking, in whole blocks; without it a prompt longer than the budget
/// is refused.
struct NoEvictBundle : WholePromptBundle {
  static constexpr const char* kName = "no_evict";

  constexpr NoEvictBundle() noexcept : WholePromptBundle(Reserve::NoEvict) {}
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    return set_option(key, value, "unknown option; no_evict knows: budget, max_seqs, chunked");
  }
};

/// TensorRT-LLM's MAX_UTILIZATION: a request starts as soon as blocks for its next step are there;
/// when they run out the last started gives way, until the step fits.
struct MaxUtilBundle : WholePromptBundle {
  static constexpr const char* kName = "max_util";

  constexpr MaxUtilBundle() noexcept : WholePromptBundle(Reserve::FirstChunk) {}
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    return set_option(key, value, "unknown option; max_util knows: budget, max_seqs, chunked");
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
