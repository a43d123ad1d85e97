// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A digest of everything a plan decides, for comparing schedules across runs, ranks and compilers.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// Hash of a sequence of words in four lanes, so that multiplications overlap.
class LaneHash {
 public:
  explicit LaneHash(std::uint64_t seed) noexcept : lanes_{seed, ~seed, mix64(seed), seed << 1U} {}

  template <std::size_t kLane>
  void add(std::uint64_t word) noexcept {
    static_assert(kLane < 4);
    lanes_[kLane] = (lanes_[kLane] ^ word) * kOdd[kLane];
    lanes_[kLane] ^= lanes_[kLane] >> 29U;
  }
  [[nodiscard]] std::uint64_t value() const noexcept {
    return combine64(combine64(lanes_[0], lanes_[1]), combine64(lanes_[2], lanes_[3]));
  }

 private:
  static constexpr std::uint64_t kOdd[4] = {0x9E3779B97F4A7C15ULL, 0xC2B2AE3D27D4EB4FULL,
                                            0xBF58476D1CE4E5B9ULL, 0x94D049BB133111EBULL};
  std::uint64_t lanes_[4];
};

/// Two 32-bit numbers as one word.
[[nodiscard]] constexpr std::uint64_t word_of(std::int32_t low, std::int32_t high) noexcept {
  return static_cast<std::uint32_t>(low) | std::uint64_t{static_cast<std::uint32_t>(high)} << 32U;
}

}  // namespace detail

/// As plan_digest(), without the ids of tokens: all that a scheduler decides, nothing of the
/// content. O(plan).
[[nodiscard]] inline std::uint64_t decision_digest(const StepPlan& plan,
                                                   std::uint64_t seed = 0) noexcept {
  detail::LaneHash chunks(seed ^ plan.id.value);
  for (const Chunk& c : plan.chunks) {
    chunks.add<0>(std::uint64_t{c.sequence.slot} | std::uint64_t{c.sequence.generation} << 32U);
    chunks.add<1>(c.request.value);
    chunks.add<2>(detail::word_of(c.first_position, c.num_tokens));
    chunks.add<3>(detail::word_of(c.logits_from, c.num_samples));
    chunks.add<0>(detail::word_of(c.row.value, c.sample * 2 + static_cast<std::int32_t>(c.kind)));
  }
  std::uint64_t h = combine64(combine64(seed, plan.id.value), chunks.value());
  auto add = [&h](std::int64_t v) { h = combine64(h, static_cast<std::uint64_t>(v)); };
  add(plan.planned_at.ns);
  h = combine64(h, hash_words(plan.positions.data(), plan.positions.size(), 2));
  for (const MicroBatch& m : plan.micro_batches) {
    add(m.first_token);
    add(m.last_token);
  }
  for (const GroupPlan& g : plan.groups) {
    detail::LaneHash slots(g.token_slots.size());
    std::size_t i = 0;
    for (; i + 4 <= g.token_slots.size(); i += 4) {
      slots.add<0>(static_cast<std::uint64_t>(g.token_slots[i].value));
      slots.add<1>(static_cast<std::uint64_t>(g.token_slots[i + 1].value));
      slots.add<2>(static_cast<std::uint64_t>(g.token_slots[i + 2].value));
      slots.add<3>(static_cast<std::uint64_t>(g.token_slots[i + 3].value));
    }
    for (; i < g.token_slots.size(); ++i) {
      slots.add<0>(static_cast<std::uint64_t>(g.token_slots[i].value));
    }
    for (const BlockDelta& d : g.deltas) {
      slots.add<1>(detail::word_of(d.row.value, d.index));
      slots.add<2>(static_cast<std::uint64_t>(d.block.value));
    }
    h = combine64(h, slots.value());
    for (const BlockCopy& c : g.copies) {
      add(c.source.value);
      add(c.target.value);
      add(c.num_tokens);
    }
    for (const BlockId b : g.zeroes) {
      add(b.value);
    }
    for (const BlockSwap& s : g.swaps) {
      add(s.device.value);
      add(s.host_slot);
      add(s.to_host ? 1 : 0);
    }
  }
  for (const RowOp& op : plan.row_ops) {
    add(static_cast<std::int64_t>(op.kind));
    add(op.source.value);
    add(op.target.value);
    add(op.first);
    add(op.last);
    add(static_cast<std::int64_t>(op.handle));
  }
  for (const ExpertMove& m : plan.expert_moves) {
    add(m.layer);
    add(m.source_slot);
    add(m.target_slot);
    add(m.expert);
  }
  add(static_cast<std::int64_t>(plan.placement_version));
  add(plan.padded.tokens);
  add(plan.padded.rows);
  add(plan.padded.context_per_row);
  return h;
}

/// Equal plans have equal digests; chain them with `seed` to digest a schedule. O(plan).
[[nodiscard]] inline std::uint64_t plan_digest(const StepPlan& plan,
                                               std::uint64_t seed = 0) noexcept {
  return combine64(decision_digest(plan, seed),
                   hash_words(plan.tokens.data(), plan.tokens.size(), 1));
}

}  // namespace dynbatch::inline DYNBATCH_ABI
