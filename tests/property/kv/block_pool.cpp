// SPDX-License-Identifier: Apache-2.0
// 100,000 random operations on BlockPool against a naive model in standard containers that predicts
// every table, counter and hit, block by block.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/block_pool.hpp>

#include "../../unit/kv/content.hpp"
#include "../../unit/kv/naive_orders.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <tuple>
#include <vector>

using namespace dynbatch;
using kv_test::Content;

namespace {

constexpr std::int32_t kBlock = 4;
constexpr int kRows = 6;

// How large the pool, the rows and the parts that stories share are.
struct Shape {
  std::int64_t num_blocks = 24;
  std::int64_t max_tokens = 60;
  std::int64_t blocks_between_branches = 4;
  std::int32_t page_tokens = 16;
  std::int32_t blocks_a_digest = 2;
  bool partial_copy = false;
  std::int32_t min_partial_tokens = 1;
};

struct ConstantHash {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 42; }
};

// One string of block contents; equality of contents is equality of these.
struct Story {
  Content content;
  int scope;
  bool is_digest;
  std::vector<int> blocks;        // Letter of each whole block.
  std::int64_t shareable_blocks;  // Of the content at full knowledge.
  // Of each whole block: the items that overlap it, as (digest, where it begins in them, length).
  std::vector<std::vector<std::int64_t>> media = {};
};

// Media items that stories choose from, so that many have equal ones: a few items, now and then so
// many in one block that it is not shared.
std::vector<MediaSpan> make_media(SplitMix64& random, const Shape& shape) {
  std::vector<MediaSpan> items;
  const bool has_tiny = random.one_in(4);
  std::int64_t position = random.between(0, shape.max_tokens / 4);
  for (std::int64_t n = random.between(1, has_tiny ? 8 : 3); n > 0; --n) {
    const std::int64_t length = has_tiny ? 1 : random.between(1, shape.max_tokens / 4);
    items.push_back({position, length, {3, static_cast<std::uint64_t>(random.between(0, 1))}});
    position += length + (random.one_in(2) ? 0 : random.between(0, 2 * kBlock));
  }
  return items;
}

void add_media(Story& story, std::vector<MediaSpan> items) {
  const std::int64_t length = story.content.length();
  while (!items.empty() && items.back().first_position + items.back().length > length) {
    items.pop_back();
  }
  for (std::int64_t begin = 0; begin < length; begin += kBlock) {
    std::vector<std::int64_t> entries;
    for (const MediaSpan& item : items) {
      if (item.first_position < begin + kBlock && item.first_position + item.length > begin) {
        entries.insert(entries.end(), {static_cast<std::int64_t>(item.content.low),
                                       begin - item.first_position, item.length});
      }
    }
    if (entries.size() / 3 > kBlock / 4 + 2) {
      story.shareable_blocks = std::min(story.shareable_blocks, begin / kBlock);
    }
    story.media.push_back(entries);
  }
  story.content.set_media(std::move(items));
}

Story make_story(SplitMix64& random, const Shape& shape) {
  const int scope = static_cast<int>(random.between(0, 1));
  const bool is_digest = random.one_in(4);
  const auto length = random.between(1, shape.max_tokens);
  CacheScope cache_scope{};
  cache_scope.has_tenant_salt = scope == 1;
  std::vector<int> letters;
  for (std::int64_t i = 0; i < length / kBlock; ++i) {
    letters.push_back(random.one_in(shape.blocks_between_branches) ? 1 : 0);
  }
  if (is_digest) {
    // The letters of a digest's later blocks are the first one's.
    const auto unit = static_cast<std::size_t>(shape.blocks_a_digest);
    std::vector<ContentDigest> digests;
    std::uint64_t chain = 7;  // A digest covers all that is before it.
    for (std::size_t i = 0; i < letters.size(); ++i) {
      if (i % unit == 0) {
        chain = combine64(chain, static_cast<std::uint64_t>(letters[i]));
        digests.push_back({7, chain});
      }
      letters[i] = letters[i - i % unit];
    }
    const std::int32_t digest_tokens = shape.blocks_a_digest * kBlock;
    return {Content(digests, digest_tokens, length, shape.page_tokens, cache_scope), scope, true,
            letters, length / digest_tokens * shape.blocks_a_digest};
  }
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < length; ++i) {
    const bool is_last_of_block = i % kBlock == kBlock - 1;
    tokens.push_back(is_last_of_block ? letters[static_cast<std::size_t>(i / kBlock)] : 5);
  }
  return {Content(tokens, shape.page_tokens, cache_scope), scope, false, letters, length / kBlock};
}

