// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a whole flight log holds.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include "tool/explain_words.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

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

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
