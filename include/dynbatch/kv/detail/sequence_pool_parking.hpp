// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SequencePool: what is parked, what is told to the host.
#include <dynbatch/kv/sequence_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

inline Status SequencePool::attach(const PoolAttachment& attachment) noexcept {
  if (const Status s = config_.validate(); !s) {
    return s;
  }
  if (attachment.sequence_handles < attachment.max_rows) {
    return {Errc::InvalidConfig, "capabilities.sequence_handles", attachment.sequence_handles,
            attachment.max_rows, "a row needs a handle of its own"};
  }
  PoolAttachment inner = attachment;
  inner.max_rows = attachment.sequence_handles;
  inner.partial_copy = false;  // it shares whole blocks of cells
  if (const Status s = pool_.attach(inner); !s) {
    return s;
  }
  max_rows_ = attachment.max_rows;
  num_handles_ = attachment.sequence_handles;
  const auto handles = static_cast<std::size_t>(num_handles_);
  const auto blocks = static_cast<std::size_t>(pool_.stats().total_blocks);
  for (const Status& s :
       {ops_.allocate(max_row_ops(num_handles_), "capabilities.sequence_handles"),
        newest_op_.allocate(handles, "capabilities.sequence_handles"),
        parked_references_.allocate(blocks, "num_tokens"),
        scratch_.allocate(static_cast<std::size_t>(
                              ceil_div(attachment.max_context_tokens, config_.block_size) + 1),
                          "max_context_tokens"),
        used_.allocate(handles, "capabilities.sequence_handles")}) {
    if (!s) {
      return s;
    }
  }
  clock_ = 0;
  num_parked_only_ = 0;
  num_parked_ = 0;
  return kOk;
}

inline PrefixMatch SequencePool::match(const SequenceContentView& content,
                                       std::int64_t limit) noexcept {
  PrefixMatch result = pool_.match(content, has_op_room() ? limit : 0);
  result.num_blocks = find_holder(pool_.matched());
  result.num_tokens = result.num_blocks * config_.block_size;
  const auto held = pool_.matched().first(static_cast<std::size_t>(result.num_blocks));
  result.idle_blocks = count_parked_only(held);
  if (held.size() < pool_.matched().size()) {
    result.newest_pending = pool_.newest_pending(held);
  }
  return result;
}

inline bool SequencePool::acquire(Row row, const PrefixMatch& match) noexcept {
  if (!is_running(row) || !pool_.acquire(row, match)) {
    return false;
  }
  if (match.num_blocks > 0) {
    num_parked_only_ -= match.idle_blocks;
    if (!is_running(holder_)) {
      used_[static_cast<std::size_t>(holder_.value)] = ++clock_;
    }
    tell_share(holder_, row, match.num_tokens);
  }
  return true;
}

inline bool SequencePool::extend(Row row, std::int64_t tokens) noexcept {
  if (!is_running(row)) {
    return false;
  }
  const auto held = static_cast<std::int64_t>(pool_.table(0, row).size());
  const std::int64_t missing = ceil_div(tokens, config_.block_size) - held;
  if (missing > num_free() + num_parked_only_ || (missing > num_free() && !make_room(missing))) {
    return false;
  }
  return pool_.extend(row, tokens);
}

inline void SequencePool::truncate(Row row, std::int64_t tokens) noexcept {
  if (!is_running(row)) {
    return;
  }
  const std::int64_t kept = ceil_div(max_of<std::int64_t>(tokens, 0), config_.block_size);
  const std::span<const BlockId> table = pool_.table(0, row);
  if (kept >= static_cast<std::int64_t>(table.size())) {
    return;
  }
  const std::span<const BlockId> lost = remember(table.subspan(static_cast<std::size_t>(kept)));
  pool_.discard(row, tokens);
  num_parked_only_ += count_parked_only(lost);
  tell_drop(row, max_of<std::int64_t>(tokens, 0));
}

inline Status SequencePool::fork(Row from, Row to, std::int64_t tokens) noexcept {
  if (!is_running(from) || !is_running(to)) {
    return {Errc::InvalidArgument, "row", to.value, max_rows_, "needs two rows that run"};
  }
  if (!has_op_room()) {
    return {Errc::QueueFull, "row_ops", static_cast<std::int64_t>(ops_.size()),
            static_cast<std::int64_t>(ops_.capacity()), "too many row operations in one step"};
  }
  if (num_free() == 0 && tokens % config_.block_size != 0 && !make_room(1)) {
    return {Errc::QueueFull, "blocks", 1, 0, "no block for the rest of the fork"};
  }
  if (const Status s = pool_.fork(from, to, tokens); !s) {
    return s;
  }
  tell_share(from, to, tokens);
  return kOk;
}

