// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Drives a scheduler with extreme sizes, a host that errs in every way it can and, if wished,
/// policies that answer nonsense; checks the laws after each operation.
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/null_pool.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "toy_host.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dynbatch::test {

/// Numbers that break arithmetic.
inline std::int64_t odd_number(SplitMix64& rng) {
  constexpr std::int64_t kOdd[] = {std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int32_t>::min(),
                                   -2,
                                   -1,
                                   0,
                                   1,
                                   2,
                                   3,
                                   7,
                                   std::numeric_limits<std::int32_t>::max(),
                                   std::int64_t{1} << 62,
                                   std::numeric_limits<std::int64_t>::max()};
  return kOdd[rng.between(0, static_cast<std::int64_t>(std::size(kOdd)) - 1)];
}
inline std::int32_t odd_int(SplitMix64& rng) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(odd_number(rng), std::numeric_limits<std::int32_t>::min(),
                               std::numeric_limits<std::int32_t>::max()));
}

/// What the policies of a run share: whether they answer nonsense now, and a source of it.
struct Whim {
  SplitMix64 rng{1};
  bool is_odd = false;
  bool odd() { return is_odd && rng.one_in(2); }
};

struct WhimSizer {
  using Config = EmptyConfig;
  Whim* whim = nullptr;
  std::int64_t budget = 8;
  BatchLimits limits(const SizerInput& in) noexcept {
    if (whim->odd()) {
      return {odd_int(whim->rng), odd_int(whim->rng), odd_number(whim->rng), odd_number(whim->rng),
              whim->rng.one_in(2) ? TimeNs{odd_number(whim->rng)} : TimeNs{}};
    }
    return {in.max_sequences, in.max_sequences, budget, budget, TimeNs{}};
  }
  void observe(const StepFeedback&) noexcept {}
  BatchLimits ceiling() const noexcept {
    constexpr auto kRows = std::numeric_limits<std::int32_t>::max();
    return {kRows, kRows, budget, budget, TimeNs{}};
  }
  StepCost cost() const noexcept { return {}; }
};

struct WhimSplitter {
  using Config = EmptyConfig;
  Whim* whim = nullptr;
  SplitDecision split(const SplitInput& in) noexcept {
    SplitDecision out;
    if (whim->odd()) {
      out.count = odd_int(whim->rng);
      for (Cut& cut : out.cuts) {
        cut = whim->rng.one_in(3) ? Cut{odd_int(whim->rng), odd_int(whim->rng)}
                                  : Cut{static_cast<std::int32_t>(whim->rng.between(
                                            0, static_cast<std::int64_t>(in.chunks.size()) + 1)),
                                        static_cast<std::int32_t>(whim->rng.between(0, 5))};
      }
    }
    return out;
  }
};

struct WhimBalancer {
  using Config = EmptyConfig;
  Whim* whim = nullptr;
  std::int64_t* open = nullptr;  // moves told and neither confirmed nor failed
  void observe(const ExpertCounts&) noexcept {}
  bool task() noexcept { return false; }
  std::uint64_t placement() const noexcept { return 0; }
  std::int32_t due_moves(std::span<ExpertMove> out) noexcept {
    const std::int32_t n = whim->odd() ? odd_int(whim->rng) : 0;
    *open += std::clamp<std::int64_t>(n, 0, static_cast<std::int64_t>(out.size()));
    return n;
  }
  void confirm(std::int32_t) noexcept { --*open; }
  void fail(std::int32_t) noexcept { --*open; }
  void shares(std::int32_t, std::span<const std::uint32_t>, std::span<float>) const noexcept {}
};

