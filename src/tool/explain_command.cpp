// SPDX-License-Identifier: Apache-2.0
#include "tool/explain_command.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include "tool/tool.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

// 1234567 -> "1,234,567".
template <class Int>
std::string grouped(Int value) {
  const std::string digits = fmt::format("{}", value);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) {
      text.push_back(',');
    }
    text.push_back(digits[i]);
  }
  return text;
}

template <class Int>
std::string counted(Int n, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(n), noun, n == 1 ? "" : "s");
}

double ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// What somebody waited for, in words. One text a cause, so that equal ones can be counted.
std::string reason_of(std::uint8_t cause, const FlightPlan& plan) {
  switch (static_cast<WaitCause>(cause)) {
    case WaitCause::Memory:
      return "memory: not enough free KV blocks";
    case WaitCause::Sequences:
      switch (static_cast<SizerBound>(plan.bound)) {
        case SizerBound::Cap:
          return "sequences: a configured limit, or the executor's rows";
        case SizerBound::Memory:
          return "sequences: the sizer's memory bound";
        case SizerBound::Latency:
          return "sequences: the sizer's latency bound";
        case SizerBound::Queue:
          return "sequences: the sizer's queue term";
        default:
          return "sequences: the limit of running sequences, or of prompts in one step";
      }
    case WaitCause::Budget:
      return "budget: the step's tokens were used up";
    case WaitCause::Dependency:
      return "dependency: a started prompt computes the block that comes next";
    case WaitCause::Resource:
      return "resource: a named resource was used up";
    case WaitCause::InFlight:
      return "in flight: a plan that was not settled";
    case WaitCause::Composition:
      return "composition: the policy ran something else first";
    case WaitCause::Paused:
      return "paused: admission was paused";
    case WaitCause::Quota:
      return "quota: the admission policy's own limit, such as a tenant's";
    case WaitCause::Loading:
      return "loading: an external store was asked for its prefix";
    default:
      return to_string(static_cast<WaitCause>(cause));
  }
}

std::string_view short_reason(std::string_view reason) {
  return reason.substr(0, reason.find(':'));
}

std::string end_of(const FlightEnded& end) {
  constexpr std::array<const char*, 5> kReasons = {"no reason", "stop token", "length", "capacity",
                                                   "stopped by the host"};
  switch (static_cast<EventKind>(end.kind)) {
    case EventKind::Finished:
      return fmt::format("finished ({})",
                         end.reason < kReasons.size() ? kReasons[end.reason] : "unknown");
    case EventKind::Cancelled:
      return "cancelled";
    case EventKind::Expired:
      return "expired: a deadline passed";
    default:
      return fmt::format("failed: {}", to_string(static_cast<Errc>(end.error)));
  }
}

// Did the plan look at the queue at all? Else nobody waited for anything but the next call.
bool was_composed(const FlightPlan& plan) { return plan.max_tokens > 0; }

// Reasons for waiting and how many plans each of them held.
class Reasons {
 public:
  void add(const std::string& reason, std::int64_t n = 1) { counts_[reason] += n; }
  [[nodiscard]] bool empty() const { return counts_.empty(); }
  void clear() { counts_.clear(); }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [reason, count] : counts_) {
      sum += count;
    }
    return sum;
  }
  // Most frequent first.
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> sorted() const {
    std::vector<std::pair<std::string, std::int64_t>> out(counts_.begin(), counts_.end());
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return out;
  }

 private:
  std::map<std::string, std::int64_t> counts_;
};

// Why request `id`, which stands in the queue, was not admitted by `plan`.
std::string why_waiting(std::uint64_t id, const FlightRecord& record) {
  const FlightWait* head = nullptr;
  for (const FlightWait& wait : record.waits) {
    if (wait.is_running != 0) {
      continue;
    }
    if (wait.request == id) {
      return reason_of(wait.cause, record.plan);
    }
    head = head == nullptr ? &wait : head;
  }
  if (static_cast<PlanState>(record.plan.state) == PlanState::Paused) {
    return reason_of(static_cast<std::uint8_t>(WaitCause::Paused), record.plan);
  }
  if (static_cast<PlanState>(record.plan.state) == PlanState::NotBefore) {
    return "time: the sizer asked for a later start";
  }
  if (head == nullptr) {
    return "order: others came first";
  }
  return fmt::format("order: behind requests that waited for {}",
                     short_reason(reason_of(head->cause, record.plan)));
}

// The story of one request, line by line.
class Story {
 public:
  Story(std::uint64_t id, std::int64_t zero) : id_(id), zero_(zero) {}

