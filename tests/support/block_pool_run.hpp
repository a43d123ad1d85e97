// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Random operations on BlockPool, alone or below Pinning, each compared with the naive pool.
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/pinning.hpp>

#include "block_pool_stories.hpp"
#include "choices.hpp"
#include "naive_block_pool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dynbatch::test {

/// What a run did, and how much came of it: it means something only if all of that was common.
struct PoolRunCounts {
  std::int64_t operations = 0;
  std::int64_t hits = 0;  // Blocks found.
  std::int64_t media_hits = 0;
  std::int64_t copies = 0;
  std::int64_t published = 0;
  std::int64_t withdrawn = 0;
  std::int64_t truncated = 0;
  std::int64_t discarded = 0;
  std::int64_t forgotten = 0;
  std::int64_t held = 0;
  std::int64_t forks = 0;
  std::int64_t refused_forks = 0;
  std::int64_t retained = 0;
  std::int64_t cleared = 0;
  std::int64_t resized = 0;
  std::int64_t pins = 0;
  std::int64_t refused_pins = 0;
  std::int64_t evictions = 0;
};

/// How the pool of a run is made, and where its BlockPool is.
template <class Pool>
struct PoolMaker;

template <class E, class H>
struct PoolMaker<BlockPool<E, H>> {
  using Inner = BlockPool<E, H>;
  using Eviction = E;
  static constexpr int kPins = 0;
  static constexpr std::int32_t kPermille = 0;
  static Inner make(const typename Inner::Config& config) {
    return Inner(config, kv_test::Naive<E>::make(config.num_blocks));
  }
  static Inner& inner(Inner& pool) { return pool; }
};

template <class E, class H>
struct PoolMaker<Pinning<BlockPool<E, H>>> {
  using Inner = BlockPool<E, H>;
  using Eviction = E;
  static constexpr int kPins = 3;
  static constexpr std::int32_t kPermille = 400;
  static Pinning<Inner> make(const typename Inner::Config& config) {
    return Pinning<Inner>({.pool = config, .max_pins = kPins, .share_permille = kPermille});
  }
  static Inner& inner(Pinning<Inner>& pool) { return pool.pool(); }
};

template <class Pool, class Choices>
class BlockPoolRun {
  using Maker = PoolMaker<Pool>;
  using Inner = typename Maker::Inner;
  using Eviction = typename Maker::Eviction;
  static constexpr int kRows = 6;
  static constexpr int kPins = Maker::kPins;

 public:
  BlockPoolRun(Choices& choices, const PoolShape& shape, std::uint64_t story_seed)
      : choices_(choices),
        shape_(shape),
        pool_(Maker::make({.num_blocks = shape.num_blocks,
                           .block_size = kStoryBlock,
                           .max_kv_events = choices.between(0, 8),
                           .min_partial_tokens = shape.min_partial_tokens})),
        model_(inner().eviction(), shape.num_blocks, kRows + (kPins > 0 ? kPins + 1 : 0)),
        pin_ends_(kPins) {
    SplitMix64 random(story_seed);
    stories_ = make_stories(random, shape);
    DYNBATCH_EXPECT(pool_
                        .attach({.max_rows = kRows,
                                 .max_context_tokens = shape.max_tokens,
                                 .partial_copy = shape.partial_copy})
                        .is_ok());
  }

  /// Runs as many operations, or until the choices are used up. Throws a Violation.
  PoolRunCounts run(std::int64_t num_operations) {
    while (counts_.operations < num_operations && !choices_.is_done()) {
      const int row = static_cast<int>(choices_.between(0, kRows - 1));
      const auto kind = static_cast<int>(choices_.between(0, 99));
      try {
        operate(kind, row);
        compare();
        if (counts_.operations % shape_.check_every == 0) {
          check();
        }
      } catch (const Violation& violation) {
        throw Violation("operation " + std::to_string(counts_.operations) + ", kind " +
                        std::to_string(kind) + ", row " + std::to_string(row) + ": " +
                        violation.what());
      }
      ++counts_.operations;
    }
    finish();
    counts_.evictions = static_cast<std::int64_t>(model_.evictions);
    return counts_;
  }

