// SPDX-License-Identifier: Apache-2.0
/// \file
/// Running mixes. The one place where the scheduler is instantiated, over the Any views.
#include "engine_run.hpp"

#include <dynbatch/scheduler/run_step.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "engine_groups.hpp"
#include "engine_host.hpp"
#include "engine_policies.hpp"
#include "engine_store.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dynbatch::test {
namespace {

using AnyScheduler =
    Scheduler<LimitedSizer, AnyMicroBatchSplitter, AnyExpertBalancer, AnyKVCachePool, AnyAdmission>;

constexpr TimeNs kStart{1'000'000'000};
constexpr std::int64_t kStepNs = 1'000'000;
constexpr int kMostSteps = 4000;
constexpr std::size_t kMostErrors = 5;

const tiny::Model& model(const MixSettings& s) {
  static std::map<std::array<std::int32_t, 3>, tiny::Model> models;
  const auto make = [&] {
    tiny::ModelConfig config;
    config.attention = s.attention == 0 ? tiny::Attention::GroupedQuery : tiny::Attention::Latent;
    config.window = s.window;
    config.num_recurrent = s.recurrent;
    config.num_layers = 2 + s.recurrent;
    config.width = 16;
    config.head_dim = 4;
    config.latent_dim = 8;
    config.rope_dim = 4;
    config.expert_width = 8;
    config.max_positions = 1024;  // prompts that are refused and drafts may lead far
    return tiny::Model(config);
  };
  const std::array<std::int32_t, 3> key{s.attention, s.window, s.recurrent};
  const auto found = models.find(key);
  return found != models.end() ? found->second : models.emplace(key, make()).first->second;
}

Mix compatible(Mix mix, Planted planted) {
  mix.settings = compatible(mix.settings, planted);
  return mix;
}

std::string text_of(const Status& status) {
  char text[200];
  format_status(status, text, sizeof(text));
  return text;
}

/// What the events say of one request.
struct Record {
  const MixRequest* request = nullptr;
  bool is_accepted = false;
  std::vector<std::vector<Token>> outputs;  // by sample
  std::vector<FinishReason> reasons;        // by sample
  int terminals = 0;
  EventKind end = EventKind::Accepted;
  Errc error = Errc::Ok;
};

class EngineRun {
 public:
  /// `mix` is compatible(), `store` null if it has none; both outlive this. Time begins at `start`.
  EngineRun(const Mix& mix, Planted planted, MixStore* store, TimeNs start)
      : mix_(mix),
        model_(model(mix.settings)),
        policies_(mix.settings, planted, model_, store),
        host_(model_, mix.settings, planted, mix.seed),
        is_open_(mix.incidents.size(), true),
        now_(start) {
    host_.store = store;
    policies_.host_memory.kv = &host_.kv();
    policies_.balancer.rng = SplitMix64(combine64(mix.seed, 3));
    if (planted == Planted::PlanNotForgotten) {
      policies_.balancer.one_in = 0;  // it has to show in tokens
    }
    SchedulerConfig config;
    config.max_live_requests = 64;
    config.max_context_tokens = kMixContext;
    config.max_plans_in_flight = mix.settings.plans;
    config.max_draft_tokens = mix.settings.drafts != 0 ? kMixDrafts : 0;
    config.max_retries = mix.settings.retries;
    config.num_ranks = mix.settings.ranks;
    auto made = AnyScheduler::make(config, host_.capabilities(), policies_.sizer,
                                   policies_.splitter, AnyExpertBalancer(policies_.balancer),
                                   policies_.pool, policies_.admission);
    if (!made) {
      fail("make: " + text_of(made.status()));
      return;
    }
    scheduler_.emplace(std::move(made).value());
    kv_limit_ = std::min(kMixContext, mix.settings.blocks * mix.settings.block_size);
    buffers_.resize(static_cast<std::size_t>(mix.settings.plans));
    require(scheduler_->make_result(host_.inner), "make_result");
    for (StepResultBuffer& buffer : buffers_) {
      require(scheduler_->make_result(buffer), "make_result");
    }
  }

  MixReport run() {
    for (const MixRequest& r : mix_.requests) {
      last_step_ = std::max(last_step_, r.arrival);
    }
    for (const Incident& i : mix_.incidents) {
      last_step_ = std::max(last_step_, i.step + i.length);
    }
    while (errors_.empty() && step_ < kMostSteps &&
           (step_ <= last_step_ || scheduler_->stats().live > 0)) {
      step();
    }
    while (errors_.empty() && !in_flight_.empty()) {  // of requests that have ended, or dummies
      settle_oldest();
    }
    if (errors_.empty()) {
      finish();
    }
    report_.errors = errors_;
    report_.errors.resize(std::min(errors_.size(), kMostErrors));
    report_.coverage += host_.coverage;
    if (host_.store != nullptr) {
      const TierStats stats = policies_.store_stats();
      report_.coverage.blocks_stored += static_cast<std::int64_t>(stats.stored_blocks);
      report_.coverage.store_corrupt += static_cast<std::int64_t>(stats.corrupt);
      report_.coverage.store_failures += static_cast<std::int64_t>(stats.failures - stats.timeouts);
      report_.coverage.store_timeouts += static_cast<std::int64_t>(stats.timeouts);
    }
    return report_;
  }
  [[nodiscard]] TimeNs now() const noexcept { return now_; }

 private:
  struct InFlight {
    const StepPlan* plan = nullptr;
    StepResultBuffer* result = nullptr;
    bool has_run = false;
  };

  void fail(const std::string& what) {
    errors_.push_back(what + ", step " + std::to_string(step_));
  }
  void require(const Status& status, const char* what) {
    if (!status) {
      fail(std::string(what) + ": " + text_of(status));
    }
  }
  [[nodiscard]] std::uint64_t random(std::uint64_t key) const {
    return mix_.settings.timing == 0
               ? 0
               : combine64(static_cast<std::uint64_t>(mix_.settings.timing), key);
  }

  // ---- one step ----

  void step() {
    begin_and_end_incidents();
    for (const MixRequest& r : mix_.requests) {
      if (r.arrival == step_) {
        submit(r);
      }
    }
    for (const MixRequest& r : mix_.requests) {
      const auto record = records_.find(id_of(r));
      if (r.cancel_at == step_ && record != records_.end() && record->second.terminals == 0) {
        require(scheduler_->cancel(RequestId{id_of(r)}), "cancel");
      }
    }
    if (mix_.settings.plans == 1 && mix_.settings.ranks == 1) {
      run_alone();
    } else {
      run_pipeline();
    }
    for (const std::string& error : host_.errors) {
      fail(error);
    }
    host_.errors.clear();
    if (step_ % mix_.settings.poll_every == 0) {
      drain();
    }
    now_.ns += kStepNs;
    ++step_;
  }

  [[nodiscard]] static std::uint64_t id_of(const MixRequest& r) {
    return static_cast<std::uint64_t>(r.key);
  }

  [[nodiscard]] tiny::Sampling sampling_of(const MixRequest& r) const {
    return {static_cast<std::uint32_t>(combine64(mix_.seed, id_of(r))),
            static_cast<std::uint16_t>(r.temperature), static_cast<std::uint16_t>(r.adapter)};
  }

  /// The earlier request that this one follows, if it is in the mix.
  [[nodiscard]] const MixRequest* before(const MixRequest& r) const {
    for (const MixRequest& other : mix_.requests) {
      if (other.key == r.follows && other.key < r.key) {
        return &other;
      }
    }
    return nullptr;
  }

  std::vector<Token> prompt_of(const MixRequest& r) const {
    std::vector<Token> out;
    if (const MixRequest* const other = before(r)) {
      out = prompt_of(*other);
      tiny::Alone alone(model_, out, sampling_of(*other), 0);
      for (std::int32_t i = 0; i < r.heard; ++i) {
        out.push_back(alone.output(static_cast<std::size_t>(i)));
      }
    }
    const std::uint64_t family = combine64(mix_.seed, 1000U + static_cast<std::uint64_t>(r.family));
    const std::uint64_t own = combine64(mix_.seed, id_of(r));
    for (std::int32_t i = 0; i < std::max(r.length, 1); ++i) {
      out.push_back(
          static_cast<Token>(combine64(i < r.shared ? family : own, static_cast<std::uint64_t>(i)) %
                             static_cast<std::uint64_t>(model_.config().vocab)));
    }
    return out;
  }

  /// Digests of whole units: equal ones mean equal content up to their end.
  static std::vector<ContentDigest> digests_of(const std::vector<Token>& prompt,
                                               std::int32_t unit) {
    std::vector<ContentDigest> out;
    std::uint64_t chain = static_cast<std::uint64_t>(unit);
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      chain = combine64(chain, static_cast<std::uint64_t>(prompt[i]));
      if ((i + 1) % static_cast<std::size_t>(unit) == 0) {
        out.push_back({chain, mix64(chain)});
      }
    }
    return out;
  }

  void submit(const MixRequest& r) {
    HostedRequest hosted;
    hosted.prompt = prompt_of(r);
    hosted.is_digest = r.digest_blocks > 0;
    hosted.host_stop_at = r.host_stop_at;
    if (const MixRequest* const other = before(r)) {
      hosted.heard_from = static_cast<std::int32_t>(prompt_of(*other).size());
    }
    const tiny::Sampling sampling = sampling_of(r);
    const std::int32_t samples = std::max(r.samples, 1);
    for (std::int32_t s = 0; s < samples; ++s) {
      hosted.alone.emplace_back(model_, hosted.prompt, sampling, s);
    }
    Request q;
    q.id = RequestId{id_of(r)};
    q.user_data = sampling.user_data();
    const std::int32_t unit = mix_.settings.block_size * r.digest_blocks;
    std::vector<ContentDigest> digests;
    if (hosted.is_digest) {
      digests = digests_of(hosted.prompt, unit);
      q.prompt = {.kind = PromptKind::Digests,
                  .digests = digests,
                  .length = static_cast<std::int64_t>(hosted.prompt.size()),
                  .digest_unit = unit};
    } else {
      q.prompt.tokens = hosted.prompt;
    }
    q.max_new_tokens = r.open_ended != 0 ? kOpenEnded : outputs_of(r);
    q.min_new_tokens = min_outputs_of(r);
    q.num_samples = samples;
    const Token stop = stop_token(r, hosted);
    if (stop >= 0) {
      q.stop_tokens = {&stop, 1};
    }
    q.priority = r.priority;
    q.tenant = static_cast<std::uint64_t>(r.tenant);
    q.arrival = now_;
    if (r.start_within >= 0) {
      q.start_by = now_ + DurationNs{r.start_within * kStepNs};
    }
    if (r.finish_within >= 0) {
      q.finish_by = now_ + DurationNs{r.finish_within * kStepNs};
    }
    q.slo = r.key % 3 == 0 ? Slo{milliseconds(20), milliseconds(3)} : Slo{};
    q.scope.has_adapter = r.adapter > 0;
    q.scope.adapter_id = static_cast<std::uint64_t>(r.adapter);
    q.scope.has_tenant_salt = r.salt >= 0;
    q.scope.tenant_salt = static_cast<std::uint64_t>(std::max(r.salt, 0));
    q.no_prefix_read = r.no_prefix_read != 0;
    q.sync_decode = r.sync_decode != 0;
    q.atomic_prefill = r.atomic_prefill != 0;
    Record record;
    record.request = &r;
    record.outputs.resize(static_cast<std::size_t>(samples));
    record.reasons.resize(static_cast<std::size_t>(samples), FinishReason::None);
    host_.requests.insert_or_assign(id_of(r), std::move(hosted));
    if (const Status s = scheduler_->submit(q); s.is_ok()) {
      records_[id_of(r)] = std::move(record);
    } else if (s.code == Errc::CanNeverFit || s.code == Errc::Expired) {
      ++report_.coverage.refused;
    } else {
      fail("submit: " + text_of(s));
    }
  }

  /// Several samples of nothing are refused.
  static std::int32_t outputs_of(const MixRequest& r) {
    return std::max(r.outputs, r.samples > 1 ? 1 : 0);
  }
  static std::int32_t min_outputs_of(const MixRequest& r) {
    return std::min(r.min_outputs, outputs_of(r));
  }

  static Token stop_token(const MixRequest& r, HostedRequest& hosted) {
    return r.stop_at < 0 ? -1 : hosted.alone[0].output(static_cast<std::size_t>(r.stop_at));
  }

  // ---- incidents ----

  void begin_and_end_incidents() {
    for (const Incident& i : mix_.incidents) {
      if (i.step == step_) {
        set(i, true);
      } else if (i.step + i.length == step_) {
        set(i, false);
      }
    }
  }

  void set(const Incident& i, bool begins) {
    switch (i.kind) {
      case IncidentKind::PauseNew:
      case IncidentKind::PauseAll:
        if (begins) {
          scheduler_->pause(i.kind == IncidentKind::PauseNew ? PauseMode::New : PauseMode::All);
        } else {
          scheduler_->resume();
        }
        break;
      case IncidentKind::Clear:
        report_.coverage.clears += begins && scheduler_->clear_cache() ? 1 : 0;
        break;
      case IncidentKind::Budget:
        scheduler_->sizer().tokens = begins ? i.which : 0;
        break;
      case IncidentKind::Sequences:
        scheduler_->sizer().sequences = begins ? i.which : 0;
        break;
      case IncidentKind::PoolSize: {
        const std::int64_t all = mix_.settings.blocks;
        require(scheduler_->pool().resize(begins ? std::max<std::int64_t>(all * i.which / 1000, 1)
                                                 : all),
                "resize");
        ++report_.coverage.pool_sizes;
        break;
      }
      default:
        break;
    }
  }

  /// Takes the next incident of these kinds that is due; null if there is none.
  template <class... Kinds>
  const Incident* take(Kinds... kinds) {
    for (std::size_t i = 0; i < mix_.incidents.size(); ++i) {
      const Incident& incident = mix_.incidents[i];
      if (is_open_[i] && incident.step <= step_ && ((incident.kind == kinds) || ...)) {
        is_open_[i] = false;
        return &incident;
      }
    }
    return nullptr;
  }

  void order(const StepPlan& plan) {
    host_.orders = {};
    if (plan.chunks.empty()) {
      return;
    }
    while (const Incident* i =
               take(IncidentKind::NotRun, IncidentKind::Partial, IncidentKind::Failed)) {
      const bool is_long =
          plan.chunks[static_cast<std::size_t>(i->which) % plan.chunks.size()].num_tokens > 1;
      host_.orders.chunks.push_back(
          {i->kind == IncidentKind::Partial && !is_long ? IncidentKind::NotRun : i->kind,
           i->which});
    }
    host_.orders.throws = take(IncidentKind::Throw) != nullptr;
  }

  // ---- one plan at a time, by run_step() ----

  /// The host as run_step() wants it; orders are given when the plan is known.
  struct Synchronous {
    EngineRun* run;
    [[nodiscard]] Capabilities capabilities() const { return run->host_.capabilities(); }
    void execute(const StepPlan& plan, StepResultBuffer& result) {
      run->order(plan);
      try {
        run->host_.execute(plan, result);
      } catch (...) {
        run->host_.forget(plan);
        throw;
      }
    }
  };

  void run_alone() {
    if (const Incident* i = take(IncidentKind::AbandonNotRun, IncidentKind::AbandonLost,
                                 IncidentKind::AbandonFatal)) {
      if (const StepPlan* plan = scheduler_->plan(now_)) {
        in_flight_.push_back({plan, buffers_.data(), false});
        abandon(*i);
      }
      return;
    }
    Synchronous executor{this};
    const StepReport report = run_step(*scheduler_, executor, buffers_[0],
                                       [this] { return now_ = now_ + DurationNs{1000}; });
    if (report.outcome == StepOutcome::Abandoned && report.status.code != Errc::ExecutorFailed) {
      fail("run_step: " + text_of(report.status));
    }
  }

  // ---- several plans in flight ----

  /// Lock-step: the other ranks have work of some size, or none.
  void seal(const StepPlan& plan) {
    std::vector<RankSummary> ranks{scheduler_->summary(plan)};
    SplitMix64 rng(combine64(mix_.seed, plan.id.value));
    while (ranks.size() < static_cast<std::size_t>(mix_.settings.ranks)) {
      RankSummary other;
      other.num_tokens = rng.one_in(3) ? 0 : rng.between(1, 40);
      other.num_chunks = static_cast<std::int32_t>(rng.between(0, other.num_tokens));
      other.num_rows = other.num_chunks;
      other.prefill_tokens = other.num_tokens - other.num_chunks;
      ranks.push_back(other);
    }
    require(scheduler_->seal(plan, ranks), "seal");
  }

  void run_pipeline() {
    const StepPlan* plan = scheduler_->plan(now_);
    if (plan != nullptr) {
      if (!plan->is_sealed) {
        seal(*plan);
      }
      check_overlap(*plan);
      StepResultBuffer* free = nullptr;
      for (StepResultBuffer& buffer : buffers_) {
        if (std::none_of(in_flight_.begin(), in_flight_.end(),
                         [&](const InFlight& f) { return f.result == &buffer; })) {
          free = &buffer;
        }
      }
      in_flight_.push_back({plan, free, false});
    }
    if (!in_flight_.empty()) {
      if (const Incident* i = take(IncidentKind::AbandonNotRun, IncidentKind::AbandonLost,
                                   IncidentKind::AbandonFatal)) {
        abandon(*i);
      }
    }
    const std::uint64_t draw = random(static_cast<std::uint64_t>(step_));
    for (std::uint64_t n = mix_.settings.timing == 0 ? 0 : draw % 3; n > 0; --n) {
      execute_one(draw / 3 + n);
    }
    const bool is_full = static_cast<std::int32_t>(in_flight_.size()) == mix_.settings.plans;
    bool must_settle = is_full || plan == nullptr;
    while (!in_flight_.empty() && (must_settle || (draw % 5 == 0 && in_flight_.front().has_run))) {
      settle_oldest();
      must_settle = false;
      if (draw % 7 != 0) {
        break;
      }
    }
  }

  void settle_oldest() {
    if (!in_flight_.front().has_run) {
      execute(0);
    }
    if (!in_flight_.empty()) {  // else it threw
      commit_oldest();
    }
  }

  /// Who must see each token before the next, stands in one plan at a time.
  void check_overlap(const StepPlan& plan) {
    for (const Chunk& chunk : plan.chunks) {
      const bool may_overlap =
          mix_.settings.future != 0 && records_.at(chunk.request.value).request->sync_decode == 0;
      for (const InFlight& f : in_flight_) {
        for (const Chunk& other : f.plan->chunks) {
          if (other.sequence == chunk.sequence && !may_overlap) {
            fail("request " + std::to_string(chunk.request.value) + " stands in two plans");
          }
        }
      }
    }
  }

  /// Runs a plan that has not run: the oldest, or with an unordered host any.
  void execute_one(std::uint64_t draw) {
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < in_flight_.size(); ++i) {
      if (!in_flight_[i].has_run) {
        candidates.push_back(i);
      }
    }
    if (!candidates.empty()) {
      execute(candidates[mix_.settings.unordered != 0 ? draw % candidates.size() : 0]);
    }
  }

