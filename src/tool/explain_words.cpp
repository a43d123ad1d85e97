// SPDX-License-Identifier: Apache-2.0
#include "tool/explain_words.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
std::string_view short_reason(std::string_view reason) {
  return reason.substr(0, reason.find(':'));
}

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

bool was_composed(const FlightPlan& plan) { return plan.max_tokens > 0; }

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

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
