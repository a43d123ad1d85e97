// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Statistics by class and tenant, causes of waiting, and what alerts are made of.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/watch.hpp>
#include <dynbatch/scheduler/detail/alert_board.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>
#include <dynbatch/scheduler/detail/records.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::size_t kNumClasses = 3;
inline constexpr std::size_t kNumWaitCauses = static_cast<std::size_t>(WaitCause::Loading) + 1;

/// What happened to requests, added up as it happens, O(1) each. Nothing but refuse() may be called
/// by another thread than the driving one, and nothing at all unless is_on().
class Watch {
 public:
  Status allocate(const WatchConfig& config) noexcept {
    config_ = config;
    if (!config.is_on()) {
      return kOk;
    }
    const auto entries = static_cast<std::size_t>(config.max_tenants) + kFirstTenant;
    const auto buckets = static_cast<std::size_t>(
        next_power_of_two(max_of<std::int64_t>(2 * std::int64_t{config.max_tenants}, 2)));
    mask_ = buckets - 1;
    for (const Status& s : {entries_.allocate(entries, "watch.max_tenants"),
                            refused_.allocate(entries, "watch.max_tenants"),
                            tenants_.allocate(entries, "watch.max_tenants"),
                            buckets_.allocate(buckets, "watch.max_tenants")}) {
      if (!s) {
        return s;
      }
    }
    for (WindowShare* share : {&ttft_, &tpot_, &recomputed_}) {
      share->configure(config.window);
    }
    board_.configure(config);
    has_alerts_ = config.has_alerts();
    is_on_ = true;
    return kOk;
  }
  [[nodiscard]] bool is_on() const noexcept { return is_on_; }

  /// Any thread: submit() refused a request. Of a tenant that never had one taken in nothing is
  /// known: it counts with the others.
  void refuse(RequestClass request_class, std::uint64_t tenant) noexcept {
    refused_[class_entry(request_class)].fetch_add(1, std::memory_order_relaxed);
    refused_[find(tenant)].fetch_add(1, std::memory_order_relaxed);
  }

  // Driving thread: what happened to `root`, a request's first sample.

  void take_in(RequestRecord& root) noexcept {
    root.tenant_entry = find_or_add(root.tenant);
    each(root, [&](RequestStats& s) noexcept {
      ++s.submitted;
      s.prompt_tokens += static_cast<std::uint64_t>(root.prompt_length);
    });
  }
  void first_run(const RequestRecord& root, TimeNs now) noexcept {
    const DurationNs waited = elapsed(root.accepted_time, now);
    each(root, [&](RequestStats& s) noexcept {
      ++s.admitted;
      s.queue_time.ns = saturating_add(s.queue_time.ns, waited.ns);
      s.max_queue_time = max_of(s.max_queue_time, waited);
    });
  }
  void hit(const RequestRecord& root, std::int64_t tokens) noexcept {
    each(root, [&](RequestStats& s) noexcept {
      s.prefix_hit_tokens += static_cast<std::uint64_t>(tokens);
    });
  }
  void preempted(const RequestRecord& root) noexcept {
    each(root, [](RequestStats& s) noexcept { ++s.preemptions; });
  }
  void recomputed(const RequestRecord& root, std::int64_t tokens) noexcept {
    each(root, [&](RequestStats& s) noexcept {
      s.recomputed_tokens += static_cast<std::uint64_t>(tokens);
    });
  }
  void planned(std::int64_t again, std::int64_t tokens, TimeNs now) noexcept {
    recomputed_.add(now, again, tokens);
  }
  void first_token(RequestRecord& root, TimeNs now) noexcept {
    if (!root.is_ttft_judged) {
      judge_ttft(root, is_late(root, now), now);
    }
  }
  /// A sample is about to end; its record says what it has.
  void sample_ended(const RequestRecord& sample, RequestRecord& root) noexcept {
    if (sample.outputs < 2 || sample.slo.tpot == kUnbounded) {
      return;
    }
    const std::int64_t limit =
        saturating_mul(max_of<std::int64_t>(sample.slo.tpot.ns, 0), sample.outputs - 1);
    root.is_tpot_judged = true;
    root.is_tpot_missed =
        root.is_tpot_missed || elapsed(sample.first_token_time, sample.event_time).ns > limit;
  }
  void ended(RequestRecord& root, EventKind kind, std::int64_t outputs, TimeNs now) noexcept {
    if (!root.is_ttft_judged && (kind == EventKind::Finished || is_late(root, now))) {
      judge_ttft(root, is_late(root, now), now);
    }
    if (root.is_tpot_judged) {
      tpot_.add(now, root.is_tpot_missed ? 1 : 0, 1);
    }
    each(root, [&](RequestStats& s) noexcept {
      s.output_tokens += static_cast<std::uint64_t>(outputs);
      s.finished += kind == EventKind::Finished ? 1U : 0U;
      s.cancelled += kind == EventKind::Cancelled ? 1U : 0U;
      s.expired += kind == EventKind::Expired ? 1U : 0U;
      s.failed += kind == EventKind::Failed ? 1U : 0U;
      if (root.is_tpot_judged) {
        ++(root.is_tpot_missed ? s.tpot_missed : s.tpot_met);
      }
    });
  }

