// SPDX-License-Identifier: Apache-2.0
/// \file
/// Several KV groups in one scheduler: what make() refuses, what plans say of each group, and what
/// becomes of windows and states when plans do not run.
#include <dynbatch/base/random.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/model/block_table_mirror.hpp>

#include "small_host.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

using Grouped = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, GroupedPool<>, FcfsAdmission>;

constexpr GroupSpec kWindow{GroupKind::Window, 8, 11};
constexpr GroupSpec kSmallWindow{GroupKind::Window, 2, 4};
constexpr GroupSpec kState{GroupKind::Recurrent, 1, 0};

struct GroupOptions {
  std::vector<GroupSpec> further;
  std::int64_t interval = 0;
  std::int64_t blocks = 400;
  std::int64_t spare = 100;
  std::int64_t budget = 64;
  std::int32_t drafts = 0;
  std::int32_t plans = 1;
  std::vector<GroupSpec> executor{};
};

Expected<Grouped> make(const GroupOptions& o) {
  Capabilities caps;
  caps.max_tokens = 256;
  caps.max_sequences = 6;
  caps.groups = o.executor;
  caps.future_tokens = o.plans > 1;
  GroupedPool<>::Config pool;
  pool.pool = {.num_blocks = o.blocks, .block_size = 4};
  for (std::size_t i = 0; i < o.further.size(); ++i) {
    pool.groups[i] = {o.further[i], o.spare + GroupedPool<>::blocks_needed(
                                                  o.further[i], {.max_rows = 6,
                                                                 .max_context_tokens = 4 * o.blocks,
                                                                 .max_plans_in_flight = o.plans,
                                                                 .max_step_tokens = 256})};
  }
  pool.snapshot_interval_tokens = o.interval;
  return Grouped::make({.max_plans_in_flight = o.plans, .max_draft_tokens = o.drafts}, caps,
                       TokenBudgetSizer(TokenBudgetSizer::Config{.budget = o.budget}), NoSplit{},
                       NullBalancer{}, GroupedPool<>(pool), FcfsAdmission{});
}

Status settle(Grouped& s, const StepPlan& plan, std::vector<Outcome> outcomes = {}) {
  std::vector<Token> tokens;
  std::vector<std::int32_t> begin = {0};
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const bool ran = outcomes.empty() || outcomes[c].kind == OutcomeKind::Ok;
    for (std::int32_t n = 0; n < plan.chunks[c].num_samples; ++n) {
      if (ran) {
        tokens.push_back(40 + n);
      }
      begin.push_back(static_cast<std::int32_t>(tokens.size()));
    }
  }
  StepResult result;
  result.tokens = tokens;
  if (!outcomes.empty()) {
    result.outcomes = outcomes;
    result.token_begin = begin;
  }
  return s.commit(plan, result, TimeNs{});
}
void drain_events(Grouped& s) {
  Event events[16];
  while (s.poll(events) == std::size(events)) {
  }
}
const StepPlan& planned(Grouped& s) {
  const StepPlan* plan = s.plan(TimeNs{});
  REQUIRE(plan != nullptr);
  return *plan;
}
/// As {first position, tokens} a chunk.
std::vector<std::pair<std::int32_t, std::int32_t>> spans(const StepPlan& plan) {
  std::vector<std::pair<std::int32_t, std::int32_t>> out;
  for (const Chunk& c : plan.chunks) {
    out.emplace_back(c.first_position, c.num_tokens);
  }
  return out;
}
using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;

/// A pool that claims groups without serving them.
class ClaimingPool : public BlockPool<> {
 public:
  using BlockPool<>::BlockPool;
  [[nodiscard]] std::span<const GroupSpec> groups() const noexcept { return groups_; }

 private:
  GroupSpec groups_[2] = {{GroupKind::Full, 16, 0}, {GroupKind::Window, 16, 32}};
};

}  // namespace

