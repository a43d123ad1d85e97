// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The Scheduler: decides, step by step, which tokens of which requests run together.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/concepts/admission.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/concepts/expert_balancer.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/model/watch.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/scheduler/detail/core.hpp>
#include <dynbatch/scheduler/detail/core_abandon.hpp>
#include <dynbatch/scheduler/detail/core_admit.hpp>
#include <dynbatch/scheduler/detail/core_beams.hpp>
#include <dynbatch/scheduler/detail/core_cache.hpp>
#include <dynbatch/scheduler/detail/core_compose.hpp>
#include <dynbatch/scheduler/detail/core_end.hpp>
#include <dynbatch/scheduler/detail/core_evict.hpp>
#include <dynbatch/scheduler/detail/core_flight.hpp>
#include <dynbatch/scheduler/detail/core_groups.hpp>
#include <dynbatch/scheduler/detail/core_intake.hpp>
#include <dynbatch/scheduler/detail/core_late.hpp>
#include <dynbatch/scheduler/detail/core_loads.hpp>
#include <dynbatch/scheduler/detail/core_queue.hpp>
#include <dynbatch/scheduler/detail/core_report.hpp>
#include <dynbatch/scheduler/detail/core_result.hpp>
#include <dynbatch/scheduler/detail/core_rows.hpp>
#include <dynbatch/scheduler/detail/core_samples.hpp>
#include <dynbatch/scheduler/detail/core_seal.hpp>
#include <dynbatch/scheduler/detail/core_settle.hpp>
#include <dynbatch/scheduler/detail/core_watch.hpp>
#include <dynbatch/scheduler/detail/core_write.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {

/// Drives one engine. submit(), cancel(), close(), pause(), resume() and stats() may be called from
/// any thread and never block; everything else belongs to the one driving thread. After make()
/// nothing here allocates, locks or calls the system, and nothing throws.
///
/// Cost: plan() + commit() take O(scheduled tokens + changed blocks + tokens matched by requests
/// admitted in the step) plus O(log n) per queue operation, whatever the pool, the contexts and the
/// queue hold.
template <class Sizer, class Splitter, class Balancer, class Pool, class Admission = FcfsAdmission>
class Scheduler {
  static_assert(check_batch_sizer<Sizer>());
  static_assert(check_micro_batch_splitter<Splitter>());
  static_assert(check_expert_balancer<Balancer>());
  static_assert(check_kv_cache_pool<Pool>());
  static_assert(check_admission<Admission>());

 public:
  using Config = SchedulerConfig;

  /// Allocates everything and checks that the executor can honour the configuration; the Status
  /// names the field that does not fit.
  static Expected<Scheduler> make(const Config& config, const Capabilities& capabilities,
                                  Sizer sizer, Splitter splitter, Balancer balancer, Pool pool,
                                  Admission admission) noexcept {
    std::unique_ptr<Core> core(
        new (std::nothrow) Core(config, capabilities,
                                Policies{std::move(sizer), std::move(splitter), std::move(balancer),
                                         std::move(pool), std::move(admission)}));
    if (core == nullptr) {
      return Status{Errc::OutOfMemory, "scheduler", 0, 0, "allocation failed"};
    }
    if (const Status s = core->initialise(); !s) {
      return s;
    }
    return Scheduler(std::move(core));
  }

  /// As make(), but raises what make() would return.
  Scheduler(const Config& config, const Capabilities& capabilities, Sizer sizer, Splitter splitter,
            Balancer balancer, Pool pool, Admission admission)
      : Scheduler(make(config, capabilities, std::move(sizer), std::move(splitter),
                       std::move(balancer), std::move(pool), std::move(admission))
                      .value()) {}

  Scheduler(Scheduler&&) noexcept = default;
  Scheduler& operator=(Scheduler&&) noexcept = default;

  // --- any thread ---

  /// Hands a request over; everything is copied. The answer is final for this call: an accepted
  /// request gets exactly one terminal event, a refused one none. QueueFull says in
  /// Status::retry_after when to try again. O(prompt).
  Status submit(const Request& request) noexcept { return core_->desk().submit(request); }

