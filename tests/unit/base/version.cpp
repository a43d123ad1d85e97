// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/version.hpp>

#include <catch2/catch.hpp>
#include <string>

namespace {

// Passes the macro through one expansion, as a user's __FILE__-like diagnostics would.
#define STRINGIFY_EXPANDED(x) #x
#define STRINGIFY(x) STRINGIFY_EXPANDED(x)

constexpr int checked_half(int even) {
  DYNBATCH_ASSERT(even % 2 == 0, "half of an odd number");
  DYNBATCH_ASSERT_EXPENSIVE(even >= 0, "half of a negative number");
  return even / 2;
}

}  // namespace

TEST_CASE("the version constants equal the macros that CMake reads", "[base]") {
  STATIC_REQUIRE(dynbatch::kVersionMajor == DYNBATCH_VERSION_MAJOR);
  STATIC_REQUIRE(dynbatch::kVersionMinor == DYNBATCH_VERSION_MINOR);
  STATIC_REQUIRE(dynbatch::kVersionPatch == DYNBATCH_VERSION_PATCH);
  // DYNBATCH_PROJECT_VERSION comes from project(VERSION).
  CHECK(std::to_string(dynbatch::kVersionMajor) + "." + std::to_string(dynbatch::kVersionMinor) +
            "." + std::to_string(dynbatch::kVersionPatch) ==
        DYNBATCH_PROJECT_VERSION);
}

TEST_CASE("the ABI namespace names version, check level and exceptions", "[base]") {
  const std::string expected = "v" + std::to_string(dynbatch::kVersionMajor) + "_" +
                               std::to_string(dynbatch::kVersionMinor) + "_c" +
                               std::to_string(DYNBATCH_CHECK_LEVEL) + "_x" +
                               std::to_string(DYNBATCH_EXCEPTIONS);
  CHECK(STRINGIFY(DYNBATCH_ABI) == expected);
}

TEST_CASE("assertions that hold may stand in constant expressions", "[base]") {
  STATIC_REQUIRE(checked_half(8) == 4);
}
