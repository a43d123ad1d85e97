// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/laws/batch_sizer.hpp>

#include <catch2/catch.hpp>
#include <string>

using namespace dynbatch;

namespace {

// The archetype: what the concept asks for and nothing else; not copyable, not
// default-constructible.
class MinimalSizer {
 public:
  using Config = EmptyConfig;

  explicit MinimalSizer(int /*unused*/) noexcept {}
  MinimalSizer(const MinimalSizer&) = delete;
  MinimalSizer& operator=(const MinimalSizer&) = delete;
  MinimalSizer(MinimalSizer&&) noexcept = default;
  MinimalSizer& operator=(MinimalSizer&&) noexcept = default;
  ~MinimalSizer() = default;

  BatchLimits limits(const SizerInput& in) noexcept {
    ++num_calls;
    return {1, in.max_sequences, in.max_tokens, in.max_tokens, {}};
  }
  void observe(const StepFeedback& /*feedback*/) noexcept { ++num_feedbacks; }
  BatchLimits ceiling() const noexcept { return {1, 1 << 30, 1 << 30, 1 << 30, {}}; }
  StepCost cost() const noexcept { return {5, 0, 0, 0, 0, 1'000'000}; }

  int num_calls = 0;
  int num_feedbacks = 0;
};

struct WithoutNoexcept {
  using Config = EmptyConfig;
  BatchLimits limits(const SizerInput&) { return {}; }
  void observe(const StepFeedback&) noexcept {}
  BatchLimits ceiling() const noexcept { return {}; }
  StepCost cost() const noexcept { return {}; }
};

static_assert(BatchSizer<MinimalSizer>);
static_assert(check_batch_sizer<MinimalSizer>());
static_assert(!BatchSizer<WithoutNoexcept>);
static_assert(!BatchSizer<int>);

}  // namespace

TEST_CASE("a view of a sizer passes every call on to the model", "[concepts]") {
  MinimalSizer model(0);
  AnyBatchSizer any(model);
  SizerInput in;
  in.max_sequences = 7;
  in.max_tokens = 70;
  CHECK(any.limits(in) == BatchLimits{1, 7, 70, 70, {}});
  any.observe({});
  CHECK(model.num_calls == 1);
  CHECK(model.num_feedbacks == 1);
  CHECK(any.ceiling() == model.ceiling());
  CHECK(any.cost() == model.cost());

  // A copy of the view is a view of the same model.
  AnyBatchSizer copy = any;
  (void)copy.limits(in);
  CHECK(model.num_calls == 2);
}

TEST_CASE("the sizer laws run on a model that is only movable", "[concepts]") {
  MinimalSizer model(0);
  // It claims to know a cost of 5 ns a step, whatever it is fed: law 5 says that this is wrong.
  const Status status = check_batch_sizer_laws(model, 3);
  CHECK(std::string(status.field) == "law 5");
}
