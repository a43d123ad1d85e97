// SPDX-License-Identifier: Apache-2.0
/// \file
/// GroupedPool under random plans, several in flight, that run, fail and are abandoned: against a
/// device that remembers what each place of each group holds, and against a naive model of what
/// must be found again.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/grouped_pool.hpp>

#include "../../unit/kv/content.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

constexpr std::uint64_t kGarbage = 0xBAD;
constexpr std::uint64_t kZero = 0;

struct Mix {
  const char* name;
  std::int32_t first_block;
  std::vector<GroupSpec> further;
  std::int64_t interval;
};

const std::vector<Mix>& mixes() {
  static const std::vector<Mix> all = {
      {"a window", 4, {{GroupKind::Window, 4, 6}}, 0},
      {"a window of small blocks", 8, {{GroupKind::Window, 2, 5}}, 0},
      {"a window of large blocks", 2, {{GroupKind::Window, 8, 11}}, 0},
      {"a window of one token", 4, {{GroupKind::Window, 2, 1}}, 0},
      {"a state", 4, {{GroupKind::Recurrent, 1, 0}}, 4},
      {"a state, kept rarely", 2, {{GroupKind::Recurrent, 1, 0}}, 12},
      {"a window and a state", 4, {{GroupKind::Window, 2, 7}, {GroupKind::Recurrent, 1, 0}}, 8},
      {"two windows and a state",
       2,
       {{GroupKind::Window, 4, 9}, {GroupKind::Recurrent, 1, 0}, {GroupKind::Window, 1, 3}},
       4}};
  return all;
}

struct Options {
  bool scarce = false;  // blocks run short and are evicted
  bool faults = false;
  int depth = 1;
};

/// Plays a scheduler and a device.
class GroupedRun {
 public:
  GroupedRun(const Mix& mix, const Options& options, std::uint64_t seed)
      : mix_(mix), options_(options), random_(seed) {
    GroupedPool<>::Config config;
    config.pool = {.num_blocks = options.scarce ? 60 / mix.first_block + 8 : 4000,
                   .block_size = mix.first_block};
    attachment_ = {.max_rows = kRows,
                   .max_context_tokens = kContext,
                   .max_plans_in_flight = options.depth,
                   .max_step_tokens = kStepTokens};
    for (std::size_t i = 0; i < mix.further.size(); ++i) {
      const std::int64_t spare = options.scarce ? random_.between(0, 5) : 4000;
      config.groups[i] = {mix.further[i],
                          GroupedPool<>::blocks_needed(mix.further[i], attachment_) + spare};
    }
    config.snapshot_interval_tokens = mix.interval;
    pool_ = std::make_unique<GroupedPool<>>(config);
    for (int i = 0; i < kStories; ++i) {
      std::vector<Token> tokens;
      const std::int64_t shared = random_.between(0, kContext);
      const std::int64_t length = random_.between(2, kContext);
      for (std::int64_t t = 0; t < length; ++t) {
        tokens.push_back(static_cast<Token>(t < shared ? 7 * (i % 3) + t : 1000 * i + t));
      }
      CacheScope scope;
      scope.has_tenant_salt = i % 5 == 0;
      stories_.emplace_back(std::move(tokens), 8 * mix.first_block, scope);
    }
  }

  void run(int plans) {
    expect(pool_->attach(attachment_).is_ok(), "attach");
    for (int i = 0; i < plans && errors_.empty(); ++i) {
      plan();
      while (!flight_.empty() &&
             (static_cast<int>(flight_.size()) >= options_.depth || random_.one_in(3))) {
        if (options_.faults && random_.one_in(9)) {
          abandon(static_cast<std::size_t>(
              random_.between(0, static_cast<std::int64_t>(flight_.size()) - 1)));
        } else {
          settle();
        }
      }
      disturb();
      if (i % 64 == 0) {
        full_check();
      }
    }
    while (!flight_.empty()) {
      settle();
    }
    for (int row = 0; row < kRows; ++row) {
      release(row);
    }
    full_check();
    expect(pool_->clear(), "clear");
    for (std::size_t g = 0; g <= mix_.further.size(); ++g) {
      expect(pool_->group_stats(g).free_blocks == pool_->group_stats(g).total_blocks,
             "a cleared pool is free");
    }
    full_check();
  }

