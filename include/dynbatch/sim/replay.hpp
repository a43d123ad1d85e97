// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// replay(): drives the real Scheduler through a trace in virtual time. Rules: docs/simulator.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/scheduler/scheduler.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/metrics.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/simulated_executor.hpp>
#include <dynbatch/sim/trace.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// What a factory needs to make a scheduler for one unit.
struct UnitSetup {
  SchedulerConfig scheduler{};
  Capabilities capabilities{};
  BlockPool<>::Config pool{};
};

namespace detail {

/// The requests of one unit with scaled arrivals, and how the unit's scheduler is sized for them.
struct UnitTrace {
  std::vector<TraceRequest> requests;
  std::vector<std::uint64_t> index;         ///< In the whole trace.
  std::span<const std::uint64_t> hash_ids;  ///< Of the whole trace.
  std::int32_t digest_unit = 0;             ///< Tokens a digest of a prompt covers.
  std::int32_t hash_block_tokens = 0;
  UnitSetup setup;
  std::int64_t max_new = 0;
};
[[nodiscard]] DYNBATCH_API UnitTrace unit_trace(const Trace& trace, const ReplayConfig& config,
                                                std::int32_t unit);

/// Error: neither is a multiple of the other, the block or what an id of the trace covers.
[[nodiscard]] DYNBATCH_API Status check_block_size(const Trace& trace,
                                                   std::int32_t block_size) noexcept;

/// Writes the digests of request `i`'s whole units: what the trace says, or unique to (seed,
/// request, unit), or common to a prefix group. `counts_last`: also of a last unit that isn't full.
DYNBATCH_API void fill_digests(std::vector<ContentDigest>& out, const UnitTrace& trace,
                               std::size_t i, std::uint64_t seed, bool counts_last = false);

/// Seconds on the wall clock, to report the simulator's own speed.
[[nodiscard]] DYNBATCH_API double wall_seconds() noexcept;

/// One unit's run: submits arrivals, plans, executes, commits, polls, until everything has ended.
template <class SchedulerType, StepCostModel Cost>
class UnitReplay {
 public:
  UnitReplay(SchedulerType& scheduler, const UnitTrace& trace, const ReplayConfig& config,
             const Cost& cost, std::span<SimulatedRequest> records)
      : scheduler_(scheduler),
        trace_(trace),
        config_(config),
        records_(records),
        executor_(cost, trace.setup.capabilities, trace.requests, records) {}

  Status run() {
    const std::int64_t rows = config_.max_sequences;
    if (const Status s = result_.allocate(rows, rows, rows); !s) {
      return s;
    }
    while (num_ended_ < records_.size()) {
      submit_arrivals();
      const StepPlan* plan = scheduler_.plan(executor_.now());
      drain_flight();
      if (plan == nullptr) {
        drain_events();
        if (num_ended_ < records_.size()) {
          if (const Status s = wait(); !s) {
            return s;
          }
        }
        continue;
      }
      result_.reset(*plan);
      executor_.execute(*plan, result_);
      if (const Status s = scheduler_.commit(*plan, result_.view(), executor_.now()); !s) {
        return s;
      }
      drain_flight();
      // Events carry their own times, and a token's are read off the executor: no need to hurry.
      constexpr std::int64_t kStepsPerPoll = 16;
      if (executor_.num_steps() % kStepsPerPoll == 0) {
        drain_events();
      }
      sample();
    }
    return kOk;
  }

  void add_to(RunTotals& totals) {
    const SchedulerStats stats = scheduler_.stats();
    totals.num_steps += executor_.num_steps();
    totals.busy_ns += executor_.busy_ns();
    totals.preemptions += static_cast<std::int64_t>(stats.preemptions);
    totals.prefix_query_tokens += static_cast<std::int64_t>(stats.prefix_query_tokens);
    totals.prefix_hit_tokens += static_cast<std::int64_t>(stats.prefix_hit_tokens);
    totals.kv_busy_integral += kv_busy_integral_;
    totals.kv_util_max = max_of(totals.kv_util_max, kv_util_max_);
    totals.itl_ns.insert(totals.itl_ns.end(), executor_.gaps().begin(), executor_.gaps().end());
  }

 private:
  void submit_arrivals() {
    while (next_ < trace_.requests.size() &&
           trace_.requests[next_].arrival_ns <= executor_.now().ns) {
      const TraceRequest& from = trace_.requests[next_];
      fill_digests(digests_, trace_, next_, config_.seed);
      Request request;
      request.id = {next_};
      request.user_data = next_;
      request.prompt.kind = PromptKind::Digests;
      request.prompt.digests = digests_;
      request.prompt.digest_unit = trace_.digest_unit;
      request.prompt.length = from.input_tokens;
      request.max_new_tokens = trace_.max_new;
      request.arrival = {from.arrival_ns};
      request.slo = config_.slo;
      request.tenant = from.tenant;
      const Status status = scheduler_.submit(request);
      const bool is_refused = is_turned_away(status);
      if (status.code == Errc::QueueFull && !is_refused && num_live_ > 0) {
        return;  // comes again after the next step, in order
      }
      if (status) {
        ++num_live_;
      } else {
        records_[next_].status = is_refused ? RequestStatus::Refused : RequestStatus::Rejected;
        records_[next_].finish_ns = executor_.now().ns;
        ++num_ended_;
      }
      ++next_;
    }
  }

  /// Refused by a limit that the replay asked for, not by the sizes that it chose itself.
  [[nodiscard]] static bool is_turned_away(const Status& status) noexcept {
    const std::string_view field = status.field;
    return status.code == Errc::QueueFull &&
           (field == "max_waiting_requests" || field == "max_predicted_wait");
  }

