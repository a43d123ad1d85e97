// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a step did, filled in by the host's executor.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Why a request came to its normal end.
enum class FinishReason : std::uint8_t {
  None,
  StopToken,  ///< A stop token was produced.
  Length,     ///< max_new_tokens were produced.
  Capacity,   ///< An open-ended request reached the context limit or filled the pool.
  Host,       ///< The executor said stop (stop string, grammar end).
};

enum class OutcomeKind : std::uint8_t {
  Ok,       ///< All tokens ran, samples follow.
  NotRun,   ///< Nothing of the chunk ran; it is planned again.
  Partial,  ///< The first `tokens` tokens ran; no sample.
  Stop,     ///< All ran and the host ends the request; the first `tokens` samples are kept.
  Failed,   ///< The chunk's KV is unusable; at most two retries, then the request fails.
};

/// Outcome of one chunk.
struct Outcome {
  OutcomeKind kind = OutcomeKind::Ok;
  FinishReason reason = FinishReason::None;  ///< OutcomeKind::Stop: what to report, None = Host.
  std::int32_t tokens = 0;
};

/// A beam continuation: the sequence goes on from `parent`'s state with `token`.
struct Continuation {
  SequenceId parent{};
  Token token = 0;
};

/// A view of a step's results. token_begin is a CSR over the plan's samples: sample s of the plan
/// produced tokens [token_begin[s], token_begin[s + 1]).
struct StepResult {
  std::span<const Outcome> outcomes{};          ///< [chunks]; empty = all Ok.
  std::span<const std::int32_t> token_begin{};  ///< [num_samples + 1]; empty = one token a sample.
  std::span<const Token> tokens{};
  std::span<const Continuation> continuations{};
  std::span<const std::uint32_t>
      expert_counts{};    ///< [num_layers, num_experts] row-major, or empty.
  DurationNs measured{};  ///< completion - max(launch, previous completion); 0 = unknown.
};

/// Owns the storage of a StepResult; allocated once for the largest plan.
class StepResultBuffer {
 public:
  /// Room for `max_chunks` outcomes, `max_samples` samples with `max_tokens` tokens in all.
  Status allocate(std::int64_t max_chunks, std::int64_t max_samples,
                  std::int64_t max_tokens) noexcept {
    if (Status s = outcomes_.allocate(static_cast<std::size_t>(max_chunks), "max_chunks"); !s) {
      return s;
    }
    if (Status s = begin_.allocate(static_cast<std::size_t>(max_samples) + 1, "max_samples"); !s) {
      return s;
    }
    return tokens_.allocate(static_cast<std::size_t>(max_tokens), "max_tokens");
  }

  /// Begins the result of `plan`: every outcome Ok, no token yet.
  void reset(const StepPlan& plan) noexcept {
    outcomes_.resize(plan.chunks.size());
    for (Outcome& outcome : outcomes_) {
      outcome = Outcome{};
    }
    begin_.clear();
    begin_.push_back(0);
    tokens_.clear();
    measured_ = {};
    expert_counts_ = {};
  }

  /// Adds the next sample's single token; samples are filled in plan order.
  void add_sample(Token token) noexcept {
    tokens_.push_back(token);
    begin_.push_back(static_cast<std::int32_t>(tokens_.size()));
  }
  /// Adds the next sample's tokens: accepted drafts and the one after them. Empty for a chunk that
  /// did not run.
  void add_sample(std::span<const Token> tokens) noexcept {
    for (const Token token : tokens) {
      tokens_.push_back(token);
    }
    begin_.push_back(static_cast<std::int32_t>(tokens_.size()));
  }
  void set_outcome(std::size_t chunk, Outcome outcome) noexcept { outcomes_[chunk] = outcome; }
  void set_measured(DurationNs measured) noexcept { measured_ = measured; }
  void set_expert_counts(std::span<const std::uint32_t> counts) noexcept {
    expert_counts_ = counts;
  }

  [[nodiscard]] StepResult view() const noexcept {
    StepResult result;
    result.outcomes = outcomes_.span();
    result.token_begin = begin_.span();
    result.tokens = tokens_.span();
    result.expert_counts = expert_counts_;
    result.measured = measured_;
    return result;
  }

 private:
  FixedVector<Outcome> outcomes_;
  FixedVector<std::int32_t> begin_;
  FixedVector<Token> tokens_;
  std::span<const std::uint32_t> expert_counts_{};
  DurationNs measured_{};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
