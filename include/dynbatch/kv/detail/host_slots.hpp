// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// HostSlots: for each slot of host memory, what is under way to or from it and what it may be
/// stored as.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/block_key.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Counts the moves between device and slot that plans have to make, from the moment they are
/// wanted until their plan is settled: only a slot without any may be lent to a tier that writes to
/// it, and only one without writes holds what its key says. Keeps the blocks that wait to be
/// stored.
class HostSlots {
 public:
  enum class Stored : std::uint8_t { No, Waiting, UnderWay, Yes };
  struct Slot {
    BlockKey key{};
    KeyRoot root{};
    std::uint64_t parent_check = 0;  ///< First word of the parent's key.
    std::int32_t parent = -1;        ///< Its slot; -1 = first block of a prefix.
    std::int32_t index = 0;          ///< Place in the prefix.
    std::int32_t reads = 0;          ///< Moves to the device.
    std::int32_t writes = 0;         ///< Moves from the device.
    std::int32_t touches = 0;
    Stored stored = Stored::No;
    bool has_key = false;
  };
  /// A block that waits to be stored; void if the slot has another key by then.
  struct Offer {
    std::int32_t slot = 0;
    std::uint64_t check = 0;
  };

  [[nodiscard]] Status attach(std::int64_t num_slots, std::size_t max_told) noexcept {
    Status s = slots_.allocate(static_cast<std::size_t>(num_slots), "num_host_blocks");
    s = s ? offers_.allocate(static_cast<std::size_t>(num_slots), "num_host_blocks") : s;
    s = s ? told_.allocate(max_told, "max_plans_in_flight") : s;
    for (Slot& slot : slots_.span()) {
      slot = Slot{};
    }
    first_offer_ = num_offers_ = 0;
    num_dropped_ = 0;
    return s;
  }

  [[nodiscard]] Slot& operator[](std::int32_t slot) noexcept {
    return slots_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] std::int64_t size() const noexcept {
    return static_cast<std::int64_t>(slots_.size());
  }
  /// Nothing moves to or from it.
  [[nodiscard]] bool is_still(std::int32_t slot) noexcept {
    return (*this)[slot].reads == 0 && (*this)[slot].writes == 0;
  }

  void add_move(const BlockSwap& swap) noexcept {
    ++(swap.to_host ? (*this)[swap.host_slot].writes : (*this)[swap.host_slot].reads);
  }
  void drop_move(const BlockSwap& swap) noexcept {
    --(swap.to_host ? (*this)[swap.host_slot].writes : (*this)[swap.host_slot].reads);
  }
  /// A plan makes this move.
  void tell(const BlockSwap& swap, PlanId plan) noexcept {
    told_.push_back({plan.value, swap.host_slot, swap.to_host});
  }
  /// Moves of plans up to this one are made; `is_written(slot)` for each slot whose last write that
  /// was. O(moves told).
  template <class F>
  void settle(PlanId plan, F&& is_written) noexcept {
    std::size_t n = 0;
    for (; n < told_.size() && told_[n].plan <= plan.value; ++n) {
      const Told told = told_[n];
      drop_move({BlockId{}, told.slot, told.to_host});
      if (told.to_host && (*this)[told.slot].writes == 0) {
        is_written(told.slot);
      }
    }
    erase_told(0, n);
  }
  /// Moves of an abandoned plan, all of them. Where two plans told the same, the younger one is
  /// meant: it is abandoned too. O(moves told).
  void lose(std::span<const BlockSwap> swaps) noexcept {
    std::size_t end = swaps.empty() ? 0 : told_.size();
    while (end > 0) {
      std::size_t begin = end - 1;
      while (begin > 0 && told_[begin - 1].plan == told_[end - 1].plan) {
        --begin;
      }
      if (are_told(begin, end, swaps)) {
        for (const BlockSwap& swap : swaps) {
          drop_move(swap);
          (*this)[swap.host_slot].has_key = (*this)[swap.host_slot].has_key && !swap.to_host;
        }
        erase_told(begin, end);
        return;
      }
      end = begin;
    }
    DYNBATCH_ASSERT(swaps.empty(), "moves were lost that nobody was told");
  }

  void touch(std::int32_t slot) noexcept {
    Slot& s = (*this)[slot];
    s.touches += s.touches < INT32_MAX ? 1 : 0;
  }
  /// The block is worth storing if it was touched often enough and nothing writes it. O(1).
  void offer(std::int32_t slot, std::int32_t min_touches) noexcept {
    Slot& s = (*this)[slot];
    if (!s.has_key || s.writes > 0 || s.stored != Stored::No || s.touches < min_touches) {
      return;
    }
    if (num_offers_ == offers_.size()) {
      ++num_dropped_;
      return;
    }
    s.stored = Stored::Waiting;
    offers_[(first_offer_ + num_offers_++) % offers_.size()] = {slot, s.key.words[0]};
  }
  [[nodiscard]] std::size_t num_offers() const noexcept { return num_offers_; }
  /// The slot of an offer, or -1 if it is void.
  [[nodiscard]] std::int32_t offered(std::size_t i) noexcept {
    const Offer& o = offers_[(first_offer_ + i) % offers_.size()];
    const Slot& s = (*this)[o.slot];
    return s.has_key && s.key.words[0] == o.check && s.stored == Stored::Waiting && s.writes == 0
               ? o.slot
               : -1;
  }
  void pop_offers(std::size_t n) noexcept {
    first_offer_ = (first_offer_ + n) % offers_.size();
    num_offers_ -= n;
  }
  /// How far its parent is stored; Yes for a first block, or if the parent isn't known any more.
  [[nodiscard]] Stored parent_of(std::int32_t slot) noexcept {
    const Slot& s = (*this)[slot];
    if (s.parent < 0) {
      return Stored::Yes;
    }
    const Slot& parent = (*this)[s.parent];
    return parent.has_key && parent.key.words[0] == s.parent_check ? parent.stored : Stored::Yes;
  }

  /// No slot holds anything; moves under way stay counted.
  void forget_all() noexcept {
    for (Slot& slot : slots_.span()) {
      slot.has_key = false;
      slot.stored = Stored::No;
      slot.touches = 0;
    }
    first_offer_ = num_offers_ = 0;
  }
  [[nodiscard]] std::uint64_t num_dropped() const noexcept { return num_dropped_; }
  [[nodiscard]] std::size_t num_told() const noexcept { return told_.size(); }

 private:
  struct Told {
    std::uint64_t plan = 0;
    std::int32_t slot = 0;
    bool to_host = false;
  };
  void erase_told(std::size_t begin, std::size_t end) noexcept {
    const std::size_t n = end - begin;
    for (std::size_t i = end; n > 0 && i < told_.size(); ++i) {
      told_[i - n] = told_[i];
    }
    told_.resize(told_.size() - n);
  }

  [[nodiscard]] bool are_told(std::size_t begin, std::size_t end,
                              std::span<const BlockSwap> swaps) noexcept {
    bool are_equal = end - begin == swaps.size();
    for (std::size_t i = begin; i < end && are_equal; ++i) {
      are_equal = told_[i].slot == swaps[i - begin].host_slot &&
                  told_[i].to_host == swaps[i - begin].to_host;
    }
    return are_equal;
  }

  Buffer<Slot> slots_;
  FixedVector<Told> told_;  // by plan
  Buffer<Offer> offers_;    // ring
  std::size_t first_offer_ = 0;
  std::size_t num_offers_ = 0;
  std::uint64_t num_dropped_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
