// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: statistics and alerts. Nothing here decides anything.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// At the end of every plan(): what it left waiting counts, and now and then alerts are looked at.
template <class P>
void SchedulerCore<P>::watch_plan() noexcept {
  watch_.end_look();
  if (!watch_.is_due(now_)) {
    return;
  }
  AlertValues values;
  const auto set = [&](AlertKind kind, std::int64_t value) noexcept {
    values.of[static_cast<std::size_t>(kind)] = value;
  };
  set(AlertKind::QueueLength, static_cast<std::int64_t>(num_waiting()));
  if (!waiting_.empty()) {
    set(AlertKind::QueueHeadAge,
        elapsed(desk_[waiting_.top()].waits_since, now_).ns / milliseconds(1).ns);
  }
  const PoolStats pool = policies_.pool.stats();
  if (pool.total_blocks > 0) {
    set(AlertKind::KvUse, pool.referenced_blocks * 1000 / pool.total_blocks);
  }
  watch_.update_alerts(values, now_);
}

/// Whoever is first in the queue at the end of a plan waits for something, be it that nobody was
/// looked at.
template <class P>
void SchedulerCore<P>::watch_head(bool is_preempted) noexcept {
  RequestRecord& head = desk_[waiting_.top()];
  if (!watch_.was_noted(head)) {
    watch_.wait(head, is_preempted ? WaitCause::Memory : WaitCause::Composition);
  }
}

template <class P>
QueueHead SchedulerCore<P>::queue_head() const noexcept {
  if (waiting_.empty()) {
    return {};
  }
  const RequestRecord& head = desk_[waiting_.top()];
  return {true, head.id, head.wait_cause, head.waits_since};
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
