// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Plans written by hand, for tests of the tiny engine.
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include "engine.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::test {

/// Owns what a plan's spans point to. Blocks of a row are given when it begins.
class HandPlan {
 public:
  HandPlan(std::uint64_t id, std::int32_t block_size) : block_size_(block_size) {
    plan_.id = {id};
    group_.spec.block_size = block_size;
  }

  /// A chunk of row `row`, whose blocks are `blocks` in order of position.
  HandPlan& chunk(ChunkKind kind, std::int32_t row, std::int32_t first_position,
                  const std::vector<Token>& tokens, const std::vector<std::int32_t>& blocks,
                  std::int32_t num_samples, tiny::Sampling sampling = {}) {
    Chunk c;
    c.kind = kind;
    c.row = Row{row};
    c.user_data = sampling.user_data();
    c.first_position = first_position;
    c.num_tokens = static_cast<std::int32_t>(tokens.size());
    c.context_length = first_position + c.num_tokens;
    c.first_token = static_cast<std::int32_t>(tokens_.size());
    c.first_sample = plan_.num_samples;
    c.num_samples = num_samples;
    c.logits_from = num_samples == 0             ? c.context_length
                    : kind == ChunkKind::Prefill ? c.context_length - 1
                                                 : first_position;
    plan_.num_samples += num_samples;
    ++(kind == ChunkKind::Prefill ? plan_.num_prefill_chunks : plan_.num_decode_chunks);
    for (std::int32_t i = 0; i < c.num_tokens; ++i) {
      const std::int32_t position = first_position + i;
      tokens_.push_back(tokens[static_cast<std::size_t>(i)]);
      positions_.push_back(position);
      slots_.push_back(
          {std::int64_t{blocks.at(static_cast<std::size_t>(position / block_size_))} * block_size_ +
           position % block_size_});
    }
    chunks_.push_back(c);
    return *this;
  }
  /// Tells the whole table of a row.
  HandPlan& table(std::int32_t row, const std::vector<std::int32_t>& blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      deltas_.push_back({Row{row}, static_cast<std::int32_t>(i), BlockId{blocks[i]}});
    }
    return *this;
  }
  HandPlan& copy(std::int32_t source, std::int32_t target, std::int32_t tokens) {
    copies_.push_back({BlockId{source}, BlockId{target}, tokens});
    return *this;
  }
  HandPlan& swap(std::int32_t device, std::int32_t host, bool to_host) {
    swaps_.push_back({BlockId{device}, host, to_host});
    return *this;
  }
  HandPlan& zero(std::int32_t block) {
    zeroes_.push_back(BlockId{block});
    return *this;
  }
  HandPlan& move(const ExpertMove& move) {
    moves_.push_back(move);
    return *this;
  }
  /// Cuts before token `token` of the plan; cuts ascend.
  HandPlan& cut(std::int32_t token) {
    cuts_.push_back(token);
    return *this;
  }
  HandPlan& pad(std::int32_t rows, std::int32_t context) {
    plan_.padded = {static_cast<std::int64_t>(tokens_.size()), rows, context};
    return *this;
  }

  const StepPlan& plan() {
    group_.token_slots = slots_;
    group_.deltas = deltas_;
    group_.copies = copies_;
    group_.swaps = swaps_;
    group_.zeroes = zeroes_;
    plan_.chunks = chunks_;
    plan_.tokens = tokens_;
    plan_.positions = positions_;
    plan_.groups = {&group_, 1};
    plan_.expert_moves = moves_;
    parts_.clear();
    std::int32_t first = 0;
    for (std::size_t i = 0; i <= cuts_.size(); ++i) {
      const std::int32_t last =
          i < cuts_.size() ? cuts_[i] : static_cast<std::int32_t>(tokens_.size());
      parts_.push_back({chunk_of(first), chunk_of(last - 1) + 1, first, last});
      first = last;
    }
    plan_.micro_batches = parts_;
    return plan_;
  }

 private:
  [[nodiscard]] std::int32_t chunk_of(std::int32_t token) const {
    std::int32_t c = 0;
    while (c + 1 < static_cast<std::int32_t>(chunks_.size()) &&
           chunks_[static_cast<std::size_t>(c + 1)].first_token <= token) {
      ++c;
    }
    return c;
  }

  std::int32_t block_size_;
  StepPlan plan_;
  GroupPlan group_;
  std::vector<Chunk> chunks_;
  std::vector<Token> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<TokenSlot> slots_;
  std::vector<BlockDelta> deltas_;
  std::vector<BlockCopy> copies_;
  std::vector<BlockSwap> swaps_;
  std::vector<BlockId> zeroes_;
  std::vector<ExpertMove> moves_;
  std::vector<MicroBatch> parts_;
  std::vector<std::int32_t> cuts_;
};

/// Runs plans and keeps what they gave, by sample.
struct HandRun {
  tiny::Engine& engine;
  StepResultBuffer result;
  std::vector<std::vector<Token>> samples;
  std::vector<std::vector<Token>> drafts;

  explicit HandRun(tiny::Engine& e) : engine(e) { (void)result.allocate(16, 64, 256, 256); }

  /// The samples of the plan, one after the other.
  const std::vector<std::vector<Token>>& operator()(HandPlan& hand) {
    const StepPlan& plan = hand.plan();
    result.reset(plan);
    engine.execute(plan, result);
    const StepResult view = result.view();
    samples.clear();
    drafts.clear();
    for (std::size_t s = 0; s < static_cast<std::size_t>(plan.num_samples); ++s) {
      const auto range = [s](std::span<const Token> all, std::span<const std::int32_t> begin) {
        const auto first = begin.begin()[s];
        const auto last = begin.begin()[s + 1];
        return std::vector<Token>(all.begin() + first, all.begin() + last);
      };
      samples.push_back(view.token_begin.empty() ? std::vector<Token>{view.tokens[s]}
                                                 : range(view.tokens, view.token_begin));
      drafts.push_back(view.draft_begin.empty() ? std::vector<Token>{}
                                                : range(view.drafts, view.draft_begin));
    }
    return samples;
  }
};

}  // namespace dynbatch::test