  std::vector<std::string> errors() const { return errors_; }
  std::int64_t hits = 0;
  std::int64_t forks = 0;
  std::int64_t restarts = 0;
  std::int64_t compared = 0;
  std::int64_t snapshots = 0;

 private:
  static constexpr int kRows = 5;
  static constexpr int kStories = 18;
  static constexpr std::int64_t kContext = 60;
  static constexpr std::int64_t kStepTokens = 48;

  struct RowState {
    int story = -1;
    std::int64_t planned = 0;
    std::int64_t processed = 0;
    int in_flight = 0;
    int epoch = 0;
    bool is_leaving = false;
  };
  struct ChunkRun {
    int row;
    int epoch;
    int story;
    std::int64_t first;
    std::int64_t end;
    std::vector<std::vector<BlockId>> tables;
  };
  struct PlanRun {
    PlanId id;
    std::vector<ChunkRun> chunks;
    std::vector<std::vector<BlockCopy>> copies;
    std::vector<std::vector<BlockId>> zeroes;
    std::vector<std::uint64_t> wanted;  // snapshots that this plan copies
  };

  void expect(bool holds, const std::string& what) {
    if (!holds && errors_.size() < 5) {
      errors_.push_back(what + ", plan " + std::to_string(last_plan_));
    }
  }
  void full_check() {
    const Status s = pool_->check();
    expect(s.is_ok(), s.is_ok() ? "" : std::string("check: ") + s.text);
  }

  /// Hash of the first `tokens` tokens of a story and its scope.
  std::uint64_t chain(int story, std::int64_t tokens) const {
    const kv_test::Content& c = stories_[static_cast<std::size_t>(story)];
    std::uint64_t h = c.scope().has_tenant_salt ? 2 : 1;
    for (std::int64_t t = 0; t < tokens; ++t) {
      h = combine64(h, static_cast<std::uint64_t>(c.tokens()[static_cast<std::size_t>(t)]));
    }
    return h;
  }
  GroupSpec spec(std::size_t g) const { return pool_->groups()[g]; }
  std::uint64_t& place(std::size_t g, BlockId block, std::int64_t offset) {
    return device_[{g, std::int64_t{block.value} * spec(g).block_size + offset}];
  }

  /// What the model says can be taken up at most, in tokens.
  std::int64_t servable(int story, std::int64_t limit) const {
    const std::int64_t unit = mix_.first_block;
    std::int64_t whole = 0;
    while ((whole + 1) * unit <= limit && published_.count(chain(story, (whole + 1) * unit)) != 0) {
      ++whole;
    }
    for (std::int64_t length = whole * unit; length > 0; length -= unit) {
      bool all = true;
      for (std::size_t g = 1; g < pool_->groups().size() && all; ++g) {
        const GroupSpec s = spec(g);
        if (s.kind == GroupKind::Recurrent) {
          all = kept_.count({g, chain(story, length)}) != 0;
          continue;
        }
        all = length % s.block_size == 0;
        const std::int64_t first = std::max<std::int64_t>(0, length - s.window + 1);
        for (std::int64_t j = first / s.block_size; j < length / s.block_size && all; ++j) {
          all = kept_.count({g, chain(story, (j + 1) * s.block_size)}) != 0;
        }
      }
      if (all) {
        return length;
      }
    }
    return 0;
  }