 private:
  Inner& inner() { return Maker::inner(pool_); }
  auto& at(int row) { return model_.row_at(row); }
  std::int64_t any_length() { return choices_.between(0, shape_.max_tokens); }
  int any_row() { return static_cast<int>(choices_.between(0, kRows - 1)); }

  void operate(int kind, int row) {
    if (at(row).story == nullptr || kind < 10) {
      begin(row);
    } else if (kind < 33) {
      extend(row);
    } else if (kind < 57) {
      publish(row);
    } else if (kind < 65) {
      truncate(row);
    } else if (kind < 69) {
      kPins > 0 ? pin() : discard(row);
    } else if (kind < 76) {
      const std::int64_t tokens = any_length();
      const std::int64_t n = pool_.withdraw(Row{row}, tokens);
      DYNBATCH_EXPECT(n == model_.withdraw(row, tokens));
      counts_.withdrawn += n;
    } else if (kind < 80) {
      settle();
    } else if (kind < 83) {
      pool_.finish_copy(Row{row});
      model_.finish_copy(row);
    } else if (kind < 86) {
      pass_time();
    } else if (kind < 88) {
      retain(row);
    } else if (kind < 92) {
      release(row);
      pool_.release(Row{row});  // once more: there is nothing
    } else if (kind < 96) {
      fork(row);
    } else if (kind < 97) {
      clear();
    } else if (kind < 98) {
      resize();
    } else if (kind < 99) {
      kPins > 0 ? pin() : forget();
    } else {
      use_unknown_row();
    }
  }

  // ---- a row begins -----------------------------------------------------------------------------

  // Cuts what is known of a content, or what may be shared of it; returns which of it counts.
  std::int64_t cut(SequenceContentView& view, std::int64_t length) {
    if (choices_.one_in(4)) {
      view.cacheable_length = length;
    } else {
      view.known_length = length;
    }
    return length;
  }

  void begin(int row) {
    if (!at(row).table.empty() || at(row).source >= 0) {
      release(row);
    }
    if (kPins == 0 && choices_.one_in(16)) {
      hold(row);
      return;
    }
    // Often the one that was looked up last, as a request at the head of a queue is.
    latest_ = choices_.one_in(2)
                  ? latest_
                  : static_cast<std::size_t>(choices_.between(0, shape_.num_stories - 1));
    const Story& story = stories_[latest_];
    const std::int64_t length = story.content.length();
    const std::int64_t limit = choices_.one_in(3) ? choices_.between(0, length) : length - 1;
    SequenceContentView view = story.content.view();
    // Half of them say who they are: what was verified of them is not verified again.
    view.version = choices_.one_in(2) ? latest_ + 1 : 0;
    const std::int64_t known = choices_.one_in(3) ? cut(view, limit) : length;
    const PrefixMatch m = pool_.match(view, limit);
    auto expected = model_.match(story, limit, known);
    if (shape_.partial_copy) {
      model_.match_partly(expected, story, limit, known, shape_.min_partial_tokens);
    }
    expect_match(m, expected);
    counts_.hits += m.num_blocks;
    for (std::int64_t b = 0; b < m.num_blocks && !story.media.empty(); ++b) {
      counts_.media_hits += story.media[static_cast<std::size_t>(b)].empty() ? 0 : 1;
    }
    take(row, m, expected, story);
    if (!at(row).table.empty()) {
      DYNBATCH_EXPECT(!pool_.acquire(Row{row}, m));
    }
  }

