// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A sequence's content as the pool sees it: scope, tokens or digests, in fixed-size pages.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/request.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// View of one sequence's content. A page holds page_tokens tokens; page_tokens is a multiple of every
/// group's block size, so a block never straddles two pages. A digest prompt stores its digests in the
/// first pages and its output tokens behind them.
struct SequenceContentView {
  const CacheScope* scope = nullptr;
  const Token* storage = nullptr;         ///< Base of the page store.
  const std::uint32_t* pages = nullptr;   ///< Page table of the sequence.
  const ContentDigest* digests = nullptr; ///< Digest prompts: one for each whole block of the prompt.
  std::int32_t page_tokens = 0;
  std::int64_t prompt_length = 0;
  std::int64_t known_length = 0;      ///< Positions whose token is known.
  std::int64_t cacheable_length = 0;  ///< Only blocks that end at or before it may be shared.

  [[nodiscard]] bool has_digests() const noexcept { return digests != nullptr; }
  /// Tokens from `position` to the end of its page. Token prompts only.
  [[nodiscard]] const Token* tokens_at(std::int64_t position) const noexcept {
    const auto page = static_cast<std::size_t>(position / page_tokens);
    return storage + static_cast<std::size_t>(pages[page]) * static_cast<std::size_t>(page_tokens) +
           static_cast<std::size_t>(position % page_tokens);
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
