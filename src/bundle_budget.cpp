// SPDX-License-Identifier: Apache-2.0
#include "bundle_instance.hpp"

namespace dynbatch::inline DYNBATCH_ABI {

// All of these have the same policy types, so the scheduler is instantiated once.
template ReplayRun detail::run_bundle(const ChunkedBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const ChunkedBundle&, FlightLogReader&, FlightReplay&);

template ReplayRun detail::run_bundle(const PrefillFirstBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const PrefillFirstBundle&, FlightLogReader&, FlightReplay&);

template ReplayRun detail::run_bundle(const OrcaBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const OrcaBundle&, FlightLogReader&, FlightReplay&);

template ReplayRun detail::run_bundle(const NoEvictBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const NoEvictBundle&, FlightLogReader&, FlightReplay&);

template ReplayRun detail::run_bundle(const MaxUtilBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const MaxUtilBundle&, FlightLogReader&, FlightReplay&);

}  // namespace dynbatch::inline DYNBATCH_ABI
