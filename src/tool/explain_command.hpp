// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `dynbatch explain`: options as given, and the run.
#include <dynbatch/base/config.hpp>

#include <cstdint>
#include <iosfwd>
#include <string>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {

struct ExplainOptions {
  std::string log;
  std::uint64_t request = 0;
  bool has_request = false;
  bool verify = false;
};

/// Returns an exit code of tool.hpp; errors are one line on `err`.
int run_explain(const ExplainOptions& options, std::ostream& out, std::ostream& err);

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