  void take(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::Request:
        if (record.request.id == id_) {
          begin(record.request);
        }
        break;
      case FlightKind::Gap:
        if (is_alive_) {
          line(kNoTime,
               fmt::format("{} missing in the log here", counted(record.gap.records, "record")));
        }
        break;
      default:
        if (is_alive_) {
          take_living(record);
        }
        break;
    }
  }

  void finish() {
    if (is_alive_) {
      tell_wait(last_);
      line(last_, is_waiting_ ? "still waiting at the end of the log"
                              : "still running at the end of the log");
    }
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  static constexpr std::int64_t kNoTime = INT64_MIN;

  void line(std::int64_t time, const std::string& text) {
    text_ += time == kNoTime
                 ? fmt::format("{:>14}  {}\n", "", text)
                 : fmt::format("{:>12.6f} s  {}\n", static_cast<double>(time - zero_) * 1e-9, text);
  }

  void begin(const FlightRequest& request) {
    request_ = request;
    is_alive_ = true;
    is_waiting_ = true;
    waits_since_ = request.now;
    last_ = request.now;
    num_plans_ = 0;
    first_token_plan_ = 0;
    has_first_token_ = false;
    num_displacements_ = 0;
    is_parked_ = false;
    waits_.clear();
    text_ += fmt::format(
        "request {}: {}, {}{}{}\n", id_, counted(request.prompt_length, "prompt token"),
        request.max_new_tokens < 0 ? "any number of new tokens"
                                   : "at most " + counted(request.max_new_tokens, "new token"),
        request.num_samples > 1 ? fmt::format(", {} samples", request.num_samples) : "",
        request.priority != 0 ? fmt::format(", priority {}", request.priority) : "");
    line(request.now,
         fmt::format("taken in, {:.3f} ms after its arrival", ms(request.now - request.arrival)));
  }

  void take_living(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::Plan:
        take_plan(record);
        break;
      case FlightKind::Commit:
        last_ = record.commit.now;
        if (record.commit.plan == first_token_plan_ && !has_first_token_) {
          has_first_token_ = true;
          line(last_, fmt::format("first token, {:.3f} ms after its arrival",
                                  ms(last_ - request_.arrival)));
        }
        break;
      case FlightKind::Cancel:
        if (record.cancel.request == id_) {
          line(record.cancel.now, "cancel() was called");
        }
        break;
      case FlightKind::Admitted:
        if (record.admitted.request == id_) {
          admissions_.push_back(record.admitted);
        }
        break;
      case FlightKind::Preempted:
        if (record.preempted.request == id_) {
          preemptions_.push_back(record.preempted);
        }
        break;
      case FlightKind::Undone:
        if (record.undone.request == id_) {
          take_undone(record.undone);
        }
        break;
      case FlightKind::Ended:
        if (record.ended.request == id_) {
          take_end(record.ended);
        }
        break;
      default:
        break;
    }
  }

  [[nodiscard]] std::string sample_text(std::int32_t sample) const {
    return request_.num_samples > 1 ? fmt::format(", sample {}", sample) : "";
  }

  void take_plan(const FlightRecord& record) {
    const FlightPlan& plan = record.plan;
    last_ = plan.now;
    // Milestones stand in the log before the plan that they belong to; it knows the time.
    for (const FlightAdmitted& admitted : admissions_) {
      tell_wait(plan.now);
      line(plan.now, fmt::format("admitted by plan {}{}: {} of {} from the cache", admitted.plan,
                                 sample_text(admitted.sample), grouped(admitted.hit_tokens),
                                 counted(admitted.known_tokens, "token")));
      is_waiting_ = false;
    }
    for (const FlightPreempted& preempted : preemptions_) {
      const bool is_displaced = preempted.displacements > num_displacements_;
      num_displacements_ = preempted.displacements;
      line(plan.now,
           fmt::format(
               "preempted by plan {}{} with {}: {} ({} so far)", preempted.plan,
               sample_text(preempted.sample), counted(preempted.outputs, "new token"),
               is_displaced ? "its place went to one that outranks it" : "others needed its blocks",
               counted(preempted.count, "preemption")));
      start_waiting(plan.now);
    }
    if (is_waiting_ && preemptions_.empty()) {
      if (was_composed(plan) || static_cast<PlanState>(plan.state) == PlanState::Paused) {
        waits_.add(why(record));
        ++num_plans_;
      }
    }
    admissions_.clear();
    preemptions_.clear();
    for (const FlightWait& wait : record.waits) {
      if (wait.request == id_ && wait.is_running != 0) {
        line(plan.now, fmt::format("left out{}: {}",
                                   plan.plan == 0 ? "" : fmt::format(" of plan {}", plan.plan),
                                   reason_of(wait.cause, plan)));
      }
    }
    for (const FlightChunk& chunk : record.chunks) {
      if (chunk.request == id_) {
        line(plan.now,
             fmt::format("plan {}{}: {} from position {}{}", plan.plan, sample_text(chunk.sample),
                         counted(chunk.num_tokens, "token"), grouped(chunk.first_position),
                         chunk.num_samples > 0 ? ", the last ones" : ""));
        first_token_plan_ = chunk.num_samples > 0 ? plan.plan : first_token_plan_;
      }
    }
  }

  // Who is held back by a quota is named once, then not looked at until the quota changes.
  std::string why(const FlightRecord& record) {
    constexpr auto kQuota = static_cast<std::uint8_t>(WaitCause::Quota);
    bool is_named = false;
    for (const FlightWait& wait : record.waits) {
      if (wait.request == id_ && wait.is_running == 0) {
        is_named = true;
        is_parked_ = wait.cause == kQuota;
      }
    }
    is_parked_ = is_parked_ && record.plan.num_parked > 0;
    return is_parked_ && !is_named ? reason_of(kQuota, record.plan) : why_waiting(id_, record);
  }

  void start_waiting(std::int64_t now) {
    is_waiting_ = true;
    is_parked_ = false;
    waits_since_ = now;
    num_plans_ = 0;
    waits_.clear();
  }

  void tell_wait(std::int64_t now) {
    if (waits_.empty()) {
      return;
    }
    line(now,
         fmt::format("waited {:.3f} ms, {}:", ms(now - waits_since_), counted(num_plans_, "plan")));
    for (const auto& [reason, count] : waits_.sorted()) {
      line(kNoTime, fmt::format("{:>8} x {}", grouped(count), reason));
    }
    waits_.clear();
  }

  void take_undone(const FlightUndone& undone) {
    first_token_plan_ = has_first_token_ ? first_token_plan_ : 0;
    if (undone.is_reader != 0) {
      line(undone.now, fmt::format("had read blocks that were never written{}: it starts over",
                                   sample_text(undone.sample)));
      start_waiting(undone.now);
      return;
    }
    line(undone.now,
         fmt::format("a chunk did not run{}: stands at position {} again{}",
                     sample_text(undone.sample), grouped(undone.position),
                     undone.is_charged != 0 ? fmt::format(", retry {}", undone.retries) : ""));
  }

  void take_end(const FlightEnded& end) {
    tell_wait(end.now);
    line(end.now, fmt::format("{}: {}, {:.3f} ms after its arrival", end_of(end),
                              counted(end.outputs, "new token"), ms(end.now - request_.arrival)));
    is_alive_ = false;
  }

  std::uint64_t id_;
  std::int64_t zero_;
  std::string text_;
  FlightRequest request_{};
  std::vector<FlightAdmitted> admissions_;
  std::vector<FlightPreempted> preemptions_;
  Reasons waits_;
  std::int64_t waits_since_ = 0;
  std::int64_t last_ = 0;
  std::int64_t num_plans_ = 0;
  std::uint64_t first_token_plan_ = 0;
  std::int32_t num_displacements_ = 0;
  bool has_first_token_ = false;
  bool is_parked_ = false;
  bool is_alive_ = false;
  bool is_waiting_ = false;
};