inline void SequencePool::release(Row row) noexcept {
  if (!is_running(row)) {
    return;
  }
  const std::span<const BlockId> table = pool_.table(0, row);
  const std::int64_t settled = pool_.num_settled_blocks(row);
  bool is_exclusive = false;
  for (std::int64_t i = 0; i < settled; ++i) {
    is_exclusive = is_exclusive || pool_.references(table[static_cast<std::size_t>(i)]) == 1;
  }
  if (is_exclusive && has_op_room()) {
    park(row, settled);
  }
  const std::span<const BlockId> lost = remember(table);
  pool_.discard(row, 0);
  num_parked_only_ += count_parked_only(lost);
  tell_drop(row, 0);
}

/// The first `blocks` blocks of the row go to a parking place too.
inline void SequencePool::park(Row row, std::int64_t blocks) noexcept {
  const std::span<const BlockId> path = pool_.table(0, row).first(static_cast<std::size_t>(blocks));
  const Row place = parking_place(path);
  if (place == kNoRow) {
    return;
  }
  const std::int64_t tokens = blocks * config_.block_size;
  const bool is_forked = pool_.fork(row, place, tokens).is_ok();
  DYNBATCH_ASSERT(is_forked, "whole blocks can always be shared");
  for (const BlockId block : path) {
    ++parked_references_[static_cast<std::size_t>(block.value)];
  }
  used_[static_cast<std::size_t>(place.value)] = ++clock_;
  ++num_parked_;
  tell_share(row, place, tokens);
}

/// The parked handle keeps its first blocks only; without any it is empty.
inline void SequencePool::unpark(Row parked, std::int64_t kept_blocks) noexcept {
  const std::span<const BlockId> lost =
      remember(pool_.table(0, parked).subspan(static_cast<std::size_t>(kept_blocks)));
  num_parked_only_ -= count_parked_only(lost);
  for (const BlockId block : lost) {
    --parked_references_[static_cast<std::size_t>(block.value)];
  }
  pool_.discard(parked, kept_blocks * config_.block_size);
  num_parked_only_ += count_parked_only(lost);
  tell_drop(parked, kept_blocks * config_.block_size);
  if (kept_blocks == 0) {
    used_[static_cast<std::size_t>(parked.value)] = 0;
    --num_parked_;
  }
}

/// Takes blocks from parked prefixes until so many are free; false if there are not enough.
inline bool SequencePool::make_room(std::int64_t blocks) noexcept {
  while (num_free() < blocks) {
    const Row parked = least_recent();
    if (parked == kNoRow) {
      return false;
    }
    const std::span<const BlockId> table = pool_.table(0, parked);
    auto kept = static_cast<std::int64_t>(table.size());
    std::int64_t gained = num_free();
    while (kept > 0 && gained < blocks &&
           pool_.references(table[static_cast<std::size_t>(kept - 1)]) == 1) {
      --kept;
      ++gained;
    }
    // What others hold as well is theirs to keep.
    const bool is_shared =
        kept > 0 && pool_.references(table[static_cast<std::size_t>(kept - 1)]) > 1;
    unpark(parked, is_shared && gained < blocks ? 0 : kept);
  }
  return true;
}

/// A copy of the path that outlives changes of the table.
inline std::span<const BlockId> SequencePool::remember(std::span<const BlockId> blocks) noexcept {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    scratch_[i] = blocks[i];
  }
  return {scratch_.data(), blocks.size()};
}

/// Notes the handle whose table has most of the path at its front; returns how many blocks. It is
/// the whole path, unless two rows computed the same content at the same time.
inline std::int64_t SequencePool::find_holder(std::span<const BlockId> path) noexcept {
  std::size_t most = 0;
  for (std::int32_t handle = 0; handle < num_handles_ && most < path.size(); ++handle) {
    const std::span<const BlockId> table = pool_.table(0, Row{handle});
    const std::size_t end = min_of(table.size(), path.size());
    std::size_t n = 0;
    while (n < end && table[n] == path[n]) {
      ++n;
    }
    if (n > most) {
      most = n;
      holder_ = Row{handle};
    }
  }
  return static_cast<std::int64_t>(most);
}

/// An empty parking place, or that of a prefix of the path, or that of the prefix used longest ago.
inline Row SequencePool::parking_place(std::span<const BlockId> path) noexcept {
  Row empty = kNoRow;
  for (std::int32_t handle = max_rows_; handle < num_handles_; ++handle) {
    const std::span<const BlockId> table = pool_.table(0, Row{handle});
    if (table.empty()) {
      empty = Row{handle};
    } else if (table.size() <= path.size() && path[table.size() - 1] == table.back()) {
      unpark(Row{handle}, 0);  // the longer one serves whoever would use it
      return Row{handle};
    }
  }
  if (empty == kNoRow) {
    empty = least_recent();
    if (empty != kNoRow) {
      unpark(empty, 0);
    }
  }
  return empty;
}

