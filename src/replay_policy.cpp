// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/replay_policy.hpp>
#include <dynbatch/sim/trace.hpp>

#include "replay_bundle.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dynbatch::inline DYNBATCH_ABI {

namespace {

template <class Bundle>
ReplayRun run_any(const Bundle& bundle, const Trace& trace, const ReplayConfig& config,
                  const FormulaCost& cost) {
  if (config.eviction == CacheEviction::Lru) {
    return detail::run_bundle(bundle, trace, config, cost);
  }
  if constexpr (std::same_as<Bundle, DynbatchBundle> || std::same_as<Bundle, ChunkedBundle>) {
    return detail::run_bundle_evicting(bundle, trace, config, cost);
  } else {
    ReplayRun run;
    run.status = {Errc::NotSupported, "eviction", static_cast<std::int64_t>(config.eviction), 0,
                  "only the policies dynbatch and chunked know an order other than lru"};
    return run;
  }
}

}  // namespace

ReplayRun replay_policy(const PolicySpec& spec, const Trace& trace, const ReplayConfig& config,
                        const FormulaCost& cost, std::size_t* position) {
  ReplayRun run;
  const std::string label(spec.text);
  ReplayConfig labelled = config;
  labelled.flight_label = label.c_str();
  const Status status = with_bundle(
      spec,
      [&](const auto& bundle) {
        run = run_any(bundle, trace, labelled, cost);
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
