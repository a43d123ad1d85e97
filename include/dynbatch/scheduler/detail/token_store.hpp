// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Pages that hold the tokens (or digests) of live requests. Space is promised at submit(), so an
/// output token always finds its page.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/block_key.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Page tables by slot over one lock-free pool of pages.
class TokenStore {
 public:
  Status allocate(std::size_t slots, std::int64_t pages, std::int64_t pages_per_slot,
                  std::int32_t page_tokens) noexcept {
    page_tokens_ = page_tokens;
    pages_per_slot_ = static_cast<std::size_t>(pages_per_slot);
    total_pages_ = pages;
    unpromised_.store(pages, std::memory_order_relaxed);
    if (Status s = tokens_.allocate(
            static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_tokens),
            "max_queued_tokens", PageUse::Dense);
        !s) {
      return s;
    }
    if (Status s = tables_.allocate(slots * pages_per_slot_, "max_live_requests"); !s) {
      return s;
    }
    return free_.allocate(static_cast<std::size_t>(pages), "max_queued_tokens");
  }

  /// Room for a key each `block_tokens` tokens, for pools that name blocks to other processes.
  Status allocate_keys(std::int64_t block_tokens) noexcept {
    return keys_.allocate(static_cast<std::size_t>(total_pages_ * page_tokens_ / block_tokens),
                          "max_queued_tokens");
  }
  /// Keys by storage page, in the pages' order; nullptr where nobody asked for them. A cache:
  /// whoever reads content may fill it in.
  [[nodiscard]] BlockKey* keys() const noexcept { return keys_.data(); }

  /// Any thread: sets `pages` aside; false if there are not so many.
  bool promise(std::int64_t pages) noexcept {
    std::int64_t left = unpromised_.load(std::memory_order_relaxed);
    do {
      if (left < pages) {
        return false;
      }
    } while (!unpromised_.compare_exchange_weak(left, left - pages, std::memory_order_relaxed));
    return true;
  }
  void unpromise(std::int64_t pages) noexcept {
    unpromised_.fetch_add(pages, std::memory_order_relaxed);
  }

  /// Owner of the slot: adds promised pages so that entries [from, to) of its table exist.
  void add_pages(std::uint32_t slot, std::int64_t from, std::int64_t to) noexcept {
    std::uint32_t* table = this->table(slot);
    for (std::int64_t i = from; i < to; ++i) {
      const std::uint32_t page = free_.pop();
      DYNBATCH_ASSERT(page != kNil, "a promised page is missing");
      table[i] = page;
    }
  }

  /// Owner of the slot: frees pages [shared, used) of its table and the promise of `promised`.
  void release(std::uint32_t slot, std::int64_t shared, std::int64_t used,
               std::int64_t promised) noexcept {
    const std::uint32_t* table = this->table(slot);
    if (used > shared) {
      for (std::int64_t i = shared; i + 1 < used; ++i) {
        free_.link(table[i], table[i + 1]);
      }
      free_.push_chain(table[shared], table[used - 1]);
    }
    unpromise(promised);
  }

  [[nodiscard]] std::uint32_t* table(std::uint32_t slot) noexcept {
    return tables_.data() + slot * pages_per_slot_;
  }
  [[nodiscard]] const std::uint32_t* table(std::uint32_t slot) const noexcept {
    return tables_.data() + slot * pages_per_slot_;
  }
  /// Where storage position `position` of the slot lies; runs to the end of its page.
  [[nodiscard]] Token* at(std::uint32_t slot, std::int64_t position) noexcept {
    const std::size_t page = table(slot)[position / page_tokens_];
    return tokens_.data() + page * static_cast<std::size_t>(page_tokens_) +
           static_cast<std::size_t>(position % page_tokens_);
  }
  [[nodiscard]] const Token* storage() const noexcept { return tokens_.data(); }
  [[nodiscard]] std::int32_t page_tokens() const noexcept { return page_tokens_; }
  [[nodiscard]] std::int64_t total_pages() const noexcept { return total_pages_; }

 private:
  Buffer<Token> tokens_;           // [pages, page_tokens]
  mutable Buffer<BlockKey> keys_;  // [pages, page_tokens / block_tokens]
  Buffer<std::uint32_t> tables_;   // [slots, pages_per_slot]
  IndexStack free_;
  std::atomic<std::int64_t> unpromised_{0};
  std::size_t pages_per_slot_ = 0;
  std::int64_t total_pages_ = 0;
  std::int32_t page_tokens_ = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
