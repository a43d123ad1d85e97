// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Binary heap over slots that can erase any of them: the waiting queue and the deadlines.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Smallest key first; `order` breaks ties and makes every order total.
struct HeapKey {
  std::int64_t primary = 0;
  std::int64_t secondary = 0;
  std::uint64_t order = 0;
  friend constexpr auto operator<=>(const HeapKey&, const HeapKey&) noexcept = default;
};

/// push, erase and pop are O(log n); top and contains O(1). Each slot stands in it at most once.
class SlotHeap {
 public:
  Status allocate(std::size_t slots, const char* field) noexcept {
    if (Status s = position_.allocate(slots, field); !s) {
      return s;
    }
    return nodes_.allocate(slots, field);
  }

  [[nodiscard]] bool empty() const noexcept { return nodes_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool contains(std::uint32_t slot) const noexcept { return position_[slot] != 0; }
  [[nodiscard]] std::uint32_t top() const noexcept { return nodes_[0].slot; }
  [[nodiscard]] const HeapKey& top_key() const noexcept { return nodes_[0].key; }

  void push(std::uint32_t slot, const HeapKey& key) noexcept {
    DYNBATCH_ASSERT(position_[slot] == 0, "slot is already in the heap");
    nodes_.push_back({key, slot});
    sift_up(nodes_.size() - 1);
  }

  void erase(std::uint32_t slot) noexcept {
    DYNBATCH_ASSERT(position_[slot] != 0, "slot is not in the heap");
    const std::size_t hole = position_[slot] - 1U;
    position_[slot] = 0;
    const Node last = nodes_.back();
    nodes_.pop_back();
    if (hole == nodes_.size()) {
      return;
    }
    nodes_[hole] = last;
    position_[last.slot] = static_cast<std::uint32_t>(hole + 1);
    if (!sift_up(hole)) {
      sift_down(hole);
    }
  }

 private:
  struct Node {
    HeapKey key;
    std::uint32_t slot;
  };

  void place(std::size_t i, const Node& node) noexcept {
    nodes_[i] = node;
    position_[node.slot] = static_cast<std::uint32_t>(i + 1);
  }

  bool sift_up(std::size_t i) noexcept {
    const Node node = nodes_[i];
    const std::size_t start = i;
    while (i > 0 && node.key < nodes_[(i - 1) / 2].key) {
      place(i, nodes_[(i - 1) / 2]);
      i = (i - 1) / 2;
    }
    place(i, node);
    return i != start;
  }

  void sift_down(std::size_t i) noexcept {
    const Node node = nodes_[i];
    for (;;) {
      std::size_t child = 2 * i + 1;
      if (child >= nodes_.size()) {
        break;
      }
      if (child + 1 < nodes_.size() && nodes_[child + 1].key < nodes_[child].key) {
        ++child;
      }
      if (!(nodes_[child].key < node.key)) {
        break;
      }
      place(i, nodes_[child]);
      i = child;
    }
    place(i, node);
  }

  FixedVector<Node> nodes_;
  Buffer<std::uint32_t> position_;  // index + 1; 0 = not in the heap
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
