// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BatchSizer: decides how much work the next step may hold.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/running.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// A sequence that is behind its TPOT limit by more tokens than this won't be made good by sparing
/// it: it holds no prompt back any more.
inline constexpr std::int64_t kForgivenTokens = 16;

/// What a sizer sees before a step. Counts are of requests on this scheduler.
struct SizerInput {
  TimeNs now{};
  std::int32_t num_decoding = 0;           ///< Running sequences past their prompt.
  std::int32_t num_prefilling = 0;         ///< Running sequences inside their prompt.
  std::int64_t num_waiting = 0;            ///< Accepted, not running.
  std::int64_t decoding_kv_tokens = 0;     ///< Sum of the decoding sequences' context lengths.
  std::int64_t running_output_tokens = 0;  ///< Outputs so far of all running sequences.
  std::int64_t waiting_prompt_tokens = 0;  ///< Sum of waiting prompts (and recomputed outputs).
  TimeNs next_token_due = kNever;          ///< Least first_token_time + tpot * outputs over running
                                           ///< sequences with a TPOT limit, but for those behind by
                                           ///< more than kForgivenTokens tokens.
  DurationNs least_tpot = kUnbounded;      ///< Least TPOT limit among running sequences.
  TimeNs first_token_due = kNever;         ///< Arrival + TTFT limit of the first waiting request.
  std::int32_t plans_in_flight = 0;
  std::int64_t max_tokens = 0;     ///< The executor's limit a step.
  std::int32_t max_sequences = 0;  ///< The executor's rows.
  PoolStats pool{};
  RunningList running{};
  TimeNs first_arrival = kNever;  ///< Arrival of the first waiting request.
  /// The prompt that gets tokens first: of a running sequence inside its prompt, else of the first
  /// waiting request, of which nothing is taken to be cached.
  std::int64_t next_prompt_position = 0;  ///< Positions before its next token.
  std::int64_t next_prompt_tokens = 0;  ///< Tokens that are left of it; 0 = unknown, or no prompt.
};

/// Limits of one step. Sequence limits bound admission and never evict a running sequence.
struct BatchLimits {
  std::int32_t max_prefill_sequences = 1;  ///< Sequences inside their prompt at once; >= 1.
  std::int32_t max_decode_sequences = 1;   ///< Running sequences in all; >= 1.
  std::int64_t max_tokens = 1;             ///< Tokens of the step; >= 1.
  std::int64_t max_prefill_tokens = 1;     ///< Of these, prompt tokens; >= 1.
  TimeNs not_before{};  ///< The step starts no earlier; a time <= now is no limit.

  friend constexpr bool operator==(const BatchLimits&, const BatchLimits&) noexcept = default;
};

/// The length of an output that came to its normal end.
struct FinishedOutput {
  std::int64_t tokens = 0;
  RequestClass request_class = RequestClass::Interactive;
  std::int64_t prompt_tokens = 0;
};

/// What a sizer learns from a settled step.
struct StepFeedback {
  TimeNs now{};
  StepWork work{};                             ///< As performed: padded where the plan was padded.
  DurationNs measured{};                       ///< 0 or negative = not measured.
  std::int32_t num_finished = 0;               ///< Requests that finished normally in this step,
  std::int64_t finished_output_tokens = 0;     ///< and how many tokens they had produced.
  std::span<const FinishedOutput> finished{};  ///< Each of them; empty where nobody lists them.
};

/// What holds a sizer's max_decode_sequences down.
enum class SizerBound : std::uint8_t {
  Unknown,  ///< The sizer does not say.
  Cap,      ///< A configured limit, or the executor's rows.
  Memory,   ///< What the pool is expected to hold.
  Latency,  ///< The service level of running sequences.
  Queue,    ///< The share of the runnable sequences that may run.
};

[[nodiscard]] constexpr const char* to_string(SizerBound bound) noexcept {
  switch (bound) {
    case SizerBound::Unknown:
      return "unknown";
    case SizerBound::Cap:
      return "cap";
    case SizerBound::Memory:
      return "memory";
    case SizerBound::Latency:
      return "latency";
    case SizerBound::Queue:
      return "queue";
  }
  return "unknown";
}

