// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockEnvelope: what a store keeps beside the bytes of a block to know them again.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/model/block_key.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// 64-bit checksum against accidents, not against forgery, 32 bytes at a time. O(bytes).
[[nodiscard]] inline std::uint64_t checksum64(std::span<const std::byte> bytes) noexcept {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
  std::uint64_t lanes[4] = {1, 2, 3, 4};
  std::size_t at = 0;
  for (; at + sizeof(lanes) <= bytes.size(); at += sizeof(lanes)) {
    std::uint64_t words[4];
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (int i = 0; i < 4; ++i) {
      // Multiplication by an odd number and the shift are bijections: no change of one word is
      // lost.
      lanes[i] = (lanes[i] ^ words[i]) * kOdd;
      lanes[i] ^= lanes[i] >> 32U;
    }
  }
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) {
    sum = combine64(sum, lane);
  }
  for (; at < bytes.size(); ++at) {
    sum = combine64(sum, static_cast<std::uint64_t>(bytes[at]) + 1);
  }
  return sum;
}

/// Fixed layout, little-endian, 80 bytes. Written behind the data, or published after it: a block
/// without a valid envelope is not there.
struct BlockEnvelope {
  static constexpr std::uint64_t kMagic = 0x3142564B48435942;  // "BYCHKVB1"

  std::uint64_t magic = 0;
  std::uint64_t num_bytes = 0;
  BlockKey key{};
  std::uint64_t checksum = 0;  ///< Of the bytes.
  std::uint64_t family = 0;    ///< As in KeyRoot.
  std::uint64_t reserved = 0;
  std::uint64_t seal = 0;  ///< Of the fields above.

  /// The envelope of a block.
  [[nodiscard]] static BlockEnvelope around(const BlockKey& key, std::uint64_t family,
                                            std::span<const std::byte> bytes) noexcept {
    BlockEnvelope e;
    e.magic = kMagic;
    e.num_bytes = bytes.size();
    e.key = key;
    e.checksum = checksum64(bytes);
    e.family = family;
    e.seal = e.computed_seal();
    return e;
  }

  /// True if these are the bytes of the block that this key names, all of them and unharmed.
  [[nodiscard]] bool holds(const BlockKey& wanted,
                           std::span<const std::byte> bytes) const noexcept {
    return magic == kMagic && seal == computed_seal() && key == wanted &&
           num_bytes == bytes.size() && checksum == checksum64(bytes);
  }

 private:
  [[nodiscard]] std::uint64_t computed_seal() const noexcept {
    return checksum64({reinterpret_cast<const std::byte*>(this), offsetof(BlockEnvelope, seal)});
  }
};
static_assert(sizeof(BlockEnvelope) == 80);

}  // namespace dynbatch::inline DYNBATCH_ABI
