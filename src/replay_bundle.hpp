// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What is done with a shipped bundle at run time: replaying a trace, verifying a flight log. The
/// scheduler is compiled once for each set of policy types: a bundle is instantiated in one of
/// src/bundle_*.cpp, by bundle_instance.hpp.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class Bundle>
ReplayRun run_bundle(const Bundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const FormulaCost& cost);

/// The same with the eviction order of `config`, Lru and Belady excepted. Of DynbatchBundle and
/// ChunkedBundle alone, as each costs a scheduler more to compile.
template <class Bundle>
ReplayRun run_bundle_evicting(const Bundle& bundle, const Trace& trace, const ReplayConfig& config,
                              const FormulaCost& cost);

/// Replays `log`, which holds the run of such a bundle, through a fresh scheduler.
template <class Bundle>
Status verify_bundle(const Bundle& bundle, FlightLogReader& log, FlightReplay& out);

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
