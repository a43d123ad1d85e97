// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `dynbatch replay`: options as given, and the run.
#include <dynbatch/base/config.hpp>

#include <cstdint>
#include <iosfwd>
#include <string>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

struct ReplayOptions {
  std::string trace;  ///< Empty = the embedded workload.
  std::string format = "auto";
  std::string policy = "static:batch=32,chunked:budget=2048,dynbatch";
  std::string cost;  ///< Empty = the first built-in set.
  std::string start;
  std::string end;
  std::string slo;
  std::string json;
  std::string csv;
  std::string record;
  std::string spread_ticks;  ///< Empty = by format.
  std::string kv_blocks;     ///< Comma-separated.
  std::string eviction;      ///< Comma-separated; empty = lru.
  std::int64_t kv_tokens = 600'000;
  std::int64_t block_size = 16;
  std::int64_t max_seqs = 256;
  std::int64_t max_new = 0;  ///< 0 = not given.
  std::int64_t max_waiting = 0;
  std::string max_wait;  ///< Milliseconds; empty = not given.
  std::int64_t units = 1;
  std::int64_t requests = 0;  ///< 0 = all, or kEmbeddedRequests of the embedded workload.
  std::int64_t seed = 1;
  double rate_scale = 0.0;     ///< 0 = not given.
  double find_capacity = 0.0;  ///< 0 = not given.
  bool offline = false;
  bool lenient = false;
  bool cache_only = false;
  bool bound = false;
};

inline constexpr std::int64_t kEmbeddedRequests = 3'000;

/// Returns an exit code of tool.hpp; errors are one line on `err`.
int run_replay(const ReplayOptions& options, std::ostream& out, std::ostream& err,
               bool shows_progress);

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