  void expect_match(const PrefixMatch& m,
                    const typename NaiveBlockPool<Eviction>::Match& expected) {
    DYNBATCH_EXPECT(m.num_blocks == static_cast<std::int64_t>(expected.blocks.size()));
    DYNBATCH_EXPECT(m.num_copied == expected.copied);
    DYNBATCH_EXPECT(m.num_tokens == m.num_blocks * kStoryBlock + m.num_copied);
    DYNBATCH_EXPECT(m.num_copied == 0 || m.copy_source.value == expected.source);
    DYNBATCH_EXPECT(m.idle_blocks == expected.idle);
    DYNBATCH_EXPECT(m.newest_pending.value == expected.newest);
    const auto blocks = inner().matched();
    DYNBATCH_EXPECT(std::equal(blocks.begin(), blocks.end(), expected.blocks.begin(),
                               expected.blocks.end(),
                               [](BlockId a, int b) { return a.value == b; }));
  }

  // Acquires a match, all of it or a part.
  void take(int row, const PrefixMatch& m, typename NaiveBlockPool<Eviction>::Match expected,
            const Story& story) {
    PrefixMatch taken = m;
    // A copy needs a block as its target.
    const bool has_room = model_.num_free() + model_.num_cached() > expected.idle;
    if (choices_.one_in(5) || (m.num_copied > 0 && !has_room)) {
      DYNBATCH_EXPECT(m.num_copied == 0 || has_room || !pool_.acquire(Row{row}, m));
      taken.drop_copy();
      taken.num_blocks = choices_.one_in(2) ? choices_.between(0, m.num_blocks) : m.num_blocks;
      expected.copied = 0;
    }
    if (choices_.one_in(20)) {
      pool_.settle(PlanId{settled_});  // Changes the pool: the match is stale.
      const bool is_taken = taken.num_blocks == 0 && taken.num_copied == 0;
      DYNBATCH_EXPECT(pool_.acquire(Row{row}, taken) == is_taken);
      at(row).story = is_taken ? &story : nullptr;
      at(row).acquired = at(row).published = 0;
      return;
    }
    counts_.copies += taken.num_copied > 0 ? 1 : 0;
    DYNBATCH_EXPECT(pool_.acquire(Row{row}, taken));
    model_.acquire(row, expected, static_cast<std::size_t>(taken.num_blocks), &story);
  }

  void hold(int row) {
    if constexpr (requires { pool_.hold(Row{}, {}); }) {
      std::vector<int> chosen;
      std::vector<BlockId> blocks;
      for (std::int64_t n = choices_.between(0, 3); n > 0; --n) {
        const int b = any_block();
        if (std::find(chosen.begin(), chosen.end(), b) == chosen.end()) {
          chosen.push_back(b);
          blocks.push_back(BlockId{b});
        }
      }
      const bool is_held = model_.hold(row, chosen);
      DYNBATCH_EXPECT(pool_.hold(Row{row}, blocks) == is_held);
      counts_.held += is_held && !chosen.empty() ? 1 : 0;
    }
  }
  // Most often one of a row.
  int any_block() {
    const auto& table = at(any_row()).table;
    if (!table.empty() && !choices_.one_in(3)) {
      return table[static_cast<std::size_t>(
          choices_.between(0, static_cast<std::int64_t>(table.size()) - 1))];
    }
    return static_cast<int>(choices_.between(0, shape_.num_blocks - 1));
  }

  void fork(int row) {
    const int to = any_row();
    if (to != row && !choices_.one_in(4)) {
      release(to);
    }
    const auto capacity = static_cast<std::int64_t>(at(row).table.size()) * kStoryBlock;
    const std::int64_t tokens =
        choices_.one_in(16) ? choices_.between(-1, capacity + 2) : choices_.between(0, capacity);
    const Errc expected = model_.fork(row, to, tokens);
    DYNBATCH_EXPECT(pool_.fork(Row{row}, Row{to}, tokens).code == expected);
    ++(expected == Errc::Ok ? counts_.forks : counts_.refused_forks);
  }

  // ---- a row grows and shrinks ------------------------------------------------------------------

  void extend(int row) {
    const std::int64_t tokens = any_length();
    DYNBATCH_EXPECT(pool_.extend(Row{row}, tokens) == model_.extend(row, tokens));
    DYNBATCH_EXPECT(!pool_.extend(Row{row}, shape_.max_tokens + 1));
  }

