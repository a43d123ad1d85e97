// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PreferredSizeSizer: batches of preferred sizes, and a bounded wait for them; the rule of
/// Triton's dynamic batcher.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/detail/fixed_limits.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// For request-level batches (Compose::BatchUntilEmpty). When nothing runs: the largest preferred
/// size that the queue holds starts at once; without one the step waits until the first waiting
/// request is `max_queue_delay` old, or a batch is full, and then takes what is there. An over-aged
/// request is never kept back for a preferred size. After Triton core 73aad7c3. O(1).
class PreferredSizeSizer {
 public:
  static constexpr std::size_t kMostPreferred = 8;
  struct Config {
    std::int32_t max_batch_size = 0;           ///< Sequences a batch; 0 = the executor's rows.
    std::int32_t preferred[kMostPreferred]{};  ///< Ascending, >= 1, at most `max_batch_size`.
    std::int32_t num_preferred = 0;            ///< Entries of `preferred`.
    DurationNs max_queue_delay{};              ///< >= 0, bounded; 0 = never wait.
    std::int64_t max_tokens = 0;               ///< Tokens a step; 0 = the executor's limit.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (max_batch_size < 0) {
        return {Errc::InvalidConfig, "max_batch_size", max_batch_size, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      if (num_preferred < 0 || num_preferred > static_cast<std::int32_t>(kMostPreferred)) {
        return {Errc::InvalidConfig, "num_preferred", num_preferred, kMostPreferred,
                "must lie between 0 and 8"};
      }
      for (std::int32_t i = 0; i < num_preferred; ++i) {
        const std::int32_t size = preferred[i];
        const std::int32_t before = i > 0 ? preferred[i - 1] : 0;
        if (size <= before || (max_batch_size > 0 && size > max_batch_size)) {
          return {Errc::InvalidConfig, "preferred", size,
                  size <= before ? std::int64_t{before} + 1 : max_batch_size,
                  "preferred sizes ascend from 1 to max_batch_size"};
        }
      }
      if (max_queue_delay.ns < 0 || max_queue_delay == kUnbounded) {
        return {Errc::InvalidConfig, "max_queue_delay", max_queue_delay.ns, 0,
                "must be bounded and not negative"};
      }
      if (max_tokens < 0) {
        return {Errc::InvalidConfig, "max_tokens", max_tokens, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      return kOk;
    }
  };

  PreferredSizeSizer() : PreferredSizeSizer(Config{}) {}
  explicit PreferredSizeSizer(const Config& config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out = detail::within_executor(ceiling(), in);
    if (in.num_decoding == 0 && in.num_prefilling == 0 && in.num_waiting > 0) {
      out.max_decode_sequences = next_batch(in, out.max_decode_sequences, out.not_before);
      out.max_prefill_sequences = out.max_decode_sequences;
    }
    return out;
  }
  void observe(const StepFeedback& /*feedback*/) noexcept {}

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    return detail::fixed_limits(config_.max_batch_size, config_.max_tokens);
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] std::int32_t next_batch(const SizerInput& in, std::int32_t most,
                                        TimeNs& not_before) const noexcept {
    const auto pending = static_cast<std::int32_t>(min_of<std::int64_t>(in.num_waiting, most));
    std::int32_t preferred = 0;
    for (std::int32_t i = 0; i < config_.num_preferred; ++i) {
      preferred = config_.preferred[i] <= pending ? config_.preferred[i] : preferred;
    }
    // An arrival in the future is no reason to wait for it.
    const bool has_age = in.first_arrival <= in.now && config_.max_queue_delay.ns > 0;
    const TimeNs due{saturating_sum(in.first_arrival.ns, config_.max_queue_delay.ns)};
    const bool is_over_age = has_age && due <= in.now;
    if (preferred > 0 && !is_over_age) {
      return preferred;
    }
    if (has_age && !is_over_age && pending < most && due != kNever) {
      not_before = due;
    }
    return pending;
  }

  Config config_;
};

static_assert(BatchSizer<PreferredSizeSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
