// SPDX-License-Identifier: Apache-2.0
/// \file
/// What policies see of a scheduler: steps, the first waiting request, what runs, what has ended.
#include "order_host.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

struct Seen {
  std::vector<ComposeInput> steps;
  std::vector<std::vector<RunningSequence>> running;
  std::vector<TimeNs> first_arrivals;  // of the sizer
  std::vector<FinishedOutput> finished;
  int num_composed = 0;
};

/// Writes down what it is told; everything else is first come, first served.
class Watching : public FcfsAdmission {
 public:
  Watching(const Config& config, Seen& seen) : FcfsAdmission(config), seen_(&seen) {}
  void on_step(const ComposeInput& in) noexcept {
    seen_->steps.push_back(in);
    seen_->running.emplace_back();
    in.running.for_each([&](const RunningSequence& sequence) noexcept {
      seen_->running.back().push_back(sequence);
    });
    is_told_ = true;
  }
  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    CHECK(is_told_);
    CHECK(in.step == seen_->steps.back().step);
    ++seen_->num_composed;
    return FcfsAdmission::compose(in);
  }

 private:
  Seen* seen_;
  bool is_told_ = false;
};
static_assert(OptionalAdmission<Watching>::kHasOnStep);
static_assert(!OptionalAdmission<FcfsAdmission>::kHasOnStep);

struct WatchingSizer : TokenBudgetSizer {
  explicit WatchingSizer(Seen& s) : TokenBudgetSizer(Config{.max_sequences = 2}), seen(&s) {}
  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    seen->first_arrivals.push_back(in.first_arrival);
    return TokenBudgetSizer::limits(in);
  }
  void observe(const StepFeedback& feedback) noexcept {
    seen->finished.insert(seen->finished.end(), feedback.finished.begin(), feedback.finished.end());
  }
  Seen* seen;
};

/// Two places; requests 0 to 2 of 20, 40 and 60 tokens and 2, 3 and 1 outputs. Runs them out.
template <class Sizer, class Admission>
void run(Sizer sizer, Admission admission) {
  Capabilities caps;
  caps.max_tokens = 1024;
  caps.max_sequences = 8;
  auto made = Scheduler<Sizer, NoSplit, NullBalancer, BlockPool<>, Admission>::make(
      SchedulerConfig{}, caps, sizer, NoSplit{}, NullBalancer{},
      BlockPool<>(BlockPool<>::Config{.num_blocks = 100, .block_size = 16}), admission);
  REQUIRE(made);
  for (std::uint64_t id = 0; id < 3; ++id) {
    const auto n = static_cast<std::int64_t>(id);
    REQUIRE(submit_order(*made, {.id = id,
                                 .length = 20 * (n + 1),
                                 .outputs = n == 0 ? 2 : (n == 1 ? 3 : 1),
                                 .arrival = {100 + n}}));
  }
  REQUIRE(run_out(*made, TimeNs{1000}) == 3);
}

void check(const Seen& seen) {
  REQUIRE(seen.steps.size() == 3);
  CHECK(seen.num_composed == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(seen.steps[i].step == seen.steps[0].step + i);
    CHECK(seen.steps[i].now == TimeNs{1000});
    CHECK(seen.steps[i].block_size == 16);
  }
  CHECK(seen.steps[0].num_waiting == 3);
  CHECK(seen.steps[0].first_arrival == TimeNs{100});
  CHECK(seen.running[0].empty());
  CHECK(seen.steps[1].num_decoding == 2);
  CHECK(seen.steps[1].first_arrival == TimeNs{102});
  REQUIRE(seen.running[1].size() == 2);
  CHECK(seen.running[1][1].known_tokens == 41);
  CHECK(seen.running[1][1].output_tokens == 1);
  CHECK(seen.running[1][1].max_output_tokens == 3);
  CHECK(seen.running[2].size() == 1);
  CHECK(seen.first_arrivals == std::vector<TimeNs>{TimeNs{100}, TimeNs{102}, TimeNs{102}});
  REQUIRE(seen.finished.size() == 3);
  CHECK(seen.finished[0].prompt_tokens == 20);
  CHECK(seen.finished[0].tokens == 2);
  CHECK(seen.finished[1].prompt_tokens + seen.finished[2].prompt_tokens == 100);
}

}  // namespace

