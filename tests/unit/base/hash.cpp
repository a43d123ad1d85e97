// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>

#include <bit>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

using namespace dynbatch;

TEST_CASE("mix64 is the splitmix64 finaliser", "[base]") {
  // First outputs of splitmix64 from seed 0 are mix64 of multiples of the golden ratio.
  STATIC_REQUIRE(mix64(0x9E3779B97F4A7C15ULL) == 0xE220A8397B1DCDAFULL);
  STATIC_REQUIRE(mix64(0x3C6EF372FE94F82AULL) == 0x6E789E6AA1B965F4ULL);
}

TEST_CASE("combine64 depends on the order", "[base]") {
  CHECK(combine64(combine64(0, 1), 2) != combine64(combine64(0, 2), 1));
}

TEST_CASE("a hash of words depends on each word, the count and the seed", "[base]") {
  for (std::size_t length = 1; length <= 13; ++length) {
    std::vector<std::int32_t> words(length, 7);
    const std::uint64_t base = hash_words(words.data(), length, 1);
    CHECK(hash_words(words.data(), length, 1) == base);
    CHECK(hash_words(words.data(), length, 2) != base);
    CHECK(hash_words(words.data(), length - 1, 1) != base);
    for (std::size_t i = 0; i < length; ++i) {
      for (int bit = 0; bit < 32; ++bit) {
        const std::int32_t saved = words[i];
        words[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(saved) ^ (1U << bit));
        CHECK(hash_words(words.data(), length, 1) != base);
        words[i] = saved;
      }
    }
  }
}

TEST_CASE("a hash of words spreads similar inputs over all bits", "[base]") {
  std::set<std::uint64_t> seen;
  int flipped = 0;
  std::int32_t words[8] = {};
  std::uint64_t previous = hash_words(words, 8, 0);
  constexpr int kRounds = 4096;
  for (std::int32_t i = 1; i <= kRounds; ++i) {
    words[5] = i;
    const std::uint64_t hash = hash_words(words, 8, 0);
    seen.insert(hash);
    flipped += std::popcount(hash ^ previous);
    previous = hash;
  }
  CHECK(seen.size() == kRounds);
  CHECK(static_cast<double>(flipped) / kRounds == Approx(32.0).margin(1.0));
}
