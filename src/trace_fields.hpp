// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Fields of traces: counts, labels, dates.
#include <dynbatch/base/config.hpp>

#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

/// Without blanks at both ends.
std::string_view trimmed(std::string_view s);

/// Reads digits only; false on anything else. Stops growing at the largest int64.
bool parse_count(std::string_view text, std::int64_t& value, bool& too_large);

/// "2023-11-16 18:15:46.6805900", with 'T' for the space and 'Z' or "+00:00" behind it if it likes.
bool parse_date_time(std::string_view s, std::int64_t& ns);

/// A whole number stays what it is; any other text becomes its hash, never 0. Empty = 0.
std::uint64_t parse_label(std::string_view text);

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
