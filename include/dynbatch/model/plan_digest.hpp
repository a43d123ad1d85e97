// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A digest of everything a plan decides, for comparing schedules across runs, ranks and compilers.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Equal plans have equal digests; chain them with `seed` to digest a schedule. O(plan).
[[nodiscard]] inline std::uint64_t plan_digest(const StepPlan& plan,
                                               std::uint64_t seed = 0) noexcept {
  std::uint64_t h = combine64(seed, plan.id.value);
  auto add = [&h](std::int64_t v) { h = combine64(h, static_cast<std::uint64_t>(v)); };
  add(plan.planned_at.ns);
  for (const Chunk& c : plan.chunks) {
    add(c.sequence.slot);
    add(c.sequence.generation);
    add(static_cast<std::int64_t>(c.request.value));
    add(c.row.value);
    add(static_cast<std::int64_t>(c.kind));
    add(c.first_position);
    add(c.num_tokens);
    add(c.logits_from);
    add(c.num_samples);
    add(c.sample);
  }
  h = combine64(h, hash_words(plan.tokens.data(), plan.tokens.size(), 1));
  h = combine64(h, hash_words(plan.positions.data(), plan.positions.size(), 2));
  for (const MicroBatch& m : plan.micro_batches) {
    add(m.first_token);
    add(m.last_token);
  }
  for (const GroupPlan& g : plan.groups) {
    for (const TokenSlot slot : g.token_slots) {
      add(slot.value);
    }
    for (const BlockDelta& d : g.deltas) {
      add(d.row.value);
      add(d.index);
      add(d.block.value);
    }
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

}  // namespace dynbatch::inline DYNBATCH_ABI
