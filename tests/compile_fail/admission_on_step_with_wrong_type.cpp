// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: an Admission's optional member must be 'void on_step(const ComposeInput&)
// noexcept'. See docs/policies/admission.md
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/concepts/admission.hpp>

using namespace dynbatch;

struct Counting : FcfsAdmission {
#ifdef DYNBATCH_TEST_CORRECTED
  void on_step(const ComposeInput&) noexcept {}
#else
  void on_step(const ComposeInput&) {}
#endif
};

static_assert(check_admission<Counting>());
