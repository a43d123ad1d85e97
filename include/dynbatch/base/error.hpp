// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Typed errors: a Status names the field, the value and the limit; Expected carries a value or a
/// Status.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>

#include <cstdint>
#include <cstdlib>
#include <new>  // also std::exception, the base of what it throws; <exception> has much more
#include <type_traits>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// What went wrong. Stable numbers: they are written to logs.
enum class Errc : std::uint8_t {
  Ok = 0,
  InvalidConfig = 1,  ///< A Config field is outside its documented range.
  NotSupported = 2,   ///< A request or plan needs what this build, pool or executor does not offer.
  EmptyPrompt = 3,    ///< A prompt of zero tokens.
  CanNeverFit = 4,    ///< The request needs more than an idle engine has.
  QueueFull = 5,      ///< A preallocated limit is reached; the same request may succeed later.
  Closed = 6,         ///< close() was called.
  Expired = 7,        ///< start_by or finish_by had passed at submission.
  Duplicate = 8,      ///< The request id is alive.
  NotFound = 9,       ///< No live request has this id.
  WrongPlan =
      10,  ///< A plan was settled out of order, twice, or does not belong to this scheduler.
  BadResult = 11,        ///< A StepResult does not match its plan.
  OutOfMemory = 12,      ///< make() could not allocate.
  InvalidArgument = 13,  ///< Any other argument outside its documented range.
  InternalError = 14,    ///< An invariant check failed; the state is suspect.
  ExecutorFailed =
      15,  ///< The executor failed this request's chunks more often than it may be retried.
};

/// Name of an error code, for messages and logs.
[[nodiscard]] constexpr const char* to_string(Errc code) noexcept {
  switch (code) {
    case Errc::Ok:
      return "ok";
    case Errc::InvalidConfig:
      return "invalid config";
    case Errc::NotSupported:
      return "not supported";
    case Errc::EmptyPrompt:
      return "empty prompt";
    case Errc::CanNeverFit:
      return "can never fit";
    case Errc::QueueFull:
      return "queue full";
    case Errc::Closed:
      return "closed";
    case Errc::Expired:
      return "expired";
    case Errc::Duplicate:
      return "duplicate id";
    case Errc::NotFound:
      return "not found";
    case Errc::WrongPlan:
      return "wrong plan";
    case Errc::BadResult:
      return "bad result";
    case Errc::OutOfMemory:
      return "out of memory";
    case Errc::InvalidArgument:
      return "invalid argument";
    case Errc::InternalError:
      return "internal error";
    case Errc::ExecutorFailed:
      return "executor failed";
  }
  return "unknown";
}

/// Result of an operation that returns nothing else. Strings are literals: a Status owns nothing.
struct [[nodiscard]] Status {
  Errc code = Errc::Ok;
  const char* field = "";  ///< The field or argument at fault, e.g. "max_sequences".
  std::int64_t value = 0;  ///< What it was.
  std::int64_t limit = 0;  ///< The bound it broke, if there is one.
  const char* text = "";   ///< One sentence for a person.
  /// QueueFull of submit(): when the same request is expected to find room, from the call on. 0 =
  /// nothing is known.
  DurationNs retry_after{};

  [[nodiscard]] constexpr bool is_ok() const noexcept { return code == Errc::Ok; }
  constexpr explicit operator bool() const noexcept { return is_ok(); }
  friend constexpr bool operator==(const Status& a, const Status& b) noexcept {
    return a.code == b.code && a.value == b.value && a.limit == b.limit;
  }
};

/// The Status of success.
inline constexpr Status kOk{};

