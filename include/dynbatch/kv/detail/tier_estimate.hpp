// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TierEstimate: how long a fetch will take, from those before it.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Moving means of the latency and of the time a block. Integers: equal inputs, equal decisions.
class TierEstimate {
 public:
  TierEstimate() noexcept = default;
  TierEstimate(DurationNs latency, std::int64_t block_ns) noexcept
      : latency_ns_(latency.ns), block_ns_(max_of<std::int64_t>(block_ns, 1)) {}

  void note_query(DurationNs taken) noexcept {
    latency_ns_ = mean(latency_ns_, max_of<std::int64_t>(taken.ns, 0));
  }
  void note_fetch(std::int64_t blocks, DurationNs taken, TimeNs now) noexcept {
    block_ns_ =
        max_of<std::int64_t>(mean(block_ns_, max_of<std::int64_t>(taken.ns - latency_ns_, 0) /
                                                 max_of<std::int64_t>(blocks, 1)),
                             1);
    measured_ = now;
  }
  [[nodiscard]] DurationNs fetch(std::int64_t blocks) const noexcept {
    return {saturating_add(latency_ns_, saturating_mul(block_ns_, blocks))};
  }
  /// Blocks that can be fetched in a time.
  [[nodiscard]] std::int64_t blocks_in(DurationNs time) const noexcept {
    return max_of<std::int64_t>(time.ns - latency_ns_, 0) / block_ns_;
  }
  /// Too long since a fetch was measured to rule one out.
  [[nodiscard]] bool is_stale(TimeNs now) const noexcept { return now - measured_ > kLasts; }

 private:
  static constexpr DurationNs kLasts = seconds(10);
  static std::int64_t mean(std::int64_t old, std::int64_t fresh) noexcept {
    return old + (fresh - old) / 4;
  }
  std::int64_t latency_ns_ = 0;
  std::int64_t block_ns_ = 1;
  TimeNs measured_{};
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