  void plan() {
    PlanRun p;
    p.id = PlanId{++last_plan_};
    std::int64_t budget = kStepTokens;
    const int start = static_cast<int>(random_.between(0, kRows - 1));
    for (int i = 0; i < kRows; ++i) {
      const int row = (start + i) % kRows;
      RowState& r = rows_[row];
      if (r.is_leaving || (r.in_flight > 0 && random_.one_in(2)) || random_.one_in(4) ||
          (r.story >= 0 && is_stale(r))) {
        continue;
      }
      if (r.story < 0) {
        admit(row);
      }
      const std::int64_t left =
          std::min(budget, stories_[static_cast<std::size_t>(r.story)].length() - r.planned);
      if (left <= 0) {
        continue;
      }
      const std::int64_t n = pool_->chunk_length(r.planned, random_.between(1, left));
      expect(n >= 1 && n <= left, "a chunk is at least one token and at most what was asked for");
      if (chunk(p, row, n)) {
        budget -= n;
      }
    }
    for (std::size_t g = 1; g < pool_->groups().size(); ++g) {
      std::vector<BlockCopy> copies(64);
      copies.resize(pool_->drain_copies(g, copies, p.id));
      std::vector<BlockId> zeroes(64);
      zeroes.resize(pool_->drain_zeroes(g, zeroes));
      p.copies.push_back(copies);
      p.zeroes.push_back(zeroes);
    }
    p.wanted.swap(wanted_);
    for (const ChunkRun& c : p.chunks) {  // the states that the plan after this one may keep
      if (mix_.interval > 0 && c.end % mix_.interval == 0) {
        wanted_.push_back(chain(c.story, c.end));
      }
    }
    flight_.push_back(std::move(p));
  }
  static bool is_stale(const RowState& r) { return r.in_flight > 0 && r.epoch % 2 == 1; }

  void admit(int row) {
    RowState& r = rows_[row];
    const int story = static_cast<int>(random_.between(0, kStories - 1));
    const std::int64_t length = stories_[static_cast<std::size_t>(story)].length();
    const std::int64_t limit = random_.one_in(3) ? random_.between(0, length - 1) : length - 1;
    const PrefixMatch m = pool_->match(stories_[static_cast<std::size_t>(story)].view(), limit);
    const std::int64_t expected = servable(story, limit);
    expect(
        options_.scarce || options_.faults ? m.num_tokens <= expected : m.num_tokens == expected,
        "matched " + std::to_string(m.num_tokens) + ", the model has " + std::to_string(expected));
    ++compared;
    hits += m.num_tokens > 0 ? 1 : 0;
    const std::int64_t cached = pool_->stats().cached_blocks;
    expect(pool_->acquire(Row{row}, m), "a match is not less than acquire gives");
    expect(cached - pool_->stats().cached_blocks == m.idle_blocks, "idle blocks");
    r = RowState{story, m.num_tokens, m.num_tokens, 0, r.epoch / 2 * 2 + 2, false};
  }

  bool chunk(PlanRun& p, int row, std::int64_t n) {
    RowState& r = rows_[row];
    const auto held = static_cast<std::int64_t>(pool_->table(0, Row{row}).size());
    const std::int64_t end = r.planned + n;
    const std::int64_t missing =
        std::max<std::int64_t>(0, (end + mix_.first_block - 1) / mix_.first_block - held);
    const bool fits = missing <= pool_->stats().available_blocks();
    expect(pool_->extend(Row{row}, end) == fits, "only the first group can refuse blocks");
    if (!fits) {
      return false;
    }
    pool_->publish(Row{row}, stories_[static_cast<std::size_t>(r.story)].view(), end, p.id);
    pool_->plan_chunk(Row{row}, end, p.id);
    for (std::int64_t b = 1; b * mix_.first_block <= end; ++b) {
      published_.insert(chain(r.story, b * mix_.first_block));
    }
    ChunkRun c{row, r.epoch, r.story, r.planned, end, {}};
    for (std::size_t g = 0; g < pool_->groups().size(); ++g) {
      const auto table = pool_->table(g, Row{row});
      c.tables.emplace_back(table.begin(), table.end());
    }
    p.chunks.push_back(std::move(c));
    r.planned = end;
    ++r.in_flight;
    return true;
  }

