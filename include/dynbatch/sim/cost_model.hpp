// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Step-cost models: how long a simulated step takes, and a reader of files with sets of
/// coefficients. The built-in sets are in cost_sets.hpp.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

/// Says how long an engine needs for a plan. A pure function, at least 1 ns: virtual time must
/// pass.
template <class M>
concept StepCostModel = std::copyable<M> && requires(const M& m, const StepPlan& plan) {
  { m.step_time(plan) } noexcept -> std::same_as<DurationNs>;
};

/// What a step costs beyond a linear cost: steps of prompts that cost no less than a floor, decodes
/// in two regimes, chunks that cost something each.
struct PhaseCost {
  /// Decoding rows: fixed + row x rows + KV token x their context, if there is a row.
  struct Decode {
    std::int64_t fixed_ns = 0;
    std::int64_t row_ps = 0;
    std::int64_t kv_token_ps = 0;

    friend constexpr bool operator==(const Decode&, const Decode&) noexcept = default;
  };

  // Prompts: max(floor, offset + token x tokens + pair x query-key pairs), if there is a token.
  std::int64_t floor_ns = 0;
  std::int64_t offset_ns = 0;  ///< May be negative.
  std::int64_t token_ps = 0;
  std::int64_t pair_fs = 0;
  bool counts_rows = false;   ///< Decoding rows are tokens of that part too.
  std::int64_t chunk_ns = 0;  ///< Per prefill chunk.
  Decode decode{};
  std::int64_t many_rows = INT64_MAX;  ///< From so many rows on `decode_many` instead.
  Decode decode_many{};

  [[nodiscard]] constexpr std::int64_t predict_ns(const StepWork& work,
                                                  std::int64_t chunks) const noexcept {
    const std::int64_t tokens =
        saturating_add(work.prefill_tokens, counts_rows ? work.decode_rows : 0);
    std::int64_t ns = saturating_mul(chunk_ns, chunks);
    if (tokens > 0) {
      const std::int64_t ps = saturating_add(saturating_mul(token_ps, tokens),
                                             saturating_mul(pair_fs, work.attention_pairs) / 1000);
      ns = saturating_add(ns, max_of(floor_ns, saturating_sum(ps / 1000, offset_ns)));
    }
    if (work.decode_rows > 0) {
      const Decode& d = work.decode_rows < many_rows ? decode : decode_many;
      const std::int64_t ps = saturating_add(saturating_mul(d.row_ps, work.decode_rows),
                                             saturating_mul(d.kv_token_ps, work.kv_tokens));
      ns = saturating_add(ns, saturating_add(d.fixed_ns, ps / 1000));
    }
    return ns;
  }

  friend constexpr bool operator==(const PhaseCost&, const PhaseCost&) noexcept = default;
};

/// fixed + b x decoding rows + c x their context tokens + d x prompt tokens + attention + host
/// overhead, and for sets that aren't linear a cost of each phase; a mixed step pays both. Padded
/// work where the plan is padded. Integers: the same on every machine.
struct FormulaCost {
  StepCost cost{};
  DurationNs host_overhead{};  ///< Added to every step: what the host does between two steps.
  bool has_phases = false;     ///< False: `phases` is not looked at.
  PhaseCost phases{};

  /// `chunks`: prefill chunks of the step.
  [[nodiscard]] constexpr DurationNs step_time(const StepWork& work,
                                               std::int64_t chunks) const noexcept {
    std::int64_t ns = saturating_add(cost.predict(work).ns, host_overhead.ns);
    if (has_phases) {
      ns = saturating_add(ns, phases.predict_ns(work, chunks));
    }
    return {max_of<std::int64_t>(ns, 1)};
  }
  [[nodiscard]] DurationNs step_time(const StepPlan& plan) const noexcept {
    return step_time(padded_work(plan), plan.num_prefill_chunks);
  }

  friend constexpr bool operator==(const FormulaCost&, const FormulaCost&) noexcept = default;
};

static_assert(StepCostModel<FormulaCost>);

/// A set and where it comes from.
struct CostSet {
  const char* name = "";
  FormulaCost model{};
  /// Mean absolute error of the fit; negative = the source gives none.
  double mape_percent = -1.0;
  double decode_mape_percent = -1.0;  ///< If not negative, the other one is that of prompts alone.
  const char* source = "";
};

/// A set that owns its strings: a built-in one or one read from a file.
struct NamedCost {
  std::string name;
  std::string source;
  FormulaCost model{};
  double mape_percent = -1.0;         ///< As in CostSet.
  double decode_mape_percent = -1.0;  ///< As in CostSet.
};

/// A set, or the sentence that says why there is none.
struct [[nodiscard]] CostResult {
  NamedCost cost;
  std::string error;

  [[nodiscard]] bool is_ok() const noexcept { return error.empty(); }
  explicit operator bool() const noexcept { return is_ok(); }
};

/// Reads a set from JSON text: {"name", "a_ms", "b_ms_per_req", "c_ms_per_kv_token",
/// "d_ms_per_prefill_token"} or {"name", "form"} [, "host_overhead_ms", "mape", "source"], or
/// {"sets": [...]} of these, of which `set_name` is taken (the only one if empty). `file` stands in
/// errors. Formulas: docs/simulator.md.
DYNBATCH_API CostResult parse_cost(std::string_view text, std::string_view set_name,
                                   std::string_view file);

/// The built-in set of this name, else the set of the file "PATH" or "PATH#SET".
DYNBATCH_API CostResult find_cost(const std::string& name_or_file);

/// The model as a formula, in ms.
[[nodiscard]] DYNBATCH_API std::string to_text(const FormulaCost& model);

}  // namespace dynbatch::inline DYNBATCH_ABI
