// SPDX-License-Identifier: Apache-2.0
/// \file
/// CapacitySearch: the scale to try next.
#include <dynbatch/sim/capacity_search.hpp>

#include <cmath>

namespace dynbatch::inline DYNBATCH_ABI {

double CapacitySearch::next() const noexcept {
  if (bad_ == 0.0) {
    return good_ == 0.0 ? 1.0 : good_ * 2.0;
  }
  return good_ == 0.0 ? bad_ * 0.5 : std::sqrt(good_ * bad_);
}

bool CapacitySearch::report(double attainment) noexcept {
  const double scale = next();
  ++num_trials_;
  const bool is_good = attainment >= config_.attainment;
  (is_good ? good_ : bad_) = scale;
  return is_good;
}

bool CapacitySearch::is_done() const noexcept {
  if (good_ == 0.0 || bad_ == 0.0) {
    return bad_ != 0.0 ? next() < config_.smallest : next() > config_.largest;
  }
  return bad_ <= good_ * (1.0 + config_.precision);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
