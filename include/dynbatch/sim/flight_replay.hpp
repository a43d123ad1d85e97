// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// replay_log(): feeds the inputs of a flight log to a fresh scheduler and compares its plans.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/plan_digest.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// How a replay went. With FlightFault::None every answer of the scheduler was the recorded one.
struct FlightReplay {
  FlightFault fault = FlightFault::None;
  std::uint64_t offset = 0;     ///< Of the record at which it ended early.
  std::uint64_t num_plans = 0;  ///< Plans that came out equal.
  std::uint64_t digest = 0;     ///< Of all of them, chained.
  // The first difference:
  const char* what = "";       ///< "plan", "plan state", "step cost", "submit", "commit", ...
  std::uint64_t plan = 0;      ///< The recorded plan, or the last one before.
  std::uint64_t expected = 0;  ///< What the log says,
  std::uint64_t actual = 0;    ///< and what came out: digests, states or error codes.

  [[nodiscard]] bool is_equal() const noexcept { return fault == FlightFault::None; }
};

namespace detail {

/// One replay under way.
template <class SchedulerType>
class LogReplayer {
 public:
  LogReplayer(FlightLogReader& log, SchedulerType& scheduler) : log_(log), scheduler_(scheduler) {}

  FlightReplay run() {
    log_.rewind();
    check_scheduler();
    while (out_.fault == FlightFault::None && log_.next(record_)) {
      out_.offset = record_.offset;
      take();
    }
    if (out_.fault == FlightFault::None && log_.fault() != FlightFault::None) {
      out_.fault = log_.fault();
      out_.offset = log_.offset();
    }
    return out_;
  }

 private:
  void check_scheduler() {
    const FlightHeader& header = log_.header();
    const Capabilities& caps = scheduler_.capabilities();
    const PoolStats pool = scheduler_.pool_stats();
    if (log_.fault() != FlightFault::None) {
      return;
    }
    if (caps.max_tokens != header.max_tokens || caps.max_sequences != header.max_sequences ||
        pool.total_blocks != header.total_blocks || pool.block_size != header.block_size ||
        scheduler_.pool().shares_prefixes() != (header.shares_prefixes != 0)) {
      out_.fault = FlightFault::OtherScheduler;
    } else if (header.shares_prefixes != 0 && header.has_content == 0) {
      out_.fault = FlightFault::NoContent;
    }
  }

  void differ(const char* what, std::uint64_t expected, std::uint64_t actual) {
    out_.fault = FlightFault::Difference;
    out_.what = what;
    out_.plan = plan_;
    out_.expected = expected;
    out_.actual = actual;
  }
  void expect_ok(const char* what, const Status& status) {
    if (!status) {
      differ(what, 0, static_cast<std::uint64_t>(status.code));
    }
  }

  /// Events decide nothing, but slots and ids come back only when they are drained.
  void drain() {
    while (scheduler_.poll(events_) > 0) {
    }
  }

  void take() {
    switch (record_.kind) {
      case FlightKind::Request:
        submit();
        break;
      case FlightKind::Cancel:
        expect_ok("cancel", scheduler_.cancel({record_.cancel.request}));
        if (record_.cancel.is_in_poll != 0) {
          drain();  // else the next plan() takes it in
        }
        break;
      case FlightKind::Plan:
        plan();
        break;
      case FlightKind::Seal:
        seal();
        break;
      case FlightKind::Commit:
        commit();
        break;
      case FlightKind::Abandon:
        abandon();
        break;
      case FlightKind::ClearCache:
        if (scheduler_.clear_cache() != (record_.clear.is_cleared != 0)) {
          differ("clear_cache", record_.clear.is_cleared, record_.clear.is_cleared ^ 1U);
        }
        break;
      case FlightKind::Pin:
        pin();
        break;
      case FlightKind::Cost:
        // Published before the plan that follows, so it is compared there.
        cost_ = record_.cost;
        break;
      case FlightKind::Gap:
        out_.fault = FlightFault::Gap;
        break;
      default:
        break;  // milestones: consequences, not inputs
    }
  }

