// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TokenBudgetSizer: one token budget a step in which decodes count, the rule of vLLM V1.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/detail/fixed_limits.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>

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
    return detail::within_executor(ceiling(), in);
  }
  void observe(const StepFeedback& /*feedback*/) noexcept {}

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    return detail::fixed_limits(config_.max_sequences, config_.budget);
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
};

static_assert(BatchSizer<TokenBudgetSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