  // Why requests wait. Between begin_look() and end_look() each counts once, for its first cause.

  void begin_look() noexcept {
    ++look_;
    if (has_noted_) {
      noted_ = {};
      has_noted_ = false;
    }
  }
  void wait(RequestRecord& record, WaitCause cause) noexcept {
    record.wait_cause = cause;
    if (was_noted(record)) {
      return;
    }
    record.wait_look = look_;
    ++noted_[static_cast<std::size_t>(cause)];
    has_noted_ = true;
  }
  [[nodiscard]] bool was_noted(const RequestRecord& record) const noexcept {
    return record.wait_look == look_;
  }
  void end_look() noexcept {
    if (!has_noted_) {
      return;
    }
    for (std::size_t i = 0; i < kNumWaitCauses; ++i) {
      waits_[i] += noted_[i];
    }
    noted_ = {};
    has_noted_ = false;
  }

  /// Whether it is time to look at the alerts again.
  [[nodiscard]] bool is_due(TimeNs now) const noexcept { return has_alerts_ && now >= due_; }
  /// `values` holds what the scheduler knows: queue and KV.
  void update_alerts(AlertValues& values, TimeNs now) noexcept {
    due_ = {saturating_sum(now.ns, kPeriod.ns)};
    const auto misses = [&](AlertKind kind, const WindowShare& share) noexcept {
      // Once it is raised, fewer requests are no reason to clear it.
      values.of[static_cast<std::size_t>(kind)] =
          share.permille(now, board_.is_raised(kind) ? 1 : config_.min_judged);
    };
    misses(AlertKind::TtftMisses, ttft_);
    misses(AlertKind::TpotMisses, tpot_);
    values.of[static_cast<std::size_t>(AlertKind::RecomputedTokens)] = recomputed_.permille(now, 1);
    board_.update(values, now);
  }
  AlertBoard& board() noexcept { return board_; }
  [[nodiscard]] const AlertBoard& board() const noexcept { return board_; }

  // What is known; driving thread.

  [[nodiscard]] RequestStats of_class(RequestClass request_class) const noexcept {
    return is_on_ ? read(class_entry(request_class)) : RequestStats{};
  }
  [[nodiscard]] std::size_t num_tenants() const noexcept { return num_tenants_; }
  [[nodiscard]] TenantStats of_tenant(std::size_t index) const noexcept {
    if (index >= num_tenants_) {
      return {};
    }
    const std::size_t entry = kFirstTenant + index;
    return {tenants_[entry].load(std::memory_order_relaxed), read(entry)};
  }
  [[nodiscard]] RequestStats of_others() const noexcept {
    return is_on_ ? read(kOthers) : RequestStats{};
  }
  [[nodiscard]] std::uint64_t waits(WaitCause cause) const noexcept {
    return waits_[static_cast<std::size_t>(cause)];
  }