TEST_CASE("policies are told of each step, of the first that waits and of what has ended") {
  Seen seen;
  run(WatchingSizer(seen), Watching({.max_bypass = 0}, seen));
  check(seen);
}

TEST_CASE("views of any policy pass on what they are told") {
  Seen seen;
  WatchingSizer sizer(seen);
  Watching admission({.max_bypass = 0}, seen);
  run(AnyBatchSizer(sizer), AnyAdmission(admission));
  check(seen);
}

TEST_CASE("a call that makes no plan is no step") {
  Seen seen;
  Capabilities caps;
  caps.max_tokens = 1024;
  caps.max_sequences = 8;
  auto made = Scheduler<WatchingSizer, NoSplit, NullBalancer, BlockPool<>, Watching>::make(
      SchedulerConfig{}, caps, WatchingSizer(seen), NoSplit{}, NullBalancer{},
      BlockPool<>(BlockPool<>::Config{.num_blocks = 100, .block_size = 16}), Watching({}, seen));
  REQUIRE(made);
  REQUIRE(submit_order(*made, {.id = 1, .length = 20, .outputs = 2}));
  made->pause(PauseMode::New);
  CHECK(made->plan(TimeNs{1}) == nullptr);
  CHECK(made->plan(TimeNs{1}) == nullptr);
  made->resume();
  CHECK(run_one(*made, TimeNs{1}) == Scheduled{{1, 20}});
  CHECK(made->plan(TimeNs{1}) != nullptr);
  CHECK(made->plan(TimeNs{1}) == nullptr);  // one plan in flight at most: nothing is asked
  REQUIRE(seen.steps.size() == 4);
  CHECK(seen.steps[1].step == seen.steps[0].step);
  CHECK(seen.steps[2].step == seen.steps[0].step);
  CHECK(seen.steps[3].step == seen.steps[0].step + 1);
}

TEST_CASE("a sizer is told where the prompt that is next begins and how much of it is left") {
  using Next = std::pair<std::int64_t, std::int64_t>;
  struct Spy : TokenBudgetSizer {
    explicit Spy(std::vector<Next>& s) : TokenBudgetSizer(Config{.budget = 100}), seen(&s) {}
    [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
      seen->emplace_back(in.next_prompt_position, in.next_prompt_tokens);
      return TokenBudgetSizer::limits(in);
    }
    std::vector<Next>* seen;
  };
  std::vector<Next> seen;
  Capabilities caps;
  caps.max_tokens = 1024;
  caps.max_sequences = 8;
  auto made = Scheduler<Spy, NoSplit, NullBalancer, BlockPool<>, FcfsAdmission>::make(
      SchedulerConfig{}, caps, Spy(seen), NoSplit{}, NullBalancer{},
      BlockPool<>(BlockPool<>::Config{.num_blocks = 100, .block_size = 16}), FcfsAdmission{});
  REQUIRE(made);
  REQUIRE(submit_order(*made, {.id = 0, .length = 250, .outputs = 9}));
  REQUIRE(submit_order(*made, {.id = 1, .length = 130, .outputs = 9}));
  // Steps of 100 tokens: 100 of the first; 100; 50 and 50 of the second; 1 and 80; then decodes.
  for (std::int64_t i = 0; i < 5; ++i) {
    run_one(*made, TimeNs{i + 1});
  }
  CHECK(seen == std::vector<Next>{{0, 250}, {100, 150}, {200, 50}, {50, 80}, {0, 0}});
}
