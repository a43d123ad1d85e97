// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/expert/null_balancer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace dynbatch;

TEST_CASE("a null balancer keeps placement zero and moves nothing", "[expert]") {
  NullBalancer balancer;
  const std::vector<std::uint32_t> counts(16, 100);
  balancer.observe({.num_layers = 2, .num_experts = 8, .counts = counts, .is_prefill = false});
  CHECK_FALSE(balancer.task());
  std::vector<ExpertMove> moves(4);
  CHECK(balancer.due_moves(moves) == 0);
  balancer.confirm(0);
  balancer.fail(1);
  CHECK(balancer.placement() == 0);
}

TEST_CASE("replicas of an expert share its tokens equally", "[expert]") {
  const NullBalancer balancer;
  const std::vector<std::uint32_t> counts{5, 50, 500, 5000};
  std::vector<float> shares(6);
  balancer.shares(0, counts, shares);
  CHECK(shares == std::vector<float>{0.5F, 0.5F, 1.0F, 1.0F, 0.5F, 0.5F});
  shares.resize(4);
  balancer.shares(0, counts, shares);
  CHECK(shares == std::vector<float>(4, 1.0F));
}

TEST_CASE("shares of nothing are written nowhere", "[expert]") {
  const NullBalancer balancer;
  std::vector<float> shares(2);
  balancer.shares(0, {}, shares);
  CHECK(shares == std::vector<float>(2, 1.0F));
  balancer.shares(0, {}, {});
}
