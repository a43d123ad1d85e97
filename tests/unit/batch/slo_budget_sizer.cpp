// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/slo_budget_sizer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

constexpr TimeNs kNow{50'000'000'000};

SizerInput input_of() {
  SizerInput in;
  in.now = kNow;
  in.max_tokens = 20'000;
  in.max_sequences = 2000;
  in.least_tpot = milliseconds(50);
  return in;
}

/// 10 ms + 45 us a prompt token + 50 us a decode + 20 ns a KV token.
void teach(SloBudgetSizer& sizer) {
  std::int64_t now = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    StepFeedback fb;
    fb.work.prefill_tokens = i % 3 == 0 ? 100 + 37 * (i % 50) : 0;
    fb.work.decode_rows = 1 + i * 13 % 200;
    fb.work.kv_tokens = fb.work.decode_rows * (200 + i * 7 % 900);
    fb.measured = {10'000'000 + 45'000 * fb.work.prefill_tokens + 50'000 * fb.work.decode_rows +
                   20 * fb.work.kv_tokens};
    now += fb.measured.ns;
    fb.now = {now};
    sizer.observe(fb);
  }
}

}  // namespace

TEST_CASE("a step may take the rest of a service level or 65 percent of the least TPOT",
          "[batch]") {
  SizerInput in = input_of();
  CHECK(SloBudgetSizer::budget_ns(in, 650) == 32'500'000);
  in.next_token_due = kNow + milliseconds(10);
  CHECK(SloBudgetSizer::budget_ns(in, 650) == 32'500'000);
  in.next_token_due = kNow + milliseconds(40);
  CHECK(SloBudgetSizer::budget_ns(in, 650) == 40'000'000);
  in.first_token_due = kNow + milliseconds(35);
  CHECK(SloBudgetSizer::budget_ns(in, 650) == 35'000'000);
  in.first_token_due = kNow + milliseconds(-900);  // late already
  CHECK(SloBudgetSizer::budget_ns(in, 650) == 32'500'000);
}

TEST_CASE("prompts fill what the decodes leave of the budget", "[batch]") {
  SloBudgetSizer sizer;
  teach(sizer);
  SizerInput in = input_of();
  CHECK(sizer.limits(in).max_prefill_tokens == Approx(500).margin(15));  // 22.5 ms / 45 us
  in.num_decoding = 100;
  in.decoding_kv_tokens = 100 * 500;  // 5 ms + 1 ms
  CHECK(sizer.limits(in).max_prefill_tokens == Approx(366).margin(15));
  // 60 us a sequence: 22.5 ms serve 375.
  CHECK(sizer.limits(in).max_decode_sequences == Approx(375).margin(10));
  CHECK(sizer.bound() == SizerBound::Latency);
  // More decodes than the budget: the floor.
  in.num_decoding = 1000;
  in.decoding_kv_tokens = 1000 * 500;
  CHECK(sizer.limits(in).max_prefill_tokens == 128);
}

TEST_CASE("a step stays within the budget by the cost that the sizer publishes", "[batch]") {
  SloBudgetSizer sizer;
  teach(sizer);
  SizerInput in = input_of();
  for (in.num_decoding = 1; in.num_decoding < 260; in.num_decoding += 7) {
    in.decoding_kv_tokens = in.num_decoding * std::int64_t{500};
    in.next_prompt_tokens = 100'000;
    const BatchLimits limits = sizer.limits(in);
    const StepWork decodes{0, in.num_decoding, in.decoding_kv_tokens, 0};
    const DurationNs budget{SloBudgetSizer::budget_ns(in, 650)};
    CHECK(sizer.cost().predict(with_prefill(decodes, 0, limits.max_prefill_tokens)) <= budget);
    CHECK(sizer.cost().predict(with_prefill(decodes, 0, limits.max_prefill_tokens + 1)) > budget);
  }
}

TEST_CASE("without a limit, or before anything is learned, the fixed limits hold", "[batch]") {
  SloBudgetSizer sizer;
  CHECK(sizer.limits(input_of()).max_prefill_tokens == 10'240);
  CHECK(sizer.limits(input_of()).max_decode_sequences == 1024);
  CHECK(sizer.bound() == SizerBound::Cap);
  teach(sizer);
  SizerInput in = input_of();
  in.least_tpot = kUnbounded;
  CHECK(sizer.limits(in).max_prefill_tokens == 10'240);
  CHECK(sizer.limits(in).max_decode_sequences == 1024);
}

TEST_CASE("a budget sizer's configuration names what it refuses", "[batch]") {
  CHECK(std::string(SloBudgetSizer::Config{.max_tokens = 0}.validate().field) == "max_tokens");
  CHECK(std::string(SloBudgetSizer::Config{.max_sequences = 0}.validate().field) ==
        "max_sequences");
  CHECK(std::string(SloBudgetSizer::Config{.tpot_permille = 1001}.validate().field) ==
        "tpot_permille");
  CHECK(std::string(SloBudgetSizer::Config{.min_prefill_tokens = 0}.validate().field) ==
        "min_prefill_tokens");
}
