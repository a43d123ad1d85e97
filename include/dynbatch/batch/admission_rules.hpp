// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What all shipped Admissions have in common: composition of steps, reservation of blocks, chunks.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// The choices that do not depend on the order of requests, and the rules that follow from them.
/// A plain value: a model's Config holds one, or is one.
struct AdmissionRules {
  /// What a step is made of.
  enum class Compose : std::uint8_t {
    DecodeFirst,   ///< Decodes, then started prompts, then new ones, in one step (vLLM V1).
    PrefillFirst,  ///< A step with prompts holds nothing else; decodes wait for it (vLLM V0, Orca).
    Exclusive,     ///< Like PrefillFirst, and nothing is admitted while a sequence decodes.
    BatchUntilEmpty,  ///< A batch starts when nothing runs and ends as a whole, padded.
    WhenIdle,         ///< Requests start only when nothing runs, then like DecodeFirst, unpadded.
  };
  /// Blocks that must be there before a request is admitted.
  enum class Reserve : std::uint8_t {
    WholePrompt,  ///< For all tokens known now, held until they are computed.
    FirstChunk,   ///< For the first token to compute; the rest is taken step by step.
    NoEvict,      ///< For all that it may ever hold: never preempted for memory.
    Fixed,        ///< For `reserve_tokens` in total, prompt included (Orca).
  };

  Compose compose = Compose::DecodeFirst;
  Reserve reserve = Reserve::WholePrompt;
  std::int64_t reserve_tokens = 8192;   ///< Tokens; Reserve::Fixed only; >= 1.
  std::int32_t watermark_permille = 0;  ///< Share of the pool left free by an admission, in
                                        ///< 1/1000, 0 to 999; ignored while nothing runs.
  bool split_prompts = true;            ///< A prompt may run in several steps.
  std::int64_t max_chunk_tokens = 0;    ///< Most tokens of one prompt a step; 0 = no limit.
  std::int32_t chunk_unit = 1;  ///< A cut chunk is rounded down to a multiple; 0 = the block size.
  std::int32_t max_bypass = 8;  ///< How often a head that does not fit may be passed; >= 0.
  /// Requests whose first token can't be in time any more stand behind all others, but come first
  /// after so many steps that left nothing for them; >= 0, 0 = they keep their place.
  std::int32_t late_patience = 0;
  /// A request counts as having come so much later for each class below Interactive: it starts
  /// before better ones that arrive more than that after it. >= 0, 0 = classes are equal.
  /// FcfsAdmission only; the other orders have ranks of their own.
  DurationNs class_delay{};
  /// Blocks that must be left over when a preempted request comes back; doubled for each further
  /// preemption of it, ignored while nothing runs. So it comes back at most 1 + log2(pool / this)
  /// times before it has the pool to itself. 0 = none.
  std::int32_t requeue_blocks = 1;
  /// A request that was preempted so often is spared while another can give way; >= 1. Orders with
  /// a rank only (FcfsAdmission takes the last admitted).
  std::int32_t max_preemptions = 8;

  [[nodiscard]] constexpr Status validate() const noexcept {
    if (compose > Compose::WhenIdle) {
      return {Errc::InvalidConfig, "compose", static_cast<std::int64_t>(compose),
              static_cast<std::int64_t>(Compose::WhenIdle), "no such composition"};
    }
    if (reserve > Reserve::Fixed) {
      return {Errc::InvalidConfig, "reserve", static_cast<std::int64_t>(reserve),
              static_cast<std::int64_t>(Reserve::Fixed), "no such reservation"};
    }
    if (reserve_tokens < 1) {
      return {Errc::InvalidConfig, "reserve_tokens", reserve_tokens, 1, "must be at least 1"};
    }
    if (watermark_permille < 0 || watermark_permille > 999) {
      return {Errc::InvalidConfig, "watermark_permille", watermark_permille, 999,
              "must lie between 0 and 999"};
    }
    if (max_chunk_tokens < 0) {
      return {Errc::InvalidConfig, "max_chunk_tokens", max_chunk_tokens, 0,
              "must not be negative; 0 means no limit"};
    }
    if (max_chunk_tokens > 0 && !split_prompts) {
      return {Errc::InvalidConfig, "max_chunk_tokens", max_chunk_tokens, 0,
              "has no meaning where prompts are not split"};
    }
    if (chunk_unit < 0) {
      return {Errc::InvalidConfig, "chunk_unit", chunk_unit, 0,
              "must not be negative; 0 means the block size"};
    }
    if (max_bypass < 0) {
      return {Errc::InvalidConfig, "max_bypass", max_bypass, 0, "must not be negative"};
    }
    if (class_delay.ns < 0) {
      return {Errc::InvalidConfig, "class_delay", class_delay.ns, 0, "must not be negative"};
    }
    if (late_patience < 0) {
      return {Errc::InvalidConfig, "late_patience", late_patience, 0, "must not be negative"};
    }
    if (requeue_blocks < 0) {
      return {Errc::InvalidConfig, "requeue_blocks", requeue_blocks, 0, "must not be negative"};
    }
    if (max_preemptions < 1) {
      return {Errc::InvalidConfig, "max_preemptions", max_preemptions, 1, "must be at least 1"};
    }
    return kOk;
  }
};