  void submit() {
    const Request request = to_request(record_, log_.header().has_content != 0, scratch_);
    expect_ok("submit", scheduler_.resubmit(request));
    if (record_.request.was_cancelled != 0) {
      expect_ok("cancel", scheduler_.cancel(request.id));
      drain();  // the cancellation is seen before the request, as it was
    }
  }

  void pin() {
    const FlightPin& from = record_.pin;
    Prompt prompt;
    prompt.kind = from.digest_unit != 0 ? PromptKind::Digests : PromptKind::Tokens;
    prompt.tokens = record_.tokens;
    prompt.digests = record_.digests;
    prompt.length = from.tokens;
    prompt.digest_unit = from.digest_unit;
    to_media(record_, scratch_);
    const bool is_pinned =
        scheduler_.pin(prompt, scope_of(from), from.tokens, {from.until}, scratch_.media).is_ok();
    if (is_pinned != (from.is_pinned != 0)) {
      differ("pin", from.is_pinned, is_pinned ? 1 : 0);
    }
  }

  void plan() {
    const FlightPlan& expected = record_.plan;
    if (expected.pause == 0) {
      scheduler_.resume();
    } else {
      scheduler_.pause(expected.pause == 1 ? PauseMode::New : PauseMode::All);
    }
    if (expected.is_closed != 0) {
      scheduler_.close();
    }
    plan_ = expected.plan != 0 ? expected.plan : plan_;
    const StepPlan* plan = scheduler_.plan({expected.now});
    const StepCost cost = scheduler_.sizer().cost();
    const PlanStatus status = scheduler_.status();
    const std::uint64_t digest = plan == nullptr ? 0 : digest_of(*plan);
    if (cost.version != cost_.version || cost.fixed_ns != cost_.fixed_ns ||
        cost.prefill_token_ps != cost_.prefill_token_ps ||
        cost.decode_row_ps != cost_.decode_row_ps || cost.kv_token_ps != cost_.kv_token_ps ||
        cost.attention_pair_fs != cost_.attention_pair_fs) {
      differ("step cost", cost_.version, cost.version);
    } else if (static_cast<std::uint64_t>(status.state) != expected.state) {
      differ("plan state", expected.state, static_cast<std::uint64_t>(status.state));
    } else if (plan == nullptr && (static_cast<std::uint8_t>(status.cause) != expected.cause ||
                                   status.request.value != expected.request)) {
      differ("blocked request", expected.request, status.request.value);
    } else if (digest != expected.digest) {
      differ("plan", expected.digest, digest);
    } else if (plan != nullptr) {
      in_flight_.push_back(plan);
      ++out_.num_plans;
      out_.digest = combine64(out_.digest, digest);
    }
    drain();
  }

  void seal() {
    ranks_.clear();
    for (const FlightRank& from : record_.ranks) {
      RankSummary rank;
      rank.num_tokens = from.num_tokens;
      rank.prefill_tokens = from.prefill_tokens;
      rank.attention_work = from.attention_work;
      rank.num_rows = from.num_rows;
      rank.num_chunks = from.num_chunks;
      rank.wants_split = from.wants_split != 0;
      ranks_.push_back(rank);
    }
    if (in_flight_.empty()) {
      differ("seal", record_.seal.plan, 0);
      return;
    }
    expect_ok("seal", scheduler_.seal(*in_flight_.back(), ranks_));
    const std::uint64_t digest = digest_of(*in_flight_.back());
    if (out_.fault == FlightFault::None && digest != record_.seal.digest) {
      differ("sealed plan", record_.seal.digest, digest);
    }
    out_.digest = combine64(out_.digest, digest);
  }