// What a whole log holds.
class Summary {
 public:
  void take(const FlightRecord& record) {
    switch (record.kind) {
      case FlightKind::Request:
        ++num_requests_;
        taken_in_[record.request.id] = record.request.now;
        note_time(record.request.now);
        break;
      case FlightKind::Plan:
        take_plan(record);
        break;
      case FlightKind::Commit:
        ++num_commits_;
        num_outputs_ += record.commit.num_tokens;
        note_time(record.commit.now);
        break;
      case FlightKind::Abandon:
        ++num_abandons_;
        break;
      case FlightKind::Admitted:
        ++num_admitted_;
        hit_tokens_ += record.admitted.hit_tokens;
        known_tokens_ += record.admitted.known_tokens;
        admitted_.push_back(record.admitted.request);
        break;
      case FlightKind::Preempted:
        ++num_preempted_;
        break;
      case FlightKind::Undone:
        ++num_undone_;
        break;
      case FlightKind::Ended:
        ++ends_[std::string(short_reason(end_of(record.ended)))];
        taken_in_.erase(record.ended.request);
        break;
      case FlightKind::Gap:
        lost_ += record.gap.records;
        ++num_gaps_;
        break;
      default:
        break;
    }
  }

  [[nodiscard]] std::string text(const FlightLogReader& log) {
    const FlightHeader& h = log.header();
    std::string out;
    out += fmt::format("flight log of dynbatch {}.{}.{}, {} bytes, policy '{}', {}\n",
                       h.version >> 16U, h.version >> 8U & 0xFFU, h.version & 0xFFU,
                       grouped(log.num_bytes()), log.label(),
                       h.has_content != 0 ? "with prompts and outputs" : "without content");
    out += fmt::format(
        "executor: {} tokens a step, {} sequences, {} in flight; pool: {} of {}, {}\n",
        grouped(h.max_tokens), grouped(h.max_sequences), counted(h.max_plans_in_flight, "plan"),
        counted(h.total_blocks, "block"), counted(h.block_size, "token"),
        h.shares_prefixes != 0 ? "prefixes shared" : "prefixes not shared");
    out += fmt::format("time: {:.3f} s\n",
                       has_time_ ? static_cast<double>(last_ - first_) * 1e-9 : 0.0);
    out += fmt::format("requests: {} taken in", grouped(num_requests_));
    for (const auto& [end, count] : ends_) {
      out += fmt::format(", {} {}", grouped(count), end);
    }
    out += fmt::format("\nplans: {}, {} committed, {} abandoned; {} without a plan\n",
                       grouped(num_plans_), grouped(num_commits_), grouped(num_abandons_),
                       counted(num_without_, "call"));
    out += fmt::format("tokens: {} in prompt chunks, {} new\n", grouped(chunk_tokens_),
                       grouped(num_outputs_));
    out += fmt::format("admissions: {}, {} of {} from the cache; {}; {}\n", grouped(num_admitted_),
                       grouped(hit_tokens_), counted(known_tokens_, "token"),
                       counted(num_preempted_, "preemption"),
                       counted(num_undone_, "chunk") + " undone");
    if (num_gaps_ > 0) {
      out += fmt::format("gaps: {}, {} missing\n", grouped(num_gaps_), counted(lost_, "record"));
    }
    if (reasons_.empty()) {
      return out + "nobody waited\n";
    }
    out += "what requests waited for, a request and plan each:\n";
    for (const auto& [reason, count] : reasons_.sorted()) {
      out += fmt::format("{:>14} x {}\n", grouped(count), reason);
    }
    if (!longest_.empty()) {
      out += "longest in the queue before the first admission:\n";
      for (const auto& [wait, id] : longest_) {
        out += fmt::format("{:>14.3f} ms  request {}\n", ms(wait), id);
      }
    }
    return out;
  }

