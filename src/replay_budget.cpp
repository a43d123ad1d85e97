// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

#include "replay_bundle.hpp"

namespace dynbatch::inline DYNBATCH_ABI {

// All of these have the same policy types, so the simulator is instantiated once.
ReplayRun detail::run_bundle(const ChunkedBundle& bundle, const Trace& trace,
                             const ReplayConfig& config, const LinearCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

ReplayRun detail::run_bundle(const PrefillFirstBundle& bundle, const Trace& trace,
                             const ReplayConfig& config, const LinearCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

ReplayRun detail::run_bundle(const OrcaBundle& bundle, const Trace& trace,
                             const ReplayConfig& config, const LinearCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

ReplayRun detail::run_bundle(const NoEvictBundle& bundle, const Trace& trace,
                             const ReplayConfig& config, const LinearCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

ReplayRun detail::run_bundle(const MaxUtilBundle& bundle, const Trace& trace,
                             const ReplayConfig& config, const LinearCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