/// Writes "code: field = value (limit ...): text; try again after ... ms" to a buffer, cut to
/// `capacity` - 1 characters and always terminated. Returns the number of characters written. Needs
/// no allocation.
inline std::size_t format_status(const Status& status, char* out, std::size_t capacity) noexcept {
  if (capacity == 0) {
    return 0;
  }
  std::size_t used = 0;
  auto put = [&](const char* s) {
    for (; *s != '\0' && used + 1 < capacity; ++s) {
      out[used++] = *s;
    }
  };
  auto put_number = [&](std::int64_t v) {
    char digits[24];
    std::size_t n = 0;
    std::uint64_t rest =
        v < 0 ? ~static_cast<std::uint64_t>(v) + 1U : static_cast<std::uint64_t>(v);
    do {
      digits[n++] = static_cast<char>('0' + static_cast<int>(rest % 10U));
      rest /= 10U;
    } while (rest != 0U);
    if (v < 0) {
      digits[n++] = '-';
    }
    while (n > 0 && used + 1 < capacity) {
      out[used++] = digits[--n];
    }
  };
  put(to_string(status.code));
  if (status.field[0] != '\0') {
    put(": ");
    put(status.field);
    put(" = ");
    put_number(status.value);
    if (status.limit != 0) {
      put(" (limit ");
      put_number(status.limit);
      put(")");
    }
  }
  if (status.text[0] != '\0') {
    put(": ");
    put(status.text);
  }
  if (status.retry_after.ns > 0) {
    put("; try again after ");
    put_number((status.retry_after.ns + 999'999) / 1'000'000);
    put(" ms");
  }
  out[used] = '\0';
  return used;
}

#if DYNBATCH_EXCEPTIONS
/// The one exception type of the library, thrown by constructors on a bad configuration.
class Error : public std::exception {
 public:
  explicit Error(const Status& status) noexcept : status_(status) {
    (void)format_status(status, message_, sizeof(message_));
  }
  [[nodiscard]] const char* what() const noexcept override { return message_; }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Status status_;
  char message_[256];
};
#endif

/// Reports a configuration error from a constructor: throws Error, or aborts where exceptions are
/// off. Hosts without exceptions call make(), which returns the Status instead.
[[noreturn]] inline void raise(const Status& status) {
#if DYNBATCH_EXCEPTIONS
  throw Error(status);
#else
  (void)status;
  std::abort();
#endif
}

/// Either a T or the Status that says why there is none.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(const Status& status) noexcept
      : status_(status) {  // NOLINT(google-explicit-constructor): a failed make() returns a Status
    DYNBATCH_ASSERT(!status.is_ok(), "an Expected without a value needs an error");
  }
  Expected(T&& value) noexcept(
      std::is_nothrow_move_constructible_v<T>) {  // NOLINT(google-explicit-constructor): a make()
                                                  // returns its value
    ::new (static_cast<void*>(storage_)) T(std::move(value));
    has_value_ = true;
  }
  Expected(Expected&& other) noexcept(std::is_nothrow_move_constructible_v<T>)
      : status_(other.status_) {
    if (other.has_value_) {
      ::new (static_cast<void*>(storage_)) T(std::move(*other));
      has_value_ = true;
    }
  }
  Expected(const Expected&) = delete;
  Expected& operator=(const Expected&) = delete;
  Expected& operator=(Expected&&) = delete;
  ~Expected() {
    if (has_value_) {
      (**this).~T();
    }
  }

  [[nodiscard]] bool has_value() const noexcept { return has_value_; }
  explicit operator bool() const noexcept { return has_value_; }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

  T& operator*() & noexcept { return *ptr(); }
  const T& operator*() const& noexcept { return *const_cast<Expected*>(this)->ptr(); }
  T&& operator*() && noexcept { return std::move(*ptr()); }
  T* operator->() noexcept { return ptr(); }

  /// The value; raises the Status if there is none.
  T& value() & {
    if (!has_value_) {
      raise(status_);
    }
    return *ptr();
  }
  T&& value() && { return std::move(this->value()); }

 private:
  T* ptr() noexcept {
    DYNBATCH_ASSERT(has_value_, "Expected holds no value");
    return std::launder(reinterpret_cast<T*>(storage_));
  }

  alignas(T) unsigned char storage_[sizeof(T)];
  Status status_{};
  bool has_value_ = false;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
