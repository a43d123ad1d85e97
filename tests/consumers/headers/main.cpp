// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#if __has_include(<dynbatch/dynbatch.hpp>)
#include <dynbatch/dynbatch.hpp>
#endif

#include <cstdio>

int main() {
  std::printf("dynbatch %d.%d.%d\n", dynbatch::kVersionMajor, dynbatch::kVersionMinor,
              dynbatch::kVersionPatch);
}
