// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ShortestFirst: the least work first, and waiting makes up for length.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Orders by prompt + expected output tokens. A request of s tokens starts before those that arrive
/// more than s x `aging_per_token` after it. Stateless, O(1); victim() is O(candidates).
class ShortestFirst : public RuledAdmission {
 public:
  struct Config {
    AdmissionRules rules{};
    /// Time of waiting that outweighs one token, > 0. 1 ms: a prompt of 10,000 tokens is passed by
    /// short ones for 10 s at most.
    DurationNs aging_per_token = milliseconds(1);
    /// Output tokens expected of a request whose max_new_tokens is larger or open; >= 0.
    std::int64_t expected_outputs = 512;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (aging_per_token.ns < 1 || aging_per_token == kUnbounded) {
        return {Errc::InvalidConfig, "aging_per_token", aging_per_token.ns, 1,
                "must be positive and bounded, or long requests would wait for ever"};
      }
      if (expected_outputs < 0) {
        return {Errc::InvalidConfig, "expected_outputs", expected_outputs, 0,
                "must not be negative"};
      }
      return rules.validate();
    }
  };

  ShortestFirst() : ShortestFirst(Config{}) {}
  explicit ShortestFirst(const Config& config) : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    return rank(request, config_);
  }

  /// The longest, less what it has waited when it came: the largest key.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return worst_of(candidates,
                    [this](const AdmissionRequest& request) { return rank(request, config_); });
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] static AdmissionKey rank(const AdmissionRequest& request,
                                         const Config& config) noexcept {
    const std::int64_t outputs =
        request.max_new_tokens == kOpenEnded
            ? config.expected_outputs
            : clamp_to<std::int64_t>(request.max_new_tokens, 0, config.expected_outputs);
    const std::int64_t tokens =
        saturating_add(max_of<std::int64_t>(request.prompt_length, 0), outputs);
    const std::int64_t weight = saturating_mul(tokens, config.aging_per_token.ns);
    return {saturating_sum(request.arrival.ns, weight), tokens};
  }

  Config config_;
};

static_assert(Admission<ShortestFirst>);

}  // namespace dynbatch::inline DYNBATCH_ABI
