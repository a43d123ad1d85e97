// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// CapacitySearch: bisects the rate scale at which a wanted share of the requests is still served
/// in time.
#include <dynbatch/base/config.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Ask next(), replay at that scale, report() the attainment, until is_done(). Doubles or halves
/// from 1 until the wanted attainment lies between two scales, then bisects geometrically.
class CapacitySearch {
 public:
  struct Config {
    double attainment = 0.9;  ///< Wanted share; (0, 1].
    double precision =
        0.0025;  ///< Stop when the failing scale is at most this share above the good one.
    double smallest = 0x1p-20;  ///< Scales are sought in [smallest, largest].
    double largest = 0x1p20;
  };

  explicit CapacitySearch(Config config) noexcept : config_(config) {}

  [[nodiscard]] DYNBATCH_API double next() const noexcept;
  /// The attainment at next(). True if that scale is the best so far.
  DYNBATCH_API bool report(double attainment) noexcept;
  [[nodiscard]] DYNBATCH_API bool is_done() const noexcept;
  /// The largest scale tried that meets the attainment; 0 = none.
  [[nodiscard]] double scale() const noexcept { return good_; }
  /// The smallest scale tried that fails; 0 = none.
  [[nodiscard]] double upper_scale() const noexcept { return bad_; }
  /// False if even the largest scale met it: there is no upper bound then.
  [[nodiscard]] bool is_bounded() const noexcept { return bad_ != 0.0; }
  [[nodiscard]] std::int32_t num_trials() const noexcept { return num_trials_; }

 private:
  Config config_;
  double good_ = 0.0;
  double bad_ = 0.0;
  std::int32_t num_trials_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
