// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/blake2b.hpp>
#include <dynbatch/kv/block_envelope.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

using namespace dynbatch;

TEST_CASE("An envelope knows its block, and no other bytes, length or key") {
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  const BlockKey key = Blake2b::of("a", 1);
  const BlockEnvelope e = BlockEnvelope::around(key, 5, bytes);
  CHECK(e.holds(key, bytes));
  CHECK_FALSE(e.holds(Blake2b::of("b", 1), bytes));
  CHECK_FALSE(e.holds(key, std::span<const std::byte>(bytes).first(999)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte{1} << bit;
      REQUIRE_FALSE(e.holds(key, bytes));
      bytes[i] ^= std::byte{1} << bit;
    }
  }
  CHECK_FALSE(BlockEnvelope{}.holds(key, bytes));  // what was never written
}

TEST_CASE("A torn or harmed envelope holds nothing") {
  const std::vector<std::byte> bytes(64, std::byte{3});
  const BlockKey key = Blake2b::of("a", 1);
  const BlockEnvelope e = BlockEnvelope::around(key, 5, bytes);
  for (std::size_t i = 0; i < sizeof(e); ++i) {
    BlockEnvelope harmed = e;
    auto* raw = reinterpret_cast<std::byte*>(&harmed);
    raw[i] ^= std::byte{16};
    REQUIRE_FALSE(harmed.holds(key, bytes));
  }
}

TEST_CASE("Words that change places change the checksum") {
  std::vector<std::byte> bytes(96);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  const std::uint64_t sum = checksum64(bytes);
  for (std::size_t a = 0; a < 12; ++a) {
    for (std::size_t b = a + 1; b < 12; ++b) {
      std::vector<std::byte> swapped = bytes;
      std::memcpy(&swapped[a * 8], &bytes[b * 8], 8);
      std::memcpy(&swapped[b * 8], &bytes[a * 8], 8);
      REQUIRE(checksum64(swapped) != sum);
    }
  }
}
