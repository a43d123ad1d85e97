// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Large pages for large arrays, where the system offers them.
#include <dynbatch/base/config.hpp>

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21U;

/// Asks Linux to back memory of two huge pages and more by huge pages (transparent huge pages; the
/// system's setting "madvise", which is usual, waits for this hint). First touches then cost one
/// fault in 2 MiB, and random accesses miss the TLB less. A hint: refusal changes nothing. Does not
/// touch the memory.
inline void prefer_huge_pages(void* data, std::size_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kPage = 4096;  // of the smallest kind; larger ones refuse, harmlessly
  if (bytes < 2 * kHugePage) {
    return;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const std::uintptr_t last = (begin + bytes) / kPage * kPage;
  static_cast<void>(
      ::madvise(static_cast<std::byte*>(data) + (first - begin), last - first, MADV_HUGEPAGE));
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
