// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// CompanionCache: blocks of a further group, found through prefixes of the first group.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/kv/block_store.hpp>
#include <dynbatch/kv/detail/prefix_key.hpp>
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Blocks of one group beside the first. A block may be attached to a prefix of the first group,
/// at one of `per_prefix` places there; it is found as long as that prefix keeps its identity, and
/// is void for ever afterwards: then it is freed by the row that drops it, by the next block that
/// takes its place, or in the order of eviction. One thread; no allocation after attach().
class CompanionCache {
 public:
  [[nodiscard]] Status attach(std::int64_t num_blocks, std::int64_t num_prefixes,
                              std::int32_t per_prefix, std::size_t max_copies) noexcept {
    per_prefix_ = per_prefix;
    const auto places =
        static_cast<std::size_t>(num_prefixes) * static_cast<std::size_t>(per_prefix);
    Status s = store_.attach(num_blocks);
    s = s ? places_.allocate(places, "num_blocks") : s;
    s = s ? place_of_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks") : s;
    return s ? copies_.allocate(max_copies, "max_rows") : s;
  }

  [[nodiscard]] const BlockStore<Lru>& store() const noexcept { return store_; }

  /// A block without content, with one reference; there must be an available one. Forgets what was
  /// used longest ago if none is free.
  [[nodiscard]] BlockId take() noexcept {
    BlockId block = store_.allocate();
    if (block == kNoBlock) {
      const std::size_t taken = store_.evict({&block, 1});
      DYNBATCH_ASSERT(taken == 1, "a further group has fewer blocks than it promised");
      detach(block);
    }
    return block;
  }
  void add_reference(BlockId block) noexcept { store_.add_reference(block); }

  /// Drops a reference; the last one keeps the block as cached if `is_alive(key)` of its prefix.
  template <class IsAlive>
  void drop(BlockId block, const IsAlive& is_alive) noexcept {
    bool keep = false;
    if (store_.references(block) == 1 && is_attached(block)) {
      const std::int64_t place = place_of_.data()[block.value] - 1;
      keep = is_alive(
          PrefixKey{static_cast<std::int32_t>(place / per_prefix_), places_.data()[place].id});
      if (!keep) {
        detach(block);
      }
    }
    store_.drop_reference(block, keep);
  }

  /// The block attached to a prefix, or kNoBlock.
  [[nodiscard]] BlockId find(PrefixKey key, std::int32_t sub) const noexcept {
    if (key.id == 0) {
      return kNoBlock;
    }
    const Place& place = places_.data()[index_of(key, sub)];
    return place.id == key.id ? BlockId{place.block_plus_one - 1} : kNoBlock;
  }

  [[nodiscard]] bool is_attached(BlockId block) const noexcept {
    return place_of_.data()[block.value] != 0;
  }

  /// Attaches a referenced block that is attached nowhere; false if the prefix has one already.
  bool offer(BlockId block, PrefixKey key, std::int32_t sub) noexcept {
    const std::int64_t index = index_of(key, sub);
    Place& place = places_.data()[index];
    if (place.block_plus_one != 0) {
      if (place.id == key.id) {
        return false;
      }
      const BlockId old{place.block_plus_one - 1};  // its prefix is gone
      detach(old);
      if (store_.references(old) == 0) {
        store_.forget(old);
      }
    }
    place = {key.id, block.value + 1};
    place_of_.data()[block.value] = index + 1;
    return true;
  }

  /// Nothing finds the block's content any more.
  void detach(BlockId block) noexcept {
    std::int64_t& place = place_of_.data()[block.value];
    if (place != 0) {
      places_.data()[place - 1] = {};
      place = 0;
    }
  }

  /// Frees everything cached.
  void clear() noexcept {
    for (BlockId block = store_.eviction().victim(); block != kNoBlock;
         block = store_.eviction().victim()) {
      detach(block);
      store_.forget(block);
    }
  }

  /// A copy that the next plan has to make for `row`; until then its source stays what it is.
  void add_copy(const BlockCopy& copy, Row row) noexcept {
    store_.add_reference(copy.source);
    copies_.push_back({copy, row, 0});
  }
  [[nodiscard]] bool has_copy_room() const noexcept { return copies_.size() < copies_.capacity(); }

