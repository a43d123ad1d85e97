// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: a BatchSizer needs 'void observe(const StepFeedback&) noexcept'. See
// docs/policies/batch_sizer.md
#include <dynbatch/concepts/batch_sizer.hpp>

using namespace dynbatch;

struct Sizer {
  using Config = EmptyConfig;
  BatchLimits limits(const SizerInput& in) noexcept { return {1, 1, in.max_tokens, 1, {}}; }
#ifdef DYNBATCH_TEST_CORRECTED
  void observe(const StepFeedback&) noexcept {}
#else
  void observe(const StepFeedback&) {}  // may throw
#endif
  BatchLimits ceiling() const noexcept { return {}; }
  StepCost cost() const noexcept { return {}; }
};

static_assert(check_batch_sizer<Sizer>());
