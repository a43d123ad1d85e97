// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// run_step(): plan, execute, commit. The one place that catches what an executor throws.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/executor.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/scheduler/config.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

/// What run_step() did.
enum class StepOutcome : std::uint8_t {
  Committed,
  NoPlan,     ///< scheduler.status() says why.
  Abandoned,  ///< The executor threw, or its result did not match the plan; `status` says which.
};

struct StepReport {
  StepOutcome outcome = StepOutcome::NoPlan;
  Status status{};
};

/// One synchronous step on the driving thread. `clock` is a callable that returns TimeNs; it is
/// called before planning, before and after execution. Measured time = execution time.
template <class Scheduler, class E, class Clock>
StepReport run_step(Scheduler& scheduler, E& executor, StepResultBuffer& result,
                    Clock&& clock) noexcept {
  static_assert(check_executor<E>());
  const StepPlan* plan = scheduler.plan(clock());
  if (plan == nullptr) {
    return {StepOutcome::NoPlan, kOk};
  }
  if (!plan->is_sealed) {
    (void)scheduler.abandon(*plan, AbandonReason::NotRun, clock());
    return {
        StepOutcome::Abandoned,
        {Errc::NotSupported, "num_ranks", 0, 1, "ranks in lock-step seal their plans themselves"}};
  }
  result.reset(*plan);
  const TimeNs launched = clock();
#if DYNBATCH_EXCEPTIONS
  try {
    executor.execute(*plan, result);
  } catch (...) {
    (void)scheduler.abandon(*plan, AbandonReason::Lost, clock());
    return {StepOutcome::Abandoned,
            {Errc::ExecutorFailed, "execute", 0, 0, "the executor threw an exception"}};
  }
#else
  executor.execute(*plan, result);
#endif
  const TimeNs done = clock();
  StepResult view = result.view();
  if (view.measured.ns == 0) {
    view.measured = done - launched;
  }
  if (const Status s = scheduler.commit(*plan, view, done); !s) {
    (void)scheduler.abandon(*plan, AbandonReason::Lost, done);
    return {StepOutcome::Abandoned, s};
  }
  return {StepOutcome::Committed, kOk};
}

}  // namespace dynbatch::inline DYNBATCH_ABI