  /// Runs a plan on the device: copies, zeroes, then each chunk reads and writes.
  void execute(const PlanRun& p) {
    for (std::size_t g = 1; g < pool_->groups().size(); ++g) {
      std::set<BlockId> targets;
      for (const BlockCopy& c : p.copies[g - 1]) {
        expect(targets.insert(c.target).second, "two copies to one block");
      }
      for (const BlockCopy& c : p.copies[g - 1]) {
        expect(targets.count(c.source) == 0, "a chain of copies");
        for (std::int64_t i = 0; i < spec(g).block_size; ++i) {
          place(g, c.target, i) = i < c.num_tokens ? place(g, c.source, i) : kGarbage;
        }
        snapshots += spec(g).kind == GroupKind::Recurrent ? 1 : 0;
      }
      for (const BlockId b : p.zeroes[g - 1]) {
        place(g, b, 0) = kZero;
      }
    }
    for (const ChunkRun& c : p.chunks) {
      // Who is on its way out may read what was never written: then it computes garbage.
      const bool is_live = rows_[c.row].epoch == c.epoch && !rows_[c.row].is_leaving;
      bool is_clean = true;
      for (std::size_t g = 0; g < pool_->groups().size(); ++g) {
        const bool reads_well = reads(c, g);
        expect(reads_well || !is_live, "group " + std::to_string(g) + " reads foreign KV");
        is_clean = is_clean && reads_well;
      }
      for (std::size_t g = 0; g < pool_->groups().size(); ++g) {
        write(c, g, is_clean);
      }
    }
  }
  bool reads(const ChunkRun& c, std::size_t g) {
    const GroupSpec s = spec(g);
    if (s.kind == GroupKind::Recurrent) {
      return place(g, c.tables[g][0], 0) == (c.first == 0 ? kZero : chain(c.story, c.first));
    }
    bool all = true;
    for (std::int64_t p =
             s.kind == GroupKind::Window ? std::max<std::int64_t>(0, c.first - s.window + 1) : 0;
         p < c.first; ++p) {
      const BlockId b = c.tables[g][static_cast<std::size_t>(p / s.block_size)];
      all = all && b != kNoBlock && place(g, b, p % s.block_size) == chain(c.story, p + 1);
    }
    return all;
  }
  void write(const ChunkRun& c, std::size_t g, bool is_clean) {
    const bool is_state = spec(g).kind == GroupKind::Recurrent;
    for (std::int64_t p = c.first; p < c.end; ++p) {
      const BlockId b =
          c.tables[g][static_cast<std::size_t>(is_state ? 0 : p / spec(g).block_size)];
      expect(b != kNoBlock, "a position has no place");
      place(g, b, is_state ? 0 : p % spec(g).block_size) =
          is_clean ? chain(c.story, p + 1) : kGarbage;
    }
  }

  void settle() {
    const PlanRun p = flight_.front();
    flight_.pop_front();
    execute(p);
    for (const ChunkRun& c : p.chunks) {
      if (options_.faults && random_.one_in(10)) {
        undo(c);
        for (std::size_t g = 0; g < pool_->groups().size(); ++g) {
          write(c, g, false);  // what it touched is garbage
        }
      }
    }
    reset_readers();
    pool_->settle(p.id);
    for (const std::uint64_t key : p.wanted) {
      for (std::size_t g = 1; g < pool_->groups().size(); ++g) {
        if (spec(g).kind == GroupKind::Recurrent) {
          kept_.insert({g, key});
        }
      }
    }
    for (const ChunkRun& c : p.chunks) {
      RowState& r = rows_[c.row];
      --r.in_flight;
      if (r.epoch != c.epoch || r.is_leaving) {
        continue;
      }
      r.processed = c.end;
      pool_->advance(Row{c.row}, r.processed, r.planned);
      note_kept(c.row);
    }
    drop_leaving();
  }
  /// Complete processed blocks that the row holds in its windows can be found from now on.
  void note_kept(int row) {
    const RowState& r = rows_[row];
    for (std::size_t g = 1; g < pool_->groups().size(); ++g) {
      const GroupSpec s = spec(g);
      for (std::int64_t j = 0; s.kind == GroupKind::Window && (j + 1) * s.block_size <= r.processed;
           ++j) {
        kept_.insert({g, chain(r.story, (j + 1) * s.block_size)});
      }
      const auto table = pool_->table(g, Row{row});
      const std::int64_t skipped = std::max<std::int64_t>(0, r.processed - s.window + 1);
      for (std::size_t j = 0; s.kind == GroupKind::Window && j < table.size(); ++j) {
        expect((table[j] == kNoBlock) == (static_cast<std::int64_t>(j) < skipped / s.block_size),
               "a window holds the blocks from its start on and no others");
      }
    }
  }

