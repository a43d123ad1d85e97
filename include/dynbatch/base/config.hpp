// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Build choices, the ABI namespace and assertions. The only header that tests user macros.
#include <dynbatch/base/version.hpp>

#include <cstdio>
#include <cstdlib>

/// How much is asserted: 0 nothing, 1 cheap checks (default, in every build type), 2 expensive
/// ones too. Give the same value to every translation unit and to the compiled library.
#if !defined(DYNBATCH_CHECK_LEVEL)
#define DYNBATCH_CHECK_LEVEL 1
#endif

/// 1 where the compiler offers exceptions, else 0.
#if defined(__cpp_exceptions)
#define DYNBATCH_EXCEPTIONS 1
#else
#define DYNBATCH_EXCEPTIONS 0
#endif

/// Marks what the compiled library exports: write it before functions and classes that are
/// declared in a header and defined in src/.
#define DYNBATCH_API [[gnu::visibility("default")]]

#if DYNBATCH_CHECK_LEVEL != 0 && DYNBATCH_CHECK_LEVEL != 1 && DYNBATCH_CHECK_LEVEL != 2
#error "dynbatch: DYNBATCH_CHECK_LEVEL must be 0, 1 or 2"
#endif

#define DYNBATCH_ABI_PASTE(major, minor, level, except) v##major##_##minor##_c##level##_x##except
#define DYNBATCH_ABI_EXPAND(major, minor, level, except) \
  DYNBATCH_ABI_PASTE(major, minor, level, except)
/// Name of the inline namespace around everything, for instance v0_1_c1_x1: version, check level,
/// exceptions. It holds all that changes the meaning of inline code: objects built differently
/// don't link by mistake, and complete copies of the library built differently live side by side
/// in one program.
#define DYNBATCH_ABI                                                                        \
  DYNBATCH_ABI_EXPAND(DYNBATCH_VERSION_MAJOR, DYNBATCH_VERSION_MINOR, DYNBATCH_CHECK_LEVEL, \
                      DYNBATCH_EXCEPTIONS)

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// Reports a programming error (never bad input) and ends the program. Out of line so that an
/// assertion costs its caller one compare and one jump.
[[noreturn, gnu::cold, gnu::noinline]] inline void assertion_failed(const char* text,
                                                                    const char* file,
                                                                    int line) noexcept {
  // The one place where the library prints: without a line here the host only sees "Aborted".
  static_cast<void>(
      std::fprintf(stderr, "dynbatch: assertion failed: %s (%s:%d)\n", text, file, line));
  std::abort();
}

}  // namespace detail

}  // namespace dynbatch::inline DYNBATCH_ABI

/// Cheap check of an invariant; `text` says what is wrong. Allowed in constexpr functions.
/// The condition is never evaluated when off, but it is always compiled.
#if DYNBATCH_CHECK_LEVEL >= 1
#define DYNBATCH_ASSERT(cond, text) \
  ((cond) ? static_cast<void>(0) : ::dynbatch::detail::assertion_failed(text, __FILE__, __LINE__))
#else
#define DYNBATCH_ASSERT(cond, text) static_cast<void>(sizeof((cond) ? 1 : 0))
#endif

/// A check whose cost depends on the size of the state; on at level 2 only.
#if DYNBATCH_CHECK_LEVEL >= 2
#define DYNBATCH_ASSERT_EXPENSIVE(cond, text) DYNBATCH_ASSERT(cond, text)
#else
#define DYNBATCH_ASSERT_EXPENSIVE(cond, text) static_cast<void>(sizeof((cond) ? 1 : 0))
#endif
