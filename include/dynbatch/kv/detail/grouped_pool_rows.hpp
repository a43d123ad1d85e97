// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// GroupedPool: what its groups do together.
#include <dynbatch/kv/grouped_pool.hpp>

namespace dynbatch::inline DYNBATCH_ABI {

template <class Pool>
constexpr Status GroupedPool<Pool>::Config::validate() const noexcept {
  if (const Status s = pool.validate(); !s) {
    return s;
  }
  const std::int64_t multiple = unit();
  for (std::size_t i = 0; i < num_further(); ++i) {
    const KvGroupConfig& group = groups[i];
    const GroupSpec& spec = group.spec;
    if (spec.kind == GroupKind::Full) {
      return {Errc::NotSupported, "groups.kind", static_cast<std::int64_t>(i), 0,
              "layers of full attention belong to the first group"};
    }
    if (group.num_blocks < 1 || group.num_blocks > 2147483646) {
      return {Errc::InvalidConfig, "groups.num_blocks", group.num_blocks, 2147483646,
              "must be in [1, limit]"};
    }
    if (spec.kind == GroupKind::Recurrent && (spec.block_size != 1 || spec.window != 0)) {
      const bool is_state = spec.block_size == 1;
      return {Errc::InvalidConfig, is_state ? "groups.window" : "groups.block_size",
              is_state ? spec.window : spec.block_size, is_state ? 0 : 1,
              "a block of a recurrent group is a state: block_size 1, window 0"};
    }
    if (spec.block_size < 1 || spec.block_size > 65536) {
      return {Errc::InvalidConfig, "groups.block_size", spec.block_size, 65536,
              "must be in [1, limit]"};
    }
    if (spec.kind == GroupKind::Window && spec.window < 1) {
      return {Errc::InvalidConfig, "groups.window", spec.window, 1, "must be at least 1"};
    }
  }
  for (std::size_t i = 0; i < num_further(); ++i) {  // each by itself is right
    const std::int32_t size = groups[i].spec.block_size;
    if (multiple % size != 0 || (pool.block_size % size != 0 && size % pool.block_size != 0)) {
      return {Errc::InvalidConfig, "groups.block_size", size, pool.block_size,
              "block sizes must divide one another"};
    }
  }
  for (std::size_t i = num_further(); i < kMaxFurther; ++i) {
    if (groups[i].num_blocks != 0 || !(groups[i].spec == GroupSpec{})) {
      return {Errc::InvalidConfig, "groups.num_blocks", groups[num_further()].num_blocks,
              static_cast<std::int64_t>(i), "a group without blocks, or behind one"};
    }
  }
  if (snapshot_interval_tokens < 0 || interval() % multiple != 0) {
    return {Errc::InvalidConfig, "snapshot_interval_tokens", snapshot_interval_tokens, multiple,
            "must be a multiple of all block sizes"};
  }
  return kOk;
}

template <class Pool>
constexpr std::int64_t GroupedPool<Pool>::blocks_needed(const GroupSpec& spec,
                                                        const PoolAttachment& attachment) noexcept {
  const std::int64_t rows = attachment.max_rows;
  if (spec.kind == GroupKind::Recurrent) {
    return rows;
  }
  const std::int64_t size = max_of(spec.block_size, 1);
  const std::int64_t all =
      rows * ceil_div(max_of<std::int64_t>(attachment.max_context_tokens, 0), size);
  // Sources of copies keep their blocks until these are made.
  const std::int64_t copies = rows * (attachment.in_order ? 1 : 1 + attachment.max_plans_in_flight);
  if (attachment.max_step_tokens <= 0) {
    return all + copies;
  }
  // A row with u tokens in flight holds the blocks that a stretch of window - 1 + u positions
  // touches: at most (window + u - 3 + block size) / block size + 1, rounded down. The sum of u is
  // bounded; one more a row is a decode that found room in its table but none elsewhere.
  const std::int64_t in_flight =
      saturating_mul(attachment.max_step_tokens, attachment.max_plans_in_flight) + rows;
  const std::int64_t touched =
      max_of<std::int64_t>(saturating_mul(rows, std::int64_t{spec.window} + size - 3), 0) / size +
      in_flight / size + 2 + rows;
  return min_of(touched, all) + copies;
}

template <class Pool>
Status GroupedPool<Pool>::attach(const PoolAttachment& attachment) noexcept {
  max_rows_ = 0;
  if (const Status s = config_.validate(); !s) {
    return s;
  }
  if (pool_.groups().size() != 1) {
    return {Errc::InvalidConfig, "pool", static_cast<std::int64_t>(pool_.groups().size()), 1,
            "must be a pool of one group"};
  }
  PoolAttachment inner = attachment;
  inner.partial_copy = attachment.partial_copy && num_groups_ == 1;  // others end at whole blocks
  if (const Status s = pool_.attach(inner); !s) {
    return s;
  }
  block_size_ = specs_[0].block_size;
  interval_ = config_.interval();
  in_order_ = attachment.in_order;
  has_states_ = false;
  const std::int64_t prefixes = pool_.stats().total_blocks;
  for (std::size_t i = 1; i < num_groups_; ++i) {
    const std::int64_t num_blocks = config_.groups[i - 1].num_blocks;
    const std::int64_t needed = blocks_needed(specs_[i], attachment);
    if (num_blocks < needed) {
      return {Errc::InvalidConfig, "groups.num_blocks", num_blocks, needed,
              "less than all rows together can need"};
    }
    if (!is_window(i) && !attachment.in_order) {
      return {Errc::InvalidConfig, "capabilities.in_order", 0, 1,
              "recurrent states need steps in plan order"};
    }
    has_states_ = has_states_ || !is_window(i);
    const Status s = is_window(i)
                         ? windows_[i - 1].attach(specs_[i], attachment, num_blocks,
                                                  specs_[0].block_size, prefixes)
                         : states_[i - 1].attach(attachment, num_blocks, specs_[0].block_size,
                                                 prefixes, interval_);
    if (!s) {
      return s;
    }
  }
  max_context_tokens_ = attachment.max_context_tokens;
  max_rows_ = attachment.max_rows;
  return kOk;
}

/// Whether all groups can serve the first blocks of the latest match.
template <class Pool>
bool GroupedPool<Pool>::serves(std::int64_t blocks) const noexcept {
  const std::int64_t tokens = blocks * block_size_;
  for (std::size_t i = 1; i < num_groups_; ++i) {
    if (is_window(i) ? !windows_[i - 1].serves(tokens)
                     : !states_[i - 1].serves(keys_of_match()(blocks - 1))) {
      return false;
    }
  }
  return true;
}

template <class Pool>
PrefixMatch GroupedPool<Pool>::match(const SequenceContentView& content,
                                     std::int64_t limit) noexcept {
  PrefixMatch result = pool_.match(content, limit);
  matched_ = state_;
  for_each([&](detail::WindowTables& w) { w.measure(result.num_blocks, keys_of_match()); },
           [](detail::StateBlocks&) {});
  std::int64_t blocks = result.num_blocks;
  while (blocks > 0 && !serves(blocks)) {
    --blocks;
  }
  if (blocks < result.num_blocks) {
    result.num_blocks = blocks;
    result.num_tokens = blocks * block_size_;
    result.idle_blocks = 0;
    const auto matched = pool_.matched().first(static_cast<std::size_t>(blocks));
    for (const BlockId block : matched) {
      result.idle_blocks += pool_.references(block) == 0 ? 1 : 0;
    }
    result.newest_pending = pool_.newest_pending(matched);
  }
  return result;
}

template <class Pool>
bool GroupedPool<Pool>::acquire(Row row, const PrefixMatch& match) noexcept {
  if (!is_row(row)) {
    return false;
  }
  const std::int64_t blocks = match.num_blocks;
  if (blocks != 0 &&
      (matched_ != state_ || blocks < 0 ||
       blocks > static_cast<std::int64_t>(pool_.matched().size()) || !serves(blocks))) {
    return false;
  }
  if (!pool_.acquire(row, match)) {
    return false;
  }
  ++state_;
  if (blocks == 0) {
    return true;
  }
  // Hits of all groups are referenced before any group takes a new block.
  const std::int64_t tokens = blocks * block_size_;
  for_each([&](detail::WindowTables& w) { w.acquire(row, tokens, keys_of_match()); },
           [&](detail::StateBlocks& s) { s.acquire(row, tokens, keys_of_match()(blocks - 1)); });
  return true;
}

template <class Pool>
bool GroupedPool<Pool>::extend(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return false;
  }
  const std::int64_t end = clamped(tokens);
  for (std::size_t i = 1; i < num_groups_; ++i) {
    if (is_window(i) ? !windows_[i - 1].can_extend(row, end)
                     : !states_[i - 1].can_extend(row, end)) {
      return false;
    }
  }
  if (!pool_.extend(row, tokens)) {
    return false;
  }
  for_each([&](detail::WindowTables& w) { w.extend(row, end); },
           [&](detail::StateBlocks& s) { s.extend(row, end, is_alive()); });
  ++state_;
  return true;
}

