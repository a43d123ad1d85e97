// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// WaitingQueue: those who can still be in time, and behind them those who can't.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/detail/slot_heap.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Two parts, each in order of the keys. Costs as SlotHeap's. A slot stands in one part at most.
class WaitingQueue {
 public:
  Status allocate(std::size_t slots, const char* field) noexcept {
    const Status s = in_time_.allocate(slots, field);
    return s ? late_.allocate(slots, field) : s;
  }

  [[nodiscard]] bool empty() const noexcept { return in_time_.empty() && late_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return in_time_.size() + late_.size(); }
  /// The first of those in time, or else of the late ones.
  [[nodiscard]] std::uint32_t top() const noexcept {
    return in_time_.empty() ? late_.top() : in_time_.top();
  }
  [[nodiscard]] const SlotHeap& part(bool is_late) const noexcept {
    return is_late ? late_ : in_time_;
  }

  void push(std::uint32_t slot, const HeapKey& key, bool is_late) noexcept {
    (is_late ? late_ : in_time_).push(slot, key);
  }
  void erase(std::uint32_t slot) noexcept { (late_.contains(slot) ? late_ : in_time_).erase(slot); }

 private:
  SlotHeap in_time_;
  SlotHeap late_;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