inline Row SequencePool::least_recent() const noexcept {
  Row oldest = kNoRow;
  for (std::int32_t handle = max_rows_; handle < num_handles_; ++handle) {
    const std::uint64_t used = used_[static_cast<std::size_t>(handle)];
    if (used != 0 && (oldest == kNoRow || used < used_[static_cast<std::size_t>(oldest.value)])) {
      oldest = Row{handle};
    }
  }
  return oldest;
}

inline Status SequencePool::resize(std::int64_t num_blocks) noexcept {
  if (num_blocks < 1 || num_blocks > config_.num_tokens / config_.block_size) {
    return pool_.resize(num_blocks);  // which says why not
  }
  if (num_blocks < pool_.stats().total_blocks) {
    for (Row parked = least_recent(); parked != kNoRow; parked = least_recent()) {
      unpark(parked, 0);
    }
  }
  return pool_.resize(num_blocks);
}

inline bool SequencePool::clear() noexcept {
  for (std::int32_t row = 0; row < max_rows_; ++row) {
    if (!pool_.table(0, Row{row}).empty()) {
      return false;
    }
  }
  for (Row parked = least_recent(); parked != kNoRow; parked = least_recent()) {
    unpark(parked, 0);
  }
  return pool_.clear();
}

inline PoolStats SequencePool::stats() const noexcept {
  PoolStats s = pool_.stats();
  s.cached_blocks = num_parked_only_;
  s.referenced_blocks -= num_parked_only_;
  return s;
}

inline Status SequencePool::check() const noexcept {
  if (const Status s = pool_.check(); !s) {
    return s;
  }
  if (num_handles_ == 0) {
    return kOk;
  }
  std::int64_t references = 0;
  std::int64_t parked_only = 0;
  for (std::size_t b = 0; b < parked_references_.size(); ++b) {
    const BlockId block{static_cast<std::int32_t>(b)};
    references += parked_references_[b];
    parked_only += pool_.references(block) > 0 && is_parked_only(block) ? 1 : 0;
  }
  std::int64_t held = 0;
  std::int32_t parked = 0;
  for (std::int32_t handle = max_rows_; handle < num_handles_; ++handle) {
    const auto blocks = static_cast<std::int64_t>(pool_.table(0, Row{handle}).size());
    held += blocks;
    parked += blocks > 0 ? 1 : 0;
    if ((blocks > 0) != (used_[static_cast<std::size_t>(handle)] != 0)) {
      return {Errc::InternalError, "parked", handle, blocks, "an empty handle counts as used"};
    }
  }
  if (held != references || parked_only != num_parked_only_ || parked != num_parked_ ||
      pool_.stats().cached_blocks != 0) {
    return {Errc::InternalError, "parked", num_parked_only_, parked_only, "wrong counter"};
  }
  return kOk;
}

inline std::size_t SequencePool::drain_row_ops(std::span<RowOp> ops) noexcept {
  std::size_t n = 0;
  for (; n < ops_.size() && n < ops.size(); ++n) {
    ops[n] = ops_[n];
  }
  for (std::size_t i = n; i < ops_.size(); ++i) {
    ops_[i - n] = ops_[i];
  }
  ops_.resize(ops_.size() - n);
  for (std::int32_t& newest : newest_op_.span()) {
    newest = 0;
  }
  return n;
}

inline void SequencePool::tell_share(Row source, Row target, std::int64_t tokens) noexcept {
  ops_.push_back({RowOpKind::ShareRange, source, target, 0, static_cast<std::int32_t>(tokens), 0});
  newest_op_[static_cast<std::size_t>(source.value)] = static_cast<std::int32_t>(ops_.size());
  newest_op_[static_cast<std::size_t>(target.value)] = static_cast<std::int32_t>(ops_.size());
}

/// Two drops of one handle with nothing between them are one.
inline void SequencePool::tell_drop(Row target, std::int64_t first) noexcept {
  std::int32_t& newest = newest_op_[static_cast<std::size_t>(target.value)];
  const auto position = static_cast<std::int32_t>(first);
  if (newest > 0) {
    RowOp& op = ops_[static_cast<std::size_t>(newest - 1)];
    if (op.kind == RowOpKind::DropRange) {
      op.first = min_of(op.first, position);
      return;
    }
  }
  ops_.push_back({RowOpKind::DropRange, kNoRow, target, position, INT32_MAX, 0});
  newest = static_cast<std::int32_t>(ops_.size());
}

}  // namespace dynbatch::inline DYNBATCH_ABI
