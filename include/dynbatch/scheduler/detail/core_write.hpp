// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// SchedulerCore: writes chunks, block-table deltas and token slots into a plan, and seals it.
#include <dynbatch/scheduler/detail/core.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// Tells the host the row's table entries that it does not know yet.
template <class P>
void SchedulerCore<P>::emit_deltas(PlanRecord& record, std::int32_t row) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  const std::span<const BlockId> table = policies_.pool.table(0, Row{row});
  for (auto i = by_sequence_ ? table.size() : static_cast<std::size_t>(r.told_blocks);
       i < table.size(); ++i) {
    record.deltas.push_back({Row{row}, static_cast<std::int32_t>(i), table[i]});
  }
  r.told_blocks = static_cast<std::int32_t>(table.size());
}

/// Table room for `tokens` positions, which the caller has made sure can be had.
template <class P>
void SchedulerCore<P>::extend_row(std::int32_t row, std::int32_t tokens) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  const std::int64_t before = blocks_for(r.table_tokens);
  const std::int64_t added = blocks_for(tokens) - before;
  if (added <= 0 && !has_more_groups()) {
    return;
  }
  const bool is_extended = policies_.pool.extend(Row{row}, tokens);
  DYNBATCH_ASSERT(is_extended, "the pool refused blocks that it had called available");
  if (added <= 0) {
    return;  // further groups grow by each token
  }
  r.table_tokens = static_cast<std::int32_t>(before + added) * block_size_;
  if (r.held_blocks > 0) {
    hold_blocks(r, max_of<std::int64_t>(r.held_blocks - added, 0));
  }
}

/// Plans decodes for as long as they are the common case: nothing in flight, room in the table, no
/// block completed, nothing to tell. Stops at the first row that is not, or when `budget` is used
/// up. This loop is most of what a step costs; it touches the two hot lines of a row and nothing of
/// its request.
template <class P>
std::int32_t SchedulerCore<P>::append_plain_decodes(PlanRecord& record, std::int32_t index,
                                                    std::int32_t end,
                                                    std::int64_t& budget) noexcept {
  RowState* const states = rows_.data();
  Chunk* chunk = record.chunks.data() + record.num_chunks;
  ChunkUndo* undo = record.undo.data() + record.num_chunks;
  std::int32_t* const query_start = record.query_start.data();
  std::int32_t* const rows = record.rows.data();
  std::int32_t* const lengths = record.context_lengths.data();
  Token* const tokens = record.tokens.data();
  std::int32_t* const positions = record.positions.data();
  TokenSlot* const slots = record.token_slots.data();
  const std::uint64_t plan = record.plan.id.value;
  std::size_t c = record.num_chunks;
  std::size_t t = record.num_tokens;
  std::int32_t sample = record.num_samples;
  std::int64_t kv = 0;
  const std::size_t first = c;
  const std::size_t last = first + static_cast<std::size_t>(budget);
  for (; index < end && c < last; ++index) {
    const std::int32_t row = decoding_.at(index);
    if (row < 0) {
      continue;
    }
    RowState& r = states[row];
    const std::int32_t position = r.planned;
    const std::int32_t next = position + 1;
    if (r.in_flight != 0 || r.known != next || position >= r.plain_end) {
      break;
    }
    chunk->sequence = r.sequence;
    chunk->request = r.request;
    chunk->user_data = r.user_data;
    chunk->first_position = position;
    chunk->num_tokens = 1;
    chunk->context_length = next;
    chunk->logits_from = position;
    chunk->first_token = static_cast<std::int32_t>(t);
    chunk->first_sample = sample;
    chunk->num_samples = 1;
    chunk->sample = r.sample;
    chunk->row = Row{row};
    chunk->kind = ChunkKind::Decode;
    undo->epoch = r.epoch;
    undo->blocks_before = r.told_blocks;
    undo->phase_before = RowPhase::Decode;
    undo->is_plain = !r.checks_tokens;
    undo->is_beam = false;
    query_start[c] = static_cast<std::int32_t>(t);
    rows[c] = row;
    lengths[c] = next;
    tokens[t] = r.last_token;
    positions[t] = position;
    slots[t] = TokenSlot{r.slot_base + position};
    r.planned = next;
    r.in_flight = 1;
    r.pending_samples = 1;
    r.last_plan = plan;
    kv += next;
    ++chunk;
    ++undo;
    ++c;
    ++t;
    ++sample;
  }
  const auto added = static_cast<std::int32_t>(c - first);
  budget -= added;
  record.num_chunks = c;
  record.num_tokens = t;
  record.num_samples = sample;
  decoding_kv_ += added;
  record.plan.work.decode_rows += added;
  record.plan.work.kv_tokens += kv;
  record.plan.num_decode_chunks += added;
  return index;
}

