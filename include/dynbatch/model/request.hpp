// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a host asks for: a Request, its prompt, its limits, its service level and its cache scope.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>

#include <compare>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// A collision-resistant digest of a whole prefix up to the end of one unit of tokens, or of a
/// media item. By handing one over the host declares: equal digests mean equal content.
struct ContentDigest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr auto operator<=>(const ContentDigest&, const ContentDigest&) noexcept = default;
};

/// How a prompt's content is given.
enum class PromptKind : std::uint8_t {
  Tokens,   ///< `tokens` holds the ids.
  Digests,  ///< `digests` holds one prefix-chained digest for each whole unit of `digest_unit`
            ///< tokens (hash chains of traces; content keys of prompts given as embeddings).
};

/// The prompt. The library copies it inside submit(); the spans need not outlive the call.
struct Prompt {
  PromptKind kind = PromptKind::Tokens;
  std::span<const Token> tokens{};           ///< Each >= 0.
  std::span<const ContentDigest> digests{};  ///< At most length / digest_unit entries are read.
  std::int64_t length = 0;       ///< Tokens; for PromptKind::Tokens it equals tokens.size().
  std::int32_t digest_unit = 0;  ///< Tokens a digest covers; a positive multiple of the block size.
};

/// KV is shared only inside one scope: all fields equal, and absent differs from zero.
struct CacheScope {
  std::uint64_t model_epoch = 0;      ///< Changes whenever weights do.
  std::uint64_t tenant_salt = 0;      ///< Read only if has_tenant_salt.
  std::uint64_t adapter_id = 0;       ///< Read only if has_adapter.
  std::uint64_t adapter_version = 0;  ///< Read only if has_adapter.
  bool has_tenant_salt = false;
  bool has_adapter = false;

  friend constexpr bool operator==(const CacheScope& a, const CacheScope& b) noexcept {
    return a.model_epoch == b.model_epoch && a.has_tenant_salt == b.has_tenant_salt &&
           a.has_adapter == b.has_adapter &&
           (!a.has_tenant_salt || a.tenant_salt == b.tenant_salt) &&
           (!a.has_adapter ||
            (a.adapter_id == b.adapter_id && a.adapter_version == b.adapter_version));
  }
};

/// An image, audio clip or other item whose content stands behind placeholder tokens. KV that it
/// covers is shared only with equal content at an equal place in an equally long item.
struct MediaSpan {
  std::int64_t first_position = 0;
  std::int64_t length = 0;  ///< Tokens it covers.
  ContentDigest content{};
};

/// Service level; kUnbounded = none.
struct Slo {
  DurationNs ttft = kUnbounded;  ///< Arrival to first token.
  DurationNs tpot = kUnbounded;  ///< Mean time per output token after the first.
};

/// What kind of traffic a request is; sizers and admission may treat classes apart.
enum class RequestClass : std::uint8_t { Interactive, Batch, Background };

/// A generic need of a request against a cap that the host names in the scheduler's Config.
struct ResourceNeed {
  std::uint32_t resource = 0;  ///< Index into Config::resource_caps.
  std::int64_t amount = 0;     ///< Held while the request runs; >= 0.
};

/// Tokens a request may produce without a limit of its own: it ends with FinishReason::Capacity.
inline constexpr std::int64_t kOpenEnded = -1;

/// One generation request. Plain data; submit() copies everything it points to.
struct Request {
  RequestId id{};
  Prompt prompt{};
  std::int64_t max_new_tokens =
      kOpenEnded;                   ///< >= 0, or kOpenEnded. 0 = prefill only, no output token.
  std::int64_t min_new_tokens = 0;  ///< Stop tokens are ignored before this many.
  std::int32_t num_samples = 1;
  std::span<const Token>
      stop_tokens{};          ///< The stop token itself is delivered. At most kMaxStopTokens.
  std::int32_t priority = 0;  ///< Smaller is better.
  std::uint64_t tenant = 0;
  RequestClass request_class = RequestClass::Interactive;
  TimeNs arrival{};           ///< On the host's clock.
  TimeNs start_by = kNever;   ///< Expires if no chunk of it was planned by then.
  TimeNs finish_by = kNever;  ///< Expires if it has not finished by then.
  Slo slo{};
  CacheScope scope{};
  std::span<const MediaSpan> media{};  ///< By position, none overlapping another.
  std::span<const ResourceNeed> resources{};
  std::uint64_t user_data = 0;  ///< Returned in chunks and events.
  bool no_prefix_read =
      false;  ///< Never reads the prefix cache (prompt log-probabilities); still fills it.
  bool sync_decode = false;     ///< The host must see each token before the next is planned.
  bool atomic_prefill = false;  ///< The prompt runs in one chunk or not at all.
  /// The samples are the beams of one search: they decode in the same plans, the host says after
  /// each step how they go on (StepResult::continuations), and all their tokens are delivered at
  /// the end. Needs a bounded max_new_tokens; KV for the full length is kept from the start.
  bool beam_search = false;
};

/// Most stop tokens a request may carry.
inline constexpr std::size_t kMaxStopTokens = 8;

}  // namespace dynbatch::inline DYNBATCH_ABI
