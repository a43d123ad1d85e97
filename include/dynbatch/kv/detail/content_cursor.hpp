// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ContentCursor: the content of one block after another, out of pages or digests.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Walks a content block by block; a block never straddles two pages, nor two units of digests.
class ContentCursor {
 public:
  ContentCursor(const SequenceContentView& content, std::int32_t block_size,
                std::int64_t block) noexcept
      : content_(&content),
        block_size_(block_size),
        position_(block * block_size),
        // A digest of several blocks stands still while they go by.
        step_(!content.has_digests() ? static_cast<std::size_t>(block_size) * sizeof(Token)
              : content.digest_unit == block_size ? sizeof(ContentDigest)
                                                  : 0) {}

  // Content of the next block.
  const void* next() noexcept {
    const void* content = data();
    skip(1);
    return content;
  }

  // What next() would return for the next num_left() blocks: they lie step() bytes apart, which is
  // 0 within the unit of a digest.
  [[nodiscard]] const void* data() noexcept {
    if (left_ == 0) {
      turn_page();
    }
    return data_;
  }
  [[nodiscard]] std::int64_t num_left() noexcept {
    if (left_ == 0) {
      turn_page();
    }
    return left_;
  }
  [[nodiscard]] std::size_t step() const noexcept { return step_; }
  void skip(std::int64_t blocks) noexcept {
    left_ -= blocks;
    position_ += blocks * block_size_;
    data_ += static_cast<std::size_t>(blocks) * step_;
  }

 private:
  // Blocks left in the page, or in the unit of a digest.
  void turn_page() noexcept {
    if (!content_->has_digests()) {
      data_ = reinterpret_cast<const unsigned char*>(content_->tokens_at(position_));
      const std::int64_t offset = (position_ + content_->token_base) % content_->page_tokens;
      left_ = (content_->page_tokens - offset) / block_size_;
      left_ += num_adjacent_pages(content_->known_length) * content_->page_tokens / block_size_;
      return;
    }
    data_ = content_->digest_bytes_at(position_);
    left_ = step_ != 0 ? content_->digests_left_at(position_)
                       : (content_->digest_unit - position_ % content_->digest_unit) / block_size_;
  }

  // Pages behind the one that holds the position that follow it in memory. Not asked for the first
  // page: most prompts that differ do so there.
  [[nodiscard]] std::int64_t num_adjacent_pages(std::int64_t known_length) noexcept {
    const std::uint32_t* const pages = content_->pages;
    const std::int64_t page = (position_ + content_->token_base) / content_->page_tokens;
    const std::int64_t last = (known_length - 1 + content_->token_base) / content_->page_tokens;
    std::int64_t n = 0;
    while (has_turned_ && page + n < last && pages[page + n + 1] == pages[page + n] + 1) {
      ++n;
    }
    has_turned_ = true;
    return n;
  }

  const SequenceContentView* content_;
  const unsigned char* data_ = nullptr;
  std::int64_t left_ = 0;
  std::int64_t block_size_;
  std::int64_t position_;
  std::size_t step_;
  bool has_turned_ = false;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
