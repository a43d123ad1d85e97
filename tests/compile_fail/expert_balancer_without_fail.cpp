// SPDX-License-Identifier: Apache-2.0
// EXPECT: dynbatch: an ExpertBalancer needs 'void confirm(std::int32_t layer) noexcept' and 'void
// fail(std::int32_t layer) noexcept'. See docs/policies/expert_balancer.md
#include <dynbatch/concepts/expert_balancer.hpp>

#include <cstdint>
#include <span>

using namespace dynbatch;

struct Balancer {
  using Config = EmptyConfig;
  void observe(const ExpertCounts&) noexcept {}
  bool task() noexcept { return false; }
  std::uint64_t placement() const noexcept { return 0; }
  std::int32_t due_moves(std::span<ExpertMove>) noexcept { return 0; }
  void confirm(std::int32_t) noexcept {}
#ifdef DYNBATCH_TEST_CORRECTED
  void fail(std::int32_t) noexcept {}
#endif
  void shares(std::int32_t, std::span<const std::uint32_t>, std::span<float>) const noexcept {}
};

static_assert(check_expert_balancer<Balancer>());
