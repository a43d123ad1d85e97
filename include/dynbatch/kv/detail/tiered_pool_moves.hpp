// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TieredPool: what moves between device and host memory, and when.
#include <dynbatch/kv/tiered_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Pool, class Tier>
Status TieredPool<Pool, Tier>::attach(const PoolAttachment& attachment) noexcept {
  if (const Status s = config_.validate(); !s) {
    return s;
  }
  if (pool_.groups().empty() || !pool_.shares_prefixes()) {
    return {Errc::InvalidConfig, "pool", 0, 1,
            "a tier needs a pool of blocks that shares prefixes"};
  }
  if (!attachment.in_order) {
    return {Errc::InvalidConfig, "capabilities.in_order", 0, 1, "moves need steps in plan order"};
  }
  block_size_ = pool_.groups()[0].block_size;
  Status s = pool_.attach(attachment);
  PoolAttachment host = attachment;
  host.max_rows += kHasTier ? config_.tier.max_loads + config_.tier.max_stores : 0;
  s = s ? host_.attach(host) : s;
  const auto moves = static_cast<std::size_t>(max_swaps(attachment, block_size_));
  s = s ? moves_.allocate(moves, "max_context_tokens") : s;
  if (config_.min_touches > 1) {
    const std::int64_t blocks = s ? pool_.stats().total_blocks : 0;
    s = s ? touches_.allocate(static_cast<std::size_t>(blocks), "num_blocks") : s;
  }
  if constexpr (kHasTier) {
    s = s ? link_.attach(config_.tier, attachment, config_.num_host_blocks,
                         static_cast<std::int32_t>(block_size_), moves)
          : s;
  }
  matched_ = {};
  num_loaded_ = 0;
  return s;
}

template <class Pool, class Tier>
PrefixMatch TieredPool<Pool, Tier>::match(const SequenceContentView& content,
                                          std::int64_t limit) noexcept {
  if constexpr (kHasTier) {
    link_.adopt(content, host_);
  }
  device_match_ = pool_.match(content, limit);
  host_match_ = host_.match(content, limit);
  if (config_.min_touches > 1) {
    matched_ = content;
  }
  PrefixMatch result = device_match_;
  const std::int64_t more = host_match_.num_blocks - device_match_.num_blocks;
  const bool has_room = moves_.size() + static_cast<std::size_t>(max_of<std::int64_t>(more, 0)) <
                        moves_.capacity() / 2;
  if (more >= config_.min_load_blocks && host_match_.newest_pending == kNoPlan && has_room &&
      is_load_faster(device_match_.num_blocks, more)) {
    result.drop_copy();  // what is copied lies where the loads begin
    result.num_blocks = host_match_.num_blocks;
    result.num_tokens = host_match_.num_tokens;
    result.idle_blocks += more;
    result.num_loaded = more * block_size_;
  }
  return result;
}

template <class Pool, class Tier>
bool TieredPool<Pool, Tier>::acquire(Row row, const PrefixMatch& match) noexcept {
  PrefixMatch device = match;
  device.num_blocks = min_of(match.num_blocks, device_match_.num_blocks);
  device.num_tokens = device.num_blocks * block_size_;
  device.ticket = match.ticket;
  const bool is_loading = match.num_blocks > device.num_blocks;
  if (is_loading && match.num_blocks > host_match_.num_blocks) {
    return false;
  }
  if (!pool_.acquire(row, device)) {
    return false;
  }
  // All that host memory has of the content, also where it is computed: that isn't written again.
  // But a row without a block on the device has none here either.
  PrefixMatch host = host_match_;
  host.num_blocks =
      match.num_blocks > 0 && match.ticket == device_match_.ticket ? host_match_.num_blocks : 0;
  if (host_match_.newest_pending != kNoPlan && !is_loading) {
    host.num_blocks = 0;  // another sequence writes them still; if it fails they are void
  }
  const bool has_host = host_.acquire(row, host);
  if constexpr (kHasTier) {
    link_.touch(host_.table(0, row));
  }
  if (config_.min_touches > 1) {
    const std::int64_t worth = count_touches(row, device.num_blocks);
    // Where host memory has some of it still to be written, somebody else has just begun.
    if (!is_loading && host_match_.newest_pending == kNoPlan) {
      write(row, matched_, worth, device_match_.newest_pending);
    }
  }
  if (!is_loading) {
    return true;
  }
  if (!has_host || !extend(row, match.num_blocks * block_size_)) {
    pool_.release(row);
    host_.release(row);
    return false;
  }
  const std::span<const BlockId> to = pool_.table(0, row);
  const std::span<const BlockId> from = host_.table(0, row);
  for (std::int64_t i = device.num_blocks; i < match.num_blocks; ++i) {
    const auto at = static_cast<std::size_t>(i);
    push_move({{to[at], from[at].value, false}, row, static_cast<std::int32_t>(i), kNoPlan});
  }
  num_loaded_ += static_cast<std::uint64_t>(match.num_blocks - device.num_blocks);
  return true;
}

