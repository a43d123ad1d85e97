// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Runs random sequences of operations through both schedulers. One that ends in a difference is
/// shrunk to a short one.
#include "naive_operations.hpp"
#include "naive_pair.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dynbatch::test::naive {

/// What became of one sequence of operations.
struct Report {
  std::string error;
  std::int64_t operations = 0;
  SchedulerStats stats{};
  std::int64_t starts = 0;  ///< Sequences whose prefix ended inside a block.
  std::vector<std::string> story;
};

inline Report compare(const Setup& setup, const Mix& mix, const std::vector<Operation>& operations,
                      bool tells = false) {
  const auto run = [&](auto&& pair) {
    Report report;
    pair.tells = tells;
    report.error = pair.run(operations);
    report.operations = pair.done();
    report.stats = pair.stats();
    report.starts = pair.num_starts();
    report.story = pair.story();
    return report;
  };
  if (!setup.by_priority) {
    return run(Pair<FcfsAdmission>(setup, mix));
  }
  return setup.displaces ? run(Pair<PriorityAging>(setup, mix))
                         : run(Pair<WaitingPriority>(setup, mix));
}

/// Drops operations for as long as a difference is left.
inline std::vector<Operation> shrink(const Setup& setup, const Mix& mix,
                                     std::vector<Operation> operations) {
  std::size_t step = operations.size() / 2;
  while (step > 0) {
    bool is_shorter = false;
    for (std::size_t from = 0; from < operations.size();) {
      std::vector<Operation> fewer = operations;
      const std::size_t to = std::min(from + step, fewer.size());
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(from),
                  fewer.begin() + static_cast<std::ptrdiff_t>(to));
      if (compare(setup, mix, fewer).error.empty()) {
        from += step;
      } else {
        operations = std::move(fewer);
        is_shorter = true;
      }
    }
    step = is_shorter && step == 1 ? 1 : step / 2;
  }
  return operations;
}

/// One random sequence; a difference is told with the shortest one that shows it.
inline Report compare_random(const Mix& mix, std::uint64_t seed) {
  const int count = seed % 16 == 0 ? 1500 : 250;
  const Setup setup = draw_setup(mix, seed);
  const std::vector<Operation> operations = draw_operations(mix, seed, count);
  Report report = compare(setup, mix, operations);
  if (!report.error.empty()) {
    const std::string first = report.error;
    const std::int64_t done = report.operations;
    report = compare(setup, mix, shrink(setup, mix, operations), true);
    std::string text = "seed " + std::to_string(seed) + ": " + first + "\nshrunk: " + report.error +
                       "\n" + describe(setup);
    for (const std::string& line : report.story) {
      text += "\n  " + line;
    }
    report.error = text;
    report.operations = done;
  }
  return report;
}

}  // namespace dynbatch::test::naive
