// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MemoryStore: which blocks there are, in which order they go, and how often they were asked for.
#include <dynbatch/kv/memory_store.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

inline void MemoryStore::link_use(std::int32_t block) noexcept {
  at(block).older = newest_;
  at(block).newer = -1;
  (newest_ >= 0 ? at(newest_).newer : oldest_) = block;
  newest_ = block;
}

inline void MemoryStore::unlink_use(std::int32_t block) noexcept {
  const Block& b = at(block);
  (b.older >= 0 ? at(b.older).newer : oldest_) = b.newer;
  (b.newer >= 0 ? at(b.newer).older : newest_) = b.older;
}

/// A block to write to, or -1 if all are written or read.
inline std::int32_t MemoryStore::take_block() noexcept {
  if (free_ < 0 && num_used_ < config_.num_blocks) {
    return num_used_++;
  }
  if (free_ < 0) {
    if (oldest_ < 0) {
      return -1;
    }
    const std::int32_t victim = oldest_;
    unlink_use(victim);
    ++stats_.evictions;
    drop(victim);
  }
  const std::int32_t block = free_;
  free_ = at(block).next;
  return block;
}

inline void MemoryStore::enter(std::int32_t block, const TierOperation& operation,
                               std::size_t i) noexcept {
  Block& b = at(block);
  b = Block{};
  b.key = operation.keys[i];
  b.root = operation.root.digest;
  b.family = operation.root.family;
  b.is_first = operation.first_block == 0 && i == 0;
  b.state = State::Writing;
  std::int32_t& head = buckets_[bucket(b.key.words[0])];
  b.next = head - 1;
  head = block + 1;
  if (b.is_first) {
    std::int32_t& family = families_[bucket(b.family)];
    b.family_next = family - 1;
    family = block + 1;
  }
}

/// Takes a block that stands in no order of use out of the tables; it is free then.
inline void MemoryStore::drop(std::int32_t block) noexcept {
  Block& b = at(block);
  stats_.num_blocks -= b.state == State::Ready ? 1 : 0;
  std::int32_t* link = &buckets_[bucket(b.key.words[0])];
  if (*link - 1 == block) {
    *link = b.next + 1;
  } else {
    std::int32_t e = *link - 1;
    while (at(e).next != block) {
      e = at(e).next;
    }
    at(e).next = b.next;
  }
  if (b.is_first) {
    link = &families_[bucket(b.family)];
    if (*link - 1 == block) {
      *link = b.family_next + 1;
    } else {
      std::int32_t e = *link - 1;
      while (at(e).family_next != block) {
        e = at(e).family_next;
      }
      at(e).family_next = b.family_next;
    }
  }
  b = Block{};
  b.next = free_;
  free_ = block;
}

inline void MemoryStore::note_lookup(const BlockKey& key) noexcept {
  if (lookups_.size() == 0) {
    return;
  }
  std::uint32_t& cell = lookups_[key.words[0] & (lookups_.size() - 1)];
  const auto mark = static_cast<std::uint32_t>(key.words[1]) & ~std::uint32_t{255};
  const std::uint32_t count = (cell & ~std::uint32_t{255}) == mark ? cell & 255U : 0;
  cell = mark | min_of<std::uint32_t>(count + 1, 255);
}

inline bool MemoryStore::is_wanted(const BlockKey& key) const noexcept {
  if (lookups_.size() == 0) {
    return true;
  }
  const std::uint32_t cell = lookups_.data()[key.words[0] & (lookups_.size() - 1)];
  const auto mark = static_cast<std::uint32_t>(key.words[1]) & ~std::uint32_t{255};
  return (cell & ~std::uint32_t{255}) == mark &&
         (cell & 255U) >=
             min_of<std::uint32_t>(static_cast<std::uint32_t>(config_.store_threshold), 255);
}

/// A first block that is missed although its text is there: under other roots only?
inline void MemoryStore::note_mismatch(const TierOperation& operation) noexcept {
  if (operation.first_block != 0 || has(operation.keys[0])) {
    return;
  }
  bool is_known = false;
  for (std::int32_t e = families_[bucket(operation.root.family)] - 1; e >= 0;
       e = at(e).family_next) {
    if (at(e).family == operation.root.family && at(e).state == State::Ready) {
      if (at(e).root == operation.root.digest) {
        return;
      }
      is_known = true;
    }
  }
  stats_.mismatches += is_known ? 1 : 0;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
