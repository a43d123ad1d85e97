// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the readers of traces have in common.
#include <dynbatch/base/config.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// A value as it may stand in a message: short, one line, printable.
std::string shown_value(std::string_view value);

/// Ties keep their order.
void sort_by_arrival(std::vector<TraceRequest>& requests);

/// Spreads requests of equal arrival, which stand side by side: TraceOptions::spread_ns, > 0.
void spread_ticks(std::vector<TraceRequest>& requests, std::int64_t spread_ns);

/// True if the first line that is neither blank nor a comment begins a JSON object.
bool is_json_lines(std::string_view text);

/// Reads Mooncake or Bailian lines; Auto takes the one whose fields the first row has.
TraceResult parse_json_lines(std::string_view text, std::string_view name,
                             const TraceOptions& options);

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