  /// Runs plan `index`; if it throws, it and all younger ones are lost.
  void execute(std::size_t index) {
    InFlight& f = in_flight_[index];
    order(*f.plan);
    f.result->reset(*f.plan);
    try {
      host_.execute(*f.plan, *f.result);
      f.has_run = true;
    } catch (...) {
      host_.forget(*f.plan);
      require(scheduler_->abandon(*f.plan, AbandonReason::Lost, now_), "abandon");
      in_flight_.resize(index);
    }
  }

  void commit_oldest() {
    const InFlight& f = in_flight_.front();
    require(scheduler_->commit(*f.plan, f.result->view(), now_), "commit");
    in_flight_.pop_front();
    report_.coverage.younger_plans += in_flight_.empty() ? 0 : 1;
  }

  /// Abandons one of the plans in flight and all younger ones. Unless nothing of them ran, some of
  /// them run first, perhaps in part: a device that fails has got somewhere.
  void abandon(const Incident& incident) {
    auto why = AbandonReason::Fatal;
    std::size_t first = static_cast<std::size_t>(incident.which) % in_flight_.size();
    if (incident.kind == IncidentKind::AbandonNotRun) {
      why = AbandonReason::NotRun;
      while (first < in_flight_.size() &&
             std::any_of(
                 in_flight_.begin() + static_cast<std::ptrdiff_t>(first), in_flight_.end(),
                 [](const InFlight& f) { return f.has_run; })) {
        ++first;
      }
      if (first == in_flight_.size()) {
        return;
      }
    } else {
      why = incident.kind == IncidentKind::AbandonLost ? AbandonReason::Lost : AbandonReason::Fatal;
      run_before_abandon(first, static_cast<std::uint64_t>(incident.which / 16));
    }
    for (std::size_t i = first; i < in_flight_.size(); ++i) {
      report_.coverage.abandoned_after_run += in_flight_[i].has_run ? 1 : 0;
    }
    const StepPlan& plan = *in_flight_[first].plan;
    host_.forget(plan);
    require(scheduler_->abandon(plan, why, now_), "abandon");
    in_flight_.resize(first);
    (why == AbandonReason::NotRun ? report_.coverage.abandoned_not_run
     : why == AbandonReason::Lost ? report_.coverage.abandoned_lost
                                  : report_.coverage.abandoned_fatal) += 1;
  }

