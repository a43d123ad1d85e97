// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TokenBudgetSizer: one token budget a step in which decodes count, the rule of vLLM V1.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>
#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {

/// Same limits for every step; learns nothing.
class TokenBudgetSizer {
 public:
  struct Config {
    std::int64_t budget = 2048;      ///< Tokens a step, decodes included; >= 1.
    std::int32_t max_sequences = 0;  ///< Running sequences; 0 = the executor's limit.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (budget < 1) {
        return {Errc::InvalidConfig, "budget", budget, 1, "must be at least 1"};
      }
      if (max_sequences < 0) {
        return {Errc::InvalidConfig, "max_sequences", max_sequences, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      return kOk;
    }
  };

  TokenBudgetSizer() : TokenBudgetSizer(Config{}) {}
  explicit TokenBudgetSizer(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out = ceiling();
    const std::int32_t rows = max_of(in.max_sequences, 1);
    const std::int64_t tokens = max_of<std::int64_t>(in.max_tokens, 1);
    out.max_prefill_sequences = min_of(out.max_prefill_sequences, rows);
    out.max_decode_sequences = min_of(out.max_decode_sequences, rows);
    out.max_tokens = min_of(out.max_tokens, tokens);
    out.max_prefill_tokens = out.max_tokens;
    return out;
  }
  void observe(const StepFeedback& /*feedback*/) noexcept {}

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    BatchLimits out;
    out.max_decode_sequences = config_.max_sequences > 0 ? config_.max_sequences
                                                         : std::numeric_limits<std::int32_t>::max();
    out.max_prefill_sequences = out.max_decode_sequences;
    out.max_tokens = config_.budget;
    out.max_prefill_tokens = config_.budget;
    return out;
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
};

static_assert(BatchSizer<TokenBudgetSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
