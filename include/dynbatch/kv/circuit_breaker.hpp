// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// CircuitBreaker: stops asking what doesn't answer, and tries again from time to time.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Closed: everything passes. After `max_failures` in a row it opens: nothing passes for a time.
/// Then it is half open: one operation passes as a trial, which closes it or opens it for twice as
/// long. What began before it opened says nothing any more. Time comes from the caller. O(1).
class CircuitBreaker {
 public:
  struct Config {
    std::int32_t max_failures = 5;               ///< In a row, until it opens; >= 1.
    DurationNs first_pause = milliseconds(100);  ///< > 0.
    DurationNs longest_pause = seconds(30);      ///< >= first_pause.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (max_failures < 1) {
        return {Errc::InvalidConfig, "max_failures", max_failures, 1, "must be at least 1"};
      }
      if (first_pause.ns < 1) {
        return {Errc::InvalidConfig, "first_pause", first_pause.ns, 1, "must be positive"};
      }
      if (longest_pause < first_pause) {
        return {Errc::InvalidConfig, "longest_pause", longest_pause.ns, first_pause.ns,
                "must be at least first_pause"};
      }
      return kOk;
    }
  };
  enum class State : std::uint8_t { Closed, Open, HalfOpen };

  CircuitBreaker() noexcept : CircuitBreaker(Config{}) {}
  explicit CircuitBreaker(const Config& config) noexcept
      : config_(config), pause_(config.first_pause) {}

  /// Whether an operation may begin; call note_begin() if it does.
  [[nodiscard]] bool allows(TimeNs now) const noexcept {
    switch (state_) {
      case State::Closed:
        return true;
      case State::Open:
        return now >= until_;
      case State::HalfOpen:
        return !is_trying_;
    }
    return false;
  }
  /// An operation begins; returns the era to hand to note_end().
  std::uint64_t note_begin() noexcept {
    if (state_ != State::Closed) {
      state_ = State::HalfOpen;
      is_trying_ = true;
    }
    return era_;
  }
  /// It ended well or not.
  void note_end(std::uint64_t era, bool is_good, TimeNs now) noexcept {
    if (era != era_) {
      return;
    }
    if (is_good) {
      if (state_ == State::HalfOpen) {
        ++era_;
        state_ = State::Closed;
        is_trying_ = false;
        pause_ = config_.first_pause;
      }
      failures_ = 0;
      return;
    }
    if (++failures_ >= config_.max_failures || state_ == State::HalfOpen) {
      if (state_ == State::HalfOpen) {
        pause_ = min_of(DurationNs{saturating_mul(pause_.ns, 2)}, config_.longest_pause);
      }
      ++era_;
      ++num_openings_;
      state_ = State::Open;
      is_trying_ = false;
      failures_ = 0;
      until_ = TimeNs{saturating_add(now.ns, pause_.ns)};
    }
  }
  /// It ended and says nothing, such as a trial that was called off.
  void note_void(std::uint64_t era) noexcept {
    if (era == era_) {
      is_trying_ = false;
    }
  }

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] std::uint64_t num_openings() const noexcept { return num_openings_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_{};
  State state_ = State::Closed;
  bool is_trying_ = false;
  std::int32_t failures_ = 0;
  DurationNs pause_{};
  TimeNs until_{};
  std::uint64_t era_ = 0;  // Operations of an older one are not news.
  std::uint64_t num_openings_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
