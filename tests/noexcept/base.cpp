// SPDX-License-Identifier: Apache-2.0
// Errors come as values where exceptions are off. A plain program: Catch2 needs exceptions.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>

#include <cstdio>
#include <cstring>

namespace {

dynbatch::Expected<int> half(int value) {
  if (value % 2 != 0) {
    return dynbatch::Status{.code = dynbatch::Errc::InvalidArgument,
                            .field = "value",
                            .value = value,
                            .text = "not even"};
  }
  return value / 2;
}

int num_failures = 0;

void expect(bool condition, const char* what) {
  if (!condition) {
    std::printf("FAILED: %s\n", what);
    ++num_failures;
  }
}

}  // namespace

int main() {
  auto good = half(8);
  expect(good.has_value() && *good == 4, "a value comes through Expected");
  auto bad = half(7);
  expect(!bad.has_value(), "an error has no value");
  expect(bad.status().code == dynbatch::Errc::InvalidArgument, "an error keeps its code");
  expect(std::strcmp(bad.status().field, "value") == 0 && bad.status().value == 7,
         "an error names field and value");
  return num_failures;
}
