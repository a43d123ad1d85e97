// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// FcfsAdmission: first come, first served.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Requests start in the order of submission; the last admitted gives way first. With
/// `class_delay` the order is that of arrival plus delay, and the last in it gives way. Stateless,
/// O(1); victim() with `class_delay` O(candidates).
class FcfsAdmission : public RuledAdmission {
 public:
  using Config = AdmissionRules;
  using Compose = AdmissionRules::Compose;
  using Reserve = AdmissionRules::Reserve;

  FcfsAdmission() : FcfsAdmission(Config{}) {}
  explicit FcfsAdmission(const Config& config) : RuledAdmission(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  /// Equal for all, and the queue then orders by submission; or arrival plus delay of the class.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    return rank(request, rules().class_delay);
  }
  /// The last admitted, or the last by rank.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    const DurationNs delay = rules().class_delay;
    return delay.ns == 0 ? 0
                         : worst_of(candidates, [delay](const AdmissionRequest& request) noexcept {
                             return rank(request, delay);
                           });
  }
  [[nodiscard]] const Config& config() const noexcept { return rules(); }

 private:
  [[nodiscard]] static AdmissionKey rank(const AdmissionRequest& request,
                                         DurationNs delay) noexcept {
    return delay.ns == 0
               ? AdmissionKey{}
               : AdmissionKey{
                     saturating_sum(request.arrival.ns,
                                    saturating_mul(static_cast<std::int64_t>(request.request_class),
                                                   delay.ns)),
                     0};
  }
};

static_assert(Admission<FcfsAdmission>);

}  // namespace dynbatch::inline DYNBATCH_ABI
