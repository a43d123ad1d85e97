// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PrefixIndex: what is done to many blocks at once.
#include <dynbatch/kv/prefix_index.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Hash>
template <class Cursor>
std::int64_t PrefixIndex<Hash>::append(std::span<const BlockId> blocks, PrefixNode& parent,
                                       bool is_digest, Cursor& cursor, PlanId plan) noexcept {
  std::int64_t n = 0;
  const auto num_blocks = static_cast<std::int64_t>(blocks.size());
  while (n < num_blocks) {
    // Content that lies side by side, so that the loop inside knows where all of it is.
    const std::int64_t end = min_of(n + max_of<std::int64_t>(cursor.num_left(), 1), num_blocks);
    const auto part =
        blocks.subspan(static_cast<std::size_t>(n), static_cast<std::size_t>(end - n));
    const auto* content = static_cast<const unsigned char*>(cursor.data());
    const std::int64_t entered =
        is_digest ? append_side_by_side(part, parent, plan, content, cursor.step(), kIsDigest)
                  : append_side_by_side(part, parent, plan, content, cursor.step(), 0);
    cursor.skip(entered);
    n += entered;
    if (n < end) {
      break;
    }
  }
  return n;
}

template <class Hash>
std::int64_t PrefixIndex<Hash>::append_side_by_side(std::span<const BlockId> blocks,
                                                    PrefixNode& parent, PlanId plan,
                                                    const unsigned char* content, std::size_t step,
                                                    std::uint32_t flags) noexcept {
  constexpr std::size_t kAhead = 8;
  std::int32_t* const entries = entries_.data();
  std::uint64_t* const plans = plans_.data();
  Node* const nodes = nodes_.data();
  std::int32_t free_node = free_node_;
  std::int32_t first_unused = first_unused_;
  std::int32_t above = parent.value;
  std::uint64_t above_id = nodes[above].id;
  const std::uint64_t first_id = last_id_;
  std::uint64_t id = first_id;
  const std::size_t num_ahead = blocks.size() > kAhead ? blocks.size() - kAhead : 0;
  const bool is_dense = step == bytes_of((flags & kIsDigest) != 0);
  // Content of chunks is copied for as many as lie side by side at once.
  std::int32_t copied = 0;
  std::int32_t num_uncopied = 0;
  const unsigned char* uncopied = content;
  std::size_t i = 0;
  for (; i < blocks.size(); ++i) {
    if (is_dense && i % detail::kChunk == 0 && i + detail::kChunk <= blocks.size()) {
      const NodeRun run = free_run(free_node, first_unused);
      if (run.first >= 0 && append_chunk(blocks.data() + i, run.first, above, id, plan, flags)) {
        if (run.first != copied + num_uncopied ||
            content != uncopied + static_cast<std::size_t>(num_uncopied) * step) {
          copy_contents(copied, uncopied, num_uncopied, flags);
          copied = run.first;
          uncopied = content;
          num_uncopied = 0;
        }
        num_uncopied += static_cast<std::int32_t>(detail::kChunk);
        free_node = run.next_free;
        first_unused = run.next_unused;
        above = run.first + static_cast<std::int32_t>(detail::kChunk) - 1;
        id += detail::kChunk;
        above_id = id;
        content += detail::kChunk * step;
        i += detail::kChunk - 1;
        continue;
      }
    }
    const std::int32_t block = blocks[i].value;
    if (entries[block] != 0) {
      break;
    }
    if (i < num_ahead) {
      __builtin_prefetch(&entries[blocks[i + kAhead].value], 1);
      __builtin_prefetch(&plans[blocks[i + kAhead].value], 1);
    }
    std::int32_t node = free_node;
    if (node >= 0) {
      free_node = nodes[node].child;
    } else {
      node = first_unused++;
    }
    nodes[node] = {++id, above_id, above, -1, block, flags};
    nodes[above].child = node;
    entries[block] = node + 1;
    plans[block] = plan.value;
    store_content(node, content, (flags & kIsDigest) != 0);
    content += step;
    above = node;
    above_id = id;
  }
  copy_contents(copied, uncopied, num_uncopied, flags);
  free_node_ = free_node;
  first_unused_ = first_unused;
  last_id_ = id;
  num_nodes_ += static_cast<std::int64_t>(i);
  newest_plan_ = i != 0 ? max_of(newest_plan_, plan.value) : newest_plan_;
  if (events_.is_on()) [[unlikely]] {
    for (std::size_t k = 0; k < i; ++k) {
      announce(KvEventKind::Stored, node_of(blocks[k]));
    }
  }
  parent = {above};
  return static_cast<std::int64_t>(i);
}

template <class Hash>
void PrefixIndex<Hash>::copy_contents(std::int32_t node, const void* content, std::int32_t count,
                                      std::uint32_t flags) noexcept {
  const auto n = static_cast<std::size_t>(count);
  if ((flags & kIsDigest) != 0) {
    std::memcpy(static_cast<void*>(digests_.data() + node), content, n * sizeof(ContentDigest));
  } else {
    std::memcpy(contents_.data() + static_cast<std::size_t>(node) * content_bytes_, content,
                n * content_bytes_);
  }
}

template <class Hash>
typename PrefixIndex<Hash>::NodeRun PrefixIndex<Hash>::free_run(
    std::int32_t free_node, std::int32_t first_unused) const noexcept {
  constexpr auto kChunk = static_cast<std::int32_t>(detail::kChunk);
  if (free_node < 0) {
    return {first_unused, -1, first_unused + kChunk};
  }
  std::int32_t node = free_node;
  for (std::int32_t k = 1; k < kChunk; ++k, ++node) {
    if (at(node).child != node + 1) {
      return {-1, free_node, first_unused};
    }
  }
  return {free_node, at(node).child, first_unused};
}