  void run_before_abandon(std::size_t first, std::uint64_t draw) {
    const std::size_t count = draw % (in_flight_.size() - first + 1);
    for (std::size_t i = 0; i < first + count; ++i) {  // in order, so the older ones too
      InFlight& f = in_flight_[i];
      if (f.has_run || (i < first && count == 0)) {
        continue;
      }
      host_.orders = {};
      host_.orders.is_lost = i + 1 == first + count && draw % 3 == 0;
      f.result->reset(*f.plan);
      host_.execute(*f.plan, *f.result);
      f.has_run = true;
    }
  }

  // ---- what came out ----

  void drain() {
    Event events[16];
    for (std::size_t n = std::size(events); n == std::size(events);) {
      n = scheduler_->poll(events);
      for (const Event& e : std::span(events, n)) {
        take_event(e);
      }
    }
  }

  void take_event(const Event& e) {
    const auto found = records_.find(e.request.value);
    if (found == records_.end() || found->second.terminals > 0) {
      fail("an event of a request that is not live");
      return;
    }
    Record& record = found->second;
    const auto sample = static_cast<std::size_t>(e.sample);
    switch (e.kind) {
      case EventKind::Accepted:
        record.is_accepted = true;
        break;
      case EventKind::FirstToken:
      case EventKind::Tokens:
        record.outputs.at(sample).insert(record.outputs[sample].end(), e.tokens.begin(),
                                         e.tokens.end());
        break;
      case EventKind::SampleFinished:
        record.reasons.at(sample) = e.reason;
        break;
      case EventKind::Preempted:
        report_.coverage.preemptions += e.count;
        report_.coverage.group_preemptions +=
            mix_.settings.window > 0 || mix_.settings.recurrent > 0 ? e.count : 0;
        break;
      default:
        ++record.terminals;
        record.end = e.kind;
        record.error = e.error;
        if (record.outputs.size() == 1) {
          record.reasons[0] = e.reason;
        }
        break;
    }
  }