  /// Asks for a request to end; its terminal event is Cancelled unless it ends otherwise first.
  /// NotFound if no live request has the id; cancelling twice does nothing more.
  Status cancel(RequestId id) noexcept { return core_->desk().cancel(id); }

  /// No more submissions; what is live goes on to its end.
  void close() noexcept { core_->desk().close(); }

  void pause(PauseMode mode) noexcept { core_->set_pause(mode == PauseMode::New ? 1 : 2); }
  void resume() noexcept { core_->set_pause(0); }

  /// The balancer's long work (a new expert placement); call it from one thread, which need not be
  /// the driving one if the balancer says so. True if there was something to do.
  bool balancer_task() noexcept { return core_->policies().balancer.task(); }

  /// Counters; each is exact, together they agree when submitters and the driving thread rest.
  [[nodiscard]] SchedulerStats stats() const noexcept { return core_->stats(); }

  // --- driving thread ---

  /// Takes in submissions, cancellations and deadlines, then composes the next step. nullptr =
  /// nothing to execute now; status() says why. The plan is valid until it is committed or
  /// abandoned.
  const StepPlan* plan(TimeNs now) noexcept { return core_->plan(now); }

  /// Lock-step (Config::num_ranks > 1): what the other ranks need to know of this plan. Exchange
  /// the summaries of all ranks, in rank order, and hand the same list to each rank's seal().
  [[nodiscard]] RankSummary summary(const StepPlan& plan) const noexcept {
    return core_->summary(plan);
  }

  /// Lock-step: finishes the newest plan: micro-batches and padding, which come out equal on all
  /// ranks. padded.tokens == 0 means that no rank has work; settle the plan without executing it.
  /// Before the seal only the plan's chunks, tokens and positions may be read. O(chunks + ranks).
  Status seal(const StepPlan& plan, std::span<const RankSummary> summaries) noexcept {
    return core_->seal(plan, summaries);
  }

  /// Why the last plan() answered as it did.
  [[nodiscard]] PlanStatus status() const noexcept { return core_->status(); }

  /// Settles the oldest plan in flight. WrongPlan or BadResult leave everything as it was.
  Status commit(const StepPlan& plan, const StepResult& result, TimeNs now) noexcept {
    return core_->commit(plan, result, now);
  }

  /// Settles this plan and all younger ones as never committed.
  Status abandon(const StepPlan& plan, AbandonReason why, TimeNs now) noexcept {
    return core_->abandon(plan, why, now);
  }

  /// Writes up to out.size() events and returns how many; call until it returns less. Token spans
  /// are valid until the next poll().
  std::size_t poll(std::span<Event> out) noexcept { return core_->poll(out); }

  /// Writes the full block table of each chunk's sequence in one of the plan's groups, for hosts
  /// without resident tables: chunk c's table begins at out[c * stride], entries behind its end
  /// (and those that a window has left behind) are kNoBlock. InvalidArgument if a table is longer
  /// than `stride`, `out` is too small or there is no such group. O(chunks * stride).
  Status materialize(const StepPlan& plan, std::span<BlockId> out, std::size_t stride,
                     std::size_t group = 0) const noexcept {
    return core_->materialize(plan, out, stride, group);
  }

  /// Leading blocks that the tables of all running sequences have in common, for cascade attention;
  /// 0 without any. O(running sequences * common blocks).
  [[nodiscard]] std::int64_t common_prefix_blocks() const noexcept {
    return core_->common_prefix_blocks();
  }

  /// Keeps the first `tokens` positions of a cached prefix from eviction until `until` (a pool such
  /// as Pinning<BlockPool<>>); pinning it again prolongs. `media` are the prompt's items. What its
  /// pool answers: NotSupported, NotFound if not all of it is cached, QueueFull beyond the pool's
  /// bounds. Record: the flight log holds pins. O(tokens).
  Status pin(const Prompt& prompt, const CacheScope& scope, std::int64_t tokens, TimeNs until,
             std::span<const MediaSpan> media = {}) noexcept {
    return core_->pin(prompt, scope, tokens, until, media);
  }