TEST_CASE("make refuses groups that pool, executor or drafts rule out") {
  CHECK(make({.further = {kWindow, kState}}));
  const auto field = [](const GroupOptions& o) {
    const auto made = make(o);
    return std::string(made ? "" : made.status().field);
  };
  CHECK(field({.further = {kWindow, kState}, .drafts = 2}) == "max_draft_tokens");
  CHECK(field({.further = {kWindow}, .drafts = 2}).empty());
  CHECK(field({.further = {kWindow}, .spare = -1}) == "groups.num_blocks");
  const GroupSpec full{GroupKind::Full, 4, 0};
  CHECK(field({.further = {kWindow}, .executor = {full, kWindow}}).empty());
  CHECK(field({.further = {kWindow}, .executor = {full}}) == "capabilities.groups");
  CHECK(field({.further = {kWindow}, .executor = {full, kSmallWindow}}) == "capabilities.groups");
  CHECK(field({.further = {kWindow}, .executor = {kWindow, full}}) == "capabilities.groups");
  const auto claimed =
      Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, ClaimingPool, FcfsAdmission>::make(
          {}, {}, TokenBudgetSizer{}, NoSplit{}, NullBalancer{}, ClaimingPool({.num_blocks = 9}),
          FcfsAdmission{});
  CHECK(claimed.status().code == Errc::NotSupported);
  CHECK(std::string(claimed.status().field) == "pool.groups");
}

TEST_CASE("A mirror for each group gives the tables that materialize writes") {
  auto made = make({.further = {kWindow, kState, kSmallWindow}, .interval = 16, .blocks = 60});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  BlockTableMirror mirrors[4];
  for (BlockTableMirror& mirror : mirrors) {
    REQUIRE(mirror.allocate(6, 130));
  }
  SplitMix64 rng(4);
  std::vector<BlockId> out(6 * 130);
  std::int64_t compared = 0;
  std::int64_t nulls = 0;
  for (std::uint64_t i = 1; i < 900; ++i) {
    if (rng.one_in(3)) {
      SmallRequest r(i, rng.between(1, 90), rng.between(1, 60));
      const std::int64_t shared = rng.between(0, 90);
      for (std::size_t t = 0; t < r.tokens.size() && static_cast<std::int64_t>(t) < shared; ++t) {
        r.tokens[t] = static_cast<Token>(t);
      }
      static_cast<void>(s.submit(r.view()));
    }
    const StepPlan* plan = s.plan(TimeNs{});
    if (plan == nullptr) {
      continue;
    }
    if (rng.one_in(10)) {
      REQUIRE(s.abandon(*plan, AbandonReason::NotRun, TimeNs{}));  // never applied
      continue;
    }
    REQUIRE(plan->groups.size() == 4);
    for (std::size_t g = 0; g < 4; ++g) {
      const GroupPlan& group = plan->groups[g];
      REQUIRE(mirrors[g].apply(*plan, g));
      REQUIRE(s.materialize(*plan, out, 130, g));
      REQUIRE(group.token_slots.size() == plan->tokens.size());
      for (std::size_t c = 0; c < plan->chunks.size(); ++c) {
        const Chunk& chunk = plan->chunks[c];
        const auto table = mirrors[g].table(chunk.row);
        const std::int32_t size = group.spec.block_size;
        const bool is_state = group.spec.kind == GroupKind::Recurrent;
        const auto needed =
            static_cast<std::size_t>(is_state ? 1 : (chunk.context_length + size - 1) / size);
        REQUIRE(table.size() >= needed);
        for (std::size_t b = 0; b < needed; ++b) {
          REQUIRE(table[b] == out[c * 130 + b]);
          nulls += table[b] == kNoBlock ? 1 : 0;
          ++compared;
        }
        for (std::int32_t t = 0; t < chunk.num_tokens; ++t) {
          const std::int32_t p = chunk.first_position + t;
          const BlockId block = table[static_cast<std::size_t>(is_state ? 0 : p / size)];
          REQUIRE(group.token_slots[static_cast<std::size_t>(chunk.first_token + t)].value ==
                  std::int64_t{block.value} * size + (is_state ? 0 : p % size));
        }
      }
    }
    CHECK(s.materialize(*plan, out, 130, 4).code == Errc::InvalidArgument);
    REQUIRE(settle(s, *plan));
    drain_events(s);
    REQUIRE(s.check());
  }
  CHECK(compared > 10000);
  CHECK(nulls > 1000);
  CHECK(s.stats().preemptions > 0);
  CHECK(s.stats().prefix_hit_tokens > 0);
}

