// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/table_tuner_sizer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

SizerInput input_of(std::int64_t blocks) {
  SizerInput in;
  in.max_tokens = 1 << 20;
  in.max_sequences = 4096;
  in.pool.total_blocks = blocks;
  in.pool.block_size = 16;
  return in;
}

void finish(TableTunerSizer& sizer, int count, std::int64_t input, std::int64_t output) {
  for (int i = 0; i < count; ++i) {
    const FinishedOutput finished{output, RequestClass::Interactive, input};
    StepFeedback feedback;
    feedback.finished = {&finished, 1};
    sizer.observe(feedback);
  }
}

}  // namespace

TEST_CASE("the batch size follows the table of capacities", "[batch]") {
  const std::int64_t expected[][2] = {{0, 128},     {143, 128},   {144, 256},   {335, 256},
                                      {336, 512},   {671, 512},   {672, 768},   {700, 768},
                                      {832, 1024},  {1280, 1536}, {1663, 1536}, {1664, 1664},
                                      {2175, 2048}, {2176, 2176}, {2047, 2047}};
  for (const auto& [capacity, batch] : expected) {
    INFO(capacity);
    CHECK(TableTunerSizer::batch_for(capacity) == batch);
  }
}

TEST_CASE("the token budget has the worked values of the rule", "[batch]") {
  CHECK(TableTunerSizer::tokens_for(256, 1000, 200) == 8192);     // 1,536 -> 2,048 -> 8,192 wins
  CHECK(TableTunerSizer::tokens_for(1024, 100, 400) == 2048);     // 1,280 -> 2,048
  CHECK(TableTunerSizer::tokens_for(1536, 8000, 1000) == 16384);  // 13,824 -> 16,384
  CHECK(TableTunerSizer::tokens_for(1, 2000, 1000) == 4096);      // a ratio of 2 is balanced
  CHECK(TableTunerSizer::tokens_for(1, 2001, 1000) == 8192);
  CHECK(TableTunerSizer::tokens_for(1, 500, 1000) == 2048);  // a ratio of 0.5 is not
  CHECK(TableTunerSizer::tokens_for(1, 501, 1000) == 4096);
}

TEST_CASE("without a finished request the least entries hold, not zero by zero", "[batch]") {
  TableTunerSizer sizer({.tunes_batch_size = true, .tunes_num_tokens = true});
  CHECK(sizer.limits(input_of(1'000'000)).max_decode_sequences == 128);
  CHECK(sizer.limits(input_of(1'000'000)).max_tokens == 2048);
  finish(sizer, 3, 100, 0);  // outputs of no token: still no ratio
  CHECK(sizer.limits(input_of(1'000'000)).max_decode_sequences == 128);
  CHECK(sizer.limits(input_of(1'000'000)).max_tokens == 2048);
}

TEST_CASE("both follow the means of the last finished requests", "[batch]") {
  TableTunerSizer sizer({.tunes_batch_size = true, .tunes_num_tokens = true});
  finish(sizer, 500, 7, 5000);
  finish(sizer, 128, 1000, 200);  // all that counts
  // A mean request takes 75 blocks: 52,500 blocks hold 700.
  CHECK(sizer.limits(input_of(52'500)).max_decode_sequences == 768);
  CHECK(sizer.limits(input_of(75 * 143)).max_decode_sequences == 128);
  CHECK(sizer.limits(input_of(75 * 143)).max_tokens == 8192);
  finish(sizer, 64, 100, 400);  // now means of 550 and 300
  CHECK(sizer.limits(input_of(75 * 143)).max_tokens == 4096);
}

TEST_CASE("tuning is off by default, and limits of the engine always hold", "[batch]") {
  TableTunerSizer fixed({.max_batch_size = 40, .max_num_tokens = 5000});
  finish(fixed, 10, 8000, 1000);
  CHECK(fixed.limits(input_of(100)).max_decode_sequences == 40);
  CHECK(fixed.limits(input_of(100)).max_tokens == 5000);
  TableTunerSizer tuned({.max_batch_size = 40,
                         .max_num_tokens = 5000,
                         .tunes_batch_size = true,
                         .tunes_num_tokens = true});
  finish(tuned, 10, 8000, 1000);
  CHECK(tuned.limits(input_of(1'000'000)).max_decode_sequences == 40);
  CHECK(tuned.limits(input_of(1'000'000)).max_tokens == 5000);
  SizerInput small = input_of(1'000'000);
  small.max_tokens = 64;
  small.max_sequences = 8;
  CHECK(tuned.limits(small).max_tokens == 64);
  CHECK(tuned.limits(small).max_decode_sequences == 8);
}

TEST_CASE("a table tuner's configuration names what it refuses", "[batch]") {
  CHECK(std::string(TableTunerSizer::Config{.max_batch_size = -1}.validate().field) ==
        "max_batch_size");
  CHECK(std::string(TableTunerSizer::Config{.max_num_tokens = -1}.validate().field) ==
        "max_num_tokens");
  CHECK(std::string(TableTunerSizer::Config{.window = 0}.validate().field) == "window");
  CHECK(std::string(TableTunerSizer::Config{.window = 1025}.validate().field) == "window");
}
