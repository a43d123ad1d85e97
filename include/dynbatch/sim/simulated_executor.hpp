// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SimulatedExecutor: an Executor without a model. Virtual time passes as a cost model says, and
/// each request ends at the length that its trace gives.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/executor.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// Runs plans whose requests carry their index in `requests` as user_data. Owns the virtual clock.
/// It alone knows the output lengths. Costs a few ns a chunk; allocates for the list of gaps only.
template <StepCostModel Cost>
class SimulatedExecutor {
 public:
  /// `requests` and `records` have equal length and outlive the executor.
  SimulatedExecutor(const Cost& cost, const Capabilities& capabilities,
                    std::span<const TraceRequest> requests, std::span<SimulatedRequest> records)
      : cost_(cost), capabilities_(capabilities), records_(records) {
    progress_.reserve(requests.size());
    for (const TraceRequest& request : requests) {
      progress_.push_back({-1, request.output_tokens});
    }
  }

  [[nodiscard]] Capabilities capabilities() const noexcept { return capabilities_; }
  [[nodiscard]] TimeNs now() const noexcept { return now_; }
  [[nodiscard]] std::int64_t num_steps() const noexcept { return num_steps_; }
  [[nodiscard]] std::int64_t busy_ns() const noexcept { return busy_ns_; }
  [[nodiscard]] DurationNs last_step() const noexcept { return last_step_; }
  [[nodiscard]] const std::vector<WeightedValue>& gaps() const noexcept { return gaps_; }

  /// Lets idle time pass; a time in the past changes nothing.
  void advance_to(TimeNs time) noexcept {
    if (time > now_) {
      now_ = time;
    }
  }

  void execute(const StepPlan& plan, StepResultBuffer& result) {
    const TimeNs begin = now_;
    last_step_ = cost_.step_time(plan);
    now_ = begin + last_step_;
    busy_ns_ += last_step_.ns;
    ++num_steps_;
    result.set_measured(last_step_);
    // Most decoding rows had their last token at the end of the step before: one gap for all of
    // them.
    const std::int64_t usual_gap = now_.ns - previous_end_ns_;
    std::int64_t num_usual = 0;
    for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
      const Chunk& chunk = plan.chunks[i];
      const auto index = static_cast<std::size_t>(chunk.user_data);
      if (chunk.kind == ChunkKind::Prefill && records_[index].scheduled_ns < 0) {
        records_[index].scheduled_ns = begin.ns;
      }
      if (chunk.num_samples == 0) {
        continue;
      }
      Progress& progress = progress_[index];
      if (progress.last_token_ns == previous_end_ns_) {
        ++num_usual;
      } else if (progress.last_token_ns >= 0) {
        gaps_.push_back({now_.ns - progress.last_token_ns, 1});
      } else {
        records_[index].first_token_ns = now_.ns;
      }
      progress.last_token_ns = now_.ns;
      --progress.left;
      result.add_sample(static_cast<Token>(progress.left & 0x7FFF));
      if (progress.left <= 0) {
        result.set_outcome(i, {OutcomeKind::Stop, FinishReason::Host, 1});
      }
    }
    if (num_usual > 0) {
      gaps_.push_back({usual_gap, num_usual});
    }
    previous_end_ns_ = now_.ns;
  }

 private:
  struct Progress {
    std::int64_t last_token_ns;  // -1 = none yet
    std::int64_t left;           // tokens that the trace still wants
  };

  Cost cost_;
  Capabilities capabilities_;
  std::span<SimulatedRequest> records_;
  std::vector<Progress> progress_;
  std::vector<WeightedValue> gaps_;
  TimeNs now_{};
  DurationNs last_step_{};
  std::int64_t previous_end_ns_ = -2;  // never equal to "none yet"
  std::int64_t num_steps_ = 0;
  std::int64_t busy_ns_ = 0;
};

static_assert(Executor<SimulatedExecutor<FormulaCost>>);

}  // namespace dynbatch::inline DYNBATCH_ABI