TEST_CASE("A mirror takes a delta without a block for all entries before it") {
  BlockTableMirror mirror;
  REQUIRE(mirror.allocate(1, 8));
  StepPlan plan;
  GroupPlan group;
  plan.groups = {&group, 1};
  const auto apply = [&](std::vector<BlockDelta> deltas) {
    group.deltas = deltas;
    REQUIRE(mirror.apply(plan));
    std::vector<std::int32_t> out;
    for (const BlockId b : mirror.table(Row{0})) {
      out.push_back(b.value);
    }
    return out;
  };
  using Ids = std::vector<std::int32_t>;
  CHECK(apply({{Row{0}, 0, BlockId{5}}, {Row{0}, 1, BlockId{6}}, {Row{0}, 2, BlockId{7}}}) ==
        Ids{5, 6, 7});
  CHECK(apply({{Row{0}, 1, kNoBlock}, {Row{0}, 3, BlockId{8}}}) == Ids{-1, -1, 7, 8});
  // A residence that begins behind its window's start, and then one that doesn't.
  CHECK(apply({{Row{0}, 4, kNoBlock}, {Row{0}, 5, BlockId{9}}}) == Ids{-1, -1, -1, -1, -1, 9});
  CHECK(apply({{Row{0}, 0, BlockId{3}}, {Row{0}, 1, BlockId{4}}}) == Ids{3, 4});
  CHECK(apply({{Row{0}, 0, kNoBlock}}) == Ids{-1, 4});
  const BlockDelta bad{Row{0}, 8, kNoBlock};
  group.deltas = {&bad, 1};
  CHECK(mirror.apply(plan).code == Errc::InvalidArgument);
}

TEST_CASE("Windows are told as they move on, and hold little however long the sequence") {
  auto made = make({.further = {kSmallWindow}, .spare = 0});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  SmallRequest r(1, 7, 300);
  REQUIRE(s.submit(r.view()));
  std::int64_t most = 0;
  std::vector<BlockDelta> nulls;
  for (int i = 0; i < 300; ++i) {
    const StepPlan& plan = planned(s);
    for (const BlockDelta& d : plan.groups[1].deltas) {
      if (d.block == kNoBlock) {
        nulls.push_back(d);
      }
    }
    REQUIRE(settle(s, plan));
    most = std::max(most, s.pool().group_stats(1).referenced_blocks);
    drain_events(s);
  }
  CHECK(s.stats().finished == 1);
  // 7 tokens on four blocks leave two of them behind; then one is left every second token.
  REQUIRE(nulls.size() > 100);
  CHECK(nulls[0].index == 1);
  CHECK(nulls[1].index == 2);
  CHECK(nulls.back().index == 150);
  CHECK(most == 2);  // against 153 of full attention in blocks of two
  CHECK(s.check());
}

