// SPDX-License-Identifier: Apache-2.0
// The second translation unit with every header: a function that is not inline fails to link here.
#include <all_headers.hpp>

int unit_with_hostile_macros();

int main() { return unit_with_hostile_macros() == dynbatch::kVersionMajor ? 0 : 1; }
