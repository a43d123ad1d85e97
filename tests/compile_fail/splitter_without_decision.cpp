// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: a MicroBatchSplitter needs 'SplitDecision split(const SplitInput&) noexcept'.
// See docs/policies/micro_batch_splitter.md
#include <dynbatch/concepts/micro_batch_splitter.hpp>

using namespace dynbatch;

struct Splitter {
  using Config = EmptyConfig;
#ifdef DYNBATCH_TEST_CORRECTED
  SplitDecision split(const SplitInput&) noexcept { return {}; }
#else
  int split(const SplitInput&) noexcept { return 0; }  // another return type
#endif
};

static_assert(check_micro_batch_splitter<Splitter>());
