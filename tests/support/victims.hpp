// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Whom an Admission names among running requests, given in reverse order of admission.
#include <dynbatch/concepts/admission.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dynbatch::test {

template <class A>
std::int32_t victim_among(const A& admission, const std::vector<AdmissionRequest>& running) {
  return admission.victim(VictimList(
      &running,
      [](const void* context, std::int32_t index) noexcept {
        VictimCandidate candidate;
        candidate.request = (*static_cast<const std::vector<AdmissionRequest>*>(
            context))[static_cast<std::size_t>(index)];
        return candidate;
      },
      static_cast<std::int32_t>(running.size())));
}

}  // namespace dynbatch::test
