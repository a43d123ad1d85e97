// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// ServiceBound: what no scheduler can beat on a trace, however much of the future it knows.
#include <dynbatch/base/config.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/replay_config.hpp>
#include <dynbatch/sim/trace.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// Upper bounds from work that cannot be avoided. A request costs its prompt tokens that no earlier
/// request has (a prefix cache that never forgets), its decode rows and their context, and its
/// share of the fixed cost of the steps it stands in: a step has at most `max_sequences` rows, and
/// at most `kv_tokens` of context that nobody shares. In every interval of time the requests that
/// arrive and must end in it need no more than its length, so some are late; who they are is chosen
/// in the scheduler's favour. Not counted: that prompts delay the decodes beside them, that memory
/// is held between two steps. So the bound is wide where TPOT limits are tight.
///
/// Prompts share what the trace says; outputs are in no prompt.
class ServiceBound {
 public:
  /// Copies what it needs. O(requests + their hash ids).
  DYNBATCH_API ServiceBound(const Trace& trace, const ReplayConfig& config,
                            const FormulaCost& cost);

  /// Largest share of the requests that can be inside `config.slo` if arrival times are divided by
  /// `rate_scale` (> 0). O(intervals * requests), some ten thousand intervals at most.
  [[nodiscard]] DYNBATCH_API double attainment(double rate_scale) const;

  /// Least time in which all is served that is there at the start, in seconds: of the unit that
  /// needs longest. O(requests).
  [[nodiscard]] DYNBATCH_API double offline_seconds() const noexcept;

 private:
  /// The fixed cost of a step is shared out by rows, by context, or by half of each: each is a
  /// valid lower bound, and the one that helps most is taken.
  static constexpr std::size_t kNumShares = 3;

  /// A request.
  struct Item {
    double arrival_ns = 0.0;  ///< At scale 1.
    double alone_ns = 0.0;    ///< From the first step to the last token on an idle engine.
    bool can_be_in_time = true;
    std::int64_t later_tokens = 0;                 ///< Tokens after the first.
    std::array<double, kNumShares> prefill_ns{};   ///< Work until the first token,
    std::array<double, kNumShares> complete_ns{};  ///< and until the last.
  };
  /// One that can be in time, at some scale.
  struct Job {
    double arrival_ns = 0.0;
    double first_due_ns = 0.0;
    double due_ns = 0.0;
    const Item* item = nullptr;
  };

  [[nodiscard]] std::vector<Job> jobs_at(const std::vector<Item>& items, double rate_scale) const;
  [[nodiscard]] static double num_late(std::span<const Job> jobs);
  [[nodiscard]] static std::size_t num_late_in(std::span<const Job> arriving, double begin_ns,
                                               double end_ns, std::vector<double>& works);

  Slo slo_{};
  std::vector<std::vector<Item>> units_;  // in order of arrival
  std::size_t num_requests_ = 0;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