struct WhimAdmission {
  using Config = EmptyConfig;
  Whim* whim = nullptr;
  FcfsAdmission base{};
  bool splits = true;
  bool odd_victims = false;
  AdmissionKey key(const AdmissionRequest& r) noexcept {
    return whim->odd() ? AdmissionKey{odd_number(whim->rng), odd_number(whim->rng)} : base.key(r);
  }
  Reservation need(const NeedInput& in) const noexcept {
    if (whim->odd()) {
      return {odd_number(whim->rng), odd_number(whim->rng), odd_number(whim->rng)};
    }
    return base.need(in);
  }
  Composition compose(const ComposeInput& in) const noexcept {
    if (whim->odd()) {
      return {!whim->rng.one_in(3), !whim->rng.one_in(3), !whim->rng.one_in(3),
              whim->rng.one_in(2),  whim->rng.one_in(3),  whim->rng.one_in(3)};
    }
    return base.compose(in);
  }
  std::int64_t chunk(const ChunkInput& in) const noexcept {
    return whim->odd() ? (whim->rng.one_in(2) ? 0 : odd_number(whim->rng)) : base.chunk(in);
  }
  std::int32_t victim(const VictimList& list) const noexcept {
    if (whim->odd()) {
      return odd_int(whim->rng);
    }
    return odd_victims && whim->is_odd
               ? static_cast<std::int32_t>(whim->rng.between(0, list.size() - 1))
               : base.victim(list);
  }
  std::int32_t late_patience() const noexcept {
    return whim->odd() ? odd_int(whim->rng) : base.late_patience();
  }
  std::int32_t max_bypass() const noexcept {
    return whim->odd() ? odd_int(whim->rng) : base.max_bypass();
  }
  bool splits_prompts() const noexcept { return splits; }
};

static_assert(BatchSizer<WhimSizer> && MicroBatchSplitter<WhimSplitter> &&
              ExpertBalancer<WhimBalancer> && Admission<WhimAdmission>);

/// What a run may do.
struct HostileKind {
  bool faults = false;    ///< Outcomes of all kinds, abandons for all reasons.
  bool nonsense = false;  ///< Policies answer nonsense half of the time.
  bool ranks = false;     ///< One of several ranks in lock-step.
};

class HostileRun {
 public:
  using Hostile = Scheduler<WhimSizer, WhimSplitter, WhimBalancer, AnyKVCachePool, WhimAdmission>;

  HostileRun(const HostileKind& kind, std::uint64_t seed, int operations)
      : kind_(kind), rng_(seed * 7919 + 13), operations_(operations) {
    choose();
    build();
  }

  void run() {
    if (!scheduler_) {
      return;
    }
    for (int i = 0; i < operations_ && errors_.size() < 3; ++i) {
      ++done_;
      operation();
      check();
    }
    if (errors_.empty()) {
      finish();
    }
  }

  [[nodiscard]] const std::vector<std::string>& errors() const { return errors_; }
  [[nodiscard]] std::int64_t plans() const { return plans_; }
  [[nodiscard]] std::string name() const {
    return "rows " + std::to_string(caps_.max_sequences) + " tokens " +
           std::to_string(caps_.max_tokens) + " blocks " + std::to_string(blocks_) + " of " +
           std::to_string(block_size_) + " live " + std::to_string(config_.max_live_requests) +
           " plans " + std::to_string(config_.max_plans_in_flight) + " drafts " +
           std::to_string(config_.max_draft_tokens) + " future " +
           std::to_string(static_cast<int>(caps_.future_tokens)) + " in order " +
           std::to_string(static_cast<int>(caps_.in_order)) + " pool " +
           std::to_string(pool_kind_) + " context " + std::to_string(config_.max_context_tokens) +
           " compose " + std::to_string(compose_) + " reserve " + std::to_string(reserve_);
  }

 private:
  template <class T, std::size_t N>
  T pick(const T (&from)[N]) {
    return from[rng_.between(0, static_cast<std::int64_t>(N) - 1)];
  }

