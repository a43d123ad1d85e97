// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The real scheduler and the naive one, driven through the same operations; every answer is
/// compared.
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/batch/unbounded_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/microbatch/no_split.hpp>
#include <dynbatch/scheduler/scheduler.hpp>

#include "naive_operations.hpp"
#include "naive_scheduler.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

/// PriorityAging that never displaces, and does not offer to.
class WaitingPriority : public RuledAdmission {
 public:
  using Config = PriorityAging::Config;
  explicit WaitingPriority(const Config& config) : RuledAdmission(config.rules), order_(config) {}
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& r) noexcept { return order_.key(r); }
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return order_.victim(candidates);
  }

 private:
  PriorityAging order_;
};

/// The two schedulers side by side.
template <class Order>
class Pair {
 public:
  using Real = dynbatch::Scheduler<AnyBatchSizer, NoSplit, NullBalancer, BlockPool<>, Order>;

  Pair(const Setup& setup, const Mix& mix) : setup_(setup), mix_(mix), naive_(setup) {
    static_.emplace(StaticSizer::Config{.batch = std::max(1, setup.sequences),
                                        .max_tokens = setup.sizer == 1 ? setup.step_tokens : 0});
    budget_.emplace(TokenBudgetSizer::Config{
        .budget = setup.step_tokens, .max_sequences = setup.sizer == 2 ? setup.sequences : 0});
    AnyBatchSizer sizers[] = {AnyBatchSizer(unbounded_), AnyBatchSizer(*static_),
                              AnyBatchSizer(*budget_)};
    Capabilities host;
    host.max_tokens = setup.host_tokens;
    host.max_sequences = setup.rows;
    host.in_order = setup.in_order;
    host.future_tokens = setup.future_tokens;
    host.partial_copy = setup.partial;
    SchedulerConfig config;
    config.max_live_requests = setup.max_live;
    config.max_context_tokens = setup.max_context;
    config.max_plans_in_flight = setup.plans;
    config.max_draft_tokens = setup.drafts;
    config.max_retries = setup.retries;
    config.max_media_spans = setup.media_spans;
    config.resource_caps[0] = setup.resource;
    auto made = Real::make(config, host, sizers[setup.sizer], NoSplit{}, NullBalancer{},
                           BlockPool<>({.num_blocks = setup.blocks,
                                        .block_size = setup.block_size,
                                        .prefix_caching = setup.caching,
                                        .min_partial_tokens = setup.min_partial}),
                           order(setup));
    if (!made) {
      fail("make: " + text(made.status()));
    } else {
      real_.emplace(std::move(made).value());
    }
  }

  /// Up to the first difference; empty = none.
  std::string run(const std::vector<Operation>& operations) {
    for (const Operation& op : operations) {
      if (!error_.empty()) {
        return error_;
      }
      ++done_;
      operation(op);
    }
    finish();
    return error_;
  }

  [[nodiscard]] std::int64_t done() const { return done_; }
  /// Sequences whose prefix ended inside a block.
  [[nodiscard]] std::int64_t num_starts() const { return num_starts_; }
  [[nodiscard]] SchedulerStats stats() const { return naive_.stats(); }
  [[nodiscard]] const std::vector<std::string>& story() const { return story_; }
  /// Whether story() is told.
  bool tells = false;

 private:
  static Order order(const Setup& setup) {
    if constexpr (!std::is_same_v<Order, FcfsAdmission>) {
      return Order({.rules = setup.rules,
                    .aging = setup.aging,
                    .displace = setup.displaces,
                    .max_displacements = setup.max_displacements});
    } else {
      return FcfsAdmission(setup.rules);
    }
  }
  static std::string text(const Status& status) {
    char buffer[256];
    format_status(status, buffer, sizeof(buffer));
    return buffer;
  }
  void fail(const std::string& what) {
    if (error_.empty()) {
      error_ = what + ", at operation " + std::to_string(done_);
    }
  }
  template <class A, class B>
  void same(const char* what, const A& real, const B& naive) {
    if (error_.empty() && !(real == static_cast<A>(naive))) {
      std::ostringstream out;
      out << what << ": real " << +real << ", naive " << +static_cast<A>(naive);
      fail(out.str());
    }
  }
  void tell(const std::string& line) {
    if (tells) {
      story_.push_back(line);
    }
  }

