// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// PrefixAffinity: requests whose prefix is in the cache first, before it is evicted.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Orders by the tokens that the cache holds of a request, shared with running requests or idle,
/// looked up once, at its submission: O(prompt) each. Every admission counts as a pass, and every
/// pass gives those who wait `credit_tokens`: a request is passed at most
/// ceil(cached tokens / credit_tokens) times by any later ones together. victim() is O(candidates).
class PrefixAffinity : public RuledAdmission {
 public:
  struct Config {
    AdmissionRules rules{};
    std::int64_t credit_tokens = 256;  ///< What one pass is worth to those who wait; >= 1.
    /// Cached tokens that count at most; >= 0. With `credit_tokens` it bounds how often a request
    /// without a hit is passed, however long the prefixes of others are: 64 times by default.
    std::int64_t max_affinity_tokens = 16'384;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (credit_tokens < 1) {
        return {Errc::InvalidConfig, "credit_tokens", credit_tokens, 1,
                "must be at least 1, or requests without a hit would wait for ever"};
      }
      if (max_affinity_tokens < 0) {
        return {Errc::InvalidConfig, "max_affinity_tokens", max_affinity_tokens, 0,
                "must not be negative"};
      }
      return rules.validate();
    }
  };

  PrefixAffinity() : PrefixAffinity(Config{}) {}
  explicit PrefixAffinity(const Config& config) : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  /// passes x credit - cached tokens, both as of the submission.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    if (request.was_admitted) {
      return request.key;
    }
    const std::int64_t cached =
        clamp_to<std::int64_t>(request.cached_tokens, 0, config_.max_affinity_tokens);
    return {saturating_mul(num_passes_, config_.credit_tokens) - cached, 0};
  }
  void on_admit(const AdmissionRequest& request) noexcept {
    num_passes_ += request.was_admitted ? 0 : 1;
  }
  [[nodiscard]] bool wants_cached_tokens() const noexcept { return true; }

  /// The one with the least affinity, as of its submission: the largest key.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return worst_of(candidates, [](const AdmissionRequest& request) { return request.key; });
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
  std::int64_t num_passes_ = 0;
};

static_assert(Admission<PrefixAffinity>);
static_assert(OptionalAdmission<PrefixAffinity>::kHasCachedTokens);
static_assert(OptionalAdmission<PrefixAffinity>::kHasOnAdmit);

}  // namespace dynbatch::inline DYNBATCH_ABI
