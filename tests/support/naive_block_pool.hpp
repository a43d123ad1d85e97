// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BlockPool written down in standard containers, as its rules say: predicts every table, counter
/// and hit, block by block.
#include "../unit/kv/naive_orders.hpp"
#include "block_pool_stories.hpp"
#include "choices.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace dynbatch::test {

template <class Eviction>
class NaiveBlockPool {
 public:
  struct Match {
    std::vector<int> blocks;
    std::int64_t idle = 0;
    std::uint64_t newest = 0;
    int source = -1;  // Block whose front is copied,
    std::int64_t copied = 0;
    std::int64_t limit = 0;
  };
  struct RowModel {
    std::vector<int> table;
    std::size_t acquired = 0;
    std::size_t published = 0;
    const Story* story = nullptr;
    int source = -1;
  };

  NaiveBlockPool(const Eviction& order, std::int64_t num_blocks, int num_rows)
      : rows(static_cast<std::size_t>(num_rows)),
        cached_(order, num_blocks),
        references_(static_cast<std::size_t>(num_blocks)),
        used_(static_cast<std::size_t>(num_blocks)),
        size_(num_blocks) {
    for (int b = 0; b < num_blocks; ++b) {
      free_.push_back(b);
    }
  }

  // ---- looking up -------------------------------------------------------------------------------

