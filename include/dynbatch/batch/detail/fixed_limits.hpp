// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Limits that do not depend on what runs, and what the executor makes of them.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>

#include <cstdint>
#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// So many sequences and tokens a step; 0 = no limit.
[[nodiscard]] constexpr BatchLimits fixed_limits(std::int32_t sequences,
                                                 std::int64_t tokens) noexcept {
  BatchLimits out;
  out.max_decode_sequences = sequences > 0 ? sequences : std::numeric_limits<std::int32_t>::max();
  out.max_prefill_sequences = out.max_decode_sequences;
  out.max_tokens = tokens > 0 ? tokens : std::numeric_limits<std::int64_t>::max();
  out.max_prefill_tokens = out.max_tokens;
  return out;
}

/// The same, but no more than the executor can do in a step.
[[nodiscard]] constexpr BatchLimits within_executor(BatchLimits limits,
                                                    const SizerInput& in) noexcept {
  const std::int32_t rows = max_of(in.max_sequences, 1);
  limits.max_prefill_sequences = min_of(limits.max_prefill_sequences, rows);
  limits.max_decode_sequences = min_of(limits.max_decode_sequences, rows);
  limits.max_tokens = min_of(limits.max_tokens, max_of<std::int64_t>(in.max_tokens, 1));
  limits.max_prefill_tokens = min_of(limits.max_prefill_tokens, limits.max_tokens);
  return limits;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
