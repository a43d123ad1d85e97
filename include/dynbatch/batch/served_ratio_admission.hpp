// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ServedRatioAdmission: running decodes are interrupted only for enough waiting requests, or when
/// these have waited long enough; the rule of text-generation-inference.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// While sequences run, requests start if at least floor(running x ratio) of them wait, or once
/// `max_waiting_steps` steps have passed since the last that started; between two such admissions
/// lies a decode step. Order of submission, the last admitted gives way. After TGI db931fcf. O(1).
class ServedRatioAdmission : public RuledAdmission {
 public:
  struct Config {
    AdmissionRules rules{.compose = AdmissionRules::Compose::PrefillFirst};
    std::int32_t served_ratio_permille = 300;  ///< Waiting a running sequence, in 1/1000; >= 0.
    std::int32_t max_waiting_steps = 20;       ///< Steps, that of the admission included; >= 1.
    /// Outputs of one request that are reserved at its start at most; >= 1.
    std::int64_t max_reserved_outputs = 1024;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (served_ratio_permille < 0) {
        return {Errc::InvalidConfig, "served_ratio_permille", served_ratio_permille, 0,
                "must not be negative"};
      }
      if (max_waiting_steps < 1) {
        return {Errc::InvalidConfig, "max_waiting_steps", max_waiting_steps, 1,
                "must be at least 1"};
      }
      if (max_reserved_outputs < 1) {
        return {Errc::InvalidConfig, "max_reserved_outputs", max_reserved_outputs, 1,
                "must be at least 1"};
      }
      return rules.validate();
    }
  };

  ServedRatioAdmission() : ServedRatioAdmission(Config{}) {}
  explicit ServedRatioAdmission(const Config& config)
      : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] AdmissionKey key(const AdmissionRequest& /*request*/) noexcept { return {}; }
  [[nodiscard]] std::int32_t victim(const VictimList& /*candidates*/) const noexcept { return 0; }

  void on_step(const ComposeInput& in) noexcept {
    step_ = in.step;
    is_idle_ = in.num_decoding == 0 && in.num_prefilling == 0;
  }
  void on_admit(const AdmissionRequest& /*request*/) noexcept {
    last_admission_ = step_;
    interrupted_ = !is_idle_;
  }

  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    Composition out = RuledAdmission::compose(in);
    const std::int64_t running = std::int64_t{in.num_decoding} + in.num_prefilling;
    if (running > 0 && rules().compose == AdmissionRules::Compose::PrefillFirst) {
      const std::uint64_t passed = in.step > last_admission_ ? in.step - last_admission_ : 0;
      const bool is_due = passed >= static_cast<std::uint64_t>(config_.max_waiting_steps);
      const bool is_enough =
          in.num_waiting >= saturating_mul(running, config_.served_ratio_permille) / 1000;
      const bool had_decodes = passed > 1 || !interrupted_;
      out.admit = is_due || (is_enough && had_decodes);
    }
    return out;
  }

  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept {
    Reservation out = RuledAdmission::need(in);
    const std::int64_t known = max_of<std::int64_t>(in.known_tokens, 0);
    const std::int64_t most = max_of(in.max_total_tokens, known);
    out.required_tokens =
        min_of(most, saturating_add(known, min_of(most - known, config_.max_reserved_outputs)));
    out.held_tokens = out.required_tokens;
    return out;
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
  std::uint64_t step_ = 0;
  std::uint64_t last_admission_ = 0;
  bool is_idle_ = true;       // when the step began
  bool interrupted_ = false;  // the last admission found sequences running
};

static_assert(Admission<ServedRatioAdmission>);
static_assert(OptionalAdmission<ServedRatioAdmission>::kHasOnStep);

}  // namespace dynbatch::inline DYNBATCH_ABI