 private:
  static constexpr std::size_t kLongest = 5;

  void note_time(std::int64_t now) {
    first_ = has_time_ ? std::min(first_, now) : now;
    last_ = has_time_ ? std::max(last_, now) : now;
    has_time_ = true;
  }

  void take_plan(const FlightRecord& record) {
    const FlightPlan& plan = record.plan;
    note_time(plan.now);
    ++(plan.plan != 0 ? num_plans_ : num_without_);
    for (const FlightChunk& chunk : record.chunks) {
      chunk_tokens_ += chunk.num_tokens;
    }
    std::int64_t in_queue = plan.num_waiting;
    std::int64_t parked = plan.num_parked;
    const std::string behind = why_waiting(UINT64_MAX, record);
    for (const FlightWait& wait : record.waits) {
      reasons_.add(reason_of(wait.cause, plan));
      const bool is_parked = wait.cause == static_cast<std::uint8_t>(WaitCause::Quota);
      const bool is_loading = wait.cause == static_cast<std::uint8_t>(WaitCause::Loading);
      in_queue -= wait.is_running == 0 && !is_parked && !is_loading ? 1 : 0;
      parked -= is_parked ? 1 : 0;
    }
    if (was_composed(plan) && parked > 0) {
      reasons_.add(reason_of(static_cast<std::uint8_t>(WaitCause::Quota), plan), parked);
    }
    if (was_composed(plan) && in_queue > 0) {
      reasons_.add(behind, in_queue);
    }
    for (const std::uint64_t id : admitted_) {
      const auto at = taken_in_.find(id);
      if (at == taken_in_.end()) {
        continue;
      }
      longest_.emplace_back(plan.now - at->second, id);
      std::stable_sort(longest_.begin(), longest_.end(),
                       [](const auto& a, const auto& b) { return a.first > b.first; });
      longest_.resize(std::min(longest_.size(), kLongest));
      taken_in_.erase(at);
    }
    admitted_.clear();
  }

