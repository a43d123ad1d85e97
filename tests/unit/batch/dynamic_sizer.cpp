// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;

namespace {

using Config = DynamicSizer::Config;

// An idle engine of 64 rows with a pool that bounds nothing.
SizerInput idle_engine(TimeNs now = {}) {
  SizerInput in;
  in.now = now;
  in.max_tokens = 16'384;
  in.max_sequences = 64;
  in.pool.total_blocks = 100'000;
  in.pool.free_blocks = 100'000;
  in.pool.block_size = 16;
  return in;
}

// `n` sequences decode with 1000 tokens of context each; their next token is due in `slack`.
SizerInput decoding_engine(TimeNs now, std::int32_t n, DurationNs slack, DurationNs tpot) {
  SizerInput in = idle_engine(now);
  in.num_decoding = n;
  in.decoding_kv_tokens = n * std::int64_t{1000};
  in.next_token_due = now + slack;
  in.least_tpot = tpot;
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100'000;
  return in;
}

// Teaches an engine of 10 ms a step, 0.1 ms a row and 0.04 ms a prompt token; KV costs nothing.
TimeNs teach(DynamicSizer& sizer, TimeNs now = {}) {
  for (int i = 0; i < 60; ++i) {
    StepFeedback fb;
    fb.work.prefill_tokens = i % 3 == 0 ? 100 * (i % 7 + 1) : 0;
    fb.work.decode_rows = i % 11;
    fb.work.kv_tokens = (i % 5) * 10'000;
    fb.measured = {10'000'000 + 100'000 * fb.work.decode_rows + 40'000 * fb.work.prefill_tokens};
    now = now + fb.measured;
    fb.now = now;
    sizer.observe(fb);
  }
  return now;
}

}  // namespace

TEST_CASE("with no sample all requests of a burst run", "[batch]") {
  DynamicSizer sizer;
  SizerInput in = idle_engine();
  in.num_waiting = 5;
  in.waiting_prompt_tokens = 500;
  const BatchLimits limits = sizer.limits(in);
  CHECK(limits.max_prefill_sequences >= 5);
  CHECK(limits.max_decode_sequences >= 5);
  CHECK(limits.max_prefill_tokens >= 500);
  CHECK(limits.not_before <= in.now);
}

TEST_CASE("a fit with a falling line proposes sizes in range", "[batch]") {
  Config config;
  config.fit.min_samples = 1;
  DynamicSizer sizer(config);
  sizer.observe({.now = {30'000'000}, .work = {0, 1, 0, 0}, .measured = milliseconds(30)});
  sizer.observe({.now = {130'000'000}, .work = {0, 8, 0, 0}, .measured = milliseconds(20)});
  for (const std::int64_t n : {0, 1, 8, 64, 1000}) {
    CHECK(sizer.cost().predict({0, n, 0, 0}).ns >= 0);
  }
  const BatchLimits limits =
      sizer.limits(decoding_engine({130'000'000}, 4, milliseconds(25), milliseconds(25)));
  CHECK(limits.max_decode_sequences >= 1);
  CHECK(limits.max_decode_sequences <= 64);
}

TEST_CASE("absurd measurements leave the proposal unchanged", "[batch]") {
  DynamicSizer sizer;
  const TimeNs now = teach(sizer);
  const SizerInput in = decoding_engine(now, 8, milliseconds(25), milliseconds(25));
  const BatchLimits before = sizer.limits(in);
  const StepCost cost = sizer.cost();
  for (const std::int64_t measured :
       {std::int64_t{0}, std::int64_t{-5}, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max(), std::int64_t{1'000'000'000'000'000'000}}) {
    sizer.observe({.now = now, .work = {100, 8, 8000, 0}, .measured = {measured}});
  }
  CHECK(sizer.cost() == cost);
  SizerInput later = in;
  later.now = now + milliseconds(200);
  later.next_token_due = later.now + milliseconds(25);
  CHECK(sizer.limits(in) == before);
  const BatchLimits after = sizer.limits(later);
  CHECK(after.max_decode_sequences == before.max_decode_sequences);
  CHECK(after.max_prefill_tokens == before.max_prefill_tokens);
}