/// A row has found its first `found` blocks. Returns how many leading ones were found often enough
/// by now: they are written with the plan that admits the row, or, as far as a plan in flight has
/// still to compute them, with the next one; parents before children. The row holds them meanwhile.
template <class Pool, class Tier>
std::int64_t TieredPool<Pool, Tier>::count_touches(Row row, std::int64_t found) noexcept {
  const std::span<const BlockId> table = pool_.table(0, row);
  std::int64_t worth = 0;
  for (std::int64_t i = 0; i < found; ++i) {
    std::int32_t& touches =
        touches_[static_cast<std::size_t>(table[static_cast<std::size_t>(i)].value)];
    touches = min_of(touches + 1, config_.min_touches);
    worth += worth == i && touches + 1 >= config_.min_touches ? 1 : 0;
  }
  forget_touches(row, static_cast<std::size_t>(found));  // a block to copy to
  return worth;
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::publish(Row row, const SequenceContentView& content,
                                     std::int64_t tokens, PlanId plan) noexcept {
  pool_.publish(row, content, tokens, plan);
  if (config_.min_touches > 1) {
    return;  // written by those who find it
  }
  const std::int64_t end = min_of(max_of<std::int64_t>(tokens, 0) / block_size_,
                                  static_cast<std::int64_t>(pool_.table(0, row).size()));
  if (config_.load_block_ns > 0) {
    hold_written(row, content, end);
  }
  write(row, content, end, plan);
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::write(Row row, const SequenceContentView& content, std::int64_t end,
                                   PlanId plan) noexcept {
  const auto held = static_cast<std::int64_t>(host_.table(0, row).size());
  if (end <= held || moves_.size() + static_cast<std::size_t>(end - held) > moves_.capacity() ||
      !host_.extend(row, end * block_size_)) {
    return;  // not now: a later block, or the next use, takes them along
  }
  host_.publish(row, content, end * block_size_, plan);
  const std::int64_t published = host_.num_published_blocks(row);
  if (published < end) {
    host_.truncate(row, max_of(published, held) * block_size_);
  }
  if constexpr (kHasTier) {
    link_.note_writes(content, host_.table(0, row), held, published);
  }
  write_through(row, held, published, plan);
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::hold_written(Row row, const SequenceContentView& content,
                                          std::int64_t end) noexcept {
  if (end <= 0 || !host_.table(0, row).empty()) {
    return;
  }
  const PrefixMatch written = host_.match(content, end * block_size_);
  if (written.num_blocks > 0 && written.newest_pending == kNoPlan) {
    host_.acquire(row, written);
  }
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::write_through(Row row, std::int64_t first, std::int64_t end,
                                           PlanId plan) noexcept {
  const std::span<const BlockId> from = pool_.table(0, row);
  const std::span<const BlockId> to = host_.table(0, row);
  for (std::int64_t i = first; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    push_move({{from[at], to[at].value, true}, row, static_cast<std::int32_t>(i), plan});
  }
}

template <class Pool, class Tier>
bool TieredPool<Pool, Tier>::awaits_load(const SequenceContentView& content, std::int64_t limit,
                                         LoadWait& wait) noexcept
  requires kHasTier
{
  if (content.scope == nullptr) {
    return false;
  }
  const std::int64_t end = min_of(limit, min_of(content.known_length, content.cacheable_length));
  return link_.awaits(content, max_of<std::int64_t>(end, 0) / block_size_,
                      max_of(device_match_.num_blocks, host_match_.num_blocks), host_match_, host_,
                      wait);
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::truncate(Row row, std::int64_t tokens) noexcept {
  const std::int64_t kept = max_of<std::int64_t>(tokens, 0) / block_size_;
  cancel(row, kept, true);
  if (static_cast<std::int64_t>(host_.table(0, row).size()) > kept) {
    host_.withdraw(row, kept * block_size_);
    host_.truncate(row, kept * block_size_);
  }
  pool_.truncate(row, tokens);
}

template <class Pool, class Tier>
Status TieredPool<Pool, Tier>::fork(Row from, Row to, std::int64_t tokens) noexcept {
  if (const Status s = pool_.fork(from, to, tokens); !s) {
    return s;
  }
  if (config_.min_touches > 1) {
    forget_touches(to, static_cast<std::size_t>(max_of<std::int64_t>(tokens, 0) / block_size_));
  }
  const std::int64_t whole = min_of(static_cast<std::int64_t>(host_.table(0, from).size()),
                                    max_of<std::int64_t>(tokens, 0) / block_size_);
  return whole > 0 ? host_.fork(from, to, whole * block_size_) : kOk;
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::release(Row row) noexcept {
  std::int64_t first_load = -1;
  for (const Move& move : moves_) {
    if (move.row == row && !move.swap.to_host) {
      first_load = first_load < 0 ? move.index : min_of<std::int64_t>(first_load, move.index);
    }
  }
  if (first_load >= 0) {
    withdraw(row, first_load * block_size_);  // nobody loads them: who shares them reads nothing
  }
  for (Move& move : moves_) {
    move.row = move.row == row ? kNoRow : move.row;  // the next sequence there is another one
  }
  pool_.release(row);
  host_.release(row);
}

/// Moves of the row's blocks from `first` on that nobody was told yet need not be made: loads, and
/// with `with_writes` what would write content that never came to be.
template <class Pool, class Tier>
void TieredPool<Pool, Tier>::cancel(Row row, std::int64_t first, bool with_writes) noexcept {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    const Move move = moves_[i];
    const bool is_cancelled =
        move.row == row && move.index >= first && (!move.swap.to_host || with_writes);
    if (is_cancelled) {
      drop_move(move);
    } else {
      moves_[kept++] = move;
    }
  }
  moves_.resize(kept);
}

template <class Pool, class Tier>
std::size_t TieredPool<Pool, Tier>::drain_swaps(std::span<BlockSwap> swaps, PlanId plan) noexcept {
  std::size_t n = 0;
  for (const bool to_host : {true, false}) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < moves_.size(); ++i) {
      const Move move = moves_[i];
      if (move.swap.to_host == to_host && move.writer < plan && n < swaps.size()) {
        swaps[n++] = move.swap;
        if constexpr (kHasTier) {
          link_.tell_move(move.swap, plan);
        }
      } else {
        moves_[kept++] = move;
      }
    }
    moves_.resize(kept);
  }
  return n;
}

template <class Pool, class Tier>
void TieredPool<Pool, Tier>::lose_swaps(std::span<const BlockSwap> swaps) noexcept {
  if constexpr (kHasTier) {
    link_.lose_told(swaps);
  }
  for (const BlockSwap& swap : swaps) {
    if (swap.to_host) {
      host_.forget(BlockId{swap.host_slot});
    }
  }
}

template <class Pool, class Tier>
Status TieredPool<Pool, Tier>::check() const noexcept {
  if (const Status s = pool_.check(); !s) {
    return s;
  }
  if (const Status s = host_.check(); !s) {
    return s;
  }
  if constexpr (kHasTier) {
    if (const Status s = link_.check(host_); !s) {
      return s;
    }
  }
  for (const Move& move : moves_) {
    const std::span<const BlockId> host = host_.table(0, move.row);
    const auto at = static_cast<std::size_t>(move.index);
    if (!move.swap.to_host && (at >= host.size() || host[at].value != move.swap.host_slot)) {
      return {Errc::InternalError, "moves", move.index, static_cast<std::int64_t>(host.size()),
              "a load reads what its row does not hold"};
    }
  }
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
