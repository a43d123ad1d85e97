// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// TableTunerSizer: batch size and token budget from tables over mean lengths, the rule of
/// TensorRT-LLM.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/detail/fixed_limits.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/model/step_cost.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Fixed limits, or tuned ones: the batch size from a table over how many mean requests the pool
/// holds, the token budget from the ratio of mean input and output length, both over the last
/// `window` finished requests. No latency feedback. Until there are samples the least entry of each
/// table holds (TensorRT-LLM divides 0 by 0 there). O(1) a step and a finished request.
class TableTunerSizer {
 public:
  struct Config {
    std::int32_t max_batch_size = 0;  ///< Running sequences; 0 = the executor's limit.
    std::int64_t max_num_tokens = 0;  ///< Tokens a step; 0 = the executor's limit.
    bool tunes_batch_size = false;
    bool tunes_num_tokens = false;
    std::int32_t window = 128;  ///< Finished requests that the means are over; 1 to 1024.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (max_batch_size < 0) {
        return {Errc::InvalidConfig, "max_batch_size", max_batch_size, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      if (max_num_tokens < 0) {
        return {Errc::InvalidConfig, "max_num_tokens", max_num_tokens, 0,
                "must not be negative; 0 means the executor's limit"};
      }
      if (window < 1 || window > kMostWindow) {
        return {Errc::InvalidConfig, "window", window, kMostWindow, "must lie between 1 and 1024"};
      }
      return kOk;
    }
  };

  static constexpr std::int32_t kMostWindow = 1024;
  static constexpr std::int32_t kLeastBatch = 128;
  static constexpr std::int64_t kLeastTokens = 2048;

  TableTunerSizer() : TableTunerSizer(Config{}) {}
  explicit TableTunerSizer(Config config) : config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  /// The batch size for a pool that holds `capacity` mean requests.
  [[nodiscard]] static constexpr std::int64_t batch_for(std::int64_t capacity) noexcept {
    constexpr std::int64_t kTable[][2] = {{144, 128}, {336, 256},   {672, 512},
                                          {832, 768}, {1280, 1024}, {1664, 1536}};
    for (const auto& [below, batch] : kTable) {
      if (capacity < below) {
        return batch;
      }
    }
    const std::int64_t multiple = capacity / 512 * 512;
    return capacity - multiple < 128 ? multiple : capacity;
  }

  /// The token budget for a batch size and sums of input and output lengths of equally many
  /// requests: prompts come in as fast as outputs end, rounded up to a power of two, and no less
  /// than a threshold that depends on how heavy prompts are.
  [[nodiscard]] static constexpr std::int64_t tokens_for(std::int64_t batch, std::int64_t inputs,
                                                         std::int64_t outputs) noexcept {
    if (outputs < 1) {
      return kLeastTokens;
    }
    const std::int64_t sum =
        saturating_add(saturating_mul(batch, max_of<std::int64_t>(inputs, 0)) / outputs, batch);
    std::int64_t tokens = 1;
    while (tokens < sum && tokens < kMostTokens) {
      tokens *= 2;
    }
    std::int64_t threshold = kLeastTokens;
    if (inputs > saturating_mul(outputs, 2)) {
      threshold = 8192;
    } else if (saturating_mul(inputs, 2) > outputs) {
      threshold = 4096;
    }
    return max_of(tokens, threshold);
  }

  [[nodiscard]] BatchLimits limits(const SizerInput& in) noexcept {
    BatchLimits out = detail::within_executor(ceiling(), in);
    std::int64_t batch = out.max_decode_sequences;
    if (config_.tunes_batch_size) {
      batch = min_of(batch, tuned_batch(in));
      out.max_decode_sequences = static_cast<std::int32_t>(batch);
      out.max_prefill_sequences = out.max_decode_sequences;
    }
    if (config_.tunes_num_tokens) {
      out.max_tokens = min_of(out.max_tokens, tokens_for(batch, inputs_, outputs_));
      out.max_prefill_tokens = out.max_tokens;
    }
    return out;
  }

  void observe(const StepFeedback& feedback) noexcept {
    for (const FinishedOutput& finished : feedback.finished) {
      const Lengths added{bounded(finished.prompt_tokens), bounded(finished.tokens)};
      Lengths& place = lengths_[static_cast<std::size_t>(next_)];
      if (num_samples_ == config_.window) {
        inputs_ -= place.input;
        outputs_ -= place.output;
      } else {
        ++num_samples_;
      }
      place = added;
      inputs_ += added.input;
      outputs_ += added.output;
      next_ = next_ + 1 == config_.window ? 0 : next_ + 1;
    }
  }

  [[nodiscard]] BatchLimits ceiling() const noexcept {
    return detail::fixed_limits(config_.max_batch_size, config_.max_num_tokens);
  }
  [[nodiscard]] StepCost cost() const noexcept { return {}; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  struct Lengths {
    std::int64_t input = 0;
    std::int64_t output = 0;
  };
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 62;

  [[nodiscard]] static constexpr std::int64_t bounded(std::int64_t length) noexcept {
    return clamp_to<std::int64_t>(length, 0, std::int64_t{1} << 40);
  }

  [[nodiscard]] std::int64_t tuned_batch(const SizerInput& in) const noexcept {
    if (outputs_ < 1) {
      return kLeastBatch;
    }
    if (in.pool.total_blocks < 1 || in.pool.block_size < 1) {
      return in.max_sequences;  // nothing to run out of
    }
    const std::int64_t unit = std::int64_t{in.pool.block_size} * num_samples_;
    const std::int64_t blocks = (inputs_ + outputs_ + unit - 1) / unit;  // of a mean request
    return max_of<std::int64_t>(batch_for(in.pool.total_blocks / max_of<std::int64_t>(blocks, 1)),
                                1);
  }

  Config config_;
  Lengths lengths_[kMostWindow] = {};  // a ring of the last `window`
  std::int64_t inputs_ = 0;
  std::int64_t outputs_ = 0;
  std::int32_t num_samples_ = 0;
  std::int32_t next_ = 0;
};

static_assert(BatchSizer<TableTunerSizer>);

}  // namespace dynbatch::inline DYNBATCH_ABI