template <class Eviction>
class Model {
 public:
  struct Match {
    std::vector<int> blocks;
    std::int64_t idle = 0;
    std::uint64_t newest = 0;
    int source = -1;  // Block whose front is copied,
    std::int64_t copied = 0;
  };
  struct RowModel {
    std::vector<int> table;
    std::size_t acquired = 0;
    std::size_t published = 0;
    const Story* story = nullptr;
    int source = -1;
  };

  Model(const Eviction& order, std::int64_t num_blocks)
      : cached_(order, num_blocks), size_(num_blocks) {
    for (int b = 0; b < num_blocks; ++b) {
      free_.push_back(b);
    }
  }

  Match match(const Story& s, std::int64_t limit, std::int64_t known) const {
    Match m;
    const std::int64_t blocks = std::min({limit / kBlock, known / kBlock, s.shareable_blocks});
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
    const std::int64_t begin = block * kBlock;
    const std::int64_t content_end = s.is_digest ? s.shareable_blocks * kBlock : s.content.length();
    std::int64_t tokens = std::min({limit, known, content_end}) - begin;
    tokens = std::min<std::int64_t>(tokens, kBlock);
    const auto parent = block > 0 ? where_.find(m.blocks.back()) : where_.end();
    const int generation = block > 0 ? index_.at(parent->second).generation : 0;
    const Entry* entry = nullptr;
    if (block < std::min(known / kBlock, s.shareable_blocks)) {
      const auto it = index_.find(key(s, block, generation));
      entry = it == index_.end() ? nullptr : &it->second;
    }
    for (const auto& [k, e] : index_) {
      if (entry != nullptr || s.is_digest || block == 0 || !e.is_linked ||
          std::get<4>(k) != generation) {
        continue;
      }
      // Tokens of a block differ in the last one only.
      const auto& items = s.media.empty() || static_cast<std::int64_t>(s.media.size()) <= block
                              ? std::vector<std::int64_t>{}
                              : s.media[static_cast<std::size_t>(block)];
      const bool is_whole = static_cast<std::int64_t>(s.blocks.size()) > block;
      const bool has_equal_end =
          is_whole && s.blocks[static_cast<std::size_t>(block)] == std::get<2>(k).back();
      tokens = std::min<std::int64_t>(tokens, has_equal_end ? kBlock : kBlock - 1);
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

  void acquire(int row, const Match& m, std::size_t blocks, const Story* story) {
    RowModel& r = rows[row];
    r.table.assign(m.blocks.begin(), m.blocks.begin() + static_cast<std::ptrdiff_t>(blocks));
    r.acquired = r.published = blocks;
    r.story = story;
    std::vector<int> idle;
    for (const int b : r.table) {
      if (cached_.contains(b)) {
        idle.push_back(b);
      }
    }
    cached_.note_hit(r.table);
    cached_.erase_used(idle);
    if (m.copied > 0 && blocks == m.blocks.size()) {
      cached_.note_hit({m.source});
      if (cached_.contains(m.source)) {
        cached_.erase_used({m.source});
      }
      r.source = m.source;
      REQUIRE(extend(row, static_cast<std::int64_t>(blocks + 1) * kBlock));
    }
  }

  void finish_copy(int row) {
    RowModel& r = rows[row];
    const int b = r.source;
    r.source = -1;
    if (b < 0 || references(b) > 0) {
      return;
    }
    withdrawn_.erase(b);
    if (b < size_ && where_.count(b) != 0) {
      cached_.insert_backwards({b}, 0);
      return;
    }
    if (where_.count(b) != 0) {
      leave(b);
    }
    if (b < size_) {
      cached_.reset(b);
      free_.push_front(b);
    }
  }

  bool extend(int row, std::int64_t tokens) {
    RowModel& r = rows[row];
    const auto wanted = static_cast<std::size_t>((tokens + kBlock - 1) / kBlock);
    if (wanted <= r.table.size()) {
      return true;
    }
    if (wanted - r.table.size() > free_.size() + cached_.members().size()) {
      return false;
    }
    while (r.table.size() < wanted) {
      if (!free_.empty()) {
        r.table.push_back(free_.front());
        free_.pop_front();
      } else {
        const int b = cached_.victim();
        cached_.forget(b);
        leave(b);
        ++evictions;
        r.table.push_back(b);
      }
    }
    return true;
  }

  void publish(int row, std::int64_t tokens, std::int64_t known, std::uint64_t plan) {
    RowModel& r = rows[row];
    const auto end = static_cast<std::size_t>(
        std::min({tokens / kBlock, known / kBlock, r.story->shareable_blocks,
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
        it->second.is_linked = std::get<3>(k).size() < std::get<2>(k).size() &&
                               std::none_of(
                                   index_.begin(), index_.end(),
                                   [&, parent = generation](const auto& e) {
                                     return e.second.is_linked && std::get<4>(e.first) == parent;
                                   });
      }
      it->second.holders.push_back(b);
      where_[b] = k;
      plan_[b] = plan;
      generation = it->second.generation;
    }
  }

  void truncate(int row, std::int64_t tokens) {
    RowModel& r = rows[row];
    if (tokens >= static_cast<std::int64_t>(r.table.size()) * kBlock) {
      return;
    }
    const auto length = static_cast<std::size_t>((tokens + kBlock - 1) / kBlock);
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
        r.table.pop_back();
        ++num_kept;
        continue;
      }
      keep();
      r.table.pop_back();
      if (!is_last) {
        continue;
      }
      withdrawn_.erase(b);
      if (where_.count(b) != 0) {
        leave(b);
      }
      if (b < size_) {
        cached_.reset(b);
        free_.push_front(b);
      }
    }
    keep();
    r.acquired = std::min(r.acquired, length);
    r.published = std::min(r.published, length);
    if (tokens % kBlock != 0 && r.published == length && where_.count(r.table.back()) != 0 &&
        references(r.table.back()) == 1) {
      leave(r.table.back());
      r.published = length - 1;
      r.acquired = std::min(r.acquired, length - 1);
    }
  }

  std::int64_t withdraw(int row, std::int64_t tokens) {
    RowModel& r = rows[row];
    const auto first = static_cast<std::size_t>(tokens / kBlock);
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
        if (const auto left = index_.find(k); left != index_.end()) {
          left->second.generation = ++last_generation_;
        }
      }
      published = i;
      ++n;
    }
    r.published = published;
    return n;
  }

  bool reads_withdrawn(int row) const {
    const RowModel& r = rows[row];
    return withdrawn_.count(r.source) != 0 ||
           std::any_of(r.table.begin(), r.table.begin() + static_cast<std::ptrdiff_t>(r.acquired),
                       [&](int b) { return withdrawn_.count(b) != 0; });
  }

  void settle(std::uint64_t plan) { settled_ = std::max(settled_, plan); }

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
      if (used.count(b) != 0) {
        free_.push_front(b);
      } else {
        free_.push_back(b);
      }
    }
    size_ = size;
  }

  int references(int b) const {
    int n = 0;
    for (const RowModel& r : rows) {
      n += static_cast<int>(std::count(r.table.begin(), r.table.end(), b));
      n += r.source == b ? 1 : 0;
    }
    return n;
  }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_cached() const { return static_cast<std::int64_t>(cached_.members().size()); }
  kv_test::Naive<Eviction>& order() { return cached_; }

  RowModel rows[kRows];
  std::set<int> used;
  std::uint64_t evictions = 0;

 private:
  // Scope, kind, letters and media up to the end of the block, generation of the parent.
  using Key = std::tuple<int, bool, std::vector<int>, std::vector<std::vector<std::int64_t>>, int>;
  struct Entry {
    std::vector<int> holders;
    int generation = 0;
    bool is_linked = false;
  };

  static Key key(const Story& s, std::int64_t block, int generation) {
    const auto media = s.media.begin() + (s.media.empty() ? 0 : block + 1);
    return {s.scope, s.is_digest, std::vector<int>(s.blocks.begin(), s.blocks.begin() + block + 1),
            without_tail({s.media.begin(), media}), generation};
  }
  // A content without media is equal to one whose items come later.
  static std::vector<std::vector<std::int64_t>> without_tail(
      std::vector<std::vector<std::int64_t>> media) {
    while (!media.empty() && media.back().empty()) {
      media.pop_back();
    }
    return media;
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

  std::list<int> free_;
  kv_test::Naive<Eviction> cached_;
  std::map<Key, Entry> index_;
  std::map<int, Key> where_;
  std::map<int, std::uint64_t> plan_;
  std::set<int> withdrawn_;
  std::uint64_t settled_ = 0;
  std::int64_t size_;
  int last_generation_ = 0;
};

