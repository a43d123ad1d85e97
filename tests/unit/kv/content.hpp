// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Content for pool tests: tokens or digests in scattered pages, as a scheduler would store them.
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace kv_test {

/// Owns one sequence's content. Pages lie in reverse order, so that code that ignores the page
/// table reads wrong tokens.
class Content {
 public:
  Content(std::vector<dynbatch::Token> tokens, std::int32_t page_tokens,
          dynbatch::CacheScope scope = {})
      : scope_(scope), tokens_(std::move(tokens)), page_tokens_(page_tokens) {
    store(tokens_);
    length_ = static_cast<std::int64_t>(tokens_.size());
  }

  /// A digest prompt: `digests` cover `unit` tokens each, `length` tokens in all.
  Content(const std::vector<dynbatch::ContentDigest>& digests, std::int32_t unit,
          std::int64_t length, std::int32_t page_tokens, dynbatch::CacheScope scope = {})
      : scope_(scope), page_tokens_(page_tokens), length_(length), unit_(unit) {
    std::vector<dynbatch::Token> words(digests.size() * 4);
    if (!digests.empty()) {
      std::memcpy(words.data(), digests.data(), words.size() * sizeof(dynbatch::Token));
    }
    store(words);
  }

  /// All of it is known and may be shared.
  [[nodiscard]] dynbatch::SequenceContentView view() const {
    dynbatch::SequenceContentView v{};
    v.scope = &scope_;
    v.storage = storage_.data();
    v.pages = pages_.data();
    v.page_tokens = page_tokens_;
    v.prompt_length = length_;
    v.known_length = length_;
    v.cacheable_length = length_;
    v.digest_unit = unit_;
    v.media = media_;
    if (!keys_.empty()) {
      v.keys = keys_.data();
      v.num_keys = &num_keys_;
    }
    return v;
  }

  /// By position, disjoint.
  void set_media(std::vector<dynbatch::MediaSpan> media) { media_ = std::move(media); }
  /// Gives it room for the keys of its blocks.
  Content& with_keys(std::int32_t block_size) {
    keys_.resize(pages_.size() * static_cast<std::size_t>(page_tokens_ / block_size));
    return *this;
  }
  [[nodiscard]] std::int32_t num_keys() const { return num_keys_; }

  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] const std::vector<dynbatch::Token>& tokens() const { return tokens_; }
  [[nodiscard]] const dynbatch::CacheScope& scope() const { return scope_; }

 private:
  void store(const std::vector<dynbatch::Token>& words) {
    const auto page = static_cast<std::size_t>(page_tokens_);
    const std::size_t num_pages = (words.size() + page - 1) / page;
    storage_.assign(num_pages * page + 1, -7);
    for (std::size_t i = 0; i < num_pages; ++i) {
      pages_.push_back(static_cast<std::uint32_t>(num_pages - 1 - i));
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      storage_[pages_[i / page] * page + i % page] = words[i];
    }
  }

  dynbatch::CacheScope scope_;
  std::vector<dynbatch::Token> tokens_;
  std::vector<dynbatch::Token> storage_;
  std::vector<std::uint32_t> pages_;
  std::vector<dynbatch::MediaSpan> media_;
  std::int32_t page_tokens_ = 0;
  std::int64_t length_ = 0;
  std::int32_t unit_ = 0;
  mutable std::vector<dynbatch::BlockKey> keys_;
  mutable std::int32_t num_keys_ = 0;
};

/// Tokens first, first + 1, ...
inline std::vector<dynbatch::Token> count_from(dynbatch::Token first, std::int64_t n) {
  std::vector<dynbatch::Token> tokens;
  for (std::int64_t i = 0; i < n; ++i) {
    tokens.push_back(first + static_cast<dynbatch::Token>(i));
  }
  return tokens;
}

/// `head` followed by `n` tokens `value`.
inline std::vector<dynbatch::Token> then(std::vector<dynbatch::Token> head, std::int64_t n,
                                         dynbatch::Token value) {
  head.insert(head.end(), static_cast<std::size_t>(n), value);
  return head;
}

/// Ids in a row's table.
template <class Pool>
std::vector<std::int32_t> ids(const Pool& pool, dynbatch::Row row) {
  std::vector<std::int32_t> out;
  for (const dynbatch::BlockId b : pool.table(0, row)) {
    out.push_back(b.value);
  }
  return out;
}

/// What a scheduler does to admit a request whose whole length runs at once: look up all but the
/// last token, take the hit, grow to `tokens` and publish. Returns the tokens hit, or -1 if it
/// doesn't fit.
template <class Pool>
std::int64_t admit(Pool& pool, dynbatch::Row row, const Content& content, std::int64_t tokens,
                   dynbatch::PlanId plan = dynbatch::kNoPlan) {
  const auto view = content.view();
  const auto match = pool.match(view, content.length() - 1);
  if (!pool.acquire(row, match)) {
    return -1;
  }
  if (!pool.extend(row, tokens)) {
    pool.release(row);
    return -1;
  }
  pool.publish(row, view, tokens, plan);
  return match.num_tokens;
}
template <class Pool>
std::int64_t admit(Pool& pool, dynbatch::Row row, const Content& content) {
  return admit(pool, row, content, content.length());
}

}  // namespace kv_test
