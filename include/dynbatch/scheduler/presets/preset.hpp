// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the presets of other engines have in common.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/microbatch/no_split.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

/// What all presets share: nobody passes the head of the queue, and a preempted request comes back
/// as soon as it fits.
template <class S, class A>
struct PresetBase {
  using Sizer = S;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = A;
  using Compose = AdmissionRules::Compose;
  using Reserve = AdmissionRules::Reserve;

  typename S::Config sizer{};
  typename A::Config admission{};

  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = sizer.validate();
    return status ? admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(admission); }

 protected:
  static constexpr AdmissionRules kStrict{.max_bypass = 0, .requeue_blocks = 0};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
