// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// VerifiedPath: what a pool remembers of its latest look-up.
#include <dynbatch/base/config.hpp>
#include <dynbatch/kv/prefix_index.hpp>
#include <dynbatch/model/kv_event.hpp>
#include <dynbatch/model/request.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// A path that the latest match() has verified; its blocks stand in the pool's list of matched
/// ones. While the index says that the path is what it was, the next look-up of the same content
/// goes on from its end.
struct VerifiedPath {
  std::int64_t num_blocks = 0;
  PrefixNode end{};
  PrefixId end_id{};
  std::uint64_t version = 0;     ///< SequenceContentView::version.
  CacheScope scope{};            ///< Of digests, which say by themselves what they stand for.
  std::int32_t digest_unit = 0;  ///< 0: it has to be the same content by its version.
  std::uint64_t newest_plan = 0;
  std::uint64_t path_changes = 0;  ///< PrefixIndex::path_changes() by then.
  std::uint64_t idle_changes = 0;  ///< The pool's own count by then.
  std::int64_t idle_blocks = 0;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
