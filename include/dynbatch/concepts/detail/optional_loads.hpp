// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What pools with an asynchronous store behind them have beyond the concept.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/load_wait.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <concepts>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// All of these members or none.
template <class P>
struct OptionalLoads {
  static constexpr bool kHasLoads =
      requires(P& p, const P& cp, const SequenceContentView& content, std::int64_t limit,
               LoadWait& wait, const StepCost& cost) {
        { p.awaits_load(content, limit, wait) } noexcept -> std::same_as<bool>;
        { p.take_ended_loads() } noexcept -> std::same_as<std::uint64_t>;
        { cp.next_load_end() } noexcept -> std::same_as<TimeNs>;
        { p.learn_cost(cost) } noexcept -> std::same_as<void>;
        { cp.name_blocks(content) } noexcept -> std::same_as<void>;
      };
  /// Whether the model decides by what computing costs.
  static constexpr bool kLearnsCost = requires(P& p, const StepCost& cost) {
    { p.learn_cost(cost) } noexcept -> std::same_as<void>;
  };
  /// Any thread.
  static void name_blocks(const P& pool, const SequenceContentView& content) noexcept {
    if constexpr (kHasLoads) {
      pool.name_blocks(content);
    }
  }
  static bool awaits_load(P& pool, const SequenceContentView& content, std::int64_t limit,
                          LoadWait& wait) noexcept {
    if constexpr (kHasLoads) {
      return pool.awaits_load(content, limit, wait);
    } else {
      return false;
    }
  }
  static std::uint64_t take_ended_loads(P& pool) noexcept {
    if constexpr (kHasLoads) {
      return pool.take_ended_loads();
    } else {
      return 0;
    }
  }
  [[nodiscard]] static TimeNs next_load_end(const P& pool) noexcept {
    if constexpr (kHasLoads) {
      return pool.next_load_end();
    } else {
      return kNever;
    }
  }
  static void learn_cost(P& pool, const StepCost& cost) noexcept {
    if constexpr (kLearnsCost) {
      pool.learn_cost(cost);
    }
  }
  [[nodiscard]] static bool tells_loads(const P& pool) noexcept {
    if constexpr (requires { pool.tells_loads(); }) {
      return pool.tells_loads();
    } else {
      return kHasLoads;
    }
  }
};

/// The same of a model behind a view.
struct LoadTable {
  bool (*awaits_load)(void*, const SequenceContentView&, std::int64_t, LoadWait&) noexcept;
  std::uint64_t (*take_ended_loads)(void*) noexcept;
  TimeNs (*next_load_end)(const void*) noexcept;
  void (*learn_cost)(void*, const StepCost&) noexcept;
  void (*name_blocks)(const void*, const SequenceContentView&) noexcept;
  bool has_loads;
};
template <class P>
inline constexpr LoadTable kLoadTable{
    [](void* p, const SequenceContentView& content, std::int64_t limit, LoadWait& wait) noexcept {
      return OptionalLoads<P>::awaits_load(*static_cast<P*>(p), content, limit, wait);
    },
    [](void* p) noexcept { return OptionalLoads<P>::take_ended_loads(*static_cast<P*>(p)); },
    [](const void* p) noexcept {
      return OptionalLoads<P>::next_load_end(*static_cast<const P*>(p));
    },
    [](void* p, const StepCost& cost) noexcept {
      OptionalLoads<P>::learn_cost(*static_cast<P*>(p), cost);
    },
    [](const void* p, const SequenceContentView& content) noexcept {
      OptionalLoads<P>::name_blocks(*static_cast<const P*>(p), content);
    },
    OptionalLoads<P>::kHasLoads};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