  void operation(const Operation& op) {
    now_.ns += op.advance;
    switch (op.kind) {
      case Kind::Submit:
        submit(op);
        break;
      case Kind::Cancel:
        cancel(op);
        break;
      case Kind::Plan:
        plan();
        break;
      case Kind::Commit:
        commit(op.seed, mix_.has_faults);
        break;
      case Kind::Abandon:
        abandon(op);
        break;
      case Kind::Poll:
        poll(op.seed % 2 == 0 ? kAll : op.seed / 2 % 7 + 1);
        break;
      case Kind::Pause: {
        const bool is_new = op.seed % 2 == 0;
        tell(is_new ? "pause new" : "pause all");
        real_->pause(is_new ? PauseMode::New : PauseMode::All);
        naive_.pause(is_new ? 1 : 2);
        break;
      }
      case Kind::Resume:
        resume();
        break;
      case Kind::Clear:
        tell("clear cache");
        same("clear_cache", real_->clear_cache(), naive_.clear_cache());
        break;
    }
    compare();
  }

  void submit(const Operation& op) {
    Submission s = draw_request(setup_, mix_, op, now_);
    if (tells) {
      const Request& q = s.request;
      std::ostringstream out;
      out << "submit tag " << op.tag << " id " << q.id.value << " prompt " << s.length()
          << (q.prompt.kind == PromptKind::Digests ? " digests" : "") << " max_new "
          << q.max_new_tokens << " min_new " << q.min_new_tokens << " stops " << s.stop.size()
          << " samples " << q.num_samples << " priority " << q.priority << " arrival "
          << q.arrival.ns << " salt " << (q.scope.has_tenant_salt ? 1 : 0)
          << (q.no_prefix_read ? " no_read" : "") << (q.sync_decode ? " sync" : "")
          << (q.atomic_prefill ? " atomic" : "") << (s.needs.empty() ? "" : " resource")
          << (s.media.empty() ? "" : " media");
      if (q.start_by < kNever) {
        out << " start_by " << q.start_by.ns;
      }
      if (q.finish_by < kNever) {
        out << " finish_by " << q.finish_by.ns;
      }
      tell(out.str());
    }
    same("submit", static_cast<int>(real_->submit(s.view()).code),
         static_cast<int>(naive_.submit(s)));
  }

  void cancel(const Operation& op) {
    const std::uint64_t id = op.seed % 32;
    tell("cancel id " + std::to_string(id));
    same("cancel", static_cast<int>(real_->cancel(RequestId{id}).code),
         static_cast<int>(naive_.cancel(id)));
  }

  void resume() {
    tell("resume");
    real_->resume();
    naive_.pause(0);
  }

  void plan() {
    const StepPlan* real = real_->plan(now_);
    const Plan* naive = naive_.plan(now_);
    const PlanStatus status = real_->status();
    if (tells) {
      std::ostringstream out;
      out << "plan at " << now_.ns << ":";
      for (std::size_t c = 0; real != nullptr && c < real->chunks.size(); ++c) {
        out << " {" << describe(real->chunks[c]) << "}";
      }
      if (real == nullptr) {
        out << " none, " << to_string(status.cause) << " " << status.request.value;
      }
      out << "; naive:";
      for (std::size_t c = 0; naive != nullptr && c < naive->pieces.size(); ++c) {
        out << " {" << describe(naive->pieces[c]) << "}";
      }
      const SchedulerStats stats = real_->stats();
      const PoolStats pool = real_->pool_stats();
      out << "; running " << stats.running << ", waiting " << stats.waiting << ", preemptions "
          << stats.preemptions << ", free " << pool.free_blocks << ", cached "
          << pool.cached_blocks;
      tell(out.str());
    }
    same("plan: state", static_cast<int>(status.state), static_cast<int>(naive_.status().state));
    same("plan: cause", static_cast<int>(status.cause), static_cast<int>(naive_.status().cause));
    same("plan: request", status.request.value, naive_.status().request.value);
    same("plan: is there one", real != nullptr, naive != nullptr);
    if (real == nullptr || naive == nullptr) {
      return;
    }
    in_flight_.push_back(real);
    same("plan: id", real->id.value, naive->id);
    same("plan: padded rows", real->padded.rows, naive->padded.rows);
    same("plan: padded tokens", real->padded.tokens, naive->padded.tokens);
    same("plan: padded context", real->padded.context_per_row, naive->padded.context_per_row);
    for (std::size_t c = 0; c < std::min(real->chunks.size(), naive->pieces.size()); ++c) {
      compare_chunk(*real, real->chunks[c], naive->pieces[c]);
    }
    same("plan: chunks", real->chunks.size(), naive->pieces.size());
    compare_copies(*real, *naive);
  }