/// How many of a row's drafts its next decode can carry: drafts never take blocks or budget from
/// others, and never lead beyond the sequence's end.
template <class P>
std::int32_t SchedulerCore<P>::drafts_that_fit(std::int32_t row, std::int64_t budget) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  if (r.num_drafts == 0 || r.sync_decode || r.pending_samples > 0) {
    return 0;
  }
  auto n = static_cast<std::int32_t>(
      min_of<std::int64_t>(min_of(r.num_drafts, r.known_limit - r.known - 1), budget - 1));
  n = max_of(n, 0);
  if (block_size_ > 0 && r.planned + 1 + n > r.table_tokens) {
    const std::int64_t missing = blocks_for(r.planned + 1 + n) - blocks_for(r.table_tokens);
    if (missing <= spare_blocks() + r.held_blocks) {
      extend_row(row, r.planned + 1 + n);
    } else {
      n = r.table_tokens - r.planned - 1;
    }
  }
  return n;
}

/// A decode, with its drafts and whatever else falls due with it; returns its number of tokens.
template <class P>
std::int32_t SchedulerCore<P>::append_decode(PlanRecord& record, std::int32_t row,
                                             std::int64_t budget) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  const std::int32_t drafts = drafts_that_fit(row, budget);
  const std::int32_t n = 1 + drafts;
  if (has_more_groups()) {
    extend_row(row, r.planned + n);
  }
  const std::size_t t = record.num_tokens;
  record.num_tokens += static_cast<std::size_t>(n);
  const std::int32_t first = r.planned;
  Chunk& chunk = record.chunks.data()[record.num_chunks];
  chunk.first_position = first;
  chunk.num_tokens = n;
  chunk.first_token = static_cast<std::int32_t>(t);
  chunk.kind = ChunkKind::Decode;
  record.tokens.data()[t] = r.pending_samples > 0 ? future_token(Row{row}) : r.last_token;
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t position = first + i;
    const std::size_t at = t + static_cast<std::size_t>(i);
    if (i > 0) {
      record.tokens.data()[at] =
          drafts_.data()[static_cast<std::size_t>(row) *
                             static_cast<std::size_t>(config_.max_draft_tokens) +
                         static_cast<std::size_t>(i - 1)];
    }
    record.positions.data()[at] = position;
    if (block_size_ > 0) {
      const std::int32_t index =
          block_shift_ >= 0 ? position >> block_shift_ : position / block_size_;
      const std::int64_t block =
          policies_.pool.table(0, Row{row})[static_cast<std::size_t>(index)].value;
      record.token_slots.data()[at] =
          TokenSlot{block * block_size_ + (position - index * block_size_)};
    }
  }
  r.num_drafts = 0;
  r.draft_tokens = drafts;
  decoding_kv_ += n;
  ++record.plan.work.decode_rows;
  record.plan.work.kv_tokens += first + n;
  ++record.plan.num_decode_chunks;
  finish_chunk(record, row, chunk);
  return n;
}

