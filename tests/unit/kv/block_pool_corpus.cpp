// SPDX-License-Identifier: Apache-2.0
// Runs the fuzz target of the KV pool over its corpus, and sees what the corpus is good for.
#define LLVMFuzzerTestOneInput kv_pool_one_input
#include "../../fuzz/kv_pool.cpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using dynbatch::test::ByteChoices;

TEST_CASE("choices made of bytes take what their range needs, then are the lowest") {
  const std::uint8_t bytes[] = {7, 1, 2, 255, 9};
  ByteChoices choices(bytes);
  CHECK(choices.between(3, 3) == 3);  // no byte
  CHECK(choices.between(0, 4) == 2);  // 7 mod 5
  CHECK(choices.between(0, 65535) == 258);
  CHECK(choices.between(-10, 245) == 245);
  CHECK_FALSE(choices.is_done());
  CHECK(choices.one_in(10) == false);  // 1 + 9
  CHECK(choices.is_done());
  CHECK(choices.between(-2, 5) == -2);
}

TEST_CASE("the corpus of the KV pool passes and reaches every kind of operation") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(DYNBATCH_TEST_SOURCE_DIR "/fuzz/corpus/kv_pool")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 20);
  dynbatch::test::PoolRunCounts all;
  for (const auto& path : files) {
    INFO(path.filename().string());
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    const auto c = kv_pool_fuzz::run_bytes(bytes);
    all.operations += c.operations;
    all.media_hits += c.media_hits;
    all.copies += c.copies;
    all.withdrawn += c.withdrawn;
    all.discarded += c.discarded;
    all.forgotten += c.forgotten;
    all.held += c.held;
    all.forks += c.forks;
    all.retained += c.retained;
    all.cleared += c.cleared;
    all.pins += c.pins;
    all.refused_pins += c.refused_pins;
    all.evictions += c.evictions;
  }
  CHECK(all.operations > 1000);
  for (const std::int64_t n :
       {all.media_hits, all.copies, all.withdrawn, all.discarded, all.forgotten, all.held,
        all.forks, all.retained, all.cleared, all.pins, all.refused_pins, all.evictions}) {
    CHECK(n > 0);
  }
}
