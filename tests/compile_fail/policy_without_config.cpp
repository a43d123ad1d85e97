// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: a BatchSizer needs 'struct Config { Status validate() const noexcept; }'. See
// docs/policies/batch_sizer.md
#include <dynbatch/concepts/batch_sizer.hpp>

using namespace dynbatch;

struct Sizer {
#ifdef DYNBATCH_TEST_CORRECTED
  using Config = EmptyConfig;
#else
  struct Config {};  // can't validate itself
#endif
  BatchLimits limits(const SizerInput&) noexcept { return {}; }
  void observe(const StepFeedback&) noexcept {}
  BatchLimits ceiling() const noexcept { return {}; }
  StepCost cost() const noexcept { return {}; }
};

static_assert(check_batch_sizer<Sizer>());
