// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ContentCursor: the content of one block after another, out of pages or digests.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Walks a content block by block; a block never straddles two pages.
class ContentCursor {
 public:
  ContentCursor(const SequenceContentView& content, std::int32_t block_size,
                std::int64_t block) noexcept
      : content_(&content), block_size_(block_size), position_(block * block_size) {}

  // Content of the next block; valid until the next call.
  const void* next() noexcept {
    if (left_ == 0) {
      turn_page();
    }
    --left_;
    position_ += block_size_;
    if (content_->has_digests()) {
      return &digest_;
    }
    const Token* tokens = tokens_;
    tokens_ += block_size_;
    return tokens;
  }

  // What next() would return for the blocks left in this page.
  [[nodiscard]] const Token* tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int64_t num_left() const noexcept { return left_; }
  void skip(std::int64_t blocks) noexcept {
    left_ -= blocks;
    position_ += blocks * block_size_;
    tokens_ += blocks * block_size_;
  }

 private:
  // Blocks left in the page, or in the unit of a digest.
  void turn_page() noexcept {
    if (content_->has_digests()) {
      digest_ = content_->digest_at(position_);
      left_ = (content_->digest_unit - position_ % content_->digest_unit) / block_size_;
      return;
    }
    tokens_ = content_->tokens_at(position_);
    const std::int64_t offset = (position_ + content_->token_base) % content_->page_tokens;
    left_ = (content_->page_tokens - offset) / block_size_;
  }

  const SequenceContentView* content_;
  const Token* tokens_ = nullptr;
  std::int64_t left_ = 0;
  std::int64_t block_size_;
  std::int64_t position_;
  ContentDigest digest_{};
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
