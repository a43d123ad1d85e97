// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Resident block tables on the host's side, kept up to date by the deltas of the plans it
/// executes.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// One group's block tables, [max_rows][max_blocks_per_row]; a host with several groups has a
/// mirror for each. Apply each plan once, in plan order, before executing it; plans that are
/// abandoned without execution are not applied: their deltas come again.
class BlockTableMirror {
 public:
  /// Room for `max_rows` tables of `max_blocks_per_row` entries.
  Status allocate(std::int32_t max_rows, std::int32_t max_blocks_per_row) noexcept {
    if (max_rows < 1 || max_blocks_per_row < 1) {
      return {Errc::InvalidArgument, "max_rows", max_rows, 1, "a mirror needs rows and blocks"};
    }
    stride_ = static_cast<std::size_t>(max_blocks_per_row);
    if (Status s = lengths_.allocate(static_cast<std::size_t>(max_rows), "max_rows"); !s) {
      return s;
    }
    if (Status s = nulls_.allocate(static_cast<std::size_t>(max_rows), "max_rows"); !s) {
      return s;
    }
    return tables_.allocate(static_cast<std::size_t>(max_rows) * stride_, "max_blocks_per_row");
  }

  /// Takes in the deltas of the plan's group `group`. O(deltas). InvalidArgument names the first
  /// delta that does not fit the mirror or leaves a gap; those before it are applied.
  Status apply(const StepPlan& plan, std::size_t group = 0) noexcept {
    if (group >= plan.groups.size()) {
      return kOk;
    }
    for (const BlockDelta& delta : plan.groups[group].deltas) {
      const auto row = static_cast<std::size_t>(delta.row.value);
      const auto index = static_cast<std::size_t>(delta.index);
      if (delta.row.value < 0 || row >= lengths_.size()) {
        return {Errc::InvalidArgument, "delta.row", delta.row.value,
                static_cast<std::int64_t>(lengths_.size()) - 1, "no such row"};
      }
      if (delta.index < 0 || index >= stride_ ||
          (index > lengths_[row] && index != 0 && delta.block != kNoBlock)) {
        return {Errc::InvalidArgument, "delta.index", delta.index,
                static_cast<std::int64_t>(stride_) - 1, "beyond the table's end"};
      }
      if (delta.block == kNoBlock) {
        forget_until(row, index);
        continue;
      }
      tables_[row * stride_ + index] = delta.block;
      lengths_[row] = static_cast<std::uint32_t>(index + 1);
      nulls_[row] = min_of(nulls_[row], static_cast<std::uint32_t>(index));
    }
    return kOk;
  }

  /// The blocks of a row, in order of position; kNoBlock where a window has moved on.
  [[nodiscard]] std::span<const BlockId> table(Row row) const noexcept {
    const auto r = static_cast<std::size_t>(row.value);
    if (row.value < 0 || r >= lengths_.size()) {
      return {};
    }
    return {tables_.data() + r * stride_, lengths_[r]};
  }

 private:
  // Entries up to and including `index` are null. Each is overwritten once a residence.
  void forget_until(std::size_t row, std::size_t index) noexcept {
    const auto end = static_cast<std::uint32_t>(index + 1);
    for (std::uint32_t i = nulls_[row]; i < end; ++i) {
      tables_[row * stride_ + i] = kNoBlock;
    }
    nulls_[row] = max_of(nulls_[row], end);
    lengths_[row] = max_of(lengths_[row], end);
  }

  Buffer<BlockId> tables_;
  Buffer<std::uint32_t> lengths_;
  Buffer<std::uint32_t> nulls_;  // leading entries that are known to be null
  std::size_t stride_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
