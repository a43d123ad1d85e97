// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the options of `dynbatch replay` ask for, read and checked before anything is opened.
#include <dynbatch/base/config.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

#include "tool/replay_command.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

struct ReplaySetup {
  ReplayConfig config;
  TraceOptions window;
  std::vector<PolicySpec> policies;  ///< Point into the options. Empty with --cache-only.
  std::vector<CacheEvictionName> evictions;
  std::vector<std::int64_t> kv_blocks;  ///< Empty without --cache-only.
};

/// Empty, or what is wrong with the options.
[[nodiscard]] std::string read_setup(const ReplayOptions& options, ReplaySetup& setup);

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