template <class Hash>
bool PrefixIndex<Hash>::append_chunk(const BlockId* blocks, std::int32_t first, std::int32_t above,
                                     std::uint64_t last_id, PlanId plan,
                                     std::uint32_t flags) noexcept {
  constexpr auto kChunk = static_cast<std::int32_t>(detail::kChunk);
  const detail::BlockChunk chunk = detail::chunk_at(blocks);
  std::int32_t* const entries = entries_.data() + chunk.lowest;
  if (chunk.step == 0 || !detail::are_zero(entries)) {
    return false;
  }
  Node* const nodes = nodes_.data();
  const detail::WideLanes plans = detail::WideLanes{} + plan.value;
  unsigned char* const out_plans = reinterpret_cast<unsigned char*>(plans_.data() + chunk.lowest);
  for (std::size_t k = 0; k < detail::kChunk * sizeof(plan.value); k += sizeof(plans)) {
    std::memcpy(out_plans + k, &plans, sizeof(plans));
  }
  detail::Lanes some = chunk.step > 0
                           ? detail::Lanes{1, 2, 3, 4} + first
                           : detail::Lanes{kChunk, kChunk - 1, kChunk - 2, kChunk - 3} + first;
  for (std::int32_t k = 0; k < kChunk; k += 4, some += 4 * chunk.step) {
    std::memcpy(entries + k, &some, sizeof(some));
  }
  // {id, parent_id} and {parent, child, block, flags}: two stores a node.
  detail::WideLanes ids = {last_id + 1, nodes[above].id};
  detail::Lanes links = {above, first + 1, blocks[0].value, static_cast<std::int32_t>(flags)};
  nodes[above].child = first;
  static_assert(sizeof(Node) == sizeof(ids) + sizeof(links));
  const auto store = [&](Node& node) {
    auto* const out = reinterpret_cast<unsigned char*>(&node);
    std::memcpy(out, &ids, sizeof(ids));
    std::memcpy(out + sizeof(ids), &links, sizeof(links));
  };
  store(nodes[first]);
  ids[1] = last_id;
  links[0] = first - 1;
  const detail::Lanes next = {1, 1, chunk.step, 0};
  for (std::int32_t k = 1; k < kChunk; ++k) {
    ids += 1;
    links += next;
    store(nodes[first + k]);
  }
  nodes[first + kChunk - 1].child = -1;
  return true;
}

template <class Hash>
void PrefixIndex<Hash>::remove(std::span<const BlockId> blocks) noexcept {
  constexpr std::size_t kAhead = 12;
  constexpr std::uint32_t kNotPlain = kIsHashed | kHasRing;
  std::int32_t* const entries = entries_.data();
  Node* const nodes = nodes_.data();
  const bool announces = events_.is_on();
  const std::size_t n = blocks.size();
  for (const BlockId block : blocks.first(min_of(2 * kAhead, n))) {
    __builtin_prefetch(&entries[block.value], 1);
  }
  for (const BlockId block : blocks.first(min_of(kAhead, n))) {
    __builtin_prefetch(&nodes[entries[block.value] - 1], 1);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n) {
      __builtin_prefetch(&entries[blocks[i + 2 * kAhead].value], 1);
    }
    if (i + kAhead < n) {
      __builtin_prefetch(&nodes[entries[blocks[i + kAhead].value] - 1], 1);
    }
    const std::int32_t index = entries[blocks[i].value] - 1;
    Node& node = nodes[index];
    __builtin_prefetch(&plans_.data()[blocks[i].value], 1);
    __builtin_prefetch(content_of(index, (node.flags & kIsDigest) != 0), 1);
    if ((node.flags & kNotPlain) != 0 || announces) {
      remove(blocks[i]);
      continue;
    }
    // remove() for the only holder of a first child.
    path_changes_ += is_leaf({index}) ? 0U : 1U;
    entries[blocks[i].value] = 0;
    Node& parent = nodes[node.parent];
    if (parent.id == node.parent_id) {
      parent.child = -1;
    }
    node.id = 0;
    node.child = free_node_;
    free_node_ = index;
    --num_nodes_;
  }
}

template <class Hash>
std::int64_t PrefixIndex<Hash>::walk(PrefixNode& node, const void* content, std::int64_t max_blocks,
                                     bool is_digest) const noexcept {
  const std::int32_t first = node.value + 1;
  std::int32_t last = node.value;
  const auto end = static_cast<std::int32_t>(last + max_blocks);
  while (last < end && nodes_.data()[last].child == last + 1) {
    ++last;
  }
  if (last < first) {
    return 0;
  }
  if (is_digest && has_content(last,
                               static_cast<const unsigned char*>(content) +
                                   static_cast<std::size_t>(last - first) * sizeof(ContentDigest),
                               true)) {
    const std::int64_t walked = last - node.value;
    node.value = last;
    return walked;  // A digest stands for all that is before it.
  }
  // One comparison of many blocks is worth more than knowing where they differ.
  const auto* blocks = static_cast<const unsigned char*>(content);
  const std::size_t stride = bytes_of(is_digest);
  if (std::memcmp(content_of(first, is_digest), blocks,
                  static_cast<std::size_t>(last - node.value) * stride) == 0) {
    const std::int64_t walked = last - node.value;
    node.value = last;
    return walked;
  }
  std::int64_t walked = 0;
  while (has_content(node.value + 1, blocks, is_digest)) {
    blocks += stride;
    ++node.value;
    ++walked;
  }
  return walked;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
