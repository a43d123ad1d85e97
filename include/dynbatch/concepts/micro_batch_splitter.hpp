// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MicroBatchSplitter: cuts a step into micro-batches whose communication hides behind computation.
#include <dynbatch/base/config.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// Most micro-batches a step may be cut into.
inline constexpr std::size_t kMaxMicroBatches = 8;

/// What a splitter sees. Summaries are equal on all ranks; a decision that ranks must share may
/// depend on them and on nothing else.
struct SplitInput {
  std::span<const Chunk> chunks{};
  std::int64_t num_tokens = 0;
  StepCost cost{};
  std::span<const RankSummary> ranks{};  ///< Empty on one rank.
  std::int32_t own_rank = 0;
};

/// A cut before token `token` of chunk `chunk` (0 = between chunks). Cuts ascend.
struct Cut {
  std::int32_t chunk = 0;
  std::int32_t token = 0;
  friend constexpr bool operator==(const Cut&, const Cut&) noexcept = default;
};

/// Where to cut: `count` cuts make count + 1 micro-batches, none of them empty.
struct SplitDecision {
  Cut cuts[kMaxMicroBatches - 1]{};
  std::int32_t count = 0;
};

/// Laws: docs/policies/micro_batch_splitter.md.
template <class P>
concept MicroBatchSplitter =
    std::movable<P> && detail::HasConfig<P> && requires(P& p, const SplitInput& in) {
      { p.split(in) } noexcept -> std::same_as<SplitDecision>;
    };

/// One readable message for each missing requirement; called by the Scheduler.
template <class P>
consteval bool check_micro_batch_splitter() {
  static_assert(std::movable<P>,
                "dynbatch: a MicroBatchSplitter needs to be movable. See "
                "docs/policies/micro_batch_splitter.md");
  static_assert(
      detail::HasConfig<P>,
      "dynbatch: a MicroBatchSplitter needs 'struct Config { Status validate() const noexcept; }'. "
      "See docs/policies/micro_batch_splitter.md");
  static_assert(
      requires(P& p, const SplitInput& in) {
        { p.split(in) } noexcept -> std::same_as<SplitDecision>;
      },
      "dynbatch: a MicroBatchSplitter needs 'SplitDecision split(const SplitInput&) noexcept'. "
      "See docs/policies/micro_batch_splitter.md");
  return true;
}

/// A view of any MicroBatchSplitter for run-time choice; the caller keeps the model alive.
class AnyMicroBatchSplitter {
 public:
  using Config = EmptyConfig;

  template <class P>
    requires(!std::same_as<std::remove_const_t<P>, AnyMicroBatchSplitter> && MicroBatchSplitter<P>)
  explicit AnyMicroBatchSplitter(P& model) noexcept
      : self_(&model), split_([](void* p, const SplitInput& in) noexcept {
          return static_cast<P*>(p)->split(in);
        }) {}

  [[nodiscard]] SplitDecision split(const SplitInput& in) noexcept { return split_(self_, in); }

 private:
  void* self_;
  SplitDecision (*split_)(void*, const SplitInput&) noexcept;
};

static_assert(MicroBatchSplitter<AnyMicroBatchSplitter>);

}  // namespace dynbatch::inline DYNBATCH_ABI