/// `num_tokens` known positions of a row inside its prompt (or its recomputation).
template <class P>
void SchedulerCore<P>::append_prefill(PlanRecord& record, std::int32_t row, std::int32_t num_tokens,
                                      Budget& budget) noexcept {
  const RowState& r = rows_[static_cast<std::size_t>(row)];
  if (block_size_ > 0) {
    extend_row(row, r.planned + num_tokens);
  }
  const std::size_t t = record.num_tokens;
  record.num_tokens += static_cast<std::size_t>(num_tokens);
  const std::int32_t first = r.planned;
  const std::int32_t last = first + num_tokens;
  Chunk& chunk = record.chunks.data()[record.num_chunks];
  chunk.first_position = first;
  chunk.num_tokens = num_tokens;
  chunk.first_token = static_cast<std::int32_t>(t);
  chunk.kind = ChunkKind::Prefill;

  std::int32_t* positions = record.positions.data() + t;
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    positions[i] = first + i;
  }
  // Tokens, a page at a time. A digest prompt has none: the host knows its content.
  const RequestRecord& request = desk_[r.slot];
  Token* tokens = record.tokens.data() + t;
  std::int32_t position = first;
  if (request.digest_unit != 0 && position < r.prompt_end) {
    const std::int32_t end = min_of(last, r.prompt_end);
    std::memset(tokens, 0, static_cast<std::size_t>(end - position) * sizeof(Token));
    position = end;
  }
  const std::int64_t page_tokens = desk_.tokens().page_tokens();
  while (position < last) {
    const std::int64_t storage = position + request.token_base;
    const auto n = static_cast<std::int32_t>(
        min_of<std::int64_t>(last - position, page_tokens - storage % page_tokens));
    std::memcpy(tokens + (position - first), desk_.tokens().at(r.slot, storage),
                static_cast<std::size_t>(n) * sizeof(Token));
    position += n;
  }
  if (block_size_ > 0) {
    TokenSlot* slots = record.token_slots.data() + t;
    const std::span<const BlockId> table = policies_.pool.table(0, Row{row});
    for (std::int32_t p = first; p < last;) {
      const std::int32_t index = p / block_size_;
      const std::int32_t end = min_of(last, (index + 1) * block_size_);
      std::int64_t slot =
          static_cast<std::int64_t>(table[static_cast<std::size_t>(index)].value) * block_size_ +
          (p - index * block_size_);
      for (; p < end; ++p) {
        *slots++ = TokenSlot{slot++};
      }
    }
  }
  budget.tokens -= num_tokens;
  budget.prefill_tokens -= num_tokens;
  late_passed_ = desk_[rows_[static_cast<std::size_t>(row)].slot].is_late ? 0 : late_passed_;
  ++budget.prefill_chunks;
  ++record.plan.num_prefill_chunks;
  record.plan.work.prefill_tokens += num_tokens;
  record.plan.work.attention_pairs =
      saturating_add(record.plan.work.attention_pairs, chunk_attention_pairs(first, num_tokens));
  finish_chunk(record, row, chunk);
}

/// The part that all chunks share: identity, samples, the row's new state, and the blocks that
/// become visible to others.
template <class P>
void SchedulerCore<P>::finish_chunk(PlanRecord& record, std::int32_t row, Chunk& chunk) noexcept {
  RowState& r = rows_[static_cast<std::size_t>(row)];
  DYNBATCH_ASSERT(record.num_tokens <= record.tokens.size(), "a plan outgrew its arrays");
  const std::size_t c = record.num_chunks++;
  const std::int32_t end = chunk.first_position + chunk.num_tokens;
  chunk.sequence = r.sequence;
  chunk.request = r.request;
  chunk.user_data = r.user_data;
  chunk.sample = r.sample;
  chunk.context_length = end;
  chunk.row = Row{row};
  chunk.first_sample = record.num_samples;
  record.undo.data()[c] = {r.epoch, r.told_blocks, r.phase, false,
                           r.is_beam && chunk.kind == ChunkKind::Decode};
  if (r.told_blocks * block_size_ < r.table_tokens) {
    emit_deltas(record, row);
  }
  record.query_start.data()[c] = chunk.first_token;
  record.rows.data()[c] = row;
  record.context_lengths.data()[c] = end;

  r.planned = end;
  ++r.in_flight;
  r.last_plan = record.plan.id.value;
  const std::int32_t reachable = r.known + r.pending_samples;
  if (end >= reachable && reachable < r.known_limit) {
    // The last prompt position is sampled once for each sample; a decode with drafts at each of
    // its positions, for one run of tokens.
    chunk.num_samples = chunk.kind == ChunkKind::Prefill ? 1 + r.reserved_rows : 1;
    chunk.logits_from = chunk.kind == ChunkKind::Prefill ? end - 1 : chunk.first_position;
    record.num_samples += chunk.num_samples;
    ++r.pending_samples;
  } else {
    chunk.num_samples = 0;
    chunk.logits_from = end;
  }
  if (chunk.kind == ChunkKind::Prefill && end == reachable) {
    set_phase(row, RowPhase::Decode);
  }
  // Only what is known can be shared: the positions of drafts and of tokens to come follow later.
  const std::int32_t known_end = min_of(end, r.known);
  if (known_end >= r.next_publish) {
    policies_.pool.publish(Row{row}, content(r.slot, r.known), known_end, record.plan.id);
    r.next_publish = (known_end / block_size_ + 1) * block_size_;
  }
  if (has_more_groups()) {
    write_groups(record, row, chunk);
    r.plain_end = 0;
  } else if (block_size_ > 0 && r.phase == RowPhase::Decode && end < r.table_tokens &&
             r.draft_tokens == 0 && !r.is_beam) {
    // Decodes inside the block of position `end` are plain: up to the one that fills it, if filling
    // it publishes it, and short of the one whose token ends the sequence.
    const std::int32_t index = end / block_size_;
    const std::int64_t block =
        policies_.pool.table(0, Row{row})[static_cast<std::size_t>(index)].value;
    r.slot_base = (block - index) * block_size_;
    r.plain_end = min_of(min_of((index + 1) * block_size_, r.next_publish - 1), r.known_limit - 2);
  } else {
    r.plain_end = 0;
  }
}