  /// Rows that begin with the front of a block are told that block, and what to copy to it.
  void compare_copies(const StepPlan& real, const Plan& naive) {
    const GroupPlan& group = real.groups[0];
    std::size_t copies = naive.copies.size();
    for (const SeatRef& seat : naive.starts) {
      if (std::none_of(naive.pieces.begin(), naive.pieces.end(),
                       [&](const Piece& piece) { return piece.seat == seat; })) {
        continue;  // it gave way in the same step
      }
      ++copies;
      ++num_starts_;
      const std::int64_t index = seat->copy_first / setup_.block_size;
      std::int64_t copied = 0;
      for (const BlockDelta& delta : group.deltas) {
        for (const BlockCopy& copy : group.copies) {
          const bool is_own = delta.row.value == seat->row && delta.index == index;
          copied += is_own && copy.target == delta.block ? copy.num_tokens : 0;
        }
      }
      same("plan: tokens copied", copied, seat->copied);
    }
    same("plan: copies", group.copies.size(), copies);
  }

  static std::string describe(const Chunk& c) {
    return std::to_string(c.user_data) + "." + std::to_string(c.sample) +
           (c.kind == ChunkKind::Prefill ? " prefill " : " decode ") +
           std::to_string(c.first_position) + "+" + std::to_string(c.num_tokens) + " samples " +
           std::to_string(c.num_samples) + " row " + std::to_string(c.row.value);
  }
  static std::string describe(const Piece& p) {
    return std::to_string(p.seat->sequence->query->request().user_data) + "." +
           std::to_string(p.sample) + (p.kind == ChunkKind::Prefill ? " prefill " : " decode ") +
           std::to_string(p.first) + "+" + std::to_string(p.size()) + " samples " +
           std::to_string(p.samples) + " row " + std::to_string(p.seat->row);
  }

  void compare_chunk(const StepPlan& plan, const Chunk& real, const Piece& naive) {
    const Query& query = *naive.seat->sequence->query;
    if (real.request.value != naive.request || real.user_data != query.request().user_data ||
        real.sample != naive.sample || real.kind != naive.kind ||
        real.first_position != naive.first || real.num_tokens != naive.size() ||
        real.num_samples != naive.samples || real.row.value != naive.seat->row ||
        real.context_length != naive.end()) {
      fail("plan: chunk, real {" + describe(real) + "}, naive {" + describe(naive) + "}");
      return;
    }
    for (std::int32_t i = 0; i < real.num_tokens; ++i) {
      same("plan: token", plan.tokens[static_cast<std::size_t>(real.first_token + i)],
           naive.tokens[static_cast<std::size_t>(i)]);
    }
  }

  /// What the executor does of the oldest plan, and its commit.
  void commit(std::uint64_t seed, bool has_faults) {
    if (in_flight_.empty()) {
      return;
    }
    SplitMix64 rng(seed);
    const bool is_faulty = has_faults && rng.one_in(4);
    const bool proposes = mix_.has_drafts && !rng.one_in(4);
    std::vector<Result> results;
    std::string line = "commit:";
    for (const Piece& piece : naive_.plans().front().pieces) {
      const std::uint64_t tag = piece.seat->sequence->query->request().user_data;
      SplitMix64 own(seed ^ mix64(tag * 64 + static_cast<std::uint64_t>(piece.sample)));
      results.push_back(execute(piece, own, is_faulty, proposes));
      if (tells) {
        line += " " + std::to_string(static_cast<int>(results.back().outcome.kind)) + "(" +
                std::to_string(results.back().outcome.tokens) + ")";
        for (const std::vector<Token>& tokens : results.back().samples) {
          line += "/" + std::to_string(tokens.size());
        }
        line += "+" + std::to_string(results.back().drafts.size());
      }
    }
    tell(line);
    settle(results, rng.one_in(2), proposes);
  }

