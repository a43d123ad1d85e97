// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ExpertBalancer: which GPU holds which replica of which MoE expert, and how load is shared among
/// them.
#include <dynbatch/base/config.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// Tokens routed to each logical expert in one step.
struct ExpertCounts {
  std::int32_t num_layers = 0;
  std::int32_t num_experts = 0;
  std::span<const std::uint32_t> counts{};  ///< [num_layers, num_experts] row-major.
  bool is_prefill = false;
};

/// Laws: docs/policies/expert_balancer.md.
template <class P>
concept ExpertBalancer =
    std::movable<P> && detail::HasConfig<P> &&
    requires(P& p, const P& cp, const ExpertCounts& counts, std::span<ExpertMove> moves,
             std::span<const std::uint32_t> layer_counts, std::span<float> shares,
             std::int32_t layer) {
      { p.observe(counts) } noexcept -> std::same_as<void>;
      { p.task() } noexcept -> std::same_as<bool>;
      { cp.placement() } noexcept -> std::same_as<std::uint64_t>;
      { p.due_moves(moves) } noexcept -> std::same_as<std::int32_t>;
      { p.confirm(layer) } noexcept -> std::same_as<void>;
      { p.fail(layer) } noexcept -> std::same_as<void>;
      { cp.shares(layer, layer_counts, shares) } noexcept -> std::same_as<void>;
    };

/// One readable message for each missing requirement; called by the Scheduler.
template <class P>
consteval bool check_expert_balancer() {
  static_assert(
      std::movable<P>,
      "dynbatch: an ExpertBalancer needs to be movable. See docs/policies/expert_balancer.md");
  static_assert(
      detail::HasConfig<P>,
      "dynbatch: an ExpertBalancer needs 'struct Config { Status validate() const noexcept; }'. "
      "See docs/policies/expert_balancer.md");
  static_assert(
      requires(P& p, const ExpertCounts& counts) {
        { p.observe(counts) } noexcept -> std::same_as<void>;
      },
      "dynbatch: an ExpertBalancer needs 'void observe(const ExpertCounts&) noexcept'. "
      "See docs/policies/expert_balancer.md");
  static_assert(
      requires(P& p) {
        { p.task() } noexcept -> std::same_as<bool>;
      },
      "dynbatch: an ExpertBalancer needs 'bool task() noexcept'. See "
      "docs/policies/expert_balancer.md");
  static_assert(
      requires(const P& p) {
        { p.placement() } noexcept -> std::same_as<std::uint64_t>;
      },
      "dynbatch: an ExpertBalancer needs 'std::uint64_t placement() const noexcept'. "
      "See docs/policies/expert_balancer.md");
  static_assert(
      requires(P& p, std::span<ExpertMove> moves) {
        { p.due_moves(moves) } noexcept -> std::same_as<std::int32_t>;
      },
      "dynbatch: an ExpertBalancer needs 'std::int32_t due_moves(std::span<ExpertMove>) noexcept'. "
      "See docs/policies/expert_balancer.md");
  static_assert(
      requires(P& p, std::int32_t layer) {
        { p.confirm(layer) } noexcept -> std::same_as<void>;
        { p.fail(layer) } noexcept -> std::same_as<void>;
      },
      "dynbatch: an ExpertBalancer needs 'void confirm(std::int32_t layer) noexcept' and 'void "
      "fail(std::int32_t layer) "
      "noexcept'. See docs/policies/expert_balancer.md");
  static_assert(
      requires(const P& p, std::int32_t layer, std::span<const std::uint32_t> counts,
               std::span<float> shares) {
        { p.shares(layer, counts, shares) } noexcept -> std::same_as<void>;
      },
      "dynbatch: an ExpertBalancer needs 'void shares(std::int32_t, std::span<const "
      "std::uint32_t>, "
      "std::span<float>) const noexcept'. See docs/policies/expert_balancer.md");
  return true;
}

/// A view of any ExpertBalancer for run-time choice; the caller keeps the model alive.
class AnyExpertBalancer {
 public:
  using Config = EmptyConfig;

  template <class P>
    requires(!std::same_as<std::remove_const_t<P>, AnyExpertBalancer> && ExpertBalancer<P>)
  explicit AnyExpertBalancer(P& model) noexcept : self_(&model), table_(&kTable<P>) {}

  void observe(const ExpertCounts& counts) noexcept { table_->observe(self_, counts); }
  bool task() noexcept { return table_->task(self_); }
  [[nodiscard]] std::uint64_t placement() const noexcept { return table_->placement(self_); }
  std::int32_t due_moves(std::span<ExpertMove> moves) noexcept {
    return table_->due_moves(self_, moves);
  }
  void confirm(std::int32_t layer) noexcept { table_->confirm(self_, layer); }
  void fail(std::int32_t layer) noexcept { table_->fail(self_, layer); }
  void shares(std::int32_t layer, std::span<const std::uint32_t> counts,
              std::span<float> out) const noexcept {
    table_->shares(self_, layer, counts, out);
  }

 private:
  struct Table {
    void (*observe)(void*, const ExpertCounts&) noexcept;
    bool (*task)(void*) noexcept;
    std::uint64_t (*placement)(const void*) noexcept;
    std::int32_t (*due_moves)(void*, std::span<ExpertMove>) noexcept;
    void (*confirm)(void*, std::int32_t) noexcept;
    void (*fail)(void*, std::int32_t) noexcept;
    void (*shares)(const void*, std::int32_t, std::span<const std::uint32_t>,
                   std::span<float>) noexcept;
  };
  template <class P>
  static constexpr Table kTable{
      [](void* p, const ExpertCounts& c) noexcept { static_cast<P*>(p)->observe(c); },
      [](void* p) noexcept { return static_cast<P*>(p)->task(); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->placement(); },
      [](void* p, std::span<ExpertMove> m) noexcept { return static_cast<P*>(p)->due_moves(m); },
      [](void* p, std::int32_t layer) noexcept { static_cast<P*>(p)->confirm(layer); },
      [](void* p, std::int32_t layer) noexcept { static_cast<P*>(p)->fail(layer); },
      [](const void* p, std::int32_t layer, std::span<const std::uint32_t> c,
         std::span<float> s) noexcept { static_cast<const P*>(p)->shares(layer, c, s); }};

  void* self_;
  const Table* table_;
};

static_assert(ExpertBalancer<AnyExpertBalancer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
