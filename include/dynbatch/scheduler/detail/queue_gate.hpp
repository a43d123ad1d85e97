// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How many requests may wait, and when a refused one should come again.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/scheduler/config.hpp>

#include <atomic>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Counts the requests that were taken in and never ran. submit() reserves a place with one
/// exchange, so a limit is exact whatever comes at once; the driving thread gives it back and
/// measures how fast places come free. Members say which thread may call them.
class QueueGate {
 public:
  /// At make(). The configuration is valid.
  void configure(const SchedulerConfig& config) noexcept {
    max_requests_ = config.max_waiting_requests > 0 ? config.max_waiting_requests : INT64_MAX;
    max_wait_ = config.max_predicted_wait;
    min_retry_ = config.min_retry_after;
    max_retry_ = config.max_retry_after;
    limit_.store(max_requests_, std::memory_order_relaxed);
  }

  // Any thread.

  /// Takes a place, or says which limit is reached.
  Status enter() noexcept {
    std::int64_t waiting = waiting_.load(std::memory_order_relaxed);
    do {
      if (waiting >= limit_.load(std::memory_order_relaxed)) {
        return refusal(waiting);
      }
    } while (!waiting_.compare_exchange_weak(waiting, waiting + 1, std::memory_order_relaxed));
    return kOk;
  }
  /// Takes a place whatever the limits say: the request had been accepted before.
  void enter_anyway() noexcept { waiting_.fetch_add(1, std::memory_order_relaxed); }
  /// The request that took a place was refused for another reason.
  void give_back() noexcept { waiting_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t num_waiting() const noexcept {
    return waiting_.load(std::memory_order_relaxed);
  }

  /// How long until a place is expected to be free that nobody else was promised: each call names
  /// the next one, so that those who were refused together don't come back together. Within
  /// [min_retry_after, max_retry_after]; what lies beyond is spread over the later half.
  DurationNs retry_after() noexcept {
    const std::int64_t limit = limit_.load(std::memory_order_relaxed);
    const std::int64_t missing =
        limit == INT64_MAX ? 0 : max_of<std::int64_t>(num_waiting() - limit, 0);
    const std::int64_t ahead = missing + promised_.fetch_add(1, std::memory_order_relaxed);
    std::int64_t ns =
        saturating_mul(saturating_add(ahead, 1), interval_.load(std::memory_order_relaxed));
    if (ns > max_retry_.ns) {
      const std::int64_t half = max_of<std::int64_t>(max_retry_.ns / 2, 1);
      ns = max_retry_.ns - half + (ns - max_retry_.ns) % half;
    }
    return {clamp_to(ns, min_retry_.ns, max_retry_.ns)};
  }

  // Driving thread.

  /// A request that waited runs for the first time, or is over.
  void leave() noexcept {
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    ++num_left_;
  }

  /// Call with every plan(): looks at the clock, and every kPeriod at the queue.
  void observe(TimeNs now) noexcept {
    if (now.ns >= due_) {
      measure(now);
    }
  }

  /// The measured time in which one place comes free while requests wait.
  [[nodiscard]] DurationNs interval() const noexcept {
    return {interval_.load(std::memory_order_relaxed)};
  }

  /// Expected before anything is measured.
  static constexpr DurationNs kDefaultInterval = seconds(1);
  /// Between two looks at the queue.
  static constexpr DurationNs kPeriod = milliseconds(50);

 private:
  Status refusal(std::int64_t waiting) const noexcept {
    if (waiting >= max_requests_) {
      return {Errc::QueueFull, "max_waiting_requests", waiting + 1, max_requests_,
              "too many requests wait"};
    }
    return {Errc::QueueFull, "max_predicted_wait",
            saturating_mul(waiting + 1, interval_.load(std::memory_order_relaxed)), max_wait_.ns,
            "it would wait too long"};
  }

  /// Only time in which requests waited from one look to the next counts, and the places that came
  /// free in it. Old sums lose an eighth with each second of it.
  void measure(TimeNs now) noexcept {
    const bool has_queue = num_waiting() > 0;
    if (had_queue_ && has_queue) {
      recent_ns_ += min_of(elapsed(last_look_, now), kLongestLook).ns;
      recent_left_ += num_left_;
      if (recent_ns_ >= seconds(1).ns) {
        old_ns_ += recent_ns_ - old_ns_ / 8;
        old_left_ += recent_left_ * kOne - old_left_ / 8;
        recent_ns_ = 0;
        recent_left_ = 0;
      }
      // What is expected beforehand weighs as much as a quarter of a request.
      const std::int64_t left = old_left_ + recent_left_ * kOne + kOne / 4;
      const std::int64_t ns = old_ns_ + recent_ns_ + kDefaultInterval.ns / 4;
      interval_.store(max_of<std::int64_t>(ns / left * kOne + ns % left * kOne / left, 1),
                      std::memory_order_relaxed);
    }
    std::int64_t limit = max_requests_;
    if (max_wait_ < kUnbounded && had_queue_ && has_queue) {
      const std::int64_t interval = interval_.load(std::memory_order_relaxed);
      limit = min_of(limit, max_of<std::int64_t>(max_wait_.ns / interval, 1));
    }
    limit_.store(limit, std::memory_order_relaxed);
    forget_promises(limit != INT64_MAX && num_waiting() < limit ? INT64_MAX : num_left_);
    had_queue_ = has_queue;
    num_left_ = 0;
    last_look_ = now;
    due_ = saturating_sum(now.ns, kPeriod.ns);
  }

  /// Places that came free were promised to somebody. If one is free and nobody came, those who
  /// were promised it have gone elsewhere, or it is not their time yet: who is refused from now on
  /// need not wait for them.
  void forget_promises(std::int64_t count) noexcept {
    std::int64_t promised = promised_.load(std::memory_order_relaxed);
    while (promised > 0 &&
           !promised_.compare_exchange_weak(promised, promised - min_of(promised, count),
                                            std::memory_order_relaxed)) {
    }
  }

  static constexpr std::int64_t kOne = 1024;  // of the fixed-point sum of those who left
  static constexpr DurationNs kLongestLook = seconds(60);

  // Fixed at make().
  std::int64_t max_requests_ = INT64_MAX;
  DurationNs max_wait_ = kUnbounded;
  DurationNs min_retry_ = milliseconds(10);
  DurationNs max_retry_ = seconds(60);

  // Shared.
  std::atomic<std::int64_t> waiting_{0};
  std::atomic<std::int64_t> limit_{INT64_MAX};
  std::atomic<std::int64_t> interval_{kDefaultInterval.ns};
  std::atomic<std::int64_t> promised_{0};  // places, to requests that were refused

  // Driving thread.
  std::int64_t due_ = INT64_MIN;
  TimeNs last_look_{};
  bool had_queue_ = false;
  std::int64_t num_left_ = 0;  // since the last look
  std::int64_t recent_ns_ = 0;
  std::int64_t recent_left_ = 0;
  std::int64_t old_ns_ = 0;
  std::int64_t old_left_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