  void choose() {
    constexpr std::int32_t kRows[] = {1, 1, 2, 3, 4, 8};
    constexpr std::int64_t kTokens[] = {1, 2, 5, 16, 64, 300};
    constexpr std::int32_t kBlockSizes[] = {1, 2, 3, 4, 5, 16, 48, 4096};
    constexpr std::int64_t kLive[] = {1, 2, 5, 12, 24};
    constexpr std::int32_t kPlans[] = {1, 1, 2, 3, 8};
    constexpr std::int32_t kDrafts[] = {0, 0, 1, 4, 64};
    caps_.max_sequences = pick(kRows);
    caps_.max_tokens = pick(kTokens);
    block_size_ = pick(kBlockSizes);
    pool_kind_ = static_cast<int>(rng_.between(0, 9));  // 0 none, 1-3 no prefixes, else prefixes
    const std::int64_t fit = rng_.between(1, 260);      // positions, about
    blocks_ = rng_.one_in(8) ? 1 : std::max<std::int64_t>(1, fit / block_size_);
    config_.max_live_requests = pick(kLive);
    config_.max_plans_in_flight = pick(kPlans);
    config_.max_draft_tokens = pick(kDrafts);
    config_.max_retries = static_cast<std::int32_t>(rng_.between(0, 2));
    config_.max_context_tokens = rng_.one_in(3) ? rng_.between(1, 300) : 300;
    config_.max_queued_tokens = rng_.one_in(3) ? rng_.between(1, 3000) : 0;
    config_.resource_caps[0] = rng_.between(0, 4);
    config_.resource_caps[3] = std::numeric_limits<std::int64_t>::max();
    if (kind_.ranks) {
      config_.num_ranks = 3;
      config_.rank = 1;
    }
    caps_.in_order = !rng_.one_in(4);
    caps_.future_tokens = rng_.one_in(2);
    caps_.num_layers = 1;
    caps_.num_experts = 2;
    compose_ = static_cast<int>(rng_.between(0, 4));
    reserve_ = static_cast<int>(rng_.between(0, 3));
  }

  void build() {
    whim_.rng = SplitMix64(rng_.next());
    whim_.is_odd = kind_.nonsense;
    FcfsAdmission::Config admission;
    admission.compose = static_cast<FcfsAdmission::Compose>(compose_);
    admission.reserve = static_cast<FcfsAdmission::Reserve>(reserve_);
    admission.reserve_tokens = 64;
    admission.max_bypass = static_cast<std::int32_t>(rng_.between(0, 3));
    admission.watermark_permille = rng_.one_in(3) ? 300 : 0;
    admission.late_patience = static_cast<std::int32_t>(rng_.between(0, 2));
    pool_.emplace(BlockPool<>::Config{
        .num_blocks = blocks_, .block_size = block_size_, .prefix_caching = pool_kind_ > 3});
    executor_.emplace(caps_, rng_.next());
    // What is cancelled between plan and seal may run without its copies: its result is dropped.
    executor_->tolerates_garbage = kind_.faults || kind_.ranks;
    executor_->max_drafts = config_.max_draft_tokens > 0 ? 5 : 0;
    if (kind_.faults) {
      executor_->faults = {.not_run = rng_.between(5, 40),
                           .partial = rng_.between(5, 40),
                           .failed = rng_.between(5, 60),
                           .stop = rng_.between(10, 60)};
    }
    WhimAdmission policy{&whim_, FcfsAdmission(admission), !rng_.one_in(6), rng_.one_in(2)};
    auto made = Hostile::make(
        config_, caps_, WhimSizer{&whim_, rng_.between(1, 2 * caps_.max_tokens)},
        WhimSplitter{&whim_}, WhimBalancer{&whim_, &open_moves_},
        pool_kind_ == 0 ? AnyKVCachePool(null_pool_) : AnyKVCachePool(*pool_), policy);
    if (!made) {
      fail("make: " + text(made.status()));
      return;
    }
    scheduler_.emplace(std::move(made).value());
    kv_limit_ = pool_kind_ == 0 ? config_.max_context_tokens
                                : std::min(config_.max_context_tokens, blocks_ * block_size_);
  }

  static std::string text(const Status& s) {
    char buffer[200];
    format_status(s, buffer, sizeof(buffer));
    return buffer;
  }
  void fail(const std::string& what) {
    errors_.push_back(what + " at operation " + std::to_string(done_));
  }

