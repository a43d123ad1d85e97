// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// EqualTokens: cuts a step into parts of equal token count, inside a prompt where that is needed.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/model/step_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// A step becomes exactly `parts` micro-batches or one. Each cut goes to the border between chunks
/// that is nearest to its share of the tokens if the border misses it by at most 4 % of a part (two
/// parts: 48 to 52 %, the rule of SGLang's two-batch overlap), else inside the prompt that lies
/// there. Decodes are never cut. O(chunks); a pure function.
class EqualTokens {
 public:
  struct Config {
    std::int32_t parts = 2;       ///< Micro-batches of a split step; 2 to kMaxMicroBatches.
    std::int64_t min_tokens = 0;  ///< A step (on any rank) with fewer tokens is not split; >= 0.
    bool cut_inside = true;       ///< A cut may lie inside a prompt chunk.

    [[nodiscard]] constexpr Status validate() const noexcept {
      constexpr auto kMost = static_cast<std::int32_t>(kMaxMicroBatches);
      if (parts < 2 || parts > kMost) {
        return {Errc::InvalidConfig, "parts", parts, kMost,
                "must lie between 2 and kMaxMicroBatches"};
      }
      if (min_tokens < 0) {
        return {Errc::InvalidConfig, "min_tokens", min_tokens, 0, "must not be negative"};
      }
      return kOk;
    }
  };

  EqualTokens() : EqualTokens(Config{}) {}
  explicit EqualTokens(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] SplitDecision split(const SplitInput& in) noexcept {
    // Places where a cut may lie are numbered in token order from 1: the border before each chunk
    // but the first, and every token but the first of a chunk that may be cut.
    std::int64_t num_places = -1;
    RankSummary own;
    own.num_chunks = static_cast<std::int32_t>(in.chunks.size());
    for (const Chunk& chunk : in.chunks) {
      num_places += 1 + places_inside(chunk);
      own.num_tokens += chunk.num_tokens;
      own.prefill_tokens += chunk.kind == ChunkKind::Prefill ? chunk.num_tokens : 0;
    }
    SplitDecision out;
    if (in.ranks.empty() ? !can_split(own) : !can_all_split(in.ranks)) {
      return out;
    }
    const std::int64_t parts = config_.parts;
    std::int64_t previous = 0;
    for (std::int64_t part = 1; part < parts; ++part) {
      // Every later cut needs a place of its own behind this one.
      const std::int64_t last = num_places - (parts - 1 - part);
      if (previous >= last) {
        return {};  // This rank's summary did not describe its chunks.
      }
      const Place place = best_place(in, own.num_tokens, part, previous + 1, last);
      out.cuts[out.count] = place.cut;
      ++out.count;
      previous = place.number;
    }
    return out;
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  struct Place {
    Cut cut{};
    std::int64_t number = 0;
  };

  [[nodiscard]] std::int64_t places_inside(const Chunk& chunk) const noexcept {
    return config_.cut_inside && chunk.kind == ChunkKind::Prefill ? chunk.num_tokens - 1 : 0;
  }

  /// Whether a step of this shape offers `parts` - 1 places: so many chunks, or so many prompt
  /// tokens. Uses only what a summary holds, so that all ranks agree.
  [[nodiscard]] bool can_split(const RankSummary& step) const noexcept {
    return step.num_tokens >= max_of<std::int64_t>(config_.min_tokens, config_.parts) &&
           (step.num_chunks >= config_.parts ||
            (config_.cut_inside && step.prefill_tokens >= config_.parts));
  }

  [[nodiscard]] bool can_all_split(std::span<const RankSummary> ranks) const noexcept {
    for (const RankSummary& rank : ranks) {
      if (!can_split(rank)) {
        return false;
      }
    }
    return true;
  }

  /// The place numbered `first` to `last` where cut `part` lies best.
  [[nodiscard]] Place best_place(const SplitInput& in, std::int64_t total, std::int64_t part,
                                 std::int64_t first, std::int64_t last) const noexcept {
    const std::int64_t target = total * part / config_.parts;
    Place border;  // The nearest allowed border; the later of two equally near ones.
    std::int64_t border_start = -1;
    std::int64_t border_miss = -1;
    std::int64_t wanted = 0;  // Number of the place at `target`, or of the border next to it.
    std::int64_t start = 0;
    std::int64_t number = 0;
    for (std::size_t i = 0; i < in.chunks.size(); ++i) {
      const Chunk& chunk = in.chunks[i];
      const std::int64_t miss = start < target ? target - start : start - target;
      if (number >= first && number <= last && (border_miss < 0 || miss <= border_miss)) {
        border = {{static_cast<std::int32_t>(i), 0}, number};
        border_start = start;
        border_miss = miss;
      }
      if (start > target && number >= first) {
        break;  // Every further border misses by more.
      }
      const std::int64_t inside = places_inside(chunk);
      const std::int64_t end = start + chunk.num_tokens;
      if (target >= start && target < end) {
        const bool is_nearer_to_end = end - target <= target - start;
        wanted = number + (inside > 0 ? target - start : (is_nearer_to_end ? 1 : 0));
      }
      start = end;
      number += inside + 1;
    }
    // |border / total - part / parts| <= 1 / (25 * parts), in integers.
    const std::int64_t off = border_start * config_.parts - total * part;
    const bool is_near = border_miss >= 0 && (off < 0 ? -off : off) * 25 <= total;
    if (is_near || (border_miss >= 0 && !config_.cut_inside)) {
      return border;
    }
    return place_of(in, clamp_to(wanted, first, last));
  }

  [[nodiscard]] Place place_of(const SplitInput& in, std::int64_t wanted) const noexcept {
    std::int64_t number = 0;
    for (std::size_t i = 0; i < in.chunks.size(); ++i) {
      const std::int64_t inside = places_inside(in.chunks[i]);
      if (wanted <= number + inside) {
        return {{static_cast<std::int32_t>(i), static_cast<std::int32_t>(wanted - number)}, wanted};
      }
      number += inside + 1;
    }
    return {};
  }

  Config config_;
};

static_assert(MicroBatchSplitter<EqualTokens>);

}  // namespace dynbatch::inline DYNBATCH_ABI
