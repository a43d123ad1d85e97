// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: an Admission's optional member must be 'bool may_admit(const AdmissionRequest&)
// const noexcept'. See docs/policies/admission.md
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/concepts/admission.hpp>

using namespace dynbatch;

struct Limited : FcfsAdmission {
#ifdef DYNBATCH_TEST_CORRECTED
  bool may_admit(const AdmissionRequest&) const noexcept { return true; }
#else
  int may_admit(const AdmissionRequest&) const noexcept { return 1; }
#endif
};

static_assert(check_admission<Limited>());
