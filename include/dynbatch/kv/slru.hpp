// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Slru: eviction order that keeps what was found before apart from what was used only once.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/kv/detail/block_lists.hpp>
#include <dynbatch/kv/eviction_order.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Segmented LRU: blocks that nobody has found yet go first, least recently released first. What
/// was found is protected up to a share of the pool; beyond it the least recently released go back
/// among the others. A stream of prompts that are used once can't displace what is used twice.
class Slru {
 public:
  struct Config {
    std::int32_t protected_percent = 80;  ///< Share of the pool's blocks, in [0, 100].

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (protected_percent < 0 || protected_percent > 100) {
        return {Errc::InvalidConfig, "protected_percent", protected_percent, 100,
                "must be in [0, limit]"};
      }
      return kOk;
    }
  };

  Slru() noexcept : Slru(Config{}) {}
  explicit Slru(const Config& config) noexcept : config_(config) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    Status s = config_.validate();
    s = s ? flags_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks") : s;
    s = s ? lists_.attach(num_blocks, 2) : s;
    num_protected_ = 0;
    max_protected_ = num_blocks * config_.protected_percent / 100;
    return s;
  }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    for (std::size_t i = path.size(); i-- > first;) {
      std::uint8_t& flags = flags_.data()[path[i].value];
      if ((flags & kWasFound) == 0) {
        lists_.push_back(kProbation, path[i]);
        continue;
      }
      lists_.push_back(kProtected, path[i]);
      flags |= kIsProtected;
      if (++num_protected_ > max_protected_) {
        const BlockId oldest = lists_.front(kProtected);
        leave_protection(oldest);
        lists_.erase(oldest);
        lists_.push_back(kProbation, oldest);
      }
    }
  }

  void erase(BlockId block) noexcept {
    leave_protection(block);
    lists_.erase(block);
    reset(block);
  }
  void erase(std::span<const BlockId> path) noexcept {
    for (const BlockId block : path) {
      leave_protection(block);
    }
    lists_.erase(path);
  }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    for (BlockId block = victim(); n < blocks.size() && block != kNoBlock; block = victim()) {
      erase(block);
      blocks[n++] = block;
    }
    return n;
  }

  [[nodiscard]] BlockId victim() const noexcept { return front(); }
  [[nodiscard]] BlockId front() const noexcept {
    return flags_.size() == 0 ? kNoBlock : lists_.front_from(0);
  }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return lists_.after(block); }

  void note_hit(std::span<const BlockId> path) noexcept {
    for (const BlockId block : path) {
      flags_.data()[block.value] |= kWasFound;
    }
  }
  void reset(BlockId block) noexcept { flags_.data()[block.value] = 0; }

 private:
  static constexpr std::int32_t kProbation = 0;  // Goes first.
  static constexpr std::int32_t kProtected = 1;
  static constexpr std::uint8_t kWasFound = 1;
  static constexpr std::uint8_t kIsProtected = 2;

  void leave_protection(BlockId block) noexcept {
    std::uint8_t& flags = flags_.data()[block.value];
    num_protected_ -= (flags & kIsProtected) != 0 ? 1 : 0;
    flags &= kWasFound;
  }

  Config config_;
  detail::BlockLists lists_;
  Buffer<std::uint8_t> flags_;  // [num_blocks]
  std::int64_t num_protected_ = 0;
  std::int64_t max_protected_ = 0;
};

static_assert(EvictionOrder<Slru>);

}  // namespace dynbatch::inline DYNBATCH_ABI
