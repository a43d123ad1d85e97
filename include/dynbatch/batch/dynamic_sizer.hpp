// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// DynamicSizer: min(what memory holds, what the service level allows, what waits), measured as it
/// goes.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/detail/prefill_within.hpp>
#include <dynbatch/batch/output_lengths.hpp>
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
        2048;                           ///< The same under a TPOT limit while no cost is learned.
    std::int32_t recovery_tokens = 16;  ///< A step may run late by what this many pure decode steps
                                        ///< make good, if nearly all sequences are expected to get
                                        ///< so many tokens more; 0 = none is late on purpose.
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
      if (recovery_tokens < 0) {
        return {Errc::InvalidConfig, "recovery_tokens", recovery_tokens, 0, "must not be negative"};
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
      const bool is_listed = gather(in);
      by_memory_ = is_listed ? sequences_by_memory(in) : sequences_by_sums(in);
      recoverable_tokens_ = is_listed ? recoverable_tokens() : config_.recovery_tokens;
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
      lengths_.add(output.request_class, output.tokens);
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

  /// Takes stock of what runs, and of how long outputs become. False where nobody lists it, or
  /// nothing is known: a first batch is not held back by guesses. O(running + buckets).
  bool gather(const SizerInput& in) noexcept {
    const std::int64_t block = in.pool.block_size;
    if (in.num_waiting > 0) {
      mean_prompt_ = max_of<std::int64_t>(in.waiting_prompt_tokens, 0) / in.num_waiting;
    }
    const bool knows_nothing = in.num_decoding + in.num_prefilling == 0 &&
                               lengths_.num_ended(RequestClass::Interactive) == 0;
    if (in.running.is_empty() || knows_nothing) {
      return false;
    }
    for (Cohort& cohort : cohorts_) {
      cohort = Cohort{};
    }
    lengths_.begin();
    num_listed_ = 0;
    held_tokens_ = 0;
    in.running.for_each([&](const RunningSequence& r) noexcept {
      lengths_.add_running(r.request_class, r.output_tokens, r.max_output_tokens);
      Cohort& cohort = cohort_of(r.request_class, OutputLengths::bucket_of(r.output_tokens));
      ++cohort.sequences;
      cohort.tokens += r.known_tokens + block / 2;  // the last block is half full
      ++num_listed_;
      held_tokens_ += r.held_tokens;
    });
    lengths_.update();
    return true;
  }

  /// `recovery_tokens`, if nearly all (kNearlyAll) of the running sequences are expected to get so
  /// many tokens more, else 0: who ends sooner can't make good what was late. O(cohorts).
  [[nodiscard]] std::int64_t recoverable_tokens() const noexcept {
    std::int64_t surviving = 0;
    for (std::size_t i = 0; i < OutputLengths::kNumClasses * OutputLengths::kNumBuckets; ++i) {
      if (cohorts_[i].sequences > 0) {
        const auto request_class = static_cast<RequestClass>(i / OutputLengths::kNumBuckets);
        const std::int64_t outputs = OutputLengths::start_of(i % OutputLengths::kNumBuckets);
        surviving += cohorts_[i].sequences *
                     lengths_.surviving(request_class, outputs, config_.recovery_tokens);
      }
    }
    return surviving >= num_listed_ * kNearlyAll ? config_.recovery_tokens : 0;
  }

  /// Sequences that the pool will hold: those that run, plus as many of the mean waiting request as
  /// find room beside them at every later moment. Until then what runs has grown, and the share of
  /// it that OutputLengths expects to have ended is gone. Blocks that several sequences share count
  /// once. O(buckets * moments).
  [[nodiscard]] std::int64_t sequences_by_memory(const SizerInput& in) noexcept {
    const std::int64_t block = in.pool.block_size;
    if (block < 1 || in.pool.total_blocks < 1) {
      return kNoBound;
    }
    const std::int64_t shared =
        max_of<std::int64_t>(held_tokens_ / block - in.pool.referenced_blocks, 0);
    const std::int64_t room = saturating_mul(saturating_add(in.pool.total_blocks, shared), block);
    std::int64_t fit = kNoBound;
    std::int64_t grown = 0;
    for (std::size_t moment = 0; moment < OutputLengths::kNumBuckets; moment += kMomentStep) {
      const std::int64_t more = OutputLengths::start_of(moment);
      const std::int64_t used = tokens_after(more);
      const std::int64_t alive = lengths_.surviving(RequestClass::Interactive, 0, more);
      const std::int64_t each = (mean_prompt_ + block / 2 + more) * alive / OutputLengths::kScale;
      if (each > 0) {
        fit = min_of(fit, max_of<std::int64_t>(room - used, 0) / each);
      }
      if (used < grown / 4) {
        break;  // most have ended
      }
      grown = max_of(grown, used);
    }
    return saturating_add(num_listed_, fit);
  }

  /// What the running sequences will hold after `more` tokens each: the expectation, and
  /// `memory_spread_percent` of its standard deviation if they end independently of each other.
  [[nodiscard]] std::int64_t tokens_after(std::int64_t more) const noexcept {
    constexpr std::int64_t kMost = std::int64_t{1} << 20;  // keeps the products in range
    std::int64_t tokens = 0;
    std::int64_t variance = 0;
    for (std::size_t c = 0; c < OutputLengths::kNumClasses; ++c) {
      const auto request_class = static_cast<RequestClass>(c);
      for (std::size_t b = 0; b < OutputLengths::kNumBuckets; ++b) {
        const Cohort& cohort = cohorts_[c * OutputLengths::kNumBuckets + b];
        if (cohort.sequences == 0) {
          continue;
        }
        const std::int64_t alive =
            lengths_.surviving(request_class, OutputLengths::start_of(b), more);
        const std::int64_t each = min_of(cohort.tokens / cohort.sequences + more, kMost);
        const std::int64_t n = min_of(cohort.sequences, kMost >> 4);
        tokens += n * each * alive / OutputLengths::kScale;
        const std::int64_t share = alive / 1024;  // of 1,024
        variance += (n * each * each / 4096) * (share * (1024 - share) / 256);
      }
    }
    return tokens + integer_sqrt(variance) * config_.memory_spread_percent / 100;
  }

  /// The same from sums, where nobody lists what runs.
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

  /// Time that the next step may take: the slack, plus what pure decode steps will make good again.
  [[nodiscard]] std::int64_t allowed_ns(const SizerInput& in,
                                        std::int64_t decode_ns) const noexcept {
    const std::int64_t slack = slack_ns(in);
    const std::int64_t gain = in.least_tpot.ns - decode_ns;
    return slack != kNoBound && gain > 0
               ? saturating_add(slack, saturating_mul(gain, recoverable_tokens_))
               : slack;
  }

  /// Largest number of decoding sequences of the present mean context whose step fits.
  [[nodiscard]] std::int64_t sequences_by_latency(const SizerInput& in) const noexcept {
    const StepCost& cost = fit_.cost();
    const std::int64_t allowed = allowed_ns(in, cost.predict(detail::decode_work(in)).ns);
    if (allowed == kNoBound || !cost.is_known()) {
      return kNoBound;
    }
    const std::int64_t mean_context =
        max_of<std::int64_t>(in.decoding_kv_tokens, 0) / in.num_decoding;
    return max_of<std::int64_t>(
        cost.decode_rows_within({allowed}, StepWork{}, mean_context, kNoBound), 1);
  }

  /// Prompt tokens of the next step.
  [[nodiscard]] std::int64_t prefill_tokens(const SizerInput& in) const noexcept {
    const StepCost& cost = fit_.cost();
    const std::int64_t decode_ns = cost.predict(detail::decode_work(in)).ns;
    const std::int64_t allowed = allowed_ns(in, decode_ns);
    if (allowed == kNoBound) {
      return config_.max_prefill_tokens;
    }
    if (!cost.is_known()) {
      return config_.unknown_prefill_tokens;
    }
    // Steps under way end before this one begins.
    const std::int64_t under_way = saturating_mul(decode_ns, max_of(in.plans_in_flight, 0));
    return max_of(
        detail::prefill_tokens_within(cost, {allowed - min_of(allowed, under_way)},
                                      detail::decode_work(in), in, config_.max_prefill_tokens),
        config_.min_prefill_tokens);
  }

  /// Running sequences of one class with about as many outputs.
  struct Cohort {
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;  ///< What they hold now.
  };
  static constexpr std::size_t kMomentStep = 4;
  static constexpr std::int64_t kNearlyAll = OutputLengths::kScale / 100 * 90;
  [[nodiscard]] Cohort& cohort_of(RequestClass request_class, std::size_t bucket) noexcept {
    return cohorts_[min_of(static_cast<std::size_t>(request_class),
                           OutputLengths::kNumClasses - 1) *
                        OutputLengths::kNumBuckets +
                    bucket];
  }

  Config config_;
  OutputLengths lengths_;
  Cohort cohorts_[OutputLengths::kNumClasses * OutputLengths::kNumBuckets]{};
  std::int64_t alpha_millionths_ = 0;
  StepTimeFit fit_;
  std::int64_t num_finished_ = 0;
  std::int64_t finished_tokens_ = 0;
  std::int64_t mean_prompt_ = 0;
  std::int64_t num_listed_ = 0;   // sequences in cohorts_,
  std::int64_t held_tokens_ = 0;  // and what their blocks have room for
  std::int64_t recoverable_tokens_ = 0;
  std::int64_t by_memory_ = kNoBound;
  std::int64_t by_latency_ = kNoBound;
  std::int64_t by_queue_ = 1;
  std::int64_t decode_cap_ = kNoBound;
  TimeNs recomputed_at_{};
  bool was_computed_ = false;
};

static_assert(BatchSizer<DynamicSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
