// SPDX-License-Identifier: Apache-2.0
// Every shipped balancer obeys the laws, directly and through the Any model.
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/laws/expert_balancer.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <span>
#include <string>

using namespace dynbatch;

TEST_CASE("shipped balancers obey the laws", "[expert]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 8)));
  INFO("seed " << seed);
  NullBalancer balancer;
  CHECK(check_expert_balancer_laws(balancer, seed).is_ok());
  AnyExpertBalancer any(balancer);
  CHECK(check_expert_balancer_laws(any, seed).is_ok());
}

TEST_CASE("the laws find a balancer that breaks them", "[expert]") {
  struct Jumpy : NullBalancer {
    void observe(const ExpertCounts&) noexcept { ++version; }
    std::uint64_t placement() const noexcept { return version; }
    std::uint64_t version = 0;
  };
  struct Endless : NullBalancer {
    bool task() noexcept { return true; }
  };
  struct Overflowing : NullBalancer {
    std::int32_t due_moves(std::span<ExpertMove>) noexcept { return 17; }
  };
  struct Lossy : NullBalancer {
    void shares(std::int32_t, std::span<const std::uint32_t>, std::span<float> out) const noexcept {
      for (float& share : out) {
        share = 0.5F;
      }
    }
  };
  Jumpy jumpy;
  CHECK(std::string(check_expert_balancer_laws(jumpy, 1).field) == "law 1");
  Endless endless;
  CHECK(std::string(check_expert_balancer_laws(endless, 1).field) == "law 2");
  Overflowing overflowing;
  CHECK(std::string(check_expert_balancer_laws(overflowing, 1).field) == "law 3");
  Lossy lossy;
  CHECK(std::string(check_expert_balancer_laws(lossy, 1).field) == "law 4");
}
