// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// NullBalancer: the ExpertBalancer that does nothing, for dense models and fixed placements.
#include <dynbatch/base/config.hpp>
#include <dynbatch/concepts/expert_balancer.hpp>
#include <dynbatch/concepts/ladder.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Placement version 0 for ever: slot s holds expert s mod num_experts, replicas share equally.
class NullBalancer {
 public:
  using Config = EmptyConfig;

  NullBalancer() noexcept = default;
  explicit NullBalancer(Config /*config*/) noexcept {}

  void observe(const ExpertCounts& /*counts*/) noexcept {}
  bool task() noexcept { return false; }
  [[nodiscard]] std::uint64_t placement() const noexcept { return 0; }
  std::int32_t due_moves(std::span<ExpertMove> /*moves*/) noexcept { return 0; }
  void confirm(std::int32_t /*layer*/) noexcept {}
  void fail(std::int32_t /*layer*/) noexcept {}

  /// Writes each slot's share of its expert's tokens. O(slots).
  void shares(std::int32_t /*layer*/, std::span<const std::uint32_t> counts,
              std::span<float> out) const noexcept {
    const std::size_t experts = counts.empty() ? out.size() : counts.size();
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      const std::size_t expert = slot % experts;
      const std::size_t replicas = (out.size() - expert + experts - 1) / experts;
      out[slot] = 1.0F / static_cast<float>(replicas);
    }
  }
};

static_assert(ExpertBalancer<NullBalancer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
