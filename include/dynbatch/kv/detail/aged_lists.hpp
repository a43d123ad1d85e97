// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// AgedLists: first-in-first-out lists, one a class, whose fronts compete by age and bonus.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// 256 x log2(v), 0 below 2. Linear within an octave, so right to a tenth of one; integers only, so
/// that every compiler evicts the same blocks.
[[nodiscard]] constexpr std::int64_t log2_q8(std::uint64_t v) noexcept {
  if (v < 2) {
    return 0;
  }
  const int octave = static_cast<int>(std::bit_width(v)) - 1;
  const std::uint64_t mantissa = octave >= 8 ? v >> (octave - 8) : v << (8 - octave);
  return (std::int64_t{octave} << 8) + static_cast<std::int64_t>(mantissa & 255U);
}

/// The clock counts blocks pushed, path by path. The key of a block is its path's time on that
/// clock plus the bonus of its class; the lowest key goes first, the lowest class among equals. A
/// path whose blocks were pushed last one first leaves in that order if neither class nor bonus
/// falls from tail to head. O(1) a block, and O(kClasses) each time that another class takes the
/// lead: that is for a stretch of a path, since its blocks have equal times. A block has a counter
/// of its hits, which stops at 255, and a byte for the order's own use.
template <std::int32_t kClasses>
class AgedLists {
  static_assert(kClasses > 0 && kClasses <= 256);
  struct Node;

 public:
  /// What is kept of a block, in one word, so that it is read and written at once.
  class Facts {
   public:
    constexpr Facts() noexcept = default;
    constexpr Facts(std::int64_t time, std::int32_t list, std::int32_t hits,
                    std::int32_t note) noexcept
        : word_((static_cast<std::uint64_t>(time) & kTimeMask) | byte(list) << 40U |
                byte(hits) << 48U | byte(note) << 56U) {}
    [[nodiscard]] constexpr std::int64_t time() const noexcept {
      return static_cast<std::int64_t>(word_ & kTimeMask);
    }
    [[nodiscard]] constexpr std::int32_t list() const noexcept { return at(40); }
    [[nodiscard]] constexpr std::int32_t hits() const noexcept { return at(48); }
    [[nodiscard]] constexpr std::int32_t note() const noexcept { return at(56); }

