// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What it costs to compute instead of loading.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Time that `tokens` behind `prefix` positions add to a step: by what the sizer has learned,
/// attention included, or `token_ns` each until then. The step itself runs in any case.
[[nodiscard]] constexpr DurationNs compute_time(const StepCost& cost, std::int64_t token_ns,
                                                std::int64_t prefix, std::int64_t tokens) noexcept {
  if (!cost.is_known()) {
    return {saturating_mul(tokens, token_ns)};
  }
  StepCost added = cost;
  added.fixed_ns = 0;
  return added.predict(with_prefill(StepWork{}, prefix, tokens));
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