template <class Pool>
void GroupedPool<Pool>::publish(Row row, const SequenceContentView& content, std::int64_t tokens,
                                PlanId plan) noexcept {
  pool_.publish(row, content, tokens, plan);
  if (is_row(row)) {
    for_each([&](detail::WindowTables& w) { w.offer(row, keys_of(row)); },
             [](detail::StateBlocks&) {});
    ++state_;
  }
}

template <class Pool>
void GroupedPool<Pool>::truncate(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return;
  }
  pool_.truncate(row, tokens);
  const std::int64_t end = clamped(tokens);
  for_each([&](detail::WindowTables& w) { w.trim(row, end, is_alive()); },
           [&](detail::StateBlocks& s) { s.trim(row, end, is_alive()); });
  ++state_;
}

template <class Pool>
Status GroupedPool<Pool>::fork(Row from, Row to, std::int64_t tokens) noexcept {
  const bool is_valid =
      is_row(from) && is_row(to) && from != to && tokens >= 0 && tokens <= max_context_tokens_;
  for (std::size_t i = 1; i < num_groups_ && is_valid; ++i) {
    if (is_window(i) ? !windows_[i - 1].can_fork(from, tokens)
                     : !states_[i - 1].can_fork(from, tokens)) {
      return {Errc::NotSupported, "groups", static_cast<std::int64_t>(i), tokens,
              "the group can't fork the row at that length"};
    }
  }
  if (const Status s = pool_.fork(from, to, tokens); !s) {
    return s;
  }
  for_each([&](detail::WindowTables& w) { w.fork(from, to, tokens); },
           [&](detail::StateBlocks& s) { s.fork(from, to, tokens); });
  ++state_;
  return kOk;
}

