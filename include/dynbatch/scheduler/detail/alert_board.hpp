// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Shares over a sliding window, and alerts with hysteresis. Driving thread only.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/watch.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Part and whole over the newest `window`, which moves on in sixteenths. O(1) to add, O(16) to
/// read.
class WindowShare {
 public:
  void configure(DurationNs window) noexcept { slice_ns_ = window.ns / kSlices; }

  /// Times never run backwards.
  void add(TimeNs now, std::int64_t part, std::int64_t whole) noexcept {
    const std::int64_t slice = slice_of(now);
    Slice& s = slices_[static_cast<std::size_t>(slice & (kSlices - 1))];
    if (s.slice != slice) {
      s = {slice, 0, 0};
    }
    s.part += part;
    s.whole += whole;
  }

  /// Permille; 0 where the whole is below `least`.
  [[nodiscard]] std::int64_t permille(TimeNs now, std::int64_t least) const noexcept {
    const std::int64_t newest = slice_of(now);
    std::int64_t part = 0;
    std::int64_t whole = 0;
    for (const Slice& s : slices_) {
      if (s.slice != INT64_MIN && s.slice > newest - kSlices) {
        part += s.part;
        whole += s.whole;
      }
    }
    return whole < max_of<std::int64_t>(least, 1) ? 0 : saturating_mul(part, 1000) / whole;
  }

 private:
  struct Slice {
    std::int64_t slice = INT64_MIN;
    std::int64_t part = 0;
    std::int64_t whole = 0;
  };
  static constexpr std::int64_t kSlices = 16;
  /// Rounded down, also below zero.
  [[nodiscard]] std::int64_t slice_of(TimeNs now) const noexcept {
    return now.ns / slice_ns_ - (now.ns % slice_ns_ < 0 ? 1 : 0);
  }

  std::int64_t slice_ns_ = 1;
  Slice slices_[kSlices]{};
};

/// What is measured of each kind at one time.
struct AlertValues {
  std::int64_t of[kNumAlertKinds]{};
};

/// The state of every alert and the changes that nobody has fetched yet.
class AlertBoard {
 public:
  void configure(const WatchConfig& config) noexcept {
    for (std::size_t i = 0; i < kNumAlertKinds; ++i) {
      states_[i].rule = config.alerts[i];
    }
  }

  void update(const AlertValues& values, TimeNs now) noexcept {
    for (std::size_t i = 0; i < kNumAlertKinds; ++i) {
      State& s = states_[i];
      const std::int64_t value = values.of[i];
      if (s.rule.raise_at == 0) {
        continue;
      }
      if (s.is_raised ? value > s.rule.clear_at : value < s.rule.raise_at) {
        s.is_turning = false;
        continue;
      }
      if (!s.is_turning) {
        s.is_turning = true;
        s.since = now;
      }
      if (elapsed(s.since, now) >= s.rule.hold) {
        s.is_turning = false;
        s.is_raised = !s.is_raised;
        push({static_cast<AlertKind>(i), s.is_raised, value,
              s.is_raised ? s.rule.raise_at : s.rule.clear_at, now});
      }
    }
  }

  [[nodiscard]] bool is_raised(AlertKind kind) const noexcept {
    return states_[static_cast<std::size_t>(kind)].is_raised;
  }
  [[nodiscard]] std::uint64_t num_lost() const noexcept { return num_lost_; }

  /// The oldest changes first.
  std::size_t drain(std::span<Alert> out) noexcept {
    std::size_t n = 0;
    while (n < out.size() && count_ > 0) {
      out[n++] = pending_[head_];
      head_ = (head_ + 1) % kMaxPendingAlerts;
      --count_;
    }
    return n;
  }

 private:
  struct State {
    AlertRule rule{};
    bool is_raised = false;
    bool is_turning = false;  // beyond the bound since:
    TimeNs since{};
  };

  void push(const Alert& alert) noexcept {
    if (count_ == kMaxPendingAlerts) {
      head_ = (head_ + 1) % kMaxPendingAlerts;
      --count_;
      ++num_lost_;
    }
    pending_[(head_ + count_) % kMaxPendingAlerts] = alert;
    ++count_;
  }

  State states_[kNumAlertKinds]{};
  Alert pending_[kMaxPendingAlerts]{};
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::uint64_t num_lost_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