  /// Between two looks at the alerts.
  static constexpr DurationNs kPeriod = milliseconds(100);

 private:
  // Entries: the classes, the other tenants, the tenants.
  static constexpr std::size_t kOthers = kNumClasses;
  static constexpr std::size_t kFirstTenant = kNumClasses + 1;

  [[nodiscard]] static std::size_t class_entry(RequestClass request_class) noexcept {
    return min_of(static_cast<std::size_t>(request_class), kNumClasses - 1);
  }
  template <class F>
  void each(const RequestRecord& root, F&& f) noexcept {
    f(entries_[class_entry(root.request_class)]);
    f(entries_[root.tenant_entry]);
  }
  [[nodiscard]] RequestStats read(std::size_t entry) const noexcept {
    RequestStats s = entries_[entry];
    s.refused = refused_[entry].load(std::memory_order_relaxed);
    s.submitted += s.refused;
    return s;
  }

  /// Any thread. Buckets are filled once and never emptied: at least half of them stay empty.
  [[nodiscard]] std::size_t find(std::uint64_t tenant) const noexcept {
    for (std::size_t at = mix64(tenant) & mask_;; at = (at + 1) & mask_) {
      const std::uint32_t entry = buckets_[at].load(std::memory_order_acquire);
      if (entry == 0) {
        return kOthers;
      }
      if (tenants_[entry].load(std::memory_order_relaxed) == tenant) {
        return entry;
      }
    }
  }
  std::uint32_t find_or_add(std::uint64_t tenant) noexcept {
    const std::size_t found = find(tenant);
    if (found != kOthers || num_tenants_ == static_cast<std::size_t>(config_.max_tenants)) {
      return static_cast<std::uint32_t>(found);
    }
    std::size_t at = mix64(tenant) & mask_;
    while (buckets_[at].load(std::memory_order_relaxed) != 0) {
      at = (at + 1) & mask_;
    }
    const auto entry = static_cast<std::uint32_t>(kFirstTenant + num_tenants_++);
    tenants_[entry].store(tenant, std::memory_order_relaxed);
    buckets_[at].store(entry, std::memory_order_release);  // whoever finds it sees the tenant
    return entry;
  }

  [[nodiscard]] static bool is_late(const RequestRecord& root, TimeNs now) noexcept {
    return root.slo.ttft < kUnbounded && now.ns > saturating_sum(root.arrival.ns, root.slo.ttft.ns);
  }
  void judge_ttft(RequestRecord& root, bool is_missed, TimeNs now) noexcept {
    root.is_ttft_judged = true;
    if (root.slo.ttft == kUnbounded) {
      return;
    }
    ttft_.add(now, is_missed ? 1 : 0, 1);
    each(root, [&](RequestStats& s) noexcept { ++(is_missed ? s.ttft_missed : s.ttft_met); });
  }

  WatchConfig config_{};
  bool is_on_ = false;
  bool has_alerts_ = false;
  bool has_noted_ = false;
  Buffer<RequestStats> entries_;
  AtomicArray<std::uint64_t> refused_;  // by entry
  AtomicArray<std::uint64_t> tenants_;  // by entry
  AtomicArray<std::uint32_t> buckets_;  // entry, 0 = empty
  std::size_t mask_ = 0;
  std::size_t num_tenants_ = 0;
  std::array<std::uint64_t, kNumWaitCauses> waits_{};
  std::array<std::uint32_t, kNumWaitCauses> noted_{};
  std::uint64_t look_ = 0;
  TimeNs due_{INT64_MIN};
  WindowShare ttft_;
  WindowShare tpot_;
  WindowShare recomputed_;
  AlertBoard board_;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
