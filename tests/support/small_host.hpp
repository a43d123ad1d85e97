// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A small scheduler with fixed policies and a trivial host, for unit tests.
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/run_step.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace dynbatch::test {

using SmallScheduler =
    Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, FcfsAdmission>;

struct SmallOptions {
  std::int64_t budget = 64;
  std::int32_t rows = 16;
  std::int64_t blocks = 1000;
  std::int32_t block_size = 16;
  bool caching = false;
  std::int32_t plans = 1;
  bool future_tokens = false;
  FcfsAdmission::Config admission{};
  SchedulerConfig config{};
};

/// Builds it; ends the program with the reason if make() refuses.
inline SmallScheduler make_small(const SmallOptions& o = {}) {
  Capabilities caps;
  caps.max_tokens = 1 << 16;
  caps.max_sequences = o.rows;
  caps.future_tokens = o.future_tokens;
  SchedulerConfig config = o.config;
  config.max_plans_in_flight = o.plans;
  auto made = SmallScheduler::make(
      config, caps, TokenBudgetSizer(TokenBudgetSizer::Config{.budget = o.budget}), NoSplit{},
      NullBalancer{},
      BlockPool<>(BlockPool<>::Config{
          .num_blocks = o.blocks, .block_size = o.block_size, .prefix_caching = o.caching}),
      FcfsAdmission(o.admission));
  if (!made) {
    char text[256];
    format_status(made.status(), text, sizeof(text));
    std::fprintf(stderr, "make_small: %s\n", text);
    std::abort();
  }
  return std::move(made).value();
}

/// A request of `length` tokens that differ from those of every other id.
struct SmallRequest {
  std::vector<Token> tokens;
  Request request;
  SmallRequest(std::uint64_t id, std::int64_t length, std::int64_t outputs) {
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<Token>(id * 10000U + static_cast<std::uint64_t>(i)));
    }
    request.id = RequestId{id};
    request.user_data = id;
    request.max_new_tokens = outputs;
  }
  Request view() {
    request.prompt.tokens = tokens;
    return request;
  }
};

inline Status submit(SmallScheduler& s, std::uint64_t id, std::int64_t length,
                     std::int64_t outputs) {
  SmallRequest r(id, length, outputs);
  return s.submit(r.view());
}

/// What a plan schedules, as {request: tokens}.
inline std::map<std::uint64_t, std::int64_t> tokens_of(const StepPlan* plan) {
  std::map<std::uint64_t, std::int64_t> out;
  if (plan != nullptr) {
    for (const Chunk& c : plan->chunks) {
      out[c.request.value] += c.num_tokens;
    }
  }
  return out;
}

/// Executes the plan (every token is `token`) and commits it.
inline Status settle(SmallScheduler& s, const StepPlan& plan, TimeNs now, Token token = 1) {
  std::vector<Token> tokens(static_cast<std::size_t>(plan.num_samples), token);
  StepResult result;
  result.tokens = tokens;
  result.measured = milliseconds(1);
  return s.commit(plan, result, now);
}

/// plan + settle; what was scheduled.
inline std::map<std::uint64_t, std::int64_t> step(SmallScheduler& s, TimeNs now = TimeNs{}) {
  const StepPlan* plan = s.plan(now);
  const auto tokens = tokens_of(plan);
  if (plan != nullptr && !settle(s, *plan, now)) {
    return {{~0ULL, -1}};
  }
  return tokens;
}

/// All events so far, with their tokens copied.
struct SmallEvent {
  EventKind kind;
  std::uint64_t id;
  FinishReason reason;
  Errc error;
  std::vector<Token> tokens;
  std::int64_t count;
  TimeNs time;
};
inline std::vector<SmallEvent> drain(SmallScheduler& s) {
  std::vector<SmallEvent> out;
  Event buffer[4];
  std::size_t n = 0;
  do {
    n = s.poll(buffer);
    for (std::size_t i = 0; i < n; ++i) {
      const Event& e = buffer[i];
      out.push_back({e.kind,
                     e.request.value,
                     e.reason,
                     e.error,
                     {e.tokens.begin(), e.tokens.end()},
                     e.count,
                     e.time});
    }
  } while (n == std::size(buffer));
  return out;
}

/// Steps until nothing is live; false if that takes more than `limit` plans.
inline bool run_dry(SmallScheduler& s, TimeNs now = TimeNs{}, int limit = 10000) {
  for (int i = 0; i < limit && s.stats().live > 0; ++i) {
    step(s, now);
  }
  return s.stats().live == 0;
}

/// The terminal events of `events`, by id.
inline std::map<std::uint64_t, SmallEvent> terminals(const std::vector<SmallEvent>& events) {
  std::map<std::uint64_t, SmallEvent> out;
  for (const SmallEvent& e : events) {
    if (is_terminal(e.kind)) {
      out.insert({e.id, e});
    }
  }
  return out;
}

using Scheduled = std::map<std::uint64_t, std::int64_t>;

}  // namespace dynbatch::test
