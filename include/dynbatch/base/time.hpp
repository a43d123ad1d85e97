// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Strong time types. The library reads no clock: the host passes the time in.
#include <dynbatch/base/config.hpp>

#include <compare>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A span of time in nanoseconds.
struct DurationNs {
  std::int64_t ns = 0;

  friend constexpr auto operator<=>(DurationNs, DurationNs) noexcept = default;
  friend constexpr DurationNs operator+(DurationNs a, DurationNs b) noexcept {
    return {a.ns + b.ns};
  }
  friend constexpr DurationNs operator-(DurationNs a, DurationNs b) noexcept {
    return {a.ns - b.ns};
  }
};

/// A point of monotonic time in nanoseconds, on whatever clock the host uses throughout.
struct TimeNs {
  std::int64_t ns = 0;

  friend constexpr auto operator<=>(TimeNs, TimeNs) noexcept = default;
  friend constexpr DurationNs operator-(TimeNs a, TimeNs b) noexcept { return {a.ns - b.ns}; }
  friend constexpr TimeNs operator+(TimeNs a, DurationNs b) noexcept { return {a.ns + b.ns}; }
  friend constexpr TimeNs operator-(TimeNs a, DurationNs b) noexcept { return {a.ns - b.ns}; }
};

/// "No deadline": later than every time a host passes in.
inline constexpr TimeNs kNever{INT64_MAX};
/// "No limit" for durations.
inline constexpr DurationNs kUnbounded{INT64_MAX};

/// later - earlier, at most the largest duration; `later` must not lie before `earlier`.
constexpr DurationNs elapsed(TimeNs earlier, TimeNs later) noexcept {
  const std::uint64_t ns =
      static_cast<std::uint64_t>(later.ns) - static_cast<std::uint64_t>(earlier.ns);
  return {ns > static_cast<std::uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<std::int64_t>(ns)};
}

constexpr DurationNs microseconds(std::int64_t n) noexcept { return {n * 1'000}; }
constexpr DurationNs milliseconds(std::int64_t n) noexcept { return {n * 1'000'000}; }
constexpr DurationNs seconds(std::int64_t n) noexcept { return {n * 1'000'000'000}; }
constexpr double to_seconds(DurationNs d) noexcept { return static_cast<double>(d.ns) * 1e-9; }
constexpr double to_ms(DurationNs d) noexcept { return static_cast<double>(d.ns) * 1e-6; }

}  // namespace dynbatch::inline DYNBATCH_ABI
