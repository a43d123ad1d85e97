// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// UnboundedSizer: the BatchSizer that does nothing; only the executor's own limits hold.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>
#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {

/// Fills every step as far as the executor allows.
class UnboundedSizer {
 public:
  using Config = EmptyConfig;

  UnboundedSizer() noexcept = default;
  explicit UnboundedSizer(Config /*config*/) noexcept {}

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out;
    out.max_prefill_sequences = max_of(in.max_sequences, 1);
    out.max_decode_sequences = out.max_prefill_sequences;
    out.max_tokens = max_of<std::int64_t>(in.max_tokens, 1);
    out.max_prefill_tokens = out.max_tokens;
    return out;
  }
  void observe(const StepFeedback& /*feedback*/) noexcept {}

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    constexpr auto kRows = std::numeric_limits<std::int32_t>::max();
    constexpr auto kTokens = std::numeric_limits<std::int64_t>::max();
    return {kRows, kRows, kTokens, kTokens, TimeNs{}};
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
};

static_assert(BatchSizer<UnboundedSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
