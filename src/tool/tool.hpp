// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The command line tool behind main(): everything it reads and writes is an argument, for tests.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>

#include <iosfwd>
#include <string>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

/// Exit codes.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;  ///< Could not write, ran out of memory, or an error of our own.
inline constexpr int kUsage = 2;
inline constexpr int kBadInput = 3;  ///< A trace or cost file that can't be used.

/// A status as a sentence.
[[nodiscard]] std::string text_of(const Status& status);

/// Runs `dynbatch ARGS...`; `args` holds no program name. Progress goes to `err` if
/// `shows_progress`.
int run_tool(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
             bool shows_progress);

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