  void commit() {
    if (in_flight_.empty() || in_flight_.front()->id.value != record_.commit.plan) {
      differ("commit", record_.commit.plan, 0);
      return;
    }
    const StepPlan& plan = *in_flight_.front();
    if (log_.header().has_content == 0) {
      restore_drafts(plan);
    }
    outcomes_.clear();
    for (const FlightOutcome& from : record_.outcomes) {
      outcomes_.push_back({static_cast<OutcomeKind>(from.kind),
                           static_cast<FinishReason>(from.reason), from.tokens});
    }
    continuations_.clear();
    for (const FlightContinuation& from : record_.continuations) {
      continuations_.push_back({{from.parent_slot, from.parent_generation}, from.token});
    }
    StepResult result;
    result.outcomes = outcomes_;
    result.continuations = continuations_;
    result.token_begin = record_.token_begin;
    result.tokens = record_.tokens;
    result.draft_begin = record_.draft_begin;
    result.drafts = record_.drafts;
    result.measured = {record_.commit.measured};
    expect_ok("commit", scheduler_.commit(plan, result, {record_.commit.now}));
    in_flight_.erase(in_flight_.begin());
    drain();
  }

  /// Accepted drafts equal the drafts of the plan, which a log without content may have hidden in
  /// another way.
  void restore_drafts(const StepPlan& plan) {
    const std::vector<std::int32_t>& begin = record_.token_begin;
    for (const Chunk& chunk : plan.chunks) {
      const auto s = static_cast<std::size_t>(chunk.first_sample);
      if (chunk.kind != ChunkKind::Decode || chunk.num_samples != 1 || s + 1 >= begin.size()) {
        continue;
      }
      for (std::int32_t t = begin[s]; t + 1 < begin[s + 1]; ++t) {
        const auto from = static_cast<std::size_t>(chunk.first_token) + 1 +
                          static_cast<std::size_t>(t - begin[s]);
        if (t >= 0 && static_cast<std::size_t>(t) < record_.tokens.size() &&
            from < plan.tokens.size()) {
          record_.tokens[static_cast<std::size_t>(t)] = plan.tokens[from];
        }
      }
    }
  }

  void abandon() {
    std::size_t i = 0;
    while (i < in_flight_.size() && in_flight_[i]->id.value != record_.abandon.plan) {
      ++i;
    }
    if (i == in_flight_.size()) {
      differ("abandon", record_.abandon.plan, 0);
      return;
    }
    expect_ok("abandon",
              scheduler_.abandon(*in_flight_[i], static_cast<AbandonReason>(record_.abandon.why),
                                 {record_.abandon.now}));
    in_flight_.resize(i);
    drain();
  }

  [[nodiscard]] std::uint64_t digest_of(const StepPlan& plan) const {
    return log_.header().has_content != 0 ? plan_digest(plan) : decision_digest(plan);
  }

  FlightLogReader& log_;
  SchedulerType& scheduler_;
  FlightRecord record_;
  FlightReplay out_;
  FlightCost cost_{};
  FlightRequestScratch scratch_;
  std::vector<const StepPlan*> in_flight_;
  std::vector<Outcome> outcomes_;
  std::vector<Continuation> continuations_;
  std::vector<RankSummary> ranks_;
  std::array<Event, 64> events_{};
  std::uint64_t plan_ = 0;
};

}  // namespace detail

/// replay_log() with the bundle that the log's label names, over a BlockPool, as replay_policy()
/// records them. The Status says why there is no such scheduler; else `out` says how it went.
[[nodiscard]] DYNBATCH_API Status verify_flight_log(FlightLogReader& log, FlightReplay& out);

/// Feeds a fresh scheduler with the inputs of `log` and compares every answer with the recorded
/// one; ends at the first difference, gap or fault. The scheduler must have been made as the log's
/// header says (FlightLogReader::config(), capabilities()) with the same policies.
template <class SchedulerType>
[[nodiscard]] FlightReplay replay_log(FlightLogReader& log, SchedulerType& scheduler) {
  return detail::LogReplayer<SchedulerType>(log, scheduler).run();
}

}  // namespace dynbatch::inline DYNBATCH_ABI