  Result execute(const Piece& piece, SplitMix64& rng, bool is_faulty, bool proposes) {
    Result result;
    const Sequence& s = *piece.seat->sequence;
    const std::uint64_t tag = s.query->request().user_data;
    // What a chunk reads that was rolled back behind it is garbage.
    const bool is_garbage = piece.is_void || piece.seat->phase == Phase::Draining;
    if (is_faulty && rng.one_in(3)) {
      const std::int64_t draw = rng.between(0, piece.size() > 1 ? 3 : 2);
      result.outcome.kind = draw == 0   ? OutcomeKind::NotRun
                            : draw == 1 ? OutcomeKind::Failed
                            : draw == 2 ? OutcomeKind::Stop
                                        : OutcomeKind::Partial;
      if (draw == 3) {
        result.outcome.tokens = static_cast<std::int32_t>(rng.between(0, piece.size() - 1));
      }
    }
    const bool has_run =
        result.outcome.kind == OutcomeKind::Ok || result.outcome.kind == OutcomeKind::Stop;
    for (std::int32_t i = 0; i < piece.samples; ++i) {
      std::vector<Token> tokens;
      const std::int32_t sample =
          piece.kind == ChunkKind::Prefill && piece.samples > 1 ? i : piece.sample;
      const std::int64_t first =
          (piece.kind == ChunkKind::Prefill ? piece.end() : piece.first + 1) -
          s.query->prompt_length;
      if (has_run && is_garbage) {
        tokens.push_back(777777);
      } else if (has_run) {
        tokens.push_back(toy_token(tag, first, sample));
        // Each draft that equals the token sampled before it stands.
        while (piece.kind == ChunkKind::Decode &&
               static_cast<std::int64_t>(tokens.size()) < piece.size() &&
               piece.tokens[tokens.size()] == tokens.back()) {
          tokens.push_back(
              toy_token(tag, first + static_cast<std::int64_t>(tokens.size()), sample));
        }
      }
      if (i == 0 && proposes) {
        const std::int64_t next = first + static_cast<std::int64_t>(tokens.size());
        for (std::int64_t d = rng.between(0, 6); d > 0; --d) {
          const auto index = next + static_cast<std::int64_t>(result.drafts.size());
          result.drafts.push_back(rng.one_in(3) ? 7 : toy_token(tag, index, sample));
        }
      }
      result.samples.push_back(std::move(tokens));
    }
    if (result.outcome.kind == OutcomeKind::Stop) {
      const auto produced =
          static_cast<std::int64_t>(result.samples.empty() ? 0 : result.samples[0].size());
      result.outcome.tokens = static_cast<std::int32_t>(rng.between(0, produced));
      result.outcome.reason = rng.one_in(2) ? FinishReason::None : FinishReason::StopToken;
    }
    return result;
  }

  /// Hands the results to both, in the short form where that says it all and `is_short` asks for
  /// it.
  void settle(const std::vector<Result>& results, bool is_short, bool proposes) {
    std::vector<Outcome> outcomes;
    std::vector<std::int32_t> token_begin{0};
    std::vector<Token> tokens;
    std::vector<std::int32_t> draft_begin{0};
    std::vector<Token> drafts;
    bool is_plain = true;
    for (const Result& result : results) {
      outcomes.push_back(result.outcome);
      is_plain = is_plain && result.outcome.kind == OutcomeKind::Ok;
      for (std::size_t i = 0; i < result.samples.size(); ++i) {
        is_plain = is_plain && result.samples[i].size() == 1;
        tokens.insert(tokens.end(), result.samples[i].begin(), result.samples[i].end());
        token_begin.push_back(static_cast<std::int32_t>(tokens.size()));
        if (i == 0) {
          drafts.insert(drafts.end(), result.drafts.begin(), result.drafts.end());
        }
        draft_begin.push_back(static_cast<std::int32_t>(drafts.size()));
      }
    }
    StepResult result;
    result.tokens = tokens;
    if (!is_plain || !is_short) {
      result.outcomes = outcomes;
      result.token_begin = token_begin;
    }
    if (proposes) {
      result.draft_begin = draft_begin;
      result.drafts = drafts;
    }
    result.measured = microseconds(700);
    const Status status = real_->commit(*in_flight_.front(), result, now_);
    if (!status) {
      fail("commit: " + text(status));
      return;
    }
    in_flight_.pop_front();
    naive_.commit(results, now_);
  }

