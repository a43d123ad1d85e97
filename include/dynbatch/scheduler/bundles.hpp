// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Named bundles: sets of policies with their options.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>
#include <dynbatch/scheduler/presets/sglang.hpp>
#include <dynbatch/scheduler/presets/tgi.hpp>
#include <dynbatch/scheduler/presets/triton.hpp>
#include <dynbatch/scheduler/presets/trtllm.hpp>
#include <dynbatch/scheduler/presets/vllm.hpp>
#include <dynbatch/scheduler/presets/xllm.hpp>
#include <dynbatch/scheduler/profile.hpp>
#include <dynbatch/scheduler/rule_presets.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// Request-level batches: a batch starts when the engine is idle, whole prompts in one step, and
/// ends as a whole; finished rows stay as padding. The baseline that continuous batching is
/// measured by.
struct StaticBundle : BundleBase<StaticSizer, FcfsAdmission> {
  static constexpr const char* kName = "static";
  static constexpr const char* kOptions = "batch";

  constexpr StaticBundle() noexcept {
    admission = {.compose = Compose::BatchUntilEmpty, .split_prompts = false, .max_bypass = 0};
  }

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "batch") {
      return detail::parse_option(value, "batch", 1, detail::kMostInt32, sizer.batch);
    }
    return {Errc::InvalidArgument, "option", 0, 0, "unknown option; static knows: batch"};
  }
};

/// The rules of vLLM V1: one token budget a step, decodes first, prompts in chunks, the whole
/// prompt must fit at admission, no headroom, nobody passes the head of the queue.
struct ChunkedBundle : BudgetBundle {
  static constexpr const char* kName = "chunked";
  static constexpr const char* kOptions = "budget, max_seqs, watermark_permille";

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (is_budget_option(key)) {
      return set_budget(key, value);
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; chunked knows: budget, max_seqs, watermark_permille"};
  }
};

/// The default: batch sizes from memory, service level and queue, decodes first, some headroom;
/// requests that can't be in time any more run behind the others.
struct DynbatchBundle : BundleBase<DynamicSizer, FcfsAdmission> {
  static constexpr const char* kName = "dynbatch";
  static constexpr const char* kOptions =
      "alpha, max_prefill_tokens, min_prefill_tokens, max_prefill_seqs, max_decode_seqs, "
      "late_patience, watermark_permille, max_bypass, "
      "profile (balanced|interactive|throughput|mixed)";

  constexpr DynbatchBundle() noexcept : DynbatchBundle(Profile::Balanced) {}
  constexpr explicit DynbatchBundle(Profile profile) noexcept {
    admission.watermark_permille = 40;
    admission.late_patience = 32;
    switch (profile) {
      case Profile::Balanced:
        break;
      case Profile::Interactive:
        sizer.max_prefill_sequences = 128;
        sizer.max_decode_sequences = 32;
        sizer.max_prefill_tokens = 1024;
        break;
      case Profile::Throughput:
        sizer.min_prefill_tokens = sizer.max_prefill_tokens;
        admission.late_patience = 0;
        break;
      case Profile::Mixed:
        admission.class_delay = seconds(60);
        break;
    }
  }

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "alpha") {
      DynamicSizer::Config config = sizer;
      Status status = detail::parse_option(value, "alpha", config.alpha);
      status = status ? config.validate() : status;
      sizer = status ? config : sizer;
      return status;
    }
    if (key == "max_prefill_tokens") {
      return detail::parse_option(value, "max_prefill_tokens", std::int64_t{1}, detail::kMostInt64,
                                  sizer.max_prefill_tokens);
    }
    if (key == "min_prefill_tokens") {
      return detail::parse_option(value, "min_prefill_tokens", std::int64_t{1}, detail::kMostInt64,
                                  sizer.min_prefill_tokens);
    }
    if (key == "max_prefill_seqs") {
      return detail::parse_option(value, "max_prefill_seqs", 1, detail::kMostInt32,
                                  sizer.max_prefill_sequences);
    }
    if (key == "max_decode_seqs") {
      return detail::parse_option(value, "max_decode_seqs", 1, detail::kMostInt32,
                                  sizer.max_decode_sequences);
    }
    if (key == "profile") {
      return set_profile(value);
    }
    if (key == "late_patience") {
      return detail::parse_option(value, "late_patience", 0, detail::kMostInt32,
                                  admission.late_patience);
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    if (key == "max_bypass") {
      return detail::parse_option(value, "max_bypass", 0, detail::kMostInt32, admission.max_bypass);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; dynbatch knows: alpha, max_prefill_tokens, min_prefill_tokens, "
            "max_prefill_seqs, max_decode_seqs, late_patience, watermark_permille, max_bypass, "
            "profile"};
  }

 private:
  /// All values at once: what else is set comes after it.
  [[nodiscard]] constexpr Status set_profile(std::string_view value) noexcept {
    for (const ProfileName& known : kProfiles) {
      if (known.name == value) {
        *this = DynbatchBundle(known.profile);
        return kOk;
      }
    }
    return {Errc::InvalidArgument, "profile", 0, 0,
            "is balanced, interactive, throughput or mixed"};
  }
};

/// The names that with_bundle() knows.
inline constexpr const char* kBundleNames =
    "static, chunked, prefill_first, orca, no_evict, max_util, vllm, trtllm, tgi, sglang, triton, "
    "xllm, dynbatch";

/// Makes the bundle that `spec` names, sets its options and calls visit(bundle), which returns
/// Status. The one list of shipped bundles: a further bundle is added here.
template <class Visit>
[[nodiscard]] constexpr Status with_bundle(const PolicySpec& spec, Visit&& visit,
                                           std::size_t* position = nullptr) {
  const auto run = [&](auto bundle) -> Status {
    const Status status = configure(bundle, spec, position);
    return status ? visit(bundle) : status;
  };
  if (spec.name == StaticBundle::kName) {
    return run(StaticBundle{});
  }
  if (spec.name == ChunkedBundle::kName) {
    return run(ChunkedBundle{});
  }
  if (spec.name == PrefillFirstBundle::kName) {
    return run(PrefillFirstBundle{});
  }
  if (spec.name == OrcaBundle::kName) {
    return run(OrcaBundle{});
  }
  if (spec.name == NoEvictBundle::kName) {
    return run(NoEvictBundle{});
  }
  if (spec.name == MaxUtilBundle::kName) {
    return run(MaxUtilBundle{});
  }
  if (spec.name == VllmBundle::kName) {
    return run(VllmBundle{});
  }
  if (spec.name == TrtllmBundle::kName) {
    return run(TrtllmBundle{});
  }
  if (spec.name == TgiBundle::kName) {
    return run(TgiBundle{});
  }
  if (spec.name == SglangBundle::kName) {
    return run(SglangBundle{});
  }
  if (spec.name == TritonBundle::kName) {
    return run(TritonBundle{});
  }
  if (spec.name == XllmBundle::kName) {
    return run(XllmBundle{});
  }
  if (spec.name == DynbatchBundle::kName) {
    return run(DynbatchBundle{});
  }
  if (position != nullptr) {
    *position = spec.position;
  }
  return {Errc::InvalidArgument, "policy", static_cast<std::int64_t>(spec.position), 0,
          "unknown policy at this position; known are static, chunked, prefill_first, orca, "
          "no_evict, max_util, vllm, trtllm, tgi, sglang, triton, xllm, dynbatch"};
}

}  // namespace dynbatch::inline DYNBATCH_ABI
