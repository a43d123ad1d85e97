// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Drives a scheduler of any policies through a random run and checks the laws after each
/// operation.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/earliest_deadline.hpp>
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/new_token_ratio_admission.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/preferred_size_sizer.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/batch/served_ratio_admission.hpp>
#include <dynbatch/batch/shortest_first.hpp>
#include <dynbatch/batch/slo_budget_sizer.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/batch/table_tuner_sizer.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/batch/unbounded_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/grouped_pool.hpp>
#include <dynbatch/kv/memory_store.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/kv/pinning.hpp>
#include <dynbatch/kv/sequence_pool.hpp>
#include <dynbatch/kv/tiered_pool.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/model/plan_digest.hpp>
#include <dynbatch/scheduler/run_step.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "toy_host.hpp"

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dynbatch::test {

using AnyScheduler = Scheduler<AnyBatchSizer, AnyMicroBatchSplitter, AnyExpertBalancer,
                               AnyKVCachePool, AnyAdmission>;

/// One choice along each axis; indices into the shipped models.
struct LawMix {
  int sizer = 0;     // 0 unbounded, 1 static, 2 token budget, 3 dynamic, 4 table tuner, 5 preferred
                     // sizes with a delay, 6 budget from service levels
  int splitter = 0;  // 0 none, 1 equal tokens
  int pool = 0;      // 0 paged with prefixes, 1 paged without, 2 none, 3 addressed by
                     // sequence, 4 paged with pins,
                     // 5 paged with host memory behind, 6 and with a store behind that, which is
                     // slow, fails, lies, and ends things in any order or not at all, 7 with two
                     // windows beside, 8 with a window and a recurrent state beside, 9 as 8 with
                     // pins
  int compose = 0;   // FcfsAdmission::Compose
  int reserve = 0;   // FcfsAdmission::Reserve
  int host = 0;  // 0 one plan, 1 two plans, 2 three plans with future tokens, 3 eight, out of order
  int faults = 0;    // 0 none, 1 chunk outcomes, 2 abandons too
  int extras = 0;    // 0 none, 1 samples, 2 drafts, 3 both
  int pressure = 0;  // 0 ample KV, 1 scarce
  int order = 0;     // 0 fcfs, 1 priority, 2 the same with displacement, 3 deadline, 4 shortest,
                     // 5 fair share with limits, 6 prefix affinity, 7 longest output, batch class
                     // gives way, 8 served ratio, 9 new token ratio
  int partial = 0;   // 0 whole blocks, 1 the front of a block is copied
  static constexpr int kAxes = 11;
  static constexpr int kSizes[kAxes] = {7, 2, 10, 5, 4, 4, 3, 4, 2, 10, 2};
  int& axis(int i) { return (&sizer)[i]; }
  [[nodiscard]] std::string name() const {
    return "sizer " + std::to_string(sizer) + " splitter " + std::to_string(splitter) + " pool " +
           std::to_string(pool) + " compose " + std::to_string(compose) + " reserve " +
           std::to_string(reserve) + " host " + std::to_string(host) + " faults " +
           std::to_string(faults) + " extras " + std::to_string(extras) + " pressure " +
           std::to_string(pressure) + " order " + std::to_string(order) + " partial " +
           std::to_string(partial);
  }
};

/// Mixes that hold every pair of choices of two axes at least once; greedy, deterministic.
inline std::vector<LawMix> pairwise_cover() {
  std::vector<LawMix> cover;
  std::map<std::vector<int>, bool> open;
  for (int a = 0; a < LawMix::kAxes; ++a) {
    for (int b = a + 1; b < LawMix::kAxes; ++b) {
      for (int i = 0; i < LawMix::kSizes[a]; ++i) {
        for (int j = 0; j < LawMix::kSizes[b]; ++j) {
          open[{a, i, b, j}] = true;
        }
      }
    }
  }
  SplitMix64 rng(7);
  while (!open.empty()) {
    LawMix best;
    std::size_t best_gain = 0;
    for (int attempt = 0; attempt < 60; ++attempt) {
      LawMix mix;
      for (int i = 0; i < LawMix::kAxes; ++i) {
        mix.axis(i) = static_cast<int>(rng.between(0, LawMix::kSizes[i] - 1));
      }
      const std::vector<int>& wanted = open.begin()->first;
      mix.axis(wanted[0]) = wanted[1];
      mix.axis(wanted[2]) = wanted[3];
      std::size_t gain = 0;
      for (int a = 0; a < LawMix::kAxes; ++a) {
        for (int b = a + 1; b < LawMix::kAxes; ++b) {
          gain += open.count({a, mix.axis(a), b, mix.axis(b)});
        }
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = mix;
      }
    }
    for (int a = 0; a < LawMix::kAxes; ++a) {
      for (int b = a + 1; b < LawMix::kAxes; ++b) {
        open.erase({a, best.axis(a), b, best.axis(b)});
      }
    }
    cover.push_back(best);
  }
  return cover;
}

/// What the flight recorder of a run holds.
enum class LawLog { Off, Full, Hidden };

/// Owns the models of one mix and the scheduler over their Any views.
class LawRun {
 public:
  LawRun(const LawMix& mix, std::uint64_t seed, int operations, LawLog log = LawLog::Off)
      : mix_(mix),
        rng_(seed),
        operations_(operations),
        log_kind_(log),
        executor_(capabilities(), seed ^ 0x5EED) {
    build();
  }

  /// Runs; afterwards errors() is empty iff every law held.
  void run() {
    for (int i = 0; i < operations_ && errors_.size() < 5; ++i) {
      operation();
      check(false);
      drain_log();
    }
    finish();
    check(true);
    drain_log();
  }

  [[nodiscard]] const std::vector<std::string>& errors() const { return errors_; }
  [[nodiscard]] std::uint64_t digest() const { return digest_; }
  [[nodiscard]] std::int64_t plans() const { return plans_; }
  [[nodiscard]] const SchedulerStats& final_stats() const { return final_stats_; }
  [[nodiscard]] std::int64_t kv_reads() const { return executor_.kv_reads; }
  /// Prefixes pinned, or pinned again.
  [[nodiscard]] std::int64_t num_pins() const { return num_pins_; }
  /// Blocks that came back from another tier of memory.
  [[nodiscard]] std::int64_t num_loads() const { return executor_.swaps_in; }
  /// Fronts of blocks that a request's prefix was copied from.
  [[nodiscard]] std::int64_t num_copies() const { return executor_.prefix_copies; }
  /// What came of the store behind host memory.
  [[nodiscard]] TierStats tier_stats() const { return stored_->tier_stats(); }
  /// Positions of windows and states that chunks have read, and copies in groups beside the first.
  [[nodiscard]] std::int64_t window_reads() const { return executor_.window_reads; }
  [[nodiscard]] std::int64_t state_reads() const { return executor_.state_reads; }
  [[nodiscard]] std::int64_t group_copies() const { return executor_.group_copies; }
  /// Beam searches that came to their end.
  [[nodiscard]] std::int64_t num_beams() const { return num_beams_; }
  [[nodiscard]] AnyScheduler& scheduler() { return *scheduler_; }
  /// The flight log so far.
  [[nodiscard]] const std::vector<std::byte>& log() const { return log_; }

 private:
  static constexpr std::int64_t kBudget = 48;
  static constexpr std::int32_t kTenantSequences = 2;
  static constexpr std::int32_t kMaxPins = 3;

  [[nodiscard]] Capabilities capabilities() const {
    Capabilities caps;
    caps.max_tokens = 160;
    caps.max_sequences = mix_.pressure == 0 ? 8 : 12;
    const bool has_tiers = mix_.pool == 5 || mix_.pool == 6;
    caps.in_order = mix_.host != 3 || mix_.pool == 3 || has_tiers || has_states();
    caps.swap = has_tiers;
    caps.future_tokens = mix_.host >= 2;
    caps.partial_copy = mix_.partial == 1;
    if (mix_.pool == 3) {
      caps.sequence_handles = caps.max_sequences + 3;
      caps.kv_tokens = num_blocks() * 4 + 3;
      caps.partial_share = true;
    }
    return caps;
  }
  [[nodiscard]] std::int64_t num_blocks() const { return mix_.pressure == 0 ? 1100 : 24; }
  [[nodiscard]] bool has_states() const { return mix_.pool == 8 || mix_.pool == 9; }
  [[nodiscard]] bool has_pins() const { return mix_.pool == 4 || mix_.pool == 9; }
  /// A group beside the first, with `spare` blocks more than all rows need.
  [[nodiscard]] KvGroupConfig group(const GroupSpec& spec, std::int64_t spare) const {
    const Capabilities caps = capabilities();
    const std::int32_t pins = has_pins() ? kMaxPins + 1 : 0;
    return {spec, spare + GroupedPool<>::blocks_needed(spec, {.max_rows = caps.max_sequences + pins,
                                                              .max_context_tokens = 512,
                                                              .max_plans_in_flight = depth(),
                                                              .in_order = caps.in_order,
                                                              .max_step_tokens = caps.max_tokens})};
  }
  [[nodiscard]] GroupedPool<>::Config grouped() const {
    GroupedPool<>::Config config;
    config.pool = {.num_blocks = num_blocks(), .block_size = 4};
    if (has_states()) {
      config.groups[0] = group({GroupKind::Window, 4, 7}, 6);
      config.groups[1] = group({GroupKind::Recurrent, 1, 0}, 9);
      config.snapshot_interval_tokens = mix_.pressure == 0 ? 8 : 4;
      config.align_chunks = mix_.splitter == 0;
    } else {
      config.groups[0] = group({GroupKind::Window, 2, 5}, mix_.pressure == 0 ? 60 : 0);
      config.groups[1] = group({GroupKind::Window, 8, 17}, 10);
    }
    return config;
  }
  [[nodiscard]] int depth() const {
    constexpr int kDepths[] = {1, 2, 3, 8};
    return kDepths[mix_.host];
  }

  void build() {
    static_.emplace(StaticSizer::Config{.batch = 5});
    budget_.emplace(TokenBudgetSizer::Config{.budget = kBudget});
    dynamic_.emplace(DynamicSizer::Config{});
    equal_.emplace(EqualTokens::Config{.parts = 3, .min_tokens = 2});
    const std::int64_t blocks = num_blocks();
    sequence_pool_.emplace(SequencePool::Config{.num_tokens = blocks * 4 + 3, .block_size = 4});
    pool_.emplace(BlockPool<>::Config{
        .num_blocks = blocks, .block_size = 4, .prefix_caching = mix_.pool == 0});
    pinning_.emplace(Pinning<BlockPool<>>::Config{.pool = {.num_blocks = blocks, .block_size = 4},
                                                  .max_pins = kMaxPins,
                                                  .share_permille = 300});
    tiered_.emplace(TieredPool<>::Config{.pool = {.num_blocks = blocks, .block_size = 4},
                                         .num_host_blocks = 60,
                                         .min_load_blocks = 1,
                                         .load_block_ns = mix_.order % 3 == 0 ? 20'000 : 0,
                                         .min_touches = 1 + mix_.order % 3});
    build_stored(blocks);
    grouped_.emplace(grouped());
    grouped_pins_.emplace(Pinning<GroupedPool<>>::Config{
        .pool = grouped(), .max_pins = kMaxPins, .share_permille = 300});
    FcfsAdmission::Config admission;
    admission.compose = static_cast<FcfsAdmission::Compose>(mix_.compose);
    admission.reserve = static_cast<FcfsAdmission::Reserve>(mix_.reserve);
    admission.reserve_tokens = 64;
    admission.max_bypass = 3;
    admission.late_patience = mix_.order % 2 == 0 ? 3 : 0;
    fcfs_.emplace(admission);
    priority_.emplace(PriorityAging::Config{
        .rules = admission, .aging = milliseconds(2), .displace = mix_.order == 2});
    deadline_.emplace(
        EarliestDeadline::Config{.rules = admission, .default_due = milliseconds(30)});
    shortest_.emplace(
        ShortestFirst::Config{.rules = admission, .aging_per_token = microseconds(100)});
    FairShare::Config fair;
    fair.rules = admission;
    fair.other = {.max_running_sequences = kTenantSequences, .max_running_tokens = 600};
    fair.shares[0] = {.tenant = 1, .weight = 3, .max_running_sequences = kTenantSequences};
    fair.num_shares = 1;
    fair.expected_outputs = 10;
    fair_.emplace(fair);
    affinity_.emplace(PrefixAffinity::Config{.rules = admission, .credit_tokens = 4});
    const OrderedAdmission::Config longest{.rules = admission,
                                           .order = OrderedAdmission::Order::LongestOutput,
                                           .aging_per_token = microseconds(100),
                                           .batch_gives_way = true};
    longest_.emplace(longest);
    ratio_.emplace(ServedRatioAdmission::Config{
        .rules = admission, .max_waiting_steps = 5, .max_reserved_outputs = 8});
    new_token_.emplace(NewTokenRatioAdmission::Config{
        .order = {.rules = admission}, .decay_steps = 20, .clip_outputs = 16});
    tuner_.emplace(
        TableTunerSizer::Config{.tunes_batch_size = true, .tunes_num_tokens = true, .window = 4});
    preferred_.emplace(PreferredSizeSizer::Config{.max_batch_size = 6,
                                                  .preferred = {2, 4},
                                                  .num_preferred = 2,
                                                  .max_queue_delay = milliseconds(3)});
    slo_.emplace(SloBudgetSizer::Config{.max_tokens = 120, .min_prefill_tokens = 4});
    AnyBatchSizer sizers[] = {AnyBatchSizer(unbounded_), AnyBatchSizer(*static_),
                              AnyBatchSizer(*budget_),   AnyBatchSizer(*dynamic_),
                              AnyBatchSizer(*tuner_),    AnyBatchSizer(*preferred_),
                              AnyBatchSizer(*slo_)};
    AnyMicroBatchSplitter splitters[] = {AnyMicroBatchSplitter(no_split_),
                                         AnyMicroBatchSplitter(*equal_)};
    AnyKVCachePool pools[] = {AnyKVCachePool(*pool_),     AnyKVCachePool(*pool_),
                              AnyKVCachePool(null_pool_), AnyKVCachePool(*sequence_pool_),
                              AnyKVCachePool(*pinning_),  AnyKVCachePool(*tiered_),
                              AnyKVCachePool(*stored_),   AnyKVCachePool(*grouped_),
                              AnyKVCachePool(*grouped_),  AnyKVCachePool(*grouped_pins_)};
    AnyAdmission admissions[] = {AnyAdmission(*fcfs_),     AnyAdmission(*priority_),
                                 AnyAdmission(*priority_), AnyAdmission(*deadline_),
                                 AnyAdmission(*shortest_), AnyAdmission(*fair_),
                                 AnyAdmission(*affinity_), AnyAdmission(*longest_),
                                 AnyAdmission(*ratio_),    AnyAdmission(*new_token_)};
    SchedulerConfig config;
    config.max_live_requests = 24;
    config.max_queued_tokens = 6000;
    config.max_context_tokens = 512;
    config.max_plans_in_flight = depth();
    const bool has_drafts = mix_.extras >= 2 && !has_states();
    config.max_draft_tokens = has_drafts ? 4 : 0;
    executor_.max_drafts = has_drafts ? 5 : 0;
    config.resource_caps[0] = 3;
    config.flight_log_bytes = log_kind_ == LawLog::Off ? 0 : 1 << 20;
    config.flight_log_prompts = log_kind_ == LawLog::Full;
    auto made =
        AnyScheduler::make(config, capabilities(), sizers[mix_.sizer], splitters[mix_.splitter],
                           AnyExpertBalancer(balancer_), pools[mix_.pool], admissions[mix_.order]);
    if (!made) {
      char text[200];
      format_status(made.status(), text, sizeof(text));
      errors_.push_back(text);
      return;
    }
    scheduler_.emplace(std::move(made).value());
    const std::int64_t usable = blocks - (has_pins() ? blocks * 300 / 1000 : 0);
    kv_limit_ = mix_.pool == 2 ? 512 : std::min<std::int64_t>(512, usable * 4);
    executor_.tolerates_garbage = mix_.faults > 0;
    if (mix_.faults > 0) {
      executor_.faults = {.not_run = 40, .partial = 30, .failed = 60, .stop = 50};
      if (mix_.pool == 3) {
        executor_.faults.nothing_ran = 30;
        executor_.faults.part_ran = 20;
      }
    }
  }

  void build_stored(std::int64_t blocks) {
    MemoryStore::Faults faults;
    faults.latency = microseconds(300);
    faults.block_time = microseconds(20);
    faults.jitter = milliseconds(4);
    faults.query_fails = 40;
    faults.fetch_fails = 80;
    faults.store_fails = 80;
    faults.partial = 600;
    faults.never = 15;
    faults.corrupts = 40;
    faults.confuses = 40;
    faults.shuffles = true;
    faults.scribbles = true;
    store_.emplace(MemoryStore::Config{.num_blocks = 400, .seed = 11, .faults = faults});
    TieredPool<BlockPool<>, AnyKVTier>::Config config;
    config.pool = {.num_blocks = blocks, .block_size = 4};
    config.num_host_blocks = 30;
    config.min_load_blocks = 1;
    config.min_touches = 1 + mix_.order % 3;
    config.tier.memory = executor_.slot_memory(config.num_host_blocks, 4);
    config.tier.load_deadline = milliseconds(20);
    config.tier.store_deadline = milliseconds(40);
    config.tier.max_loads = 3;
    config.tier.max_stores = 3;
    config.tier.max_operation_blocks = 12;
    config.tier.max_blocks_in_flight = 24;
    config.tier.min_gain_blocks = 1;
    config.tier.token_ns = 1'000'000;
    config.tier.breaker = {
        .max_failures = 4, .first_pause = milliseconds(5), .longest_pause = milliseconds(40)};
    stored_.emplace(config, AnyKVTier(*store_));
  }

  void drain_log() {
    std::byte bytes[4096];
    for (std::size_t n = 1; n > 0;) {
      n = scheduler_->drain_log(bytes);
      log_.insert(log_.end(), bytes, bytes + n);
    }
  }

  /// The next plan; the scheduler's clock doesn't follow the host's when that one steps back.
  const StepPlan* next_plan() {
    latest_ = std::max(latest_, now_);
    return scheduler_->plan(now_);
  }

  void fail(const std::string& text) {
    errors_.push_back(text + " at operation " + std::to_string(done_));
  }

  void operation() {
    ++done_;
    now_.ns += rng_.between(0, 3) * 400'000 + (rng_.one_in(40) ? 60'000'000 : 0) -
               (rng_.one_in(25) ? 900'000 : 0);
    switch (rng_.between(0, 9)) {
      case 0:
      case 1:
      case 2:
        submit();
        break;
      case 3:
        if (rng_.one_in(4)) {
          cancel();
        }
        break;
      case 4:
        if (rng_.one_in(60) && mix_.faults > 0) {
          scheduler_->pause(rng_.one_in(2) ? PauseMode::New : PauseMode::All);
          paused_ = true;
        } else if (paused_ && rng_.one_in(2)) {
          scheduler_->resume();
          paused_ = false;
        }
        break;
      case 5:
        events_.drain(*scheduler_);
        if (has_pins()) {
          pin();
        }
        break;
      default:
        step();
        break;
    }
  }

  void submit() {
    ToyRequest r;
    Request& q = r.request;
    q.id = RequestId{static_cast<std::uint64_t>(rng_.between(1, 40))};
    q.user_data = next_tag_++;
    const std::int64_t length = rng_.one_in(12) ? rng_.between(60, 150) : rng_.between(1, 40);
    if (rng_.one_in(4)) {
      q.prompt.kind = PromptKind::Digests;
      q.prompt.length = length;
      q.prompt.digest_unit = rng_.one_in(2) ? 4 : 8;
      const std::uint64_t family = static_cast<std::uint64_t>(rng_.between(0, 2));
      std::uint64_t chain = family * 2 + static_cast<std::uint64_t>(q.prompt.digest_unit);
      const std::int64_t fork = rng_.between(0, 12);
      for (std::int64_t i = 0; i < length / q.prompt.digest_unit; ++i) {
        chain = combine64(chain, i < fork ? family : q.user_data);
        r.digests.push_back({chain, mix64(chain)});
      }
    } else {
      const std::uint64_t family = static_cast<std::uint64_t>(rng_.between(0, 2));
      const std::int64_t fork = rng_.one_in(3) ? length : rng_.between(0, length);
      for (std::int64_t i = 0; i < length; ++i) {
        r.prompt.push_back(static_cast<Token>(
            mix64((i < fork ? family : q.user_data + 10) * 131U + static_cast<std::uint64_t>(i)) %
            50000U));
      }
    }
    if (rng_.one_in(5)) {
      add_media(r, length);
    }
    q.max_new_tokens = rng_.one_in(15) ? 0 : (rng_.one_in(20) ? kOpenEnded : rng_.between(1, 30));
    if (rng_.one_in(3)) {
      r.stop.push_back(toy_token(q.user_data, rng_.between(0, 10)));
      q.min_new_tokens = q.max_new_tokens > 0 ? rng_.between(0, q.max_new_tokens) : 0;
    }
    q.scope.has_tenant_salt = rng_.one_in(3);
    q.scope.tenant_salt = static_cast<std::uint64_t>(rng_.between(0, 1));
    q.arrival = now_;
    q.priority = static_cast<std::int32_t>(rng_.between(-2, 6));
    q.tenant = static_cast<std::uint64_t>(rng_.between(0, 3));
    q.request_class = static_cast<RequestClass>(q.tenant % 3);
    if (rng_.one_in(10)) {
      q.start_by = now_ + DurationNs{rng_.between(-1, 20) * 1'000'000};
    }
    if (rng_.one_in(10)) {
      q.finish_by = now_ + DurationNs{rng_.between(1, 60) * 1'000'000};
    }
    if (rng_.one_in(4)) {
      q.slo = {milliseconds(20), milliseconds(2)};
    }
    q.no_prefix_read = rng_.one_in(10);
    q.sync_decode = rng_.one_in(6);
    q.atomic_prefill = rng_.one_in(12);
    if ((mix_.extras & 1) != 0 && q.max_new_tokens != 0 && rng_.one_in(3)) {
      q.num_samples = static_cast<std::int32_t>(rng_.between(2, 4));
      q.beam_search = rng_.one_in(3);
    }
    ResourceNeed need{0, rng_.between(0, 4)};
    if (rng_.one_in(8)) {
      q.resources = {&need, 1};
    }
    const bool is_alive = ids_.count(q.id.value) != 0;
    executor_.add(r);
    const Request view = [&] {
      Request v = r.view();
      v.resources = q.resources;
      return v;
    }();
    const Status s = scheduler_->submit(view);
    ++submitted_;
    if (s.is_ok()) {
      if (is_alive) {
        fail("a live id was accepted twice");
      }
      ids_[q.id.value] = q.user_data;
      requests_[q.user_data] = r;
    } else {
      ++rejected_;
      if (is_alive && s.code != Errc::Duplicate && s.code != Errc::CanNeverFit &&
          s.code != Errc::Expired && s.code != Errc::QueueFull && s.code != Errc::InvalidArgument) {
        fail(std::string("unexpected refusal: ") + to_string(s.code));
      }
    }
  }

  /// From the same few items at the same few places, so that some requests have equal ones.
  void add_media(ToyRequest& r, std::int64_t length) {
    std::int64_t first = rng_.between(0, 5);
    for (std::int64_t n = rng_.between(1, 4); n > 0; --n) {
      const std::int64_t items = rng_.between(1, 7);
      if (first + items > length) {
        break;
      }
      r.media.push_back({first, items, {5, static_cast<std::uint64_t>(rng_.between(0, 1))}});
      first += items + (rng_.one_in(2) ? 0 : rng_.between(0, 6));
    }
  }

  /// Pins the prompt of some request, live or long gone.
  void pin() {
    if (requests_.empty()) {
      return;
    }
    auto at = requests_.begin();
    std::advance(at, rng_.between(0, static_cast<std::int64_t>(requests_.size()) - 1));
    const Request r = at->second.view();
    const std::int64_t length = r.prompt.kind == PromptKind::Tokens
                                    ? static_cast<std::int64_t>(r.prompt.tokens.size())
                                    : r.prompt.length;
    const std::int64_t tokens = rng_.between(1, length);     // one draw after the other: compilers
    const DurationNs time{rng_.between(0, 30) * 1'000'000};  // order arguments as they like
    const Status s = scheduler_->pin(r.prompt, r.scope, tokens, now_ + time, r.media);
    if (!s && s.code != Errc::NotFound && s.code != Errc::QueueFull &&
        s.code != Errc::InvalidArgument) {
      fail(std::string("unexpected answer to a pin: ") + to_string(s.code));
    }
    num_pins_ += s.is_ok() ? 1 : 0;
  }

  void cancel() {
    const RequestId id{static_cast<std::uint64_t>(rng_.between(1, 42))};
    const Status s = scheduler_->cancel(id);
    if (s.is_ok() != (ids_.count(id.value) != 0)) {
      fail("cancel answered wrongly");
    }
    if (s.is_ok()) {
      cancelled_.insert(ids_[id.value]);
    }
  }

  void step() {
    const StepPlan* plan = next_plan();
    if (plan != nullptr) {
      ++plans_;
      digest_ = plan_digest(*plan, digest_);
      check_plan(*plan);
      in_flight_.push_back(plan);
      ops_before_.push_back(std::move(next_ops_));
      next_ops_.clear();
    } else {
      check_progress();
    }
    // Settle some of what is in flight.
    if (!in_flight_.empty() && mix_.faults == 2 && rng_.one_in(25)) {
      const auto index = static_cast<std::size_t>(
          rng_.between(0, static_cast<std::int64_t>(in_flight_.size()) - 1));
      const auto why = static_cast<AbandonReason>(rng_.between(0, rng_.one_in(4) ? 2 : 1));
      // Row operations are done in plan order, also those of plans that never run.
      std::vector<RowOp> ops;
      for (std::size_t i = index; i < in_flight_.size(); ++i) {
        ops.insert(ops.end(), ops_before_[i].begin(), ops_before_[i].end());
        ops.insert(ops.end(), in_flight_[i]->row_ops.begin(), in_flight_[i]->row_ops.end());
      }
      next_ops_.insert(next_ops_.begin(), ops.begin(), ops.end());
      ops_before_.resize(index);
      if (!scheduler_->abandon(*in_flight_[index], why, now_)) {
        fail("abandon was refused");
      }
      in_flight_.resize(index);
    }
    const bool is_full = static_cast<int>(in_flight_.size()) == depth();
    while (!in_flight_.empty() && (is_full || plan == nullptr || rng_.one_in(3))) {
      settle_oldest();
      if (!rng_.one_in(2)) {
        break;
      }
    }
  }

  void settle_oldest() {
    const StepPlan& plan = *in_flight_.front();
    StepResultBuffer result;
    if (!scheduler_->make_result(result)) {
      fail("make_result");
    }
    result.reset(plan);
    if (mix_.pool == 3) {
      executor_.apply_row_ops(ops_before_.front());
    }
    ops_before_.pop_front();
    executor_.execute(plan, result);
    now_.ns += 700'000;
    const Status s = scheduler_->commit(plan, result.view(), now_);
    if (!s) {
      char text[200];
      format_status(s, text, sizeof(text));
      fail(text);
    }
    in_flight_.pop_front();
  }

  void check_plan(const StepPlan& plan) {
    const std::int64_t limits[] = {160, 160, kBudget, 160, 160, 160, 120};
    bool is_atomic = false;
    for (const Chunk& c : plan.chunks) {
      const ToyRequest& r = requests_[c.user_data];
      is_atomic = is_atomic || r.request.atomic_prefill;
      if (r.request.atomic_prefill && c.kind == ChunkKind::Prefill &&
          c.context_length < static_cast<std::int64_t>(r.prompt.size())) {
        fail("an atomic prompt was cut");
      }
      if (c.context_length > kv_limit_) {
        fail("a context outgrew the pool");
      }
    }
    if (plan.num_tokens() > limits[mix_.sizer]) {
      fail("a plan exceeds the sizer's tokens");
    }
    if (mix_.sizer == 1 && plan.chunks.size() > 5) {
      fail("law 4: more sequences than the sizer allows");
    }
    if (mix_.order == 5) {
      std::map<std::uint64_t, std::int32_t> running;
      for (const Chunk& c : plan.chunks) {
        if (++running[requests_[c.user_data].request.tenant] > kTenantSequences) {
          fail("a tenant exceeds its limit");
        }
      }
    }
    check_waits(plan, limits[mix_.sizer]);
    if (!in_flight_.empty() && !capabilities().future_tokens) {
      for (const Chunk& c : plan.chunks) {
        for (const StepPlan* other : in_flight_) {
          for (const Chunk& o : other->chunks) {
            if (o.sequence == c.sequence) {
              fail("a sequence stands in two plans without future tokens");
            }
          }
        }
      }
    }
  }

  /// Law 6: over non-empty plans nobody who runs is left out more than K times in a row. Checked
  /// where neither memory, faults nor other plans in flight take a sequence out, and the step size
  /// is fixed.
  void check_waits(const StepPlan& plan, std::int64_t max_tokens) {
    if (mix_.extras != 0 || mix_.compose != 0 || mix_.pressure != 0 || mix_.faults != 0 ||
        mix_.host != 0 || mix_.sizer == 3 || mix_.sizer == 6) {
      return;
    }
    events_.drain(*scheduler_);
    for (const Chunk& c : plan.chunks) {
      const ToyRequest& r = requests_[c.user_data];
      const std::int64_t prompt = r.request.prompt.kind == PromptKind::Tokens
                                      ? static_cast<std::int64_t>(r.prompt.size())
                                      : r.request.prompt.length;
      waits_[c.user_data] = {-1, std::max<std::int64_t>(1, prompt - c.context_length)};
    }
    std::int64_t wanted = 0;
    for (auto it = waits_.begin(); it != waits_.end();) {
      const auto record = events_.records.find(it->first);
      const bool is_gone =
          record != events_.records.end() &&
          (record->second.terminals > 0 || record->second.preemptions != preemptions_[it->first]);
      if (is_gone) {
        preemptions_[it->first] = record->second.preemptions;
        it = waits_.erase(it);
        continue;
      }
      wanted += it->second.wanted;
      ++it->second.skipped;
      ++it;
    }
    const std::int64_t bound = (wanted + max_tokens - 1) / max_tokens + 1;
    for (const auto& [tag, wait] : waits_) {
      if (wait.skipped > bound) {
        fail("law 6: request " + std::to_string(tag) + " was left out " +
             std::to_string(wait.skipped) + " times in a row, bound " + std::to_string(bound));
      }
    }
  }

  /// Law 5: without a plan there is a reason, and with nothing in flight only a pause or a wait is
  /// one.
  void check_progress() {
    const PlanStatus status = scheduler_->status();
    const SchedulerStats stats = scheduler_->stats();
    if (status.state == PlanState::Planned) {
      fail("no plan, yet the status says planned");
    }
    const bool is_loading = status.cause == WaitCause::Loading && status.not_before > latest_ &&
                            status.not_before <= latest_ + milliseconds(20);
    if (in_flight_.empty() && !paused_ && stats.live > 0 && status.state != PlanState::NotBefore &&
        !is_loading) {
      const PoolStats pool = scheduler_->pool_stats();
      fail(std::string("nothing in flight, live requests and no plan: ") + to_string(status.cause) +
           ", running " + std::to_string(stats.running) + ", waiting " +
           std::to_string(stats.waiting) + ", free blocks " + std::to_string(pool.free_blocks) +
           ", cached " + std::to_string(pool.cached_blocks));
    }
    if (stats.live == 0 && in_flight_.empty() && status.state != PlanState::Idle &&
        status.state != PlanState::Closed) {
      fail("nothing live and not idle");
    }
  }

  void check(bool is_final) {
    latest_ = std::max(latest_, now_);
    const Status s = scheduler_->check();
    if (!s) {
      char text[200];
      format_status(s, text, sizeof(text));
      fail(text);
    }
    const SchedulerStats stats = scheduler_->stats();
    if (stats.submitted != submitted_ || stats.rejected != rejected_ ||
        stats.submitted != stats.rejected + stats.live + stats.finished + stats.cancelled +
                               stats.expired + stats.failed) {
      fail("law 1: the request counters disagree");
    }
    const PoolStats pool = scheduler_->pool_stats();
    if (pool.free_blocks + pool.cached_blocks + pool.referenced_blocks != pool.total_blocks) {
      fail("law 2: the block counters disagree");
    }
    if (is_final) {
      if (stats.live != 0 || pool.referenced_blocks != 0 || stats.running != 0 ||
          stats.waiting != 0 || stats.queued_tokens != 0) {
        fail("something is left at the end");
      }
      final_stats_ = stats;
    }
    for (const std::string& e : executor_.errors) {
      fail(e);
    }
    for (const std::string& e : events_.errors) {
      fail(e);
    }
    executor_.errors.clear();
    events_.errors.clear();
    for (auto& [tag, record] : events_.records) {
      if (record.terminals == 0 || !open_.insert(tag).second) {
        continue;
      }
      check_outcome(tag, record);
    }
  }

  /// A terminal event arrived: is it the right one, with the right tokens?
  void check_outcome(std::uint64_t tag, const ToyRecord& record) {
    const ToyRequest& r = requests_[tag];
    ids_.erase(r.request.id.value);
    if (record.terminals != 1) {
      fail("not exactly one terminal event");
    }
    const bool is_finished = record.terminal == EventKind::Finished;
    if (r.request.beam_search && r.request.num_samples > 1) {
      check_beams(r, record);
    }
    for (std::int32_t sample = 0; !r.request.beam_search && sample < r.request.num_samples;
         ++sample) {
      static const std::vector<Token> kNone;
      const auto other = record.others.find(sample);
      const std::vector<Token>& tokens =
          sample == 0 ? record.tokens : (other == record.others.end() ? kNone : other->second);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] != toy_token(tag, static_cast<std::int64_t>(i), sample)) {
          fail("law 10: a token depends on the schedule, request " + std::to_string(tag) +
               " sample " + std::to_string(sample));
          break;
        }
      }
      if (!is_finished) {
        continue;
      }
      const auto n = static_cast<std::int64_t>(tokens.size());
      const std::int64_t prompt = r.request.prompt.kind == PromptKind::Tokens
                                      ? static_cast<std::int64_t>(r.prompt.size())
                                      : r.request.prompt.length;
      std::int64_t expected = r.request.max_new_tokens == kOpenEnded ? kv_limit_ + 1 - prompt
                                                                     : r.request.max_new_tokens;
      FinishReason reason =
          r.request.max_new_tokens == kOpenEnded ? FinishReason::Capacity : FinishReason::Length;
      for (std::int64_t i = 0; i < expected; ++i) {
        if (!r.stop.empty() && toy_token(tag, i, sample) == r.stop[0] &&
            i + 1 >= r.request.min_new_tokens) {
          expected = i + 1;
          reason = FinishReason::StopToken;
        }
      }
      const auto end = record.sample_ends.find(sample);
      if (r.request.num_samples > 1 && end == record.sample_ends.end()) {
        fail("a sample of a finished request has no end");
        continue;
      }
      const FinishReason actual = r.request.num_samples > 1 ? end->second : record.reason;
      // A pool that is full of other sequences ends an open-ended one where it stands.
      if (actual == FinishReason::Host ? n > expected : (n != expected || actual != reason)) {
        fail("request " + std::to_string(tag) + " sample " + std::to_string(sample) +
             " finished with " + std::to_string(n) + " tokens, expected " +
             std::to_string(expected));
      }
    }
    if (is_finished) {
    } else if (record.terminal == EventKind::Cancelled && cancelled_.count(tag) == 0) {
      fail("cancelled without a cancel");
    } else if (record.terminal == EventKind::Expired && r.request.start_by == kNever &&
               r.request.finish_by == kNever) {
      fail("expired without a deadline");
    } else if (record.terminal == EventKind::Failed && mix_.faults == 0 &&
               // A tenant's limit may be smaller than what a request of several samples runs.
               !(mix_.order == 5 && record.error == Errc::CanNeverFit)) {
      fail("failed without a fault");
    }
  }

  /// Beams: all of a search's tokens came at its end, and are what its steps make them.
  void check_beams(const ToyRequest& r, const ToyRecord& record) {
    std::size_t steps = record.tokens.size();
    for (const auto& [sample, tokens] : record.others) {
      steps = std::max(steps, tokens.size());
    }
    const bool is_finished = record.terminal == EventKind::Finished;
    const ToyBeams beams = toy_beams(r, static_cast<std::int64_t>(steps));
    num_beams_ += is_finished ? 1 : 0;
    for (std::int32_t sample = 0; sample < r.request.num_samples; ++sample) {
      const auto i = static_cast<std::size_t>(sample);
      const auto other = record.others.find(sample);
      const std::vector<Token> tokens =
          sample == 0 ? record.tokens
                      : (other == record.others.end() ? std::vector<Token>() : other->second);
      if (tokens != beams.tokens[i]) {
        fail("law 10: the tokens of beam " + std::to_string(sample) + " of request " +
             std::to_string(r.request.user_data) + " depend on the schedule");
      }
      const auto end = record.sample_ends.find(sample);
      if (is_finished && (end == record.sample_ends.end() || end->second != beams.ends[i])) {
        fail("a beam of request " + std::to_string(r.request.user_data) + " ended wrongly");
      }
    }
  }

  void finish() {
    executor_.faults = {};
    scheduler_->resume();
    paused_ = false;
    scheduler_->close();
    for (int i = 0; i < 20000 && scheduler_->stats().live > 0 && errors_.size() < 5; ++i) {
      now_.ns += 100'000;
      step();
      events_.drain(*scheduler_);
      drain_log();
    }
    while (!in_flight_.empty()) {
      settle_oldest();
    }
    events_.drain(*scheduler_);
    now_.ns += 1'000'000'000;  // pins are over
    if (next_plan() != nullptr || scheduler_->status().state != PlanState::Closed) {
      fail("a closed and empty scheduler must say closed");
    }
  }

  LawMix mix_;
  SplitMix64 rng_;
  int operations_;
  LawLog log_kind_;
  std::vector<std::byte> log_;
  ToyExecutor executor_;
  ToyEvents events_;
  UnboundedSizer unbounded_;
  std::optional<StaticSizer> static_;
  std::optional<TokenBudgetSizer> budget_;
  std::optional<DynamicSizer> dynamic_;
  std::optional<TableTunerSizer> tuner_;
  std::optional<PreferredSizeSizer> preferred_;
  std::optional<SloBudgetSizer> slo_;
  NoSplit no_split_;
  std::optional<EqualTokens> equal_;
  NullBalancer balancer_;
  std::optional<BlockPool<>> pool_;
  NullPool null_pool_;
  std::optional<SequencePool> sequence_pool_;
  std::optional<Pinning<BlockPool<>>> pinning_;
  std::optional<TieredPool<>> tiered_;
  std::optional<MemoryStore> store_;
  std::optional<TieredPool<BlockPool<>, AnyKVTier>> stored_;
  std::optional<GroupedPool<>> grouped_;
  std::optional<Pinning<GroupedPool<>>> grouped_pins_;
  std::optional<FcfsAdmission> fcfs_;
  std::optional<PriorityAging> priority_;
  std::optional<EarliestDeadline> deadline_;
  std::optional<ShortestFirst> shortest_;
  std::optional<FairShare> fair_;
  std::optional<PrefixAffinity> affinity_;
  std::optional<OrderedAdmission> longest_;
  std::optional<ServedRatioAdmission> ratio_;
  std::optional<NewTokenRatioAdmission> new_token_;
  std::optional<AnyScheduler> scheduler_;
  std::deque<const StepPlan*> in_flight_;
  std::deque<std::vector<RowOp>> ops_before_;     // of plans abandoned before each plan in flight
  std::vector<RowOp> next_ops_;                   // of those before the plan to come
  std::map<std::uint64_t, ToyRequest> requests_;  // by tag
  std::map<std::uint64_t, std::uint64_t> ids_;    // live id -> tag
  std::set<std::uint64_t> cancelled_;
  std::set<std::uint64_t> open_;  // tags whose outcome was checked
  std::vector<std::string> errors_;
  SchedulerStats final_stats_{};
  TimeNs latest_{};
  TimeNs now_{1'000'000'000};
  std::uint64_t next_tag_ = 100;
  std::uint64_t submitted_ = 0;
  std::uint64_t rejected_ = 0;
  std::uint64_t digest_ = 0;
  std::int64_t plans_ = 0;
  std::int64_t kv_limit_ = 0;
  std::int64_t num_beams_ = 0;
  std::int64_t num_pins_ = 0;
  struct Wait {
    std::int64_t skipped = 0;
    std::int64_t wanted = 1;
  };
  std::map<std::uint64_t, Wait> waits_;  // running, by tag
  std::map<std::uint64_t, std::int64_t> preemptions_;
  int done_ = 0;
  bool paused_ = false;
};

}  // namespace dynbatch::test
