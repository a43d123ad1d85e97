// SPDX-License-Identifier: Apache-2.0
// Runs the fuzz target of the trace readers over its corpus with all options.
// Two fuzz targets are linked into one test program: each entry point needs a name of its own.
#define LLVMFuzzerTestOneInput trace_reader_one_input
#include "../../fuzz/trace_reader.cpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

TEST_CASE("the corpus of the trace readers passes under all options", "[sim][trace]") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(DYNBATCH_TEST_SOURCE_DIR "/fuzz/corpus/trace")) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 10);
  for (const auto& path : files) {
    INFO(path.filename().string());
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    REQUIRE(!bytes.empty());
    for (int options = 0; options < 256; ++options) {
      bytes[0] = static_cast<char>(options);
      CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                   bytes.size()) == 0);
    }
  }
}
