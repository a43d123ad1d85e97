// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// RequestDesk: what submit() refuses, and why; the media items that it keeps.
#include <dynbatch/scheduler/detail/request_desk.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline Status RequestDesk::admissible(const Request& r, Kind kind,
                                      std::int64_t& prompt_length) const noexcept {
  const bool is_tokens = r.prompt.kind == PromptKind::Tokens;
  prompt_length = is_tokens ? static_cast<std::int64_t>(r.prompt.tokens.size()) : r.prompt.length;
  if (is_tokens && r.prompt.length != 0 && r.prompt.length != prompt_length) {
    return {Errc::InvalidArgument, "prompt.length", r.prompt.length, prompt_length,
            "differs from prompt.tokens"};
  }
  if (prompt_length == 0) {
    return {Errc::EmptyPrompt, "prompt.length", 0, 0, "a prompt needs at least one token"};
  }
  if (prompt_length < 0) {
    return {Errc::InvalidArgument, "prompt.length", prompt_length, 0, "must not be negative"};
  }
  if (!is_tokens && (r.prompt.digest_unit <= 0 || r.prompt.digest_unit % limits_.block_size != 0)) {
    return {Errc::InvalidArgument, "prompt.digest_unit", r.prompt.digest_unit, limits_.block_size,
            "must be a positive multiple of the block size"};
  }
  if (r.max_new_tokens < 0 && r.max_new_tokens != kOpenEnded) {
    return {Errc::InvalidArgument, "max_new_tokens", r.max_new_tokens, 0,
            "must be >= 0 or kOpenEnded"};
  }
  if (r.min_new_tokens < 0 || (r.max_new_tokens >= 0 && r.min_new_tokens > r.max_new_tokens)) {
    return {Errc::InvalidArgument, "min_new_tokens", r.min_new_tokens, r.max_new_tokens,
            "must be from 0 to max_new_tokens"};
  }
  if (r.num_samples < 1 || r.num_samples > kMaxSamples) {
    return {Errc::InvalidArgument, "num_samples", r.num_samples, kMaxSamples,
            "must be from 1 to 64"};
  }
  if (r.num_samples > limits_.max_samples) {
    return {Errc::CanNeverFit, "num_samples", r.num_samples, limits_.max_samples,
            "more sequences than can run together"};
  }
  if (r.num_samples > 1 && r.max_new_tokens == 0) {
    return {Errc::InvalidArgument, "num_samples", r.num_samples, 1,
            "nothing to sample with max_new_tokens = 0"};
  }
  if (r.beam_search && r.num_samples > 1) {
    if (const Status s = admissible_beams(r, prompt_length); !s) {
      return s;
    }
  }
  if (r.stop_tokens.size() > kMaxStopTokens) {
    return {Errc::InvalidArgument, "stop_tokens", static_cast<std::int64_t>(r.stop_tokens.size()),
            static_cast<std::int64_t>(kMaxStopTokens), "too many stop tokens"};
  }
  if (r.resources.size() > kMaxResources) {
    return {Errc::InvalidArgument, "resources", static_cast<std::int64_t>(r.resources.size()),
            static_cast<std::int64_t>(kMaxResources), "too many resource needs"};
  }
  for (const ResourceNeed& need : r.resources) {
    if (need.resource >= kMaxResources || need.amount < 0) {
      return {Errc::InvalidArgument, "resources", static_cast<std::int64_t>(need.resource),
              static_cast<std::int64_t>(kMaxResources) - 1, "unknown resource or negative amount"};
    }
    std::int64_t amount = 0;  // a resource may be named more than once
    for (const ResourceNeed& other : r.resources) {
      amount = other.resource == need.resource
                   ? saturating_add(amount, max_of<std::int64_t>(other.amount, 0))
                   : amount;
    }
    if (amount > limits_.resource_caps[need.resource]) {
      return {Errc::CanNeverFit, "resources", amount, limits_.resource_caps[need.resource],
              "needs more of a resource than there is"};
    }
  }
  if (const Status s = admissible_media(r.media, prompt_length); !s) {
    return s;
  }
  // The last output needs no KV of its own.
  const std::int64_t positions = saturating_add(
      prompt_length,
      max_of<std::int64_t>(r.max_new_tokens == kOpenEnded ? 0 : r.max_new_tokens - 1, 0));
  if (positions > limits_.kv_limit) {
    return {Errc::CanNeverFit, "prompt.length + max_new_tokens - 1", positions, limits_.kv_limit,
            "needs more KV positions than the pool or max_context_tokens has"};
  }
  if ((r.atomic_prefill || limits_.all_atomic) && prompt_length > limits_.atomic_limit) {
    return {Errc::CanNeverFit, "prompt.length", prompt_length, limits_.atomic_limit,
            "the prompt has to run in one step and no step is that large"};
  }
  const TimeNs now{max_of(now_.load(std::memory_order_relaxed), r.arrival.ns)};
  if (kind == Kind::New && (r.start_by < now || r.finish_by < now)) {
    const bool is_start = r.start_by < now;
    return {Errc::Expired, is_start ? "start_by" : "finish_by",
            is_start ? r.start_by.ns : r.finish_by.ns, now.ns, "had passed at submission"};
  }
  for (const Token token : r.prompt.tokens) {
    if (token < 0) {
      return {Errc::InvalidArgument, "prompt.tokens", token, 0, "token ids must not be negative"};
    }
  }
  return kOk;
}