  /// Tells the copies to `plan`. With `in_order` their sources are let go: who takes one writes to
  /// it later. Else they stay until the plan is settled.
  template <class IsAlive>
  std::size_t drain_copies(std::span<BlockCopy> out, PlanId plan, bool in_order,
                           const IsAlive& is_alive) noexcept {
    std::size_t n = 0;
    std::size_t kept = 0;
    for (Copy copy : copies_) {
      const bool is_told = copy.told == 0 && n < out.size();
      if (is_told) {
        out[n++] = copy.copy;
        copy.told = plan.value;
      }
      if (is_told && in_order) {
        drop(copy.copy.source, is_alive);
      } else {
        copies_[kept++] = copy;
      }
    }
    copies_.resize(kept);
    return n;
  }

  /// The row has left: what it was to begin with need not be copied.
  template <class IsAlive>
  void drop_copies(Row row, const IsAlive& is_alive) noexcept {
    drop_copies_if([row](const Copy& copy) { return copy.told == 0 && copy.row == row; }, is_alive);
  }
  /// `plan` and older ones are over.
  template <class IsAlive>
  void settle(PlanId plan, const IsAlive& is_alive) noexcept {
    drop_copies_if([plan](const Copy& copy) { return copy.told != 0 && copy.told <= plan.value; },
                   is_alive);
  }

  /// Verifies lists and attachments, and that every reference is one of `counts` or of a copy.
  [[nodiscard]] Status check(std::span<std::int32_t> counts) const noexcept {
    if (const Status s = store_.check(); !s) {
      return s;
    }
    for (const Copy& copy : copies_) {
      ++counts[static_cast<std::size_t>(copy.copy.source.value)];
    }
    std::int64_t attached = 0;
    for (std::int64_t id = 0; id < store_.first_unused(); ++id) {
      const BlockId block{static_cast<std::int32_t>(id)};
      if (store_.references(block) != counts[static_cast<std::size_t>(id)]) {
        return {Errc::InternalError, "references", store_.references(block),
                counts[static_cast<std::size_t>(id)],
                "a reference count of a further group differs from its tables"};
      }
      const std::int64_t place = place_of_.data()[id];
      attached += place != 0 ? 1 : 0;
      if (place != 0 && places_.data()[place - 1].block_plus_one != block.value + 1) {
        return {Errc::InternalError, "block", id, place, "a block is not where it is attached"};
      }
    }
    for (BlockId b = store_.eviction().front(); b != kNoBlock; b = store_.eviction().after(b)) {
      if (!is_attached(b)) {
        return {Errc::InternalError, "block", b.value, 0, "a cached block belongs to no prefix"};
      }
    }
    for (const Place& place : places_.span()) {
      attached -= place.block_plus_one != 0 ? 1 : 0;
    }
    return attached == 0 ? kOk
                         : Status{Errc::InternalError, "attached", attached, 0, "wrong places"};
  }

 private:
  struct Place {
    std::uint64_t id;
    std::int32_t block_plus_one;
  };
  struct Copy {
    BlockCopy copy{};
    Row row{};
    std::uint64_t told = 0;  ///< Plan that makes it; 0 = none yet.
  };

  [[nodiscard]] std::int64_t index_of(PrefixKey key, std::int32_t sub) const noexcept {
    return std::int64_t{key.place} * per_prefix_ + sub;
  }
  template <class Condition, class IsAlive>
  void drop_copies_if(const Condition& is_over, const IsAlive& is_alive) noexcept {
    std::size_t kept = 0;
    for (const Copy& copy : copies_) {
      if (is_over(copy)) {
        drop(copy.copy.source, is_alive);
      } else {
        copies_[kept++] = copy;
      }
    }
    copies_.resize(kept);
  }

  BlockStore<Lru> store_;
  Buffer<Place> places_;           // [num_prefixes][per_prefix]
  Buffer<std::int64_t> place_of_;  // [num_blocks]: 1 + index of its place, 0 = attached nowhere
  FixedVector<Copy> copies_;
  std::int32_t per_prefix_ = 1;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