  Match match(const Story& s, std::int64_t limit, std::int64_t known) const {
    Match m;
    m.limit = limit;
    const std::int64_t blocks =
        std::min({limit / kStoryBlock, known / kStoryBlock, s.shareable_blocks});
    int generation = 0;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const auto it = index_.find(key(s, i, generation));
      if (it == index_.end()) {
        break;
      }
      generation = it->second.generation;
      const int b = it->second.holders.front();
      m.blocks.push_back(b);
      m.idle += references(b) == 0 ? 1 : 0;
      m.newest = std::max(m.newest, plan_.at(b));
    }
    m.newest = m.newest > settled_ ? m.newest : 0;
    return m;
  }

  // The front of the block behind those of a match: of that very block if only the limit keeps it
  // from being found, else of the first child that the last one has.
  void match_partly(Match& m, const Story& s, std::int64_t limit, std::int64_t known,
                    std::int64_t min_tokens) const {
    const auto block = static_cast<std::int64_t>(m.blocks.size());
    const std::int64_t begin = block * kStoryBlock;
    const std::int64_t content_end =
        s.is_digest ? s.shareable_blocks * kStoryBlock : s.content.length();
    std::int64_t tokens = std::min({limit, known, content_end}) - begin;
    tokens = std::min<std::int64_t>(tokens, kStoryBlock);
    const int generation = block > 0 ? index_.at(where_.at(m.blocks.back())).generation : 0;
    const Entry* entry = nullptr;
    if (block < std::min(known / kStoryBlock, s.shareable_blocks)) {
      const auto it = index_.find(key(s, block, generation));
      entry = it == index_.end() ? nullptr : &it->second;
    }
    for (const auto& [k, e] : index_) {
      if (entry != nullptr || s.is_digest || block == 0 || !e.is_linked ||
          k.generation != generation) {
        continue;
      }
      const std::vector<std::int64_t> items = media_of(s, block);
      const bool is_whole = static_cast<std::int64_t>(s.blocks.size()) > block;
      const bool has_equal_end = is_whole && s.blocks[static_cast<std::size_t>(block)] == k.letter;
      tokens = std::min<std::int64_t>(tokens, has_equal_end ? kStoryBlock : kStoryBlock - 1);
      tokens = items.empty() ? tokens : std::min(tokens, -items[1]);
      entry = &e;
    }
    if (entry == nullptr || tokens < min_tokens || plan_.at(entry->holders.front()) > settled_) {
      return;
    }
    m.source = entry->holders.front();
    m.copied = tokens;
    m.idle += references(m.source) == 0 ? 1 : 0;
  }

  // ---- rows take blocks -------------------------------------------------------------------------

  void acquire(int row, const Match& m, std::size_t blocks, const Story* story) {
    RowModel& r = row_at(row);
    queried_tokens += static_cast<std::uint64_t>(m.limit);
    hit_tokens += blocks * static_cast<std::size_t>(kStoryBlock);
    const auto end = m.blocks.begin() + static_cast<std::ptrdiff_t>(blocks);
    reference(row, {m.blocks.begin(), end});
    r.acquired = r.published = blocks;
    r.story = story;
    if (m.copied > 0 && blocks == m.blocks.size()) {
      hit_tokens += static_cast<std::uint64_t>(m.copied);
      use({m.source});
      r.source = m.source;
      DYNBATCH_EXPECT(extend(row, static_cast<std::int64_t>(blocks + 1) * kStoryBlock));
    }
  }

  bool hold(int row, const std::vector<int>& blocks) {
    RowModel& r = row_at(row);
    const bool are_certain = std::all_of(blocks.begin(), blocks.end(), [&](int b) {
      return where_.count(b) != 0 && plan_.at(b) <= settled_;
    });
    if (!r.table.empty() || !are_certain) {
      return false;
    }
    reference(row, blocks);
    r.acquired = r.published = 0;
    r.story = nullptr;
    return true;
  }

  bool extend(int row, std::int64_t tokens) {
    RowModel& r = row_at(row);
    const auto wanted = static_cast<std::size_t>((tokens + kStoryBlock - 1) / kStoryBlock);
    if (wanted <= r.table.size()) {
      return true;
    }
    if (static_cast<std::int64_t>(wanted - r.table.size()) > num_free() + num_cached()) {
      return false;
    }
    while (r.table.size() < wanted) {
      int b = -1;
      if (!free_.empty()) {
        b = free_.front();
        free_.pop_front();
      } else {
        b = cached_.victim();
        cached_.forget(b);
        leave(b);
        ++evictions;
      }
      r.table.push_back(b);
      ++references_[static_cast<std::size_t>(b)];
      used_[static_cast<std::size_t>(b)] = true;
    }
    return true;
  }

  Errc fork(int from, int to, std::int64_t tokens) {
    const RowModel& parent = row_at(from);
    RowModel& child = row_at(to);
    const auto capacity = static_cast<std::int64_t>(parent.table.size()) * kStoryBlock;
    if (from == to || !child.table.empty() || tokens < 0 || tokens > capacity) {
      return Errc::InvalidArgument;
    }
    if (tokens % kStoryBlock != 0 && num_free() + num_cached() == 0) {
      return Errc::QueueFull;
    }
    const auto whole = static_cast<std::size_t>(tokens / kStoryBlock);
    reference(to,
              {parent.table.begin(), parent.table.begin() + static_cast<std::ptrdiff_t>(whole)});
    child.acquired = whole;
    child.published = std::min(whole, parent.published);
    child.story = parent.story;
    DYNBATCH_EXPECT(extend(to, tokens));
    return Errc::Ok;
  }

  // ---- what is known of them --------------------------------------------------------------------

  void publish(int row, std::int64_t tokens, std::int64_t known, std::uint64_t plan) {
    RowModel& r = row_at(row);
    const auto end = static_cast<std::size_t>(
        std::min({tokens / kStoryBlock, known / kStoryBlock, r.story->shareable_blocks,
                  static_cast<std::int64_t>(r.table.size())}));
    int generation = 0;
    if (r.published > 0 && r.published < end) {
      const auto it = where_.find(r.table[r.published - 1]);
      if (it == where_.end()) {
        return;
      }
      generation = index_.at(it->second).generation;
    }
    for (; r.published < end; ++r.published) {
      const int b = r.table[r.published];
      if (where_.count(b) != 0) {
        return;
      }
      if (withdrawn_.count(b) != 0) {
        if (references(b) != 1) {
          return;
        }
        withdrawn_.erase(b);
      }
      const Key k = key(*r.story, static_cast<std::int64_t>(r.published), generation);
      auto [it, is_new] = index_.try_emplace(k);
      if (is_new) {
        it->second.generation = ++last_generation_;
        // The first child without media is reached by a link, until it goes.
        it->second.is_linked = k.media.empty() && !has_link(generation);
      }
      it->second.holders.push_back(b);
      where_[b] = k;
      plan_[b] = plan;
      generation = it->second.generation;
    }
  }

  std::int64_t withdraw(int row, std::int64_t tokens) {
    RowModel& r = row_at(row);
    const auto first = static_cast<std::size_t>(tokens / kStoryBlock);
    std::int64_t n = 0;
    std::size_t published = r.published;
    for (std::size_t i = r.published; i-- > first;) {
      const int b = r.table[i];
      const auto it = where_.find(b);
      if (it == where_.end()) {
        published = i;
        continue;
      }
      if (i < r.acquired && plan_[b] <= settled_) {
        continue;
      }
      const Key k = it->second;
      leave(b);
      if (references(b) > 1) {
        withdrawn_.insert(b);
        rename(k);
      }
      published = i;
      ++n;
    }
    r.published = published;
    return n;
  }

  void settle(std::uint64_t plan) { settled_ = std::max(settled_, plan); }

  bool forget(int b) {
    if (where_.count(b) == 0) {
      return false;
    }
    const Key k = where_.at(b);
    leave(b);
    rename(k);
    if (references(b) == 0) {
      cached_.forget(b);
      free_.push_front(b);
    }
    return true;
  }

  // ---- rows give blocks back --------------------------------------------------------------------

  void finish_copy(int row) {
    const int b = row_at(row).source;
    row_at(row).source = -1;
    if (b < 0 || --references_[static_cast<std::size_t>(b)] > 0) {
      return;
    }
    if (b < size_ && where_.count(b) != 0 && plan_[b] <= settled_) {
      withdrawn_.erase(b);
      cached_.insert_backwards({b}, 0);
      return;
    }
    become_free(b);
  }

  void truncate(int row, std::int64_t tokens) {
    RowModel& r = row_at(row);
    if (tokens == 0) {
      finish_copy(row);  // Nothing is left to copy to.
    }
    if (tokens >= static_cast<std::int64_t>(r.table.size()) * kStoryBlock) {
      return;
    }
    const auto length = static_cast<std::size_t>((tokens + kStoryBlock - 1) / kStoryBlock);
    // Neighbours that become cached do so at once.
    std::size_t num_kept = 0;
    const std::vector<int> path = r.table;
    const auto keep = [&] {
      const auto end = path.begin() + static_cast<std::ptrdiff_t>(r.table.size() + num_kept);
      cached_.insert_backwards({path.begin(), end}, r.table.size());
      num_kept = 0;
    };
    while (r.table.size() > length) {
      const int b = r.table.back();
      const bool is_last = references(b) == 1;
      if (is_last && where_.count(b) != 0 && plan_[b] <= settled_ && b < size_) {
        drop_last(r);
        ++num_kept;
        continue;
      }
      keep();
      drop_last(r);
      if (is_last) {
        become_free(b);
      }
    }
    keep();
    r.acquired = std::min(r.acquired, length);
    r.published = std::min(r.published, length);
    if (tokens % kStoryBlock != 0 && r.published == length && where_.count(r.table.back()) != 0 &&
        references(r.table.back()) == 1) {
      leave(r.table.back());
      r.published = length - 1;
      r.acquired = std::min(r.acquired, length - 1);
    }
  }

  void discard(int row, std::int64_t tokens) {
    const RowModel& r = row_at(row);
    const auto kept = static_cast<std::size_t>((tokens + kStoryBlock - 1) / kStoryBlock);
    for (std::size_t i = r.table.size(); i-- > kept;) {
      if (where_.count(r.table[i]) != 0 && references(r.table[i]) == 1) {
        leave(r.table[i]);
      }
    }
    truncate(row, tokens);
  }

  void release(int row) {
    RowModel& r = row_at(row);
    truncate(row, 0);
    r.story = nullptr;
    r.acquired = r.published = 0;
  }

  // ---- the pool as a whole ----------------------------------------------------------------------

  bool clear() {
    for (const RowModel& r : rows) {
      if (!r.table.empty() || r.source >= 0) {
        return false;
      }
    }
    for (int b = cached_.victim(); b >= 0; b = cached_.victim()) {
      cached_.forget(b);
      free_.push_front(b);
    }
    where_.clear();
    index_.clear();
    return true;
  }

  void resize(std::int64_t size) {
    for (int b = static_cast<int>(size); b < size_; ++b) {
      if (cached_.contains(b)) {
        cached_.forget(b);
        leave(b);
        ++evictions;
      }
      free_.remove(b);
    }
    // Blocks never used stay behind the others; used ones come back in front.
    for (int b = static_cast<int>(size_); b < size; ++b) {
      if (references(b) != 0) {
        continue;
      }
      if (used_[static_cast<std::size_t>(b)]) {
        free_.push_front(b);
      } else {
        free_.push_back(b);
      }
    }
    size_ = size;
  }

  // ---- observers --------------------------------------------------------------------------------

  bool reads_withdrawn(int row) const {
    const RowModel& r = row_at(row);
    return withdrawn_.count(r.source) != 0 ||
           std::any_of(r.table.begin(), r.table.begin() + static_cast<std::ptrdiff_t>(r.acquired),
                       [&](int b) { return withdrawn_.count(b) != 0; });
  }
  bool holds_withdrawn(int row) const {
    const RowModel& r = row_at(row);
    return std::any_of(r.table.begin(), r.table.end(),
                       [&](int b) { return withdrawn_.count(b) != 0 && references(b) > 1; });
  }
  std::int64_t num_settled_blocks(int row) const {
    const std::vector<int>& table = row_at(row).table;
    const auto end = std::find_if(table.begin(), table.end(), [&](int b) {
      return where_.count(b) == 0 || plan_.at(b) > settled_;
    });
    return end - table.begin();
  }
  int references(int b) const { return references_[static_cast<std::size_t>(b)]; }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_cached() const { return cached_.size(); }
  std::int64_t num_referenced() const {
    return std::count_if(references_.begin(), references_.end(), [](int n) { return n > 0; });
  }
  std::int64_t size() const { return size_; }
  kv_test::Naive<Eviction>& order() { return cached_; }
  RowModel& row_at(int row) { return rows[static_cast<std::size_t>(row)]; }
  const RowModel& row_at(int row) const { return rows[static_cast<std::size_t>(row)]; }

  std::vector<RowModel> rows;
  std::uint64_t evictions = 0;
  std::uint64_t queried_tokens = 0;
  std::uint64_t hit_tokens = 0;

 private:
  // What the block says and the generation of its parent, which no other path has.
  struct Key {
    int generation = 0;
    int scope = 0;
    bool is_digest = false;
    int letter = 0;
    std::vector<std::int64_t> media = {};
    bool operator<(const Key& other) const {
      return std::tie(generation, scope, is_digest, letter, media) <
             std::tie(other.generation, other.scope, other.is_digest, other.letter, other.media);
    }
  };
  struct Entry {
    std::vector<int> holders;
    int generation = 0;
    bool is_linked = false;
  };

  // A content without media is equal to one whose items come later.
  static std::vector<std::int64_t> media_of(const Story& s, std::int64_t block) {
    return block < static_cast<std::int64_t>(s.media.size())
               ? s.media[static_cast<std::size_t>(block)]
               : std::vector<std::int64_t>{};
  }
  static Key key(const Story& s, std::int64_t block, int generation) {
    return {generation, s.scope, s.is_digest, s.blocks[static_cast<std::size_t>(block)],
            media_of(s, block)};
  }
  bool has_link(int parent) const {
    Key first;
    first.generation = parent;
    first.scope = -1;
    for (auto it = index_.lower_bound(first); it != index_.end() && it->first.generation == parent;
         ++it) {
      if (it->second.is_linked) {
        return true;
      }
    }
    return false;
  }
  void leave(int b) {
    const Key k = where_.at(b);
    where_.erase(b);
    auto& holders = index_.at(k).holders;
    holders.erase(std::find(holders.begin(), holders.end(), b));
    if (holders.empty()) {
      index_.erase(k);
    }
  }
  // What was computed from a block that is void must not be found below its copies.
  void rename(const Key& k) {
    if (const auto left = index_.find(k); left != index_.end()) {
      left->second.generation = ++last_generation_;
    }
  }
  // What a match finds is used: nobody evicts it.
  void use(const std::vector<int>& blocks) {
    std::vector<int> idle;
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(idle),
                 [&](int b) { return cached_.contains(b); });
    cached_.note_hit(blocks);
    cached_.erase_used(idle);
    for (const int b : blocks) {
      ++references_[static_cast<std::size_t>(b)];
    }
  }
  void reference(int row, const std::vector<int>& blocks) {
    use(blocks);
    row_at(row).table = blocks;
  }
  void drop_last(RowModel& r) {
    --references_[static_cast<std::size_t>(r.table.back())];
    r.table.pop_back();
  }
  // A block that nobody references any more and that isn't worth keeping.
  void become_free(int b) {
    withdrawn_.erase(b);
    if (where_.count(b) != 0) {
      leave(b);
    }
    if (b < size_) {
      cached_.reset(b);
      free_.push_front(b);
    }
  }

  std::list<int> free_;
  kv_test::Naive<Eviction> cached_;
  std::map<Key, Entry> index_;
  std::map<int, Key> where_;
  std::map<int, std::uint64_t> plan_;
  std::set<int> withdrawn_;
  std::vector<int> references_;
  std::vector<bool> used_;
  std::uint64_t settled_ = 0;
  std::int64_t size_;
  int last_generation_ = 0;
};

}  // namespace dynbatch::test
