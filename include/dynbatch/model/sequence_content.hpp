// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A sequence's content as the pool sees it: scope, tokens or digests, in fixed-size pages.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/block_key.hpp>
#include <dynbatch/model/request.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// View of one sequence's content. A page holds page_tokens tokens; page_tokens is a multiple of
/// every group's block size and of 4, so neither a block nor a digest straddles two pages. A digest
/// prompt stores its digests in the first pages and its output tokens behind them.
struct SequenceContentView {
  const CacheScope* scope = nullptr;
  const Token* storage = nullptr;        ///< Base of the page store.
  const std::uint32_t* pages = nullptr;  ///< Page table of the sequence.
  std::int32_t page_tokens = 0;
  std::int64_t token_base = 0;  ///< Storage position of position p is p + token_base.
  std::int64_t prompt_length = 0;
  std::int64_t known_length = 0;      ///< Positions whose content is known.
  std::int64_t cacheable_length = 0;  ///< Only blocks that end at or before it may be shared.
  std::int32_t digest_unit = 0;  ///< Tokens a digest covers; 0 = the prompt is given as tokens.
  /// Media items, by position and disjoint: a block that overlaps some is equal to another only if
  /// it lies at the same place in the same items.
  std::span<const MediaSpan> media{};
  /// Equal numbers but 0: it is the same content, of which more or less may be known. A number is
  /// never used for another content. 0 = nobody says.
  std::uint64_t version = 0;
  /// Room for the keys of its blocks, by storage page as the tokens are, where a pool asks for it;
  /// the pool fills it in as it needs them. Not used for digest prompts.
  BlockKey* keys = nullptr;
  std::int32_t* num_keys = nullptr;  ///< Leading blocks whose keys are there.

  /// No item covers `position` or one behind it.
  [[nodiscard]] bool is_behind_media(std::int64_t position) const noexcept {
    return media.empty() || media.back().first_position + media.back().length <= position;
  }

  /// The prompt is given as digests: its blocks have no tokens.
  [[nodiscard]] bool has_digests() const noexcept { return digest_unit != 0; }

  /// Tokens from `position` to the end of its page; not for positions inside a digest prompt.
  [[nodiscard]] const Token* tokens_at(std::int64_t position) const noexcept {
    return at(position + token_base);
  }

  /// Digest of the unit that holds `position`, which lies in a whole unit of a digest prompt.
  /// Blocks of one unit share its digest; their place in the chain tells them apart.
  [[nodiscard]] ContentDigest digest_at(std::int64_t position) const noexcept {
    ContentDigest digest;
    std::memcpy(static_cast<void*>(&digest), digest_bytes_at(position), sizeof(digest));
    return digest;
  }
  /// Where that digest lies, perhaps unaligned for its type. The digests of the units behind it
  /// follow it in the page.
  [[nodiscard]] const unsigned char* digest_bytes_at(std::int64_t position) const noexcept {
    return reinterpret_cast<const unsigned char*>(at(position / digest_unit * kTokensPerDigest));
  }
  /// How many digests lie side by side from that one to the end of its page.
  [[nodiscard]] std::int64_t digests_left_at(std::int64_t position) const noexcept {
    const std::int64_t per_page = page_tokens / kTokensPerDigest;
    return per_page - position / digest_unit % per_page;
  }

 private:
  static constexpr std::int64_t kTokensPerDigest = sizeof(ContentDigest) / sizeof(Token);

  [[nodiscard]] const Token* at(std::int64_t storage_position) const noexcept {
    const auto page = static_cast<std::size_t>(storage_position / page_tokens);
    return storage + static_cast<std::size_t>(pages[page]) * static_cast<std::size_t>(page_tokens) +
           static_cast<std::size_t>(storage_position % page_tokens);
  }
};

}  // namespace dynbatch::inline DYNBATCH_ABI
