// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MemoryStore: what operations do, when they end and how.
#include <dynbatch/kv/memory_store.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

inline Status MemoryStore::attach(const TierAttachment& attachment) noexcept {
  if (const Status s = config_.validate(); !s) {
    return s;
  }
  if (attachment.memory.bytes == nullptr || attachment.memory.slot_bytes < 1) {
    return {Errc::InvalidConfig, "memory", attachment.memory.slot_bytes, 1,
            "the tier can't reach the engine's host slots"};
  }
  for (Operation& op : operations_.span()) {  // of the engine before: it is gone
    if (op.ticket != 0) {
      op.num_good = 0;
      op.outcome = TierResult::Cancelled;
      end(op);
    }
  }
  if (blocks_.size() != 0 && memory_.slot_bytes != attachment.memory.slot_bytes) {
    return {Errc::InvalidConfig, "slot_bytes", attachment.memory.slot_bytes, memory_.slot_bytes,
            "this store holds blocks of another size"};
  }
  memory_ = attachment.memory;
  max_blocks_ = static_cast<std::size_t>(max_of<std::int64_t>(attachment.max_blocks, 1));
  const auto ops = static_cast<std::size_t>(max_of(attachment.max_operations, 1));
  Status s = operations_.allocate(ops, "max_operations");
  s = s ? keys_.allocate(ops * max_blocks_, "max_blocks") : s;
  s = s ? slots_.allocate(ops * max_blocks_, "max_blocks") : s;
  s = s ? held_.allocate(ops * max_blocks_, "max_blocks") : s;
  if (!s || blocks_.size() != 0) {
    return s;
  }
  const auto n = static_cast<std::size_t>(config_.num_blocks);
  const auto table = static_cast<std::size_t>(next_power_of_two(2 * config_.num_blocks));
  s = blocks_.allocate(n, "num_blocks");
  s = s ? data_.allocate(
              static_cast<std::size_t>(saturating_mul(config_.num_blocks, memory_.slot_bytes)),
              "num_blocks")
        : s;
  s = s ? buckets_.allocate(table, "num_blocks") : s;
  s = s ? families_.allocate(table, "num_blocks") : s;
  s = s && config_.store_threshold > 0 ? lookups_.allocate(4 * table, "store_threshold") : s;
  return s;
}

inline bool MemoryStore::begin(const TierOperation& operation) noexcept {
  Operation* op = nullptr;
  for (Operation& candidate : operations_.span()) {
    op = op == nullptr && candidate.ticket == 0 ? &candidate : op;
  }
  const bool has_slots = operation.verb != TierVerb::Query;
  if (op == nullptr || operation.ticket == 0 || operation.keys.empty() ||
      operation.keys.size() > max_blocks_ ||
      (has_slots && operation.slots.size() != operation.keys.size())) {
    ++stats_.refused;
    return false;
  }
  *op = Operation{};
  op->verb = operation.verb;
  op->count = static_cast<std::int32_t>(operation.keys.size());
  for (std::size_t i = 0; i < operation.keys.size(); ++i) {
    keys_of(*op)[i] = operation.keys[i];
    slots_of(*op)[i] = has_slots ? operation.slots[i] : -1;
  }
  bool is_held = true;
  switch (operation.verb) {
    case TierVerb::Query:
      ++stats_.queries;
      for (const BlockKey& key : operation.keys) {
        note_lookup(key);
      }
      note_mismatch(operation);
      break;
    case TierVerb::Fetch:
      ++stats_.fetches;
      is_held = hold_for_fetch(*op);
      break;
    case TierVerb::Store:
      ++stats_.stores;
      is_held = hold_for_store(*op, operation);
      break;
  }
  if (!is_held) {
    ++stats_.refused;
    return false;
  }
  op->ticket = operation.ticket;
  op->order = next_order_++;
  draw_outcome(*op, operation);
  ++stats_.in_flight;
  now_ = max_of(now_, operation.now);
  scribble(*op);
  return true;
}

inline void MemoryStore::scribble(const Operation& op) noexcept {
  if (config_.faults.scribbles && op.verb == TierVerb::Fetch) {
    for (std::int32_t i = 0; i < op.count; ++i) {
      const std::span<std::byte> slot = memory_.bytes(memory_.context, slots_of(op)[i]);
      std::memset(slot.data(), 0xEE, slot.size());
    }
  }
}

inline void MemoryStore::draw_outcome(Operation& op, const TierOperation& operation) noexcept {
  const Faults& f = config_.faults;
  const std::int64_t jitter = f.jitter.ns > 0 ? random_.between(0, f.jitter.ns) : 0;
  const std::int64_t takes = saturating_add(
      f.latency.ns, saturating_add(saturating_mul(f.block_time.ns, op.count), jitter));
  op.due = TimeNs{saturating_sum(operation.now.ns, takes)};
  op.num_good = op.num_held;
  const std::int32_t chance = op.verb == TierVerb::Query   ? f.query_fails
                              : op.verb == TierVerb::Fetch ? f.fetch_fails
                                                           : f.store_fails;
  if (is_chance(chance)) {
    op.outcome = TierResult::Failed;
    const bool is_partial = op.num_held > 1 && is_chance(f.partial);
    op.num_good = is_partial ? static_cast<std::int32_t>(random_.between(1, op.num_held - 1)) : 0;
  }
  if (op.verb == TierVerb::Fetch && op.num_held > 0 &&
      (is_chance(f.corrupts) || is_chance(f.confuses))) {
    op.bad = static_cast<std::int32_t>(random_.between(0, op.num_held - 1));
    op.is_confused = is_chance(f.confuses);
  }
  if (is_chance(f.never)) {
    op.due = kNever;
  }
}

