// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A small scheduler with any Admission and a trivial host, for tests of orders.
#include <dynbatch/batch/admission_rules.hpp>

#include "small_host.hpp"

#include <set>

namespace dynbatch::test {

template <class Admission>
using OrderScheduler = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, BlockPool<>, Admission>;

/// The rules of vLLM: strict order, no credit for preempted requests. SmallOptions holds the rest.
inline AdmissionRules strict_rules() { return {.max_bypass = 0, .requeue_blocks = 0}; }

template <class Admission>
OrderScheduler<Admission> make_order(const SmallOptions& o, const Admission& admission,
                                     std::int32_t max_sequences = 0) {
  Capabilities caps;
  caps.max_tokens = 1 << 16;
  caps.max_sequences = o.rows;
  caps.future_tokens = o.future_tokens;
  SchedulerConfig config = o.config;
  config.max_plans_in_flight = o.plans;
  auto made = OrderScheduler<Admission>::make(
      config, caps,
      TokenBudgetSizer(
          TokenBudgetSizer::Config{.budget = o.budget, .max_sequences = max_sequences}),
      NoSplit{}, NullBalancer{},
      BlockPool<>(BlockPool<>::Config{
          .num_blocks = o.blocks, .block_size = o.block_size, .prefix_caching = o.caching}),
      admission);
  if (!made) {
    std::abort();
  }
  return std::move(made).value();
}

/// plan + commit; what was scheduled. {{~0, -1}} if the commit or a check of the books failed.
template <class Scheduler>
Scheduled run_one(Scheduler& s, TimeNs now = TimeNs{}) {
  const StepPlan* plan = s.plan(now);
  const Scheduled tokens = tokens_of(plan);
  if (plan != nullptr) {
    const std::vector<Token> samples(static_cast<std::size_t>(plan->num_samples), 1);
    StepResult result;
    result.tokens = samples;
    result.measured = milliseconds(1);
    if (!s.commit(*plan, result, now)) {
      return {{~0ULL, -1}};
    }
  }
  return s.check() ? tokens : Scheduled{{~0ULL, -1}};
}

/// Steps until nothing is live; the number of steps, -1 if that takes more than `limit`.
template <class Scheduler>
int run_out(Scheduler& s, TimeNs now = TimeNs{}, int limit = 10000) {
  for (int steps = 0; steps <= limit; ++steps) {
    if (s.stats().live == 0) {
      return steps;
    }
    if (run_one(s, now).count(~0ULL) != 0) {
      return -1;
    }
  }
  return -1;
}

/// All events so far, by request: how often it was preempted, its outputs, how it ended.
struct Life {
  std::int64_t preemptions = 0;
  std::int64_t outputs = 0;
  EventKind end = EventKind::Accepted;
  Errc error = Errc::Ok;
};
template <class Scheduler>
void drain_into(Scheduler& s, std::map<std::uint64_t, Life>& lives) {
  Event buffer[16];
  std::size_t n = 0;
  do {
    n = s.poll(buffer);
    for (std::size_t i = 0; i < n; ++i) {
      Life& life = lives[buffer[i].request.value];
      if (buffer[i].kind == EventKind::Preempted) {
        life.preemptions += buffer[i].count;
      } else if (is_terminal(buffer[i].kind)) {
        life.outputs = buffer[i].count;
        life.end = buffer[i].kind;
        life.error = buffer[i].error;
      }
    }
  } while (n == std::size(buffer));
}

/// A request with what orders look at.
struct OrderRequest {
  std::uint64_t id = 0;
  std::int64_t length = 0;
  std::int64_t outputs = 1;
  std::int32_t priority = 0;
  std::uint64_t tenant = 0;
  TimeNs arrival{};
};
template <class Scheduler>
Status submit_order(Scheduler& s, const OrderRequest& o) {
  SmallRequest r(o.id, o.length, o.outputs);
  r.request.priority = o.priority;
  r.request.tenant = o.tenant;
  r.request.arrival = o.arrival;
  return s.submit(r.view());
}

}  // namespace dynbatch::test