TEST_CASE("a slow first step is forgotten within fifty", "[batch]") {
  Config config;
  DynamicSizer sizer(config);
  TimeNs now{2'000'000'000};
  sizer.observe({.now = now, .work = {0, 8, 8000, 0}, .measured = seconds(2)});
  int recovered_after = -1;
  for (int i = 1; i <= 50; ++i) {
    now = now + milliseconds(10);
    sizer.observe({.now = now, .work = {0, 8, 8000, 0}, .measured = milliseconds(10)});
    const BatchLimits limits =
        sizer.limits(decoding_engine(now, 8, milliseconds(25), milliseconds(25)));
    if (recovered_after < 0 && limits.max_decode_sequences >= 8) {
      recovered_after = i;
    }
  }
  INFO("recovered after " << recovered_after);
  CHECK(recovered_after > 0);
  CHECK(sizer.limits(decoding_engine(now, 8, milliseconds(25), milliseconds(25)))
            .max_decode_sequences >= 8);
}

TEST_CASE("the latency term is the largest batch that keeps the limit, whatever the slack",
          "[batch]") {
  DynamicSizer sizer;
  TimeNs now = teach(sizer);
  // 10 ms + 0.1 ms a row <= 13 ms: 30 rows; also while a late step has used up the slack.
  for (const std::int64_t slack : {13, 0, -50, 500}) {
    now = now + seconds(1);
    const BatchLimits limits =
        sizer.limits(decoding_engine(now, 8, milliseconds(slack), milliseconds(13)));
    INFO("slack " << slack);
    CHECK(limits.max_decode_sequences >= 29);
    CHECK(limits.max_decode_sequences <= 31);
  }
}

TEST_CASE("prompt tokens of a step fill the slack", "[batch]") {
  Config config;
  config.min_prefill_tokens = 10;
  DynamicSizer sizer(config);
  const TimeNs now = teach(sizer);
  // 50 ms - 10 ms - 8 x 0.1 ms = 39.2 ms at 0.04 ms a token: 980 tokens.
  const BatchLimits limits =
      sizer.limits(decoding_engine(now, 8, milliseconds(50), milliseconds(50)));
  CHECK(static_cast<double>(limits.max_prefill_tokens) == Approx(980).epsilon(0.02));

  // The token bound follows the slack at each call, not only every 100 ms.
  const BatchLimits tighter =
      sizer.limits(decoding_engine(now + milliseconds(1), 8, milliseconds(30), milliseconds(50)));
  CHECK(static_cast<double>(tighter.max_prefill_tokens) == Approx(480).epsilon(0.02));
}

TEST_CASE(
    "prompt tokens behind a long prefix are fewer, and the prompts behind it count as mean ones",
    "[batch]") {
  // 10 ms + 0.02 ms a token + 10 ns a query-key pair; decodes cost nothing beyond the step.
  Config config;
  config.min_prefill_tokens = 10;
  config.fit.publish_ns = 0;
  DynamicSizer sizer(config);
  SplitMix64 random(4);
  TimeNs now{};
  for (int i = 0; i < 100; ++i) {
    StepFeedback fb;
    fb.work.decode_rows = 8;
    fb.work.kv_tokens = 8000;
    if (i % 2 == 0) {
      const std::int64_t prefix = random.between(0, 16'000);
      fb.work = with_prefill(fb.work, prefix, random.between(100, 1000));
    }
    fb.measured = {10'000'000 + 20'000 * fb.work.prefill_tokens + 10 * fb.work.attention_pairs};
    now = now + fb.measured;
    fb.now = now;
    sizer.observe(fb);
  }
  SizerInput in = decoding_engine(now, 8, milliseconds(50), milliseconds(50));
  const auto tokens = [&](std::int64_t position, std::int64_t left) {
    in.next_prompt_position = position;
    in.next_prompt_tokens = left;
    return static_cast<double>(sizer.limits(in).max_prefill_tokens);
  };
  in.num_waiting = 0;
  in.waiting_prompt_tokens = 0;
  // 40 ms: n x 0.02 + n^2 x 5e-6 (n = 1,464); behind 8,000 positions n x 0.1 + n^2 x 5e-6 (392).
  CHECK(tokens(0, 10'000) == Approx(1464).epsilon(0.02));
  CHECK(tokens(8000, 10'000) == Approx(392).epsilon(0.02));
  // 200 tokens of that are 20.2 ms; the rest are whole prompts of 1,000: 0.025 ms a token (792).
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100'000;
  CHECK(tokens(8000, 200) == Approx(200 + 792).epsilon(0.02));
  // Nobody says what comes next: all are mean ones.
  CHECK(tokens(0, 0) == Approx(1600).epsilon(0.02));
}

TEST_CASE("steps under way are taken off the slack", "[batch]") {
  Config config;
  config.min_prefill_tokens = 10;
  DynamicSizer sizer(config);
  const TimeNs now = teach(sizer);
  SizerInput in = decoding_engine(now, 8, milliseconds(50), milliseconds(50));
  in.plans_in_flight = 1;
  // One more step of 10.8 ms: 270 tokens fewer than 980.
  CHECK(static_cast<double>(sizer.limits(in).max_prefill_tokens) == Approx(710).epsilon(0.02));
}

TEST_CASE("while a sequence is late prompts get the least, and as many run as keep the limit",
          "[batch]") {
  DynamicSizer sizer;
  const TimeNs now = teach(sizer);
  const BatchLimits limits =
      sizer.limits(decoding_engine(now, 8, DurationNs{-10'000'000'000}, milliseconds(50)));
  CHECK(limits.max_prefill_tokens == Config{}.min_prefill_tokens);
  CHECK(limits.max_decode_sequences == 64);
}

TEST_CASE("a service level that cannot be met is served at the minimum", "[batch]") {
  DynamicSizer sizer;
  const TimeNs now = teach(sizer);
  const BatchLimits limits =
      sizer.limits(decoding_engine(now, 8, DurationNs{-1'000'000'000}, microseconds(1)));
  CHECK(limits.max_decode_sequences == 1);
  CHECK(limits.max_prefill_sequences == 1);
  CHECK(limits.max_prefill_tokens == Config{}.min_prefill_tokens);
  CHECK(limits.not_before <= now);
}

TEST_CASE("without a service level a step takes the largest prefill", "[batch]") {
  DynamicSizer sizer;
  const TimeNs now = teach(sizer);
  SizerInput in = decoding_engine(now, 8, milliseconds(5), milliseconds(50));
  in.next_token_due = kNever;
  in.least_tpot = kUnbounded;
  CHECK(sizer.limits(in).max_prefill_tokens == Config{}.max_prefill_tokens);
  CHECK(sizer.limits(in).max_decode_sequences == 64);
  in.max_tokens = 1000;
  CHECK(sizer.limits(in).max_prefill_tokens == 1000);
}

TEST_CASE("before anything is learned a service level bounds the prefill", "[batch]") {
  DynamicSizer sizer;
  const BatchLimits limits =
      sizer.limits(decoding_engine({}, 8, milliseconds(50), milliseconds(50)));
  CHECK(limits.max_prefill_tokens == Config{}.unknown_prefill_tokens);
  CHECK(limits.max_decode_sequences == 64);
}

TEST_CASE("the queue term is alpha times what can run, rounded up", "[batch]") {
  Config config;
  config.alpha = 0.25;
  DynamicSizer sizer(config);
  SizerInput in = idle_engine();
  const auto decode_limit = [&](std::int64_t waiting) {
    in.num_waiting = waiting;
    return sizer.limits(in).max_decode_sequences;
  };
  CHECK(decode_limit(0) == 1);
  CHECK(decode_limit(1) == 1);
  CHECK(decode_limit(4) == 1);
  CHECK(decode_limit(5) == 2);
  CHECK(decode_limit(100) == 25);
  CHECK(decode_limit(1'000'000) == 64);
  in.num_decoding = 8;
  in.num_prefilling = 4;
  in.num_waiting = 4;
  CHECK(sizer.limits(in).max_decode_sequences == 4);
  CHECK(sizer.limits(in).max_prefill_sequences == 2);
}

TEST_CASE("a burst inside the recompute interval is not held back", "[batch]") {
  DynamicSizer sizer;
  SizerInput in = idle_engine();
  (void)sizer.limits(in);
  in.now = {1'000'000};
  in.num_waiting = 50;
  in.waiting_prompt_tokens = 5000;
  CHECK(sizer.limits(in).max_decode_sequences == 50);
}

TEST_CASE("memory holds requests of the mean finished length", "[batch]") {
  DynamicSizer sizer;
  for (int i = 0; i < 10; ++i) {
    sizer.observe({.now = {i}, .num_finished = 2, .finished_output_tokens = 2 * 160});
  }
  SizerInput in = idle_engine();
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 320;
  in.pool.total_blocks = 300;
  in.pool.free_blocks = 300;
  // (320 + 160) / 16 = 30 blocks a request.
  CHECK(sizer.limits(in).max_decode_sequences == 10);
}

TEST_CASE("before the first finish a request counts its prompt and one block", "[batch]") {
  DynamicSizer sizer;
  SizerInput in = idle_engine();
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 304;
  in.pool.total_blocks = 300;
  in.pool.free_blocks = 300;
  // 304 / 16 + 1 = 20 blocks a request, whatever max_new_tokens says.
  CHECK(sizer.limits(in).max_decode_sequences == 15);
}

TEST_CASE("blocks that running sequences share and will grow by count once", "[batch]") {
  DynamicSizer sizer;
  sizer.observe({.now = {}, .num_finished = 1, .finished_output_tokens = 160});
  SizerInput in = idle_engine();
  in.num_decoding = 10;
  in.running_output_tokens = 10 * 80;
  in.decoding_kv_tokens = 10 * 400;
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 320;
  in.pool.total_blocks = 300;
  in.pool.referenced_blocks = 100;  // 250 tables' worth, shared
  in.pool.free_blocks = 200;
  // 300 - 100 - 10 x 5 blocks of growth = 150 blocks: 5 requests of 30.
  CHECK(sizer.limits(in).max_decode_sequences == 15);
}

TEST_CASE("sequences beyond the mean length are not expected to shrink", "[batch]") {
  DynamicSizer sizer;
  sizer.observe({.now = {}, .num_finished = 1, .finished_output_tokens = 160});
  SizerInput in = idle_engine();
  in.num_decoding = 10;
  in.running_output_tokens = 10 * 800;
  in.decoding_kv_tokens = 10 * 1000;
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 320;
  in.pool.total_blocks = 900;
  in.pool.referenced_blocks = 600;
  in.pool.free_blocks = 300;
  CHECK(sizer.limits(in).max_decode_sequences == 20);
}

TEST_CASE("the mean output follows what finishes now", "[batch]") {
  DynamicSizer sizer;
  for (int i = 0; i < 4096; ++i) {
    sizer.observe({.now = {}, .num_finished = 1, .finished_output_tokens = 100});
  }
  for (int i = 0; i < 8192; ++i) {
    sizer.observe({.now = {}, .num_finished = 1, .finished_output_tokens = 300});
  }
  SizerInput in = idle_engine();
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 16;
  in.pool.total_blocks = 190;
  in.pool.free_blocks = 190;
  // 16 + 287 tokens are 19 blocks; the mean of all that ever finished would make it 16.
  CHECK(sizer.limits(in).max_decode_sequences == 10);
}

TEST_CASE("a full pool bounds admission at what runs, never below one", "[batch]") {
  DynamicSizer sizer;
  SizerInput in = idle_engine();
  in.num_decoding = 7;
  in.running_output_tokens = 70;
  in.decoding_kv_tokens = 7000;
  in.num_waiting = 10;
  in.waiting_prompt_tokens = 1000;
  in.pool.total_blocks = 100;
  in.pool.referenced_blocks = 100;
  in.pool.free_blocks = 0;
  CHECK(sizer.limits(in).max_decode_sequences == 7);
}

TEST_CASE("memory and latency are recomputed at the interval, not before", "[batch]") {
  DynamicSizer sizer;
  SizerInput in = idle_engine();
  in.num_waiting = 100;
  in.waiting_prompt_tokens = 100 * 304;
  in.pool.total_blocks = 300;
  CHECK(sizer.limits(in).max_decode_sequences == 15);
  in.pool.total_blocks = 600;
  in.now = {99'999'999};
  CHECK(sizer.limits(in).max_decode_sequences == 15);
  in.now = {100'000'000};
  CHECK(sizer.limits(in).max_decode_sequences == 30);
}

TEST_CASE("caps bound what is proposed and what can ever be", "[batch]") {
  Config config;
  config.max_prefill_sequences = 4;
  config.max_decode_sequences = 32;
  DynamicSizer sizer(config);
  SizerInput in = idle_engine();
  in.num_waiting = 1000;
  CHECK(sizer.limits(in).max_prefill_sequences == 4);
  CHECK(sizer.limits(in).max_decode_sequences == 32);
  CHECK(sizer.ceiling().max_prefill_sequences == 4);
  CHECK(sizer.ceiling().max_decode_sequences == 32);
}

TEST_CASE("a dynamic sizer refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const Config& config) {
    CHECK_THROWS_AS(DynamicSizer(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.alpha = 0.0}) == "alpha");
  CHECK(field_of({.alpha = 1.5}) == "alpha");
  CHECK(field_of({.alpha = std::numeric_limits<double>::quiet_NaN()}) == "alpha");
  CHECK(field_of({.max_prefill_sequences = -1}) == "max_prefill_sequences");
  CHECK(field_of({.max_decode_sequences = -1}) == "max_decode_sequences");
  CHECK(field_of({.max_prefill_tokens = 100, .min_prefill_tokens = 200}) == "max_prefill_tokens");
  CHECK(field_of({.min_prefill_tokens = 0}) == "min_prefill_tokens");
  CHECK(field_of({.unknown_prefill_tokens = 0}) == "unknown_prefill_tokens");
  CHECK(field_of({.recompute_ns = -1}) == "recompute_ns");
  Config config;
  config.fit.min_samples = 0;
  CHECK(field_of(config) == "min_samples");
}

TEST_CASE("memory holds what runs and grows, less what is expected to have ended", "[batch]") {
  // Against the same rule in doubles, sequence by sequence, at every token.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    SplitMix64 rng(seed);
    DynamicSizer sizer(DynamicSizer::Config{.memory_spread_percent = 100});
    OutputLengths lengths;
    std::vector<FinishedOutput> finished;
    for (int i = 0; i < 500; ++i) {
      finished.push_back({rng.between(100, 900), RequestClass::Interactive});
      lengths.add(RequestClass::Interactive, finished.back().tokens);
    }
    StepFeedback feedback;
    feedback.finished = finished;
    sizer.observe(feedback);
    std::vector<RunningSequence> running;
    for (std::int64_t i = rng.between(1, 60); i > 0; --i) {
      const std::int64_t outputs = rng.between(0, 850);
      const std::int64_t prompt = rng.between(100, 1000);
      running.push_back({prompt + outputs, prompt + outputs, outputs, 1000});
    }
    const RunningList list(&running, [](const void* context, void* state,
                                        RunningList::Take take) noexcept {
      for (const RunningSequence& r : *static_cast<const std::vector<RunningSequence>*>(context)) {
        take(state, r);
      }
    });
    lengths.begin();
    for (const RunningSequence& r : running) {
      lengths.add_running(r.request_class, r.output_tokens, r.max_output_tokens);
    }
    lengths.update();
    SizerInput in = idle_engine();
    in.max_sequences = 100000;
    in.running = list;
    in.num_decoding = static_cast<std::int32_t>(running.size());
    in.num_waiting = 100000;
    in.waiting_prompt_tokens = in.num_waiting * 400;
    in.pool.total_blocks = 10000;
    in.pool.free_blocks = 5000;
    in.pool.referenced_blocks = 5000;
    std::int64_t held = 0;
    for (const RunningSequence& r : running) {
      held += r.held_tokens;
    }
    const double room =
        16.0 * static_cast<double>(10000 + std::max<std::int64_t>(held / 16 - 5000, 0));
    double fit = 1e9;
    for (std::int64_t more = 0; more < 1000; more += 4) {
      double used = 0;
      double variance = 0;
      for (const RunningSequence& r : running) {
        const double p = static_cast<double>(
                             lengths.surviving(RequestClass::Interactive, r.output_tokens, more)) /
                         static_cast<double>(OutputLengths::kScale);
        const double each = static_cast<double>(r.known_tokens + 8 + more);
        used += p * each;
        variance += p * (1 - p) * each * each;
      }
      const double p = static_cast<double>(lengths.surviving(RequestClass::Interactive, 0, more)) /
                       static_cast<double>(OutputLengths::kScale);
      if (p > 0.01) {
        fit = std::min(fit,
                       (room - used - std::sqrt(variance)) / (p * static_cast<double>(408 + more)));
      }
    }
    const double expected = static_cast<double>(running.size()) + fit;
    CHECK(static_cast<double>(sizer.limits(in).max_decode_sequences) ==
          Approx(expected).epsilon(0.04));
  }
}

TEST_CASE("the number of sequences settles, stays within a band, and finds back by itself",
          "[batch]") {
  // An engine in the loop: 8 ms a step and 0.2 ms a row, so 110 rows keep a limit of 30 ms; 3 % of
  // noise. For a time each step takes twice as long.
  DynamicSizer sizer;
  SplitMix64 random(9);
  TimeNs now{};
  std::int32_t running = 1;
  const auto serve = [&](DurationNs time, std::int64_t percent) {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    std::int32_t most = 0;
    const TimeNs half = now + DurationNs{time.ns / 2};
    for (const TimeNs end = now + time; now < end;) {
      SizerInput in = idle_engine(now);
      in.max_sequences = 512;
      in.num_decoding = running;
      in.decoding_kv_tokens = running * std::int64_t{1000};
      in.next_token_due = now + milliseconds(random.between(0, 60));
      in.least_tpot = milliseconds(30);
      in.num_waiting = 1000;
      in.waiting_prompt_tokens = 1'000'000;
      const std::int32_t limit = sizer.limits(in).max_decode_sequences;
      running = std::clamp(limit, running - 8, running + 8);  // some end, some are admitted
      StepFeedback fb;
      fb.work.decode_rows = running;
      fb.work.kv_tokens = running * std::int64_t{1000};
      fb.measured = {(8'000'000 + 200'000 * fb.work.decode_rows) * percent / 100 *
                     random.between(970, 1030) / 1000};
      now = now + fb.measured;
      fb.now = now;
      sizer.observe(fb);
      if (now >= half) {
        least = std::min(least, limit);
        most = std::max(most, limit);
      }
    }
    return std::pair(least, most);
  };
  const auto is_near = [](std::pair<std::int32_t, std::int32_t> seen, std::int32_t wanted) {
    INFO("from " << seen.first << " to " << seen.second << ", wanted about " << wanted);
    CHECK(seen.first >= wanted * 9 / 10);
    CHECK(seen.second <= wanted * 11 / 10 + 1);
  };
  is_near(serve(seconds(20), 100), 110);
  is_near(serve(seconds(20), 200), 35);  // 16 ms + 0.4 ms a row
  is_near(serve(seconds(20), 100), 110);
}
