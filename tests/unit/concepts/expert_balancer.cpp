// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/expert_balancer.hpp>
#include <dynbatch/laws/expert_balancer.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace dynbatch;

namespace {

// The archetype: one replica an expert, swaps nothing, counts its calls.
class MinimalBalancer {
 public:
  using Config = EmptyConfig;

  explicit MinimalBalancer(int /*unused*/) noexcept {}
  MinimalBalancer(const MinimalBalancer&) = delete;
  MinimalBalancer& operator=(const MinimalBalancer&) = delete;
  MinimalBalancer(MinimalBalancer&&) noexcept = default;
  MinimalBalancer& operator=(MinimalBalancer&&) noexcept = default;
  ~MinimalBalancer() = default;

  void observe(const ExpertCounts& /*counts*/) noexcept { has_task = true; }
  bool task() noexcept {
    const bool had_task = has_task;
    has_task = false;
    return had_task;
  }
  std::uint64_t placement() const noexcept { return version; }
  std::int32_t due_moves(std::span<ExpertMove> moves) noexcept {
    if (moves.empty()) {
      return 0;
    }
    moves[0] = {1, 2, 3, 2};
    return 1;
  }
  void confirm(std::int32_t /*layer*/) noexcept { ++version; }
  void fail(std::int32_t layer) noexcept { failed_layer = layer; }
  void shares(std::int32_t /*layer*/, std::span<const std::uint32_t> counts,
              std::span<float> out) const noexcept {
    for (std::size_t slot = 0; slot < out.size(); ++slot) {
      out[slot] = slot < counts.size() ? 1.0F : 0.0F;
    }
  }

  std::uint64_t version = 1;
  std::int32_t failed_layer = -1;
  bool has_task = false;
};

static_assert(ExpertBalancer<MinimalBalancer>);
static_assert(check_expert_balancer<MinimalBalancer>());
static_assert(!ExpertBalancer<int>);

}  // namespace

TEST_CASE("a view of a balancer passes every call on to the model", "[concepts]") {
  MinimalBalancer model(0);
  AnyExpertBalancer any(model);
  any.observe({});
  CHECK(any.task());
  CHECK_FALSE(any.task());
  std::vector<ExpertMove> moves(2);
  CHECK(any.due_moves(moves) == 1);
  CHECK(moves[0].expert == 2);
  any.confirm(1);
  CHECK(any.placement() == 2);
  any.fail(3);
  CHECK(model.failed_layer == 3);
  std::vector<float> shares(2);
  any.shares(0, std::vector<std::uint32_t>{5}, shares);
  CHECK(shares == std::vector<float>{1.0F, 0.0F});
}

TEST_CASE("the balancer laws hold for a minimal model, directly and as a view", "[concepts]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 4)));
  MinimalBalancer model(0);
  CHECK(check_expert_balancer_laws(model, seed).is_ok());
  AnyExpertBalancer any(model);
  CHECK(check_expert_balancer_laws(any, seed).is_ok());
}
