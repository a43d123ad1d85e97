// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// OutputLengths: how many outputs are likely to become how long, learned from those that ended and
/// from those that have not ended yet.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/model/request.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A survival curve over output lengths for each request class (the product-limit estimator of
/// Kaplan and Meier, 1958, in buckets): of the sequences that reached a length, how many ended
/// there. Sequences that still run count as having survived so far, so that early on, when only
/// short outputs have ended, nobody takes all outputs to be short. Where nothing is known all
/// lengths up to the largest limit seen are taken to be equally likely. Integers only.
///
/// That largest limit is taken to be no more than twice the longest output met, at least
/// kLeastLimit: limits are often far beyond what is produced.
///
/// Use: add() what ends; now and then begin(), add_running() for each running sequence, update().
class OutputLengths {
 public:
  static constexpr std::size_t kNumBuckets = 128;
  static constexpr std::size_t kNumClasses = 3;
  /// Shares are integers out of this.
  static constexpr std::int64_t kScale = std::int64_t{1} << 20;

  /// Bucket of a length: 4 tokens wide below 32, then an eighth of a power of two.
  [[nodiscard]] static constexpr std::size_t bucket_of(std::int64_t tokens) noexcept {
    if (tokens < 32) {
      return static_cast<std::size_t>(max_of<std::int64_t>(tokens, 0) / 4);
    }
    const int log = 63 - __builtin_clzll(static_cast<unsigned long long>(tokens));
    const auto bucket = static_cast<std::size_t>(log - 5) * 8U +
                        static_cast<std::size_t>((tokens >> (log - 3)) & 7) + 8U;
    return min_of(bucket, kNumBuckets - 1);
  }
  /// Smallest length of a bucket.
  [[nodiscard]] static constexpr std::int64_t start_of(std::size_t bucket) noexcept {
    if (bucket < 8) {
      return static_cast<std::int64_t>(bucket) * 4;
    }
    const std::size_t octave = (bucket - 8) / 8;
    return (static_cast<std::int64_t>(8 + (bucket - 8) % 8)) << (octave + 2);
  }

  /// An output ended normally with so many tokens. O(1), but O(buckets) every kRemembered.
  void add(RequestClass request_class, std::int64_t tokens) noexcept {
    Curve& c = curves_[index_of(request_class)];
    if (c.num_ended >= kRemembered) {  // halving keeps the curve fresh
      c.num_ended = 0;
      for (std::int64_t& n : c.ended) {
        n /= 2;
        c.num_ended += n;
      }
    }
    ++c.ended[bucket_of(tokens)];
    c.is_seen = true;
    ++c.num_ended;
    c.longest = clamp_to(tokens, c.longest, kMostTokens);
  }

  /// Forgets the running sequences of the last update.
  void begin() noexcept {
    for (Curve& c : curves_) {
      for (std::int64_t& n : c.running) {
        n = 0;
      }
    }
  }
  void add_running(RequestClass request_class, std::int64_t outputs, std::int64_t limit) noexcept {
    Curve& c = curves_[index_of(request_class)];
    ++c.running[bucket_of(outputs)];
    c.is_seen = true;
    c.limit = clamp_to(limit, c.limit, kMostTokens);
    c.longest = clamp_to(outputs, c.longest, kMostTokens);
  }

  /// Computes the curves anew. O(buckets).
  void update() noexcept {
    for (Curve& c : curves_) {
      if (c.is_seen || c.share[0] == 0) {  // the curve of a class that was never seen stays
        update(c);
      }
    }
  }

  /// Share of the outputs with `outputs` tokens that get `more` tokens at least, in kScale; within
  /// a bucket outputs end evenly. O(1).
  [[nodiscard]] std::int64_t surviving(RequestClass request_class, std::int64_t outputs,
                                       std::int64_t more) const noexcept {
    const Curve& c = curves_[index_of(request_class)];
    const std::int64_t now = share_at(c, outputs);
    return now > 0 ? min_of(share_at(c, saturating_add(outputs, more)) * kScale / now, kScale) : 0;
  }

  /// Share of all outputs of the class that have `tokens` at least, in kScale. O(1).
  [[nodiscard]] std::int64_t reaching(RequestClass request_class,
                                      std::int64_t tokens) const noexcept {
    return share_at(curves_[index_of(request_class)], tokens);
  }

  /// Outputs of the class that have ended, decayed.
  [[nodiscard]] std::int64_t num_ended(RequestClass request_class) const noexcept {
    return curves_[index_of(request_class)].num_ended;
  }

 private:
  static constexpr std::int64_t kRemembered = 4096;
  static constexpr std::int64_t kLeastLimit = 1024;
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 19;
  static constexpr std::int64_t kPriorWeight = 2;  // sequences

  struct Curve {
    std::int64_t ended[kNumBuckets]{};
    std::int64_t running[kNumBuckets]{};
    std::int64_t share[kNumBuckets + 1]{};  // that reach the bucket, in kScale
    std::int64_t num_ended = 0;
    bool is_seen = false;      // by add() or add_running()
    std::int64_t limit = 0;    // largest limit met
    std::int64_t longest = 0;  // longest output met
  };

  static constexpr std::size_t index_of(RequestClass request_class) noexcept {
    return min_of(static_cast<std::size_t>(request_class), kNumClasses - 1);
  }

  /// Share of all outputs that have so many tokens at least, in kScale.
  [[nodiscard]] static std::int64_t share_at(const Curve& c, std::int64_t tokens) noexcept {
    // As bucket_of() and start_of() say, without going through the start: what is left of the
    // tokens below the bucket's number is how far they are into it.
    const std::int64_t t = max_of<std::int64_t>(tokens, 0);
    std::size_t b = static_cast<std::size_t>(t / 4);
    int log_width = 2;
    if (t >= 32) {
      log_width = 60 - __builtin_clzll(static_cast<unsigned long long>(t));
      b = static_cast<std::size_t>(log_width - 2) * 8U + static_cast<std::size_t>(t >> log_width);
    }
    if (b >= kNumBuckets) {
      return c.share[kNumBuckets];
    }
    const std::int64_t into = t & ((std::int64_t{1} << log_width) - 1);
    return c.share[b] - ((c.share[b] - c.share[b + 1]) * into >> log_width);
  }

  static void update(Curve& c) noexcept {
    const std::int64_t guess = max_of(2 * c.longest, kLeastLimit);
    const std::int64_t limit = c.limit > 0 ? min_of(c.limit, guess) : guess;
    std::int64_t reached = 0;  // ended or running, in this bucket or behind
    for (std::size_t b = 0; b < kNumBuckets; ++b) {
      reached += c.ended[b] + c.running[b];
    }
    c.share[0] = kScale;
    for (std::size_t b = 0; b < kNumBuckets; ++b) {
      const std::int64_t start = start_of(b);
      const std::int64_t width = start_of(b + 1) - start;
      // Who runs in this bucket has been through half of it.
      const std::int64_t at_risk = 2 * reached - c.running[b];
      reached -= c.ended[b] + c.running[b];
      // Share that ends here: the data, and kPriorWeight sequences of unknown length.
      std::int64_t ends = kScale;
      if (start + width < limit) {
        const std::int64_t unknown = kScale * width / (limit - start);
        ends = (2 * c.ended[b] * kScale + 2 * kPriorWeight * unknown) /
               max_of<std::int64_t>(at_risk + 2 * kPriorWeight, 1);
      }
      c.share[b + 1] = c.share[b] - c.share[b] * min_of(ends, kScale) / kScale;
    }
  }

  Curve curves_[kNumClasses]{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
