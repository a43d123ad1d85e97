// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/sim/trace.hpp>

#include "trace_rows.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

using Json = nlohmann::json;

// Tokens that an id of hash_ids covers: the public Mooncake traces, and all others.
constexpr std::int32_t kMooncakeBlock = 512;
constexpr std::int32_t kSmallBlock = 16;
constexpr std::int64_t kNsPerMs = 1'000'000;

// Lines that are neither blank nor a comment ('#' first).
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {}

  bool next() {
    while (!text_.empty()) {
      line_ = text_.substr(0, text_.find('\n'));
      text_.remove_prefix(min_of(text_.size(), line_.size() + 1));
      ++number_;
      const std::size_t first = line_.find_first_not_of(" \t\r");
      if (first != std::string_view::npos && line_[first] != '#') {
        line_.remove_prefix(first);
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] std::string_view line() const { return line_; }
  [[nodiscard]] std::int64_t number() const { return number_; }

 private:
  std::string_view text_;
  std::string_view line_;
  std::int64_t number_ = 0;
};

class JsonLinesParser {
 public:
  JsonLinesParser(std::string_view text, std::string_view name, const TraceOptions& options)
      : lines_(text), options_(options) {
    trace().name = std::string(name);
    trace().format = options.format;
  }

  TraceResult run() {
    while (result_.is_ok() && lines_.next()) {
      ++trace().num_rows;
      read_row();
    }
    if (result_.is_ok() && trace().num_rows == 0) {
      static_cast<void>(fail(TraceErrc::Empty, "", "", "empty trace: there is not even one row"));
    }
    if (result_.is_ok()) {
      finish();
    } else {
      trace().requests.clear();
      trace().hash_ids.clear();
    }
    return std::move(result_);
  }

 private:
  Trace& trace() { return result_.trace; }
  [[nodiscard]] bool is_bailian() { return trace().format == TraceFormat::Bailian; }

  bool fail(TraceErrc code, std::string_view field, std::string_view value, std::string text) {
    TraceError& error = result_.error;
    error.code = code;
    error.file = trace().name;
    error.row = trace().num_rows;
    error.line = trace().num_rows == 0 ? 0 : lines_.number();
    error.column = std::string(field);
    error.value = detail::shown_value(value);
    error.text = std::move(text);
    return false;
  }
  bool fail_value(TraceErrc code, std::string_view field, const Json& value, std::string text) {
    return fail(code, field, value.dump(-1, ' ', true, Json::error_handler_t::replace),
                std::move(text));
  }

  bool read_row() {
    const Json row = Json::parse(lines_.line(), nullptr, false);
    if (!row.is_object()) {
      return fail(TraceErrc::NotJson, "", lines_.line(), "not a JSON object on one line");
    }
    if (trace().num_rows == 1) {
      choose_format(row);
    }
    TraceRequest request;
    std::int64_t chat = 0;
    if (!read_arrival(row, request.arrival_ns) ||
        !read_tokens(row, "input_length", request.input_tokens) ||
        !read_tokens(row, "output_length", request.output_tokens) || !read_chat(row, chat)) {
      return false;
    }
    request.chat = static_cast<std::uint64_t>(chat);
    if (!read_hashes(row, request)) {
      return false;
    }
    if (request.input_tokens == 0 || request.output_tokens == 0) {
      ++trace().num_skipped_rows;
      return true;
    }
    trace().requests.push_back(request);
    return true;
  }

  void choose_format(const Json& row) {
    if (trace().format == TraceFormat::Auto) {
      trace().format = row.contains("chat_id") ? TraceFormat::Bailian : TraceFormat::Mooncake;
    }
    has_session_ = !is_bailian() && row.contains("session");
    has_hashes_ = row.contains("hash_ids");
    if (has_hashes_) {
      trace().hash_block_tokens = is_bailian() || has_session_ ? kSmallBlock : kMooncakeBlock;
    }
  }

  // The field, or null after an error.
  const Json* find(const Json& row, const char* field) {
    const auto found = row.find(field);
    if (found != row.end()) {
      return &*found;
    }
    static_cast<void>(fail(TraceErrc::MissingColumn, field, "", "the row has no such field"));
    return nullptr;
  }

  // A whole number from `lowest` to `largest`.
  bool read_count(const Json& row, const char* field, std::int64_t lowest, std::int64_t largest,
                  const char* what, std::int64_t& value) {
    const Json* found = find(row, field);
    if (found == nullptr) {
      return false;
    }
    const bool is_large =
        found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{INT64_MAX};
    if (!found->is_number_integer() || (!is_large && found->get<std::int64_t>() < lowest)) {
      return fail_value(TraceErrc::BadValue, field, *found, fmt::format("not {}", what));
    }
    if (is_large || found->get<std::int64_t>() > largest) {
      return fail_value(TraceErrc::OutOfRange, field, *found, fmt::format("more than {}", largest));
    }
    value = found->get<std::int64_t>();
    return true;
  }

  bool read_arrival(const Json& row, std::int64_t& ns) {
    constexpr const char* kField = "timestamp";
    const Json* found = find(row, kField);
    if (found == nullptr) {
      return false;
    }
    const std::int64_t unit = is_bailian() ? kNsPerMs * 1000 : kNsPerMs;
    const double largest = static_cast<double>(kMaxTraceSeconds) * (is_bailian() ? 1.0 : 1e3);
    const double value = found->is_number() ? found->get<double>() : -1.0;
    if (!(value >= 0.0 && value <= largest)) {
      return fail_value(TraceErrc::BadValue, kField, *found,
                        fmt::format("not a number of {} from 0 to {:.0f}",
                                    is_bailian() ? "seconds" : "milliseconds", largest));
    }
    // Whole numbers stay exact.
    ns = found->is_number_integer() ? found->get<std::int64_t>() * unit
                                    : std::llround(value * static_cast<double>(unit));
    if (options_.order == TraceOrder::Strict && ns < previous_ns_) {
      return fail_value(TraceErrc::NotSorted, kField, *found,
                        "earlier than the row before; lenient reading would sort the rows");
    }
    previous_ns_ = ns;
    return true;
  }

  bool read_tokens(const Json& row, const char* field, std::int64_t& tokens) {
    if (!read_count(row, field, 0, kMaxTraceTokens, "a whole number of tokens", tokens)) {
      return false;
    }
    if (tokens == 0 && options_.order == TraceOrder::Strict) {
      return fail(TraceErrc::NoTokens, field, "0",
                  "a request needs at least one token; lenient reading would skip the row");
    }
    return true;
  }

  // A session, or the first chat of a chain of turns, plus one: 0 means none.
  bool read_chat(const Json& row, std::int64_t& chat) {
    constexpr std::int64_t kLargest = INT64_MAX - 1;
    if (!is_bailian()) {
      if (has_session_ && !read_count(row, "session", 0, kLargest, "a session number", chat)) {
        return false;
      }
      chat += has_session_ ? 1 : 0;
      return true;
    }
    std::int64_t id = 0;
    std::int64_t parent = 0;
    if (!read_count(row, "chat_id", 0, kLargest, "a chat number", id) ||
        !read_count(row, "parent_chat_id", -1, kLargest, "a chat number, or -1 for none", parent)) {
      return false;
    }
    const auto known = roots_.find(parent);
    const std::int64_t above = known != roots_.end() ? known->second : parent;
    const std::int64_t root = parent < 0 ? id : above;
    roots_[id] = root;
    chat = root + 1;
    return true;
  }

  bool read_hashes(const Json& row, TraceRequest& request) {
    constexpr const char* kField = "hash_ids";
    if (!has_hashes_) {
      return !row.contains(kField) ||
             fail(TraceErrc::BadValue, kField, "", "the first row has no such field");
    }
    const Json* ids = find(row, kField);
    if (ids == nullptr) {
      return false;
    }
    const std::int64_t unit = trace().hash_block_tokens;
    const std::int64_t begun = ceil_div(request.input_tokens, unit);
    const auto count = static_cast<std::int64_t>(ids->size());
    // Some traces leave out the last block if it isn't full.
    if (!ids->is_array() || (count != begun && count != request.input_tokens / unit)) {
      return fail_value(
          TraceErrc::BadValue, kField, ids->is_array() ? Json(count) : *ids,
          fmt::format("needs an array of {} ids, one for {} tokens each", begun, unit));
    }
    request.first_hash = trace().hash_ids.size();
    request.num_hashes = count;
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned()) {
        return fail_value(TraceErrc::BadValue, kField, id, "not a whole number from 0 to 2^64 - 1");
      }
      trace().hash_ids.push_back(id.get<std::uint64_t>());
    }
    return true;
  }

  void finish() {
    if (options_.order == TraceOrder::Lenient) {
      detail::sort_by_arrival(trace().requests);
    }
    // Sessions are recorded to the millisecond.
    const bool ticks = trace().format == TraceFormat::Mooncake && !has_session_;
    const std::int64_t by_format = ticks ? kMooncakeTickNs : 0;
    const std::int64_t spread = options_.spread_ns < 0 ? by_format : options_.spread_ns;
    if (spread > 0) {
      detail::spread_ticks(trace().requests, spread);
    }
    trace().spread_ns = spread;
    apply_window(trace(), options_);
  }

  LineReader lines_;
  const TraceOptions& options_;
  TraceResult result_;
  std::unordered_map<std::int64_t, std::int64_t> roots_;  // Of chats.
  std::int64_t previous_ns_ = 0;
  bool has_session_ = false;
  bool has_hashes_ = false;
};

}  // namespace