  void publish(int row) {
    const std::int64_t tokens = choices_.one_in(2) ? any_length() : shape_.max_tokens;
    const Story& story = *at(row).story;
    SequenceContentView view = story.content.view();
    const std::int64_t length = story.content.length();
    const std::int64_t known = choices_.one_in(4) ? cut(view, choices_.between(0, length)) : length;
    const std::uint64_t plan =
        choices_.one_in(3) ? 0 : settled_ + static_cast<std::uint64_t>(choices_.between(0, 3));
    plan_ = std::max(plan_, plan);
    const std::size_t before = at(row).published;
    pool_.publish(Row{row}, view, tokens, PlanId{plan});
    model_.publish(row, tokens, known, plan);
    counts_.published += static_cast<std::int64_t>(at(row).published - before);
  }

  void truncate(int row) {
    const std::int64_t tokens = any_length();
    const std::size_t before = at(row).table.size();
    pool_.truncate(Row{row}, tokens);
    model_.truncate(row, tokens);
    counts_.truncated += at(row).table.size() < before ? 1 : 0;
  }

  void discard(int row) {
    if constexpr (requires { pool_.discard(Row{}, 0); }) {
      const std::int64_t tokens = any_length();
      const std::size_t before = at(row).table.size();
      pool_.discard(Row{row}, tokens);
      model_.discard(row, tokens);
      counts_.discarded += at(row).table.size() < before ? 1 : 0;
    }
  }

  void release(int row) {
    if constexpr (requires { inner().eviction().set_next_uses(next_uses_); }) {
      next_uses_.assign(at(row).table.size(), 0);
      for (std::int64_t& time : next_uses_) {
        time = choices_.between(0, 20);
      }
      inner().eviction().set_next_uses(next_uses_);
      model_.order().set_next_uses(next_uses_);
    }
    pool_.release(Row{row});
    model_.release(row);
  }

  void forget() {
    if constexpr (requires { pool_.forget(BlockId{}); }) {
      const int b = any_block();
      counts_.forgotten += model_.forget(b) ? 1 : 0;
      pool_.forget(BlockId{b});
    }
  }

  // ---- time and the pool as a whole -------------------------------------------------------------

  void settle() {
    settled_ = choices_.one_in(2) ? plan_ : settled_;
    pool_.settle(PlanId{settled_});
    model_.settle(settled_);
  }

  void pass_time() {
    now_ += choices_.between(0, 20);
    pool_.unpin_expired(TimeNs{now_});
    model_.order().advance(now_);
    drop_pins(now_);
  }

  // Gives a part of a row a priority, if the eviction order knows any.
  void retain(int row) {
    if constexpr (requires { inner().retain(Row{}, 0, 0, Retention{}); }) {
      const auto& table = at(row).table;
      const std::int64_t end =
          choices_.between(0, static_cast<std::int64_t>(table.size()) * kStoryBlock);
      const std::int64_t first = choices_.between(0, end);
      const Retention r{.priority = static_cast<std::int32_t>(10 + 30 * choices_.between(0, 3)),
                        .duration = {20 * choices_.between(1, 3)}};
      DYNBATCH_EXPECT(inner().retain(Row{row}, first, end, r).is_ok());
      const auto begin = table.begin() + static_cast<std::ptrdiff_t>(first / kStoryBlock);
      const auto behind =
          table.begin() + static_cast<std::ptrdiff_t>((end + kStoryBlock - 1) / kStoryBlock);
      if (first < end) {
        model_.order().retain({begin, behind}, r.priority, r.duration.ns);
        ++counts_.retained;
      }
    }
  }

