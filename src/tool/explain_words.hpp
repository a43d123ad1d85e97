// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a flight log says, in words.
#include <dynbatch/base/config.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

// 1234567 -> "1,234,567".
template <class Int>
std::string grouped(Int value) {
  const std::string digits = fmt::format("{}", value);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) {
      text.push_back(',');
    }
    text.push_back(digits[i]);
  }
  return text;
}

template <class Int>
std::string counted(Int n, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(n), noun, n == 1 ? "" : "s");
}

inline double ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// What somebody waited for. One text a cause, so that equal ones can be counted.
[[nodiscard]] std::string reason_of(std::uint8_t cause, const FlightPlan& plan);
// The part before the colon: what the reasons of one kind have in common.
[[nodiscard]] std::string_view short_reason(std::string_view reason);
[[nodiscard]] std::string end_of(const FlightEnded& end);
// Did the plan look at the queue at all? Else nobody waited for anything but the next call.
[[nodiscard]] bool was_composed(const FlightPlan& plan);
// Why request `id`, which stands in the queue, was not admitted by the plan of `record`.
[[nodiscard]] std::string why_waiting(std::uint64_t id, const FlightRecord& record);

// Reasons for waiting and how many plans each of them held.
class Reasons {
 public:
  void add(const std::string& reason, std::int64_t n = 1) { counts_[reason] += n; }
  [[nodiscard]] bool empty() const { return counts_.empty(); }
  void clear() { counts_.clear(); }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [reason, count] : counts_) {
      sum += count;
    }
    return sum;
  }
  // Most frequent first.
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> sorted() const {
    std::vector<std::pair<std::string, std::int64_t>> out(counts_.begin(), counts_.end());
    std::stable_sort(out.begin(), out.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return out;
  }

 private:
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
