// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// FairShare: tenants get tokens in proportion to their weights; hard limits for each tenant.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/concepts/admission.hpp>

#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Start-time fair queueing over tenants. A request's key is the virtual time at which its tenant's
/// earlier requests will have had their share; virtual time is the key of the newest request
/// admitted for the first time. So a tenant alone gets everything, backlogged ones get tokens by
/// weight, and who was idle starts at the present: nothing is banked.
///
/// A request is charged prompt + expected output tokens when it is submitted and settled with what
/// it was served when it is over. The expectation is the mean output of the tenant's requests so
/// far.
///
/// Every call is O(kMaxTenants) over a contiguous table of ids; nothing is allocated. victim() is
/// O(candidates).
class FairShare : public RuledAdmission {
 public:
  /// Most tenants told apart at once. Those listed in Config hold an entry for good, others while
  /// they have live requests or owe something. While all entries are held, requests of further
  /// tenants go to one common entry and share its weight and limits, until it is empty again.
  static constexpr std::int32_t kMaxTenants = 255;
  /// Most tenants that Config can treat apart.
  static constexpr std::int32_t kMaxShares = 32;

  /// What a tenant gets.
  struct Share {
    std::uint64_t tenant = 0;
    std::int32_t weight = 1;                 ///< 1 to 65,536; tokens in proportion to it.
    std::int32_t max_running_sequences = 0;  ///< Running at once; 0 = no limit.
    /// Tokens that its running requests may come to hold together (prompt + the most they may
    /// produce); 0 = no limit. A request that alone exceeds it fails with CanNeverFit.
    std::int64_t max_running_tokens = 0;
  };

