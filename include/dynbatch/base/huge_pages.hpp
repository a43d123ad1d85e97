// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Large pages for large arrays, where the system offers them.
#include <dynbatch/base/config.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define DYNBATCH_HAS_MADVISE 1
/// madvise(2) under a name of our own: <sys/mman.h> would bring its macros into every program.
extern "C" int dynbatch_madvise(void* data, std::size_t bytes, int advice) noexcept
    __asm__("madvise");
#else
#define DYNBATCH_HAS_MADVISE 0
#endif

inline constexpr std::size_t kHugePage = std::size_t{1} << 21U;

/// Asks Linux to back memory of two huge pages and more by huge pages (transparent huge pages; the
/// system's setting "madvise", which is usual, waits for this hint). First touches then cost one
/// fault in 2 MiB, and random accesses miss the TLB less. A hint: refusal changes nothing. Does not
/// touch the memory.
inline void prefer_huge_pages(void* data, std::size_t bytes) noexcept {
#if DYNBATCH_HAS_MADVISE
  constexpr int kMadvHugepage = 14;
  constexpr std::uintptr_t kPage = 4096;  // of the smallest kind; larger ones refuse, harmlessly
  if (bytes < 2 * kHugePage) {
    return;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const std::uintptr_t last = (begin + bytes) / kPage * kPage;
  static_cast<void>(dynbatch_madvise(static_cast<std::byte*>(data) + (first - begin), last - first,
                                     kMadvHugepage));
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

#undef DYNBATCH_HAS_MADVISE

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
