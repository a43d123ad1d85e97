// SPDX-License-Identifier: Apache-2.0
#include "bundle_instance.hpp"

namespace dynbatch::inline DYNBATCH_ABI {

template ReplayRun detail::run_bundle(const StaticBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const StaticBundle&, FlightLogReader&, FlightReplay&);

}  // namespace dynbatch::inline DYNBATCH_ABI
