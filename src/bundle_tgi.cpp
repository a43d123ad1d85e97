// SPDX-License-Identifier: Apache-2.0
#include "bundle_instance.hpp"

namespace dynbatch::inline DYNBATCH_ABI {

template ReplayRun detail::run_bundle(const TgiBundle&, const Trace&, const ReplayConfig&,
                                      const FormulaCost&);
template Status detail::verify_bundle(const TgiBundle&, FlightLogReader&, FlightReplay&);

}  // namespace dynbatch::inline DYNBATCH_ABI
