// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// StepTimeFit: learns online what a step costs and publishes it as an integer StepCost.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Recursive least squares on (1, prefill tokens, decode rows, KV tokens, attention pairs) with
/// directional forgetting: a sample only displaces what is known about steps of its own kind, so
/// that a long stretch of pure decoding doesn't wind up or forget the cost of prompts.
///
/// Steps with and without prefill share the fit, because a mixed step can't be split; windows,
/// noise and the detection of changes are each kind's own. Doubles stay inside; what a decision
/// reads is the published StepCost. Plain + - * / only. One observe() costs O(1).
class StepTimeFit {
 public:
  struct Config {
    std::int64_t decode_window_ns =
        500'000'000;  ///< Time constant of steps without prefill; ns, > 0.
    std::int64_t prefill_window_ns =
        2'000'000'000;                      ///< Time constant of steps with prefill; ns, > 0.
    std::int64_t publish_ns = 100'000'000;  ///< Least time between publications; ns, >= 0.
    std::int32_t min_samples = 8;           ///< Samples before the first publication; >= 1.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (decode_window_ns < 1) {
        return {Errc::InvalidConfig, "decode_window_ns", decode_window_ns, 1, "must be positive"};
      }
      if (prefill_window_ns < 1) {
        return {Errc::InvalidConfig, "prefill_window_ns", prefill_window_ns, 1, "must be positive"};
      }
      if (publish_ns < 0) {
        return {Errc::InvalidConfig, "publish_ns", publish_ns, 0, "must not be negative"};
      }
      if (min_samples < 1) {
        return {Errc::InvalidConfig, "min_samples", min_samples, 1, "must be at least 1"};
      }
      return kOk;
    }
  };

  StepTimeFit() : StepTimeFit(Config{}) {}
  explicit StepTimeFit(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
    forget_all();
  }

  /// Takes in one measured step. Samples that no step can have (time <= 0 or above an hour,
  /// negative or absurd work) change nothing.
  void observe(TimeNs now, const StepWork& work, DurationNs measured) noexcept {
    if (!is_plausible(work, measured)) {
      return;
    }
    const Vector x = {1.0, static_cast<double>(work.prefill_tokens) * (1.0 / kTokenUnit),
                      static_cast<double>(work.decode_rows) * (1.0 / kRowUnit),
                      static_cast<double>(work.kv_tokens) * (1.0 / kKvUnit),
                      static_cast<double>(work.attention_pairs) * (1.0 / kPairUnit)};
    const Kind kind = work.prefill_tokens > 0 ? Prefill : Decode;
    const std::int64_t window =
        kind == Prefill ? config_.prefill_window_ns : config_.decode_window_ns;
    update(x, static_cast<double>(measured.ns) * 1e-6, kind,
           static_cast<double>(window) /
               (static_cast<double>(window) + static_cast<double>(measured.ns)));
    num_samples_ += num_samples_ < config_.min_samples ? 1 : 0;
    if (num_samples_ >= config_.min_samples && is_publication_due(now)) {
      publish(now);
    }
  }

  /// The last published cost; version 0 before the first.
  [[nodiscard]] const StepCost& cost() const noexcept { return cost_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  static constexpr std::size_t kNumFeatures = 5;
  static constexpr std::size_t kTokens = 1;
  static constexpr std::size_t kPairs = 4;
  using Vector = double[kNumFeatures];
  using Matrix = double[kNumFeatures][kNumFeatures];
  enum Kind : std::uint8_t { Decode, Prefill };
  enum class Verdict : std::uint8_t { Fits, Outlier, DecodeChanged, PrefillChanged, AllChanged };

  static constexpr double kTokenUnit = 1024.0;
  static constexpr double kRowUnit = 64.0;
  static constexpr double kKvUnit = 65536.0;
  static constexpr double kPairUnit = 4194304.0;
  /// Variance of what is not known, in ms^2 a unit: far above any real coefficient.
  static constexpr double kUnknown = 1e6;
  /// The same for attention: where few steps have been seen, its share goes to the tokens.
  static constexpr double kUnknownPairs = 1e4;
  /// Above what the longest step could show, in ms a unit.
  static constexpr double kMostTheta = 1e12;
  static constexpr double kUsual = 16.0;  // ms
  /// A sample may be judged an outlier only where the fit's own variance is below this share.
  static constexpr double kKnown = 0.5;
  /// An engine has changed after so many outliers more on one side than samples that fit; where so
  /// large a share of the mean error, of at least so much, is on one side; or where that is a
  /// large share of the time although nothing was forgotten for a while.
  static constexpr int kChangeAfter = 3;
  static constexpr double kOneSided = 0.85;
  static constexpr double kLeastBias = 0.2;
  static constexpr double kPoor = 0.175 * kUsual;
  static constexpr int kStale = 64;    // samples
  static constexpr int kSettled = 32;  // samples
  static constexpr double kScaleOver = 16.0;
  static constexpr double kFarOff = 0.75 * kUsual;  // A factor of four is never usual.
  /// Attention is published where it exceeds this many standard errors, squared, and withdrawn
  /// below that many, at a noise of at least so much. Times pi / 2: the variance of errors, from
  /// the square of their mean size.
  static constexpr double kClear = 16.0 * 1.57;
  static constexpr double kStillClear = 1.57;
  static constexpr double kLeastNoise = 0.02;

  [[nodiscard]] static constexpr double unknown(std::size_t feature) noexcept {
    return feature == kPairs ? kUnknownPairs : kUnknown;
  }
  [[nodiscard]] static constexpr Verdict changes_with(std::size_t feature) noexcept {
    return feature == kTokens || feature == kPairs ? Verdict::PrefillChanged
                                                   : Verdict::DecodeChanged;
  }

  [[nodiscard]] static constexpr bool is_plausible(const StepWork& work,
                                                   DurationNs measured) noexcept {
    constexpr std::int64_t kHourNs = 3'600'000'000'000;
    const auto in_range = [](std::int64_t v, int bits) {
      return v >= 0 && v <= std::int64_t{1} << bits;
    };
    return measured.ns > 0 && measured.ns <= kHourNs && in_range(work.prefill_tokens, 24) &&
           in_range(work.decode_rows, 20) && in_range(work.kv_tokens, 34) &&
           in_range(work.attention_pairs, 44);
  }

  [[nodiscard]] bool is_publication_due(TimeNs now) const noexcept {
    std::int64_t since = 0;
    return cost_.version == 0 || __builtin_sub_overflow(now.ns, published_at_.ns, &since) ||
           since >= config_.publish_ns;
  }

  void forget_all() noexcept {
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        covariance_[i][j] = i == j ? unknown(i) : 0.0;
      }
    }
  }
  /// The engine has changed: each coefficient of a kind of step may be off by as much as itself, or
  /// by an eighth of what would explain the error alone; by more if that didn't help the last time.
  void loosen(const Vector& x, double error, Verdict verdict) noexcept {
    looseness_ = since_change_ < kSettled ? min_of(looseness_ * 4.0, kUnknown) : 1.0;
    since_change_ = 0;
    num_outliers_[Decode] = 0;
    num_outliers_[Prefill] = 0;
    bias_[Decode] = 0.0;
    bias_[Prefill] = 0.0;
    const Verdict other =
        verdict == Verdict::DecodeChanged ? Verdict::PrefillChanged : Verdict::DecodeChanged;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      if (verdict != Verdict::AllChanged && changes_with(i) == other) {
        continue;
      }
      const double share = x[i] > 0.0 ? error / (8.0 * x[i]) : 0.0;
      const double variance = max_of(theta_[i] * theta_[i], share * share) * looseness_;
      const double before = covariance_[i][i];
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        covariance_[i][j] = 0.0;
        covariance_[j][i] = 0.0;
      }
      covariance_[i][i] = clamp_to(variance, before, max_of(before, unknown(i)));
    }
  }

  /// Errors grow with the time, so a sample of t ms has the weight of (kUsual / t)^2.
  void update(const Vector& x, double y, Kind kind, double keep) noexcept {
    Vector g;             // covariance * x
    double spread = 0.0;  // x' * covariance * x: how little is known about such a step, ms^2
    double predicted = 0.0;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      g[i] = 0.0;
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        g[i] += covariance_[i][j] * x[j];
      }
      spread += g[i] * x[i];
      predicted += theta_[i] * x[i];
    }
    if (!(spread > 0.0)) {
      forget_all();  // Rounding has eaten the positive definiteness.
      return;
    }
    since_change_ += since_change_ < kStale ? 1 : 0;
    const double error = y - predicted;
    const double time = y > 1.5 * predicted ? y : predicted;  // y itself would favour short ones
    const double root = kUsual / max_of(time, 1.0);
    const double weight = root * root;
    const double r = spread * weight;
    if (r < kKnown) {
      const Verdict verdict = judge(error * root, max_of(predicted, 0.0) * root, kind);
      if (verdict != Verdict::Fits) {
        if (verdict != Verdict::Outlier) {
          loosen(x, error, verdict);
          update(x, y, kind, keep);  // Its first sample; no change again, the counts are 0.
        }
        return;
      }
    }
    // Directional forgetting (Kulhavy 1987): information e * x * x' is added, where e < 0 removes.
    const double e = keep - (1.0 - keep) / r;
    const double gain = error * weight / (1.0 + r);
    const double shrink = e * weight / (keep * (1.0 + r));
    bool is_sane = true;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      theta_[i] += g[i] * gain;
      for (std::size_t j = 0; j <= i; ++j) {
        covariance_[i][j] -= g[i] * g[j] * shrink;
        covariance_[j][i] = covariance_[i][j];
      }
      is_sane = is_sane && covariance_[i][i] > 0.0 && covariance_[i][i] <= kUnknown;
    }
    if (!is_sane) {
      forget_all();
      return;
    }
    // At once, not only when published: else the others are fitted beside something that can't be.
    for (std::size_t held = 0; held < kNumFeatures; ++held) {
      if (theta_[held] < 0.0) {
        const double step = theta_[held] / covariance_[held][held];
        for (std::size_t i = 0; i < kNumFeatures; ++i) {
          theta_[i] -= covariance_[i][held] * step;
        }
        theta_[held] = 0.0;
      } else if (!(theta_[held] <= kMostTheta)) {  // nor a number, perhaps
        theta_[held] = 0.0;
        forget_all();
      }
    }
  }

  /// Whether a sample of a kind of step that is known counts. One far off doesn't; after several on
  /// one side the engine has changed. Steps without prefill tell nothing of its cost, so that
  /// stays. If they still fit while steps with prefill don't, it is the cost of prompts that has
  /// changed; where none comes by to tell which, it may be anything.
  [[nodiscard]] Verdict judge(double error, double predicted, Kind kind) noexcept {
    const double size = error < 0.0 ? -error : error;
    const double bound = min_of(4.0 * scale_[kind] + 0.02 * predicted + 0.05, kFarOff);
    const bool is_outlier = size > bound;
    num_judged_[kind] += num_judged_[kind] < kScaleOver ? 1.0 : 0.0;
    const double clipped = min_of(size, 0.5 * bound);
    scale_[kind] += (clipped - scale_[kind]) / num_judged_[kind];
    bias_[kind] += ((error < 0.0 ? -clipped : clipped) - bias_[kind]) / num_judged_[kind];
    if (kind == Decode) {
      decode_fits_ = !is_outlier;
    }
    int& outliers = num_outliers_[kind];
    const double bias = bias_[kind] < 0.0 ? -bias_[kind] : bias_[kind];
    const bool is_one_sided =
        num_judged_[kind] >= kScaleOver && bias > max_of(kOneSided * scale_[kind], kLeastBias);
    const bool is_poor = since_change_ >= kStale && scale_[kind] > kPoor;
    if (is_one_sided || is_poor) {
      return kind == Decode ? Verdict::DecodeChanged
             : decode_fits_ ? Verdict::PrefillChanged
                            : Verdict::AllChanged;
    }
    if (!is_outlier) {
      outliers -= outliers > 0 ? 1 : 0;
      return Verdict::Fits;
    }
    outliers = (error < 0.0) == (last_outlier_[kind] < 0.0) ? outliers + 1 : 1;
    last_outlier_[kind] = error;
    if (outliers < kChangeAfter) {
      decode_fits_ = decode_fits_ && (kind == Decode || outliers > 1);
      return Verdict::Outlier;
    }
    if (kind == Decode) {
      return Verdict::DecodeChanged;
    }
    if (decode_fits_) {
      return Verdict::PrefillChanged;
    }
    return outliers < 2 * kChangeAfter ? Verdict::Outlier : Verdict::AllChanged;
  }

  /// Publishes the best coefficients that are all >= 0: each negative one is held at zero and the
  /// others move as the covariance says they would have been fitted without it. So is attention
  /// where it isn't clear of its own error: prompts of similar lengths tell little about it.
  void publish(TimeNs now) noexcept {
    Vector theta;
    Matrix p;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      theta[i] = theta_[i];
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        p[i][j] = covariance_[i][j];
      }
    }
    bool is_held[kNumFeatures] = {};
    const double noise = max_of(scale_[Prefill], kLeastNoise);
    const double clear = cost_.attention_pair_fs > 0 ? kStillClear : kClear;
    if (num_judged_[Prefill] < kScaleOver / 2.0 ||
        theta[kPairs] * theta[kPairs] < clear * noise * noise * p[kPairs][kPairs]) {
      is_held[kPairs] = true;
      hold_at_zero(theta, p, kPairs);
    }
    for (std::size_t round = 0; round < kNumFeatures; ++round) {
      std::size_t worst = kNumFeatures;
      for (std::size_t i = 0; i < kNumFeatures; ++i) {
        if (!is_held[i] && theta[i] < 0.0 && (worst == kNumFeatures || theta[i] < theta[worst])) {
          worst = i;
        }
      }
      if (worst == kNumFeatures) {
        break;
      }
      is_held[worst] = true;
      hold_at_zero(theta, p, worst);
    }
    cost_.fixed_ns = rounded(theta[0] * 1e6);
    cost_.prefill_token_ps = rounded(theta[kTokens] * (1e9 / kTokenUnit));
    cost_.decode_row_ps = rounded(theta[2] * (1e9 / kRowUnit));
    cost_.kv_token_ps = rounded(theta[3] * (1e9 / kKvUnit));
    cost_.attention_pair_fs = rounded(theta[kPairs] * (1e12 / kPairUnit));
    cost_.version += 1;
    published_at_ = now;
  }

  static void hold_at_zero(Vector& theta, Matrix& p, std::size_t held) noexcept {
    const double pivot = p[held][held];
    if (pivot > 0.0) {
      Vector column;
      for (std::size_t i = 0; i < kNumFeatures; ++i) {
        column[i] = p[i][held];
      }
      const double step = theta[held] / pivot;
      for (std::size_t i = 0; i < kNumFeatures; ++i) {
        theta[i] -= column[i] * step;
        for (std::size_t j = 0; j < kNumFeatures; ++j) {
          p[i][j] -= column[i] * column[j] / pivot;
        }
      }
    }
    theta[held] = 0.0;
  }

  [[nodiscard]] static std::int64_t rounded(double v) noexcept {
    constexpr double kMost = 1e16;
    return v > 0.0 ? static_cast<std::int64_t>((v < kMost ? v : kMost) + 0.5) : 0;
  }

  Config config_;
  Vector theta_ = {};  // ms a unit
  Matrix covariance_ = {};
  double scale_[2] = {};       // Mean size of recent errors of each kind, in weighted ms.
  double bias_[2] = {};        // The mean error itself.
  double num_judged_[2] = {};  // Errors in scale_, up to kScaleOver.
  double last_outlier_[2] = {};
  int num_outliers_[2] = {};
  bool decode_fits_ = false;  // So did the last step without prefill since one with it missed.
  int since_change_ = 0;
  double looseness_ = 1.0;
  std::int32_t num_samples_ = 0;
  TimeNs published_at_{};
  StepCost cost_{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
