// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The laws of MicroBatchSplitter (docs/policies/micro_batch_splitter.md) as a test for any model.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/model/step_cost.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// The chunks of one rank; `num_chunks` may be 0.
struct RandomStep {
  static constexpr std::size_t kMostChunks = 48;
  Chunk chunks[kMostChunks]{};
  std::size_t num_chunks = 0;
  RankSummary summary{};

  void fill(SplitMix64& random) noexcept {
    num_chunks = random.one_in(16)
                     ? 0
                     : static_cast<std::size_t>(random.between(
                           1, random.one_in(2) ? 4 : static_cast<std::int64_t>(kMostChunks)));
    const bool has_prefill = !random.one_in(4);
    const std::int64_t longest = random.one_in(2) ? 4 : 8192;
    summary = {};
    for (std::size_t i = 0; i < num_chunks; ++i) {
      Chunk& chunk = chunks[i];
      chunk = {};
      chunk.kind = has_prefill && random.one_in(2) ? ChunkKind::Prefill : ChunkKind::Decode;
      const bool is_prefill = chunk.kind == ChunkKind::Prefill;
      chunk.num_tokens = static_cast<std::int32_t>(
          is_prefill ? random.between(1, longest) : random.between(1, random.one_in(8) ? 5 : 1));
      chunk.first_position = static_cast<std::int32_t>(random.between(0, 4096));
      chunk.context_length = chunk.first_position + chunk.num_tokens;
      chunk.first_token = static_cast<std::int32_t>(summary.num_tokens);
      chunk.row = {static_cast<std::int32_t>(i)};
      summary.num_tokens += chunk.num_tokens;
      summary.prefill_tokens += is_prefill ? chunk.num_tokens : 0;
      summary.attention_work += chunk_attention_pairs(chunk.first_position, chunk.num_tokens);
    }
    summary.num_chunks = static_cast<std::int32_t>(num_chunks);
    summary.num_rows = summary.num_chunks;
    summary.wants_split = random.one_in(2);
  }

  [[nodiscard]] SplitInput input(std::span<const RankSummary> ranks,
                                 std::int32_t own_rank) const noexcept {
    SplitInput in;
    in.chunks = {chunks, num_chunks};
    in.num_tokens = summary.num_tokens;
    in.cost = {10'000'000, 45'000'000, 50'000'000, 28'000, 0, 1};
    in.ranks = ranks;
    in.own_rank = own_rank;
    return in;
  }
};

inline Status check_split(const SplitDecision& decision, const SplitInput& in) noexcept {
  if (decision.count < 0 || decision.count >= static_cast<std::int32_t>(kMaxMicroBatches)) {
    return {Errc::InternalError, "law 1", decision.count,
            static_cast<std::int64_t>(kMaxMicroBatches) - 1, "the number of cuts is out of range"};
  }
  std::int64_t previous = 0;
  for (std::int32_t i = 0; i < decision.count; ++i) {
    const Cut cut = decision.cuts[i];
    if (cut.chunk < 0 || static_cast<std::size_t>(cut.chunk) >= in.chunks.size()) {
      return {Errc::InternalError, "law 1", cut.chunk, static_cast<std::int64_t>(in.chunks.size()),
              "a cut lies in no chunk"};
    }
    const Chunk& chunk = in.chunks[static_cast<std::size_t>(cut.chunk)];
    if (cut.token < 0 || cut.token >= chunk.num_tokens) {
      return {Errc::InternalError, "law 1", cut.token, chunk.num_tokens,
              "a cut lies outside its chunk"};
    }
    if (chunk.kind == ChunkKind::Decode && cut.token != 0) {
      return {Errc::InternalError, "law 3", cut.token, chunk.num_tokens,
              "a cut lies inside a decode"};
    }
    const std::int64_t at = chunk.first_token + std::int64_t{cut.token};
    if (at <= previous) {
      return {Errc::InternalError, "law 2", at, previous,
              "cuts don't ascend: a micro-batch is empty"};
    }
    previous = at;
  }
  return kOk;
}

inline bool are_equal(const SplitDecision& a, const SplitDecision& b) noexcept {
  if (a.count != b.count) {
    return false;
  }
  for (std::int32_t i = 0; i < a.count; ++i) {
    if (!(a.cuts[i] == b.cuts[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace detail

/// Puts `splitter` through random steps, alone and with up to eight ranks, and checks laws 1 to 5.
template <MicroBatchSplitter P>
[[nodiscard]] Status check_micro_batch_splitter_laws(P& splitter, std::uint64_t seed) noexcept {
  SplitMix64 random(seed);
  constexpr std::size_t kMostRanks = 8;
  detail::RandomStep steps[kMostRanks];
  RankSummary summaries[kMostRanks];
  for (int round = 0; round < 1000; ++round) {
    steps[0].fill(random);
    const SplitInput alone = steps[0].input({}, 0);
    const SplitDecision decision = splitter.split(alone);
    if (const Status status = detail::check_split(decision, alone); !status) {
      return status;
    }

    const auto num_ranks = static_cast<std::size_t>(random.between(1, kMostRanks));
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      if (rank > 0) {
        steps[rank].fill(random);
      }
      summaries[rank] = steps[rank].summary;
    }
    std::int32_t count = 0;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      const SplitInput in =
          steps[rank].input({summaries, num_ranks}, static_cast<std::int32_t>(rank));
      const SplitDecision shared = splitter.split(in);
      if (const Status status = detail::check_split(shared, in); !status) {
        return status;
      }
      if (rank > 0 && shared.count != count) {
        return {Errc::InternalError, "law 5", shared.count, count,
                "ranks with equal summaries cut into different numbers of parts"};
      }
      count = shared.count;
    }

    if (!detail::are_equal(splitter.split(alone), decision)) {
      return {Errc::InternalError, "law 4", round, 0, "the same step was cut in another way"};
    }
  }
  return kOk;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
