// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Preset triton. What it reproduces and what not: docs/policies/presets.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/preferred_size_sizer.hpp>
#include <dynbatch/scheduler/bundle_base.hpp>
#include <dynbatch/scheduler/bundle_options.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// Triton's dynamic batcher (core 73aad7c3) over request-level batches: preferred sizes, a bounded
/// wait for them, priority levels. KV for the whole request is reserved, since Triton knows none.
struct TritonBundle : BundleBase<PreferredSizeSizer, OrderedAdmission> {
  static constexpr const char* kName = "triton";
  static constexpr const char* kOptions =
      "preferred_batch_size (8+16), max_queue_delay_us, max_batch_size, priority_levels, aging_ms";

  constexpr TritonBundle() noexcept {
    admission.rules = kStrict;
    admission.rules.compose = Compose::BatchUntilEmpty;
    admission.rules.reserve = Reserve::NoEvict;
    admission.rules.split_prompts = false;
  }

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "preferred_batch_size") {
      return set_preferred(value);
    }
    if (key == "max_queue_delay_us") {
      std::int64_t delay = 0;
      const Status status = detail::parse_option(value, "max_queue_delay_us", std::int64_t{0},
                                                 std::int64_t{1'000'000'000'000}, delay);
      sizer.max_queue_delay = status ? microseconds(delay) : sizer.max_queue_delay;
      return status;
    }
    if (key == "max_batch_size") {
      return detail::parse_option(value, "max_batch_size", 1, detail::kMostInt32,
                                  sizer.max_batch_size);
    }
    if (key == "priority_levels") {
      std::int32_t levels = admission.order == OrderedAdmission::Order::Priority ? 1 : 0;
      const Status status =
          detail::parse_option(value, "priority_levels", 0, detail::kMostInt32, levels);
      admission.order =
          levels > 0 ? OrderedAdmission::Order::Priority : OrderedAdmission::Order::Fcfs;
      return status;
    }
    if (key == "aging_ms") {
      return detail::parse_aging(value, admission.aging);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; triton knows: preferred_batch_size, max_queue_delay_us, "
            "max_batch_size, priority_levels, aging_ms"};
  }

 private:
  /// Sizes separated by '+'.
  [[nodiscard]] constexpr Status set_preferred(std::string_view value) noexcept {
    PreferredSizeSizer::Config sizes = sizer;
    sizes.num_preferred = 0;
    bool has_more = true;
    while (has_more) {
      if (sizes.num_preferred == static_cast<std::int32_t>(PreferredSizeSizer::kMostPreferred)) {
        return {Errc::InvalidArgument, "preferred_batch_size", sizes.num_preferred + 1,
                PreferredSizeSizer::kMostPreferred, "too many sizes"};
      }
      const std::size_t end = value.find('+');
      has_more = end != std::string_view::npos;
      const Status status =
          detail::parse_option(value.substr(0, end), "preferred_batch_size", 1, detail::kMostInt32,
                               sizes.preferred[sizes.num_preferred]);
      if (!status) {
        return status;
      }
      ++sizes.num_preferred;
      value = has_more ? value.substr(end + 1) : value;
    }
    sizer = sizes;
    return kOk;
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
