// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/unbounded_sizer.hpp>

#include <catch2/catch.hpp>

using namespace dynbatch;

TEST_CASE("an unbounded sizer leaves only the executor's limits", "[batch]") {
  UnboundedSizer sizer;
  SizerInput in;
  in.max_tokens = 777;
  in.max_sequences = 33;
  CHECK(sizer.limits(in) == BatchLimits{33, 33, 777, 777, TimeNs{}});
  CHECK_FALSE(sizer.cost().is_known());
}
