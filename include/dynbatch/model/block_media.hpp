// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockMedia: which media items a block overlaps, and where the block lies in each of them.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/model/request.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
/// Most items that a block may overlap and be shared still; enough for items of four tokens.
[[nodiscard]] constexpr std::int64_t max_block_media(std::int32_t block_size) noexcept {
  return block_size / 4 + 2;
}

/// An item as one block sees it: what it is, where the block begins in it, and how long it is.
/// Blocks of equal tokens are equal only if these are.
struct MediaEntry {
  ContentDigest content{};
  std::int64_t offset = 0;
  std::int64_t length = 0;  ///< 0 ends a list of entries.
  friend constexpr bool operator==(const MediaEntry&, const MediaEntry&) noexcept = default;
};

/// The items that overlap the block at `position`, by position.
struct BlockMedia {
  const MediaSpan* items = nullptr;
  std::int64_t count = 0;
  std::int64_t position = 0;

  [[nodiscard]] bool empty() const noexcept { return count == 0; }
  [[nodiscard]] MediaEntry entry(std::int64_t index) const noexcept {
    const MediaSpan& item = items[index];
    return {item.content, position - item.first_position, item.length};
  }
};

/// Walks over the blocks that media items overlap, given by position.
class MediaCursor {
 public:
  static constexpr std::int64_t kNoBlock = INT64_MAX;

  /// Starts at block `block`. O(items before it).
  MediaCursor(std::span<const MediaSpan> media, std::int32_t block_size,
              std::int64_t block) noexcept
      : item_(media.data()), end_(media.data() + media.size()), block_size_(block_size) {
    skip_to(block);
  }

  /// The first block from the current one on that an item overlaps, or kNoBlock.
  [[nodiscard]] std::int64_t next() const noexcept {
    return item_ == end_ ? kNoBlock : max_of(block_, item_->first_position / block_size_);
  }
  /// The items of block next(), which there is; the block behind it becomes the current one.
  BlockMedia take() noexcept {
    const std::int64_t block = next();
    BlockMedia media{item_, 0, block * block_size_};
    const std::int64_t end = media.position + block_size_;
    while (item_ + media.count != end_ && item_[media.count].first_position < end) {
      ++media.count;
    }
    skip_to(block + 1);
    return media;
  }

 private:
  void skip_to(std::int64_t block) noexcept {
    block_ = block;
    while (item_ != end_ && item_->first_position + item_->length <= block * block_size_) {
      ++item_;
    }
  }

  const MediaSpan* item_;
  const MediaSpan* end_;
  std::int64_t block_size_;
  std::int64_t block_ = 0;
};

/// Whether two contents have equal items at equal positions, as far as they begin before `end`.
[[nodiscard]] inline bool equal_media(std::span<const MediaSpan> a, std::span<const MediaSpan> b,
                                      std::int64_t end) noexcept {
  for (std::size_t i = 0;; ++i) {
    const bool has_a = i < a.size() && a[i].first_position < end;
    const bool has_b = i < b.size() && b[i].first_position < end;
    if (!has_a || !has_b) {
      return has_a == has_b;
    }
    if (a[i].first_position != b[i].first_position || a[i].length != b[i].length ||
        a[i].content != b[i].content) {
      return false;
    }
  }
}

}  // namespace dynbatch::inline DYNBATCH_ABI
