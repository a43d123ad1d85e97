// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The lock-free parts that any thread may touch: free lists, inboxes and the table of live ids.
/// All of fixed size, linked by index.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/math.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::uint32_t kNil = 0xFFFFFFFFU;

/// Array of atomics, allocated once.
template <class T>
class AtomicArray {
 public:
  Status allocate(std::size_t count, const char* field) noexcept {
    data_.reset(new (std::nothrow) std::atomic<T>[count]());
    if (data_ == nullptr) {
      return {Errc::OutOfMemory, field, static_cast<std::int64_t>(count), 0, "allocation failed"};
    }
    return kOk;
  }
  std::atomic<T>& operator[](std::size_t i) noexcept { return data_[i]; }
  const std::atomic<T>& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  std::unique_ptr<std::atomic<T>[]> data_;
};

/// Stack of free indices: push and pop from any thread. The head carries a counter that changes
/// with every operation, so a pop that was overtaken by pop-push of the same index (ABA) fails and
/// retries.
class IndexStack {
 public:
  /// `count` indices, all free; 0 is popped first.
  Status allocate(std::size_t count, const char* field) noexcept {
    if (Status s = next_.allocate(count, field); !s) {
      return s;
    }
    for (std::size_t i = 0; i < count; ++i) {
      next_[i].store(i + 1 < count ? static_cast<std::uint32_t>(i + 1) : kNil,
                     std::memory_order_relaxed);
    }
    head_.store(count > 0 ? 0U : std::uint64_t{kNil}, std::memory_order_release);
    return kOk;
  }

  /// A free index, or kNil.
  std::uint32_t pop() noexcept {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      const auto index = static_cast<std::uint32_t>(head);
      if (index == kNil) {
        return kNil;
      }
      // A stale read of next_ is harmless: the counter in head_ has then moved and the exchange
      // fails.
      const std::uint64_t next = next_[index].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, bump(head) | next, std::memory_order_acquire,
                                      std::memory_order_acquire)) {
        return index;
      }
    }
  }

  /// Links `index` in front of `next` before push_chain(); the caller owns both.
  void link(std::uint32_t index, std::uint32_t next) noexcept {
    next_[index].store(next, std::memory_order_relaxed);
  }

  /// Frees a chain first -> ... -> last that link() made.
  void push_chain(std::uint32_t first, std::uint32_t last) noexcept {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    do {
      next_[last].store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
    } while (!head_.compare_exchange_weak(head, bump(head) | first, std::memory_order_release,
                                          std::memory_order_relaxed));
  }
  void push(std::uint32_t index) noexcept { push_chain(index, index); }

 private:
  static constexpr std::uint64_t bump(std::uint64_t head) noexcept {
    return ((head >> 32U) + 1U) << 32U;
  }
  std::atomic<std::uint64_t> head_{kNil};
  AtomicArray<std::uint32_t> next_;
};

/// Many producers, one consumer that takes everything at once, in the order of the pushes.
class SlotInbox {
 public:
  Status allocate(std::size_t count, const char* field) noexcept {
    return next_.allocate(count, field);
  }

  /// Any thread; a slot may stand in the inbox once.
  void push(std::uint32_t slot) noexcept {
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    do {
      next_[slot].store(head, std::memory_order_relaxed);
    } while (!head_.compare_exchange_weak(head, slot, std::memory_order_release,
                                          std::memory_order_relaxed));
  }

  /// Consumer only: calls f(slot) for each slot, oldest first. What f pushes is seen by the next
  /// drain.
  template <class F>
  void drain(F&& f) noexcept {
    if (head_.load(std::memory_order_relaxed) == kNil) {
      return;
    }
    std::uint32_t taken = head_.exchange(kNil, std::memory_order_acquire);
    std::uint32_t oldest = kNil;
    while (taken != kNil) {  // reverse: the stack holds the newest first
      const std::uint32_t next = next_[taken].load(std::memory_order_relaxed);
      next_[taken].store(oldest, std::memory_order_relaxed);
      oldest = taken;
      taken = next;
    }
    while (oldest != kNil) {
      const std::uint32_t next = next_[oldest].load(std::memory_order_relaxed);
      f(oldest);
      oldest = next;
    }
  }

 private:
  std::atomic<std::uint32_t> head_{kNil};
  AtomicArray<std::uint32_t> next_;
};

