// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/blake2b.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

using namespace dynbatch;

namespace {

std::string hex(const Digest256& digest) {
  std::string text;
  for (const std::uint64_t word : digest.words) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      char two[3];
      std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(word >> shift & 255U));
      text += two;
    }
  }
  return text;
}

std::string hash(const std::string& text) { return hex(Blake2b::of(text.data(), text.size())); }

}  // namespace

TEST_CASE("BLAKE2b-256 gives the digests of other implementations") {
  // By Python's hashlib.blake2b(text, digest_size=32), which wraps the reference implementation.
  CHECK(hash("") == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(hash("abc") == "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  CHECK(hash(std::string(127, 'x')) ==
        "32afe327aece2cc8275e868be2ea929410f47bcfbac87d8197d92c972a290d3d");
  CHECK(hash(std::string(128, 'x')) ==
        "164ffb7089bae6f5a62fb0795e751dc9e88eac92e1a5b2fafe93a25abf2d9c3b");
  CHECK(hash(std::string(129, 'x')) ==
        "03b0758fa71d249c846c2304a2b9996e6ae66ffa7e5528f9e612e089a360fc8d");
  CHECK(hash(std::string(256, 'x')) ==
        "cb9d468022b930d52da4d9b0226ef9c997e0acc119eeb08afefb8219bc53972b");
  CHECK(hash(std::string(100000, 'a')) ==
        "b717c86cf745507ec5373f12f21350eb8550039b4263f7ba6e8df9030b5673c6");
}

TEST_CASE("A message in pieces has the digest of the whole") {
  std::string text;
  for (int i = 0; i < 700; ++i) {
    text += static_cast<char>(i * 31);
  }
  const std::string whole = hash(text);
  for (std::size_t piece = 1; piece < 300; ++piece) {
    Blake2b parts;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      parts.update(text.data() + at, std::min(piece, text.size() - at));
    }
    REQUIRE(hex(parts.finish()) == whole);
  }
}