/// Closes the gaps that preempted rows left in the plan under construction.
template <class P>
void SchedulerCore<P>::drop_planned_chunks(PlanRecord& record) noexcept {
  std::size_t chunks = 0;
  std::size_t tokens = 0;
  record.num_samples = 0;
  StepPlan& plan = record.plan;
  plan.work = {};
  plan.num_prefill_chunks = 0;
  plan.num_decode_chunks = 0;
  for (std::size_t i = 0; i < record.num_chunks; ++i) {
    Chunk chunk = record.chunks[i];
    if (chunk.num_tokens == 0) {
      continue;
    }
    const auto from = static_cast<std::size_t>(chunk.first_token);
    const auto n = static_cast<std::size_t>(chunk.num_tokens);
    std::memmove(record.tokens.data() + tokens, record.tokens.data() + from, n * sizeof(Token));
    std::memmove(record.positions.data() + tokens, record.positions.data() + from,
                 n * sizeof(std::int32_t));
    std::memmove(record.token_slots.data() + tokens, record.token_slots.data() + from,
                 n * sizeof(TokenSlot));
    if (has_more_groups()) {
      close_group_gaps(record, tokens, from, n);
    }
    chunk.first_token = static_cast<std::int32_t>(tokens);
    chunk.first_sample = record.num_samples;
    record.num_samples += chunk.num_samples;
    record.undo[chunks] = record.undo[i];
    record.query_start[chunks] = chunk.first_token;
    record.rows[chunks] = record.rows[i];
    record.context_lengths[chunks] = record.context_lengths[i];
    record.chunks[chunks++] = chunk;
    tokens += n;
    if (chunk.kind == ChunkKind::Prefill) {
      ++plan.num_prefill_chunks;
      plan.work.prefill_tokens += chunk.num_tokens;
      plan.work.attention_pairs = saturating_add(
          plan.work.attention_pairs, chunk_attention_pairs(chunk.first_position, chunk.num_tokens));
    } else {
      ++plan.num_decode_chunks;
      ++plan.work.decode_rows;
      plan.work.kv_tokens += chunk.context_length;
    }
  }
  record.num_chunks = chunks;
  record.num_tokens = tokens;
  std::size_t kept = 0;
  for (const BlockDelta& delta : record.deltas) {
    const RowPhase phase = rows_[static_cast<std::size_t>(delta.row.value)].phase;
    if (phase == RowPhase::Prefill || phase == RowPhase::Decode) {
      record.deltas[kept++] = delta;
    }
  }
  record.deltas.resize(kept);
  if (has_more_groups()) {
    drop_group_deltas(record);
  }
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
