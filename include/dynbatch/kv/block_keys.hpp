// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KeyChain: from content and identity to the keys under which other processes find KV blocks.
#include <dynbatch/base/blake2b.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/model/block_key.hpp>
#include <dynbatch/model/block_media.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// What makes the KV of one engine unlike that of another, beyond tokens and CacheScope. A null
/// pointer means absent, which differs from empty. Read at attach() only.
struct KVIdentity {
  const char* model = nullptr;       ///< For instance "org/name".
  const char* revision = nullptr;    ///< Of the weights; CacheScope::model_epoch counts as well.
  const char* format = nullptr;      ///< Of a number, with its quantisation: "bf16", "fp8_e4m3".
  const char* layout = nullptr;      ///< Order of layers, heads and values inside a block.
  const char* shard = nullptr;       ///< Which part of a layer or of the layers this is: "tp 0/2".
  std::uint32_t format_version = 1;  ///< Of the engine's own way to write a block.
};

/// Names each block of a prefix by a chain of digests: of the parent's key, the block's tokens and
/// the media items that it overlaps, which starts from the identity and the scope. Each field is
/// tagged and carries its length. O(1) a block of up to 20 tokens, then O(tokens). Immutable after
/// start(): any thread.
class KeyChain {
 public:
  /// Keys of blocks of so many tokens and bytes.
  void start(const KVIdentity& identity, std::int32_t block_size,
             std::int64_t block_bytes) noexcept {
    block_size_ = block_size;
    Blake2b hash;
    put(hash, Tag::Library, "dynbatch kv 1");
    put(hash, Tag::Model, identity.model);
    put(hash, Tag::Revision, identity.revision);
    put(hash, Tag::Format, identity.format);
    put(hash, Tag::Layout, identity.layout);
    put(hash, Tag::Shard, identity.shard);
    put(hash, Tag::FormatVersion, identity.format_version);
    put(hash, Tag::BlockSize, static_cast<std::uint64_t>(block_size));
    put(hash, Tag::BlockBytes, static_cast<std::uint64_t>(block_bytes));
    engine_ = hash.finish();
  }

  /// Where the keys of a content start. One compression.
  [[nodiscard]] KeyRoot root(const SequenceContentView& content) const noexcept {
    const CacheScope& scope = *content.scope;
    Blake2b hash;
    hash.update(engine_.words, sizeof(engine_.words));
    put(hash, Tag::Epoch, scope.model_epoch);
    if (scope.has_tenant_salt) {
      put(hash, Tag::Tenant, scope.tenant_salt);
    }
    if (scope.has_adapter) {
      put(hash, Tag::Adapter, scope.adapter_id);
      put(hash, Tag::AdapterVersion, scope.adapter_version);
    }
    if (content.has_digests()) {
      put(hash, Tag::DigestUnit, static_cast<std::uint64_t>(content.digest_unit));
    }
    return {hash.finish(), family(content)};
  }

  /// Makes sure that the keys of the first `num_blocks` blocks, all of known content, are there.
  /// False if the content has no room for keys. O(new blocks).
  bool extend(const SequenceContentView& content, std::int64_t num_blocks) const noexcept {
    if (content.has_digests()) {
      return true;  // computed when asked for
    }
    if (content.keys == nullptr || content.num_keys == nullptr) {
      return false;
    }
    std::int64_t b = *content.num_keys;
    if (b >= num_blocks) {
      return true;
    }
    BlockKey parent = b > 0 ? *place(content, b - 1) : root(content).digest;
    MediaCursor media(content.media, block_size_, b);
    for (; b < num_blocks; ++b) {
      parent = next(parent, content.tokens_at(b * block_size_), items_of(b, media));
      *place(content, b) = parent;
    }
    *content.num_keys = static_cast<std::int32_t>(num_blocks);
    return true;
  }

  /// The key of a block that extend() was asked for; `root` as of the content.
  [[nodiscard]] BlockKey at(const SequenceContentView& content, const KeyRoot& root,
                            std::int64_t block) const noexcept {
    if (!content.has_digests()) {
      return *place(content, block);
    }
    // A digest stands for the whole prefix, so no chain is needed; media items are told beside it.
    struct {
      Tag tag;
      BlockKey root;
      ContentDigest digest;
      std::uint64_t index;
    } const message{Tag::DigestBlock, root.digest, content.digest_at(block * block_size_),
                    static_cast<std::uint64_t>(block * block_size_ % content.digest_unit)};
    static_assert(sizeof(message) == 64);
    Blake2b hash;
    hash.update(&message, sizeof(message));
    const std::int64_t end = (block + 1) * block_size_;
    for (const MediaSpan& item : content.media) {
      if (item.first_position >= end) {
        break;
      }
      put(hash, MediaEntry{item.content, item.first_position, item.length});
    }
    return hash.finish();
  }