  void finish() {
    drain();
    if (step_ >= kMostSteps) {
      const PlanStatus status = scheduler_->status();
      fail("no end: request " + std::to_string(status.request.value) + " waits for " +
           to_string(status.cause));
      return;
    }
    require(scheduler_->check(), "check");
    report_.coverage.hit_tokens += static_cast<std::int64_t>(scheduler_->stats().prefix_hit_tokens);
    if (scheduler_->pool_stats().referenced_blocks != 0) {
      fail("blocks are left over");
    }
    for (auto& [id, record] : records_) {
      if (record.terminals != 1) {
        fail("request " + std::to_string(id) + " has no terminal event");
        continue;
      }
      count_end(record);
      for (std::size_t s = 0; s < record.outputs.size(); ++s) {
        compare(id, record, s);
      }
    }
  }

  void count_end(const Record& record) {
    MixCoverage& c = report_.coverage;
    c.finished += record.end == EventKind::Finished ? 1 : 0;
    c.cancelled += record.end == EventKind::Cancelled ? 1 : 0;
    c.expired += record.end == EventKind::Expired ? 1 : 0;
    c.failed += record.end == EventKind::Failed ? 1 : 0;
    const bool may_fail =
        std::any_of(mix_.incidents.begin(), mix_.incidents.end(), [](const Incident& i) {
          return i.kind <= IncidentKind::AbandonFatal || i.kind == IncidentKind::PoolSize;
        });
    const bool is_limited = mix_.settings.order == 5 && record.error == Errc::CanNeverFit;
    if (record.end == EventKind::Failed && !may_fail && !is_limited) {
      fail("request " + std::to_string(record.request->key) +
           " failed without a fault: " + to_string(record.error));
    }
    if (record.end == EventKind::Cancelled && record.request->cancel_at < 0) {
      fail("request " + std::to_string(record.request->key) + " was cancelled by nobody");
    }
    if (record.end == EventKind::Expired && record.request->start_within < 0 &&
        record.request->finish_within < 0) {
      fail("request " + std::to_string(record.request->key) + " had no deadline");
    }
  }

