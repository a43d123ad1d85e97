// SPDX-License-Identifier: Apache-2.0
// Both versions live in one program and each one answers for itself.
#include <cstdio>
#include <cstring>

const char* this_version(int* minor);
const char* next_version(int* minor);

int main() {
  int this_minor = -1;
  int next_minor = -1;
  const char* this_abi = this_version(&this_minor);
  const char* next_abi = next_version(&next_minor);
  std::printf("%s (minor %d), %s (minor %d)\n", this_abi, this_minor, next_abi, next_minor);
  return next_minor == this_minor + 1 && std::strcmp(this_abi, next_abi) != 0 ? 0 : 1;
}
