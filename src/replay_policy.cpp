// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/trace.hpp>

#include "replay_bundle.hpp"

#include <cstddef>
#include <string>

namespace dynbatch::inline DYNBATCH_ABI {

ReplayRun replay_policy(const PolicySpec& spec, const Trace& trace, const ReplayConfig& config,
                        const FormulaCost& cost, std::size_t* position) {
  ReplayRun run;
  const std::string label(spec.text);
  ReplayConfig labelled = config;
  labelled.flight_label = label.c_str();
  const Status status = with_bundle(
      spec,
      [&](const auto& bundle) {
        run = detail::run_bundle(bundle, trace, labelled, cost);
        return run.status;
      },
      position);
  run.status = status;
  return run;
}

Status check_policy(const PolicySpec& spec, std::size_t* position) {
  return with_bundle(spec, [](const auto&) { return kOk; }, position);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
