// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: whether a result fits its plan.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Shape of a result in which everything ran: one token for each sample. Loops that vectorise.
template <class P>
bool SchedulerCore<P>::is_plain_result(const StepPlan& plan,
                                       const StepResult& result) const noexcept {
  const auto samples = static_cast<std::size_t>(plan.num_samples);
  if (result.tokens.size() != samples || !result.continuations.empty() || !result.drafts.empty() ||
      !result.draft_begin.empty() || result.is_overfull || !result.expert_counts.empty()) {
    return false;
  }
  unsigned kinds = 0;
  for (const Outcome& outcome : result.outcomes) {
    kinds |= static_cast<unsigned>(outcome.kind);
  }
  Token signs = 0;
  for (const Token token : result.tokens) {
    signs |= token;
  }
  std::int32_t shifted = 0;
  if (!result.token_begin.empty()) {
    if (result.token_begin.size() != samples + 1) {
      return false;
    }
    for (std::size_t i = 0; i <= samples; ++i) {
      shifted |= result.token_begin[i] ^ static_cast<std::int32_t>(i);
    }
  }
  return kinds == 0 && signs >= 0 && shifted == 0 &&
         (result.outcomes.empty() || result.outcomes.size() == plan.chunks.size());
}

/// The full check; names what does not fit.
template <class P>
Status SchedulerCore<P>::validate_result(const StepPlan& plan,
                                         const StepResult& result) const noexcept {
  auto bad = [](const char* field, std::int64_t value, std::int64_t limit, const char* text) {
    return Status{Errc::BadResult, field, value, limit, text};
  };
  const auto samples = static_cast<std::size_t>(plan.num_samples);
  if (!result.outcomes.empty() && result.outcomes.size() != plan.chunks.size()) {
    return bad("outcomes", static_cast<std::int64_t>(result.outcomes.size()),
               static_cast<std::int64_t>(plan.chunks.size()),
               "one outcome a chunk, or none at all");
  }
  if (result.is_overfull) {
    return bad(
        "tokens", static_cast<std::int64_t>(result.tokens.size()), 0,
        "the result buffer was made for smaller plans, or more was added than the plan wants");
  }
  if (!result.draft_begin.empty()) {
    bool is_csr = result.draft_begin.size() == samples + 1 && result.draft_begin.front() == 0 &&
                  result.draft_begin.back() == static_cast<std::int64_t>(result.drafts.size());
    for (std::size_t i = 0; is_csr && i < samples; ++i) {
      is_csr = result.draft_begin[i] <= result.draft_begin[i + 1];
    }
    if (!is_csr) {
      return bad("draft_begin", static_cast<std::int64_t>(result.draft_begin.size()),
                 static_cast<std::int64_t>(samples) + 1,
                 "a CSR over the plan's samples from 0 to drafts.size()");
    }
  } else if (!result.drafts.empty()) {
    return bad("drafts", static_cast<std::int64_t>(result.drafts.size()), 0,
               "drafts need draft_begin");
  }
  for (const Token token : result.drafts) {
    if (token < 0) {
      return bad("drafts", token, 0, "token ids must not be negative");
    }
  }
  if (!result.expert_counts.empty() && static_cast<std::int64_t>(result.expert_counts.size()) !=
                                           std::int64_t{caps_.num_layers} * caps_.num_experts) {
    return bad("expert_counts", static_cast<std::int64_t>(result.expert_counts.size()),
               std::int64_t{caps_.num_layers} * caps_.num_experts, "one count a layer and expert");
  }
  const PlanRecord& record = plans_[static_cast<std::size_t>(oldest_)];
  if (!result.continuations.empty()) {
    if (const Status s = validate_continuations(record, result); !s) {
      return s;
    }
  }
  std::span<const Continuation> continuations = result.continuations;
  bool is_continued = false;
  if (!result.token_begin.empty()) {
    if (result.token_begin.size() != samples + 1 || result.token_begin.front() != 0 ||
        result.token_begin.back() != static_cast<std::int64_t>(result.tokens.size())) {
      return bad("token_begin", static_cast<std::int64_t>(result.token_begin.size()),
                 static_cast<std::int64_t>(samples) + 1,
                 "a CSR over the plan's samples from 0 to tokens.size()");
    }
    for (std::size_t i = 0; i < samples; ++i) {
      if (result.token_begin[i + 1] < result.token_begin[i]) {
        return bad("token_begin", result.token_begin[i + 1], result.token_begin[i],
                   "must not descend");
      }
    }
  } else if (result.tokens.size() != samples) {
    return bad("tokens", static_cast<std::int64_t>(result.tokens.size()),
               static_cast<std::int64_t>(samples), "one token a sample");
  }
  for (const Token token : result.tokens) {
    if (token < 0) {
      return bad("tokens", token, 0, "token ids must not be negative");
    }
  }
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    if (!record.undo[i].is_beam) {
      is_continued = false;
    } else if (i == 0 || !record.undo[i - 1].is_beam ||
               !(plan.chunks[i - 1].request == chunk.request)) {
      const std::size_t n = num_continuations(record, i, beams_end(record, i), continuations);
      continuations = continuations.subspan(n);
      is_continued = n > 0;
    }
    const Outcome outcome = result.outcomes.empty() ? Outcome{} : result.outcomes[i];
    if (outcome.kind > OutcomeKind::Failed) {
      return bad("outcome.kind", static_cast<std::int64_t>(outcome.kind),
                 static_cast<std::int64_t>(OutcomeKind::Failed), "no such outcome");
    }
    if (outcome.reason > FinishReason::Host) {
      return bad("outcome.reason", static_cast<std::int64_t>(outcome.reason),
                 static_cast<std::int64_t>(FinishReason::Host), "no such reason");
    }
    const bool is_run = outcome.kind == OutcomeKind::Ok || outcome.kind == OutcomeKind::Stop;
    const std::int32_t most = chunk.kind == ChunkKind::Decode ? chunk.num_tokens : 1;
    const SampleTokens all{result.tokens.data(),
                           result.token_begin.empty() ? nullptr : result.token_begin.data()};
    for (std::int32_t s = 0; s < chunk.num_samples; ++s) {
      const std::span<const Token> tokens = all.of(chunk.first_sample + s);
      const auto produced = static_cast<std::int64_t>(tokens.size());
      if (produced > most || (is_run && produced == 0 && !is_continued)) {
        return bad("token_begin", produced, most,
                   "a sample that ran has one token, and one more for each accepted draft");
      }
      for (std::int64_t d = 0; d + 1 < produced; ++d) {
        const Token draft = plan.tokens[static_cast<std::size_t>(chunk.first_token + 1 + d)];
        if (tokens[static_cast<std::size_t>(d)] != draft) {
          return bad("tokens", tokens[static_cast<std::size_t>(d)], draft,
                     "an accepted draft differs from the token that was sampled");
        }
      }
    }
    if (outcome.kind == OutcomeKind::Partial &&
        (outcome.tokens < 0 || outcome.tokens >= chunk.num_tokens)) {
      return bad("outcome.tokens", outcome.tokens, chunk.num_tokens - 1,
                 "a partial chunk ran fewer tokens than it has");
    }
    if (outcome.kind == OutcomeKind::Stop &&
        (outcome.tokens < 0 ||
         outcome.tokens > (chunk.num_samples == 0
                               ? 0
                               : static_cast<std::int32_t>(all.of(chunk.first_sample).size())))) {
      return bad("outcome.tokens", outcome.tokens, chunk.num_samples,
                 "keeps more tokens than were produced");
    }
  }
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
