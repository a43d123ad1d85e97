// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/preferred_size_sizer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

constexpr TimeNs kNow{1'000'000'000};

SizerInput waiting(std::int64_t count, DurationNs age = {}) {
  SizerInput in;
  in.now = kNow;
  in.max_tokens = 8192;
  in.max_sequences = 64;
  in.num_waiting = count;
  in.first_arrival = TimeNs{kNow.ns - age.ns};
  return in;
}

PreferredSizeSizer sizer_of(DurationNs delay, std::int32_t most = 0) {
  return PreferredSizeSizer(
      {.max_batch_size = most, .preferred = {8, 16}, .num_preferred = 2, .max_queue_delay = delay});
}

}  // namespace

TEST_CASE("the largest preferred size that waits starts at once", "[batch]") {
  PreferredSizeSizer sizer = sizer_of(milliseconds(5));
  for (const auto& [count, batch] : {std::pair{100, 16}, {16, 16}, {15, 8}, {8, 8}}) {
    const BatchLimits limits = sizer.limits(waiting(count));
    INFO(count);
    CHECK(limits.max_decode_sequences == batch);
    CHECK(limits.max_prefill_sequences == batch);
    CHECK(limits.not_before <= kNow);
  }
}

TEST_CASE("without a preferred size the first waits its delay, then all go", "[batch]") {
  PreferredSizeSizer sizer = sizer_of(milliseconds(5));
  CHECK(sizer.limits(waiting(4)).not_before == kNow + milliseconds(5));
  CHECK(sizer.limits(waiting(4, milliseconds(2))).not_before == kNow + milliseconds(3));
  const BatchLimits due = sizer.limits(waiting(4, milliseconds(5)));
  CHECK(due.not_before <= kNow);
  CHECK(due.max_decode_sequences == 4);
  // The over-aged aren't cut to a preferred size.
  CHECK(sizer.limits(waiting(20, milliseconds(6))).max_decode_sequences == 20);
  // No delay: never wait.
  PreferredSizeSizer eager = sizer_of({});
  CHECK(eager.limits(waiting(4)).max_decode_sequences == 4);
  CHECK(eager.limits(waiting(4)).not_before <= kNow);
}

TEST_CASE("a full batch waits for nothing", "[batch]") {
  PreferredSizeSizer none({.max_batch_size = 6, .max_queue_delay = milliseconds(5)});
  CHECK(none.limits(waiting(6)).max_decode_sequences == 6);
  CHECK(none.limits(waiting(6)).not_before <= kNow);
  CHECK(none.limits(waiting(5)).not_before == kNow + milliseconds(5));
  CHECK(none.limits(waiting(50)).max_decode_sequences == 6);
}

TEST_CASE("what runs is not delayed, and an arrival in the future delays nobody", "[batch]") {
  PreferredSizeSizer sizer = sizer_of(milliseconds(5));
  SizerInput in = waiting(4);
  in.num_decoding = 3;
  CHECK(sizer.limits(in).not_before <= kNow);
  CHECK(sizer.limits(waiting(4, milliseconds(-1))).not_before <= kNow);
  CHECK(sizer.limits(waiting(0)).not_before <= kNow);
}

TEST_CASE("preferred sizes ascend and fit the batch", "[batch]") {
  const auto field = [](const PreferredSizeSizer::Config& config) {
    return std::string(config.validate().field);
  };
  CHECK(field({.preferred = {8, 8}, .num_preferred = 2}) == "preferred");
  CHECK(field({.preferred = {0}, .num_preferred = 1}) == "preferred");
  CHECK(field({.max_batch_size = 8, .preferred = {16}, .num_preferred = 1}) == "preferred");
  CHECK(field({.num_preferred = 9}) == "num_preferred");
  CHECK(field({.max_queue_delay = kUnbounded}) == "max_queue_delay");
  CHECK(field({.max_queue_delay = {-1}}) == "max_queue_delay");
  CHECK(field({.max_batch_size = -1}) == "max_batch_size");
  CHECK(field({.max_tokens = -1}) == "max_tokens");
}