  void operation() {
    now_.ns += rng_.one_in(60) ? 40'000'000 : rng_.between(-300'000, 900'000);
    switch (rng_.between(0, 15)) {
      case 0:
      case 1:
      case 2:
      case 3:
        submit();
        break;
      case 4:
        if (rng_.one_in(3)) {
          cancel();
        }
        break;
      case 5:
        poll(static_cast<std::size_t>(rng_.between(0, 2)));
        break;
      case 6:
        poll(64);
        break;
      case 7:
        if (rng_.one_in(4)) {
          pause_ = static_cast<int>(rng_.between(0, 2));
          if (pause_ == 0) {
            scheduler_->resume();
          } else {
            scheduler_->pause(pause_ == 1 ? PauseMode::New : PauseMode::All);
          }
        }
        break;
      case 8:
        if (rng_.one_in(6) &&
            scheduler_->clear_cache() != (scheduler_->pool_stats().referenced_blocks == 0)) {
          fail("clear_cache answered wrongly");
        }
        break;
      case 9:
        if (rng_.one_in(8) && pool_kind_ != 0) {
          const std::int64_t n = rng_.one_in(4) ? odd_number(rng_) : rng_.between(1, blocks_);
          const bool is_good = n >= 1 && n <= blocks_;
          if (scheduler_->pool().resize(n).is_ok() != is_good) {
            fail("resize answered wrongly");
          }
          if (is_good) {
            is_resized_ = n != blocks_;
            was_resized_ = true;
          }
        }
        break;
      case 10:
        settle();
        break;
      case 11:
        if (kind_.faults && rng_.one_in(4)) {
          abandon();
        }
        break;
      default:
        plan();
        break;
    }
  }