template <class Pool>
void GroupedPool<Pool>::release(Row row) noexcept {
  if (!is_row(row)) {
    return;
  }
  pool_.release(row);
  for_each([&](detail::WindowTables& w) { w.release(row, is_alive()); },
           [&](detail::StateBlocks& s) { s.release(row, is_alive()); });
  ++state_;
}

template <class Pool>
std::span<const BlockId> GroupedPool<Pool>::table(std::size_t group, Row row) const noexcept {
  if (group == 0 || group >= num_groups_ || !is_row(row)) {
    return group == 0 ? pool_.table(0, row) : std::span<const BlockId>{};
  }
  return is_window(group) ? windows_[group - 1].table(row) : states_[group - 1].table(row);
}

template <class Pool>
void GroupedPool<Pool>::settle(PlanId plan) noexcept {
  pool_.settle(plan);
  for_each([&](detail::WindowTables& w) { w.cache().settle(plan, is_alive()); },
           [&](detail::StateBlocks& s) { s.settle(plan, is_alive()); });
  ++state_;
}

template <class Pool>
std::int64_t GroupedPool<Pool>::withdraw(Row row, std::int64_t tokens) noexcept {
  if (!is_row(row)) {
    return 0;
  }
  const std::int64_t withdrawn = pool_.withdraw(row, tokens);
  const std::int64_t end = clamped(tokens);
  for_each([&](detail::WindowTables& w) { w.trim(row, end, is_alive()); },
           [&](detail::StateBlocks& s) { s.trim(row, end, is_alive()); });
  ++state_;
  return withdrawn;
}

