// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The simulator for each shipped bundle; the templates are compiled once for each set of policy
/// types.
#include <dynbatch/base/config.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

ReplayRun run_bundle(const StaticBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);
ReplayRun run_bundle(const ChunkedBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);
ReplayRun run_bundle(const DynbatchBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);
ReplayRun run_bundle(const PrefillFirstBundle& bundle, const Trace& trace,
                     const ReplayConfig& config, const LinearCost& cost);
ReplayRun run_bundle(const OrcaBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);
ReplayRun run_bundle(const NoEvictBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);
ReplayRun run_bundle(const MaxUtilBundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const LinearCost& cost);

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
