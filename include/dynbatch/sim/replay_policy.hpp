// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Replays with a policy bundle chosen by name; compiled once for all bundles, with linear costs.
#include <dynbatch/base/config.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstddef>

namespace dynbatch::inline DYNBATCH_ABI {

/// Replays `trace` with the bundle that `spec` names. On an error in `spec` the run's status says
/// what is wrong, and `*position`, if given, where in the policy list.
[[nodiscard]] DYNBATCH_API ReplayRun replay_policy(const PolicySpec& spec, const Trace& trace,
                                                   const ReplayConfig& config,
                                                   const FormulaCost& cost,
                                                   std::size_t* position = nullptr);

/// Whether `spec` names a bundle and all its options are good, without a run.
[[nodiscard]] DYNBATCH_API Status check_policy(const PolicySpec& spec,
                                               std::size_t* position = nullptr);

}  // namespace dynbatch::inline DYNBATCH_ABI
