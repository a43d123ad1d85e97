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

/// Recursive least squares on (1, prefill tokens, decode rows, KV tokens) with directional
/// forgetting: a sample only displaces what is known about steps of its own kind, so that a long
/// stretch of pure decoding doesn't wind up or forget the cost of prompts. Doubles stay inside;
/// what a decision reads is the published StepCost. Plain + - * / only. One observe() costs O(1).
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
    const double x[kNumFeatures] = {1.0, static_cast<double>(work.prefill_tokens) / kTokenUnit,
                                    static_cast<double>(work.decode_rows) / kRowUnit,
                                    static_cast<double>(work.kv_tokens) / kKvUnit};
    const std::int64_t window =
        work.prefill_tokens > 0 ? config_.prefill_window_ns : config_.decode_window_ns;
    update(x, static_cast<double>(measured.ns) * 1e-6,
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
  static constexpr std::size_t kNumFeatures = 4;
  static constexpr double kTokenUnit = 1024.0;
  static constexpr double kRowUnit = 64.0;
  static constexpr double kKvUnit = 65536.0;
  /// Variance of what is not known, in ms^2 a unit: far above any real coefficient.
  static constexpr double kUnknown = 1e6;
  /// A sample may be judged an outlier only where the fit's own variance is below this share.
  static constexpr double kKnown = 0.5;
  static constexpr int kChangeAfter = 3;

  [[nodiscard]] static constexpr bool is_plausible(const StepWork& work,
                                                   DurationNs measured) noexcept {
    constexpr std::int64_t kHourNs = 3'600'000'000'000;
    constexpr std::int64_t kMostWork = std::int64_t{1} << 40;
    const auto in_range = [](std::int64_t v) { return v >= 0 && v <= kMostWork; };
    return measured.ns > 0 && measured.ns <= kHourNs && in_range(work.prefill_tokens) &&
           in_range(work.decode_rows) && in_range(work.kv_tokens);
  }

  [[nodiscard]] bool is_publication_due(TimeNs now) const noexcept {
    std::int64_t since = 0;
    return cost_.version == 0 || __builtin_sub_overflow(now.ns, published_at_.ns, &since) ||
           since >= config_.publish_ns;
  }

  void forget_all() noexcept {
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        covariance_[i][j] = i == j ? kUnknown : 0.0;
      }
    }
  }

  void update(const double (&x)[kNumFeatures], double y, double keep) noexcept {
    double g[kNumFeatures];  // covariance * x
    double r = 0.0;          // x' * covariance * x: how little is known about such a step
    double error = y;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      g[i] = 0.0;
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        g[i] += covariance_[i][j] * x[j];
      }
      r += g[i] * x[i];
      error -= theta_[i] * x[i];
    }
    if (!(r > 0.0)) {
      forget_all();  // Rounding has eaten the positive definiteness.
      return;
    }
    if (r < kKnown) {
      const double predicted = y - error;
      const double bound = 4.0 * scale_ + 0.02 * (predicted > 0.0 ? predicted : 0.0) + 0.05;
      const double size = error < 0.0 ? -error : error;
      if (size > bound) {
        num_outliers_ = (error < 0.0) == (last_outlier_ < 0.0) ? num_outliers_ + 1 : 1;
        last_outlier_ = error;
        if (num_outliers_ >= kChangeAfter) {
          // Several in a row and on one side: the engine has changed, not the sample.
          num_outliers_ = 0;
          forget_all();
          return;
        }
        error = error < 0.0 ? -bound : bound;
      } else {
        num_outliers_ = 0;
      }
      const double clipped = error < 0.0 ? -error : error;
      scale_ += (clipped - scale_) / 16.0;
    }
    // Directional forgetting (Kulhavy 1987): information e * x * x' is added, where e < 0 removes.
    const double e = keep - (1.0 - keep) / r;
    const double shrink = e / (keep * (1.0 + r));
    bool is_sane = true;
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      theta_[i] += g[i] * (error / (1.0 + r));
      for (std::size_t j = 0; j <= i; ++j) {
        covariance_[i][j] -= g[i] * g[j] * shrink;
        covariance_[j][i] = covariance_[i][j];
      }
      is_sane = is_sane && covariance_[i][i] > 0.0 && covariance_[i][i] <= kUnknown;
    }
    if (!is_sane) {
      forget_all();
    }
  }

  /// Publishes the best coefficients that are all >= 0: each negative one is held at zero and the
  /// others move as the covariance says they would have been fitted without it.
  void publish(TimeNs now) noexcept {
    double theta[kNumFeatures];
    double p[kNumFeatures][kNumFeatures];
    for (std::size_t i = 0; i < kNumFeatures; ++i) {
      theta[i] = theta_[i];
      for (std::size_t j = 0; j < kNumFeatures; ++j) {
        p[i][j] = covariance_[i][j];
      }
    }
    bool is_held[kNumFeatures] = {};
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
      const double pivot = p[worst][worst];
      const double step = pivot > 0.0 ? theta[worst] / pivot : 0.0;
      double column[kNumFeatures];
      for (std::size_t i = 0; i < kNumFeatures; ++i) {
        column[i] = p[i][worst];
      }
      for (std::size_t i = 0; i < kNumFeatures; ++i) {
        theta[i] -= column[i] * step;
        for (std::size_t j = 0; j < kNumFeatures && pivot > 0.0; ++j) {
          p[i][j] -= column[i] * column[j] / pivot;
        }
      }
      theta[worst] = 0.0;
    }
    cost_.fixed_ns = rounded(theta[0] * 1e6);
    cost_.prefill_token_ps = rounded(theta[1] * (1e9 / kTokenUnit));
    cost_.decode_row_ps = rounded(theta[2] * (1e9 / kRowUnit));
    cost_.kv_token_ps = rounded(theta[3] * (1e9 / kKvUnit));
    cost_.version += 1;
    published_at_ = now;
  }

  [[nodiscard]] static std::int64_t rounded(double v) noexcept {
    constexpr double kMost = 1e16;
    return v > 0.0 ? static_cast<std::int64_t>((v < kMost ? v : kMost) + 0.5) : 0;
  }

  Config config_;
  double theta_[kNumFeatures] = {};  // ms a unit
  double covariance_[kNumFeatures][kNumFeatures] = {};
  double scale_ = 0.0;  // Mean size of recent errors, ms.
  double last_outlier_ = 0.0;
  int num_outliers_ = 0;
  std::int32_t num_samples_ = 0;
  TimeNs published_at_{};
  StepCost cost_{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