TEST_CASE("A prompt is cut where a state is worth keeping, and taken up there") {
  auto made = make({.further = {kState, kWindow}, .interval = 16});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  SmallRequest first(1, 43, 2);
  REQUIRE(s.submit(first.view()));
  const StepPlan& one = planned(s);
  CHECK(spans(one) == Spans{{0, 32}});
  REQUIRE(one.groups[1].zeroes.size() == 1);
  CHECK(one.groups[1].copies.empty());
  REQUIRE(settle(s, one));
  const StepPlan& two = planned(s);
  CHECK(spans(two) == Spans{{32, 11}});
  REQUIRE(two.groups[1].copies.size() == 1);  // the state at 32, before the chunk replaces it
  CHECK(two.groups[1].copies[0].source.value == two.groups[1].token_slots[0].value);
  CHECK(two.groups[1].zeroes.empty());
  REQUIRE(settle(s, two));
  const BlockId snapshot = two.groups[1].copies[0].target;

  SmallRequest second(2, 43, 2);
  second.tokens = first.tokens;
  second.tokens[42] = 7;
  REQUIRE(s.submit(second.view()));
  const StepPlan& three = planned(s);
  CHECK(spans(three) == Spans{{43, 1}, {32, 11}});
  REQUIRE(three.groups[1].copies.size() == 1);
  CHECK(three.groups[1].copies[0].source == snapshot);
  CHECK(three.groups[1].copies[0].target.value == three.groups[1].token_slots[1].value);
  CHECK(three.groups[1].zeroes.empty());
  CHECK(s.stats().prefix_hit_tokens == 32);
  // It did not run, so its state is still the snapshot.
  REQUIRE(settle(s, three, {{}, {OutcomeKind::NotRun, FinishReason::None, 0}}));
  REQUIRE(s.check());
  const StepPlan& again = planned(s);
  CHECK(spans(again) == Spans{{32, 11}});
  CHECK(again.groups[1].copies.empty());
  CHECK(again.groups[1].zeroes.empty());
  // It failed: a state can't be taken back, so it begins anew from its snapshot.
  REQUIRE(settle(s, again, {{OutcomeKind::Failed, FinishReason::None, 0}}));
  REQUIRE(s.check());
  const StepPlan& four = planned(s);
  CHECK(spans(four) == Spans{{32, 11}});
  REQUIRE(four.groups[1].copies.size() == 1);
  CHECK(four.groups[1].copies[0].source == snapshot);
  REQUIRE(settle(s, four));
  CHECK(s.check());
}

TEST_CASE("An atomic prompt is not cut for a state") {
  auto made = make({.further = {kState}, .interval = 16});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  SmallRequest r(1, 43, 1);
  r.request.atomic_prefill = true;
  REQUIRE(s.submit(r.view()));
  CHECK(spans(planned(s)) == Spans{{0, 43}});
}

TEST_CASE("Samples fork windows and states, and start over if their copies were lost") {
  for (const bool is_state : {false, true}) {
    // The prompt fills whole blocks of the first group: only the other group has to copy.
    auto made = make({.further = {is_state ? kState : kWindow}, .interval = is_state ? 16 : 0});
    REQUIRE(made);
    Grouped s = std::move(made).value();
    SmallRequest r(1, 12, 3);
    r.request.num_samples = 3;
    REQUIRE(s.submit(r.view()));
    REQUIRE(settle(s, planned(s)));
    CHECK(s.stats().running == 3);
    SECTION(is_state ? "states, all goes well" : "windows, all goes well") {
      const StepPlan& plan = planned(s);
      CHECK(plan.chunks.size() == 3);
      CHECK(plan.groups[0].copies.empty());
      REQUIRE(plan.groups[1].copies.size() == 2);
      CHECK(plan.groups[1].copies[0].num_tokens == (is_state ? 1 : 4));
      CHECK(plan.groups[1].copies[0].source == plan.groups[1].copies[1].source);
      REQUIRE(settle(s, plan));
      const StepPlan& next = planned(s);
      CHECK(next.groups[1].copies.empty());
      REQUIRE(settle(s, next));
    }
    SECTION(is_state ? "states, the plan is abandoned" : "windows, the plan is abandoned") {
      const StepPlan& plan = planned(s);
      CHECK(plan.groups[1].copies.size() == 2);
      REQUIRE(s.abandon(plan, AbandonReason::NotRun, TimeNs{}));
      CHECK(s.stats().running == (is_state ? 0 : 1));
      const StepPlan& next = planned(s);
      CHECK(next.groups[1].copies.size() == 0);
      for (const Chunk& c : next.chunks) {
        const bool starts_over = c.kind == ChunkKind::Prefill;
        CHECK(starts_over == (is_state || c.sample > 0));
      }
      REQUIRE(settle(s, next));
    }
    for (int i = 0; i < 20 && s.stats().live > 0; ++i) {
      const StepPlan* plan = s.plan(TimeNs{});
      if (plan != nullptr) {
        REQUIRE(settle(s, *plan));
      }
      drain_events(s);
      REQUIRE(s.check());
    }
    CHECK(s.stats().finished == 1);
    CHECK(s.pool().group_stats(1).referenced_blocks == 0);
  }
}