  /// The law: what finished has exactly the tokens that it gets alone; what was ended, a prefix.
  void compare(std::uint64_t id, const Record& record, std::size_t sample) {
    const MixRequest& r = *record.request;
    HostedRequest& hosted = host_.requests.at(id);
    const std::vector<Token>& actual = record.outputs[sample];
    tiny::Alone& alone = hosted.alone[sample];
    const std::string who = "request " + std::to_string(id) + " sample " + std::to_string(sample);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ++report_.coverage.tokens;
      if (actual[i] != alone.output(i)) {
        fail(who + ": output " + std::to_string(i) + " is " + std::to_string(actual[i]) +
             ", alone it is " + std::to_string(alone.output(i)));
        return;
      }
    }
    if (record.end != EventKind::Finished) {
      return;
    }
    FinishReason reason = r.open_ended != 0 ? FinishReason::Capacity : FinishReason::Length;
    std::int32_t expected = r.open_ended != 0
                                ? kv_limit_ + 1 - static_cast<std::int32_t>(hosted.prompt.size())
                                : outputs_of(r);
    const Token stop = stop_token(r, hosted);
    for (std::int32_t i = 0; i < expected; ++i) {
      if (stop >= 0 && alone.output(static_cast<std::size_t>(i)) == stop &&
          i + 1 >= min_outputs_of(r)) {
        expected = i + 1;
        reason = FinishReason::StopToken;
      } else if (i + 1 == r.host_stop_at && i + 1 < expected &&
                 !(i == 0 && record.outputs.size() > 1)) {
        expected = i + 1;
        reason = FinishReason::Host;
      }
    }
    // A pool that shrank below a request which has it to itself ends that one where it stands.
    const bool may_end_early =
        record.reasons[sample] == FinishReason::Capacity &&
        std::any_of(mix_.incidents.begin(), mix_.incidents.end(),
                    [](const Incident& i) { return i.kind == IncidentKind::PoolSize; });
    if (may_end_early && static_cast<std::int32_t>(actual.size()) <= expected) {
      return;
    }
    if (static_cast<std::int32_t>(actual.size()) != expected || record.reasons[sample] != reason) {
      fail(who + " finished with " + std::to_string(actual.size()) + " outputs and reason " +
           std::to_string(static_cast<int>(record.reasons[sample])) + ", expected " +
           std::to_string(expected) + " and " + std::to_string(static_cast<int>(reason)));
    }
    report_.coverage.stopped_by_token += reason == FinishReason::StopToken ? 1 : 0;
    report_.coverage.stopped_by_host += reason == FinishReason::Host ? 1 : 0;
    report_.coverage.ended_by_capacity += reason == FinishReason::Capacity ? 1 : 0;
  }

  const Mix& mix_;
  const tiny::Model& model_;
  MixPolicies policies_;
  MixHost host_;
  std::optional<AnyScheduler> scheduler_;
  std::vector<StepResultBuffer> buffers_;
  std::deque<InFlight> in_flight_;
  std::map<std::uint64_t, Record> records_;  // of accepted requests, by id
  std::vector<bool> is_open_;                // incidents that have not happened
  std::vector<std::string> errors_;
  MixReport report_;
  TimeNs now_{};
  std::int32_t step_ = 0;
  std::int32_t last_step_ = 0;
  std::int32_t kv_limit_ = 0;
};

