// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A naive pool of KV blocks with a prefix cache: every block an object, every look-up a scan.
#include "naive_types.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dynbatch::test::naive {

/// What stands in one block, as words; that of a first block begins with its scope.
using Content = std::vector<std::int64_t>;

class Pool {
 public:
  struct Match {
    std::vector<int> blocks;
    std::int64_t idle = 0;    ///< Of these, how many nobody references.
    bool is_pending = false;  ///< A plan in flight has still to write one of them.
    int source = -1;          ///< Block whose front is to be copied,
    std::int64_t copied = 0;  ///< so many tokens of it.
    bool is_source_idle = false;

    void drop_copy() {
      idle -= is_source_idle ? 1 : 0;
      source = -1;
      copied = 0;
      is_source_idle = false;
    }
  };
  /// What is known behind the whole blocks of a look-up.
  struct Rest {
    std::vector<Content> block;  ///< All of the next block, if it may be shared at all.
    std::int64_t tokens = 0;     ///< Of these, how many may be found,
    std::vector<Token> front;    ///< and the tokens before the next media item.
    std::int64_t least = 1;      ///< Fewer are not copied.
  };

  Pool(std::int64_t blocks, bool caching)
      : blocks_(static_cast<std::size_t>(blocks)), caching_(caching) {}

  [[nodiscard]] std::int64_t total() const { return static_cast<std::int64_t>(blocks_.size()); }
  [[nodiscard]] std::int64_t cached() const { return static_cast<std::int64_t>(idle_.size()); }
  [[nodiscard]] std::int64_t referenced() const {
    return std::count_if(blocks_.begin(), blocks_.end(),
                         [](const Block& b) { return b.references > 0; });
  }
  [[nodiscard]] std::int64_t available() const { return total() - referenced(); }
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

  /// The longest cached prefix of `contents`: the oldest holder of each block.
  [[nodiscard]] Match match(const std::vector<Content>& contents) const {
    Match m;
    std::uint64_t parent = 0;
    for (const Content& content : contents) {
      const Prefix* prefix = find(parent, content);
      if (prefix == nullptr) {
        break;
      }
      const int block = prefix->holders.front();
      m.blocks.push_back(block);
      m.idle += at(block).references == 0 ? 1 : 0;
      m.is_pending = m.is_pending || is_pending(block);
      parent = prefix->id;
    }
    return m;
  }

  /// The front of the next block: of that very block, else of the first child without media that
  /// the last one has.
  void match_partly(Match& m, const Rest& rest) const {
    const std::uint64_t parent = m.blocks.empty() ? 0 : at(m.blocks.back()).prefix;
    const Prefix* found = rest.block.empty() ? nullptr : find(parent, rest.block[0]);
    std::int64_t tokens = rest.tokens;
    if (found == nullptr && parent != 0) {
      for (const Prefix& prefix : prefixes_) {
        found = prefix.parent == parent && prefix.is_first ? &prefix : found;
      }
      for (tokens = 0; found != nullptr && tokens < static_cast<std::int64_t>(rest.front.size());
           ++tokens) {
        const auto i = static_cast<std::size_t>(tokens);
        if (found->content[i] != rest.front[i]) {
          break;
        }
      }
    }
    if (found == nullptr || tokens < rest.least || is_pending(found->holders.front())) {
      return;
    }
    m.source = found->holders.front();
    m.copied = tokens;
    m.is_source_idle = at(m.source).references == 0;
    m.idle += m.is_source_idle ? 1 : 0;
  }

  void acquire(Table& table, const Match& m) {
    for (const int block : m.blocks) {
      reference(block);
    }
    table = {m.blocks, m.blocks.size(), m.blocks.size(), m.source};
    if (m.source >= 0) {
      reference(m.source);
      extend(table, static_cast<std::int64_t>(m.blocks.size()) + 1);
    }
  }

  /// The copy was made, or never will be.
  void finish_copy(Table& table) {
    if (table.source >= 0) {
      drop(table.source);
      table.source = -1;
    }
  }

  /// Adds blocks until the table has `count`; the caller knows that there are so many.
  void extend(Table& table, std::int64_t count) {
    while (static_cast<std::int64_t>(table.blocks.size()) < count) {
      table.blocks.push_back(take());
    }
  }

  /// The blocks of `contents` become visible; `plan` writes those that are new.
  void publish(Table& table, const std::vector<Content>& contents, std::uint64_t plan) {
    if (!caching_) {
      return;
    }
    const std::size_t end = std::min(contents.size(), table.blocks.size());
    std::uint64_t parent = 0;
    if (table.published > 0) {
      parent = at(table.blocks[table.published - 1]).prefix;
      if (parent == 0) {
        return;  // withdrawn: nothing may be found below it
      }
    }
    for (; table.published < end; ++table.published) {
      const int block = table.blocks[table.published];
      if (at(block).prefix != 0 || (at(block).is_withdrawn && at(block).references > 1)) {
        return;  // it belongs to another path, or readers of what it held are still there
      }
      at(block).is_withdrawn = false;
      parent = enter(block, parent, contents[table.published]);
      at(block).plan = plan;
    }
  }

