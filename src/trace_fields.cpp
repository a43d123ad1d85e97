// SPDX-License-Identifier: Apache-2.0
#include "trace_fields.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/hash.hpp>
#include <dynbatch/sim/trace.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Days from 1970-01-01 in the proleptic Gregorian calendar (Howard Hinnant, days_from_civil).
std::int64_t days_from_civil(std::int64_t y, std::int64_t m, std::int64_t d) {
  y -= m <= 2 ? 1 : 0;
  const std::int64_t era = y / 400;
  const std::int64_t year_of_era = y - era * 400;
  const std::int64_t day_of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  const std::int64_t day_of_era =
      year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

bool take_number(std::string_view& s, std::size_t digits, std::int64_t& value) {
  if (s.size() < digits) {
    return false;
  }
  value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (!is_digit(s[i])) {
      return false;
    }
    value = value * 10 + (s[i] - '0');
  }
  s.remove_prefix(digits);
  return true;
}

bool take_char(std::string_view& s, std::string_view any_of) {
  if (s.empty() || any_of.find(s.front()) == std::string_view::npos) {
    return false;
  }
  s.remove_prefix(1);
  return true;
}

}  // namespace

namespace detail {

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) {
    s.remove_prefix(1);
  }
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) {
    s.remove_suffix(1);
  }
  return s;
}

bool parse_count(std::string_view text, std::int64_t& value, bool& too_large) {
  too_large = false;
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_digit)) {
    return false;
  }
  value = 0;
  for (const char c : text) {
    const std::int64_t digit = c - '0';
    if (value > (INT64_MAX - digit) / 10) {
      too_large = true;
      return true;
    }
    value = value * 10 + digit;
  }
  return true;
}

bool parse_date_time(std::string_view s, std::int64_t& ns) {
  std::int64_t year = 0;
  std::int64_t month = 0;
  std::int64_t day = 0;
  std::int64_t hour = 0;
  std::int64_t minute = 0;
  std::int64_t second = 0;
  if (!take_number(s, 4, year) || !take_char(s, "-") || !take_number(s, 2, month) ||
      !take_char(s, "-") || !take_number(s, 2, day) || !take_char(s, " T") ||
      !take_number(s, 2, hour) || !take_char(s, ":") || !take_number(s, 2, minute) ||
      !take_char(s, ":") || !take_number(s, 2, second)) {
    return false;
  }
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  constexpr std::array<std::int64_t, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1970 || year > 2090 || month < 1 || month > 12 || day < 1 ||
      day > kDays[static_cast<std::size_t>(month - 1)] + (month == 2 && leap ? 1 : 0) ||
      hour > 23 || minute > 59 || second > 59) {
    return false;
  }
  std::int64_t fraction = 0;
  if (take_char(s, ".")) {
    std::int64_t unit = kNsPerSecond;
    std::int64_t digit = 0;
    if (s.empty() || !is_digit(s.front())) {
      return false;
    }
    while (!s.empty() && is_digit(s.front())) {
      static_cast<void>(take_number(s, 1, digit));
      unit /= 10;  // digits beyond the ninth count nothing
      fraction += digit * unit;
    }
  }
  std::int64_t offset_minutes = 0;
  if (!s.empty() && (s.front() == '+' || s.front() == '-')) {
    const std::int64_t sign = s.front() == '+' ? 1 : -1;
    std::int64_t offset_hour = 0;
    std::int64_t offset_minute = 0;
    s.remove_prefix(1);
    if (!take_number(s, 2, offset_hour) || !take_char(s, ":") ||
        !take_number(s, 2, offset_minute) || offset_hour > 14 || offset_minute > 59) {
      return false;
    }
    offset_minutes = sign * (offset_hour * 60 + offset_minute);
  } else {
    static_cast<void>(take_char(s, "Z"));
  }
  if (!s.empty()) {
    return false;
  }
  const std::int64_t total_seconds = days_from_civil(year, month, day) * 86400 + hour * 3600 +
                                     (minute - offset_minutes) * 60 + second;
  ns = total_seconds * kNsPerSecond + fraction;
  return true;
}

std::uint64_t parse_label(std::string_view text) {
  std::int64_t number = 0;
  bool too_large = false;
  if (text.empty()) {
    return 0;
  }
  if (parse_count(text, number, too_large) && !too_large) {
    return static_cast<std::uint64_t>(number);
  }
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  // Cleared top bit: a printed label is a whole number that reads back as itself.
  return (mix64(hash) >> 1U) | 1U;
}

}  // namespace detail

bool parse_seconds(std::string_view text, std::int64_t& ns) noexcept {
  // The digits without point and leading zeros, and the decimal exponent of the last of them.
  std::array<char, 20> digits{};
  std::size_t num_digits = 0;
  std::int64_t exponent = 0;
  bool has_digit = false;
  bool has_point = false;
  std::size_t i = 0;
  if (!text.empty() && text.front() == '+') {
    ++i;
  }
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !has_point)); ++i) {
    if (text[i] == '.') {
      has_point = true;
      continue;
    }
    has_digit = true;
    const bool kept = num_digits < digits.size() && (num_digits > 0 || text[i] != '0');
    if (kept) {
      digits[num_digits++] = text[i];
    }
    // A dropped digit behind the kept ones is worth less than a nanosecond, or the value is too
    // large.
    exponent += (has_point ? -1 : 0) + (kept || num_digits == 0 ? 0 : 1);
  }
  if (!has_digit) {
    return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    const bool is_negative = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) {
      ++i;
    }
    std::int64_t written = 0;
    const std::size_t first = i;
    for (; i < text.size() && is_digit(text[i]); ++i) {
      written = std::min<std::int64_t>(written * 10 + (text[i] - '0'), 1'000'000);
    }
    if (i == first) {
      return false;
    }
    exponent += is_negative ? -written : written;
  }
  if (i != text.size()) {
    return false;
  }
  if (num_digits == 0) {
    ns = 0;
    return true;
  }
  exponent += 9;  // from seconds to nanoseconds
  constexpr std::int64_t kLimit = kMaxTraceSeconds * detail::kNsPerSecond;
  std::int64_t value = 0;
  const auto count = static_cast<std::int64_t>(num_digits);
  for (std::int64_t d = 0; d < count + std::min<std::int64_t>(exponent, 32) && d < 40; ++d) {
    const std::int64_t digit = d < count ? digits[static_cast<std::size_t>(d)] - '0' : 0;
    if (value > (kLimit - digit) / 10) {
      return false;
    }
    value = value * 10 + digit;
  }
  // The first digit behind the last nanosecond rounds.
  const std::int64_t next = count + exponent;
  if (exponent < 0 && next >= 0 && next < count && digits[static_cast<std::size_t>(next)] >= '5') {
    ++value;
  }
  ns = value;
  return true;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
