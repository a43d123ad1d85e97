// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Presets that reproduce single rules of peers: orca, prefill_first, no_evict, max_util.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// What the presets below share: a token budget a step, first come first served, nobody passes the
/// head of the queue, a preempted request comes back as soon as it fits.
template <class Derived>
struct BudgetPreset {  // NOLINT(bugprone-crtp-constructor-accessibility): bundles are aggregates
  using Sizer = TokenBudgetSizer;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = FcfsAdmission;

  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = self().sizer.validate();
    return status ? self().admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(self().sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(self().admission); }

 protected:
  /// Options "budget" and "max_seqs"; false if `key` is neither.
  [[nodiscard]] constexpr bool set_sizer(std::string_view key, std::string_view value,
                                         Status& status) noexcept {
    TokenBudgetSizer::Config& sizer = static_cast<Derived&>(*this).sizer;
    if (key == "budget") {
      status =
          detail::parse_option(value, "budget", std::int64_t{1}, detail::kMostInt64, sizer.budget);
      return true;
    }
    if (key == "max_seqs") {
      status = detail::parse_option(value, "max_seqs", 1, detail::kMostInt32, sizer.max_sequences);
      return true;
    }
    return false;
  }

 private:
  [[nodiscard]] constexpr const Derived& self() const noexcept {
    return static_cast<const Derived&>(*this);
  }
};

/// Orca: KV for the whole request is reserved at admission (prompt + the most it may produce, or
/// `reserve` tokens in total, prompt included), prompts run in steps of their own of up to 8,192
/// tokens. `mixed` runs prompts and decodes in one step, as published.
struct OrcaBundle : BudgetPreset<OrcaBundle> {
  static constexpr const char* kName = "orca";
  static constexpr const char* kOptions = "reserve, mixed, budget, max_seqs";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.compose = FcfsAdmission::Compose::PrefillFirst,
                                  .reserve = FcfsAdmission::Reserve::NoEvict,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "mixed";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (set_sizer(key, value, status)) {
      return status;
    }
    if (key == "reserve") {
      status = detail::parse_option(value, "reserve", std::int64_t{1}, detail::kMostInt64,
                                    admission.reserve_tokens);
      admission.reserve = status ? FcfsAdmission::Reserve::Fixed : admission.reserve;
      return status;
    }
    if (key == "mixed") {
      bool is_mixed = admission.compose == FcfsAdmission::Compose::DecodeFirst;
      status = detail::parse_option(value, "mixed", is_mixed);
      admission.compose =
          is_mixed ? FcfsAdmission::Compose::DecodeFirst : FcfsAdmission::Compose::PrefillFirst;
      return status;
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; orca knows: reserve, mixed, budget, max_seqs"};
  }
};

/// The rules of vLLM V0: prompts in steps of their own of up to 8,192 tokens, decodes only when no
/// prompt can run, 1 % of the pool left free by an admission. split=0 runs prompts whole only and
/// refuses those beyond the budget.
struct PrefillFirstBundle : BudgetPreset<PrefillFirstBundle> {
  static constexpr const char* kName = "prefill_first";
  static constexpr const char* kOptions = "budget, max_seqs, watermark_permille, split";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.compose = FcfsAdmission::Compose::PrefillFirst,
                                  .watermark_permille = 40,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "split";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (set_sizer(key, value, status)) {
      return status;
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
template <class Bundle>
struct WholePromptPreset  // NOLINT(bugprone-crtp-constructor-accessibility): bundles are aggregates
    : BudgetPreset<Bundle> {
  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "chunked";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (this->set_sizer(key, value, status)) {
      return status;
    }
    if (key == "chunked") {
      return detail::parse_option(value, "chunked",
                                  static_cast<Bundle&>(*this).admission.split_prompts);
    }
    return {Errc::InvalidArgument, "option", 0, 0, Bundle::kUnknownOption};
  }
};

/// TensorRT-LLM's GUARANTEED_NO_EVICT: blocks for prompt + the most it may produce at admission, in
/// order, ended by the first that does not fit; decodes first, then prompts. `chunked` is its first
/// come, first served context chunking, in whole blocks; without it a prompt longer than the budget
/// is refused.
struct NoEvictBundle : WholePromptPreset<NoEvictBundle> {
  static constexpr const char* kName = "no_evict";
  static constexpr const char* kOptions = "budget, max_seqs, chunked";
  static constexpr const char* kUnknownOption =
      "unknown option; no_evict knows: budget, max_seqs, chunked";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.reserve = FcfsAdmission::Reserve::NoEvict,
                                  .split_prompts = false,
                                  .chunk_unit = 0,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};
};

/// TensorRT-LLM's MAX_UTILIZATION: a request starts as soon as blocks for its next step are there;
/// when they run out the last started gives way, until the step fits.
struct MaxUtilBundle : WholePromptPreset<MaxUtilBundle> {
  static constexpr const char* kName = "max_util";
  static constexpr const char* kOptions = "budget, max_seqs, chunked";
  static constexpr const char* kUnknownOption =
      "unknown option; max_util knows: budget, max_seqs, chunked";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.reserve = FcfsAdmission::Reserve::FirstChunk,
                                  .split_prompts = false,
                                  .chunk_unit = 0,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
