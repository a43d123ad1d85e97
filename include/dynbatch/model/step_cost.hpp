// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How much work a step holds and what it is predicted to cost. Integers only: every rank and every
/// compiler computes the same prediction.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// The quantities that a step's time is fitted on.
struct StepWork {
  std::int64_t prefill_tokens = 0;   ///< Prompt tokens computed.
  std::int64_t decode_rows = 0;      ///< Decoding sequences.
  std::int64_t kv_tokens = 0;        ///< Sum of the decoding sequences' context lengths.
  std::int64_t attention_pairs = 0;  ///< Sum over prefill chunks of n * (prefix + n / 2).

  friend constexpr bool operator==(const StepWork&, const StepWork&) noexcept = default;
};

/// Attention work of a prefill chunk of `tokens` behind `prefix` positions, in query-key pairs.
[[nodiscard]] constexpr std::int64_t chunk_attention_pairs(std::int64_t prefix,
                                                           std::int64_t tokens) noexcept {
  return saturating_add(saturating_mul(tokens, prefix), saturating_mul(tokens, tokens) / 2);
}

/// Linear step-time model with integer coefficients (facts: a + b*B + c*KV + d*T, plus attention).
struct StepCost {
  std::int64_t fixed_ns = 0;           ///< Per step.
  std::int64_t prefill_token_ps = 0;   ///< Per prompt token.
  std::int64_t decode_row_ps = 0;      ///< Per decoding sequence.
  std::int64_t kv_token_ps = 0;        ///< Per context token of decoding sequences.
  std::int64_t attention_pair_fs = 0;  ///< Per query-key pair of prefill.
  std::uint64_t version = 0;           ///< 0 = nothing learned yet: predicts nothing.

  [[nodiscard]] constexpr bool is_known() const noexcept { return version != 0; }

  /// Predicted time; never negative, saturates instead of wrapping.
  [[nodiscard]] constexpr DurationNs predict(const StepWork& work) const noexcept {
    const std::int64_t ps = saturating_add(
        saturating_mul(prefill_token_ps, work.prefill_tokens),
        saturating_add(
            saturating_mul(decode_row_ps, work.decode_rows),
            saturating_add(saturating_mul(kv_token_ps, work.kv_tokens),
                           saturating_mul(attention_pair_fs, work.attention_pairs) / 1000)));
    return {saturating_add(fixed_ns, ps / 1000)};
  }

  friend constexpr bool operator==(const StepCost&, const StepCost&) noexcept = default;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