  void clear() {
    if (choices_.one_in(4)) {
      for (int row = 0; row < kRows; ++row) {
        release(row);
      }
    }
    const bool is_idle = std::all_of(model_.rows.begin(), model_.rows.begin() + kRows,
                                     [](const auto& r) { return r.table.empty(); });
    if (is_idle) {
      drop_pins(INT64_MAX);
    }
    DYNBATCH_EXPECT(model_.clear() == is_idle);
    DYNBATCH_EXPECT(pool_.clear() == is_idle);
    counts_.cleared += is_idle ? 1 : 0;
  }

  void resize() {
    const std::int64_t least = choices_.one_in(8) ? 1 : shape_.num_blocks / 3;
    const std::int64_t size =
        choices_.one_in(2) ? shape_.num_blocks : choices_.between(least, shape_.num_blocks);
    DYNBATCH_EXPECT(pool_.resize(size).is_ok());
    model_.resize(size);
    DYNBATCH_EXPECT(!pool_.resize(0) && !pool_.resize(shape_.num_blocks + 1));
    ++counts_.resized;
  }

  // Nothing comes of a row that the pool doesn't have; pins are rows below Pinning.
  void use_unknown_row() {
    const Row row{static_cast<std::int32_t>(choices_.one_in(2) ? -1 : kRows)};
    const Story& story = stories_[latest_];
    DYNBATCH_EXPECT(!pool_.acquire(row, pool_.match(story.content.view(), 0)));
    DYNBATCH_EXPECT(!pool_.extend(row, 1));
    pool_.publish(row, story.content.view(), shape_.max_tokens, kNoPlan);
    pool_.truncate(row, 0);
    pool_.finish_copy(row);
    pool_.release(row);
    DYNBATCH_EXPECT(pool_.withdraw(row, 0) == 0);
    DYNBATCH_EXPECT(!pool_.reads_withdrawn(row));
    DYNBATCH_EXPECT(pool_.table(0, row).empty());
    DYNBATCH_EXPECT(pool_.table(1, Row{0}).empty());
    DYNBATCH_EXPECT(pool_.fork(row, Row{0}, 0).code == Errc::InvalidArgument);
    DYNBATCH_EXPECT(pool_.fork(Row{0}, row, 0).code == Errc::InvalidArgument);
  }

  // ---- pins -------------------------------------------------------------------------------------

  void drop_pins(std::int64_t now) {
    for (int pin = 0; pin < kPins; ++pin) {
      if (!at(kRows + pin).table.empty() && pin_ends_[static_cast<std::size_t>(pin)] < now) {
        model_.release(kRows + pin);
      }
    }
  }
  std::int64_t num_pinned() {
    std::int64_t n = 0;
    for (int pin = 0; pin < kPins; ++pin) {
      n += static_cast<std::int64_t>(at(kRows + pin).table.size());
    }
    return n;
  }

  void pin() {
    const auto which = static_cast<std::size_t>(choices_.between(0, shape_.num_stories - 1));
    const Story& story = stories_[choices_.one_in(2) ? latest_ : which];
    const std::int64_t length = story.content.length();
    const std::int64_t tokens = choices_.between(
        0, choices_.one_in(3) ? length : std::min<std::int64_t>(length, 4 * kStoryBlock));
    const std::int64_t until = now_ + choices_.between(0, 100);
    const Status s = pool_.pin(story.content.view(), tokens, TimeNs{until});
    const Errc expected = expect_pin(story, tokens, until);
    DYNBATCH_EXPECT(s.code == expected);
    ++(expected == Errc::Ok ? counts_.pins : counts_.refused_pins);
  }

  template <class Match>
  void acquire_pin(int row, const Match& m, std::size_t blocks) {
    const std::uint64_t queried = model_.queried_tokens;
    const std::uint64_t hit = model_.hit_tokens;
    model_.acquire(row, m, blocks, nullptr);
    model_.queried_tokens = queried;
    model_.hit_tokens = hit;
  }