template <class Pool, class Eviction>
void compare(const Pool& pool, const Model<Eviction>& model) {
  std::set<int> referenced;
  for (int row = 0; row < kRows; ++row) {
    const auto table = kv_test::ids(pool, Row{row});
    REQUIRE(table == model.rows[row].table);
    REQUIRE(pool.reads_withdrawn(Row{row}) == model.reads_withdrawn(row));
    referenced.insert(table.begin(), table.end());
    if (model.rows[row].source >= 0) {
      referenced.insert(model.rows[row].source);
    }
  }
  const PoolStats s = pool.stats();
  REQUIRE(s.free_blocks == model.num_free());
  REQUIRE(s.cached_blocks == model.num_cached());
  REQUIRE(s.referenced_blocks == static_cast<std::int64_t>(referenced.size()));
  REQUIRE(s.free_blocks + s.cached_blocks + s.referenced_blocks == s.total_blocks);
  REQUIRE(s.evictions == model.evictions);
}

// Gives a part of a row a priority, if the eviction order knows any.
template <class Pool, class Eviction>
void retain(Pool& pool, Model<Eviction>& model, int row, SplitMix64& random) {
  if constexpr (requires { pool.retain(Row{}, 0, 0, Retention{}); }) {
    const auto& table = model.rows[row].table;
    const std::int64_t end = random.between(0, static_cast<std::int64_t>(table.size()) * kBlock);
    const std::int64_t first = random.between(0, end);
    const Retention r{.priority = static_cast<std::int32_t>(10 + 30 * random.between(0, 3)),
                      .duration = {20 * random.between(1, 3)}};
    REQUIRE(pool.retain(Row{row}, first, end, r).is_ok());
    const auto begin = table.begin() + static_cast<std::ptrdiff_t>(first / kBlock);
    const auto behind = table.begin() + static_cast<std::ptrdiff_t>((end + kBlock - 1) / kBlock);
    if (first < end) {
      model.order().retain({begin, behind}, r.priority, r.duration.ns);
    }
  }
}

