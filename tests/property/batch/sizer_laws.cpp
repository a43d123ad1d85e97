// SPDX-License-Identifier: Apache-2.0
// Every shipped sizer obeys the laws, directly and through the Any model.
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/preferred_size_sizer.hpp>
#include <dynbatch/batch/slo_budget_sizer.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/batch/table_tuner_sizer.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/batch/unbounded_sizer.hpp>
#include <dynbatch/laws/batch_sizer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

std::string text_of(const Status& status) {
  char out[256];
  format_status(status, out, sizeof(out));
  return out;
}

constexpr int kSeeds = 12;

}  // namespace

TEMPLATE_TEST_CASE("shipped sizers obey the laws", "[batch]", StaticSizer, TokenBudgetSizer,
                   UnboundedSizer, DynamicSizer, TableTunerSizer, PreferredSizeSizer,
                   SloBudgetSizer) {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, kSeeds)));
  INFO("seed " << seed);
  {
    TestType sizer;
    const Status status = check_batch_sizer_laws(sizer, seed);
    INFO(text_of(status));
    CHECK(status.is_ok());
  }
  {
    TestType sizer;
    AnyBatchSizer any(sizer);
    const Status status = check_batch_sizer_laws(any, seed);
    INFO(text_of(status));
    CHECK(status.is_ok());
  }
  {
    TestType first;
    TestType second;
    AnyBatchSizer any(second);
    AnyBatchSizer other(first);
    const Status status = check_batch_sizer_determinism(other, any, seed);
    INFO(text_of(status));
    CHECK(status.is_ok());
  }
}

TEST_CASE("a dynamic sizer obeys the laws in every configuration", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(100, 100 + kSeeds)));
  INFO("seed " << seed);
  SplitMix64 random(seed);
  DynamicSizer::Config config;
  config.alpha = 0.001 + 0.999 * random.uniform();
  config.max_prefill_sequences = static_cast<std::int32_t>(random.between(0, 300));
  config.max_decode_sequences = static_cast<std::int32_t>(random.between(0, 300));
  config.min_prefill_tokens = random.between(1, 512);
  config.max_prefill_tokens = config.min_prefill_tokens + random.between(0, 20'000);
  config.unknown_prefill_tokens = random.between(1, 30'000);
  config.recompute_ns = random.between(0, 200'000'000);
  config.fit.publish_ns = random.between(0, 200'000'000);
  config.fit.min_samples = static_cast<std::int32_t>(random.between(1, 20));
  REQUIRE(config.validate());
  DynamicSizer sizer(config);
  const Status status = check_batch_sizer_laws(sizer, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("a table tuner obeys the laws in every configuration", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(200, 200 + kSeeds)));
  INFO("seed " << seed);
  SplitMix64 random(seed);
  TableTunerSizer::Config config;
  config.max_batch_size = static_cast<std::int32_t>(random.between(0, 3000));
  config.max_num_tokens = random.between(0, 20'000);
  config.tunes_batch_size = random.one_in(2);
  config.tunes_num_tokens = random.one_in(2);
  config.window = static_cast<std::int32_t>(random.between(1, TableTunerSizer::kMostWindow));
  TableTunerSizer sizer(config);
  const Status status = check_batch_sizer_laws(sizer, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("preferred sizes obey the laws in every configuration", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(300, 300 + kSeeds)));
  INFO("seed " << seed);
  SplitMix64 random(seed);
  PreferredSizeSizer::Config config;
  config.num_preferred = static_cast<std::int32_t>(random.between(0, 8));
  for (std::int32_t i = 0; i < config.num_preferred; ++i) {
    config.preferred[i] =
        (i > 0 ? config.preferred[i - 1] : 0) + static_cast<std::int32_t>(random.between(1, 20));
  }
  config.max_batch_size =
      random.one_in(2) ? 0 : static_cast<std::int32_t>(random.between(160, 300));
  config.max_queue_delay = DurationNs{random.between(0, 2'000'000'000)};
  PreferredSizeSizer sizer(config);
  const Status status = check_batch_sizer_laws(sizer, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("a budget from service levels obeys the laws in every configuration", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(400, 400 + kSeeds)));
  INFO("seed " << seed);
  SplitMix64 random(seed);
  SloBudgetSizer::Config config;
  config.max_tokens = random.between(1, 20'000);
  config.max_sequences = static_cast<std::int32_t>(random.between(1, 2000));
  config.tpot_permille = static_cast<std::int32_t>(random.between(0, 1000));
  config.min_prefill_tokens = random.between(1, 30'000);
  config.fit.min_samples = static_cast<std::int32_t>(random.between(1, 20));
  SloBudgetSizer sizer(config);
  const Status status = check_batch_sizer_laws(sizer, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("what was learned from absurd samples is unlearned", "[batch]") {
  // Where a fit that holds coefficients at zero only when it publishes them breaks law 5.
  const auto seed = GENERATE(as<std::uint64_t>{}, 312, 324, 536, 915, 938, 1624, 1658);
  INFO("seed " << seed);
  SloBudgetSizer::Config config;
  config.fit.min_samples = static_cast<std::int32_t>(1 + seed % 20);
  SloBudgetSizer sizer(config);
  const Status status = check_batch_sizer_laws(sizer, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("the laws find a sizer that breaks them", "[batch]") {
  // Law 2: answers above its own ceiling.
  struct AboveCeiling : UnboundedSizer {
    BatchLimits ceiling() const noexcept { return {1, 1, 1, 1, {}}; }
  };
  // Law 3: always a little later.
  struct NeverNow : UnboundedSizer {
    BatchLimits limits(const SizerInput& in) noexcept {
      BatchLimits out = UnboundedSizer::limits(in);
      out.not_before = in.now + milliseconds(1);
      return out;
    }
  };
  // Law 1: no token for anybody.
  struct Stalled : UnboundedSizer {
    BatchLimits limits(const SizerInput& in) noexcept {
      BatchLimits out = UnboundedSizer::limits(in);
      out.max_prefill_tokens = 0;
      return out;
    }
  };
  AboveCeiling above;
  CHECK(std::string(check_batch_sizer_laws(above, 1).field) == "law 2");
  NeverNow never;
  CHECK(std::string(check_batch_sizer_laws(never, 1).field) == "law 3");
  Stalled stalled;
  CHECK(std::string(check_batch_sizer_laws(stalled, 1).field) == "law 1");
  // Law 6: unequal configurations are unequal models.
  StaticSizer small({.batch = 1});
  StaticSizer large({.batch = 9});
  CHECK(std::string(check_batch_sizer_determinism(small, large, 1).field) == "law 6");
}
