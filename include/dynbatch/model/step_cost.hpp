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

/// `work` with a prefill chunk of `tokens` behind `prefix` positions more.
[[nodiscard]] constexpr StepWork with_prefill(StepWork work, std::int64_t prefix,
                                              std::int64_t tokens) noexcept {
  work.prefill_tokens = saturating_add(work.prefill_tokens, tokens);
  work.attention_pairs =
      saturating_add(work.attention_pairs, chunk_attention_pairs(prefix, tokens));
  return work;
}

/// `work` with `rows` decoding sequences of `context` positions each more.
[[nodiscard]] constexpr StepWork with_decodes(StepWork work, std::int64_t context,
                                              std::int64_t rows) noexcept {
  work.decode_rows = saturating_add(work.decode_rows, rows);
  work.kv_tokens = saturating_add(work.kv_tokens, saturating_mul(context, rows));
  return work;
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
    return {saturating_add(fixed_ns, variable_ps(work) / 1000)};
  }

  /// The inverse: the largest n <= `most` such that `work` with n prompt tokens behind `prefix`
  /// positions more is predicted to take `limit` at most; 0 also if `work` alone takes longer.
  /// Exact, also where predict() saturates. `prefix` and all work >= 0.
  [[nodiscard]] constexpr std::int64_t prefill_tokens_within(DurationNs limit, const StepWork& work,
                                                             std::int64_t prefix,
                                                             std::int64_t most) const noexcept;
  /// The same for decoding sequences of `context` positions each.
  [[nodiscard]] constexpr std::int64_t decode_rows_within(DurationNs limit, const StepWork& work,
                                                          std::int64_t context,
                                                          std::int64_t most) const noexcept;

  friend constexpr bool operator==(const StepCost&, const StepCost&) noexcept = default;

 private:
  [[nodiscard]] constexpr std::int64_t variable_ps(const StepWork& work) const noexcept {
    return saturating_add(
        saturating_mul(prefill_token_ps, work.prefill_tokens),
        saturating_add(
            saturating_mul(decode_row_ps, work.decode_rows),
            saturating_add(saturating_mul(kv_token_ps, work.kv_tokens),
                           saturating_mul(attention_pair_fs, work.attention_pairs) / 1000)));
  }

  /// `n` more of what costs `each` * n + `square` * n * n picoseconds: that root is the guess,
  /// predictions decide. So the answer is the same wherever doubles round differently.
  template <class More>
  [[nodiscard]] constexpr std::int64_t largest_within(DurationNs limit, const StepWork& work,
                                                      double each, double square, std::int64_t most,
                                                      More more) const noexcept {
    constexpr std::int64_t kMostNs = INT64_MAX / 1000;  // variable_ps() is never above
    if (limit.ns < fixed_ns || most <= 0) {
      return 0;
    }
    const std::int64_t room = limit.ns - fixed_ns;
    if (room >= kMostNs || limit.ns == INT64_MAX) {
      return most;
    }
    const std::int64_t room_ps = room * 1000 + 999;
    const std::int64_t spent_ps = variable_ps(work);
    if (spent_ps > room_ps) {
      return 0;
    }
    const auto left = static_cast<double>(room_ps - spent_ps);
    const double divisor =
        square > 0.0 ? each + __builtin_sqrt(each * each + 4.0 * square * left) : 2.0 * each;
    const auto most_guess = static_cast<double>(most);
    const double root = divisor > 0.0 ? 2.0 * left / divisor : most_guess;
    const std::int64_t guess = root < most_guess ? static_cast<std::int64_t>(root) : most;
    return largest_fitting(
        guess, most, [&](std::int64_t n) noexcept { return variable_ps(more(n)) <= room_ps; });
  }
};

// Behind the class: before that clang 19 has no body of the template for a constant expression.
constexpr std::int64_t StepCost::prefill_tokens_within(DurationNs limit, const StepWork& work,
                                                       std::int64_t prefix,
                                                       std::int64_t most) const noexcept {
  const double pair_ps = static_cast<double>(attention_pair_fs) * 1e-3;
  return largest_within(
      limit, work, static_cast<double>(prefill_token_ps) + pair_ps * static_cast<double>(prefix),
      pair_ps * 0.5, most, [&](std::int64_t n) noexcept { return with_prefill(work, prefix, n); });
}

constexpr std::int64_t StepCost::decode_rows_within(DurationNs limit, const StepWork& work,
                                                    std::int64_t context,
                                                    std::int64_t most) const noexcept {
  return largest_within(limit, work,
                        static_cast<double>(decode_row_ps) +
                            static_cast<double>(kv_token_ps) * static_cast<double>(context),
                        0.0, most,
                        [&](std::int64_t n) noexcept { return with_decodes(work, context, n); });
}

}  // namespace dynbatch::inline DYNBATCH_ABI
