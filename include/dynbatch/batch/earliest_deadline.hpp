// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// EarliestDeadline: who is due first starts first.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Orders by the earliest of finish_by, start_by and arrival + slo.ttft. Requests without any of
/// them count as due `default_due` after their arrival, so they wait a bounded time too. Stateless,
/// O(1); victim() is O(candidates).
class EarliestDeadline : public RuledAdmission {
 public:
  struct Config {
    AdmissionRules rules{};
    DurationNs default_due = seconds(30);  ///< For requests without a deadline; >= 0.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (default_due.ns < 0) {
        return {Errc::InvalidConfig, "default_due", default_due.ns, 0, "must not be negative"};
      }
      return rules.validate();
    }
  };

  EarliestDeadline() : EarliestDeadline(Config{}) {}
  explicit EarliestDeadline(const Config& config) : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    return rank(request, config_.default_due);
  }

  /// Who is due last.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return worst_of(candidates, [due = config_.default_due](const AdmissionRequest& request) {
      return rank(request, due);
    });
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] static AdmissionKey rank(const AdmissionRequest& request,
                                         DurationNs default_due) noexcept {
    std::int64_t due = min_of(request.finish_by, request.start_by).ns;
    if (request.slo.ttft < kUnbounded) {
      due = min_of(
          due, saturating_sum(request.arrival.ns, max_of<std::int64_t>(request.slo.ttft.ns, 0)));
    }
    if (due == kNever.ns) {
      due = saturating_sum(request.arrival.ns, default_due.ns);
    }
    return {due, request.arrival.ns};
  }

  Config config_;
};

static_assert(Admission<EarliestDeadline>);

}  // namespace dynbatch::inline DYNBATCH_ABI
