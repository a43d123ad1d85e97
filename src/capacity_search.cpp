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

}  // namespace dynbatch::inline DYNBATCH_ABI
