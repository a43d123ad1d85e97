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

// Feeds `steps` drawn steps of an engine that costs `truth` times a noise in [1 - amount, 1 +
// amount].
template <class Draw>
TimeNs feed_from(Draw draw, StepTimeFit& fit, SplitMix64& random, TimeNs now, const StepCost& truth,
                 int steps, double amount = 0.0) {
  for (int i = 0; i < steps; ++i) {
    const StepWork work = draw(random);
    const double noise = 1.0 + amount * (2.0 * random.uniform() - 1.0);
    const DurationNs measured{
        static_cast<std::int64_t>(static_cast<double>(truth.predict(work).ns) * noise)};
    now = now + measured;
    fit.observe(now, work, measured);
  }
  return now;
}

TimeNs feed(StepTimeFit& fit, SplitMix64& random, TimeNs now, const StepCost& truth, int steps,
            double amount = 0.0) {
  return feed_from(random_work, fit, random, now, truth, steps, amount);
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

namespace {

// Llama-3.1-8B on an RTXPRO6000, about: 10 ms + 34 us a prompt token + 2.6 ns a query-key pair.
constexpr StepCost kLongContext{10'000'000, 34'500'000, 3'600'000, 91'000, 2'582'000, 1};

// A chunked prompt of up to 32k tokens beside decodes, or the decodes alone.
StepWork long_prompts(SplitMix64& random) {
  StepWork work;
  work.decode_rows = random.between(0, 128);
  work.kv_tokens = work.decode_rows * random.between(100, 2000);
  if (random.one_in(2)) {
    return work;
  }
  const std::int64_t prefix = 1024 * random.between(0, 30);
  return with_prefill(work, prefix, random.between(64, 2048));
}

// One prompt of a conversation, whole.
StepWork short_prompts(SplitMix64& random) {
  StepWork work;
  work.decode_rows = random.between(1, 128);
  work.kv_tokens = work.decode_rows * random.between(100, 2000);
  return random.one_in(3) ? with_prefill(work, 0, random.between(300, 1500)) : work;
}

}  // namespace

TEST_CASE("attention work is found beside all other coefficients", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 9)));
  const double amount = GENERATE(0.0, 0.03);
  INFO("seed " << seed << " noise " << amount);
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(seed);
  feed_from(long_prompts, fit, random, {}, kLongContext, 400, amount);
  const StepCost& cost = fit.cost();
  const double tolerance = amount == 0.0 ? 0.005 : 0.15;
  CHECK(static_cast<double>(cost.attention_pair_fs) == Approx(2'582'000).epsilon(tolerance));
  CHECK(static_cast<double>(cost.prefill_token_ps) == Approx(34'500'000).epsilon(tolerance));
  for (const std::int64_t prefix : {0, 8192, 30'000}) {
    CHECK(relative_error(cost, kLongContext, with_prefill({0, 64, 64'000, 0}, prefix, 2048)) <
          0.06);
  }
}

TEST_CASE("attention is not invented where prompts alone tell little about it", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 17)));
  INFO("seed " << seed);
  // The same samples for a fit that isn't told the attention work.
  StepTimeFit fit;
  StepTimeFit without;
  SplitMix64 random(seed);
  SplitMix64 same(seed);
  const auto untold = [](SplitMix64& r) {
    StepWork work = short_prompts(r);
    work.attention_pairs = 0;
    return work;
  };
  TimeNs now{};
  TimeNs same_now{};
  for (int part = 0; part < 30; ++part) {
    now = feed_from(short_prompts, fit, random, now, kTruth, 20, 0.05);
    same_now = feed_from(untold, without, same, same_now, kTruth, 20, 0.05);
    const StepWork usual = with_prefill({0, 64, 64'000, 0}, 0, 1000);
    CHECK(relative_error(fit.cost(), kTruth, usual) <
          relative_error(without.cost(), kTruth, usual) + 0.03);
    // Far outside what was seen: eight times the longest prompt.
    const StepWork distant = with_prefill({0, 64, 64'000, 0}, 0, 12'000);
    CHECK(relative_error(fit.cost(), kTruth, distant) <
          relative_error(without.cost(), kTruth, distant) + 0.2);
  }
}

TEST_CASE("exact samples of a linear engine give no attention at all", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(21);
  TimeNs now = feed_from(short_prompts, fit, random, {}, kTruth, 60);
  for (int i = 0; i < 200; ++i) {
    now = feed_from(short_prompts, fit, random, now, kTruth, 1);
    REQUIRE(fit.cost().attention_pair_fs == 0);
    REQUIRE(static_cast<double>(fit.cost().prefill_token_ps) == Approx(44.6e6).epsilon(0.01));
  }
}

TEST_CASE("long pure decoding forgets nothing about attention", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(22);
  TimeNs now = feed_from(long_prompts, fit, random, {}, kLongContext, 300, 0.01);
  const StepWork mixed = with_prefill({0, 64, 64'000, 0}, 30'000, 2048);
  for (int i = 0; i < 100'000; ++i) {
    const StepWork work{0, 64, 64'000, 0};
    now = now + kLongContext.predict(work);
    fit.observe(now, work, kLongContext.predict(work));
  }
  CHECK(relative_error(fit.cost(), kLongContext, mixed) < 0.05);
}

TEST_CASE("a change of one kind of step's cost leaves the other kind's alone", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 33)));
  const double factor = GENERATE(0.5, 1.3, 3.0);
  INFO("seed " << seed << " factor " << factor);
  const auto scaled = [&](std::int64_t v) {
    return static_cast<std::int64_t>(static_cast<double>(v) * factor);
  };
  const StepWork decodes{0, 64, 64'000, 0};
  const StepWork mixed = with_prefill(decodes, 8192, 1500);
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(seed);
  TimeNs now = feed_from(long_prompts, fit, random, {}, kLongContext, 300, 0.01);
  const std::int64_t token_ps = fit.cost().prefill_token_ps;
  const std::int64_t pair_fs = fit.cost().attention_pair_fs;
  const auto feed_both = [&](const StepCost& truth, auto check) {
    for (int i = 0; i < 40; ++i) {
      const auto draw = [&](SplitMix64& r) {
        StepWork work = long_prompts(r);
        while ((work.prefill_tokens > 0) != (i % 2 == 0)) {
          work = long_prompts(r);
        }
        return work;
      };
      now = feed_from(draw, fit, random, now, truth, 1, 0.01);
      INFO("after " << i);
      check();
    }
    CHECK(relative_error(fit.cost(), truth, decodes) < 0.03);
    CHECK(relative_error(fit.cost(), truth, mixed) < 0.05);
  };

  SECTION("of decodes") {
    StepCost truth = kLongContext;
    truth.fixed_ns = scaled(truth.fixed_ns);
    truth.decode_row_ps = scaled(truth.decode_row_ps);
    truth.kv_token_ps = scaled(truth.kv_token_ps);
    feed_both(truth, [&] {
      const auto near = [](std::int64_t v, std::int64_t before) {
        return static_cast<double>(v) == Approx(static_cast<double>(before)).epsilon(0.15);
      };
      REQUIRE(near(fit.cost().prefill_token_ps, token_ps));
      REQUIRE(near(fit.cost().attention_pair_fs, pair_fs));
    });
  }
  SECTION("of prompts") {
    StepCost truth = kLongContext;
    truth.prefill_token_ps = scaled(truth.prefill_token_ps);
    truth.attention_pair_fs = scaled(truth.attention_pair_fs);
    feed_both(truth, [&] { REQUIRE(relative_error(fit.cost(), truth, decodes) < 0.03); });
  }
}

TEST_CASE("an engine that became faster or slower throughout is learned anew", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 33)));
  const double factor = GENERATE(0.3, 0.5, 1.3, 3.0, 10.0);
  INFO("seed " << seed << " factor " << factor);
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(seed);
  const TimeNs now = feed_from(long_prompts, fit, random, {}, kLongContext, 300, 0.01);
  StepCost truth = kLongContext;
  for (std::int64_t* v : {&truth.fixed_ns, &truth.prefill_token_ps, &truth.decode_row_ps,
                          &truth.kv_token_ps, &truth.attention_pair_fs}) {
    *v = static_cast<std::int64_t>(static_cast<double>(*v) * factor);
  }
  feed_from(long_prompts, fit, random, now, truth, 80, 0.01);
  CHECK(relative_error(fit.cost(), truth, {0, 64, 64'000, 0}) < 0.05);
  CHECK(relative_error(fit.cost(), truth, with_prefill({0, 64, 64'000, 0}, 8192, 1500)) < 0.05);
}

TEST_CASE("a cost that drifts is followed", "[batch]") {
  double sum = 0.0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    StepTimeFit fit({.publish_ns = 0});
    SplitMix64 random(seed);
    TimeNs now = feed(fit, random, {}, kTruth, 300, 0.1);
    double factor = 1.0;
    for (int i = 0; i < 3000; ++i) {
      factor *= 1.0002;
      StepCost truth = kTruth;
      for (std::int64_t* v :
           {&truth.fixed_ns, &truth.prefill_token_ps, &truth.decode_row_ps, &truth.kv_token_ps}) {
        *v = static_cast<std::int64_t>(static_cast<double>(*v) * factor);
      }
      now = feed(fit, random, now, truth, 1, 0.1);
      sum += relative_error(fit.cost(), truth, {0, 128, 150'000, 0}) / 15'000.0;
    }
  }
  CHECK(sum < 0.018);  // Without forgetting 0.027.
}

TEST_CASE("steps that take three times as long now and then don't count", "[batch]") {
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(24);
  TimeNs now = feed(fit, random, {}, kTruth, 100, 0.02);
  double sum = 0.0;
  for (int i = 0; i < 1000; ++i) {
    StepCost engine = kTruth;
    if (i % 20 == 7) {
      engine = {3 * kTruth.fixed_ns,
                3 * kTruth.prefill_token_ps,
                3 * kTruth.decode_row_ps,
                3 * kTruth.kv_token_ps,
                0,
                1};
    }
    now = feed(fit, random, now, engine, 1, 0.02);
    sum += relative_error(fit.cost(), kTruth, {0, 128, 150'000, 0});
  }
  CHECK(sum / 1000.0 < 0.005);
}

TEST_CASE("an engine that became slower by less than its noise is believed", "[batch]") {
  double late = 0.0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    StepTimeFit fit(
        {.decode_window_ns = 20'000'000'000, .prefill_window_ns = 20'000'000'000, .publish_ns = 0});
    SplitMix64 random(seed);
    const TimeNs now = feed(fit, random, {}, kTruth, 300, 0.2);
    const StepCost slow{13'800'000, 55'800'000, 68'400'000, 34'900, 0, 1};
    feed(fit, random, now, slow, 120, 0.2);
    late += relative_error(fit.cost(), slow, {0, 128, 150'000, 0}) / 40.0;
  }
  CHECK(late < 0.06);  // The windows alone: 0.09.
}

TEST_CASE("a coefficient that seemed negative doesn't spoil the others", "[batch]") {
  // Steps that were the shorter the more attention work they had, by far: then the truth.
  StepTimeFit fit({.publish_ns = 0});
  SplitMix64 random(25);
  TimeNs now{};
  for (int i = 0; i < 100; ++i) {
    const StepWork work{random.between(1, 100), 10, 10'000, random.between(0, 1 << 27)};
    const DurationNs measured{200'000'000 - work.attention_pairs};
    now = now + measured;
    fit.observe(now, work, measured);
  }
  feed_from(short_prompts, fit, random, now, kTruth, 60);
  CHECK(relative_error(fit.cost(), kTruth, with_prefill({0, 64, 64'000, 0}, 0, 1000)) < 0.02);
}

TEST_CASE("degenerate feeds keep every coefficient and prediction in range", "[batch]") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kEver[] = {0,
                                    1,
                                    -1,
                                    1'000'000,
                                    3'600'000'000'000,
                                    3'600'000'000'001,
                                    std::int64_t{1} << 40,
                                    std::int64_t{1} << 46,
                                    1'000'000'000'000'000'000,
                                    kMost,
                                    std::numeric_limits<std::int64_t>::min()};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    StepTimeFit fit({.publish_ns = 0, .min_samples = 1});
    const bool is_constant = random.one_in(3);
    const auto ever = [&] { return kEver[static_cast<std::size_t>(random.between(0, 10))]; };
    StepWork work{ever(), ever(), ever(), ever()};
    DurationNs measured{ever()};
    for (int i = 0; i < 300; ++i) {
      if (!is_constant || random.one_in(100)) {
        work = random.one_in(2) ? StepWork{ever(), ever(), ever(), ever()}
                                : StepWork{random.between(0, 4096), random.between(0, 256),
                                           random.between(0, 300'000), random.between(0, 1 << 27)};
        measured = {random.one_in(2) ? ever() : random.between(1, 200'000'000)};
      }
      fit.observe({i * std::int64_t{1'000'000}}, work, measured);
      for (const std::int64_t v :
           {fit.cost().fixed_ns, fit.cost().prefill_token_ps, fit.cost().decode_row_ps,
            fit.cost().kv_token_ps, fit.cost().attention_pair_fs}) {
        REQUIRE(v >= 0);
        REQUIRE(v <= 10'000'000'000'000'000);
      }
      REQUIRE(fit.cost().predict({2048, 64, 64'000, 1 << 20}).ns >= 0);
    }
    // And it comes back.
    feed_from(long_prompts, fit, random, {1'000'000'000}, kLongContext, 800);
    REQUIRE(relative_error(fit.cost(), kLongContext, with_prefill({0, 64, 64'000, 0}, 4096, 1000)) <
            0.3);
  }
}

TEST_CASE("a fit refuses a bad config by the name of the field", "[batch]") {
  using Config = StepTimeFit::Config;
  CHECK(std::string(Config{.decode_window_ns = 0}.validate().field) == "decode_window_ns");
  CHECK(std::string(Config{.prefill_window_ns = 0}.validate().field) == "prefill_window_ns");
  CHECK(std::string(Config{.publish_ns = -1}.validate().field) == "publish_ns");
  CHECK(std::string(Config{.min_samples = 0}.validate().field) == "min_samples");
  CHECK_THROWS_AS(StepTimeFit({.min_samples = 0}), Error);
}
