// SPDX-License-Identifier: Apache-2.0
// Assertions that are off must still be compiled, or they rot.
// EXPECT: no_such_name
#define DYNBATCH_CHECK_LEVEL 0
#include <dynbatch/base/config.hpp>

void f([[maybe_unused]] int used_by_the_assertion_only) {
#ifdef DYNBATCH_TEST_CORRECTED
  DYNBATCH_ASSERT(used_by_the_assertion_only > 0, "not positive");
#else
  DYNBATCH_ASSERT(no_such_name > 0, "not positive");
#endif
}
