// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Chunks of 16 blocks whose ids lie side by side, up or down, as those of a prompt mostly do: what
/// is kept of them in arrays is then read and written at once.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::size_t kChunk = 16;

using Lanes [[gnu::vector_size(16)]] = std::int32_t;
using WideLanes [[gnu::vector_size(16)]] = std::uint64_t;

// Four values from any address.
template <class T>
[[nodiscard]] inline Lanes load_lanes(const T* from) noexcept {
  static_assert(sizeof(T) == sizeof(std::int32_t));
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
[[nodiscard]] inline bool has_bits(Lanes lanes) noexcept {
  std::uint64_t halves[2];
  std::memcpy(halves, &lanes, sizeof(lanes));
  return (halves[0] | halves[1]) != 0;
}

/// A chunk of a path. `step` is 1 if ids rise from `lowest`, -1 if they fall to it, else 0.
struct BlockChunk {
  std::int32_t lowest;
  std::int32_t step;
};

/// What the kChunk blocks at `path` are.
[[nodiscard]] [[gnu::always_inline]] inline BlockChunk chunk_at(const BlockId* path) noexcept {
  const std::int32_t first = path[0].value;
  const std::int32_t step = path[1].value - first;
  if (step != 1 && step != -1) {
    return {first, 0};
  }
  const Lanes expected = Lanes{0, step, 2 * step, 3 * step} + first;
  const Lanes differ = (load_lanes(path) ^ expected) |
                       (load_lanes(path + 4) ^ (expected + 4 * step)) |
                       (load_lanes(path + 8) ^ (expected + 8 * step)) |
                       (load_lanes(path + 12) ^ (expected + 12 * step));
  return {step > 0 ? first : path[kChunk - 1].value, has_bits(differ) ? 0 : step};
}

/// True if the kChunk values at `from` are all greater than 0.
[[nodiscard]] inline bool are_positive(const std::int32_t* from) noexcept {
  return !has_bits((load_lanes(from) <= 0) | (load_lanes(from + 4) <= 0) |
                   (load_lanes(from + 8) <= 0) | (load_lanes(from + 12) <= 0));
}
/// True if the kChunk values at `from` are all 0.
[[nodiscard]] inline bool are_zero(const std::int32_t* from) noexcept {
  return !has_bits(load_lanes(from) | load_lanes(from + 4) | load_lanes(from + 8) |
                   load_lanes(from + 12));
}
/// True if the kChunk values at `from` are all 1.
[[nodiscard]] inline bool are_one(const std::int32_t* from) noexcept {
  return !has_bits((load_lanes(from) ^ 1) | (load_lanes(from + 4) ^ 1) |
                   (load_lanes(from + 8) ^ 1) | (load_lanes(from + 12) ^ 1));
}

/// Writes the kChunk values at `from` to `to`; back to front if `step` is -1.
inline void store_chunk(std::int32_t* to, const BlockId* from, std::int32_t step) noexcept {
  if (step > 0) {
    std::memcpy(to, from, kChunk * sizeof(std::int32_t));
    return;
  }
  const auto store_turned = [](std::int32_t* out, Lanes lanes) {
    const Lanes turned = __builtin_shufflevector(lanes, lanes, 3, 2, 1, 0);
    std::memcpy(out, &turned, sizeof(turned));
  };
  store_turned(to, load_lanes(from + 12));
  store_turned(to + 4, load_lanes(from + 8));
  store_turned(to + 8, load_lanes(from + 4));
  store_turned(to + 12, load_lanes(from));
}

/// Writes the kChunk pairs of the values at `left` and `right` to `to`; back to front if `step` is
/// -1.
inline void store_pairs(void* to, const BlockId* left, const BlockId* right,
                        std::int32_t step) noexcept {
  const auto store = [](void* out, Lanes low, Lanes high) {
    std::memcpy(out, &low, sizeof(low));
    std::memcpy(static_cast<unsigned char*>(out) + sizeof(low), &high, sizeof(high));
  };
  auto* out = static_cast<unsigned char*>(to);
  if (step > 0) {
    for (std::size_t k = 0; k < kChunk; k += 4, out += 32) {
      const Lanes a = load_lanes(left + k);
      const Lanes b = load_lanes(right + k);
      store(out, __builtin_shufflevector(a, b, 0, 4, 1, 5),
            __builtin_shufflevector(a, b, 2, 6, 3, 7));
    }
    return;
  }
  for (std::size_t k = kChunk; k > 0; k -= 4, out += 32) {
    const Lanes a = load_lanes(left + k - 4);
    const Lanes b = load_lanes(right + k - 4);
    store(out, __builtin_shufflevector(a, b, 3, 7, 2, 6),
          __builtin_shufflevector(a, b, 1, 5, 0, 4));
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
