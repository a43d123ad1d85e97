// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The laws of BatchSizer (docs/policies/batch_sizer.md) as a test that any model can be put
/// through.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// A state that a scheduler could be in, or, one time in eight, one that it could not.
inline SizerInput random_sizer_input(SplitMix64& random, TimeNs now) noexcept {
  const bool is_absurd = random.one_in(8);
  const std::int64_t most = is_absurd ? 1'000'000'000'000'000'000 : 1'000'000;
  const std::int64_t least = is_absurd ? -most : 0;
  SizerInput in;
  in.now = now;
  in.max_tokens = random.between(1, random.one_in(4) ? 64 : 16384);
  in.max_sequences = static_cast<std::int32_t>(random.between(1, 512));
  in.num_decoding = static_cast<std::int32_t>(random.between(0, in.max_sequences));
  in.num_prefilling =
      static_cast<std::int32_t>(random.between(0, in.max_sequences - in.num_decoding));
  in.num_waiting = random.one_in(3) ? 0 : random.between(0, most);
  in.decoding_kv_tokens = random.between(least, most);
  in.running_output_tokens = random.between(least, most);
  in.waiting_prompt_tokens = random.between(least, most);
  in.plans_in_flight = static_cast<std::int32_t>(random.between(0, 8));
  if (random.one_in(2)) {
    in.least_tpot = {random.between(0, 200'000'000)};
    in.next_token_due = is_absurd ? TimeNs{random.between(least, most)}
                                  : now + DurationNs{random.between(-500'000'000, 500'000'000)};
  }
  if (random.one_in(2)) {
    in.first_token_due = now + DurationNs{random.between(-2'000'000'000, 2'000'000'000)};
  }
  if (in.num_waiting > 0) {
    in.first_arrival = is_absurd ? TimeNs{random.between(least, most)}
                                 : now + DurationNs{random.between(-3'000'000'000, 1'000'000)};
  }
  if (random.one_in(2)) {
    in.next_prompt_position = random.between(least, most);
    in.next_prompt_tokens = random.between(least, most);
  }
  in.pool.total_blocks = random.between(is_absurd ? 0 : 1, most);
  in.pool.referenced_blocks = random.between(0, in.pool.total_blocks);
  in.pool.free_blocks = in.pool.total_blocks - in.pool.referenced_blocks;
  in.pool.block_size = static_cast<std::int32_t>(random.between(is_absurd ? 0 : 1, 128));
  return in;
}

/// What a step could report, or, one time in four, what it could not.
inline StepFeedback random_step_feedback(SplitMix64& random, TimeNs now,
                                         std::span<FinishedOutput, 4> finished) noexcept {
  constexpr std::int64_t kAbsurd[] = {0, -5, std::numeric_limits<std::int64_t>::min(),
                                      std::numeric_limits<std::int64_t>::max(),
                                      1'000'000'000'000'000'000};
  const auto absurd = [&] { return kAbsurd[static_cast<std::size_t>(random.between(0, 4))]; };
  StepFeedback fb;
  fb.now = now;
  fb.work = {random.between(0, 8192), random.between(0, 256), random.between(0, 1'000'000),
             random.between(0, 1'000'000'000)};
  fb.measured = {random.between(1'000'000, 400'000'000)};
  fb.num_finished = static_cast<std::int32_t>(random.between(0, 4));
  fb.finished_output_tokens = fb.num_finished * random.between(1, 4096);
  for (FinishedOutput& output : finished) {
    output.tokens = random.one_in(16) ? absurd() : random.between(0, 4096);
    output.request_class = static_cast<RequestClass>(random.between(0, 2));
    output.prompt_tokens = random.one_in(16) ? absurd() : random.between(1, 32'768);
  }
  fb.finished = finished.first(static_cast<std::size_t>(random.between(0, 4)));
  if (random.one_in(4)) {
    fb.measured = {absurd()};
  }
  if (random.one_in(8)) {
    fb.work = {absurd(), absurd(), absurd(), absurd()};
  }
  if (random.one_in(8)) {
    fb.finished_output_tokens = absurd();
    fb.num_finished = std::numeric_limits<std::int32_t>::max();
  }
  return fb;
}

inline Status check_batch_limits(const BatchLimits& limits, const SizerInput& in,
                                 const BatchLimits& ceiling) noexcept {
  const auto in_range = [](std::int64_t v, std::int64_t high) { return v >= 1 && v <= high; };
  if (!in_range(limits.max_prefill_sequences, in.max_sequences)) {
    return {Errc::InternalError, "law 1", limits.max_prefill_sequences, in.max_sequences,
            "max_prefill_sequences lies outside [1, the executor's]"};
  }
  if (!in_range(limits.max_decode_sequences, in.max_sequences)) {
    return {Errc::InternalError, "law 1", limits.max_decode_sequences, in.max_sequences,
            "max_decode_sequences lies outside [1, the executor's]"};
  }
  if (!in_range(limits.max_tokens, in.max_tokens)) {
    return {Errc::InternalError, "law 1", limits.max_tokens, in.max_tokens,
            "max_tokens lies outside [1, the executor's]"};
  }
  if (!in_range(limits.max_prefill_tokens, limits.max_tokens)) {
    return {Errc::InternalError, "law 1", limits.max_prefill_tokens, limits.max_tokens,
            "max_prefill_tokens lies outside [1, max_tokens]"};
  }
  if (limits.max_prefill_sequences > ceiling.max_prefill_sequences ||
      limits.max_decode_sequences > ceiling.max_decode_sequences ||
      limits.max_tokens > ceiling.max_tokens ||
      limits.max_prefill_tokens > ceiling.max_prefill_tokens) {
    return {Errc::InternalError, "law 2", 0, 0, "a limit exceeds ceiling()"};
  }
  return kOk;
}

inline Status check_step_cost(const StepCost& cost, std::uint64_t last_version) noexcept {
  if (cost.fixed_ns < 0 || cost.prefill_token_ps < 0 || cost.decode_row_ps < 0 ||
      cost.kv_token_ps < 0 || cost.attention_pair_fs < 0) {
    return {Errc::InternalError, "law 4", 0, 0, "a coefficient of cost() is negative"};
  }
  if (cost.version < last_version) {
    return {Errc::InternalError, "law 4", static_cast<std::int64_t>(cost.version),
            static_cast<std::int64_t>(last_version), "the version of cost() went back"};
  }
  return kOk;
}

}  // namespace detail

/// Feeds a fresh `sizer` with plausible and absurd states and results and checks laws 1 to 5.
template <BatchSizer P>
[[nodiscard]] Status check_batch_sizer_laws(P& sizer, std::uint64_t seed) noexcept {
  SplitMix64 random(seed);
  TimeNs now{random.between(0, 1'000'000'000'000)};
  const BatchLimits ceiling = sizer.ceiling();
  std::uint64_t version = sizer.cost().version;
  FinishedOutput finished[4];
  for (int step = 0; step < 2000; ++step) {
    SizerInput in = detail::random_sizer_input(random, now);
    const BatchLimits limits = sizer.limits(in);
    if (const Status status = detail::check_batch_limits(limits, in, ceiling); !status) {
      return status;
    }
    if (limits.not_before > now) {
      if (limits.not_before == kNever) {
        return {Errc::InternalError, "law 3", 0, 0, "not_before never comes"};
      }
      in.now = limits.not_before;
      if (sizer.limits(in).not_before > in.now) {
        return {Errc::InternalError, "law 3", 0, 0, "at not_before the wait was renewed"};
      }
    }
    sizer.observe(detail::random_step_feedback(random, now, finished));
    const StepCost cost = sizer.cost();
    if (const Status status = detail::check_step_cost(cost, version); !status) {
      return status;
    }
    version = cost.version;
    now = now + DurationNs{random.between(0, 60'000'000)};
  }
  // Law 5: what was fed above is forgotten once the engine behaves; 400 steps of a linear engine.
  const auto truth = [](const StepWork& work) {
    return 10'000'000 + 45'000 * work.prefill_tokens + 50'000 * work.decode_rows +
           28 * work.kv_tokens;
  };
  for (int step = 0; step < 400; ++step) {
    StepFeedback fb;
    fb.work.prefill_tokens = random.one_in(3) ? random.between(1, 4096) : 0;
    fb.work.decode_rows = random.between(1, 256);
    fb.work.kv_tokens = fb.work.decode_rows * random.between(100, 2000);
    fb.work.attention_pairs =
        chunk_attention_pairs(random.between(0, 8192), fb.work.prefill_tokens);
    fb.measured = {truth(fb.work)};
    now = now + fb.measured;
    fb.now = now;
    sizer.observe(fb);
  }
  if (const StepCost cost = sizer.cost(); cost.is_known()) {
    const StepWork work{1000, 100, 100'000, 0};
    const std::int64_t predicted = cost.predict(work).ns;
    if (predicted < truth(work) / 2 || predicted > truth(work) * 2) {
      return {Errc::InternalError, "law 5", predicted, truth(work),
              "after 400 clean steps the prediction is off by more than a factor of two"};
    }
  }
  return kOk;
}

/// Law 6: two fresh models of equal Config, fed alike, answer alike.
template <BatchSizer P>
[[nodiscard]] Status check_batch_sizer_determinism(P& first, P& second,
                                                   std::uint64_t seed) noexcept {
  SplitMix64 random(seed);
  TimeNs now{};
  FinishedOutput finished[4];
  for (int step = 0; step < 1000; ++step) {
    const SizerInput in = detail::random_sizer_input(random, now);
    if (first.limits(in) != second.limits(in) || first.cost() != second.cost()) {
      return {Errc::InternalError, "law 6", step, 0, "equal models fed alike differ at this step"};
    }
    const StepFeedback fb = detail::random_step_feedback(random, now, finished);
    first.observe(fb);
    second.observe(fb);
    now = now + DurationNs{random.between(0, 60'000'000)};
  }
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
