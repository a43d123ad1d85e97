// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// NoSplit: the MicroBatchSplitter that does nothing.
#include <dynbatch/base/config.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

/// Every step is one micro-batch.
class NoSplit {
 public:
  using Config = EmptyConfig;

  NoSplit() noexcept = default;
  explicit NoSplit(Config /*config*/) noexcept {}

  [[nodiscard]] SplitDecision split(const SplitInput& /*in*/) noexcept { return {}; }
};

static_assert(MicroBatchSplitter<NoSplit>);

}  // namespace dynbatch::inline DYNBATCH_ABI
