// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How much work fits into a step beside the decodes, for sizers that know the cost of a step.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// The work of all decoding sequences.
[[nodiscard]] constexpr StepWork decode_work(const SizerInput& in) noexcept {
  StepWork work;
  work.decode_rows = max_of(in.num_decoding, 0);
  work.kv_tokens = max_of<std::int64_t>(in.decoding_kv_tokens, 0);
  return work;
}

/// Prompt tokens, `most` at most, that a step with `work` has time for. Exact for the prompt that
/// is next. Those behind it are taken to be whole prompts of the mean waiting length, each of which
/// attends to half of itself: it would cost O(prompts) to look at every one.
[[nodiscard]] constexpr std::int64_t prefill_tokens_within(const StepCost& cost, DurationNs limit,
                                                           const StepWork& work,
                                                           const SizerInput& in,
                                                           std::int64_t most) noexcept {
  const std::int64_t position = max_of<std::int64_t>(in.next_prompt_position, 0);
  const std::int64_t left = clamp_to<std::int64_t>(in.next_prompt_tokens, 0, most);
  const std::int64_t next = cost.prefill_tokens_within(limit, work, position, left);
  if (next < left || next == most) {
    return next;
  }
  StepCost later = cost;
  if (in.num_waiting > 0) {
    const std::int64_t mean = max_of<std::int64_t>(in.waiting_prompt_tokens, 0) / in.num_waiting;
    later.prefill_token_ps =
        saturating_add(cost.prefill_token_ps, saturating_mul(cost.attention_pair_fs, mean) / 2000);
  }
  later.attention_pair_fs = 0;
  const std::int64_t spent = cost.predict(with_prefill(work, position, next)).ns;
  later.fixed_ns = spent;
  return next + later.prefill_tokens_within(limit, StepWork{}, 0, most - next);
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
