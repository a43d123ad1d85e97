// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: an Admission needs 'std::int32_t victim(const VictimList&) const noexcept'. See
// docs/policies/admission.md
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

using namespace dynbatch;

struct Order {
  using Config = EmptyConfig;
  AdmissionKey key(const AdmissionRequest&) noexcept { return {}; }
  Reservation need(const NeedInput& in) const noexcept { return {in.known_tokens, 0, 0}; }
  Composition compose(const ComposeInput&) const noexcept { return {}; }
  std::int64_t chunk(const ChunkInput& in) const noexcept { return in.budget_tokens; }
#ifdef DYNBATCH_TEST_CORRECTED
  std::int32_t victim(const VictimList&) const noexcept { return 0; }
#endif
  std::int32_t max_bypass() const noexcept { return 0; }
  bool splits_prompts() const noexcept { return true; }
};

static_assert(check_admission<Order>());
