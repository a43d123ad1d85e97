// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// NewTokenRatioAdmission: room for an estimated share of what running requests may still produce,
/// the rule of SGLang.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// A request starts if its prompt and its own remaining outputs (at most `clip_outputs`) fit beside
/// what is reserved for those that run: their remaining outputs, clipped likewise, times a ratio.
/// The ratio falls with every step of decodes alone and is set anew when blocks ran out. After
/// SGLang 6fa3f9df. on_step() is O(running), as a step of their decodes is.
class NewTokenRatioAdmission : public OrderedAdmission {
 public:
  struct Config {
    OrderedAdmission::Config order{};
    std::int32_t init_ratio_ppm = 700'000;  ///< Ratio at the start and when idle; 1 to 1,000,000.
    std::int32_t min_ratio_ppm = 98'000;    ///< It falls no lower; 1 to `init_ratio_ppm`.
    std::int32_t decay_steps = 600;    ///< Steps of decodes from the first to the second; >= 1.
    std::int32_t retract_steps = 20;   ///< Outputs a sequence added to those so far when the ratio
                                       ///< is set anew; >= 0.
    std::int64_t clip_outputs = 4096;  ///< Remaining outputs of one request that count; >= 1.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (init_ratio_ppm < 1 || init_ratio_ppm > 1'000'000) {
        return {Errc::InvalidConfig, "init_ratio_ppm", init_ratio_ppm, 1'000'000,
                "must lie between 1 and 1,000,000"};
      }
      if (min_ratio_ppm < 1 || min_ratio_ppm > init_ratio_ppm) {
        return {Errc::InvalidConfig, "min_ratio_ppm", min_ratio_ppm, init_ratio_ppm,
                "must lie between 1 and init_ratio_ppm"};
      }
      if (decay_steps < 1) {
        return {Errc::InvalidConfig, "decay_steps", decay_steps, 1, "must be at least 1"};
      }
      if (retract_steps < 0) {
        return {Errc::InvalidConfig, "retract_steps", retract_steps, 0, "must not be negative"};
      }
      if (clip_outputs < 1) {
        return {Errc::InvalidConfig, "clip_outputs", clip_outputs, 1, "must be at least 1"};
      }
      return order.validate();
    }
  };

  NewTokenRatioAdmission() : NewTokenRatioAdmission(Config{}) {}
  explicit NewTokenRatioAdmission(const Config& config)
      : OrderedAdmission(config.order), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
    ratio_ = std::int64_t{config.init_ratio_ppm} * kUnitPerPpm;
  }

  /// Called again for a request that was preempted: the ratio is set to what the others need.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    if (request.was_admitted && request.num_preemptions > 0) {
      retract(request);
    }
    return OrderedAdmission::key(request);
  }

  void on_step(const ComposeInput& in) noexcept {
    if (had_decodes_alone_ && in.step > step_) {
      ratio_ = max_of(ratio_ - decay(), std::int64_t{config_.min_ratio_ppm} * kUnitPerPpm);
    }
    step_ = in.step;
    had_decodes_alone_ = in.num_decoding > 0 && in.num_prefilling == 0;
    if (in.num_decoding == 0 && in.num_prefilling == 0) {
      ratio_ = std::int64_t{config_.init_ratio_ppm} * kUnitPerPpm;
    }
    num_running_ = 0;
    outputs_ = 0;
    max_outputs_ = 0;
    admitted_ = 0;
    std::int64_t clipped = 0;
    in.running.for_each([&](const RunningSequence& sequence) noexcept {
      ++num_running_;
      outputs_ = saturating_add(outputs_, sequence.output_tokens);
      max_outputs_ = saturating_add(max_outputs_, sequence.max_output_tokens);
      clipped = saturating_add(
          clipped, clip(saturating_sum(sequence.max_output_tokens, -sequence.output_tokens)));
    });
    // Split, so that no product overflows for any number of sequences.
    reserved_ = saturating_add(saturating_mul(clipped / kUnit, ratio_),
                               clipped % kUnit * (ratio_ / 1000) / (kUnit / 1000));
  }

  void on_admit(const AdmissionRequest& request) noexcept {
    OrderedAdmission::on_admit(request);
    had_decodes_alone_ = false;
    admitted_ = saturating_add(
        admitted_,
        clip(saturating_sum(request.max_total_tokens,
                            -saturating_add(request.prompt_length, request.output_tokens))));
  }

  /// extend + own outputs + a page < available - reserved, in blocks.
  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept {
    Reservation out = OrderedAdmission::need(in);
    const std::int64_t known = max_of<std::int64_t>(in.known_tokens, 0);
    const std::int64_t most = max_of(in.max_total_tokens, known);
    out.required_tokens = min_of(most, saturating_add(known, clip(most - known)));
    const std::int64_t reserved =
        saturating_add(reserved_, admitted_) / max_of(in.pool.block_size, 1);
    out.headroom_blocks = min_of(max_of(out.headroom_blocks, saturating_add(reserved, 2)),
                                 max_of<std::int64_t>(in.pool.total_blocks - 1, 0));
    return out;
  }

  /// Under Order::Priority the worst priority; else the shortest output, of these the longest
  /// prompt, of these the last admitted.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    if (config_.order.order == Order::Priority) {
      return OrderedAdmission::victim(candidates);
    }
    return worst_of(candidates, [](const AdmissionRequest& request) {
      return AdmissionKey{-request.output_tokens, request.prompt_length};
    });
  }

  /// The ratio now, in billionths.
  [[nodiscard]] std::int64_t ratio_ppb() const noexcept { return ratio_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  static constexpr std::int64_t kUnit = 1'000'000'000;
  static constexpr std::int64_t kUnitPerPpm = 1000;

  [[nodiscard]] std::int64_t clip(std::int64_t outputs) const noexcept {
    return clamp_to<std::int64_t>(outputs, 0, config_.clip_outputs);
  }
  [[nodiscard]] std::int64_t decay() const noexcept {
    return std::int64_t{config_.init_ratio_ppm - config_.min_ratio_ppm} * kUnitPerPpm /
           config_.decay_steps;
  }

  /// (outputs so far + retract_steps a sequence) / (all they may produce + 1), at most 1, over
  /// those that stay.
  void retract(const AdmissionRequest& request) noexcept {
    had_decodes_alone_ = false;
    if (num_running_ <= 1) {
      return;
    }
    --num_running_;
    outputs_ = max_of<std::int64_t>(saturating_sum(outputs_, -request.output_tokens), 0);
    max_outputs_ = max_of<std::int64_t>(
        saturating_sum(max_outputs_,
                       -saturating_sum(request.max_total_tokens, -request.prompt_length)),
        0);
    constexpr std::int64_t kMost = std::int64_t{1} << 32;  // the share is 1 long before
    const std::int64_t expected = min_of(
        saturating_add(outputs_, saturating_mul(num_running_, config_.retract_steps)), kMost);
    ratio_ = clamp_to<std::int64_t>(
        saturating_mul(expected, kUnit) / saturating_add(max_outputs_, 1), 1, kUnit);
  }

  Config config_;
  std::int64_t ratio_ = 0;     // billionths
  std::int64_t reserved_ = 0;  // tokens, for what runs
  std::int64_t admitted_ = 0;  // tokens, for what this step has admitted: in full
  // Of what ran when the step began, less what gave way since.
  std::int64_t num_running_ = 0;
  std::int64_t outputs_ = 0;
  std::int64_t max_outputs_ = 0;
  std::uint64_t step_ = 0;
  bool had_decodes_alone_ = false;
};

static_assert(Admission<NewTokenRatioAdmission>);
static_assert(OptionalAdmission<NewTokenRatioAdmission>::kHasOnStep);

}  // namespace dynbatch::inline DYNBATCH_ABI
