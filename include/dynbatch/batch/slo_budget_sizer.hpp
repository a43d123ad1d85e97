// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SloBudgetSizer: a time budget a step from the service level and a learned step time, the rule of
/// xLLM.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/detail/fixed_limits.hpp>
#include <dynbatch/batch/detail/prefill_within.hpp>
#include <dynbatch/batch/step_time_fit.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A step may take max(least rest of a service level, `tpot_permille` of the least TPOT limit);
/// prompts fill what the decodes leave of that, and no more sequences start than its decodes can
/// serve. Without a TPOT limit among the running, or before a cost is learned, only the fixed
/// limits hold. After xLLM 87e8d6ed; its predictor has terms in the square of a prompt's length,
/// the one here (StepTimeFit) one in a chunk's query-key pairs. O(1).
class SloBudgetSizer {
 public:
  struct Config {
    std::int64_t max_tokens = 10'240;   ///< Tokens a step; >= 1.
    std::int32_t max_sequences = 1024;  ///< Running sequences; >= 1.
    std::int32_t tpot_permille = 650;   ///< Share of the least TPOT that a step may always take.
    std::int64_t min_prefill_tokens = 128;  ///< Prompt tokens a step at least; >= 1.
    StepTimeFit::Config fit{};

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (max_tokens < 1) {
        return {Errc::InvalidConfig, "max_tokens", max_tokens, 1, "must be at least 1"};
      }
      if (max_sequences < 1) {
        return {Errc::InvalidConfig, "max_sequences", max_sequences, 1, "must be at least 1"};
      }
      if (tpot_permille < 0 || tpot_permille > 1000) {
        return {Errc::InvalidConfig, "tpot_permille", tpot_permille, 1000,
                "must lie between 0 and 1000"};
      }
      if (min_prefill_tokens < 1) {
        return {Errc::InvalidConfig, "min_prefill_tokens", min_prefill_tokens, 1,
                "must be at least 1"};
      }
      return fit.validate();
    }
  };

  SloBudgetSizer() : SloBudgetSizer(Config{}) {}
  explicit SloBudgetSizer(const Config& config) : config_(config), fit_(config.fit) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out = detail::within_executor(ceiling(), in);
    bound_ = SizerBound::Cap;
    const StepCost& cost = fit_.cost();
    if (in.least_tpot < kUnbounded && cost.is_known()) {
      const std::int64_t budget = budget_ns(in, config_.tpot_permille);
      const std::int64_t serves = sequences_within(in, cost, budget);
      if (serves < out.max_decode_sequences) {
        out.max_decode_sequences = static_cast<std::int32_t>(serves);
        bound_ = SizerBound::Latency;
      }
      out.max_prefill_tokens =
          max_of(detail::prefill_tokens_within(cost, {budget}, detail::decode_work(in), in,
                                               out.max_tokens),
                 min_of(config_.min_prefill_tokens, out.max_tokens));
    }
    return out;
  }
  void observe(const StepFeedback& feedback) noexcept {
    fit_.observe(feedback.now, feedback.work, feedback.measured);
  }

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    return detail::fixed_limits(config_.max_sequences, config_.max_tokens);
  }
  [[nodiscard]] StepCost cost() const noexcept { return fit_.cost(); }
  [[nodiscard]] SizerBound bound() const noexcept { return bound_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

  /// What the next step may take: the rest of the tightest service level, running or waiting, or
  /// the share of the least TPOT, whichever is more.
  [[nodiscard]] static std::int64_t budget_ns(const SizerInput& in,
                                              std::int32_t tpot_permille) noexcept {
    const TimeNs due = min_of(in.next_token_due, in.first_token_due);
    const std::int64_t rest =
        due == kNever ? 0 : saturating_sum(due.ns, -max_of<std::int64_t>(in.now.ns, 0));
    return max_of(rest,
                  saturating_mul(max_of<std::int64_t>(in.least_tpot.ns, 0), tpot_permille) / 1000);
  }

 private:
  /// Sequences of the mean context whose decode step stays within the budget; at least 1.
  [[nodiscard]] static std::int64_t sequences_within(const SizerInput& in, const StepCost& cost,
                                                     std::int64_t budget) noexcept {
    const std::int64_t decoding = max_of(in.num_decoding, 1);
    const std::int64_t context = max_of<std::int64_t>(in.decoding_kv_tokens, 0) / decoding;
    return max_of<std::int64_t>(
        cost.decode_rows_within({budget}, StepWork{}, context, std::int64_t{1} << 40), 1);
  }

  Config config_;
  StepTimeFit fit_;
  SizerBound bound_ = SizerBound::Cap;
};

static_assert(BatchSizer<SloBudgetSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
