// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/scheduler/scheduler.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

Status verify_flight_log(FlightLogReader& log, FlightReplay& out) {
  PolicyListReader reader(log.label());
  PolicySpec spec;
  if (const Status status = reader.next(spec); !status) {
    return status;
  }
  return with_bundle(spec, [&](const auto& bundle) -> Status {
    using Bundle = std::remove_cvref_t<decltype(bundle)>;
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
  });
}

}  // namespace dynbatch::inline DYNBATCH_ABI