/// Live request ids -> slots: chains over the slots, in 2 x capacity buckets. Any thread inserts
/// and looks up; only the driving thread erases. Each change of a chain moves the counter in its
/// bucket's head, so a walk that a change overtook is noticed and repeated.
class IdTable {
 public:
  Status allocate(std::size_t count, const char* field) noexcept {
    const auto buckets =
        static_cast<std::size_t>(next_power_of_two(static_cast<std::int64_t>(2 * count)));
    mask_ = buckets - 1;
    if (Status s = heads_.allocate(buckets, field); !s) {
      return s;
    }
    for (std::size_t i = 0; i < buckets; ++i) {
      heads_[i].store(kNil, std::memory_order_relaxed);
    }
    if (Status s = ids_.allocate(count, field); !s) {
      return s;
    }
    return next_.allocate(count, field);
  }

  /// Claims `id` for `slot`; false if a live slot has it. Of several claims of one id exactly one
  /// wins: all of them exchange the same head.
  bool insert(std::uint64_t id, std::uint32_t slot) noexcept {
    std::atomic<std::uint64_t>& bucket = heads_[mix64(id) & mask_];
    ids_[slot].store(id, std::memory_order_release);
    std::uint64_t head = bucket.load(std::memory_order_acquire);
    for (;;) {
      std::uint32_t found = kNil;
      if (!walk(bucket, head, id, found)) {
        head = bucket.load(std::memory_order_acquire);
        continue;
      }
      if (found != kNil) {
        return false;
      }
      next_[slot].store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
      if (bucket.compare_exchange_weak(head, bump(head) | slot, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        return true;
      }
    }
  }

  /// The slot of `id`, or kNil.
  [[nodiscard]] std::uint32_t find(std::uint64_t id) const noexcept {
    const std::atomic<std::uint64_t>& bucket = heads_[mix64(id) & mask_];
    for (;;) {
      const std::uint64_t head = bucket.load(std::memory_order_acquire);
      std::uint32_t found = kNil;
      if (walk(bucket, head, id, found)) {
        return found;
      }
    }
  }

  /// Driving thread only: removes the slot, which must be in the table.
  void erase(std::uint32_t slot) noexcept {
    std::atomic<std::uint64_t>& bucket =
        heads_[mix64(ids_[slot].load(std::memory_order_relaxed)) & mask_];
    const std::uint32_t after = next_[slot].load(std::memory_order_relaxed);
    std::uint64_t head = bucket.load(std::memory_order_acquire);
    for (;;) {
      if (static_cast<std::uint32_t>(head) == slot) {
        if (bucket.compare_exchange_weak(head, bump(head) | after, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
          return;
        }
        continue;  // an insert came in front
      }
      // Behind the head only this thread changes links.
      std::uint32_t previous = static_cast<std::uint32_t>(head);
      while (next_[previous].load(std::memory_order_relaxed) != slot) {
        previous = next_[previous].load(std::memory_order_relaxed);
      }
      next_[previous].store(after, std::memory_order_release);
      while (!bucket.compare_exchange_weak(head, bump(head) | static_cast<std::uint32_t>(head),
                                           std::memory_order_acq_rel, std::memory_order_acquire)) {
      }
      return;
    }
  }

 private:
  static constexpr std::uint64_t bump(std::uint64_t head) noexcept {
    return ((head >> 32U) + 1U) << 32U;
  }

  /// Looks for `id` in the chain that begins at `head`; false if the chain changed meanwhile.
  bool walk(const std::atomic<std::uint64_t>& bucket, std::uint64_t head, std::uint64_t id,
            std::uint32_t& found) const noexcept {
    std::uint32_t steps = 0;
    for (auto slot = static_cast<std::uint32_t>(head); slot != kNil;
         slot = next_[slot].load(std::memory_order_acquire)) {
      if (ids_[slot].load(std::memory_order_acquire) == id) {
        found = slot;
        break;
      }
      // A recycled slot can lead into another chain; the counter tells before that gets long.
      if ((++steps & 15U) == 0U && bucket.load(std::memory_order_acquire) != head) {
        return false;
      }
    }
    // Whatever a recycled slot showed was written after its erasure moved this counter.
    return bucket.load(std::memory_order_acquire) == head;
  }

  AtomicArray<std::uint64_t> heads_;  // change counter << 32 | first slot
  AtomicArray<std::uint64_t> ids_;
  AtomicArray<std::uint32_t> next_;
  std::size_t mask_ = 0;
};

/// Counter written by one thread and read by all.
class Counter {
 public:
  void add(std::uint64_t n) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void subtract(std::uint64_t n) noexcept { add(std::uint64_t{0} - n); }
  void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t get() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