  std::int64_t num_requests_ = 0;
  std::int64_t num_plans_ = 0;
  std::int64_t num_without_ = 0;
  std::int64_t num_commits_ = 0;
  std::int64_t num_abandons_ = 0;
  std::int64_t num_outputs_ = 0;
  std::int64_t chunk_tokens_ = 0;
  std::int64_t num_admitted_ = 0;
  std::int64_t num_preempted_ = 0;
  std::int64_t num_undone_ = 0;
  std::int64_t num_gaps_ = 0;
  std::int64_t hit_tokens_ = 0;
  std::int64_t known_tokens_ = 0;
  std::uint64_t lost_ = 0;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  bool has_time_ = false;
  Reasons reasons_;
  std::map<std::string, std::int64_t> ends_;
  std::map<std::uint64_t, std::int64_t> taken_in_;
  std::vector<std::uint64_t> admitted_;
  std::vector<std::pair<std::int64_t, std::uint64_t>> longest_;
};

class ExplainCommand {
 public:
  ExplainCommand(const ExplainOptions& options, std::ostream& out, std::ostream& err)
      : options_(options), out_(out), err_(err) {}

  int run() {
    std::vector<std::byte> bytes;
    if (const FlightFault fault = read_flight_log(options_.log, bytes);
        fault != FlightFault::None) {
      return fail(kBadInput, describe_fault(fault, 0));
    }
    FlightLogReader log(bytes);
    if (log.fault() != FlightFault::None) {
      return fail(kBadInput, describe_fault(log.fault(), log.offset()));
    }
    int code = kSuccess;
    if (options_.has_request) {
      code = tell_request(log);
    } else if (!options_.verify) {
      code = tell_all(log);
    }
    return code == kSuccess && options_.verify ? verify(log) : code;
  }

 private:
  int fail(int code, std::string_view text) {
    out_ << std::flush;
    err_ << "dynbatch: " << options_.log << ": " << text << "\n";
    return code;
  }

  // A log that is still being written ends anywhere: what stands before is as good.
  int end_of_log(const FlightLogReader& log) {
    if (log.fault() == FlightFault::None) {
      return kSuccess;
    }
    return fail(log.fault() == FlightFault::Truncated ? kSuccess : kBadInput,
                describe_fault(log.fault(), log.offset()));
  }

  int tell_request(FlightLogReader& log) {
    FlightRecord record;
    std::int64_t zero = 0;
    bool has_zero = false;
    bool is_known = false;
    for (log.rewind(); !has_zero && log.next(record);) {
      has_zero = record.kind == FlightKind::Request || record.kind == FlightKind::Plan;
      zero = record.kind == FlightKind::Request ? record.request.now : record.plan.now;
    }
    Story story(options_.request, zero);
    for (log.rewind(); log.next(record);) {
      is_known =
          is_known || (record.kind == FlightKind::Request && record.request.id == options_.request);
      story.take(record);
    }
    story.finish();
    if (!is_known) {
      return fail(kBadInput,
                  fmt::format("no request {} in this log; what submit() refuses is not logged",
                              options_.request));
    }
    out_ << story.text();
    return end_of_log(log);
  }

  int tell_all(FlightLogReader& log) {
    FlightRecord record;
    Summary summary;
    for (log.rewind(); log.next(record);) {
      summary.take(record);
    }
    out_ << summary.text(log);
    return end_of_log(log);
  }

  int verify(FlightLogReader& log) {
    FlightReplay replay;
    if (const Status status = verify_flight_log(log, replay); !status) {
      std::array<char, 256> text{};
      static_cast<void>(format_status(status, text.data(), text.size()));
      return fail(kBadInput,
                  fmt::format("can't be replayed with policy '{}': {}", log.label(), text.data()));
    }
    if (replay.fault == FlightFault::None) {
      out_ << fmt::format("replayed: all {} came out equal\n", counted(replay.num_plans, "plan"));
      return kSuccess;
    }
    if (replay.fault == FlightFault::Difference) {
      return fail(kFailure,
                  fmt::format("{} came out equal, then a difference at plan {}, byte {}: {}, "
                              "recorded {:#x}, now {:#x}",
                              counted(replay.num_plans, "plan"), replay.plan, replay.offset,
                              replay.what, replay.expected, replay.actual));
    }
    return fail(kBadInput,
                fmt::format("{} came out equal, then: {}", counted(replay.num_plans, "plan"),
                            describe_fault(replay.fault, replay.offset)));
  }

  const ExplainOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
};

}  // namespace

int run_explain(const ExplainOptions& options, std::ostream& out, std::ostream& err) {
  return ExplainCommand(options, out, err).run();
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
