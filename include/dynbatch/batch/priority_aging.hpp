// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PriorityAging: better priorities first, and waiting makes up for a worse one.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Smaller Request::priority first. A request that is p units worse than others starts before those
/// that arrive more than p x `aging` after it, so nobody starves. Stateless, O(1); victim() is
/// O(candidates).
class PriorityAging : public RuledAdmission {
 public:
  struct Config {
    AdmissionRules rules{};
    /// Time of waiting that outweighs one unit of priority, > 0; kUnbounded = strict priorities, no
    /// ageing: worse ones may wait for ever.
    DurationNs aging = seconds(1);
    /// While all places (sequence limit, rows) are taken, the head of the queue takes that of the
    /// worst running request with a strictly worse priority.
    bool displace = false;
    /// A request loses its place so at most this many times; >= 1.
    std::int32_t max_displacements = 3;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (aging.ns < 1) {
        return {Errc::InvalidConfig, "aging", aging.ns, 1,
                "must be positive; kUnbounded means no ageing"};
      }
      if (max_displacements < 1) {
        return {Errc::InvalidConfig, "max_displacements", max_displacements, 1,
                "must be at least 1"};
      }
      return rules.validate();
    }
  };

  PriorityAging() : PriorityAging(Config{}) {}
  explicit PriorityAging(const Config& config) : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  /// priority x aging + arrival: the order of what priority - waited / aging would be at any one
  /// time, without depending on the time.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    if (config_.aging == kUnbounded) {
      return rank(request);
    }
    const std::int64_t priority = request.priority;
    const std::int64_t weight =
        saturating_mul(priority < 0 ? -priority : priority, config_.aging.ns);
    return {saturating_sum(request.arrival.ns, priority < 0 ? -weight : weight),
            request.arrival.ns};
  }

  /// The largest (priority, arrival), whatever has aged.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return worst_of(candidates, rank);
  }

  [[nodiscard]] bool displaces(const AdmissionRequest& waiting,
                               const AdmissionRequest& running) const noexcept {
    return config_.displace && waiting.priority < running.priority &&
           running.num_displacements < config_.max_displacements;
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] static AdmissionKey rank(const AdmissionRequest& request) noexcept {
    return {request.priority, request.arrival.ns};
  }

  Config config_;
};

static_assert(Admission<PriorityAging>);
static_assert(OptionalAdmission<PriorityAging>::kHasDisplaces);

}  // namespace dynbatch::inline DYNBATCH_ABI