  void undo(const ChunkRun& c) {
    RowState& r = rows_[c.row];
    pool_->withdraw(Row{c.row}, c.first);
    if (r.epoch != c.epoch || r.is_leaving) {
      return;
    }
    r.planned = c.first;
    r.epoch += r.epoch % 2 == 0 ? 1 : 2;  // odd: waits until no plan names it
    if (pool_->must_leave(Row{c.row})) {
      r.is_leaving = true;
      ++restarts;
    }
  }
  void reset_readers() {
    for (bool found = true; found;) {
      found = false;
      for (int row = 0; row < kRows; ++row) {
        RowState& r = rows_[row];
        if (r.story >= 0 && !r.is_leaving && pool_->reads_withdrawn(Row{row})) {
          pool_->withdraw(Row{row}, r.processed);
          r.is_leaving = true;
          found = true;
        }
      }
    }
  }
  void abandon(std::size_t first) {
    for (std::size_t i = flight_.size(); i > first; --i) {
      for (std::size_t c = flight_[i - 1].chunks.size(); c > 0; --c) {
        const ChunkRun& chunk = flight_[i - 1].chunks[c - 1];
        RowState& r = rows_[chunk.row];
        const int epoch = r.epoch;
        undo(chunk);
        r.epoch = epoch == chunk.epoch && !r.is_leaving ? epoch : r.epoch;
        --r.in_flight;
      }
      for (const int row : forked_in_) {
        rows_[row].is_leaving = rows_[row].story >= 0;  // its copies were perhaps told and lost
      }
      forked_in_.clear();
    }
    for (std::size_t i = first; i < flight_.size(); ++i) {
      pool_->lose_plan(flight_[i].id);
    }
    flight_.resize(first);
    wanted_.clear();
    reset_readers();
    drop_leaving();
  }
  void drop_leaving() {
    for (int row = 0; row < kRows; ++row) {
      RowState& r = rows_[row];
      if (r.in_flight == 0 && r.epoch % 2 == 1) {
        ++r.epoch;
      }
      if (r.is_leaving && r.in_flight == 0) {
        release(row);
      }
    }
  }
  void release(int row) {
    pool_->release(Row{row});
    rows_[row] = RowState{-1, 0, 0, 0, rows_[row].epoch / 2 * 2 + 2, false};
    forked_in_.erase(row);
    for (std::size_t g = 0; g < pool_->groups().size(); ++g) {
      expect(pool_->table(g, Row{row}).empty(), "an empty row has no blocks");
    }
  }