  Errc expect_pin(const Story& story, std::int64_t tokens, std::int64_t until) {
    const auto wanted = static_cast<std::size_t>(tokens / kStoryBlock);
    const auto limit = static_cast<std::int64_t>(wanted) * kStoryBlock;
    const auto m = model_.match(story, limit, story.content.length());
    if (wanted == 0 || m.blocks.size() < wanted || m.newest != 0) {
      return Errc::NotFound;
    }
    // Looking at a prefix is a use of it, but no query.
    const int trial = kRows + kPins;
    acquire_pin(trial, m, wanted);
    model_.release(trial);
    int unused = -1;
    for (int pin = kPins; pin-- > 0;) {
      if (at(kRows + pin).table.empty()) {
        unused = pin;
      } else if (at(kRows + pin).table == m.blocks) {
        std::int64_t& end = pin_ends_[static_cast<std::size_t>(pin)];
        end = std::max(end, until);
        return Errc::Ok;
      }
    }
    const std::int64_t total = model_.num_free() + model_.num_cached() + model_.num_referenced();
    const std::int64_t most = total * Maker::kPermille / 1000;
    if (unused < 0 || num_pinned() + static_cast<std::int64_t>(wanted) > most) {
      return Errc::QueueFull;
    }
    acquire_pin(kRows + unused, m, wanted);
    pin_ends_[static_cast<std::size_t>(unused)] = until;
    return Errc::Ok;
  }

  // ---- comparing --------------------------------------------------------------------------------

  void compare() {
    for (int row = 0; row < kRows; ++row) {
      const auto& r = at(row);
      const auto table = pool_.table(0, Row{row});
      DYNBATCH_EXPECT(std::equal(table.begin(), table.end(), r.table.begin(), r.table.end(),
                                 [](BlockId a, int b) { return a.value == b; }));
      DYNBATCH_EXPECT(pool_.reads_withdrawn(Row{row}) == model_.reads_withdrawn(row));
      DYNBATCH_EXPECT(inner().holds_withdrawn(Row{row}) == model_.holds_withdrawn(row));
      DYNBATCH_EXPECT(inner().num_published_blocks(Row{row}) ==
                      static_cast<std::int64_t>(r.published));
      DYNBATCH_EXPECT(inner().num_settled_blocks(Row{row}) == model_.num_settled_blocks(row));
    }
    const PoolStats s = pool_.stats();
    DYNBATCH_EXPECT(s.free_blocks == model_.num_free());
    DYNBATCH_EXPECT(s.cached_blocks == model_.num_cached());
    DYNBATCH_EXPECT(s.referenced_blocks == model_.num_referenced());
    DYNBATCH_EXPECT(s.free_blocks + s.cached_blocks + s.referenced_blocks == s.total_blocks);
    DYNBATCH_EXPECT(s.evictions == model_.evictions);
    DYNBATCH_EXPECT(s.prefix_queries_tokens == model_.queried_tokens);
    DYNBATCH_EXPECT(s.prefix_hit_tokens == model_.hit_tokens);
    DYNBATCH_EXPECT(s.pinned_blocks == num_pinned());
  }

  void check() {
    const Status s = pool_.check();
    if (!s) {
      char text[256];
      static_cast<void>(format_status(s, text, sizeof(text)));
      throw Violation(std::string("check(): ") + text);
    }
  }

  // When all have left, nothing is held any more.
  void finish() {
    for (int row = 0; row < kRows; ++row) {
      release(row);
    }
    compare();
    drop_pins(INT64_MAX);
    DYNBATCH_EXPECT(model_.clear() && pool_.clear());
    check();
    const PoolStats s = pool_.stats();
    DYNBATCH_EXPECT(s.free_blocks == s.total_blocks && s.total_blocks == model_.size());
  }

  Choices& choices_;
  PoolShape shape_;
  Pool pool_;
  NaiveBlockPool<Eviction> model_;
  std::vector<std::int64_t> pin_ends_;
  std::vector<Story> stories_;
  std::vector<std::int64_t> next_uses_;
  PoolRunCounts counts_;
  std::size_t latest_ = 0;
  std::uint64_t plan_ = 0;
  std::uint64_t settled_ = 0;
  std::int64_t now_ = 0;
};

}  // namespace dynbatch::test
