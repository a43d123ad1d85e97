// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Strong identifiers: a block, a row, a sequence and a plan cannot be mistaken for one another.
#include <dynbatch/base/config.hpp>

#include <compare>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A vocabulary index; negative values are references to tokens not yet known
/// (model/step_plan.hpp).
using Token = std::int32_t;

/// Chosen by the host; unique among live requests.
struct RequestId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(RequestId, RequestId) noexcept = default;
};

/// One sequence of a request: a slot that is reused and the generation that tells its users apart.
struct SequenceId {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(SequenceId, SequenceId) noexcept = default;
};

/// A physical KV block of one group, in [0, number of blocks).
struct BlockId {
  std::int32_t value = -1;
  friend constexpr auto operator<=>(BlockId, BlockId) noexcept = default;
};

/// A sequence's stable place in the batch, in [0, max_sequences), kept for a whole residence.
struct Row {
  std::int32_t value = -1;
  friend constexpr auto operator<=>(Row, Row) noexcept = default;
};

/// One token's place in paged KV storage: block * block_size + offset. 64-bit throughout.
struct TokenSlot {
  std::int64_t value = -1;
  friend constexpr auto operator<=>(TokenSlot, TokenSlot) noexcept = default;
};

/// Numbered from 1 in the order of planning; 0 is "none".
struct PlanId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(PlanId, PlanId) noexcept = default;
};

inline constexpr BlockId kNoBlock{};
inline constexpr Row kNoRow{};
inline constexpr PlanId kNoPlan{};

}  // namespace dynbatch::inline DYNBATCH_ABI
