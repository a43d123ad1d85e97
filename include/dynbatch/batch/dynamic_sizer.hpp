// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// DynamicSizer: min(what memory holds, what the service level allows, what waits), measured as it
/// goes.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/detail/memory_forecast.hpp>
#include <dynbatch/batch/detail/prefill_within.hpp>
#include <dynbatch/batch/step_time_fit.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>
#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {

/// The default sizer. Memory and latency terms are recomputed every `recompute_ns`; the queue term
/// and the prompt tokens that fit into the slack are evaluated at each call, in O(1).
class DynamicSizer {
 public:
  struct Config {
    double alpha = 1.0;  ///< Share of the runnable sequences that may run; (0, 1], 1 = all.
    std::int32_t max_prefill_sequences = 0;  ///< Cap; 0 = the executor's rows.
    std::int32_t max_decode_sequences = 0;   ///< Cap; 0 = the executor's rows.
    std::int64_t max_prefill_tokens = 8192;  ///< Prompt tokens a step without a TPOT limit; >= 1.
    std::int64_t min_prefill_tokens = 256;   ///< Prompt tokens a step at least, whatever the slack
                                             ///< is, so that prompts always progress; >= 1.
    std::int64_t unknown_prefill_tokens =
        2048;  ///< The same under a TPOT limit while no cost is learned.
    std::int32_t memory_spread_percent = 100;  ///< Room kept beyond the expected need for memory,
                                               ///< in percent of its standard deviation; 0 to 1000.
    std::int64_t recompute_ns = 100'000'000;   ///< Memory and latency terms; ns, >= 0.
    StepTimeFit::Config fit{};                 ///< `dynamic_batch_window` is its two windows.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (!(alpha > 0.0 && alpha <= 1.0)) {
        return {Errc::InvalidConfig, "alpha", 0, 1, "must lie above 0 and at most at 1"};
      }
      if (max_prefill_sequences < 0) {
        return {Errc::InvalidConfig, "max_prefill_sequences", max_prefill_sequences, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      if (max_decode_sequences < 0) {
        return {Errc::InvalidConfig, "max_decode_sequences", max_decode_sequences, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      if (min_prefill_tokens < 1) {
        return {Errc::InvalidConfig, "min_prefill_tokens", min_prefill_tokens, 1,
                "must be at least 1"};
      }
      if (max_prefill_tokens < min_prefill_tokens) {
        return {Errc::InvalidConfig, "max_prefill_tokens", max_prefill_tokens, min_prefill_tokens,
                "must be at least min_prefill_tokens"};
      }
      if (unknown_prefill_tokens < 1) {
        return {Errc::InvalidConfig, "unknown_prefill_tokens", unknown_prefill_tokens, 1,
                "must be at least 1"};
      }
      if (memory_spread_percent < 0 || memory_spread_percent > 1000) {
        return {Errc::InvalidConfig, "memory_spread_percent", memory_spread_percent, 1000,
                "must lie between 0 and 1000"};
      }
      if (recompute_ns < 0) {
        return {Errc::InvalidConfig, "recompute_ns", recompute_ns, 0, "must not be negative"};
      }
      return fit.validate();
    }
  };

  DynamicSizer() : DynamicSizer(Config{}) {}
  explicit DynamicSizer(Config config) : config_(checked(config)), fit_(config.fit) {
    alpha_millionths_ = static_cast<std::int64_t>(config.alpha * 1e6 + 0.5);
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    if (is_recompute_due(in.now)) {
      if (in.num_waiting > 0) {
        mean_prompt_ = max_of<std::int64_t>(in.waiting_prompt_tokens, 0) / in.num_waiting;
      }
      const bool is_listed = forecast_.gather(in);
      by_memory_ = is_listed ? forecast_.sequences(in, mean_prompt_, config_.memory_spread_percent)
                             : sequences_by_sums(in);
      by_latency_ = sequences_by_latency(in);
      recomputed_at_ = in.now;
      was_computed_ = true;
    }
    const std::int64_t rows = max_of(in.max_sequences, 1);
    const std::int64_t decode_cap = cap(config_.max_decode_sequences, rows);
    const std::int64_t prefill_cap = cap(config_.max_prefill_sequences, rows);
    const std::int64_t bound = min_of(by_memory_, by_latency_);
    const std::int64_t waiting = max_of<std::int64_t>(in.num_waiting, 0);
    const std::int64_t prefills = saturating_add(waiting, max_of(in.num_prefilling, 0));
    const std::int64_t all = saturating_add(prefills, max_of(in.num_decoding, 0));
    by_queue_ = by_queue(all);
    decode_cap_ = decode_cap;

    BatchLimits out;
    out.max_decode_sequences =
        static_cast<std::int32_t>(clamp_to<std::int64_t>(min_of(bound, by_queue_), 1, decode_cap));
    out.max_prefill_sequences = static_cast<std::int32_t>(
        clamp_to<std::int64_t>(min_of(bound, by_queue(prefills)), 1, prefill_cap));
    out.max_tokens = max_of<std::int64_t>(in.max_tokens, 1);
    out.max_prefill_tokens = min_of(prefill_tokens(in), out.max_tokens);
    out.not_before = in.now;
    return out;
  }

  /// Which term gave the last max_decode_sequences; of equal ones the first in this order.
  [[nodiscard]] SizerBound bound() const noexcept {
    const std::int64_t least = min_of(min_of(by_memory_, by_latency_), by_queue_);
    if (decode_cap_ <= least) {
      return SizerBound::Cap;
    }
    if (by_latency_ == least) {
      return SizerBound::Latency;
    }
    return by_memory_ == least ? SizerBound::Memory : SizerBound::Queue;
  }

  void observe(const StepFeedback& feedback) noexcept {
    fit_.observe(feedback.now, feedback.work, feedback.measured);
    for (const FinishedOutput& output : feedback.finished) {
      forecast_.add_ended(output);
    }
    if (feedback.num_finished > 0 && feedback.finished_output_tokens >= 0) {
      // Halving keeps the mean fresh and the sums far from overflow.
      if (num_finished_ >= kMeanOver) {
        num_finished_ /= 2;
        finished_tokens_ /= 2;
      }
      num_finished_ += feedback.num_finished;
      finished_tokens_ = saturating_add(finished_tokens_, feedback.finished_output_tokens);
    }
  }

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    constexpr std::int64_t kRows = std::numeric_limits<std::int32_t>::max();
    BatchLimits out;
    out.max_prefill_sequences =
        static_cast<std::int32_t>(cap(config_.max_prefill_sequences, kRows));
    out.max_decode_sequences = static_cast<std::int32_t>(cap(config_.max_decode_sequences, kRows));
    out.max_tokens = std::numeric_limits<std::int64_t>::max();
    out.max_prefill_tokens = max_of(config_.max_prefill_tokens, config_.unknown_prefill_tokens);
    return out;
  }
  [[nodiscard]] StepCost cost() const noexcept { return fit_.cost(); }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  static constexpr std::int64_t kMeanOver = 4096;
  static constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

  [[nodiscard]] static Config checked(const Config& config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
    return config;
  }

  [[nodiscard]] static constexpr std::int64_t cap(std::int32_t configured,
                                                  std::int64_t rows) noexcept {
    return configured > 0 ? min_of<std::int64_t>(configured, rows) : rows;
  }

  [[nodiscard]] bool is_recompute_due(TimeNs now) const noexcept {
    std::int64_t since = 0;
    return !was_computed_ || __builtin_sub_overflow(now.ns, recomputed_at_.ns, &since) ||
           since < 0 || since >= config_.recompute_ns;
  }

  /// max(1, ceil(alpha * q)).
  [[nodiscard]] std::int64_t by_queue(std::int64_t runnable) const noexcept {
    constexpr std::int64_t kMillion = 1'000'000;
    if (alpha_millionths_ >= kMillion) {
      return max_of<std::int64_t>(runnable, 1);
    }
    return max_of<std::int64_t>(ceil_div(saturating_mul(runnable, alpha_millionths_), kMillion), 1);
  }

  /// Tokens a request is expected to produce in all; before the first finish what it has, plus a
  /// block.
  [[nodiscard]] std::int64_t predicted_outputs(std::int64_t so_far,
                                               std::int64_t block_size) const noexcept {
    if (num_finished_ == 0) {
      return saturating_add(so_far, block_size);
    }
    return max_of(finished_tokens_ / num_finished_, so_far);
  }

  /// Sequences that the pool will hold, from sums: where nobody lists what runs.
  [[nodiscard]] std::int64_t sequences_by_sums(const SizerInput& in) const noexcept {
    const std::int64_t block = in.pool.block_size;
    if (block < 1 || in.pool.total_blocks < 1) {
      return kNoBound;
    }
    const std::int64_t running =
        saturating_add(max_of(in.num_decoding, 0), max_of(in.num_prefilling, 0));
    const std::int64_t mean_outputs =
        running > 0 ? max_of<std::int64_t>(in.running_output_tokens, 0) / running : 0;
    const std::int64_t growth_blocks =
        ceil_div(predicted_outputs(mean_outputs, block) - mean_outputs, block);
    const std::int64_t request_blocks = max_of<std::int64_t>(
        ceil_div(saturating_add(mean_prompt_, predicted_outputs(0, block)), block), 1);
    const std::int64_t taken = saturating_add(max_of<std::int64_t>(in.pool.referenced_blocks, 0),
                                              saturating_mul(running, growth_blocks));
    const std::int64_t left =
        max_of<std::int64_t>(in.pool.total_blocks - min_of(taken, in.pool.total_blocks), 0);
    return saturating_add(running, left / request_blocks);
  }

  /// Time until the next token of the most urgent sequence is due; kNoBound without a TPOT limit.
  [[nodiscard]] static std::int64_t slack_ns(const SizerInput& in) noexcept {
    if (in.next_token_due == kNever || in.num_decoding <= 0) {
      return kNoBound;
    }
    std::int64_t slack = 0;
    if (__builtin_sub_overflow(in.next_token_due.ns, in.now.ns, &slack)) {
      return in.next_token_due > in.now ? kNoBound : 0;
    }
    return max_of<std::int64_t>(slack, 0);
  }

  /// Largest number of decoding sequences of the present mean context whose pure decode step stays
  /// within the least TPOT limit: what can be kept up. Not the slack of the moment, which one late
  /// step takes away from all and prompts have to make room for.
  [[nodiscard]] std::int64_t sequences_by_latency(const SizerInput& in) const noexcept {
    const StepCost& cost = fit_.cost();
    if (in.least_tpot >= kUnbounded || in.num_decoding <= 0 || !cost.is_known()) {
      return kNoBound;
    }
    const std::int64_t mean_context =
        max_of<std::int64_t>(in.decoding_kv_tokens, 0) / in.num_decoding;
    return max_of<std::int64_t>(
        cost.decode_rows_within(in.least_tpot, StepWork{}, mean_context, kNoBound), 1);
  }

  /// Prompt tokens of the next step.
  [[nodiscard]] std::int64_t prefill_tokens(const SizerInput& in) const noexcept {
    const StepCost& cost = fit_.cost();
    const std::int64_t slack = slack_ns(in);
    if (slack == kNoBound) {
      return config_.max_prefill_tokens;
    }
    if (!cost.is_known()) {
      return config_.unknown_prefill_tokens;
    }
    // Steps under way end before this one begins.
    const std::int64_t under_way =
        saturating_mul(cost.predict(detail::decode_work(in)).ns, max_of(in.plans_in_flight, 0));
    return max_of(
        detail::prefill_tokens_within(cost, {slack - min_of(slack, under_way)},
                                      detail::decode_work(in), in, config_.max_prefill_tokens),
        config_.min_prefill_tokens);
  }

  Config config_;
  detail::MemoryForecast forecast_;
  std::int64_t alpha_millionths_ = 0;
  StepTimeFit fit_;
  std::int64_t num_finished_ = 0;
  std::int64_t finished_tokens_ = 0;
  std::int64_t mean_prompt_ = 0;
  std::int64_t by_memory_ = kNoBound;
  std::int64_t by_latency_ = kNoBound;
  std::int64_t by_queue_ = 1;
  std::int64_t decode_cap_ = kNoBound;
  TimeNs recomputed_at_{};
  bool was_computed_ = false;
};

static_assert(BatchSizer<DynamicSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
