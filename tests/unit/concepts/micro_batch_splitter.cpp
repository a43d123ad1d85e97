// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/laws/micro_batch_splitter.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace dynbatch;

namespace {

// The archetype: cuts off the last chunk where that leaves something on every rank.
class MinimalSplitter {
 public:
  using Config = EmptyConfig;

  explicit MinimalSplitter(int /*unused*/) noexcept {}
  MinimalSplitter(const MinimalSplitter&) = delete;
  MinimalSplitter& operator=(const MinimalSplitter&) = delete;
  MinimalSplitter(MinimalSplitter&&) noexcept = default;
  MinimalSplitter& operator=(MinimalSplitter&&) noexcept = default;
  ~MinimalSplitter() = default;

  SplitDecision split(const SplitInput& in) noexcept {
    for (const RankSummary& rank : in.ranks) {
      if (rank.num_chunks < 2) {
        return {};
      }
    }
    SplitDecision out;
    if (in.chunks.size() >= 2) {
      out.cuts[0] = {static_cast<std::int32_t>(in.chunks.size()) - 1, 0};
      out.count = 1;
    }
    return out;
  }
};

static_assert(MicroBatchSplitter<MinimalSplitter>);
static_assert(check_micro_batch_splitter<MinimalSplitter>());
static_assert(!MicroBatchSplitter<int>);

}  // namespace

TEST_CASE("a view of a splitter passes the call on to the model", "[concepts]") {
  MinimalSplitter model(0);
  AnyMicroBatchSplitter any(model);
  std::vector<Chunk> chunks(3);
  SplitInput in;
  in.chunks = chunks;
  const SplitDecision decision = any.split(in);
  REQUIRE(decision.count == 1);
  CHECK(decision.cuts[0] == Cut{2, 0});
}

TEST_CASE("the splitter laws hold for a minimal model, directly and as a view", "[concepts]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 4)));
  MinimalSplitter model(0);
  CHECK(check_micro_batch_splitter_laws(model, seed).is_ok());
  AnyMicroBatchSplitter any(model);
  CHECK(check_micro_batch_splitter_laws(any, seed).is_ok());
}