template <class Eviction, class Hash = WordHash>
void run(std::uint64_t seed, int num_operations, const Shape& shape = {}) {
  using Pool = BlockPool<Eviction, Hash>;
  SplitMix64 random(seed);
  Pool pool(typename Pool::Config{.num_blocks = shape.num_blocks,
                                  .block_size = kBlock,
                                  .max_kv_events = random.between(0, 8),
                                  .min_partial_tokens = shape.min_partial_tokens},
            kv_test::Naive<Eviction>::make(shape.num_blocks));
  REQUIRE(pool.attach({.max_rows = kRows,
                       .max_context_tokens = shape.max_tokens,
                       .partial_copy = shape.partial_copy})
              .is_ok());
  Model<Eviction> model(pool.eviction(), shape.num_blocks);
  std::int64_t now = 0;
  std::vector<Story> stories;
  std::vector<std::vector<MediaSpan>> layouts;
  for (int i = 0; i < 5; ++i) {
    layouts.push_back(make_media(random, shape));
  }
  layouts[4] = layouts[0];  // the same items one block later
  for (MediaSpan& item : layouts[4]) {
    item.first_position += kBlock;
  }
  for (int i = 0; i < 40; ++i) {
    stories.push_back(make_story(random, shape));
    if (random.one_in(2)) {
      add_media(stories.back(), layouts[static_cast<std::size_t>(random.between(0, 4))]);
    }
  }
  std::uint64_t plan = 0;
  std::uint64_t settled = 0;
  std::int64_t hits = 0;
  std::int64_t media_hits = 0;
  std::int64_t copies = 0;
  std::size_t latest = 0;
  std::int64_t withdrawals = 0;

  for (int op = 0; op < num_operations; ++op) {
    const int row = static_cast<int>(random.between(0, kRows - 1));
    auto& r = model.rows[row];
    const auto kind = random.between(0, 99);
    INFO("operation " << op << " kind " << kind << " row " << row);
    if (r.story == nullptr || kind < 10) {
      if (!r.table.empty() || r.source >= 0) {
        pool.release(Row{row});
        model.finish_copy(row);
        model.truncate(row, 0);
      }
      // Often the one that was looked up last, as a request at the head of a queue is.
      latest = random.one_in(2) ? latest : static_cast<std::size_t>(random.between(0, 39));
      const auto& story = stories[latest];
      const std::int64_t limit = random.between(0, story.content.length());
      auto view = story.content.view();
      // Half of them say who they are: what was verified of them is not verified again.
      view.version = static_cast<std::uint64_t>(random.one_in(2) ? &story - stories.data() + 1
                                                                 : std::ptrdiff_t{0});
      view.known_length = random.between(0, 2) == 0 ? limit : view.known_length;
      const PrefixMatch m = pool.match(view, limit);
      auto expected = model.match(story, limit, view.known_length);
      if (shape.partial_copy) {
        model.match_partly(expected, story, limit, view.known_length, shape.min_partial_tokens);
      }
      REQUIRE(m.num_blocks == static_cast<std::int64_t>(expected.blocks.size()));
      REQUIRE(m.num_copied == expected.copied);
      REQUIRE(m.num_tokens == m.num_blocks * kBlock + m.num_copied);
      REQUIRE((m.num_copied == 0 || m.copy_source.value == expected.source));
      REQUIRE(m.idle_blocks == expected.idle);
      REQUIRE(m.newest_pending.value == expected.newest);
      hits += m.num_blocks;
      for (std::int64_t b = 0; b < m.num_blocks && !story.media.empty(); ++b) {
        media_hits += story.media[static_cast<std::size_t>(b)].empty() ? 0 : 1;
      }
      PrefixMatch taken = m;
      const bool has_room =
          model.num_free() + model.num_cached() > expected.idle;  // for the target of a copy
      if (random.one_in(5) || (m.num_copied > 0 && !has_room)) {
        REQUIRE((m.num_copied == 0 || has_room || !pool.acquire(Row{row}, m)));
        taken.drop_copy();
        taken.num_blocks = random.one_in(2) ? random.between(0, m.num_blocks) : m.num_blocks;
        expected.copied = 0;
      }
      if (random.one_in(20)) {
        pool.settle(PlanId{settled});  // Changes the pool: the match is stale.
        const bool is_taken = taken.num_blocks == 0 && taken.num_copied == 0;
        REQUIRE(pool.acquire(Row{row}, taken) == is_taken);
        r.story = is_taken ? &story : nullptr;
        r.acquired = r.published = 0;
      } else {
        copies += taken.num_copied > 0 ? 1 : 0;
        REQUIRE(pool.acquire(Row{row}, taken));
        model.acquire(row, expected, static_cast<std::size_t>(taken.num_blocks), &story);
        model.used.insert(r.table.begin(), r.table.end());
      }
      if (!r.table.empty()) {
        REQUIRE_FALSE(pool.acquire(Row{row}, m));
      }
    } else if (kind < 40) {
      const std::int64_t tokens = random.between(0, shape.max_tokens);
      REQUIRE(pool.extend(Row{row}, tokens) == model.extend(row, tokens));
      REQUIRE_FALSE(pool.extend(Row{row}, shape.max_tokens + 1));
      model.used.insert(r.table.begin(), r.table.end());
    } else if (kind < 70) {
      const std::int64_t tokens = random.between(0, shape.max_tokens);
      auto view = r.story->content.view();
      view.known_length =
          random.one_in(4) ? random.between(0, view.known_length) : view.known_length;
      const std::uint64_t by =
          random.one_in(3) ? 0 : settled + static_cast<std::uint64_t>(random.between(0, 3));
      plan = std::max(plan, by);
      pool.publish(Row{row}, view, tokens, PlanId{by});
      model.publish(row, tokens, view.known_length, by);
    } else if (kind < 78) {
      const std::int64_t tokens = random.between(0, shape.max_tokens);
      pool.truncate(Row{row}, tokens);
      model.truncate(row, tokens);
    } else if (kind < 84) {
      const std::int64_t tokens = random.between(0, shape.max_tokens);
      const std::int64_t n = pool.withdraw(Row{row}, tokens);
      REQUIRE(n == model.withdraw(row, tokens));
      withdrawals += n;
    } else if (kind < 90) {
      settled = random.one_in(2) ? plan : settled;
      pool.settle(PlanId{settled});
      model.settle(settled);
      pool.finish_copy(Row{row});
      model.finish_copy(row);
      now += random.between(0, 10);
      pool.unpin_expired(TimeNs{now});
      model.order().advance(now);
      retain(pool, model, row, random);
    } else if (kind < 97) {
      pool.release(Row{row});
      pool.release(Row{row});
      model.finish_copy(row);
      model.truncate(row, 0);
      r.story = nullptr;
      r.acquired = r.published = 0;
    } else if (kind < 98) {
      if (random.one_in(4)) {
        for (int i = 0; i < kRows; ++i) {
          pool.release(Row{i});
          model.finish_copy(i);
          model.truncate(i, 0);
          model.rows[i].story = nullptr;
        }
      }
      REQUIRE(pool.clear() == model.clear());
    } else {
      const std::int64_t size =
          random.one_in(2) ? shape.num_blocks : random.between(8, shape.num_blocks);
      REQUIRE(pool.resize(size).is_ok());
      model.resize(size);
    }
    compare(pool, model);
    if (op % 64 == 0) {
      char text[256];
      const Status s = pool.check();
      static_cast<void>(format_status(s, text, sizeof(text)));
      INFO(text);
      REQUIRE(s.is_ok());
    }
  }
  // The run means something only if these were common.
  CHECK(hits > num_operations / 50);
  CHECK((num_operations < 10000 || media_hits > num_operations / 2000));
  CHECK((!shape.partial_copy || copies > num_operations / 1000));
  CHECK(withdrawals > num_operations / 500);
  CHECK(model.evictions > static_cast<std::uint64_t>(num_operations / 50));
}

}  // namespace

