// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// StaticSizer: a fixed number of sequences a batch, as request-level engines have it.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/detail/fixed_limits.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Same limits for every step; learns nothing. Made for request-level batches
/// (FcfsAdmission::Compose::BatchUntilEmpty); also the plain choice for tests.
class StaticSizer {
 public:
  struct Config {
    std::int32_t batch = 32;      ///< Sequences a batch; >= 1.
    std::int64_t max_tokens = 0;  ///< Tokens a step; 0 = the executor's limit.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (batch < 1) {
        return {Errc::InvalidConfig, "batch", batch, 1, "must be at least 1"};
      }
      if (max_tokens < 0) {
        return {Errc::InvalidConfig, "max_tokens", max_tokens, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      return kOk;
    }
  };

  StaticSizer() : StaticSizer(Config{}) {}
  explicit StaticSizer(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    return detail::within_executor(ceiling(), in);
  }
  void observe(const StepFeedback& /*feedback*/) noexcept {}

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    return detail::fixed_limits(config_.batch, config_.max_tokens);
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
};

static_assert(BatchSizer<StaticSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
