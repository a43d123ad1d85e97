// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rules of the shipped admission policies, written down once more after docs/policies.
#include "naive_types.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace dynbatch::test::naive {

/// What a step is made of.
struct Mixture {
  bool admits = true;
  bool prompts_first = false;
  bool prompts_alone = false;  ///< A step with prompts holds no decode.
  bool pads = false;
};
inline Mixture mixture(const Setup& setup, std::size_t num_decoding, std::size_t num_prefilling) {
  switch (setup.rules.compose) {
    case AdmissionRules::Compose::DecodeFirst:
      return {};
    case AdmissionRules::Compose::PrefillFirst:
      return {true, true, true, false};
    case AdmissionRules::Compose::Exclusive:
      return {num_decoding == 0, true, true, false};
    case AdmissionRules::Compose::BatchUntilEmpty:
      return {num_decoding == 0 && num_prefilling == 0, true, true, true};
    case AdmissionRules::Compose::WhenIdle:
      return {num_decoding == 0 && num_prefilling == 0, false, false, false};
  }
  return {};
}

/// Tokens for which blocks must be there, and for which they are kept.
struct Needs {
  std::int64_t required = 0;
  std::int64_t held = 0;
};
inline Needs needs(const Setup& setup, std::int64_t known, std::int64_t most, std::int64_t cached) {
  switch (setup.rules.reserve) {
    case AdmissionRules::Reserve::WholePrompt:
      return {known, known};
    case AdmissionRules::Reserve::FirstChunk:
      return {std::min(known, cached + 1), 0};
    case AdmissionRules::Reserve::NoEvict:
      return {most, most};
    case AdmissionRules::Reserve::Fixed: {
      const std::int64_t tokens = std::min(most, std::max(known, setup.rules.reserve_tokens));
      return {tokens, tokens};
    }
  }
  return {};
}

/// Blocks that an admission leaves over while something runs.
inline std::int64_t headroom(const Setup& setup, std::int32_t preemptions) {
  const std::int64_t watermark = setup.blocks * setup.rules.watermark_permille / 1000;
  std::int64_t credit = setup.rules.requeue_blocks;
  for (std::int32_t i = 1; i < preemptions && credit < setup.blocks; ++i) {
    credit *= 2;
  }
  return std::min(std::max(watermark, preemptions > 0 ? credit : 0), setup.blocks - 1);
}

/// Tokens of a prompt in this step.
inline std::int64_t chunk(const Setup& setup, std::int64_t remaining, std::int64_t budget,
                          bool is_whole) {
  if (is_whole || !setup.rules.split_prompts) {
    return remaining <= budget ? remaining : 0;
  }
  std::int64_t tokens = std::min(remaining, budget);
  if (setup.rules.max_chunk_tokens > 0) {
    tokens = std::min(tokens, setup.rules.max_chunk_tokens);
  }
  const std::int64_t unit = setup.rules.chunk_unit > 0 ? setup.rules.chunk_unit : setup.block_size;
  return tokens < remaining && tokens > unit ? tokens - tokens % unit : tokens;
}

/// Rank in the queue: fixed when the sequence enters it.
inline AdmissionKey queue_key(const Setup& setup, const Sequence& s) {
  if (!setup.by_priority) {
    return {};
  }
  const Request& r = s.query->request();
  if (setup.aging == kUnbounded) {
    return {r.priority, r.arrival.ns};
  }
  return {r.arrival.ns + r.priority * setup.aging.ns, r.arrival.ns};
}

/// Who gives way, of `candidates` from the last admitted on.
inline SeatRef victim(const Setup& setup, const std::vector<SeatRef>& candidates) {
  SeatRef worst;
  for (const SeatRef& seat : candidates) {
    const Sequence& s = *seat->sequence;
    if (!setup.by_priority || s.preemptions >= setup.rules.max_preemptions) {
      continue;
    }
    const auto rank = [](const SeatRef& ref) {
      const Request& r = ref->sequence->query->request();
      return std::tuple(r.priority, r.arrival);
    };
    if (worst == nullptr || rank(worst) < rank(seat)) {
      worst = seat;
    }
  }
  return worst != nullptr ? worst : candidates.front();
}

/// Whether a waiting sequence may take the place of a running one.
inline bool displaces(const Setup& setup, const Sequence& waiting, const Sequence& running) {
  return setup.displaces && waiting.query->request().priority < running.query->request().priority &&
         running.query->displacements < setup.max_displacements;
}

}  // namespace dynbatch::test::naive