/// Decides how much work the next step may hold. Laws: docs/policies/batch_sizer.md.
template <class P>
concept BatchSizer = std::movable<P> && detail::HasConfig<P> &&
                     requires(P& p, const P& cp, const SizerInput& in, const StepFeedback& fb) {
                       { p.limits(in) } noexcept -> std::same_as<BatchLimits>;
                       { p.observe(fb) } noexcept -> std::same_as<void>;
                       { cp.ceiling() } noexcept -> std::same_as<BatchLimits>;
                       { cp.cost() } noexcept -> std::same_as<StepCost>;
                     };

/// One readable message for each missing requirement; called by the Scheduler.
template <class P>
consteval bool check_batch_sizer() {
  static_assert(std::movable<P>,
                "dynbatch: a BatchSizer needs to be movable. See docs/policies/batch_sizer.md");
  static_assert(
      detail::HasConfig<P>,
      "dynbatch: a BatchSizer needs 'struct Config { Status validate() const noexcept; }'. "
      "See docs/policies/batch_sizer.md");
  static_assert(
      requires(P& p, const SizerInput& in) {
        { p.limits(in) } noexcept -> std::same_as<BatchLimits>;
      },
      "dynbatch: a BatchSizer needs 'BatchLimits limits(const SizerInput&) noexcept'. "
      "See docs/policies/batch_sizer.md");
  static_assert(
      requires(P& p, const StepFeedback& fb) {
        { p.observe(fb) } noexcept -> std::same_as<void>;
      },
      "dynbatch: a BatchSizer needs 'void observe(const StepFeedback&) noexcept'. "
      "See docs/policies/batch_sizer.md");
  static_assert(
      requires(const P& p) {
        { p.ceiling() } noexcept -> std::same_as<BatchLimits>;
      },
      "dynbatch: a BatchSizer needs 'BatchLimits ceiling() const noexcept'. "
      "See docs/policies/batch_sizer.md");
  static_assert(
      requires(const P& p) {
        { p.cost() } noexcept -> std::same_as<StepCost>;
      },
      "dynbatch: a BatchSizer needs 'StepCost cost() const noexcept'. "
      "See docs/policies/batch_sizer.md");
  return true;
}

/// What bound the limits that `sizer` gave last: its optional member 'SizerBound bound() const
/// noexcept'.
template <class P>
[[nodiscard]] SizerBound sizer_bound(const P& sizer) noexcept {
  if constexpr (requires {
                  { sizer.bound() } noexcept -> std::same_as<SizerBound>;
                }) {
    return sizer.bound();
  } else {
    return SizerBound::Unknown;
  }
}

/// A view of any BatchSizer for run-time choice; the caller keeps the model alive.
class AnyBatchSizer {
 public:
  using Config = EmptyConfig;

  template <class P>
    requires(!std::same_as<std::remove_const_t<P>, AnyBatchSizer> && BatchSizer<P>)
  explicit AnyBatchSizer(P& model) noexcept : self_(&model), table_(&kTable<P>) {}

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    return table_->limits(self_, in);
  }
  void observe(const StepFeedback& fb) noexcept { table_->observe(self_, fb); }
  [[nodiscard]] BatchLimits ceiling() const noexcept { return table_->ceiling(self_); }
  [[nodiscard]] StepCost cost() const noexcept { return table_->cost(self_); }
  [[nodiscard]] SizerBound bound() const noexcept { return table_->bound(self_); }

 private:
  struct Table {
    BatchLimits (*limits)(void*, const SizerInput&) noexcept;
    void (*observe)(void*, const StepFeedback&) noexcept;
    BatchLimits (*ceiling)(const void*) noexcept;
    StepCost (*cost)(const void*) noexcept;
    SizerBound (*bound)(const void*) noexcept;
  };
  template <class P>
  static constexpr Table kTable{
      [](void* p, const SizerInput& in) noexcept { return static_cast<P*>(p)->limits(in); },
      [](void* p, const StepFeedback& fb) noexcept { static_cast<P*>(p)->observe(fb); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->ceiling(); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->cost(); },
      [](const void* p) noexcept { return sizer_bound(*static_cast<const P*>(p)); }};

  void* self_;
  const Table* table_;
};

static_assert(BatchSizer<AnyBatchSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