/// Items lie in the prompt, by position, and none overlaps another.
inline Status RequestDesk::admissible_media(std::span<const MediaSpan> media,
                                            std::int64_t length) noexcept {
  std::int64_t end = 0;
  for (const MediaSpan& span : media) {
    if (span.first_position < 0 || span.length < 1 || span.length > length - span.first_position) {
      return {Errc::InvalidArgument, "media", span.first_position, length,
              "a span lies outside the prompt"};
    }
    if (span.first_position < end) {
      return {Errc::InvalidArgument, "media", span.first_position, end,
              "spans must come by position and not overlap"};
    }
    end = span.first_position + span.length;
  }
  return kOk;
}

/// Keeps the items. Placeholder tokens don't tell one from another: from an item that isn't kept,
/// or a block with more of them than the pool compares, nothing is shared.
inline void RequestDesk::fill_media(RequestRecord& record, std::uint32_t slot,
                                    std::span<const MediaSpan> media) noexcept {
  const std::size_t kept = min_of(media.size(), max_media_);
  for (std::size_t i = 0; i < kept; ++i) {
    media_[slot * max_media_ + i] = media[i];
  }
  record.num_media = static_cast<std::int32_t>(kept);
  if (kept < media.size()) {
    record.cacheable = min_of(record.cacheable, media[kept].first_position);
  }
  MediaCursor cursor(media.first(kept), limits_.block_size, 0);
  while (cursor.next() != MediaCursor::kNoBlock) {
    const BlockMedia block = cursor.take();
    if (block.count > max_block_media(limits_.block_size)) {
      record.cacheable = min_of(record.cacheable, block.position);
      break;
    }
  }
}

/// Beams run together and never give way: a step and the pool must hold all of them to the end.
inline Status RequestDesk::admissible_beams(const Request& r,
                                            std::int64_t prompt_length) const noexcept {
  if (r.max_new_tokens == kOpenEnded) {
    return {Errc::InvalidArgument, "max_new_tokens", r.max_new_tokens, 0,
            "a beam search needs a bound"};
  }
  if (r.num_samples > limits_.max_beams) {
    return {Errc::CanNeverFit, "num_samples", r.num_samples, limits_.max_beams,
            "more beams than one step can decode"};
  }
  const std::int64_t positions = saturating_add(prompt_length, r.max_new_tokens - 1);
  const std::int64_t each = ceil_div(positions, limits_.block_size);
  const std::int64_t all = each + (r.num_samples - 1) * (each - prompt_length / limits_.block_size);
  if (limits_.total_blocks > 0 && positions <= limits_.kv_limit && all > limits_.total_blocks) {
    return {Errc::CanNeverFit, "num_samples", all, limits_.total_blocks,
            "the beams need more KV blocks than the pool has"};
  }
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