   private:
    static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 40) - 1;
    static constexpr std::uint64_t byte(std::int32_t v) noexcept {
      return static_cast<std::uint64_t>(v) & 255U;
    }
    [[nodiscard]] constexpr std::int32_t at(unsigned shift) const noexcept {
      return static_cast<std::int32_t>((word_ >> shift) & 255U);
    }
    std::uint64_t word_;
  };

  /// Distance of push_back()'s `ahead` that is worth taking.
  static constexpr std::size_t kAhead = 16;

  [[nodiscard]] Status attach(std::int64_t num_blocks) noexcept {
    clock_ = 0;
    threshold_ = 0;
    has_threshold_ = false;
    leader_ = 0;
    bound_ = kUnknown;
    bound_list_ = 0;
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (num_blocks > kMost - kClasses) {
      return {Errc::InvalidConfig, "num_blocks", num_blocks, kMost - kClasses,
              "too many for this eviction order"};
    }
    num_blocks_ = static_cast<std::int32_t>(num_blocks);
    if (Status s = nodes_.allocate(static_cast<std::size_t>(num_blocks + kClasses), "num_blocks",
                                   PageUse::Dense);
        !s) {
      return s;
    }
    for (std::int32_t list = 0; list < kClasses; ++list) {
      node(end_of(list)).next = end_of(list);
      node(end_of(list)).prev = end_of(list);
    }
    return kOk;
  }

  /// Appends blocks one after the other; the lists are whole again when it is gone. `ahead` is a
  /// block that will be appended some places behind this one, or any: it is loaded early when this
  /// one is taken out, as a list can't be read ahead otherwise.
  class Appender {
   public:
    explicit Appender(AgedLists& lists) noexcept : lists_(lists) {}
    Appender(const Appender&) = delete;
    Appender& operator=(const Appender&) = delete;
    ~Appender() { close(); }

    void add(BlockId block, std::int32_t list, std::int32_t hits, std::int32_t note,
             BlockId ahead) noexcept {
      Node& n = lists_.node(block.value);
      n.facts = Facts(lists_.clock_, list, hits, note);
      n.ahead = ahead.value;
      if (list != list_) {
        close();
        open(list, n);
      }
      n.prev = last_;
      lists_.node(last_).next = block.value;
      last_ = block.value;
    }

   private:
    void open(std::int32_t list, const Node& first) noexcept {
      const Node& end = lists_.node(lists_.end_of(list));
      if (list != lists_.leader_ && end.next == lists_.end_of(list)) {
        note_rival(lists_.key_of(first), list, lists_.bound_, lists_.bound_list_);
      }
      list_ = list;
      last_ = end.prev;
    }
    void close() noexcept {
      if (list_ >= 0) {
        lists_.node(last_).next = lists_.end_of(list_);
        lists_.node(lists_.end_of(list_)).prev = last_;
      }
    }

    AgedLists& lists_;
    std::int32_t list_ = -1;
    std::int32_t last_ = 0;
  };

  /// Appends one block.
  void push_back(BlockId block, std::int32_t list, BlockId ahead) noexcept {
    const Facts facts = node(block.value).facts;
    Appender(*this).add(block, list, facts.hits(), facts.note(), ahead);
  }
  /// So many blocks were pushed, the clock moves on.
  void advance(std::size_t count) noexcept { clock_ += static_cast<std::int64_t>(count); }
  void erase(BlockId block) noexcept { unlink(block.value, block.value); }
  /// erase() of each block of a path; neighbours that were pushed last one first go at once.
  void erase(std::span<const BlockId> path) noexcept {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::int32_t last = path[i].value;
      while (i + 1 < path.size() && node(path[i + 1].value).next == path[i].value) {
        ++i;
      }
      unlink(path[i].value, last);
    }
  }

  /// Takes out the blocks with the lowest keys; tells `on_evict(block, class)` of each.
  template <class OnEvict>
  std::size_t take(std::span<BlockId> blocks, OnEvict on_evict) noexcept {
    std::size_t taken = 0;
    while (taken < blocks.size()) {
      std::int32_t block = node(end_of(leader_)).next;
      if (!leads(block, leader_, bound_, bound_list_) &&
          !find_leader(leader_, bound_, bound_list_)) {
        break;
      }
      // Most often a stretch of a path: all of it leaves the list at once.
      const std::int32_t end = end_of(leader_);
      block = node(end).next;
      do {
        const Node& n = node(block);
        __builtin_prefetch(&nodes_.data()[n.ahead], 1);
        threshold_ = key_of(n);
        const std::int32_t behind = n.next;
        blocks[taken++] = BlockId{block};
        on_evict(BlockId{block}, leader_);
        block = behind;
      } while (taken < blocks.size() && leads(block, leader_, bound_, bound_list_));
      node(end).next = block;
      node(block).prev = end;
      has_threshold_ = true;
    }
    return taken;
  }

  [[nodiscard]] BlockId victim() const noexcept {
    if (nodes_.size() == 0) {
      return kNoBlock;
    }
    if (leads(node(end_of(leader_)).next, leader_, bound_, bound_list_)) {
      return front_of(leader_);
    }
    std::int32_t leader = 0;
    std::int64_t bound = 0;
    std::int32_t bound_list = 0;
    return find_leader(leader, bound, bound_list) ? front_of(leader) : kNoBlock;
  }
  [[nodiscard]] BlockId front() const noexcept {
    return nodes_.size() == 0 ? kNoBlock : front_from(0);
  }
  [[nodiscard]] BlockId after(BlockId block) const noexcept {
    const std::int32_t behind = node(block.value).next;
    return behind < num_blocks_ ? BlockId{behind} : front_from(behind - num_blocks_ + 1);
  }

  void set_bonus(std::int32_t list, std::int64_t bonus) noexcept {
    bonus_[list] = bonus;
    bound_ = kUnknown;
    bound_list_ = 0;
  }
  [[nodiscard]] std::int64_t bonus(std::int32_t list) const noexcept { return bonus_[list]; }
  [[nodiscard]] std::int32_t class_of(BlockId block) const noexcept {
    return node(block.value).facts.list();
  }
  [[nodiscard]] std::int64_t age_of(BlockId block) const noexcept {
    return clock_ - node(block.value).facts.time();
  }
  [[nodiscard]] std::int64_t clock() const noexcept { return clock_; }
  /// True once a block was evicted; life_of() means something from then on.
  [[nodiscard]] bool has_evicted() const noexcept { return has_threshold_; }
  /// Age at which a block of that class was evicted, or would have been, at the latest eviction.
  [[nodiscard]] std::int64_t life_of(std::int32_t list) const noexcept {
    return clock_ - (threshold_ - bonus_[list]);
  }

  [[nodiscard]] std::int32_t hits(BlockId block) const noexcept {
    return node(block.value).facts.hits();
  }
  void count_hit(BlockId block) noexcept {
    Facts& f = node(block.value).facts;
    f = Facts(f.time(), f.list(), min_of(f.hits() + 1, 255), f.note());
  }
  [[nodiscard]] std::int32_t note(BlockId block) const noexcept {
    return node(block.value).facts.note();
  }
  void set_note(BlockId block, std::int32_t value) noexcept {
    Facts& f = node(block.value).facts;
    f = Facts(f.time(), f.list(), f.hits(), value);
  }
  [[nodiscard]] Facts facts(BlockId block) const noexcept { return node(block.value).facts; }
  /// Hits and note are zero again.
  void reset(BlockId block) noexcept {
    Facts& f = node(block.value).facts;
    f = Facts(f.time(), f.list(), 0, 0);
  }

 private:
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  // Together, so that a block costs one cache line here. Sentinels of the lists lie behind blocks.
  struct Node {
    Facts facts;
    std::int32_t next;
    std::int32_t prev;
    std::int32_t ahead;
  };

  Node& node(std::int32_t i) noexcept { return nodes_.data()[i]; }
  [[nodiscard]] const Node& node(std::int32_t i) const noexcept { return nodes_.data()[i]; }
  [[nodiscard]] std::int32_t end_of(std::int32_t list) const noexcept { return num_blocks_ + list; }
  void unlink(std::int32_t first, std::int32_t last) noexcept {
    const std::int32_t before = node(first).prev;
    const std::int32_t behind = node(last).next;
    node(before).next = behind;
    node(behind).prev = before;
  }
  [[nodiscard]] BlockId front_of(std::int32_t list) const noexcept {
    const std::int32_t block = node(end_of(list)).next;
    return block >= num_blocks_ ? kNoBlock : BlockId{block};
  }
  [[nodiscard]] BlockId front_from(std::int32_t list) const noexcept {
    for (; list < kClasses; ++list) {
      if (const BlockId block = front_of(list); block != kNoBlock) {
        return block;
      }
    }
    return kNoBlock;
  }
  [[nodiscard]] std::int64_t key_of(const Node& n) const noexcept {
    return n.facts.time() + bonus_[n.facts.list()];
  }
  // Whether a block of the leading list, or its end, goes before the fronts of all others.
  [[nodiscard]] bool leads(std::int32_t block, std::int32_t leader, std::int64_t bound,
                           std::int32_t bound_list) const noexcept {
    if (block >= num_blocks_) {
      return false;
    }
    const std::int64_t key = key_of(node(block));
    return key < bound || (key == bound && leader < bound_list);
  }
  static void note_rival(std::int64_t key, std::int32_t list, std::int64_t& bound,
                         std::int32_t& bound_list) noexcept {
    if (key < bound || (key == bound && list < bound_list)) {
      bound = key;
      bound_list = list;
    }
  }
  // The class whose front goes first, and the key and class of what goes first among the others.
  bool find_leader(std::int32_t& leader, std::int64_t& bound,
                   std::int32_t& bound_list) const noexcept {
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::int64_t lowest = kNone;
    bound = kNone;
    bound_list = kClasses;
    for (std::int32_t list = 0; list < kClasses; ++list) {
      const BlockId block = front_of(list);
      const std::int64_t key = block == kNoBlock ? kNone : key_of(node(block.value));
      if (key < lowest) {
        note_rival(lowest, leader, bound, bound_list);
        lowest = key;
        leader = list;
      } else {
        note_rival(key, list, bound, bound_list);
      }
    }
    return lowest != kNone;
  }

  Buffer<Node> nodes_;  // [num_blocks + kClasses]
  std::int64_t bonus_[static_cast<std::size_t>(kClasses)] = {};
  std::int64_t clock_ = 0;
  std::int64_t threshold_ = 0;     // Key of the latest victim.
  std::int64_t bound_ = kUnknown;  // No front but the leader's goes before this key of this class.
  std::int32_t bound_list_ = 0;
  std::int32_t num_blocks_ = 0;
  std::int32_t leader_ = 0;
  bool has_threshold_ = false;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
