// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: DYNBATCH_CHECK_LEVEL must be 0, 1 or 2
#ifdef DYNBATCH_TEST_CORRECTED
#define DYNBATCH_CHECK_LEVEL 2
#else
#define DYNBATCH_CHECK_LEVEL 3
#endif
#include <dynbatch/base/config.hpp>
