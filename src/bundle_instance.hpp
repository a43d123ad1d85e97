// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Bodies of what replay_bundle.hpp declares, for the files that instantiate them.
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/scheduler/scheduler.hpp>
#include <dynbatch/sim/replay.hpp>

#include "replay_bundle.hpp"

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

template <class Bundle>
ReplayRun run_bundle(const Bundle& bundle, const Trace& trace, const ReplayConfig& config,
                     const FormulaCost& cost) {
  return replay_bundle(trace, config, cost, bundle);
}

template <class Bundle>
Status verify_bundle(const Bundle& bundle, FlightLogReader& log, FlightReplay& out) {
  using Engine = Scheduler<typename Bundle::Sizer, typename Bundle::Splitter,
                           typename Bundle::Balancer, BlockPool<>, typename Bundle::Admission>;
  BlockPool<>::Config pool;
  pool.num_blocks = log.header().total_blocks;
  pool.block_size = log.header().block_size;
  pool.prefix_caching = log.header().shares_prefixes != 0;
  if (const Status status = pool.validate(); !status) {
    return status;
  }
  auto made =
      Engine::make(log.config(), log.capabilities(), bundle.make_sizer(), bundle.make_splitter(),
                   bundle.make_balancer(), BlockPool<>(pool), bundle.make_admission());
  if (!made) {
    return made.status();
  }
  out = replay_log(log, *made);
  return kOk;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
