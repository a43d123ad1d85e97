// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Contents for random tests of BlockPool that often begin alike, with what makes their blocks
/// equal written down beside them.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/model/request.hpp>

#include "../unit/kv/content.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dynbatch::test {

inline constexpr std::int32_t kStoryBlock = 4;  // Tokens a block.

/// How large the pool, the rows and the parts that stories share are.
struct PoolShape {
  std::int64_t num_blocks = 24;
  std::int64_t max_tokens = 60;
  std::int64_t blocks_between_branches = 4;
  std::int32_t page_tokens = 16;
  std::int32_t blocks_a_digest = 2;
  bool partial_copy = false;
  std::int32_t min_partial_tokens = 1;
  int num_stories = 40;
  int check_every = 64;  // Operations between two checks of all invariants.
};

/// One string of block contents; equality of contents is equality of these.
struct Story {
  kv_test::Content content;
  int scope;
  bool is_digest;
  std::vector<int> blocks;        // Letter of each whole block.
  std::int64_t shareable_blocks;  // Of the content at full knowledge.
  // Of each block: the items that overlap it, as (digest, where it begins in them, length).
  std::vector<std::vector<std::int64_t>> media = {};
};

// Media items that stories choose from, so that many have equal ones: a few items, now and then so
// many in one block that it is not shared.
inline std::vector<MediaSpan> make_media(SplitMix64& random, const PoolShape& shape) {
  std::vector<MediaSpan> items;
  const bool has_tiny = random.one_in(4);
  std::int64_t position = random.between(0, shape.max_tokens / 4);
  for (std::int64_t n = random.between(1, has_tiny ? 8 : 3); n > 0; --n) {
    const std::int64_t length = has_tiny ? 1 : random.between(1, shape.max_tokens / 4);
    items.push_back({position, length, {3, static_cast<std::uint64_t>(random.between(0, 1))}});
    position += length + (random.one_in(2) ? 0 : random.between(0, 2 * kStoryBlock));
  }
  return items;
}

inline void add_media(Story& story, std::vector<MediaSpan> items) {
  const std::int64_t length = story.content.length();
  while (!items.empty() && items.back().first_position + items.back().length > length) {
    items.pop_back();
  }
  for (std::int64_t begin = 0; begin < length; begin += kStoryBlock) {
    std::vector<std::int64_t> entries;
    for (const MediaSpan& item : items) {
      if (item.first_position < begin + kStoryBlock && item.first_position + item.length > begin) {
        entries.insert(entries.end(), {static_cast<std::int64_t>(item.content.low),
                                       begin - item.first_position, item.length});
      }
    }
    if (entries.size() / 3 > kStoryBlock / 4 + 2) {
      story.shareable_blocks = std::min(story.shareable_blocks, begin / kStoryBlock);
    }
    story.media.push_back(entries);
  }
  story.content.set_media(std::move(items));
}

inline Story make_story(SplitMix64& random, const PoolShape& shape) {
  const int scope = static_cast<int>(random.between(0, 1));
  const bool is_digest = random.one_in(4);
  const auto length = random.between(1, shape.max_tokens);
  CacheScope cache_scope{};
  cache_scope.has_tenant_salt = scope == 1;
  std::vector<int> letters;
  for (std::int64_t i = 0; i < length / kStoryBlock; ++i) {
    letters.push_back(random.one_in(shape.blocks_between_branches) ? 1 : 0);
  }
  if (is_digest) {
    // The letters of a digest's later blocks are the first one's.
    const auto unit = static_cast<std::size_t>(shape.blocks_a_digest);
    std::vector<ContentDigest> digests;
    std::uint64_t chain = 7;  // A digest covers all that is before it.
    for (std::size_t i = 0; i < letters.size(); ++i) {
      if (i % unit == 0) {
        chain = combine64(chain, static_cast<std::uint64_t>(letters[i]));
        digests.push_back({7, chain});
      }
      letters[i] = letters[i - i % unit];
    }
    const std::int32_t digest_tokens = shape.blocks_a_digest * kStoryBlock;
    return {kv_test::Content(digests, digest_tokens, length, shape.page_tokens, cache_scope), scope,
            true, letters, length / digest_tokens * shape.blocks_a_digest};
  }
  // Tokens of a block differ in the last one only.
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < length; ++i) {
    const bool is_last_of_block = i % kStoryBlock == kStoryBlock - 1;
    tokens.push_back(is_last_of_block ? letters[static_cast<std::size_t>(i / kStoryBlock)] : 5);
  }
  return {kv_test::Content(tokens, shape.page_tokens, cache_scope), scope, false, letters,
          length / kStoryBlock};
}

inline std::vector<Story> make_stories(SplitMix64& random, const PoolShape& shape) {
  std::vector<std::vector<MediaSpan>> layouts;
  for (int i = 0; i < 5; ++i) {
    layouts.push_back(make_media(random, shape));
  }
  layouts[4] = layouts[0];  // the same items one block later
  for (MediaSpan& item : layouts[4]) {
    item.first_position += kStoryBlock;
  }
  std::vector<Story> stories;
  for (int i = 0; i < shape.num_stories; ++i) {
    stories.push_back(make_story(random, shape));
    if (random.one_in(2)) {
      add_media(stories.back(), layouts[static_cast<std::size_t>(random.between(0, 4))]);
    }
  }
  return stories;
}

}  // namespace dynbatch::test