  void submit() {
    ToyRequest r;
    Request& q = r.request;
    const std::uint64_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, ~std::uint64_t{0}};
    q.id = RequestId{pick(ids)};
    q.user_data = next_tag_++;
    const std::int64_t page = 256;
    const std::int64_t lengths[] = {1,
                                    2,
                                    rng_.between(1, 40),
                                    block_size_,
                                    block_size_ + 1,
                                    kv_limit_,
                                    kv_limit_ - 1,
                                    page,
                                    page + 1,
                                    page - 1,
                                    rng_.between(1, 40),
                                    rng_.between(1, 12)};
    const std::int64_t length = std::clamp<std::int64_t>(pick(lengths), 1, 400);
    if (rng_.one_in(4)) {
      q.prompt.kind = PromptKind::Digests;
      q.prompt.length = length;
      q.prompt.digest_unit =
          pool_kind_ == 0 ? 3 : block_size_ * static_cast<std::int32_t>(rng_.between(1, 2));
      const auto family = static_cast<std::uint64_t>(rng_.between(0, 1));
      std::uint64_t chain = family * 2 + static_cast<std::uint64_t>(q.prompt.digest_unit);
      const std::int64_t fork = rng_.between(0, 6);
      const std::int64_t count =
          std::max<std::int64_t>(0, length / q.prompt.digest_unit + rng_.between(-2, 3));
      for (std::int64_t i = 0; i < count; ++i) {
        chain = combine64(chain, i < fork ? family : q.user_data);
        r.digests.push_back({chain, mix64(chain)});
      }
    } else {
      const auto family = static_cast<std::uint64_t>(rng_.between(0, 1));
      const std::int64_t fork = rng_.one_in(2) ? length : rng_.between(0, length);
      for (std::int64_t i = 0; i < length; ++i) {
        r.prompt.push_back(static_cast<Token>(
            mix64((i < fork ? family : q.user_data + 10) * 131U + static_cast<std::uint64_t>(i)) %
            50000U));
      }
    }
    const std::int64_t outputs[] = {0,
                                    1,
                                    1,
                                    kOpenEnded,
                                    kv_limit_ + 1 - length,
                                    kv_limit_ + 2 - length,
                                    rng_.between(1, 20),
                                    rng_.between(1, 20),
                                    rng_.one_in(4) ? odd_number(rng_) : 2};
    q.max_new_tokens = pick(outputs);
    if (rng_.one_in(3)) {
      r.stop.push_back(toy_token(q.user_data, rng_.between(0, 6)));
      q.min_new_tokens =
          q.max_new_tokens > 0 && q.max_new_tokens < 100 ? rng_.between(0, q.max_new_tokens) : 0;
    }
    q.scope.has_tenant_salt = rng_.one_in(4);
    q.arrival = rng_.one_in(6) ? TimeNs{odd_number(rng_)} : now_;
    q.priority = odd_int(rng_);
    if (rng_.one_in(6)) {
      q.start_by = now_ + DurationNs{rng_.between(-1, 20) * 1'000'000};
    }
    if (rng_.one_in(6)) {
      q.finish_by = now_ + DurationNs{rng_.between(1, 40) * 1'000'000};
    }
    if (rng_.one_in(4)) {
      q.slo = {DurationNs{odd_number(rng_)}, DurationNs{odd_number(rng_)}};
    }
    q.no_prefix_read = rng_.one_in(8);
    q.sync_decode = rng_.one_in(6);
    q.atomic_prefill = rng_.one_in(6);
    if (rng_.one_in(3)) {
      q.num_samples = static_cast<std::int32_t>(rng_.between(0, 5));
    }
    const ResourceNeed needs[] = {{0, rng_.between(0, 3)},
                                  {3, rng_.one_in(2) ? odd_number(rng_) : 1}};
    const MediaSpan media[] = {{rng_.between(-1, length), rng_.between(0, 3), {}}};
    executor_->add(r);
    Request view = r.view();
    if (rng_.one_in(4)) {
      view.resources = std::span(needs).first(static_cast<std::size_t>(rng_.between(1, 2)));
    }
    if (rng_.one_in(6)) {
      view.media = media;
    }
    const bool is_alive = ids_.count(q.id.value) != 0;
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
    }
  }

  void cancel() {
    const std::uint64_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7, 99, ~std::uint64_t{0}};
    const RequestId id{pick(ids)};
    const Status s = scheduler_->cancel(id);
    if (s.is_ok() != (ids_.count(id.value) != 0)) {
      fail("cancel answered wrongly");
    }
    if (s.is_ok()) {
      cancelled_.insert(ids_[id.value]);
    }
  }

  void poll(std::size_t room) {
    poll_into(room);
    for (auto& [tag, record] : events_.records) {
      if (record.terminals > 0 && ended_.insert(tag).second) {
        check_outcome(tag, record);
      }
    }
  }
  void poll_into(std::size_t room) {
    if (room == 0) {
      if (scheduler_->poll({}) != 0) {
        fail("events without room");
      }
      return;
    }
    std::vector<Event> buffer(room);
    const std::size_t n = scheduler_->poll(buffer);
    if (n > room) {
      fail("more events than room");
    }
    for (std::size_t i = 0; i < n; ++i) {
      events_.take_one(buffer[i]);
    }
  }

  void plan() {
    const StepPlan* plan = scheduler_->plan(now_);
    if (plan == nullptr) {
      check_reason();
      return;
    }
    ++plans_;
    if (kind_.ranks) {
      if (scheduler_->plan(now_) != nullptr) {
        fail("a plan before the last one was sealed");
      }
      if (rng_.one_in(6)) {
        cancel();
        poll(2);
      }
      if (!in_flight_.empty() && rng_.one_in(4)) {
        settle();
      }
      if (kind_.faults && rng_.one_in(15)) {
        if (!scheduler_->abandon(*plan, static_cast<AbandonReason>(rng_.between(0, 2)), now_)) {
          fail("an unsealed plan could not be abandoned");
        }
        return;
      }
      const RankSummary own = scheduler_->summary(*plan);
      RankSummary others[3] = {own, own, own};
      for (RankSummary* other : {&others[0], &others[2]}) {
        *other = {rng_.between(0, 20), rng_.between(0, 20), 3, 3, rng_.between(0, 99), true};
      }
      if (!scheduler_->seal(*plan, others)) {
        fail("a good seal was refused");
      }
    }
    check_plan(*plan);
    in_flight_.push_back(plan);
  }

  void check_plan(const StepPlan& plan) {
    if (plan.num_tokens() > caps_.max_tokens) {
      fail("a plan exceeds the executor's tokens");
    }
    for (const Chunk& c : plan.chunks) {
      if (c.context_length > kv_limit_) {
        fail("a context outgrew the pool");
      }
      const auto found = requests_.find(c.user_data);
      if (found == requests_.end()) {
        fail("a chunk of an unknown request");
        continue;
      }
      const ToyRequest& r = found->second;
      if (r.request.atomic_prefill && c.kind == ChunkKind::Prefill &&
          r.request.prompt.kind == PromptKind::Tokens &&
          c.context_length < static_cast<std::int64_t>(r.prompt.size())) {
        fail("an atomic prompt was cut");
      }
    }
    for (const GroupPlan& group : plan.groups) {
      std::set<std::int32_t> sources;
      std::set<std::int32_t> targets;
      for (const BlockCopy& copy : group.copies) {
        sources.insert(copy.source.value);
        if (!targets.insert(copy.target.value).second) {
          fail("a block is the target of two copies");
        }
      }
      for (const std::int32_t block : targets) {
        if (sources.count(block) != 0) {
          fail("a copy chain");
        }
      }
      // The tables that a host without resident ones asks for say the same as the slots.
      const auto stride = static_cast<std::size_t>(kv_limit_ / block_size_ + 2);
      std::vector<BlockId> tables(plan.chunks.size() * stride);
      if (!scheduler_->materialize(plan, tables, stride)) {
        fail("materialize was refused");
        continue;
      }
      for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
        for (std::int32_t i = 0; i < plan.chunks[c].num_tokens; ++i) {
          const auto t = static_cast<std::size_t>(plan.chunks[c].first_token + i);
          const std::int32_t p = plan.positions[t];
          const BlockId block = tables[c * stride + static_cast<std::size_t>(p / block_size_)];
          if (plan.rows[c] >= 0 && is_running(plan.chunks[c].user_data) &&
              group.token_slots[t].value !=
                  std::int64_t{block.value} * block_size_ + p % block_size_) {
            fail("a slot differs from the table");
          }
        }
      }
    }
    std::int64_t total = 0;
    std::map<std::uint64_t, bool> seen;
    total += static_cast<std::int64_t>(plan.chunks.size());
    if (total > caps_.max_sequences) {
      fail("more chunks than rows");
    }
  }
  bool is_running(std::uint64_t tag) const { return cancelled_.count(tag) == 0; }

  void settle() {
    if (in_flight_.empty()) {
      return;
    }
    const StepPlan& plan = *in_flight_.front();
    StepResultBuffer result;
    if (!scheduler_->make_result(result)) {
      fail("make_result");
      return;
    }
    result.reset(plan);
    if (!plan.chunks.empty()) {
      executor_->execute(plan, result);
    } else if (!plan.groups.empty() && !plan.groups[0].copies.empty()) {
      fail("a plan that nobody executes has copies");
    }
    refuse_bad_results(plan, result.view());
    if (in_flight_.size() > 1) {
      if (scheduler_->commit(*in_flight_.back(), result.view(), now_).code != Errc::WrongPlan) {
        fail("a commit out of order was not refused");
      }
    }
    const StepPlan copy = plan;
    if (scheduler_->commit(copy, result.view(), now_).code != Errc::WrongPlan ||
        scheduler_->abandon(copy, AbandonReason::Fatal, now_).code != Errc::WrongPlan) {
      fail("a copy of a plan was settled");
    }
    StepResult view = result.view();
    view.measured = rng_.one_in(4) ? DurationNs{odd_number(rng_)} : view.measured;
    const std::uint32_t counts[2] = {1, 2};
    if (rng_.one_in(3)) {
      view.expert_counts = counts;
    }
    const Status s = scheduler_->commit(plan, view, rng_.one_in(20) ? TimeNs{-now_.ns} : now_);
    if (!s) {
      fail("commit: " + text(s));
      (void)scheduler_->abandon(plan, AbandonReason::NotRun, now_);
      in_flight_.clear();
      return;
    }
    in_flight_.pop_front();
  }

  /// Results that do not fit are refused, whatever is wrong with them, and change nothing.
  void refuse_bad_results(const StepPlan& plan, const StepResult& good) {
    if (!rng_.one_in(3)) {
      return;
    }
    const SchedulerStats before = scheduler_->stats();
    std::vector<Outcome> outcomes(good.outcomes.begin(), good.outcomes.end());
    std::vector<Token> tokens(good.tokens.begin(), good.tokens.end());
    std::vector<std::int32_t> begin(good.token_begin.begin(), good.token_begin.end());
    StepResult bad = good;
    bad.outcomes = outcomes;
    bad.tokens = tokens;
    bad.token_begin = begin;
    switch (rng_.between(0, 5)) {
      case 0:
        tokens.push_back(1);
        bad.tokens = tokens;
        break;
      case 1:
        if (tokens.empty()) {
          return;
        }
        tokens[0] = -1;
        break;
      case 2:
        if (begin.size() < 2) {
          return;
        }
        begin[0] = odd_int(rng_) | 1;
        break;
      case 3:
        if (outcomes.empty()) {
          return;
        }
        outcomes[0].kind = static_cast<OutcomeKind>(77);
        break;
      case 4:
        if (outcomes.empty()) {
          return;
        }
        outcomes[0] = {OutcomeKind::Partial, FinishReason::None, plan.chunks[0].num_tokens};
        break;
      default:
        outcomes.push_back({});
        if (outcomes.size() == 1) {
          return;
        }
        bad.outcomes = outcomes;
        break;
    }
    const Status s = scheduler_->commit(plan, bad, now_);
    if (s.code != Errc::BadResult) {
      fail("a bad result was taken");
    }
    const SchedulerStats after = scheduler_->stats();
    if (after.output_tokens != before.output_tokens || after.live != before.live) {
      fail("a refused result changed something");
    }
  }

  void abandon() {
    if (in_flight_.empty()) {
      return;
    }
    const auto index =
        static_cast<std::size_t>(rng_.between(0, static_cast<std::int64_t>(in_flight_.size()) - 1));
    const auto why = static_cast<AbandonReason>(rng_.between(0, rng_.one_in(3) ? 2 : 1));
    // What was launched may run nevertheless.
    if (why != AbandonReason::NotRun && rng_.one_in(2)) {
      for (std::size_t i = index; i < in_flight_.size(); ++i) {
        StepResultBuffer result;
        if (index == 0 && !in_flight_[i]->chunks.empty() && scheduler_->make_result(result)) {
          result.reset(*in_flight_[i]);
          executor_->execute(*in_flight_[i], result);
        }
      }
    }
    if (!scheduler_->abandon(*in_flight_[index], why, now_)) {
      fail("abandon was refused");
    }
    in_flight_.resize(index);
  }

  void check_reason() {
    const PlanStatus status = scheduler_->status();
    const SchedulerStats stats = scheduler_->stats();
    if (status.state == PlanState::Planned) {
      fail("no plan, yet the status says planned");
    }
    if (in_flight_.empty() && pause_ == 0 && stats.live > 0 && !kind_.nonsense && !is_resized_) {
      const PoolStats pool = scheduler_->pool_stats();
      fail(std::string("nothing in flight, live requests and no plan: state ") +
           std::to_string(static_cast<int>(status.state)) + " " + to_string(status.cause) +
           ", running " + std::to_string(stats.running) + ", waiting " +
           std::to_string(stats.waiting) + ", free blocks " + std::to_string(pool.free_blocks) +
           ", cached " + std::to_string(pool.cached_blocks));
    }
    if (stats.live > 0 && (status.state == PlanState::Idle || status.state == PlanState::Closed)) {
      fail("idle with live requests");
    }
  }

  void check() {
    if (const Status s = scheduler_->check(); !s) {
      fail(text(s));
    }
    const SchedulerStats stats = scheduler_->stats();
    if (stats.submitted != submitted_ || stats.rejected != rejected_ ||
        stats.submitted != stats.rejected + stats.live + stats.finished + stats.cancelled +
                               stats.expired + stats.failed) {
      fail("law 1: the request counters disagree");
    }
    const PoolStats pool = scheduler_->pool_stats();
    if (pool.free_blocks + pool.cached_blocks + pool.referenced_blocks != pool.total_blocks &&
        !was_resized_) {
      fail("law 2: the block counters disagree");
    }
    if (stats.plans_in_flight != in_flight_.size()) {
      fail("plans in flight");
    }
    for (const std::string& e : executor_->errors) {
      fail(e);
    }
    for (const std::string& e : events_.errors) {
      fail(e);
    }
    executor_->errors.clear();
    events_.errors.clear();
  }

  void check_outcome(std::uint64_t tag, const ToyRecord& record) {
    const ToyRequest& r = requests_[tag];
    ids_.erase(r.request.id.value);
    const bool is_finished = record.terminal == EventKind::Finished;
    for (std::int32_t sample = 0; sample < r.request.num_samples; ++sample) {
      static const std::vector<Token> kNone;
      const auto other = record.others.find(sample);
      const std::vector<Token>& tokens =
          sample == 0 ? record.tokens : (other == record.others.end() ? kNone : other->second);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] != toy_token(tag, static_cast<std::int64_t>(i), sample)) {
          fail("law 10: a token depends on the schedule, request " + std::to_string(tag) +
               " sample " + std::to_string(sample) + " output " + std::to_string(i));
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
      const bool may_end_early =
          actual == FinishReason::Host || (actual == FinishReason::Capacity && was_resized_);
      if (may_end_early ? n > expected : (n != expected || actual != reason)) {
        fail("request " + std::to_string(tag) + " sample " + std::to_string(sample) +
             " finished with " + std::to_string(n) + " tokens and reason " +
             std::to_string(static_cast<int>(actual)) + ", expected " + std::to_string(expected) +
             " and " + std::to_string(static_cast<int>(reason)));
      }
    }
    if (record.terminal == EventKind::Cancelled && cancelled_.count(tag) == 0) {
      fail("cancelled without a cancel");
    } else if (record.terminal == EventKind::Expired && r.request.start_by == kNever &&
               r.request.finish_by == kNever) {
      fail("expired without a deadline");
    } else if (record.terminal == EventKind::Failed && !may_fail_) {
      fail("failed without a fault");
    }
  }

  void finish() {
    executor_->faults = {};
    whim_.is_odd = false;
    kind_.nonsense = false;
    kind_.faults = false;
    scheduler_->resume();
    pause_ = 0;
    if (is_resized_) {
      (void)scheduler_->pool().resize(blocks_);
      is_resized_ = false;
    }
    scheduler_->close();
    for (int i = 0; i < 30000 && scheduler_->stats().live > 0 && errors_.size() < 3; ++i) {
      now_.ns += 1000;
      plan();
      if (static_cast<int>(in_flight_.size()) == config_.max_plans_in_flight || rng_.one_in(2) ||
          scheduler_->status().state != PlanState::Planned) {
        settle();
      }
      poll(5);
      check();
    }
    while (!in_flight_.empty() && errors_.empty()) {
      settle();
    }
    for (int i = 0; i < 400; ++i) {
      poll(3);
    }
    check();
    const SchedulerStats stats = scheduler_->stats();
    const PoolStats pool = scheduler_->pool_stats();
    if (stats.live != 0 || pool.referenced_blocks != 0 || stats.running != 0 ||
        stats.waiting != 0 || stats.queued_tokens != 0 || !ids_.empty()) {
      fail("something is left at the end: live " + std::to_string(stats.live) + " running " +
           std::to_string(stats.running) + " waiting " + std::to_string(stats.waiting));
    }
    if (open_moves_ != 0) {
      fail("an expert move was neither confirmed nor failed, or twice");
    }
  }

  HostileKind kind_;
  bool may_fail_ = kind_.faults;
  SplitMix64 rng_;
  int operations_;
  SchedulerConfig config_;
  Capabilities caps_;
  std::int32_t block_size_ = 1;
  std::int64_t blocks_ = 1;
  int pool_kind_ = 0;
  int compose_ = 0;
  int reserve_ = 0;
  Whim whim_;
  std::int64_t open_moves_ = 0;
  std::optional<ToyExecutor> executor_;
  ToyEvents events_;
  std::optional<BlockPool<>> pool_;
  NullPool null_pool_;
  std::optional<Hostile> scheduler_;
  std::deque<const StepPlan*> in_flight_;
  std::map<std::uint64_t, ToyRequest> requests_;  // by tag
  std::map<std::uint64_t, std::uint64_t> ids_;    // live id -> tag
  std::set<std::uint64_t> cancelled_;
  std::set<std::uint64_t> ended_;  // tags whose outcome was checked
  std::vector<std::string> errors_;
  TimeNs now_{1'000'000'000};
  std::uint64_t next_tag_ = 100;
  std::uint64_t submitted_ = 0;
  std::uint64_t rejected_ = 0;
  std::int64_t plans_ = 0;
  std::int64_t kv_limit_ = 0;
  int done_ = 0;
  int pause_ = 0;
  bool is_resized_ = false;
  bool was_resized_ = false;
};

}  // namespace dynbatch::test
