// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KvEventLog: the cache events that nobody has drained yet, in a ring of fixed capacity.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/model/kv_event.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Numbers events from 1. When the ring is full the oldest event is lost: the reader sees a gap in
/// the numbers and takes a snapshot. Capacity 0 = off.
class KvEventLog {
 public:
  [[nodiscard]] Status attach(std::int64_t capacity) noexcept {
    head_ = 0;
    size_ = 0;
    return ring_.allocate(static_cast<std::size_t>(capacity), "max_kv_events");
  }

  [[nodiscard]] bool is_on() const noexcept { return ring_.size() != 0; }

  /// Appends an event and numbers it.
  void push(KvEvent event) noexcept {
    event.sequence = ++sequence_;
    const std::size_t capacity = ring_.size();
    if (size_ == capacity) {
      head_ = head_ + 1 == capacity ? 0 : head_ + 1;
      --size_;
    }
    std::size_t at = head_ + size_;
    at = at >= capacity ? at - capacity : at;
    ring_.data()[at] = event;
    ++size_;
  }

  /// Moves the oldest events to `out`; returns how many.
  std::size_t drain(std::span<KvEvent> out) noexcept {
    std::size_t n = 0;
    for (; n < out.size() && size_ != 0; ++n) {
      out[n] = ring_.data()[head_];
      head_ = head_ + 1 == ring_.size() ? 0 : head_ + 1;
      --size_;
    }
    return n;
  }

  /// Number of the newest event; 0 = none yet.
  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }

 private:
  Buffer<KvEvent> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