  void disturb() {
    const int row = static_cast<int>(random_.between(0, kRows - 1));
    RowState& r = rows_[row];
    if (flight_.empty()) {
      forked_in_.clear();
    }
    if (r.in_flight > 0) {
      return;
    }
    const bool is_done =
        r.story >= 0 && r.planned == stories_[static_cast<std::size_t>(r.story)].length();
    if (is_done || random_.one_in(12)) {
      // Without faults a state is kept once the next plan has copied it: not if it leaves before.
      if (options_.scarce || options_.faults || mix_.interval == 0) {
        release(row);
      } else if (flight_.empty() && wanted_.empty()) {
        release(row);
      }
      return;
    }
    const int other = (row + 1) % kRows;
    if (r.story >= 0 && rows_[other].story < 0 && r.processed > 0 && random_.one_in(3)) {
      fork(row, other);
    } else if (r.story >= 0 && options_.faults && random_.one_in(8)) {
      const std::int64_t kept = random_.between(0, r.processed);
      pool_->truncate(Row{row}, kept);
      r.planned = r.processed = kept;
      // Behind a cut through a shared block it must not write, and a window may be gone.
      if (kept % mix_.first_block != 0 || pool_->must_leave(Row{row})) {
        restarts += pool_->must_leave(Row{row}) ? 1 : 0;
        release(row);
        return;
      }
      // It may go on in another way.
      for (int i = static_cast<int>(random_.between(0, kStories - 1)); i < kStories; ++i) {
        if (stories_[static_cast<std::size_t>(i)].length() > kept &&
            chain(i, kept) == chain(r.story, kept)) {
          r.story = i;
          break;
        }
      }
    } else if (random_.one_in(30) && flight_.empty()) {
      expect(pool_->clear() == (pool_->stats().referenced_blocks == 0), "clear");
      if (pool_->stats().referenced_blocks == 0) {
        published_.clear();
        kept_.clear();
        wanted_.clear();
      }
    }
  }
  void fork(int row, int other) {
    const RowState& r = rows_[row];
    if (!pool_->fork(Row{row}, Row{other}, r.processed)) {
      expect(pool_->table(0, Row{other}).empty(), "a refused fork changes nothing");
      return;
    }
    ++forks;
    const std::int64_t rest = r.processed % mix_.first_block;
    if (rest != 0) {  // the first group's copy is the scheduler's
      const BlockId from =
          pool_->table(0, Row{row})[static_cast<std::size_t>(r.processed / mix_.first_block)];
      for (std::int64_t i = 0; i < rest; ++i) {
        place(0, pool_->table(0, Row{other}).back(), i) = place(0, from, i);
      }
    }
    rows_[other] = RowState{r.story, r.processed, r.processed, 0, rows_[other].epoch, false};
    forked_in_.insert(other);
  }

  Mix mix_;
  Options options_;
  SplitMix64 random_;
  PoolAttachment attachment_;
  std::unique_ptr<GroupedPool<>> pool_;
  std::vector<kv_test::Content> stories_;
  RowState rows_[kRows];
  std::deque<PlanRun> flight_;
  std::set<int> forked_in_;
  std::map<std::pair<std::size_t, std::int64_t>, std::uint64_t> device_;
  std::set<std::uint64_t> published_;                     // prefixes of the first group
  std::set<std::pair<std::size_t, std::uint64_t>> kept_;  // by group, prefix
  std::vector<std::uint64_t> wanted_;                     // states that the next plan may keep
  std::uint64_t last_plan_ = 0;
  std::vector<std::string> errors_;
};

}  // namespace

TEST_CASE("Groups find exactly what they must and read only what they wrote") {
  for (const Mix& mix : mixes()) {
    std::int64_t hits = 0;
    std::int64_t forks = 0;
    std::int64_t copies = 0;
    for (const int depth : {1, 3}) {
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        INFO(mix.name << ", depth " << depth << ", seed " << seed);
        GroupedRun run(mix, {.depth = depth}, seed);
        run.run(400);
        for (const std::string& error : run.errors()) {
          UNSCOPED_INFO(error);
        }
        REQUIRE(run.errors().empty());
        hits += run.hits;
        forks += run.forks;
        copies += run.snapshots;
      }
    }
    INFO(mix.name);
    CHECK(hits > 50);
    CHECK(forks > 3);
    CHECK((copies > 100) == (mix.interval > 0));
  }
}

TEST_CASE("Groups stay sound when memory is short, plans fail and are abandoned") {
  for (const Mix& mix : mixes()) {
    std::int64_t hits = 0;
    std::int64_t restarts = 0;
    for (const bool scarce : {false, true}) {
      for (const int depth : {1, 2, 4}) {
        for (std::uint64_t seed = 1; seed <= 6; ++seed) {
          INFO(mix.name << (scarce ? ", scarce" : "") << ", depth " << depth << ", seed " << seed);
          GroupedRun run(mix, {.scarce = scarce, .faults = true, .depth = depth}, seed + 100);
          run.run(400);
          for (const std::string& error : run.errors()) {
            UNSCOPED_INFO(error);
          }
          REQUIRE(run.errors().empty());
          hits += run.hits;
          restarts += run.restarts;
        }
      }
    }
    INFO(mix.name);
    CHECK(hits > 50);
    CHECK(restarts > 50);
  }
}
