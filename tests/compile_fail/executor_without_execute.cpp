// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: an Executor needs 'void execute(const StepPlan&, StepResultBuffer&)'. See
// docs/embedding.md
#include <dynbatch/concepts/executor.hpp>

using namespace dynbatch;

struct Engine {
  Capabilities capabilities() const { return {}; }
#ifdef DYNBATCH_TEST_CORRECTED
  void execute(const StepPlan&, StepResultBuffer&) {}
#else
  void execute(const StepPlan&) {}
#endif
};

static_assert(check_executor<Engine>());
