// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// FcfsAdmission: first come, first served, with the published choices of composition and
/// reservation.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Requests start in the order of submission; the last admitted gives way first. Stateless, O(1).
class FcfsAdmission {
 public:
  /// What a step is made of.
  enum class Compose : std::uint8_t {
    DecodeFirst,   ///< Decodes, then started prompts, then new ones, in one step (vLLM V1).
    PrefillFirst,  ///< A step with prompts holds nothing else; decodes wait for it (vLLM V0, Orca).
    Exclusive,     ///< Like PrefillFirst, and nothing is admitted while a sequence decodes.
    BatchUntilEmpty,  ///< A batch starts when nothing runs and ends as a whole, padded.
  };
  /// Blocks that must be there before a request is admitted.
  enum class Reserve : std::uint8_t {
    WholePrompt,  ///< For all tokens known now, held until they are computed.
    FirstChunk,   ///< For the first token to compute; the rest is taken step by step.
    NoEvict,      ///< For all that it may ever hold: never preempted for memory.
    Fixed,        ///< For `reserve_tokens` in total, prompt included (Orca).
  };

  struct Config {
    Compose compose = Compose::DecodeFirst;
    Reserve reserve = Reserve::WholePrompt;
    std::int64_t reserve_tokens = 8192;   ///< Tokens; Reserve::Fixed only; >= 1.
    std::int32_t watermark_permille = 0;  ///< Share of the pool left free by an admission, in
                                          ///< 1/1000, 0 to 999; ignored while nothing runs.
    bool split_prompts = true;            ///< A prompt may run in several steps.
    std::int64_t max_chunk_tokens = 0;    ///< Most tokens of one prompt a step; 0 = no limit.
    std::int32_t chunk_unit =
        1;  ///< A cut chunk is rounded down to a multiple; 0 = the block size.
    std::int32_t max_bypass = 8;  ///< How often a head that does not fit may be passed; >= 0.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (compose > Compose::BatchUntilEmpty) {
        return {Errc::InvalidConfig, "compose", static_cast<std::int64_t>(compose),
                static_cast<std::int64_t>(Compose::BatchUntilEmpty), "no such composition"};
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
      return kOk;
    }
  };

  FcfsAdmission() : FcfsAdmission(Config{}) {}
  explicit FcfsAdmission(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  /// Equal for all: the queue then orders by submission.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& /*request*/) noexcept { return {}; }

  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept {
    const std::int64_t known = max_of<std::int64_t>(in.known_tokens, 0);
    const std::int64_t most = max_of(in.max_total_tokens, known);
    Reservation out;
    switch (config_.reserve) {
      case Reserve::WholePrompt:
        out.required_tokens = known;
        out.held_tokens = known;
        break;
      case Reserve::FirstChunk:
        out.required_tokens = min_of(known, max_of<std::int64_t>(in.cached_tokens, 0) + 1);
        break;
      case Reserve::NoEvict:
        out.required_tokens = most;
        out.held_tokens = most;
        break;
      case Reserve::Fixed:
        // Never more than it can use: a pool that holds the request must be able to admit it.
        out.required_tokens = min_of(most, max_of(known, config_.reserve_tokens));
        out.held_tokens = out.required_tokens;
        break;
    }
    const std::int64_t blocks = max_of<std::int64_t>(in.pool.total_blocks, 0);
    out.headroom_blocks = saturating_mul(blocks, config_.watermark_permille) / 1000;
    return out;
  }

  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    Composition out;
    switch (config_.compose) {
      case Compose::DecodeFirst:
        break;
      case Compose::Exclusive:
        out.admit = in.num_decoding == 0;
        [[fallthrough]];
      case Compose::PrefillFirst:
        out.prefill_before_decode = true;
        out.stop_decode_if_prefill = true;
        break;
      case Compose::BatchUntilEmpty:
        out.admit = in.num_decoding == 0 && in.num_prefilling == 0;
        out.prefill_before_decode = true;
        out.stop_decode_if_prefill = true;
        out.pad_to_batch = true;
        break;
    }
    return out;
  }

  [[nodiscard]] std::int64_t chunk(const ChunkInput& in) const noexcept {
    const std::int64_t remaining = max_of<std::int64_t>(in.remaining_tokens, 0);
    const std::int64_t budget = max_of<std::int64_t>(in.budget_tokens, 0);
    if (in.is_atomic || !config_.split_prompts) {
      return remaining <= budget ? remaining : 0;
    }
    std::int64_t tokens = min_of(remaining, budget);
    if (config_.max_chunk_tokens > 0) {
      tokens = min_of(tokens, config_.max_chunk_tokens);
    }
    const std::int64_t unit =
        config_.chunk_unit > 0 ? config_.chunk_unit : max_of(in.block_size, 1);
    // A budget below one unit is used as it is: waiting for a larger one might never end.
    if (tokens < remaining && tokens > unit) {
      tokens -= tokens % unit;
    }
    return tokens;
  }

  /// The last admitted.
  [[nodiscard]] std::int32_t victim(const VictimList& /*candidates*/) const noexcept { return 0; }
  [[nodiscard]] std::int32_t max_bypass() const noexcept { return config_.max_bypass; }
  [[nodiscard]] bool splits_prompts() const noexcept { return config_.split_prompts; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
};

static_assert(Admission<FcfsAdmission>);

}  // namespace dynbatch::inline DYNBATCH_ABI