TEST_CASE("BlockPool does what a naive model does") { run<Lru>(1, 100000); }

TEST_CASE("BlockPool does so from several seeds") {
  const auto seed = GENERATE(range(2, 10));
  INFO("seed " << seed);
  run<Lru>(static_cast<std::uint64_t>(seed), 5000);
}

TEMPLATE_TEST_CASE("BlockPool does so under every eviction order", "", Slru, Lfu, CostAware,
                   AdaptiveLru, PriorityDuration, Ttl<Lru>, Ttl<Slru>, Belady) {
  const auto seed = GENERATE(range(1, 4));
  INFO("seed " << seed);
  run<TestType>(static_cast<std::uint64_t>(seed), 10000);
}

TEMPLATE_TEST_CASE("BlockPool does so with copied fronts of blocks", "", Lru, Slru, Lfu, CostAware,
                   AdaptiveLru, PriorityDuration, Ttl<Lru>, Belady) {
  const auto seed = GENERATE(range(1, 4));
  const auto least = GENERATE(1, 3);
  INFO("seed " << seed << ", at least " << least << " tokens");
  run<TestType>(static_cast<std::uint64_t>(seed), 10000,
                {.partial_copy = true, .min_partial_tokens = least});
}

TEMPLATE_TEST_CASE("BlockPool does so with long prompts", "", Lru, AdaptiveLru) {
  const auto seed = GENERATE(range(1, 4));
  INFO("seed " << seed);
  run<TestType>(static_cast<std::uint64_t>(seed), 1500,
                {.num_blocks = 500,
                 .max_tokens = 1000,
                 .blocks_between_branches = 100,
                 .page_tokens = 256,
                 .blocks_a_digest = 1});
}

TEST_CASE("BlockPool does so with a constant hash") { run<Lru, ConstantHash>(77, 20000); }