/// need(), compose() and chunk() of every shipped Admission: a base that holds the rules, so that a
/// model adds nothing but an order and a victim. Stateless beyond the rules, O(1).
class RuledAdmission {
 public:
  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept {
    const std::int64_t known = max_of<std::int64_t>(in.known_tokens, 0);
    const std::int64_t most = max_of(in.max_total_tokens, known);
    Reservation out;
    switch (rules_.reserve) {
      case AdmissionRules::Reserve::WholePrompt:
        out.required_tokens = known;
        out.held_tokens = known;
        break;
      case AdmissionRules::Reserve::FirstChunk:
        out.required_tokens = min_of(known, max_of<std::int64_t>(in.cached_tokens, 0) + 1);
        break;
      case AdmissionRules::Reserve::NoEvict:
        out.required_tokens = most;
        out.held_tokens = most;
        break;
      case AdmissionRules::Reserve::Fixed:
        // Never more than it can use: a pool that holds the request must be able to admit it.
        out.required_tokens = min_of(most, max_of(known, rules_.reserve_tokens));
        out.held_tokens = out.required_tokens;
        break;
    }
    const std::int64_t blocks = max_of<std::int64_t>(in.pool.total_blocks, 0);
    const std::int64_t watermark = saturating_mul(blocks, rules_.watermark_permille) / 1000;
    std::int64_t credit = 0;
    if (in.num_preemptions > 0 && rules_.requeue_blocks > 0) {
      credit = saturating_mul(rules_.requeue_blocks,
                              std::int64_t{1} << min_of(in.num_preemptions - 1, 40));
    }
    out.headroom_blocks = min_of(max_of(watermark, credit), max_of<std::int64_t>(blocks - 1, 0));
    return out;
  }

  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    Composition out;
    switch (rules_.compose) {
      case AdmissionRules::Compose::DecodeFirst:
        break;
      case AdmissionRules::Compose::Exclusive:
        out.admit = in.num_decoding == 0;
        [[fallthrough]];
      case AdmissionRules::Compose::PrefillFirst:
        out.prefill_before_decode = true;
        out.stop_decode_if_prefill = true;
        break;
      case AdmissionRules::Compose::BatchUntilEmpty:
        out.admit = in.num_decoding == 0 && in.num_prefilling == 0;
        out.prefill_before_decode = true;
        out.stop_decode_if_prefill = true;
        out.pad_to_batch = true;
        break;
      case AdmissionRules::Compose::WhenIdle:
        out.admit = in.num_decoding == 0 && in.num_prefilling == 0;
        break;
    }
    return out;
  }

  [[nodiscard]] std::int64_t chunk(const ChunkInput& in) const noexcept {
    const std::int64_t remaining = max_of<std::int64_t>(in.remaining_tokens, 0);
    const std::int64_t budget = max_of<std::int64_t>(in.budget_tokens, 0);
    if (in.is_atomic || !rules_.split_prompts) {
      return remaining <= budget ? remaining : 0;
    }
    std::int64_t tokens = min_of(remaining, budget);
    if (rules_.max_chunk_tokens > 0) {
      tokens = min_of(tokens, rules_.max_chunk_tokens);
    }
    const std::int64_t unit = rules_.chunk_unit > 0 ? rules_.chunk_unit : max_of(in.block_size, 1);
    // A budget below one unit is used as it is: waiting for a larger one might never end.
    if (tokens < remaining && tokens > unit) {
      tokens -= tokens % unit;
    }
    return tokens;
  }

  [[nodiscard]] std::int32_t late_patience() const noexcept { return rules_.late_patience; }
  [[nodiscard]] std::int32_t max_bypass() const noexcept { return rules_.max_bypass; }
  [[nodiscard]] bool splits_prompts() const noexcept { return rules_.split_prompts; }
  [[nodiscard]] const AdmissionRules& rules() const noexcept { return rules_; }

 protected:
  explicit RuledAdmission(const AdmissionRules& rules) noexcept : rules_(rules) {}

  /// Index of the candidate whose `rank(request)` is largest, the last admitted among equals. Who
  /// was preempted `max_preemptions` times is spared while others are there; if nobody else is, the
  /// last admitted gives way. O(candidates).
  template <class Rank>
  [[nodiscard]] std::int32_t worst_of(const VictimList& candidates, Rank rank) const noexcept {
    std::int32_t worst = -1;
    AdmissionKey worst_rank{};
    for (std::int32_t i = 0; i < candidates.size(); ++i) {
      const VictimCandidate candidate = candidates[i];
      if (candidate.request.num_preemptions >= rules_.max_preemptions) {
        continue;
      }
      const AdmissionKey key = rank(candidate.request);
      if (worst < 0 || worst_rank < key) {
        worst = i;
        worst_rank = key;
      }
    }
    return max_of(worst, 0);
  }

 private:
  AdmissionRules rules_;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