bool detail::is_json_lines(std::string_view text) {
  LineReader lines(text);
  return lines.next() && lines.line().front() == '{';
}

TraceResult detail::parse_json_lines(std::string_view text, std::string_view name,
                                     const TraceOptions& options) {
  return JsonLinesParser(text, name, options).run();
}

std::string print_trace_jsonl(const Trace& trace) {
  bool has_chats = false;
  for (const TraceRequest& r : trace.requests) {
    has_chats = has_chats || r.chat != 0;
  }
  std::string text;
  const auto out = std::back_inserter(text);
  for (const TraceRequest& r : trace.requests) {
    fmt::format_to(out, R"({{"timestamp": {}.{:06}, "input_length": {}, "output_length": {})",
                   r.arrival_ns / kNsPerMs, r.arrival_ns % kNsPerMs, r.input_tokens,
                   r.output_tokens);
    if (has_chats) {
      fmt::format_to(out, R"(, "session": {})", r.chat == 0 ? 0 : r.chat - 1);
    }
    if (trace.hash_block_tokens != 0) {
      text += R"(, "hash_ids": [)";
      for (std::int64_t i = 0; i < r.num_hashes; ++i) {
        fmt::format_to(out, "{}{}", i == 0 ? "" : ", ",
                       trace.hash_ids[r.first_hash + static_cast<std::uint64_t>(i)]);
      }
      text += "]";
    }
    text += "}\n";
  }
  return text;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
