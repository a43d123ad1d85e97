// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// OrderedAdmission: the order of requests as a value, for presets whose peers choose it by name.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/batch/earliest_deadline.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// One of several orders, chosen when it is made; each is that of the shipped model it names, so
/// waiting stays bounded as that model bounds it. Who knows the order at compile time takes the
/// model itself. key() is O(1), victim() as the model's.
class OrderedAdmission : public RuledAdmission {
 public:
  enum class Order : std::uint8_t {
    Fcfs,           ///< FcfsAdmission: the earlier submission; the last admitted gives way.
    Priority,       ///< PriorityAging: (priority, arrival); the worst gives way.
    LongestPrefix,  ///< PrefixAffinity: more cached tokens first.
    LongestOutput,  ///< The largest max_new_tokens first, and waiting makes up for a small one.
    Deadline,       ///< EarliestDeadline.
  };
  struct Config {
    AdmissionRules rules{};
    Order order = Order::Fcfs;
    /// Waiting that outweighs one unit of priority, > 0; kUnbounded = strict, worse ones may wait
    /// for ever. A minute: strict for all that arrive within one.
    DurationNs aging = seconds(60);
    /// Waiting that outweighs one token of max_new_tokens under LongestOutput, > 0.
    DurationNs aging_per_token = milliseconds(10);
    /// Tokens of max_new_tokens that count at most under LongestOutput; >= 0.
    std::int64_t most_outputs = 4096;
    /// Running requests of class Batch give way before all others.
    bool batch_gives_way = false;

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (order > Order::Deadline) {
        return {Errc::InvalidConfig, "order", static_cast<std::int64_t>(order),
                static_cast<std::int64_t>(Order::Deadline), "no such order"};
      }
      if (aging_per_token.ns < 1 || aging_per_token == kUnbounded) {
        return {Errc::InvalidConfig, "aging_per_token", aging_per_token.ns, 1,
                "must be positive and bounded, or short requests would wait for ever"};
      }
      if (most_outputs < 0) {
        return {Errc::InvalidConfig, "most_outputs", most_outputs, 0, "must not be negative"};
      }
      return PriorityAging::Config{.rules = rules, .aging = aging}.validate();
    }
  };

  OrderedAdmission() : OrderedAdmission(Config{}) {}
  explicit OrderedAdmission(const Config& config)
      : RuledAdmission(config.rules),
        config_(config),
        priority_(PriorityAging::Config{.rules = config.rules, .aging = config.aging}),
        affinity_(PrefixAffinity::Config{.rules = config.rules}),
        deadline_(EarliestDeadline::Config{.rules = config.rules}) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
  }

  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    switch (config_.order) {
      case Order::Fcfs:
        break;
      case Order::Priority:
        return priority_.key(request);
      case Order::LongestPrefix:
        return affinity_.key(request);
      case Order::LongestOutput: {
        const std::int64_t outputs =
            request.max_new_tokens == kOpenEnded
                ? config_.most_outputs
                : clamp_to<std::int64_t>(request.max_new_tokens, 0, config_.most_outputs);
        return {saturating_sum(request.arrival.ns,
                               -saturating_mul(outputs, config_.aging_per_token.ns)),
                0};
      }
      case Order::Deadline:
        return deadline_.key(request);
    }
    return {};
  }

  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    if (config_.batch_gives_way) {
      for (std::int32_t i = 0; i < candidates.size(); ++i) {
        const VictimCandidate candidate = candidates[i];
        if (candidate.request.request_class == RequestClass::Batch &&
            candidate.request.num_preemptions < rules().max_preemptions) {
          return i;
        }
      }
    }
    switch (config_.order) {
      case Order::Priority:
        return priority_.victim(candidates);
      case Order::LongestPrefix:
        return affinity_.victim(candidates);
      case Order::Deadline:
        return deadline_.victim(candidates);
      case Order::Fcfs:
      case Order::LongestOutput:
        break;
    }
    return 0;
  }

  [[nodiscard]] bool wants_cached_tokens() const noexcept {
    return config_.order == Order::LongestPrefix;
  }
  void on_admit(const AdmissionRequest& request) noexcept { affinity_.on_admit(request); }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  Config config_;
  PriorityAging priority_;
  PrefixAffinity affinity_;
  EarliestDeadline deadline_;
};

static_assert(Admission<OrderedAdmission>);
static_assert(OptionalAdmission<OrderedAdmission>::kHasCachedTokens);
static_assert(OptionalAdmission<OrderedAdmission>::kHasOnAdmit);

}  // namespace dynbatch::inline DYNBATCH_ABI