  /// Whether the keys of the first `num_blocks` blocks are those of their tokens. For tests.
  [[nodiscard]] bool agrees(const SequenceContentView& content,
                            std::int64_t num_blocks) const noexcept {
    BlockKey parent = root(content).digest;
    MediaCursor media(content.media, block_size_, 0);
    for (std::int64_t b = 0; b < num_blocks && !content.has_digests(); ++b) {
      parent = next(parent, content.tokens_at(b * block_size_), items_of(b, media));
      if (!(parent == *place(content, b))) {
        return false;
      }
    }
    return true;
  }

  /// Copies the keys of blocks [first, first + out.size()).
  void copy(const SequenceContentView& content, const KeyRoot& root, std::int64_t first,
            std::span<BlockKey> out) const noexcept {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = at(content, root, first + static_cast<std::int64_t>(i));
    }
  }

 private:
  enum class Tag : std::uint64_t {  // NOLINT(performance-enum-size): it is hashed as a word
    Library = 1,
    Model,
    Revision,
    Format,
    Layout,
    Shard,
    FormatVersion,
    BlockSize,
    BlockBytes,
    Epoch,
    Tenant,
    Adapter,
    AdapterVersion,
    DigestUnit,
    TokenBlock,
    DigestBlock,
    MediaItem,
  };
  static constexpr std::int64_t kFamilyTokens = 16;

  static void put(Blake2b& hash, Tag tag, const char* text) noexcept {
    if (text != nullptr) {
      const std::uint64_t head[2] = {static_cast<std::uint64_t>(tag), std::strlen(text)};
      hash.update(head, sizeof(head));
      hash.update(text, head[1]);
    }
  }
  static void put(Blake2b& hash, Tag tag, std::uint64_t value) noexcept {
    const std::uint64_t field[3] = {static_cast<std::uint64_t>(tag), sizeof(value), value};
    hash.update(field, sizeof(field));
  }
  static void put(Blake2b& hash, const MediaEntry& item) noexcept {
    const std::uint64_t field[6] = {static_cast<std::uint64_t>(Tag::MediaItem),
                                    4 * sizeof(std::uint64_t),
                                    item.content.high,
                                    item.content.low,
                                    static_cast<std::uint64_t>(item.offset),
                                    static_cast<std::uint64_t>(item.length)};
    hash.update(field, sizeof(field));
  }
  // The items of block `b`; `media` stands at it or before.
  [[nodiscard]] static BlockMedia items_of(std::int64_t b, MediaCursor& media) noexcept {
    return media.next() == b ? media.take() : BlockMedia{};
  }
  [[nodiscard]] BlockKey next(const BlockKey& parent, const Token* tokens,
                              const BlockMedia& items) const noexcept {
    const std::uint64_t head[2] = {static_cast<std::uint64_t>(Tag::TokenBlock),
                                   static_cast<std::uint64_t>(block_size_)};
    Blake2b hash;
    hash.update(head, sizeof(head));
    hash.update(parent.words, sizeof(parent.words));
    hash.update(tokens, static_cast<std::size_t>(block_size_) * sizeof(Token));
    for (std::int64_t i = 0; i < items.count; ++i) {
      put(hash, items.entry(i));
    }
    return hash.finish();
  }
  [[nodiscard]] static std::uint64_t family(const SequenceContentView& content) noexcept {
    if (content.has_digests()) {
      const ContentDigest first = content.digest_at(0);
      return combine64(first.high, first.low);
    }
    const std::int64_t n = min_of(min_of(content.known_length, content.prompt_length),
                                  min_of<std::int64_t>(kFamilyTokens, content.page_tokens));
    return hash_words(content.tokens_at(0), static_cast<std::size_t>(n), 0);
  }
  [[nodiscard]] BlockKey* place(const SequenceContentView& content,
                                std::int64_t block) const noexcept {
    const std::int64_t per_page = content.page_tokens / block_size_;
    return content.keys +
           static_cast<std::size_t>(content.pages[block / per_page]) *
               static_cast<std::size_t>(per_page) +
           static_cast<std::size_t>(block % per_page);
  }

  BlockKey engine_{};
  std::int32_t block_size_ = 1;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
