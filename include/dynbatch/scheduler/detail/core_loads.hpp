// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: who waits for the pool's external store, outside the queue so that nobody has to
/// pass them.
#include <dynbatch/scheduler/detail/core.hpp>

#include <bit>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Whether the pool wants the request, whose content it has just looked up, to wait for a load. It
/// then stands in that load's list until the load ends; its rank in the queue stays what it is.
template <class P>
bool SchedulerCore<P>::starts_loading(std::uint32_t slot, std::int64_t known) noexcept {
  RequestRecord& record = desk_[slot];
  if (!PoolLoads::awaits_load(policies_.pool, content(slot, known), known - 1, record.load)) {
    return false;
  }
  waiting_.erase(slot);
  record.is_loading = true;
  link(loading_[static_cast<std::size_t>(record.load.load)], slot, false);
  ++num_loading_;
  if (record.is_woken) {  // others of its quota need not wait for the store
    record.is_woken = false;
    wake(record.quota_group);
  }
  return true;
}

template <class P>
void SchedulerCore<P>::stop_loading(std::uint32_t slot) noexcept {
  RequestRecord& record = desk_[slot];
  unlink(loading_[static_cast<std::size_t>(record.load.load)], slot);
  record.is_loading = false;
  --num_loading_;
}

/// Loads that have ended send their requests back into the queue.
template <class P>
void SchedulerCore<P>::wake_loaded() noexcept {
  if constexpr (PoolLoads::kLearnsCost) {
    PoolLoads::learn_cost(policies_.pool, policies_.sizer.cost());
  }
  if constexpr (PoolLoads::kHasLoads) {
    for (std::uint64_t ended = PoolLoads::take_ended_loads(policies_.pool); ended != 0;
         ended &= ended - 1) {
      const auto load = static_cast<std::size_t>(std::countr_zero(ended));
      while (load < loading_.size() && loading_[load].first != kNoSlot) {
        const std::uint32_t slot = loading_[load].first;
        stop_loading(slot);
        desk_[slot].is_woken = AdmissionOptions::kHasMayAdmit;  // ahead of its quota's list
        push_waiting(slot);
      }
    }
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