  /// `to` shares whole blocks and gets one of its own for a rest; false if there is none.
  bool fork(const Table& from, Table& to, std::int64_t tokens, std::int32_t block_size) {
    const auto whole = static_cast<std::size_t>(tokens / block_size);
    if (tokens % block_size != 0 && available() == 0) {
      return false;
    }
    to.blocks.assign(from.blocks.begin(), from.blocks.begin() + static_cast<std::ptrdiff_t>(whole));
    to.acquired = whole;
    to.published = std::min(whole, from.published);
    for (const int block : to.blocks) {
      reference(block);
    }
    extend(to, (tokens + block_size - 1) / block_size);
    return true;
  }

  /// The last block is released first, so that it is evicted before what leads to it. A block that
  /// nobody else holds stays cached if its content is there.
  void release(Table& table) {
    finish_copy(table);
    while (!table.blocks.empty()) {
      const int block = table.blocks.back();
      table.blocks.pop_back();
      drop(block);
    }
    table = {};
  }

  void settle(std::uint64_t plan) { settled_ = std::max(settled_, plan); }

  /// What the table published in or behind block `first` is not there, nor what it acquired there
  /// and is still to be written.
  void withdraw(Table& table, std::size_t first) {
    for (std::size_t i = table.published; i-- > first;) {
      const int block = table.blocks[i];
      const std::uint64_t prefix = at(block).prefix;
      if (prefix != 0 && i < table.acquired && !is_pending(block)) {
        continue;
      }
      table.published = i;
      if (prefix == 0) {
        continue;
      }
      leave(block);
      if (at(block).references > 1) {
        at(block).is_withdrawn = true;
        rename(prefix);  // what the readers published below must not be found
      }
    }
  }

  [[nodiscard]] bool reads_withdrawn(const Table& table) const {
    return std::any_of(table.blocks.begin(),
                       table.blocks.begin() + static_cast<std::ptrdiff_t>(
                                                  std::min(table.acquired, table.blocks.size())),
                       [&](int block) { return at(block).is_withdrawn; });
  }

  bool clear() {
    if (referenced() > 0) {
      return false;
    }
    for (Block& block : blocks_) {
      block = Block{};
    }
    prefixes_.clear();
    idle_.clear();
    return true;
  }

 private:
  struct Block {
    int references = 0;
    std::uint64_t prefix = 0;  ///< Id of the prefix that it ends; 0 = none.
    std::uint64_t plan = 0;    ///< That writes it.
    bool is_withdrawn = false;
  };
  /// A prefix names its parent by id, and no id comes twice: below one that is gone nothing is
  /// found.
  struct Prefix {
    std::uint64_t id = 0;
    std::uint64_t parent = 0;
    Content content;
    std::vector<int> holders;  ///< Oldest first.
    bool is_first = false;     ///< Of the children without media: the one that was entered first.
  };

  /// One reference less.
  void drop(int block) {
    if (--at(block).references > 0) {
      return;
    }
    at(block).is_withdrawn = false;
    if (at(block).prefix != 0 && is_pending(block)) {
      leave(block);
    } else if (at(block).prefix != 0) {
      idle_.push_back(block);
    }
  }

  Block& at(int block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Block& at(int block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] bool is_pending(int block) const { return at(block).plan > settled_; }

  [[nodiscard]] const Prefix* find(std::uint64_t parent, const Content& content) const {
    for (const Prefix& prefix : prefixes_) {
      if (prefix.parent == parent && prefix.content == content) {
        return &prefix;
      }
    }
    return nullptr;
  }

  std::uint64_t enter(int block, std::uint64_t parent, const Content& content) {
    if (find(parent, content) == nullptr) {
      const bool has_media = std::count(content.begin(), content.end(), -1) > 0;
      const bool is_first =
          !has_media && std::none_of(prefixes_.begin(), prefixes_.end(), [&](const Prefix& p) {
            return p.parent == parent && p.is_first;
          });
      prefixes_.push_back({++last_id_, parent, content, {}, is_first});
    }
    for (Prefix& prefix : prefixes_) {
      if (prefix.parent == parent && prefix.content == content) {
        prefix.holders.push_back(block);
        at(block).prefix = prefix.id;
      }
    }
    return at(block).prefix;
  }

  void leave(int block) {
    for (Prefix& prefix : prefixes_) {
      if (prefix.id == at(block).prefix) {
        std::erase(prefix.holders, block);
      }
    }
    std::erase_if(prefixes_, [](const Prefix& prefix) { return prefix.holders.empty(); });
    at(block).prefix = 0;
  }

  void rename(std::uint64_t id) {
    for (Prefix& prefix : prefixes_) {
      if (prefix.id == id) {
        prefix.id = ++last_id_;
        for (const int block : prefix.holders) {
          at(block).prefix = prefix.id;
        }
      }
    }
  }

  void reference(int block) {
    std::erase(idle_, block);
    ++at(block).references;
  }

  /// A block that holds nothing, else the cached one that was released longest ago.
  int take() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const int block = static_cast<int>(i);
      if (blocks_[i].references == 0 && std::count(idle_.begin(), idle_.end(), block) == 0) {
        blocks_[i].references = 1;
        return block;
      }
    }
    const int block = idle_.at(0);
    idle_.erase(idle_.begin());
    leave(block);
    ++evictions_;
    at(block).references = 1;
    return block;
  }

  std::vector<Block> blocks_;
  std::vector<Prefix> prefixes_;
  std::vector<int> idle_;  ///< Cached and referenced by nobody, released longest ago first.
  bool caching_;
  std::uint64_t last_id_ = 0;
  std::uint64_t settled_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace dynbatch::test::naive