using C = MixCoverage;
constexpr CoverageField kCoverage[] = {
    {"tokens", &C::tokens},
    {"finished", &C::finished},
    {"cancelled", &C::cancelled},
    {"expired", &C::expired},
    {"failed", &C::failed},
    {"refused", &C::refused},
    {"stopped by a token", &C::stopped_by_token},
    {"stopped by the host", &C::stopped_by_host},
    {"ended by capacity", &C::ended_by_capacity},
    {"plans", &C::plans},
    {"plans in parts", &C::split_plans},
    {"reads of the same plan", &C::reads_of_same_plan},
    {"cut prompts", &C::cut_prompts},
    {"preemptions", &C::preemptions},
    {"tokens from the cache", &C::hit_tokens},
    {"outputs from the cache", &C::outputs_from_cache},
    {"copies", &C::copies},
    {"prefixes that end inside a block", &C::prefix_copies},
    {"blocks loaded from host memory", &C::blocks_loaded},
    {"of these, blocks from a store", &C::blocks_fetched},
    {"blocks stored", &C::blocks_stored},
    {"fetches of wrong data", &C::store_corrupt, 500},
    {"store operations failed", &C::store_failures},
    {"store operations given up", &C::store_timeouts},
    {"blocks left by windows", &C::window_moves},
    {"hits without what windows left", &C::window_hits},
    {"copies in windows", &C::window_copies},
    {"drafts rejected in windows", &C::window_rejections},
    {"states zeroed", &C::states_zeroed},
    {"states copied", &C::state_copies},
    {"states from snapshots", &C::state_hits},
    {"preemptions beside further groups", &C::group_preemptions},
    {"future tokens", &C::future_tokens},
    {"drafts accepted", &C::drafts_accepted},
    {"drafts rejected", &C::drafts_rejected},
    {"expert moves", &C::expert_moves},
    {"chunks not run", &C::chunks_not_run},
    {"chunks partly run", &C::chunks_partly_run},
    {"chunks failed", &C::chunks_failed},
    {"throws", &C::throws},
    {"abandoned as not run", &C::abandoned_not_run},
    {"abandoned as lost", &C::abandoned_lost},
    {"abandoned as fatal", &C::abandoned_fatal},
    {"abandoned after they ran", &C::abandoned_after_run},
    {"plans beside older ones", &C::younger_plans},
    {"pool sizes", &C::pool_sizes},
    {"caches cleared", &C::clears},
};

