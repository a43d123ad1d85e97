// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/step_time_fit.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>

using namespace dynbatch;

namespace {

// Llama-3.1-70B fp8 on 4 H100: ms = 11.02 + 0.0547 rows + 2.79e-5 kv + 0.0446 prompt tokens.
constexpr StepCost kTruth{11'020'000, 44'600'000, 54'700'000, 27'900, 0, 1};

StepWork random_work(SplitMix64& random) {
  StepWork work;
  work.prefill_tokens = random.one_in(2) ? random.between(1, 4096) : 0;
  work.decode_rows = random.between(0, 256);
  work.kv_tokens = work.decode_rows * random.between(100, 2000);
  return work;
}

// Feeds `steps` steps of an engine that costs `truth` times `noise` in [1 - amount, 1 + amount].
TimeNs feed(StepTimeFit& fit, SplitMix64& random, TimeNs now, const StepCost& truth, int steps,
            double amount = 0.0) {
  for (int i = 0; i < steps; ++i) {
    const StepWork work = random_work(random);
    const double noise = 1.0 + amount * (2.0 * random.uniform() - 1.0);
    const DurationNs measured{
        static_cast<std::int64_t>(static_cast<double>(truth.predict(work).ns) * noise)};
    now = now + measured;
    fit.observe(now, work, measured);
  }
  return now;
}

double relative_error(const StepCost& cost, const StepCost& truth, const StepWork& work) {
  const double predicted = to_ms(cost.predict(work));
  const double right = to_ms(truth.predict(work));
  return (predicted > right ? predicted - right : right - predicted) / right;
}

}  // namespace

TEST_CASE("nothing is published before enough samples", "[batch]") {
  StepTimeFit fit({.min_samples = 4});
  for (int i = 0; i < 3; ++i) {
    fit.observe({i * 10'000'000}, {0, 8, 800, 0}, milliseconds(10));
    CHECK_FALSE(fit.cost().is_known());
  }
  fit.observe({30'000'000}, {0, 8, 800, 0}, milliseconds(10));
  CHECK(fit.cost().is_known());
  CHECK(to_ms(fit.cost().predict({0, 8, 800, 0})) == Approx(10.0).epsilon(0.01));
}

TEST_CASE("the coefficients of a linear engine are found", "[batch]") {
  StepTimeFit fit;
  SplitMix64 random(1);
  feed(fit, random, {}, kTruth, 100);
  const StepCost& cost = fit.cost();
  CHECK(static_cast<double>(cost.fixed_ns) == Approx(11.02e6).epsilon(0.01));
  CHECK(static_cast<double>(cost.prefill_token_ps) == Approx(44.6e6).epsilon(0.01));
  CHECK(static_cast<double>(cost.decode_row_ps) == Approx(54.7e6).epsilon(0.02));
  CHECK(static_cast<double>(cost.kv_token_ps) == Approx(27'900).epsilon(0.02));
}

TEST_CASE("a noisy engine is predicted within its noise", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 9)));
  INFO("seed " << seed);
  StepTimeFit fit;
  SplitMix64 random(seed);
  feed(fit, random, {}, kTruth, 400, 0.05);
  CHECK(relative_error(fit.cost(), kTruth, {2048, 128, 150'000, 0}) < 0.05);
  CHECK(relative_error(fit.cost(), kTruth, {0, 128, 150'000, 0}) < 0.15);
}

TEST_CASE("publications keep their distance", "[batch]") {
  StepTimeFit fit({.publish_ns = 100'000'000, .min_samples = 1});
  std::uint64_t version = 0;
  std::int64_t published = -1'000'000'000;
  SplitMix64 random(5);
  TimeNs now{};
  for (int i = 0; i < 500; ++i) {
    now = now + DurationNs{random.between(1, 30'000'000)};
    fit.observe(now, {0, random.between(1, 200), random.between(1, 100'000), 0},
                {random.between(5'000'000, 50'000'000)});
    if (fit.cost().version != version) {
      CHECK(fit.cost().version == version + 1);
      CHECK(now.ns - published >= 100'000'000);
      version = fit.cost().version;
      published = now.ns;
    }
  }
  CHECK(version > 50);
}

TEST_CASE("samples that no step can have change nothing", "[batch]") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  StepTimeFit fed({.publish_ns = 0});
  StepTimeFit clean({.publish_ns = 0});
  SplitMix64 random(2);
  SplitMix64 same(2);
  const TimeNs now = feed(fed, random, {}, kTruth, 50);
  feed(clean, same, {}, kTruth, 50);
  const StepWork work{100, 10, 1000, 0};
  for (const std::int64_t measured : {std::int64_t{0}, std::int64_t{-5}, kLeast, kMost,
                                      std::int64_t{1'000'000'000'000'000'000}}) {
    fed.observe(now, work, {measured});
  }
  for (const std::int64_t amount : {std::int64_t{-1}, kLeast, kMost}) {
    fed.observe(now, {amount, 10, 1000, 0}, milliseconds(10));
    fed.observe(now, {100, amount, 1000, 0}, milliseconds(10));
    fed.observe(now, {100, 10, amount, 0}, milliseconds(10));
  }
  CHECK(fed.cost() == clean.cost());
  feed(fed, random, now, kTruth, 5);
  feed(clean, same, now, kTruth, 5);
  CHECK(fed.cost() == clean.cost());
}

TEST_CASE("a falling line never becomes a negative coefficient", "[batch]") {
  StepTimeFit fit({.publish_ns = 0, .min_samples = 1});
  TimeNs now{};
  for (int i = 0; i < 20; ++i) {
    now = now + milliseconds(30);
    fit.observe(now, {0, 1, 0, 0}, milliseconds(30));
    now = now + milliseconds(20);
    fit.observe(now, {0, 8, 0, 0}, milliseconds(20));
    const StepCost& cost = fit.cost();
    CHECK(cost.fixed_ns >= 0);
    CHECK(cost.prefill_token_ps >= 0);
    CHECK(cost.decode_row_ps >= 0);
    CHECK(cost.kv_token_ps >= 0);
  }
  // The best line that does not fall is flat, between the two.
  CHECK(to_ms(fit.cost().predict({0, 1, 0, 0})) == Approx(25.0).margin(3.0));
  CHECK(to_ms(fit.cost().predict({0, 8, 0, 0})) == Approx(25.0).margin(3.0));
}

TEST_CASE("one outlier moves a settled fit little", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(3);
  const TimeNs now = feed(fit, random, {}, kTruth, 200);
  fit.observe(now, {512, 100, 100'000, 0}, seconds(10));
  CHECK(relative_error(fit.cost(), kTruth, {512, 100, 100'000, 0}) < 0.05);
}

TEST_CASE("an engine that became slower is believed within a window", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(4);
  TimeNs now = feed(fit, random, {}, kTruth, 200);
  const StepCost slow{22'040'000, 89'200'000, 109'400'000, 55'800, 0, 1};
  now = feed(fit, random, now, slow, 40);
  CHECK(relative_error(fit.cost(), slow, {1024, 100, 100'000, 0}) < 0.05);
  feed(fit, random, now, kTruth, 40);
  CHECK(relative_error(fit.cost(), kTruth, {1024, 100, 100'000, 0}) < 0.05);
}

TEST_CASE("long pure decoding forgets nothing about prompts", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(6);
  TimeNs now = feed(fit, random, {}, kTruth, 200);
  for (int i = 0; i < 200'000; ++i) {
    const StepWork work{0, 64, 64'000, 0};
    now = now + kTruth.predict(work);
    fit.observe(now, work, kTruth.predict(work));
  }
  CHECK(relative_error(fit.cost(), kTruth, {2048, 64, 64'000, 0}) < 0.02);
  // And no wind-up: the next sample with a prompt, ten per cent off, is weighed, not swallowed.
  const StepWork mixed{2048, 64, 64'000, 0};
  fit.observe(now, mixed, {kTruth.predict(mixed).ns * 11 / 10});
  CHECK(relative_error(fit.cost(), kTruth, mixed) < 0.11);
}

TEST_CASE("a fit refuses a bad config by the name of the field", "[batch]") {
  using Config = StepTimeFit::Config;
  CHECK(std::string(Config{.decode_window_ns = 0}.validate().field) == "decode_window_ns");
  CHECK(std::string(Config{.prefill_window_ns = 0}.validate().field) == "prefill_window_ns");
  CHECK(std::string(Config{.publish_ns = -1}.validate().field) == "publish_ns");
  CHECK(std::string(Config{.min_samples = 0}.validate().field) == "min_samples");
  CHECK_THROWS_AS(StepTimeFit({.min_samples = 0}), Error);
}
