// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Ttl: eviction order in which what wasn't used for a time goes before everything else.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/kv/detail/block_lists.hpp>
#include <dynbatch/kv/eviction_order.hpp>
#include <dynbatch/kv/lru.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Blocks whose last use lies `ttl` or more back are expired and go first, the longest expired
/// foremost; the others go as `Inner` says. A use renews. An expired block is still found as long
/// as nobody needed its memory. Over Lru, whose victims are the longest unused anyway, it changes
/// nothing: it bounds how long an order with favourites may keep them.
template <class Inner = Lru>
class Ttl {
 public:
  struct Config {
    DurationNs ttl = seconds(1800);  ///< At least 1 ns.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (ttl.ns < 1) {
        return {Errc::InvalidConfig, "ttl", ttl.ns, 1, "must be at least 1 ns"};
      }
      return kOk;
    }
  };

  Ttl() noexcept : Ttl(Config{}) {}
  explicit Ttl(const Config& config, Inner inner = Inner()) noexcept
      : config_(config), inner_(std::move(inner)) {}

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    now_ = 0;
    Status s = config_.validate();
    s = s ? times_.allocate(static_cast<std::size_t>(num_blocks), "num_blocks") : s;
    s = s ? uses_.attach(num_blocks, 1) : s;
    return s ? inner_.attach(num_blocks) : s;
  }

  void insert_backwards(std::span<const BlockId> path, std::size_t first) noexcept {
    for (std::size_t i = path.size(); i-- > first;) {
      times_.data()[path[i].value] = now_;
      uses_.push_back(0, path[i]);
    }
    inner_.insert_backwards(path, first);
  }
  void erase(BlockId block) noexcept {
    uses_.erase(block);
    inner_.erase(block);
  }
  void erase(std::span<const BlockId> path) noexcept {
    uses_.erase(path);
    inner_.erase(path);
  }
  std::size_t take(std::span<BlockId> blocks) noexcept {
    std::size_t n = 0;
    for (BlockId block = expired(); n < blocks.size() && block != kNoBlock; block = expired()) {
      erase(block);
      blocks[n++] = block;
    }
    const std::size_t num_expired = n;
    n += inner_.take(blocks.subspan(n));
    for (const BlockId block : blocks.subspan(num_expired, n - num_expired)) {
      uses_.erase(block);
    }
    return n;
  }

  [[nodiscard]] BlockId victim() const noexcept {
    const BlockId block = expired();
    return block != kNoBlock ? block : inner_.victim();
  }
  [[nodiscard]] BlockId front() const noexcept { return inner_.front(); }
  [[nodiscard]] BlockId after(BlockId block) const noexcept { return inner_.after(block); }

  void note_hit(std::span<const BlockId> path) noexcept {
    if constexpr (requires { inner_.note_hit(path); }) {
      inner_.note_hit(path);
    }
  }
  void reset(BlockId block) noexcept {
    if constexpr (requires { inner_.reset(block); }) {
      inner_.reset(block);
    }
  }
  void advance(TimeNs now) noexcept {
    now_ = max_of(now_, now.ns);
    if constexpr (requires { inner_.advance(now); }) {
      inner_.advance(now);
    }
  }

 private:
  // The block unused for longest if that is too long, or kNoBlock.
  [[nodiscard]] BlockId expired() const noexcept {
    if (times_.size() == 0) {
      return kNoBlock;
    }
    const BlockId block = uses_.front(0);
    return block != kNoBlock && now_ - times_.data()[block.value] >= config_.ttl.ns ? block
                                                                                    : kNoBlock;
  }

  Config config_;
  Inner inner_;
  detail::BlockLists uses_;     // By last use.
  Buffer<std::int64_t> times_;  // [num_blocks], of the last use
  std::int64_t now_ = 0;
};

static_assert(EvictionOrder<Ttl<>>);

}  // namespace dynbatch::inline DYNBATCH_ABI