  /// Nothing can run: lets time pass until the next arrival or the time the sizer asked for.
  Status wait() {
    const PlanStatus status = scheduler_.status();
    TimeNs until = kNever;
    if (next_ < trace_.requests.size()) {
      until = {trace_.requests[next_].arrival_ns};
    }
    if (status.state == PlanState::NotBefore || status.cause == WaitCause::Loading) {
      until = min_of(until, status.not_before);
    }
    if (until == kNever || until <= executor_.now()) {
      return {Errc::InternalError, "plan", static_cast<std::int64_t>(status.request.value), 0,
              to_string(status.cause)};
    }
    executor_.advance_to(until);
    return kOk;
  }

  void drain_events() {
    std::size_t count = events_.size();
    while (count == events_.size()) {
      count = scheduler_.poll(events_);
      for (std::size_t i = 0; i < count; ++i) {
        const Event& event = events_[i];
        SimulatedRequest& record = records_[static_cast<std::size_t>(event.user_data)];
        if (event.kind == EventKind::Preempted) {
          record.preemptions += static_cast<std::int32_t>(event.count);
        } else if (is_terminal(event.kind)) {
          record.status =
              event.kind == EventKind::Finished ? RequestStatus::Finished : RequestStatus::Failed;
          record.finish_ns = event.time.ns;
          record.output_tokens = event.count;
          ++num_ended_;
          --num_live_;
        }
      }
    }
  }

  void drain_flight() {
    if (config_.flight_sink == nullptr) {
      return;
    }
    flight_.resize(std::size_t{1} << 16);
    for (std::size_t n = 1; n > 0;) {
      n = scheduler_.drain_log(flight_);
      config_.flight_sink(config_.flight_context, std::span(flight_).first(n));
    }
  }

  void sample() {
    const PoolStats pool = scheduler_.pool_stats();
    const double used = pool.total_blocks > 0 ? static_cast<double>(pool.referenced_blocks) /
                                                    static_cast<double>(pool.total_blocks)
                                              : 0.0;
    kv_busy_integral_ += used * static_cast<double>(executor_.last_step().ns);
    kv_util_max_ = max_of(kv_util_max_, used);
    constexpr std::int64_t kStepsPerReport = 2048;
    if (config_.progress != nullptr && executor_.num_steps() % kStepsPerReport == 0) {
      config_.progress(config_.progress_context,
                       static_cast<double>(num_ended_) / static_cast<double>(records_.size()));
    }
  }

  SchedulerType& scheduler_;
  const UnitTrace& trace_;
  const ReplayConfig& config_;
  std::span<SimulatedRequest> records_;
  SimulatedExecutor<Cost> executor_;
  StepResultBuffer result_;
  std::vector<ContentDigest> digests_;
  std::vector<std::byte> flight_;
  std::array<Event, 512> events_{};
  std::size_t next_ = 0;
  std::size_t num_ended_ = 0;
  std::size_t num_live_ = 0;
  double kv_busy_integral_ = 0.0;
  double kv_util_max_ = 0.0;
};

}  // namespace detail

/// Replays `trace`. `make(const UnitSetup&)` returns Expected<Scheduler<...>> for one unit.
/// Equal arguments give equal runs, wall time excepted.
template <StepCostModel Cost, class Make>
[[nodiscard]] ReplayRun replay(const Trace& trace, const ReplayConfig& config, const Cost& cost,
                               Make&& make) {
  ReplayRun run;
  run.status = config.validate();
  run.status = run.status ? detail::check_block_size(trace, config.block_size) : run.status;
  if (!run.status) {
    return run;
  }
  const double begin = detail::wall_seconds();
  run.requests.resize(trace.requests.size());
  for (std::int32_t unit = 0; unit < config.units; ++unit) {
    const detail::UnitTrace part = detail::unit_trace(trace, config, unit);
    auto scheduler = make(part.setup);
    if (!scheduler) {
      run.status = scheduler.status();
      return run;
    }
    std::vector<SimulatedRequest> records(part.requests.size());
    for (std::size_t i = 0; i < records.size(); ++i) {
      records[i].arrival_ns = part.requests[i].arrival_ns;
      records[i].input_tokens = part.requests[i].input_tokens;
      records[i].unit = unit;
      run.totals.num_cut += part.requests[i].output_tokens > part.max_new ? 1 : 0;
    }
    detail::UnitReplay unit_replay(*scheduler, part, config, cost, std::span(records));
    run.status = unit_replay.run();
    unit_replay.add_to(run.totals);
    for (std::size_t i = 0; i < records.size(); ++i) {
      run.requests[static_cast<std::size_t>(part.index[i])] = records[i];
    }
    if (!run.status) {
      return run;
    }
  }
  run.totals.wall_s = detail::wall_seconds() - begin;
  return run;
}

/// Replays with the policies of a bundle (scheduler/bundles.hpp) over a BlockPool.
template <StepCostModel Cost, class Bundle>
[[nodiscard]] ReplayRun replay_bundle(const Trace& trace, const ReplayConfig& config,
                                      const Cost& cost, const Bundle& bundle) {
  using Engine = Scheduler<typename Bundle::Sizer, typename Bundle::Splitter,
                           typename Bundle::Balancer, BlockPool<>, typename Bundle::Admission>;
  return replay(trace, config, cost, [&](const UnitSetup& setup) {
    return Engine::make(setup.scheduler, setup.capabilities, bundle.make_sizer(),
                        bundle.make_splitter(), bundle.make_balancer(), BlockPool<>(setup.pool),
                        bundle.make_admission());
  });
}

}  // namespace dynbatch::inline DYNBATCH_ABI
