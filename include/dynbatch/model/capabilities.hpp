// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a host's executor can do; make() refuses a configuration that it cannot honour.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/model/kv_group.hpp>

#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Limits and abilities of an executor. Spans must outlive the scheduler's make().
struct Capabilities {
  std::int64_t max_tokens = 8192;    ///< Tokens one step may compute; >= 1.
  std::int32_t max_sequences = 256;  ///< Rows; >= 1.
  std::int32_t sequence_handles =
      0;  ///< Sequence-addressed hosts: ids it can hold; 0 = block-addressed host.
  std::int64_t kv_tokens = 0;           ///< KV places; 0 = the pool's own size counts.
  std::span<const GroupSpec> groups{};  ///< Empty = whatever the pool has.
  bool in_order = true;                 ///< Steps run one after the other in plan order.
  bool future_tokens = false;     ///< A plan may name a token that an unfinished plan will produce;
                                  ///< used only where in_order is true.
  bool device_positions = false;  ///< Positions after drafts in flight are fixed on the device.
  bool partial_copy = false;      ///< Can copy the first n tokens of a block.
  bool partial_share = false;     ///< Can share any prefix range, not only whole blocks.
  bool swap = false;              ///< Can move blocks to host memory and back.
  bool rollback = true;           ///< Can forget the last positions of a sequence.
  std::span<const std::int32_t> graph_sizes{};  ///< Captured row counts, ascending; empty = any.
  std::int32_t num_layers = 0;                  ///< MoE layers that report expert counts.
  std::int32_t num_experts = 0;                 ///< Logical experts a layer; 0 = no expert counts.

  /// Range checks only; the pool and the policies are compared by Scheduler::make().
  [[nodiscard]] constexpr Status validate() const noexcept {
    if (max_tokens < 1) {
      return {Errc::InvalidConfig, "capabilities.max_tokens", max_tokens, 1, "must be at least 1"};
    }
    if (max_sequences < 1) {
      return {Errc::InvalidConfig, "capabilities.max_sequences", max_sequences, 1,
              "must be at least 1"};
    }
    if (sequence_handles < 0) {
      return {Errc::InvalidConfig, "capabilities.sequence_handles", sequence_handles, 0,
              "must not be negative"};
    }
    if (kv_tokens < 0) {
      return {Errc::InvalidConfig, "capabilities.kv_tokens", kv_tokens, 0, "must not be negative"};
    }
    if (groups.size() > kMaxGroups) {
      return {Errc::InvalidConfig, "capabilities.groups", static_cast<std::int64_t>(groups.size()),
              static_cast<std::int64_t>(kMaxGroups), "too many groups"};
    }
    std::int32_t previous = 0;
    for (const std::int32_t size : graph_sizes) {
      if (size <= previous) {
        return {Errc::InvalidConfig, "capabilities.graph_sizes", size, previous,
                "must ascend from 1"};
      }
      previous = size;
    }
    if (num_layers < 0 || num_experts < 0) {
      return {Errc::InvalidConfig, "capabilities.num_experts", num_experts, 0,
              "must not be negative"};
    }
    return kOk;
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
