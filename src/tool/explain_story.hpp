// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The story of one request of a flight log, line by line.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include "tool/explain_words.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

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

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
