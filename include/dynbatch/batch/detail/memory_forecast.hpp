// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MemoryForecast: how many sequences the pool will hold, from how long outputs are likely to
/// become.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/output_lengths.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/running.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// The running sequences in cohorts of one class and about as many outputs, each with the chance to
/// live on. Use: gather(), then ask. Integers only.
class MemoryForecast {
 public:
  void add_ended(const FinishedOutput& output) noexcept {
    lengths_.add(output.request_class, output.tokens);
  }

  /// Takes stock of what runs. False where nobody lists it, or nothing is known: a first batch is
  /// not held back by guesses. O(running + buckets).
  bool gather(const SizerInput& in) noexcept {
    const bool knows_nothing = in.num_decoding + in.num_prefilling == 0 &&
                               lengths_.num_ended(RequestClass::Interactive) == 0;
    if (in.running.is_empty() || knows_nothing) {
      return false;
    }
    for (Total& total : totals_) {
      total = Total{};
    }
    lengths_.begin();
    num_listed_ = 0;
    held_tokens_ = 0;
    const std::int64_t half_block = in.pool.block_size / 2;  // the last one is half full
    in.running.for_each([&](const RunningSequence& r) noexcept {
      lengths_.add_running(r.request_class, r.output_tokens, r.max_output_tokens);
      Total& total =
          totals_[min_of(static_cast<std::size_t>(r.request_class), kNumClasses - 1) * kNumBuckets +
                  OutputLengths::bucket_of(r.output_tokens)];
      ++total.sequences;
      total.tokens += r.known_tokens + half_block;
      ++num_listed_;
      held_tokens_ += r.held_tokens;
    });
    lengths_.update();
    list_cohorts();
    return true;
  }

  /// Sequences that the pool will hold: those that run, plus as many of `mean_prompt` tokens as
  /// find room beside them at every later moment. Until then what runs has grown, and the share of
  /// it that is expected to have ended is gone. Blocks that several sequences share count once.
  /// `spread_percent` of the standard deviation is kept free. O(cohorts * moments).
  [[nodiscard]] std::int64_t sequences(const SizerInput& in, std::int64_t mean_prompt,
                                       std::int64_t spread_percent) const noexcept {
    constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();
    const std::int64_t block = in.pool.block_size;
    if (block < 1 || in.pool.total_blocks < 1) {
      return kNoBound;
    }
    const std::int64_t shared =
        max_of<std::int64_t>(held_tokens_ / block - in.pool.referenced_blocks, 0);
    const std::int64_t room = saturating_mul(saturating_add(in.pool.total_blocks, shared), block);
    std::int64_t fit = kNoBound;
    std::int64_t grown = 0;
    for (std::size_t moment = 0; moment < kNumBuckets; moment += kMomentStep) {
      const std::int64_t more = OutputLengths::start_of(moment);
      const std::int64_t used = tokens_after(more, spread_percent);
      const std::int64_t reaching = lengths_.surviving(RequestClass::Interactive, 0, more);
      const std::int64_t each = (mean_prompt + block / 2 + more) * reaching / kScale;
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

 private:
  static constexpr std::size_t kNumBuckets = OutputLengths::kNumBuckets;
  static constexpr std::size_t kNumClasses = OutputLengths::kNumClasses;
  static constexpr std::int64_t kScale = OutputLengths::kScale;
  static constexpr int kScaleLog = 20;
  static_assert(kScale == std::int64_t{1} << kScaleLog);
  static constexpr std::size_t kMomentStep = 4;

  struct Total {
    std::int64_t sequences = 0;
    std::int64_t tokens = 0;  ///< What they hold now.
  };
  struct Cohort {
    std::int64_t sequences = 0;
    std::int64_t each = 0;        ///< Tokens that one of them holds.
    std::int64_t outputs = 0;     ///< That one of them has, at least.
    std::int64_t reciprocal = 0;  ///< Of the share of outputs that get so far, times kScale^2.
    RequestClass request_class = RequestClass::Interactive;
  };

  void list_cohorts() noexcept {
    num_cohorts_ = 0;
    for (std::size_t i = 0; i < kNumClasses * kNumBuckets; ++i) {
      const Total& total = totals_[i];
      if (total.sequences == 0) {
        continue;
      }
      Cohort& cohort = cohorts_[num_cohorts_++];
      cohort.sequences = total.sequences;
      cohort.each = total.tokens / total.sequences;
      cohort.outputs = OutputLengths::start_of(i % kNumBuckets);
      cohort.request_class = static_cast<RequestClass>(i / kNumBuckets);
      const std::int64_t now = lengths_.reaching(cohort.request_class, cohort.outputs);
      cohort.reciprocal = now > 0 ? kScale * kScale / now : 0;
    }
  }

  /// Share of a cohort that gets `more` tokens at least, in kScale.
  [[nodiscard]] std::int64_t alive(const Cohort& cohort, std::int64_t more) const noexcept {
    const std::int64_t reaching = lengths_.reaching(cohort.request_class, cohort.outputs + more);
    return min_of((reaching * cohort.reciprocal) >> kScaleLog, kScale);
  }

  /// What the running sequences will hold after `more` tokens each: the expectation, and
  /// `spread_percent` of its standard deviation if they end independently of each other.
  [[nodiscard]] std::int64_t tokens_after(std::int64_t more,
                                          std::int64_t spread_percent) const noexcept {
    constexpr std::int64_t kMost = std::int64_t{1} << 20;  // keeps the products in range
    std::int64_t tokens = 0;
    std::int64_t variance = 0;
    for (std::size_t i = 0; i < num_cohorts_; ++i) {
      const Cohort& cohort = cohorts_[i];
      const std::int64_t share = alive(cohort, more);
      const std::int64_t each = min_of(cohort.each + more, kMost);
      const std::int64_t n = min_of(cohort.sequences, kMost >> 4);
      // Shifts of what is not negative: a division would look at the sign.
      tokens += (n * each * share) >> kScaleLog;
      const std::int64_t p = share >> 10;  // of 1,024
      variance += ((n * each * each) >> 12) * ((p * (1024 - p)) >> 8);
    }
    return tokens + integer_sqrt(variance) * spread_percent / 100;
  }

  OutputLengths lengths_;
  Total totals_[kNumClasses * kNumBuckets]{};
  Cohort cohorts_[kNumClasses * kNumBuckets]{};
  std::size_t num_cohorts_ = 0;
  std::int64_t num_listed_ = 0;
  std::int64_t held_tokens_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
