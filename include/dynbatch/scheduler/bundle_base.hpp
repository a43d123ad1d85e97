// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// BundleBase: what all shipped bundles have in common.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/microbatch/no_split.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

/// A sizer and an admission with their configurations, and nothing split or moved.
template <class S, class A>
struct BundleBase {
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
  /// As peers have it: nobody passes the head of the queue, and a preempted request comes back as
  /// soon as it fits.
  static constexpr AdmissionRules kStrict{.max_bypass = 0, .requeue_blocks = 0};
};

}  // namespace dynbatch::inline DYNBATCH_ABI