  struct Config {
    AdmissionRules rules{};
    Share other{};                        ///< Of tenants not listed; `tenant` isn't read.
    Share shares[kMaxShares]{};           ///< The first `num_shares` are read.
    std::int32_t num_shares = 0;          ///< 0 to kMaxShares.
    std::int64_t expected_outputs = 256;  ///< Of a tenant's first requests; >= 0.

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (num_shares < 0 || num_shares > kMaxShares) {
        return {Errc::InvalidConfig, "num_shares", num_shares, kMaxShares, "is out of range"};
      }
      for (std::int32_t i = -1; i < num_shares; ++i) {
        const Share& share = i < 0 ? other : shares[i];
        if (share.weight < 1 || share.weight > kMostWeight) {
          return {Errc::InvalidConfig, "weight", share.weight, kMostWeight,
                  "must be from 1 to 65,536"};
        }
        if (share.max_running_sequences < 0) {
          return {Errc::InvalidConfig, "max_running_sequences", share.max_running_sequences, 0,
                  "must not be negative; 0 means no limit"};
        }
        if (share.max_running_tokens < 0) {
          return {Errc::InvalidConfig, "max_running_tokens", share.max_running_tokens, 0,
                  "must not be negative; 0 means no limit"};
        }
        for (std::int32_t k = 0; k < i; ++k) {
          if (shares[k].tenant == share.tenant) {
            return {Errc::InvalidConfig, "shares", i, k, "two shares of one tenant"};
          }
        }
      }
      if (expected_outputs < 0) {
        return {Errc::InvalidConfig, "expected_outputs", expected_outputs, 0,
                "must not be negative"};
      }
      return rules.validate();
    }
  };

  FairShare() : FairShare(Config{}) {}
  explicit FairShare(const Config& config) : RuledAdmission(config.rules), config_(config) {
    if (const Status status = config.validate(); !status) {
      raise(status);
    }
    open_entry(kOverflow, config_.other);
    for (std::int32_t i = 0; i < config_.num_shares; ++i) {
      tenants_[i] = config_.shares[i].tenant;
      open_entry(i, config_.shares[i]);
    }
    num_entries_ = config_.num_shares;
  }

  /// {virtual start time, tokens charged}: equal starts go to the smaller charge.
  [[nodiscard]] AdmissionKey key(const AdmissionRequest& request) noexcept {
    if (request.was_admitted) {
      return request.key;
    }
    Entry& entry = entries_[take_entry(request.tenant)];
    ++entry.num_live;
    const std::int64_t outputs =
        request.max_new_tokens == kOpenEnded
            ? entry.mean_outputs
            : clamp_to<std::int64_t>(request.max_new_tokens, 0, entry.mean_outputs);
    const std::int64_t charge = saturating_add(max_of<std::int64_t>(request.prompt_length, 0),
                                               saturating_mul(outputs, request.num_sequences));
    const std::int64_t start = max_of(now_, entry.next_start);
    entry.next_start = saturating_add(start, virtual_time(charge, entry));
    return {start, charge};
  }

  [[nodiscard]] bool may_admit(const AdmissionRequest& request) const noexcept {
    const Entry& entry = entries_[find(request.tenant)];
    const Share& share = entry.share;
    return (share.max_running_sequences == 0 ||
            entry.running_sequences + request.num_sequences <= share.max_running_sequences) &&
           (share.max_running_tokens == 0 ||
            saturating_add(entry.running_tokens, tokens_of(request)) <= share.max_running_tokens);
  }
  [[nodiscard]] bool can_ever_admit(const AdmissionRequest& request) const noexcept {
    const Share& share = entries_[find(request.tenant)].share;
    return (share.max_running_sequences == 0 ||
            request.num_sequences <= share.max_running_sequences) &&
           (share.max_running_tokens == 0 || tokens_of(request) <= share.max_running_tokens);
  }
  [[nodiscard]] std::int32_t quota_group(const AdmissionRequest& request) const noexcept {
    return find(request.tenant);
  }

  void on_admit(const AdmissionRequest& request) noexcept {
    Entry& entry = entries_[find(request.tenant)];
    entry.running_sequences += request.num_sequences;
    entry.running_tokens = saturating_add(entry.running_tokens, tokens_of(request));
    if (!request.was_admitted) {
      now_ = max_of(now_, request.key.primary);
    }
  }
  void on_leave(const AdmissionRequest& request) noexcept {
    Entry& entry = entries_[find(request.tenant)];
    entry.running_sequences -= request.num_sequences;
    entry.running_tokens -= tokens_of(request);
  }
  void on_end(const AdmissionRequest& request) noexcept {
    Entry& entry = entries_[find(request.tenant)];
    --entry.num_live;
    const std::int64_t served =
        request.was_admitted ? saturating_add(request.prompt_length, request.output_tokens) : 0;
    const std::int64_t charged = request.key.secondary;
    if (served >= charged) {
      entry.next_start = saturating_add(entry.next_start, virtual_time(served - charged, entry));
    } else {
      entry.next_start =
          max_of<std::int64_t>(entry.next_start - virtual_time(charged - served, entry), 0);
    }
    if (request.was_admitted) {
      const std::int64_t outputs = request.output_tokens / max_of(request.num_sequences, 1);
      entry.mean_outputs += (outputs - entry.mean_outputs) / kMeanWindow;
    }
    entry.served_tokens = saturating_add(entry.served_tokens, served);
  }

  /// The one whose tenant is furthest ahead of its share: the largest key.
  [[nodiscard]] std::int32_t victim(const VictimList& candidates) const noexcept {
    return worst_of(candidates, [](const AdmissionRequest& request) { return request.key; });
  }

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  /// Running now, of a tenant with an entry of its own; else of all tenants without one.
  [[nodiscard]] std::int32_t running_sequences(std::uint64_t tenant) const noexcept {
    return entries_[find(tenant)].running_sequences;
  }
  [[nodiscard]] std::int64_t running_tokens(std::uint64_t tenant) const noexcept {
    return entries_[find(tenant)].running_tokens;
  }
  /// Prompt and output tokens of its requests that are over, while it holds an entry.
  [[nodiscard]] std::int64_t served_tokens(std::uint64_t tenant) const noexcept {
    return entries_[find(tenant)].served_tokens;
  }

 private:
  [[nodiscard]] static constexpr std::int64_t tokens_of(const AdmissionRequest& request) noexcept {
    return saturating_mul(request.max_total_tokens, request.num_sequences);
  }
  static constexpr std::int32_t kMostWeight = 65'536;
  static constexpr std::int32_t kOverflow = kMaxTenants;
  static constexpr std::int64_t kMeanWindow = 8;
  static_assert(kMaxTenants + 1 <= kMaxQuotaGroups);

  struct Entry {
    Share share{};
    std::int64_t next_start = 0;  ///< Virtual time at which its charged requests have had theirs.
    std::int64_t mean_outputs = 0;
    std::int64_t running_tokens = 0;
    std::int64_t served_tokens = 0;
    std::int64_t num_live = 0;  ///< Queued or running.
    std::int32_t running_sequences = 0;
  };

  [[nodiscard]] static std::int64_t virtual_time(std::int64_t tokens, const Entry& entry) noexcept {
    return saturating_mul(tokens, kMostWeight) / entry.share.weight;
  }

  [[nodiscard]] std::int32_t find(std::uint64_t tenant) const noexcept {
    for (std::int32_t i = 0; i < num_entries_; ++i) {
      if (tenants_[i] == tenant) {
        return i;
      }
    }
    return kOverflow;
  }

  /// The tenant's entry, a new one if there is room. While the common entry is in use no new ones
  /// are given: its tenants must find the same entry again.
  [[nodiscard]] std::int32_t take_entry(std::uint64_t tenant) noexcept {
    std::int32_t index = find(tenant);
    if (index != kOverflow || entries_[kOverflow].num_live > 0) {
      return index;
    }
    if (num_entries_ < kMaxTenants) {
      index = num_entries_++;
    } else {
      // Who owes nothing is forgotten without a loss: it would start at the present in any case.
      for (std::int32_t i = config_.num_shares; i < kMaxTenants && index == kOverflow; ++i) {
        index = entries_[i].num_live == 0 && entries_[i].next_start <= now_ ? i : kOverflow;
      }
      if (index == kOverflow) {
        return index;
      }
    }
    tenants_[index] = tenant;
    open_entry(index, config_.other);
    return index;
  }
  void open_entry(std::int32_t index, const Share& share) noexcept {
    entries_[index] = Entry{};
    entries_[index].share = share;
    entries_[index].mean_outputs = config_.expected_outputs;
  }

  Config config_;
  std::int64_t now_ = 0;  // virtual time
  std::int32_t num_entries_ = 0;
  std::uint64_t tenants_[kMaxTenants]{};
  Entry entries_[kMaxTenants + 1]{};
};

static_assert(Admission<FairShare>);
static_assert(OptionalAdmission<FairShare>::kHasMayAdmit);
static_assert(OptionalAdmission<FairShare>::kHasQuotaGroup);
static_assert(OptionalAdmission<FairShare>::kHasOnEnd);

}  // namespace dynbatch::inline DYNBATCH_ABI
