// SPDX-License-Identifier: Apache-2.0
// Macros that C and system headers really define; no public header may use these names.
#define I _Complex_I
#define small char
#define B0 0
#define N 1

#include <all_headers.hpp>

int unit_with_hostile_macros() { return dynbatch::kVersionMajor; }
