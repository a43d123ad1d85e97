// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Options of bundles: their values, and the reader of "NAME:key=value,NAME".
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// A name of an option's value.
template <class Enum>
struct NamedChoice {
  std::string_view name;
  Enum value;
};

/// Reads a whole decimal integer in [low, high].
template <class Int>
[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key, Int low,
                                            Int high, Int& out) noexcept {
  std::int64_t value = 0;
  bool is_number = !text.empty();
  for (const char c : text) {
    is_number = is_number && c >= '0' && c <= '9' &&
                value <= (std::numeric_limits<std::int64_t>::max() - 9) / 10;
    if (!is_number) {
      break;
    }
    value = value * 10 + (c - '0');
  }
  if (!is_number) {
    return {Errc::InvalidArgument, key, 0, 0, "needs a whole number"};
  }
  if (value < low || value > high) {
    return {Errc::InvalidArgument, key, value, value < low ? low : high, "is out of range"};
  }
  out = static_cast<Int>(value);
  return kOk;
}

/// Reads a decimal fraction such as 0.25: digits, at most one point.
[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key,
                                            double& out) noexcept {
  double value = 0.0;
  double unit = 1.0;
  bool is_fraction = false;
  bool has_digit = false;
  for (const char c : text) {
    if (c == '.' && !is_fraction) {
      is_fraction = true;
    } else if (c >= '0' && c <= '9') {
      has_digit = true;
      value = value * 10.0 + static_cast<double>(c - '0');
      unit *= is_fraction ? 10.0 : 1.0;
    } else {
      has_digit = false;
      break;
    }
  }
  if (!has_digit || text.size() > 18) {
    return {Errc::InvalidArgument, key, 0, 0, "needs a number such as 0.5"};
  }
  out = value / unit;
  return kOk;
}

[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key,
                                            bool& out) noexcept {
  if (text == "1" || text == "true") {
    out = true;
  } else if (text == "0" || text == "false") {
    out = false;
  } else {
    return {Errc::InvalidArgument, key, 0, 0, "needs 0, 1, true or false"};
  }
  return kOk;
}

/// Reads a share such as 0.05, from 0 to 1, into thousandths.
[[nodiscard]] constexpr Status parse_permille(std::string_view text, const char* key,
                                              std::int32_t& out) noexcept {
  double share = 0.0;
  if (const Status status = parse_option(text, key, share); !status) {
    return status;
  }
  if (share > 1.0) {
    return {Errc::InvalidArgument, key, static_cast<std::int64_t>(share), 1,
            "lies between 0 and 1"};
  }
  out = static_cast<std::int32_t>(share * 1000.0 + 0.5);
  return kOk;
}

/// Reads the milliseconds of waiting that outweigh one unit of priority; 0 = none do.
[[nodiscard]] constexpr Status parse_aging(std::string_view text, DurationNs& out) noexcept {
  std::int64_t ms = 0;
  const Status status =
      parse_option(text, "aging_ms", std::int64_t{0}, std::int64_t{1'000'000'000}, ms);
  if (status) {
    out = ms > 0 ? milliseconds(ms) : kUnbounded;
  }
  return status;
}

/// Reads one of some names into its value; `expects` is the text of the error.
template <class Enum, std::size_t kCount>
[[nodiscard]] constexpr Status parse_choice(std::string_view text, const char* key,
                                            const NamedChoice<Enum> (&choices)[kCount],
                                            const char* expects, Enum& out) noexcept {
  for (const NamedChoice<Enum>& choice : choices) {
    if (text == choice.name) {
      out = choice.value;
      return kOk;
    }
  }
  return {Errc::InvalidArgument, key, 0, 0, expects};
}

inline constexpr std::int32_t kMostInt32 = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMostInt64 = std::numeric_limits<std::int64_t>::max();

}  // namespace detail

/// One entry of a policy list: views into the caller's text.
struct PolicySpec {
  std::string_view text{};     ///< The whole entry, "chunked:budget=2048".
  std::string_view name{};     ///< "chunked".
  std::string_view options{};  ///< "budget=2048".
  std::size_t position = 0;    ///< Where `text` begins in the list.
};

/// Splits "NAME:key=value:key=value,NAME" entry by entry. Allocates nothing.
class PolicyListReader {
 public:
  constexpr explicit PolicyListReader(std::string_view list) noexcept : list_(list) {}

  [[nodiscard]] constexpr bool has_next() const noexcept { return next_ <= list_.size(); }

  /// The next entry; an entry without a name is an error whose value is its position.
  [[nodiscard]] constexpr Status next(PolicySpec& out) noexcept {
    out = {};
    out.position = next_;
    const std::size_t end = list_.find(',', next_);
    out.text = list_.substr(next_, end == std::string_view::npos ? end : end - next_);
    next_ = end == std::string_view::npos ? list_.size() + 1 : end + 1;
    const std::size_t colon = out.text.find(':');
    out.name = out.text.substr(0, colon);
    if (colon != std::string_view::npos) {
      out.options = out.text.substr(colon + 1);
    }
    if (out.name.empty()) {
      return {Errc::InvalidArgument, "policy", static_cast<std::int64_t>(out.position), 0,
              "a policy name is missing at this position"};
    }
    return kOk;
  }

 private:
  std::string_view list_;
  std::size_t next_ = 0;
};

/// Sets all options of `spec`. On an error `*position`, if given, is where in the list the
/// offending option begins; an unknown option's Status carries it as its value.
template <class Bundle>
[[nodiscard]] constexpr Status configure(Bundle& bundle, const PolicySpec& spec,
                                         std::size_t* position = nullptr) noexcept {
  std::string_view rest = spec.options;
  std::size_t at = spec.position + spec.name.size() + 1;
  bool has_more = spec.text.size() > spec.name.size();
  while (has_more) {
    const std::size_t end = rest.find(':');
    const std::string_view option = rest.substr(0, end);
    if (position != nullptr) {
      *position = at;
    }
    const std::size_t equals = option.find('=');
    bool is_flag = false;
    if constexpr (requires { Bundle::is_flag(option); }) {
      is_flag = equals == std::string_view::npos && Bundle::is_flag(option);
    }
    if ((equals == std::string_view::npos && !is_flag) || equals == 0) {
      return {Errc::InvalidArgument, "option", static_cast<std::int64_t>(at), 0,
              "an option has the form key=value"};
    }
    Status status = is_flag ? bundle.set(option, "true")
                            : bundle.set(option.substr(0, equals), option.substr(equals + 1));
    if (!status) {
      if (std::string_view(status.field) == "option") {
        status.value = static_cast<std::int64_t>(at);
      }
      return status;
    }
    has_more = end != std::string_view::npos;
    if (has_more) {
      at += end + 1;
      rest = rest.substr(end + 1);
    }
  }
  if (position != nullptr) {
    *position = spec.position;
  }
  return bundle.validate();
}

}  // namespace dynbatch::inline DYNBATCH_ABI