inline void MemoryStore::cancel(std::uint64_t ticket) noexcept {
  if (Operation* op = find(ticket); op != nullptr && !config_.faults.ignores_cancel) {
    op->is_cancelled = true;
    op->due =
        config_.faults.scribbles ? TimeNs{saturating_sum(now_.ns, config_.faults.jitter.ns)} : now_;
  }
}

inline std::size_t MemoryStore::poll(TimeNs now, std::span<TierCompletion> completions) noexcept {
  std::size_t n = 0;
  now_ = max_of(now_, now);
  while (n < completions.size() && stats_.in_flight > 0) {
    Operation* next = nullptr;
    std::int64_t num_due = 0;
    for (Operation& op : operations_.span()) {
      if (op.ticket == 0 || op.due > now) {
        continue;
      }
      ++num_due;
      const bool is_earlier =
          next == nullptr || op.due < next->due || (op.due == next->due && op.order < next->order);
      if (config_.faults.shuffles ? random_.one_in(num_due) : is_earlier) {
        next = &op;
      }
    }
    if (next == nullptr) {
      break;
    }
    completions[n++] = end(*next);
  }
  return n;
}

inline TierCompletion MemoryStore::end(Operation& op) noexcept {
  if (op.is_cancelled) {
    op.outcome = TierResult::Cancelled;
    op.num_good = 0;
    scribble(op);
  }
  TierCompletion done{op.ticket, 0, op.outcome};
  switch (op.verb) {
    case TierVerb::Query:
      done.num_blocks = op.outcome == TierResult::Done ? end_query(op) : 0;
      break;
    case TierVerb::Fetch:
      done.num_blocks = end_fetch(op);
      done.result = op.outcome;
      break;
    case TierVerb::Store:
      done.num_blocks = end_store(op);
      break;
  }
  op.ticket = 0;
  --stats_.in_flight;
  return done;
}

inline std::int32_t MemoryStore::end_query(const Operation& op) noexcept {
  std::int32_t n = 0;
  while (n < op.count && has(keys_of(op)[n])) {
    ++n;
  }
  return n;
}

inline std::int32_t MemoryStore::end_fetch(Operation& op) noexcept {
  std::int32_t good = 0;
  for (std::int32_t i = 0; i < op.num_held; ++i) {
    const std::int32_t block = held_of(op)[i];
    bool is_rotten = false;
    if (good == i && i < op.num_good) {
      const std::span<std::byte> slot = memory_.bytes(memory_.context, slots_of(op)[i]);
      const bool is_bad = i == op.bad;
      const std::int32_t source = is_bad && op.is_confused ? (block + 1) % num_used_ : block;
      std::memcpy(slot.data(), data(source), slot.size());
      if (is_bad && !op.is_confused) {
        slot[slot.size() / 2] ^= std::byte{4};
      }
      // What is delivered is checked in its place, whatever it was when it left.
      if (at(source).envelope.holds(keys_of(op)[i], slot)) {
        ++good;
      } else {
        ++stats_.corrupt;
        op.outcome = TierResult::Corrupt;
        is_rotten = !is_bad;
      }
    }
    if (--at(block).readers == 0) {
      if (is_rotten) {
        drop(block);
      } else {
        link_use(block);
      }
    }
  }
  return good;
}

inline std::int32_t MemoryStore::end_store(Operation& op) noexcept {
  std::int32_t good = 0;
  for (std::int32_t i = 0; i < op.num_held; ++i) {
    const std::int32_t block = held_of(op)[i];
    const bool is_good = i < op.num_good;
    good += is_good ? 1 : 0;
    if (block < 0) {
      continue;
    }
    Block& b = at(block);
    if (!is_good) {
      drop(block);
      continue;
    }
    const std::span<std::byte> slot = memory_.bytes(memory_.context, slots_of(op)[i]);
    std::memcpy(data(block), slot.data(), slot.size());
    b.envelope = BlockEnvelope::around(b.key, b.family, slot);
    b.state = State::Ready;
    ++stats_.num_blocks;
    link_use(block);
  }
  return good;
}

inline bool MemoryStore::hold_for_fetch(Operation& op) noexcept {
  while (op.num_held < op.count) {
    const std::int32_t block = find_block(keys_of(op)[op.num_held]);
    if (block < 0 || at(block).state != State::Ready) {
      break;
    }
    if (at(block).readers++ == 0) {
      unlink_use(block);
    }
    held_of(op)[op.num_held++] = block;
  }
  return true;
}

inline bool MemoryStore::hold_for_store(Operation& op, const TierOperation& operation) noexcept {
  bool is_full = false;
  while (op.num_held < op.count && !is_full) {
    const auto i = static_cast<std::size_t>(op.num_held);
    const BlockKey& key = operation.keys[i];
    if (const std::int32_t known = find_block(key); known >= 0) {
      if (at(known).state != State::Ready) {
        break;  // another operation writes it: behind it nothing could be found yet
      }
      held_of(op)[op.num_held++] = -1;
      continue;
    }
    if (!is_wanted(key)) {
      break;
    }
    const std::int32_t block = take_block();
    is_full = block < 0;
    if (!is_full) {
      enter(block, operation, i);
      held_of(op)[op.num_held++] = block;
    }
  }
  return op.num_held > 0 || !is_full;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