constexpr PlantedError kPlanted[] = {
    {Planted::SlotOffByOne, "a token's KV goes to the slot beside its own"},
    {Planted::StaleBlock, "a block table keeps the block of the sequence before"},
    {Planted::MissingCopy, "a fork's copy is left out"},
    {Planted::LateCopy, "a fork's copy is done after the step has written"},
    {Planted::ShortCopy, "a fork's copy is one token short"},
    {Planted::LoadLeftOut, "a block is not loaded from host memory"},
    {Planted::LateSave, "a block goes to host memory after the step has run"},
    {Planted::WrongDraft, "drafts are accepted unseen"},
    {Planted::MaskTooShort, "a token does not attend to itself"},
    {Planted::MaskTooLong, "a token attends to the one behind it"},
    {Planted::PartsReversed, "micro-batches run in reverse order"},
    {Planted::ReaderBeforeWriter, "a block is read in an earlier micro-batch than its writer's"},
    {Planted::PendingKept, "blocks of a plan that did not run stay visible"},
    {Planted::ScopeDropped, "prefixes are shared between adapters"},
    {Planted::StaleFutureToken, "a future token is the one before it"},
    {Planted::SampleIgnored, "all samples are drawn alike"},
    {Planted::PositionsRestart, "positions begin at 0 in each chunk"},
    {Planted::FaultHidden, "a chunk that did not run is reported as done"},
    {Planted::PlanNotForgotten, "what an abandoned plan sampled is taken for valid"},
    {Planted::WindowFreedEarly, "a window's block is freed one step early"},
    {Planted::WindowCopyLeftOut, "a fork's copy is left out in a window"},
    {Planted::StateNotZeroed, "a state is not zeroed"},
    {Planted::StateCopyLeftOut, "a state is not copied"},
    {Planted::LateSnapshot, "a state is copied after the step has changed it"},
    {Planted::StateOfNotRun, "a chunk that did not run has changed its state"},
    {Planted::VoidStateKept, "a sequence goes on from a state that a failed chunk has changed"},
    {Planted::LostCopyKept, "a snapshot that an abandoned plan was to copy is taken for made"},
    {Planted::FetchEndsEarly, "a store says that a fetch has ended before it has"},
    {Planted::WrongBlockFetched, "a store delivers a block of another key"},
};

}  // namespace

std::span<const PlantedError> planted_errors() { return kPlanted; }
std::span<const CoverageField> coverage_fields() { return kCoverage; }

MixCoverage& MixCoverage::operator+=(const MixCoverage& other) {
  for (const CoverageField& field : kCoverage) {
    this->*field.member += other.*field.member;
  }
  return *this;
}

MixReport run_mix(const Mix& asked, Planted planted) {
  const Mix mix = compatible(asked, planted);
  if (mix.settings.store == 0) {
    return EngineRun(mix, planted, nullptr, kStart).run();
  }
  MixStore store(mix.settings, combine64(mix.seed, 4));
  MixReport before;
  TimeNs start = kStart;
  if (mix.settings.store_before != 0) {  // the same requests, without mishaps
    Mix quiet = mix;
    quiet.incidents.clear();
    EngineRun run(quiet, Planted::None, &store, start);
    before = run.run();
    start = run.now();
  }
  store.plant(planted);
  MixReport report = EngineRun(mix, planted, &store, start).run();
  report.coverage += before.coverage;
  report.errors.insert(report.errors.begin(), before.errors.begin(), before.errors.end());
  return report;
}

}  // namespace dynbatch::test
