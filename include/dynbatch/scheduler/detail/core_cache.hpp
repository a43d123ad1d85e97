// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: cached prefixes at the host's word: pinned, or all forgotten.
#include <dynbatch/scheduler/detail/core.hpp>

#include <limits>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class P>
Status SchedulerCore<P>::pin(const Prompt& prompt, const CacheScope& scope, std::int64_t tokens,
                             TimeNs until, std::span<const MediaSpan> media) noexcept {
  const bool is_tokens = prompt.kind == PromptKind::Tokens;
  const std::int64_t unit = is_tokens ? 1 : prompt.digest_unit;
  const std::int64_t given = is_tokens
                                 ? static_cast<std::int64_t>(prompt.tokens.size())
                                 : saturating_mul(static_cast<std::int64_t>(prompt.digests.size()),
                                                  max_of<std::int64_t>(unit, 0));
  if (!is_tokens && (unit < 1 || unit % max_of(block_size_, 1) != 0)) {
    return {Errc::InvalidArgument, "prompt.digest_unit", unit, block_size_,
            "must be a positive multiple of the block size"};
  }
  if (tokens < 1 || tokens > given || tokens > kv_limit_) {
    return {Errc::InvalidArgument, "tokens", tokens, min_of(given, kv_limit_),
            "must lie in the prompt"};
  }
  // Items may end, or lie, behind what is given of the prompt.
  constexpr std::int64_t kAnywhere = std::numeric_limits<std::int64_t>::max();
  if (const Status s = RequestDesk::admissible_media(media, kAnywhere); !s) {
    return s;
  }
  // The caller's array is one page, long enough to hold all of it.
  constexpr std::int64_t kTokensPerDigest = sizeof(ContentDigest) / sizeof(Token);
  const std::uint32_t page = 0;
  SequenceContentView view;
  view.scope = &scope;
  view.storage =
      is_tokens ? prompt.tokens.data() : reinterpret_cast<const Token*>(prompt.digests.data());
  view.pages = &page;
  const std::int64_t words = is_tokens ? given : ceil_div(given, unit) * kTokensPerDigest;
  view.page_tokens = static_cast<std::int32_t>(min_of<std::int64_t>(
      ceil_div(words, std::int64_t{4} * max_of(block_size_, 1)) * 4 * max_of(block_size_, 1),
      std::int64_t{1} << 30));
  view.prompt_length = view.known_length = view.cacheable_length = given;
  view.digest_unit = is_tokens ? 0 : prompt.digest_unit;
  view.media = media;
  // Blocks that are kept for running sequences are not for pins.
  PrefixMatch match = policies_.pool.match(view, tokens);
  match.drop_copy();
  const std::int64_t idle = match.idle_blocks;
  const Status status = idle <= max_of<std::int64_t>(spare_blocks(), 0)
                            ? policies_.pool.pin(view, tokens, until)
                            : Status{Errc::QueueFull, "blocks", idle, spare_blocks(),
                                     "the free blocks are kept for running sequences"};
  if (flight_.is_on()) {
    record_pin(prompt, scope, tokens, until, media, status.is_ok());
  }
  return status;
}

/// Everything a pin depends on; without content only that there was one.
template <class P>
void SchedulerCore<P>::record_pin(const Prompt& prompt, const CacheScope& scope,
                                  std::int64_t tokens, TimeNs until,
                                  std::span<const MediaSpan> media, bool is_pinned) noexcept {
  const bool is_tokens = prompt.kind == PromptKind::Tokens;
  FlightPin f;
  f.until = until.ns;
  f.tokens = tokens;
  put_scope(f, scope);
  f.digest_unit = is_tokens ? 0 : prompt.digest_unit;
  f.is_pinned = is_pinned ? 1 : 0;
  if (config_.flight_log_prompts) {
    f.num_content = is_tokens ? tokens : ceil_div(tokens, std::int64_t{prompt.digest_unit});
    f.num_media = media.size();
  }
  const auto n = static_cast<std::size_t>(f.num_content);
  const std::size_t bytes =
      n * (is_tokens ? sizeof(Token) : sizeof(ContentDigest)) + f.num_media * sizeof(FlightMedia);
  if (!flight_.begin(FlightKind::Pin, sizeof(f) + bytes)) {
    return;
  }
  flight_.add(f);
  record_media(media.first(f.num_media));
  if (is_tokens) {
    flight_.add(prompt.tokens.first(n));
  } else {
    flight_.add(prompt.digests.first(n));
  }
  flight_.end();
}

template <class P>
bool SchedulerCore<P>::clear_cache() noexcept {
  const bool is_cleared = policies_.pool.clear();
  if (flight_.is_on()) {
    flight_.put(FlightKind::ClearCache, FlightClear{is_cleared ? std::uint64_t{1} : 0});
  }
  return is_cleared;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
