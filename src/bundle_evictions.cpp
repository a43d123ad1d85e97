// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/scheduler/scheduler.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/replay.hpp>

#include "eviction_choice.hpp"
#include "replay_bundle.hpp"

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

// The scheduler sees a view of the pool: it is compiled once for all orders, which the replays with
// Lru pay nothing for.
template <class Bundle, class MakeEviction>
ReplayRun run_with(const Bundle& bundle, const Trace& trace, const ReplayConfig& config,
                   const FormulaCost& cost, const MakeEviction& make_eviction) {
  using Engine = Scheduler<typename Bundle::Sizer, typename Bundle::Splitter,
                           typename Bundle::Balancer, AnyKVCachePool, typename Bundle::Admission>;
  using Pool = BlockPool<decltype(make_eviction())>;
  Pool pool;  // Outlives each unit's scheduler in turn.
  return replay(trace, config, cost, [&](const UnitSetup& setup) {
    pool = Pool(typename Pool::Config{.num_blocks = setup.pool.num_blocks,
                                      .block_size = setup.pool.block_size,
                                      .prefix_caching = setup.pool.prefix_caching},
                make_eviction());
    return Engine::make(setup.scheduler, setup.capabilities, bundle.make_sizer(),
                        bundle.make_splitter(), bundle.make_balancer(), AnyKVCachePool(pool),
                        bundle.make_admission());
  });
}

}  // namespace

template <class Bundle>
ReplayRun detail::run_bundle_evicting(const Bundle& bundle, const Trace& trace,
                                      const ReplayConfig& config, const FormulaCost& cost) {
  ReplayRun run;
  const bool is_known = with_eviction(config.eviction, CacheReplayConfig{}.cost, config.block_size,
                                      [&](const auto& make_eviction) {
                                        run = run_with(bundle, trace, config, cost, make_eviction);
                                      });
  if (!is_known) {
    run.status = {Errc::InvalidConfig, "eviction", static_cast<std::int64_t>(config.eviction), 0,
                  "neither lru, which run_bundle() has, nor belady, which has to know the future"};
  }
  return run;
}

template ReplayRun detail::run_bundle_evicting(const DynbatchBundle&, const Trace&,
                                               const ReplayConfig&, const FormulaCost&);
template ReplayRun detail::run_bundle_evicting(const ChunkedBundle&, const Trace&,
                                               const ReplayConfig&, const FormulaCost&);

}  // namespace dynbatch::inline DYNBATCH_ABI
