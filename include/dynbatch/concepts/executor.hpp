// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Executor: the host's side of a step. The scheduler never calls it; run_step() and the simulator
/// do.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include <concepts>

namespace dynbatch::inline DYNBATCH_ABI {

/// Runs one plan and fills in the result, which was reset for the plan. It may throw: run_step()
/// then abandons the plan as lost. Contract: docs/embedding.md.
template <class E>
concept Executor = requires(E& e, const E& ce, const StepPlan& plan, StepResultBuffer& result) {
  { ce.capabilities() } -> std::same_as<Capabilities>;
  { e.execute(plan, result) } -> std::same_as<void>;
};

/// One readable message for each missing requirement; called by run_step().
template <class E>
consteval bool check_executor() {
  static_assert(
      requires(const E& e) {
        { e.capabilities() } -> std::same_as<Capabilities>;
      }, "dynbatch: an Executor needs 'Capabilities capabilities() const'. See docs/embedding.md");
  static_assert(
      requires(E& e, const StepPlan& plan, StepResultBuffer& result) {
        { e.execute(plan, result) } -> std::same_as<void>;
      },
      "dynbatch: an Executor needs 'void execute(const StepPlan&, StepResultBuffer&)'. See "
      "docs/embedding.md");
  return true;
}

/// A view of any Executor for run-time choice; the caller keeps the model alive.
class AnyExecutor {
 public:
  template <Executor E>
    requires(!std::same_as<E, AnyExecutor>)
  explicit AnyExecutor(E& model) noexcept
      : self_(&model),
        capabilities_([](const void* e) { return static_cast<const E*>(e)->capabilities(); }),
        execute_([](void* e, const StepPlan& plan, StepResultBuffer& result) {
          static_cast<E*>(e)->execute(plan, result);
        }) {}

  [[nodiscard]] Capabilities capabilities() const { return capabilities_(self_); }
  void execute(const StepPlan& plan, StepResultBuffer& result) { execute_(self_, plan, result); }

 private:
  void* self_;
  Capabilities (*capabilities_)(const void*);
  void (*execute_)(void*, const StepPlan&, StepResultBuffer&);
};

static_assert(Executor<AnyExecutor>);

}  // namespace dynbatch::inline DYNBATCH_ABI