  void abandon(const Operation& op) {
    if (in_flight_.empty()) {
      return;
    }
    const std::size_t first = op.seed % in_flight_.size();
    const std::uint64_t draw = op.seed / 16 % 8;
    const auto why = draw == 0  ? AbandonReason::Fatal
                     : draw < 4 ? AbandonReason::Lost
                                : AbandonReason::NotRun;
    tell("abandon plan " + std::to_string(in_flight_[first]->id.value) + " why " +
         std::to_string(static_cast<int>(why)));
    const Status status = real_->abandon(*in_flight_[first], why, now_);
    if (!status) {
      fail("abandon: " + text(status));
    }
    in_flight_.resize(first);
    naive_.abandon(first, why, now_);
  }

  /// Everything that there is to report, `size` events at a time. A call also frees the slots of
  /// what an earlier one has reported: after a small buffer one more call does so for all.
  void poll(std::size_t size) {
    tell("poll");
    const int times = size < kAll ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      naive_.poll();
      std::vector<Event> buffer(size);
      std::size_t n = 0;
      do {
        n = real_->poll(buffer);
        for (std::size_t e = 0; e < n; ++e) {
          compare_event(buffer[e]);
          events_.take_one(buffer[e]);
        }
      } while (n == size);
    }
    for (const std::string& error : events_.errors) {
      fail("events: " + error);
    }
    for (const auto& query : naive_.queries()) {
      const std::uint64_t tag = query->request().user_data;
      if (query->is_taken_in && seen_.count(tag) == 0) {
        compare_events(*query, events_.records[tag]);
        if (query->is_over) {
          seen_.insert(tag);
          events_.records.erase(tag);
        }
      }
    }
  }

  /// A preemption is told behind the outputs that came before it, an end with its time.
  void compare_event(const Event& event) {
    for (const auto& query : naive_.queries()) {
      if (query->request().user_data != event.user_data) {
        continue;
      }
      const Sequence& s = *query->samples[static_cast<std::size_t>(event.sample)];
      if (event.kind == EventKind::Preempted) {
        const ToyRecord& record = events_.records[event.user_data];
        const auto other = record.others.find(event.sample);
        const std::size_t told = event.sample == 0              ? record.tokens.size()
                                 : other == record.others.end() ? 0
                                                                : other->second.size();
        same("event: outputs told before a preemption", told, s.preempted_at);
      } else if (event.kind == EventKind::Accepted) {
        same("event: time of acceptance", event.time.ns, query->accepted_at.ns);
      } else if (is_terminal(event.kind)) {
        same("event: time of the end", event.time.ns, query->ended_at.ns);
      }
    }
  }

  void compare_events(const Query& query, const ToyRecord& record) {
    const std::string who = "events of " + std::to_string(query.request().user_data) + ": ";
    same((who + "terminal").c_str(), record.terminals, query.is_over ? 1 : 0);
    std::int64_t preemptions = 0;
    for (const auto& sample : query.samples) {
      preemptions += sample->preemptions;
      static const std::vector<Token> kNone;
      const auto other = record.others.find(sample->sample);
      const std::vector<Token>& tokens = sample->sample == 0            ? record.tokens
                                         : other == record.others.end() ? kNone
                                                                        : other->second;
      same((who + "outputs").c_str(), tokens.size(), sample->outputs.size());
      if (tokens != sample->outputs) {
        fail(who + "a token differs");
      }
      if (query.samples.size() > 1) {
        const auto end = record.sample_ends.find(sample->sample);
        same((who + "reason of a sample").c_str(),
             static_cast<int>(end == record.sample_ends.end() ? FinishReason::None : end->second),
             static_cast<int>(sample->reason));
      }
    }
    same((who + "preemptions").c_str(), record.preemptions, preemptions);
    if (query.is_over) {
      same((who + "kind").c_str(), static_cast<int>(record.terminal), static_cast<int>(query.end));
      same((who + "reason").c_str(), static_cast<int>(record.reason),
           static_cast<int>(query.reason));
      same((who + "error").c_str(), static_cast<int>(record.error), static_cast<int>(query.error));
    }
  }

  void compare() {
    if (!error_.empty()) {
      return;
    }
    if (const Status status = real_->check(); !status) {
      fail("check: " + text(status));
    }
    const SchedulerStats real = real_->stats();
    const SchedulerStats naive = naive_.stats();
    same("stats: submitted", real.submitted, naive.submitted);
    same("stats: rejected", real.rejected, naive.rejected);
    same("stats: live", real.live, naive.live);
    same("stats: finished", real.finished, naive.finished);
    same("stats: cancelled", real.cancelled, naive.cancelled);
    same("stats: expired", real.expired, naive.expired);
    same("stats: failed", real.failed, naive.failed);
    same("stats: waiting", real.waiting, naive.waiting);
    same("stats: running", real.running, naive.running);
    same("stats: queued_tokens", real.queued_tokens, naive.queued_tokens);
    same("stats: plans", real.plans, naive.plans);
    same("stats: plans_in_flight", real.plans_in_flight, naive.plans_in_flight);
    same("stats: preemptions", real.preemptions, naive.preemptions);
    same("stats: prefill_tokens", real.prefill_tokens, naive.prefill_tokens);
    same("stats: decode_tokens", real.decode_tokens, naive.decode_tokens);
    same("stats: accepted", real.accepted_draft_tokens, naive.accepted_draft_tokens);
    same("stats: output_tokens", real.output_tokens, naive.output_tokens);
    same("stats: prefix_hit", real.prefix_hit_tokens, naive.prefix_hit_tokens);
    same("stats: prefix_query", real.prefix_query_tokens, naive.prefix_query_tokens);
    same("stats: recomputed_tokens", real.recomputed_tokens, naive.recomputed_tokens);
    same("stats: draft_tokens", real.draft_tokens, naive.draft_tokens);
    const PoolStats pool = real_->pool_stats();
    const PoolStats naive_pool = naive_.pool_stats();
    same("pool: free", pool.free_blocks, naive_pool.free_blocks);
    same("pool: cached", pool.cached_blocks, naive_pool.cached_blocks);
    same("pool: referenced", pool.referenced_blocks, naive_pool.referenced_blocks);
    same("pool: evictions", pool.evictions, naive_pool.evictions);
  }

  /// To the end of all requests, without faults.
  void finish() {
    resume();
    real_->close();
    naive_.close();
    for (int i = 0; i < 3000 && error_.empty() && naive_.stats().live > 0; ++i) {
      now_.ns += 100'000;
      done_ += 2;
      plan();
      compare();
      if (static_cast<std::int32_t>(in_flight_.size()) == setup_.plans ||
          real_->status().state != PlanState::Planned) {
        commit(static_cast<std::uint64_t>(i), false);
        compare();
      }
    }
    while (!in_flight_.empty() && error_.empty()) {
      commit(1, false);
      compare();
    }
    if (error_.empty() && naive_.stats().live > 0) {
      fail("requests are left at the end");
    }
    poll(kAll);
    plan();
    compare();
  }

  static constexpr std::size_t kAll = 4096;  // events at once

  Setup setup_;
  Mix mix_;
  Scheduler naive_;
  UnboundedSizer unbounded_;
  std::optional<StaticSizer> static_;
  std::optional<TokenBudgetSizer> budget_;
  std::optional<Real> real_;
  std::deque<const StepPlan*> in_flight_;
  ToyEvents events_;
  std::set<std::uint64_t> seen_;  // tags whose end was compared
  TimeNs now_{1'000'000'000};
  std::int64_t done_ = 0;
  std::int64_t num_starts_ = 0;
  std::string error_;
  std::vector<std::string> story_;
};

}  // namespace dynbatch::test::naive