  /// Forgets all cached prefixes; false (and nothing changes) while a request holds blocks.
  bool clear_cache() noexcept { return core_->clear_cache(); }

  /// Moves the oldest bytes of the flight log (Config::flight_log_bytes) to `out` and returns how
  /// many: a continuous stream, which the host appends to a file. 0 = drained. O(bytes).
  std::size_t drain_log(std::span<std::byte> out) noexcept { return core_->drain_log(out); }

  /// Submits a request of a flight log. As submit(), but a deadline that has passed is no reason to
  /// refuse it, nor is close(): it had been accepted before. Driving thread.
  Status resubmit(const Request& request) noexcept {
    return core_->desk().submit(request, RequestDesk::Kind::Replayed);
  }

  /// Allocates a result buffer that fits every plan of this scheduler.
  Status make_result(StepResultBuffer& buffer) const noexcept { return core_->make_result(buffer); }

  [[nodiscard]] PoolStats pool_stats() const noexcept { return core_->policies().pool.stats(); }

  // What is watched (Config::watch; docs/embedding.md, "Watching it"); all O(1) and empty or 0
  // while nothing is.

  [[nodiscard]] RequestStats class_stats(RequestClass request_class) const noexcept {
    return core_->watch().of_class(request_class);
  }
  /// Tenants with counts of their own (WatchConfig::max_tenants), in the order in which their first
  /// requests were taken in.
  [[nodiscard]] std::size_t num_tenants() const noexcept { return core_->watch().num_tenants(); }
  /// Those of tenant `index`; nothing from num_tenants() on.
  [[nodiscard]] TenantStats tenant_stats(std::size_t index) const noexcept {
    return core_->watch().of_tenant(index);
  }
  /// All other tenants together.
  [[nodiscard]] RequestStats other_tenants_stats() const noexcept {
    return core_->watch().of_others();
  }
  /// Who is first in the queue, and why; the cause needs something to be watched, the rest not.
  [[nodiscard]] QueueHead queue_head() const noexcept { return core_->queue_head(); }
  /// How often a plan() left a request waiting for this cause, or gave a started prompt nothing:
  /// requests x plans, of the requests that it looked at (the head of the queue always, at most 16
  /// behind it, and whoever it set aside).
  [[nodiscard]] std::uint64_t waits(WaitCause cause) const noexcept {
    return core_->watch().waits(cause);
  }
  /// Moves the oldest alerts raised and cleared to `out` and returns how many. plan() looks at them
  /// every 100 ms of its time.
  std::size_t drain_alerts(std::span<Alert> out) noexcept {
    return core_->watch().board().drain(out);
  }
  [[nodiscard]] bool is_raised(AlertKind kind) const noexcept {
    return core_->watch().board().is_raised(kind);
  }
  /// Alerts that were dropped because kMaxPendingAlerts others waited for drain_alerts().
  [[nodiscard]] std::uint64_t alerts_lost() const noexcept {
    return core_->watch().board().num_lost();
  }

  [[nodiscard]] const Capabilities& capabilities() const noexcept { return core_->capabilities(); }

  /// Compares all books with each other. O(everything): for tests and debugging.
  [[nodiscard]] Status check() const noexcept { return core_->check(); }

  [[nodiscard]] Sizer& sizer() noexcept { return core_->policies().sizer; }
  [[nodiscard]] Splitter& splitter() noexcept { return core_->policies().splitter; }
  [[nodiscard]] Balancer& balancer() noexcept { return core_->policies().balancer; }
  [[nodiscard]] Pool& pool() noexcept { return core_->policies().pool; }
  [[nodiscard]] Admission& admission() noexcept { return core_->policies().admission; }

 private:
  using Policies = detail::PolicySet<Sizer, Splitter, Balancer, Pool, Admission>;
  using Core = detail::SchedulerCore<Policies>;
  using RequestDesk = detail::RequestDesk;

  explicit Scheduler(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}

  std::unique_ptr<Core> core_;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
