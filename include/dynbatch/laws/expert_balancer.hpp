// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The laws of ExpertBalancer (docs/policies/expert_balancer.md) as a test for any model.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/concepts/expert_balancer.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Puts a fresh `balancer`, configured for 4 layers of 8 experts in 8 slots or for any shape,
/// through random loads and checks laws 1 to 4.
template <ExpertBalancer P>
[[nodiscard]] Status check_expert_balancer_laws(P& balancer, std::uint64_t seed) noexcept {
  constexpr std::size_t kLayers = 4;
  constexpr std::size_t kExperts = 8;
  constexpr std::size_t kSlots = 8;
  SplitMix64 random(seed);
  std::uint32_t counts[kLayers * kExperts];
  ExpertMove moves[16];
  float shares[kSlots];
  std::uint64_t version = balancer.placement();
  for (int round = 0; round < 500; ++round) {
    for (std::uint32_t& count : counts) {
      count = static_cast<std::uint32_t>(
          random.one_in(32) ? 0xFFFFFFFF : random.between(0, random.one_in(4) ? 0 : 4096));
    }
    ExpertCounts observed;
    observed.num_layers = kLayers;
    observed.num_experts = kExperts;
    observed.counts = counts;
    observed.is_prefill = random.one_in(2);
    balancer.observe(observed);
    if (balancer.placement() != version) {
      return {Errc::InternalError, "law 1", static_cast<std::int64_t>(balancer.placement()),
              static_cast<std::int64_t>(version), "observe() changed the placement"};
    }

    int num_tasks = 0;
    while (balancer.task()) {
      if (++num_tasks == 10'000) {
        return {Errc::InternalError, "law 2", num_tasks, 0, "task() never comes to an end"};
      }
    }

    const auto room = static_cast<std::size_t>(random.between(0, 16));
    const std::int32_t num_moves = balancer.due_moves({moves, room});
    if (num_moves < 0 || static_cast<std::size_t>(num_moves) > room) {
      return {Errc::InternalError, "law 3", num_moves, static_cast<std::int64_t>(room),
              "due_moves() returned more than there is room for"};
    }
    for (std::int32_t i = 0; i < num_moves; ++i) {
      const ExpertMove& move = moves[i];
      if (move.layer < 0 || move.layer >= static_cast<std::int32_t>(kLayers) || move.expert < 0 ||
          move.expert >= static_cast<std::int32_t>(kExperts) || move.source_slot < 0 ||
          move.target_slot < 0) {
        return {Errc::InternalError, "law 3", i, 0, "a due move names what does not exist"};
      }
      if (random.one_in(4)) {
        balancer.fail(move.layer);
      } else {
        balancer.confirm(move.layer);
      }
    }
    if (balancer.placement() < version) {
      return {Errc::InternalError, "law 1", static_cast<std::int64_t>(balancer.placement()),
              static_cast<std::int64_t>(version), "the placement's version went back"};
    }
    version = balancer.placement();

    const auto layer = static_cast<std::size_t>(random.between(0, kLayers - 1));
    const P& view = balancer;
    view.shares(static_cast<std::int32_t>(layer), {counts + layer * kExperts, kExperts}, shares);
    double sum = 0.0;
    for (const float share : shares) {
      if (!(share >= 0.0F && share <= 1.0F)) {
        return {Errc::InternalError, "law 4", 0, 1, "a share lies outside [0, 1]"};
      }
      sum += static_cast<double>(share);
    }
    // Each expert's shares add up to one, so all together to their number.
    const double off = sum - static_cast<double>(kExperts);
    if (off > 0.001 || off < -0.001) {
      return {Errc::InternalError, "law 4", static_cast<std::int64_t>(sum),
              static_cast<std::int64_t>(kExperts), "the shares don't add up to one an expert"};
    }
  }
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
