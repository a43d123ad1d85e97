// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BLAKE2b with 256 bits of output (RFC 7693): collision-resistant names for content.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/digest.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dynbatch::inline DYNBATCH_ABI {

/// Hashes up to 128 bytes in one compression. Chosen over SHA-256 because a parent's digest and 16
/// tokens fit into one block, and because it is fast without special instructions.
class Blake2b {
 public:
  static constexpr std::size_t kBlockBytes = 128;

  /// Appends bytes to the message.
  void update(const void* data, std::size_t size) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(data);
    while (size > 0) {
      if (fill_ == kBlockBytes) {  // not before more follows: the last block is marked as such
        compress(false);
      }
      const std::size_t room = kBlockBytes - fill_;
      const std::size_t n = size < room ? size : room;
      std::memcpy(block_ + fill_, bytes, n);
      fill_ += n;
      bytes += n;
      size -= n;
    }
  }

  /// Digest of all that was appended. The object is used up.
  [[nodiscard]] Digest256 finish() noexcept {
    std::memset(block_ + fill_, 0, kBlockBytes - fill_);
    compress(true);
    Digest256 digest;
    for (std::size_t i = 0; i < 4; ++i) {
      digest.words[i] = state_[i];
    }
    return digest;
  }

  /// Digest of one piece of memory.
  [[nodiscard]] static Digest256 of(const void* data, std::size_t size) noexcept {
    Blake2b hash;
    hash.update(data, size);
    return hash.finish();
  }

 private:
  // RFC 7693, 2.6: first 64 bits of the fractional parts of the square roots of the first primes.
  static constexpr std::uint64_t kStart[8] = {
      0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
      0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};
  // RFC 7693, 2.7: order of the message words in each round.
  static constexpr unsigned char kOrder[10][16] = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
      {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
      {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
      {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
      {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
      {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

  static constexpr void mix(std::uint64_t* v, int a, int b, int c, int d, std::uint64_t x,
                            std::uint64_t y) noexcept {
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 63);
  }

  // Words of the message are little-endian; this library runs on such machines only.
  void compress(bool is_last) noexcept {
    static_assert(std::endian::native == std::endian::little);
    length_ += fill_;
    fill_ = 0;
    std::uint64_t m[16];
    std::memcpy(m, block_, sizeof(m));
    std::uint64_t v[16];
    for (int i = 0; i < 8; ++i) {
      v[i] = state_[i];
      v[i + 8] = kStart[i];
    }
    v[12] ^= length_;  // messages are shorter than 2^64 bytes
    v[14] ^= is_last ? ~std::uint64_t{0} : 0;
#pragma GCC unroll 12
    for (int round = 0; round < 12; ++round) {
      const unsigned char* s = kOrder[round % 10];
      mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
      mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
      mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
      mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
      mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
      mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
      mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
      mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; ++i) {
      state_[i] ^= v[i] ^ v[i + 8];
    }
  }

  // The parameter word says: 32 bytes of output, no key, no tree.
  std::uint64_t state_[8] = {kStart[0] ^ 0x01010020,
                             kStart[1],
                             kStart[2],
                             kStart[3],
                             kStart[4],
                             kStart[5],
                             kStart[6],
                             kStart[7]};
  unsigned char block_[kBlockBytes];
  std::size_t fill_ = 0;
  std::uint64_t length_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
