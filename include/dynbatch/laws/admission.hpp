// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The laws of Admission (docs/policies/admission.md) as a test that any model can be put through.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/concepts/admission.hpp>
#include <dynbatch/model/running.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

inline AdmissionRequest random_admission_request(SplitMix64& random) noexcept {
  AdmissionRequest request;
  request.id = {random.next()};
  request.tenant = random.next() % 8;
  request.arrival = {random.between(0, 1'000'000'000'000)};
  if (random.one_in(2)) {
    request.start_by = request.arrival + DurationNs{random.between(0, 10'000'000'000)};
    request.finish_by = request.start_by + DurationNs{random.between(0, 10'000'000'000)};
  }
  if (random.one_in(2)) {
    request.slo = {{random.between(1, 5'000'000'000)}, {random.between(1, 200'000'000)}};
  }
  request.prompt_length = random.between(1, 100'000);
  request.max_new_tokens = random.one_in(4) ? kOpenEnded : random.between(0, 8192);
  request.output_tokens = random.one_in(2) ? 0 : random.between(0, 8192);
  request.priority = static_cast<std::int32_t>(random.between(-10, 10));
  request.num_preemptions = static_cast<std::int32_t>(random.between(0, 3));
  request.request_class = static_cast<RequestClass>(random.between(0, 2));
  request.cached_tokens = random.between(0, request.prompt_length - 1);
  request.max_total_tokens = saturating_add(request.prompt_length, random.between(0, 8192));
  request.num_displacements = static_cast<std::int32_t>(random.between(0, request.num_preemptions));
  return request;
}

inline Status check_reservation(const Reservation& r, const NeedInput& in) noexcept {
  const std::int64_t least = min_of(in.known_tokens, saturating_add(in.cached_tokens, 1));
  if (r.required_tokens < least || r.required_tokens > in.max_total_tokens) {
    return {Errc::InternalError, "law 2", r.required_tokens, in.max_total_tokens,
            "required_tokens lies outside [first token to compute, max_total_tokens]"};
  }
  if (r.held_tokens < 0 || r.held_tokens > in.max_total_tokens) {
    return {Errc::InternalError, "law 2", r.held_tokens, in.max_total_tokens,
            "held_tokens lies outside [0, max_total_tokens]"};
  }
  if (r.headroom_blocks < 0 || r.headroom_blocks >= in.pool.total_blocks) {
    return {Errc::InternalError, "law 2", r.headroom_blocks, in.pool.total_blocks,
            "headroom_blocks lies outside [0, total_blocks)"};
  }
  return kOk;
}

inline Status check_composition(const Composition& c, const ComposeInput& in) noexcept {
  if (in.num_decoding == 0 && in.num_prefilling == 0 && !(c.admit && c.prefill)) {
    return {Errc::InternalError, "law 3", in.num_waiting, 0,
            "nothing runs and nothing may be admitted"};
  }
  if (in.num_prefilling > 0 && !c.prefill && !(in.num_decoding > 0 && c.decode)) {
    return {Errc::InternalError, "law 3", in.num_prefilling, 0, "nothing of what runs may go on"};
  }
  if (in.num_decoding > 0 && in.num_prefilling == 0 && !c.decode && !(c.admit && c.prefill)) {
    return {Errc::InternalError, "law 3", in.num_decoding, 0, "nothing of what runs may go on"};
  }
  return kOk;
}

inline Status check_chunk(std::int64_t tokens, const ChunkInput& in, bool splits) noexcept {
  const std::int64_t most = min_of(in.budget_tokens, in.remaining_tokens);
  if (tokens < 0 || tokens > most) {
    return {Errc::InternalError, "law 4", tokens, most,
            "a chunk lies outside [0, min(budget, remaining)]"};
  }
  if (tokens == 0 && most == in.remaining_tokens) {
    return {Errc::InternalError, "law 4", in.budget_tokens, in.remaining_tokens,
            "the budget holds all that remains, but nothing is planned"};
  }
  const bool is_whole = in.is_atomic || !splits;
  if (is_whole && tokens != 0 && tokens != in.remaining_tokens) {
    return {Errc::InternalError, "law 4", tokens, in.remaining_tokens,
            "a prompt that must not be split was split"};
  }
  if (!is_whole && tokens == 0 && most > 0) {
    return {Errc::InternalError, "law 4", in.budget_tokens, in.remaining_tokens,
            "a prompt that may be split gets nothing although there is budget"};
  }
  return kOk;
}

/// A request's life: laws 7 and 8.
template <Admission P>
[[nodiscard]] Status check_life(P& policy, AdmissionRequest request, SplitMix64& random) noexcept {
  using Options = OptionalAdmission<P>;
  if (!Options::can_ever_admit(policy, request)) {
    return kOk;
  }
  request.num_preemptions = 0;
  request.num_displacements = 0;
  request.output_tokens = 0;
  request.key = policy.key(request);
  const std::int32_t group = Options::quota_group(policy, request);
  if (group < 0 || group >= kMaxQuotaGroups) {
    return {Errc::InternalError, "law 7", group, kMaxQuotaGroups, "no such quota group"};
  }
  // Nobody runs: who can ever start may start now.
  if (!Options::may_admit(policy, request)) {
    return {Errc::InternalError, "law 7", group, 0, "nothing runs and the request may not start"};
  }
  const std::int64_t residences = random.between(0, 3);
  for (std::int64_t i = 0; i < residences; ++i) {
    Options::on_admit(policy, request);
    if (Options::displaces(policy, request, request)) {
      return {Errc::InternalError, "law 8", request.priority, 0,
              "a request would displace its equal"};
    }
    request.was_admitted = true;
    request.output_tokens = saturating_add(request.output_tokens, random.between(0, 100));
    Options::on_leave(policy, request);
    if (i + 1 < residences) {
      ++request.num_preemptions;
      request.key = policy.key(request);
      if (Options::quota_group(policy, request) != group) {
        return {Errc::InternalError, "law 7", group, 0, "a quota group changed"};
      }
    }
  }
  Options::on_end(policy, request);
  return kOk;
}

}  // namespace detail

/// Puts `policy` through random requests, pools, steps and candidates and checks laws 1 to 8.
template <Admission P>
[[nodiscard]] Status check_admission_laws(P& policy, std::uint64_t seed) noexcept {
  SplitMix64 random(seed);
  const P& view = policy;
  if (view.max_bypass() < 0) {
    return {Errc::InternalError, "law 6", view.max_bypass(), 0, "max_bypass is negative"};
  }
  constexpr std::int32_t kMostVictims = 32;
  VictimCandidate candidates[kMostVictims];
  std::uint64_t step = 0;
  for (int round = 0; round < 2000; ++round) {
    // Keys order a queue: total, and ties are left to the order of submission.
    AdmissionRequest request = detail::random_admission_request(random);
    if (const Status status = detail::check_life(policy, request, random); !status) {
      return status;
    }
    request.was_admitted = true;  // no life of its own: nothing is booked for it
    const AdmissionKey key = policy.key(request);
    if (key != key || (key < key)) {  // NOLINT(misc-redundant-expression): irreflexive order
      return {Errc::InternalError, "law 1", round, 0, "a key does not equal itself"};
    }

    NeedInput need;
    need.known_tokens = random.between(1, 100'000);
    need.max_total_tokens = need.known_tokens + random.between(0, 10'000);
    need.cached_tokens = random.one_in(2) ? 0 : random.between(0, need.known_tokens - 1);
    need.num_preemptions = random.one_in(2) ? 0 : static_cast<std::int32_t>(random.between(0, 100));
    need.num_running = static_cast<std::int32_t>(random.between(0, 256));
    need.pool.total_blocks = random.between(1, 1'000'000);
    need.pool.referenced_blocks = random.between(0, need.pool.total_blocks);
    need.pool.free_blocks = need.pool.total_blocks - need.pool.referenced_blocks;
    need.pool.block_size = static_cast<std::int32_t>(random.between(1, 128));
    if (const Status status = detail::check_reservation(view.need(need), need); !status) {
      return status;
    }

    ComposeInput compose;
    compose.num_decoding = random.one_in(3) ? 0 : static_cast<std::int32_t>(random.between(0, 256));
    compose.num_prefilling =
        random.one_in(3) ? 0 : static_cast<std::int32_t>(random.between(0, 256));
    compose.num_waiting = random.between(1, 10'000);
    compose.now = {std::int64_t{round} * 10'000'000};
    compose.first_arrival = {compose.now.ns - random.between(0, 1'000'000'000)};
    compose.block_size = static_cast<std::int32_t>(random.between(0, 128));
    step += static_cast<std::uint64_t>(random.between(0, 2));
    compose.step = step;
    compose.running = RunningList(
        &compose, [](const void* context, void* state, RunningList::Take take) noexcept {
          const auto& in = *static_cast<const ComposeInput*>(context);
          SplitMix64 lengths(in.step);
          for (std::int32_t i = 0; i < in.num_decoding + in.num_prefilling; ++i) {
            RunningSequence sequence;
            sequence.max_output_tokens = lengths.between(1, 8192);
            sequence.output_tokens = lengths.between(0, sequence.max_output_tokens);
            sequence.known_tokens = lengths.between(1, 100'000) + sequence.output_tokens;
            sequence.held_tokens = sequence.known_tokens;
            take(state, sequence);
          }
        });
    OptionalAdmission<P>::on_step(policy, compose);
    if (const Status status = detail::check_composition(view.compose(compose), compose); !status) {
      return status;
    }

    ChunkInput chunk;
    chunk.remaining_tokens = random.between(1, random.one_in(2) ? 64 : 100'000);
    chunk.budget_tokens = random.between(0, random.one_in(2) ? 64 : 100'000);
    chunk.block_size = static_cast<std::int32_t>(random.between(1, 128));
    chunk.is_first_chunk = random.one_in(2);
    chunk.is_atomic = random.one_in(4);
    const Status status = detail::check_chunk(view.chunk(chunk), chunk, view.splits_prompts());
    if (!status) {
      return status;
    }

    const auto count = static_cast<std::int32_t>(random.between(1, kMostVictims));
    for (std::int32_t i = 0; i < count; ++i) {
      VictimCandidate& candidate = candidates[i];
      candidate.request = detail::random_admission_request(random);
      candidate.row = {i};
      candidate.computed_tokens = random.between(0, 100'000);
      candidate.num_blocks = random.between(0, 10'000);
    }
    const VictimList victims(
        candidates,
        [](const void* context, std::int32_t index) noexcept {
          return static_cast<const VictimCandidate*>(context)[index];
        },
        count);
    const std::int32_t victim = view.victim(victims);
    if (victim < 0 || victim >= count) {
      return {Errc::InternalError, "law 5", victim, count, "victim() names no candidate"};
    }
    if (view.victim(victims) != victim) {
      return {Errc::InternalError, "law 5", victim, count, "victim() changed its mind"};
    }
  }
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
