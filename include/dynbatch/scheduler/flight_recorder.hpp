// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// FlightRecorder: a preallocated ring of log records, written by the scheduler and drained by the
/// host.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>
#include <dynbatch/scheduler/flight_record.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Bytes of whole records, oldest first. A record for which there is no room is left out and
/// counted; a gap record takes the place of those that are missing. Driving thread only, but for
/// lost().
class FlightRecorder {
 public:
  /// 0 = off: then nothing may be written.
  Status allocate(std::int64_t bytes) noexcept {
    return ring_.allocate(static_cast<std::size_t>(bytes), "flight_log_bytes");
  }

  [[nodiscard]] bool is_on() const noexcept { return ring_.size() != 0; }
  /// Records so far, lost ones included.
  [[nodiscard]] std::uint64_t num_records() const noexcept { return num_records_; }
  /// Records that found no room. Any thread.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_.get(); }
  /// Bytes that wait to be drained.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

  /// Moves the oldest bytes to `out` and returns how many: a continuous stream, cut anywhere.
  std::size_t drain(std::span<std::byte> out) noexcept {
    const std::size_t n = min_of(out.size(), used_);
    const std::size_t first = min_of(n, ring_.size() - head_);
    if (n > 0) {
      std::memcpy(out.data(), ring_.data() + head_, first);
      std::memcpy(out.data() + first, ring_.data(), n - first);
      head_ = (head_ + n) % ring_.size();
      used_ -= n;
    }
    if (missing_.records > 0 && has_room(kGapBytes)) {
      write_gap();
    }
    return n;
  }

  /// Begins a record whose parts hold `payload` bytes together. False: it is lost, write nothing.
  bool begin(FlightKind kind, std::size_t payload) noexcept {
    ++num_records_;
    const std::size_t bytes = sizeof(FlightPrefix) + (payload + 7) / 8 * 8;
    const std::size_t needed = bytes + (missing_.records > 0 ? kGapBytes : 0);
    if (bytes > kMostBytes || !has_room(needed)) {
      ++missing_.records;
      missing_.bytes += bytes;
      lost_.add(1);
      return false;
    }
    if (missing_.records > 0) {
      write_gap();
    }
    const FlightPrefix prefix{static_cast<std::uint32_t>(bytes), kind, {}};
    write(&prefix, sizeof(prefix));
    padding_ = bytes - sizeof(prefix) - payload;
    return true;
  }
  /// Adds a part of the record that begin() began.
  template <class T>
  void add(const T& part) noexcept {
    static_assert(detail::is_flight_part<T>);
    write(&part, sizeof(part));
  }
  template <class T>
  void add(std::span<const T> parts) noexcept {
    static_assert(detail::is_flight_part<T>);
    if (!parts.empty()) {
      write(parts.data(), parts.size_bytes());
    }
  }
  /// Ends the record.
  void end() noexcept {
    constexpr std::uint64_t kZeros = 0;
    write(&kZeros, padding_);
  }
  /// A record of one part.
  template <class T>
  void put(FlightKind kind, const T& part) noexcept {
    if (begin(kind, sizeof(T))) {
      add(part);
      end();
    }
  }

 private:
  static constexpr std::size_t kGapBytes = sizeof(FlightPrefix) + sizeof(FlightGap);
  static constexpr std::size_t kMostBytes = 0xFFFFFFF8;

  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept {
    return bytes <= ring_.size() - used_;
  }
  void write_gap() noexcept {
    const FlightPrefix prefix{kGapBytes, FlightKind::Gap, {}};
    write(&prefix, sizeof(prefix));
    write(&missing_, sizeof(missing_));
    missing_ = {};
  }
  void write(const void* from, std::size_t n) noexcept {
    std::size_t at = head_ + used_;
    at = at >= ring_.size() ? at - ring_.size() : at;
    const std::size_t first = min_of(n, ring_.size() - at);
    std::memcpy(ring_.data() + at, from, first);
    std::memcpy(ring_.data(), static_cast<const std::byte*>(from) + first, n - first);
    used_ += n;
  }

  Buffer<std::byte> ring_;
  std::size_t head_ = 0;
  std::size_t used_ = 0;
  std::size_t padding_ = 0;
  std::uint64_t num_records_ = 0;
  FlightGap missing_{};
  detail::Counter lost_;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
