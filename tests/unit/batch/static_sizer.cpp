// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/laws/batch_sizer.hpp>

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;

TEST_CASE("a static sizer holds its batch and the executor's tokens", "[batch]") {
  StaticSizer sizer({.batch = 8});
  SizerInput in;
  in.max_tokens = 4096;
  in.max_sequences = 256;
  in.num_waiting = 100;
  const BatchLimits limits = sizer.limits(in);
  CHECK(limits.max_prefill_sequences == 8);
  CHECK(limits.max_decode_sequences == 8);
  CHECK(limits.max_tokens == 4096);
  CHECK(limits.max_prefill_tokens == 4096);
  CHECK(limits.not_before <= in.now);
  in.max_sequences = 4;
  CHECK(sizer.limits(in).max_decode_sequences == 4);
}

TEST_CASE("a static sizer keeps its own token limit", "[batch]") {
  StaticSizer sizer({.batch = 8, .max_tokens = 512});
  SizerInput in;
  in.max_tokens = 4096;
  in.max_sequences = 256;
  CHECK(sizer.limits(in).max_tokens == 512);
  CHECK(sizer.ceiling().max_tokens == 512);
}

TEST_CASE("a static sizer never learns", "[batch]") {
  StaticSizer sizer;
  SizerInput in;
  in.max_tokens = 4096;
  in.max_sequences = 256;
  const BatchLimits before = sizer.limits(in);
  sizer.observe({.now = {1'000'000}, .work = {100, 8, 800, 0}, .measured = milliseconds(900)});
  CHECK(sizer.limits(in) == before);
  CHECK_FALSE(sizer.cost().is_known());
}

TEST_CASE("a static sizer refuses a bad config by the name of the field", "[batch]") {
  CHECK(std::string(StaticSizer::Config{.batch = 0}.validate().field) == "batch");
  CHECK(std::string(StaticSizer::Config{.max_tokens = -1}.validate().field) == "max_tokens");
  CHECK_THROWS_AS(StaticSizer({.batch = 0}), Error);
}
