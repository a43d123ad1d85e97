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

/// A beam goes on from the state that `parent` has after the step, with `token`. Which sequence
/// that beam is from now on: assign_beams().
struct Continuation {
  SequenceId parent{};
  Token token = 0;
};

/// Where continuations go. The beams of a request that stand in a plan are numbered in plan order,
/// 0..width - 1; parents[i] is the number of continuation i's parent. The first continuation of a
/// parent stays in its sequence; each further one takes the lowest sequence that no continuation
/// names and none has taken. `targets` is as long as `parents`, at most width <= 64; sequences that
/// are nobody's target end. O(width).
inline void assign_beams(std::span<const std::int32_t> parents, std::int32_t width,
                         std::span<std::int32_t> targets) noexcept {
  std::uint64_t taken = 0;
  for (const std::int32_t parent : parents) {
    taken |= std::uint64_t{1} << static_cast<unsigned>(parent);
  }
  std::uint64_t met = 0;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(parents[i]);
    targets[i] = parents[i];
    if ((met & bit) != 0) {
      std::int32_t next = 0;
      while (next + 1 < width && ((taken >> static_cast<unsigned>(next)) & 1U) != 0) {
        ++next;
      }
      taken |= std::uint64_t{1} << static_cast<unsigned>(next);
      targets[i] = next;
    }
    met |= bit;
  }
}

/// A view of a step's results. token_begin is a CSR over the plan's samples: sample s of the plan
/// produced tokens [token_begin[s], token_begin[s + 1]).
struct StepResult {
  std::span<const Outcome> outcomes{};          ///< [chunks]; empty = all Ok.
  std::span<const std::int32_t> token_begin{};  ///< [num_samples + 1]; empty = one token a sample.
  std::span<const Token> tokens{};
  std::span<const std::int32_t> draft_begin{};  ///< [num_samples + 1] CSR over drafts, or empty.
  std::span<const Token> drafts{};  ///< Proposals for the next step of each sample's sequence.
  /// How beams go on, in plan order of their requests; at most as many a request as it has beams in
  /// the plan, all of which must be Ok. A request without any goes on as it is, each beam with its
  /// own sampled token; with them its beams need no tokens.
  std::span<const Continuation> continuations{};
  std::span<const std::uint32_t>
      expert_counts{};       ///< [num_layers, num_experts] row-major, or empty.
  DurationNs measured{};     ///< completion - max(launch, previous completion); 0 = unknown.
  bool is_overfull = false;  ///< More was added to its buffer than that holds: commit() refuses it.
};

/// Owns the storage of a StepResult; allocated once for the largest plan. What does not fit is not
/// stored, and commit() then refuses the result.
class StepResultBuffer {
 public:
  /// Room for `max_chunks` outcomes and `max_samples` samples with `max_tokens` tokens and
  /// `max_drafts` proposed drafts in all.
  Status allocate(std::int64_t max_chunks, std::int64_t max_samples, std::int64_t max_tokens,
                  std::int64_t max_drafts = 0) noexcept {
    for (const Status& s :
         {outcomes_.allocate(static_cast<std::size_t>(max_chunks), "max_chunks"),
          begin_.allocate(static_cast<std::size_t>(max_samples) + 1, "max_samples"),
          tokens_.allocate(static_cast<std::size_t>(max_tokens), "max_tokens"),
          draft_begin_.allocate(static_cast<std::size_t>(max_samples) + 1, "max_samples"),
          drafts_.allocate(static_cast<std::size_t>(max_drafts), "max_drafts"),
          continuations_.allocate(static_cast<std::size_t>(max_samples), "max_samples")}) {
      if (!s) {
        return s;
      }
    }
    return kOk;
  }

  /// Begins the result of `plan`: every outcome Ok, no token yet.
  void reset(const StepPlan& plan) noexcept {
    is_overfull_ = plan.chunks.size() > outcomes_.capacity() || begin_.capacity() == 0;
    outcomes_.resize(is_overfull_ ? 0 : plan.chunks.size());
    for (Outcome& outcome : outcomes_) {
      outcome = Outcome{};
    }
    is_plain_ = true;
    begin_.clear();
    draft_begin_.clear();
    if (!is_overfull_) {
      begin_.push_back(0);
      draft_begin_.push_back(0);
    }
    tokens_.clear();
    drafts_.clear();
    continuations_.clear();
    measured_ = {};
    expert_counts_ = {};
  }

  /// Adds the next sample's single token; samples are filled in plan order.
  void add_sample(Token token) noexcept { add_sample(std::span<const Token>(&token, 1)); }
  /// Adds the next sample's tokens: accepted drafts and the one after them; empty for a chunk that
  /// did not run. `drafts` are proposals for the sequence's next step; the scheduler takes as many
  /// as fit.
  void add_sample(std::span<const Token> tokens, std::span<const Token> drafts = {}) noexcept {
    if (begin_.size() == begin_.capacity() || tokens.size() > tokens_.capacity() - tokens_.size()) {
      is_overfull_ = true;
      return;
    }
    for (const Token token : tokens) {
      tokens_.push_back(token);
    }
    for (const Token token : drafts) {
      if (drafts_.size() < drafts_.capacity()) {  // more than can be used are dropped
        drafts_.push_back(token);
      }
    }
    is_plain_ = is_plain_ && tokens.size() == 1;
    begin_.push_back(static_cast<std::int32_t>(tokens_.size()));
    draft_begin_.push_back(static_cast<std::int32_t>(drafts_.size()));
  }
  void set_outcome(std::size_t chunk, Outcome outcome) noexcept {
    if (chunk < outcomes_.size()) {
      outcomes_[chunk] = outcome;
      is_plain_ = is_plain_ && outcome.kind == OutcomeKind::Ok;
    } else {
      is_overfull_ = true;
    }
  }
  /// Adds how a beam goes on; see StepResult::continuations.
  void add_continuation(Continuation continuation) noexcept {
    is_plain_ = false;
    if (continuations_.size() == continuations_.capacity()) {
      is_overfull_ = true;
      return;
    }
    continuations_.push_back(continuation);
  }
  void set_measured(DurationNs measured) noexcept { measured_ = measured; }
  void set_expert_counts(std::span<const std::uint32_t> counts) noexcept {
    expert_counts_ = counts;
  }

  [[nodiscard]] StepResult view() const noexcept {
    StepResult result;
    result.tokens = tokens_.span();
    if (!is_plain_) {  // else the short form: everything ran, one token a sample
      result.outcomes = outcomes_.span();
      result.token_begin = begin_.span();
    }
    if (!drafts_.empty()) {
      result.draft_begin = draft_begin_.span();
      result.drafts = drafts_.span();
    }
    result.continuations = continuations_.span();
    result.expert_counts = expert_counts_;
    result.measured = measured_;
    result.is_overfull = is_overfull_;
    return result;
  }

 private:
  FixedVector<Outcome> outcomes_;
  FixedVector<std::int32_t> begin_;
  FixedVector<Token> tokens_;
  FixedVector<std::int32_t> draft_begin_;
  FixedVector<Token> drafts_;
  FixedVector<Continuation> continuations_;
  std::span<const std::uint32_t> expert_counts_{};
  DurationNs measured_{};
  bool is_overfull_ = false;
  bool is_plain_ = true;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