TEST_CASE("A sample gets the block of the one that it was forked from and that ended meanwhile") {
  // Four blocks hold the prompt and one output. The fork is made when a plan in flight has the
  // last.
  auto made = make({.further = {kWindow}, .blocks = 4, .plans = 2});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  SmallRequest r(1, 12, 2);
  r.request.num_samples = 2;
  REQUIRE(s.submit(r.view()));
  const StepPlan& prompt = planned(s);
  const StepPlan& decode = planned(s);
  CHECK(decode.chunks.size() == 1);
  REQUIRE(settle(s, prompt));
  REQUIRE(settle(s, decode));  // the first sample has both outputs
  for (int i = 0; i < 20 && s.stats().live > 0; ++i) {
    const StepPlan* plan = s.plan(TimeNs{});
    if (plan != nullptr) {
      REQUIRE(settle(s, *plan));
    }
    drain_events(s);
    REQUIRE(s.check());
  }
  CHECK(s.stats().finished == 1);
  CHECK(s.stats().live == 0);
}

TEST_CASE("Without further groups fronts of blocks are copied, and their sources let go") {
  Capabilities caps;
  caps.max_sequences = 4;
  caps.partial_copy = true;
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 8, .block_size = 4, .min_partial_tokens = 1};
  auto made = Grouped::make({}, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = 64}),
                            NoSplit{}, NullBalancer{}, GroupedPool<>(config), FcfsAdmission{});
  REQUIRE(made);
  Grouped s = std::move(made).value();
  std::int64_t outputs = 0;
  for (const std::int64_t max_new : {2, 20}) {  // the second needs every block in the end
    SmallRequest r(0, 11, max_new);
    r.request.id = RequestId{static_cast<std::uint64_t>(max_new)};
    for (std::size_t i = 6; i < 11; ++i) {
      r.tokens[i] += static_cast<Token>(1000 * max_new);
    }
    REQUIRE(s.submit(r.view()));
    std::size_t copies = 0;
    for (int i = 0; i < 30 && s.stats().live > 0; ++i) {
      const StepPlan& plan = planned(s);
      copies += plan.groups[0].copies.size();
      REQUIRE(settle(s, plan));
      Event events[16];
      for (std::size_t n = s.poll(events); n > 0; --n) {
        if (events[n - 1].kind == EventKind::Finished) {
          outputs = events[n - 1].count;
          CHECK(events[n - 1].reason == FinishReason::Length);
        }
      }
      REQUIRE(s.check());
    }
    CHECK(outputs == max_new);
    CHECK(copies == (max_new == 2 ? 0U : 1U));
  }
}

TEST_CASE("The example of the pool's documentation is accepted") {
  const PoolAttachment attachment{.max_rows = 64,
                                  .max_context_tokens = 32768,
                                  .max_plans_in_flight = 1,
                                  .max_step_tokens = 8192};
  const GroupSpec window{GroupKind::Window, 16, 1024};
  const GroupSpec state{GroupKind::Recurrent, 1, 0};
  GroupedPool<>::Config config;
  config.pool = {.num_blocks = 100000, .block_size = 16};
  config.groups[0] = {window, 20000 + GroupedPool<>::blocks_needed(window, attachment)};
  config.groups[1] = {state, 128 + GroupedPool<>::blocks_needed(state, attachment)};
  config.snapshot_interval_tokens = 512;
  CHECK(GroupedPool<>::blocks_needed(window, attachment) == 4794);
  CHECK(attachment.max_rows * attachment.max_context_tokens / 16 == 131072);
  Capabilities caps;
  caps.max_sequences = 64;
  caps.max_tokens = 8192;
  CHECK(Grouped::make({.max_context_tokens = 32768}, caps, TokenBudgetSizer{}, NoSplit{},
                      NullBalancer{}, GroupedPool<>(config), FcfsAdmission{}));
}