template <class Pool>
bool GroupedPool<Pool>::clear() noexcept {
  if (!pool_.clear()) {
    return false;
  }
  for_each([](detail::WindowTables& w) { w.cache().clear(); },
           [&](detail::StateBlocks& s) { s.clear(is_alive()); });
  ++state_;
  return true;
}

template <class Pool>
Status GroupedPool<Pool>::check() const noexcept {
  Status s = pool_.check();
  for (std::size_t i = 1; i < num_groups_ && s && max_rows_ > 0; ++i) {
    s = is_window(i) ? windows_[i - 1].check() : states_[i - 1].check();
  }
  return s;
}

template <class Pool>
void GroupedPool<Pool>::plan_chunk(Row row, std::int64_t end, PlanId plan) noexcept {
  for_each([](detail::WindowTables&) {},
           [&](detail::StateBlocks& s) { s.plan_chunk(row, end, plan); });
}

template <class Pool>
void GroupedPool<Pool>::advance(Row row, std::int64_t processed, std::int64_t planned) noexcept {
  if (is_row(row)) {
    for_each(
        [&](detail::WindowTables& w) {
          w.advance(row, processed, planned, keys_of(row), is_alive());
        },
        [](detail::StateBlocks&) {});
    ++state_;
  }
}

template <class Pool>
std::size_t GroupedPool<Pool>::drain_copies(std::size_t group, std::span<BlockCopy> copies,
                                            PlanId plan) noexcept {
  if (group == 0 || group >= num_groups_ || max_rows_ == 0) {
    return 0;
  }
  ++state_;
  if (is_window(group)) {
    return windows_[group - 1].cache().drain_copies(copies, plan, in_order_, is_alive());
  }
  const auto keys = [this](Row row, std::int64_t i) noexcept { return key_of(row, i); };
  return states_[group - 1].drain_copies(copies, plan, keys, is_alive());
}

template <class Pool>
std::size_t GroupedPool<Pool>::drain_zeroes(std::size_t group, std::span<BlockId> blocks) noexcept {
  return group == 0 || group >= num_groups_ || is_window(group) || max_rows_ == 0
             ? 0
             : states_[group - 1].drain_zeroes(blocks);
}

template <class Pool>
void GroupedPool<Pool>::lose_plan(PlanId plan) noexcept {
  for_each([](detail::WindowTables&) {}, [&](detail::StateBlocks& s) { s.lose(plan, is_alive()); });
  ++state_;
}

template <class Pool>
std::int64_t GroupedPool<Pool>::chunk_length(std::int64_t first,
                                             std::int64_t tokens) const noexcept {
  if (!has_states_ || !config_.align_chunks || tokens <= 0) {
    return tokens;
  }
  const std::int64_t end = (first + tokens) / interval_ * interval_;
  return end > first ? end - first : tokens;
}

template <class Pool>
bool GroupedPool<Pool>::must_leave(Row row) const noexcept {
  for (std::size_t i = 1; i < num_groups_ && is_row(row); ++i) {
    if (is_window(i) ? windows_[i - 1].is_short(row) : states_[i - 1].is_void(row)) {
      return true;
    }
  }
  return false;
}

template <class Pool>
PoolStats GroupedPool<Pool>::group_stats(std::size_t group) const noexcept {
  if (group == 0 || group >= num_groups_) {
    return group == 0 ? pool_.stats() : PoolStats{};
  }
  const BlockStore<Lru>& store = cache_of(group).store();
  PoolStats s{};
  s.total_blocks = store.total();
  s.free_blocks = store.num_free();
  s.cached_blocks = store.num_cached();
  s.referenced_blocks = store.num_referenced();
  s.block_size = specs_[group].block_size;
  return s;
}

static_assert(KVCachePool<GroupedPool<>>);

}  // namespace dynbatch::inline DYNBATCH_ABI
