// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include "replay_bundle.hpp"

namespace dynbatch::inline DYNBATCH_ABI {

Status verify_flight_log(FlightLogReader& log, FlightReplay& out) {
  PolicyListReader reader(log.label());
  PolicySpec spec;
  if (const Status status = reader.next(spec); !status) {
    return status;
  }
  return with_bundle(spec,
                     [&](const auto& bundle) { return detail::verify_bundle(bundle, log, out); });
}

}  // namespace dynbatch::inline DYNBATCH_ABI
