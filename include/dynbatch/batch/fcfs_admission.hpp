// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// FcfsAdmission: first come, first served.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Requests start in the order of submission; the last admitted gives way first. Stateless, O(1).
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

  /// Equal for all: the queue then orders by submission.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& /*request*/) noexcept { return {}; }
  /// The last admitted.
  [[nodiscard]] std::int32_t victim(const VictimList& /*candidates*/) const noexcept { return 0; }
  [[nodiscard]] const Config& config() const noexcept { return rules(); }
};

static_assert(Admission<FcfsAdmission>);

}  // namespace dynbatch::inline DYNBATCH_ABI
