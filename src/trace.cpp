// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/sim/sha256.hpp>
#include <dynbatch/sim/trace.hpp>

#include "trace_fields.hpp"
#include "trace_rows.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
std::string detail::shown_value(std::string_view value) {
  constexpr std::size_t kLongest = 60;
  std::string text;
  for (const char c : value.substr(0, kLongest)) {
    text.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  if (value.size() > kLongest) {
    text.replace(kLongest - 3, 3, "...");
  }
  return text;
}

namespace {

using detail::kNsPerSecond;

// Splits comma-separated text into records (RFC 4180: quotes may hold commas, quotes and line
// ends).
class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : text_(text) {}

  // Reads the next record that is neither blank nor a comment ('#' first). False at the end or on
  // an error, which then stands in error().
  bool next() {
    while (at_ < text_.size()) {
      line_ = next_line_;
      const std::string_view rest = text_.substr(at_);
      const std::string_view whole_line = rest.substr(0, rest.find('\n'));
      const std::string_view content = detail::trimmed(whole_line);
      if (content.empty() || content.front() == '#') {
        at_ = std::min(text_.size(), at_ + whole_line.size() + 1);
        ++next_line_;
        continue;
      }
      return read_record();
    }
    return false;
  }

  [[nodiscard]] const std::vector<std::string>& fields() const { return fields_; }
  [[nodiscard]] std::size_t num_fields() const { return num_fields_; }
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] TraceErrc error() const { return error_; }
  // Whether the text of the last record began with `c`.
  [[nodiscard]] bool starts_with(char c) const {
    return first_ < text_.size() && text_[first_] == c;
  }

 private:
  bool read_record() {
    first_ = at_;
    num_fields_ = 0;
    while (true) {
      std::string& field = add_field();
      if (!read_field(field)) {
        return false;
      }
      if (at_ >= text_.size()) {
        return true;
      }
      const char end = text_[at_++];
      if (end == '\n') {
        ++next_line_;
        return true;
      }
    }
  }

  // Leaves at_ on the comma or line end behind the field, or at the end of the text.
  bool read_field(std::string& field) {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) {
      ++at_;
    }
    if (at_ >= text_.size() || text_[at_] != '"') {
      const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
      const std::string_view raw = detail::trimmed(text_.substr(at_, end - at_));
      field.assign(raw);
      at_ = end;
      if (raw.find('"') != std::string_view::npos) {
        error_ = TraceErrc::BadQuote;
        return false;
      }
      return true;
    }
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c != '"') {
        next_line_ += c == '\n' ? 1 : 0;
        field.push_back(c);
      } else if (at_ < text_.size() && text_[at_] == '"') {
        field.push_back('"');
        ++at_;
      } else {
        const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
        if (!detail::trimmed(text_.substr(at_, end - at_)).empty()) {
          error_ = TraceErrc::BadQuote;
          return false;
        }
        at_ = end;
        return true;
      }
    }
    error_ = TraceErrc::UnclosedQuote;
    return false;
  }

  std::string& add_field() {
    if (num_fields_ == fields_.size()) {
      fields_.emplace_back();
    }
    std::string& field = fields_[num_fields_++];
    field.clear();
    return field;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t first_ = SIZE_MAX;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
  std::vector<std::string> fields_;  // strings are reused from record to record
  std::size_t num_fields_ = 0;
  TraceErrc error_ = TraceErrc::None;
};

}  // namespace

// Ties keep their order. (std::stable_sort of this standard library warns under clang.)
void detail::sort_by_arrival(std::vector<TraceRequest>& requests) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return requests[a].arrival_ns != requests[b].arrival_ns
               ? requests[a].arrival_ns < requests[b].arrival_ns
               : a < b;
  });
  std::vector<TraceRequest> sorted;
  sorted.reserve(requests.size());
  for (const std::size_t i : order) {
    sorted.push_back(requests[i]);
  }
  requests.swap(sorted);
}

void detail::spread_ticks(std::vector<TraceRequest>& requests, std::int64_t spread_ns) {
  for (std::size_t first = 0; first < requests.size();) {
    const std::int64_t tick = requests[first].arrival_ns;
    std::size_t end = first;
    while (end < requests.size() && requests[end].arrival_ns == tick) {
      ++end;
    }
    const std::int64_t length =
        end < requests.size() ? std::min(spread_ns, requests[end].arrival_ns - tick) : spread_ns;
    // In double, as length times a count could overflow; far below a nanosecond of error.
    const double step = static_cast<double>(length) / static_cast<double>(end - first);
    for (std::size_t i = first; i < end; ++i) {
      requests[i].arrival_ns =
          std::min(tick + static_cast<std::int64_t>(step * static_cast<double>(i - first)),
                   kMaxTraceSeconds * kNsPerSecond);
    }
    first = end;
  }
}

namespace {

constexpr std::size_t kAbsent = SIZE_MAX;

struct Columns {
  bool is_azure = false;
  std::size_t arrival = kAbsent;
  std::size_t input = kAbsent;
  std::size_t output = kAbsent;
  std::size_t tenant = kAbsent;
  std::size_t chat = kAbsent;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view name, const TraceOptions& options)
      : reader_(text), options_(options) {
    result_.trace.name = std::string(name);
  }

  TraceResult run() {
    if (read_header()) {
      read_rows();
    }
    if (result_.is_ok()) {
      finish();
    } else {
      result_.trace.requests.clear();
    }
    return std::move(result_);
  }

 private:
  bool fail(TraceErrc code, std::string_view column, std::string_view value, std::string text) {
    TraceError& error = result_.error;
    error.code = code;
    error.file = result_.trace.name;
    error.row = result_.trace.num_rows;
    error.line = reader_.line();
    error.column = std::string(column);
    error.value = detail::shown_value(value);
    error.text = std::move(text);
    return false;
  }

  bool fail_record() {
    return reader_.error() == TraceErrc::UnclosedQuote
               ? fail(TraceErrc::UnclosedQuote, "", "", "a quoted field is never closed")
               : fail(TraceErrc::BadQuote, "", "",
                      "a quote stands inside a field or text behind a closing quote");
  }

  bool read_header() {
    const bool has_record = reader_.next();
    if (reader_.starts_with('{')) {
      return fail(TraceErrc::UnknownFormat, "", "",
                  "these are JSON lines, not columns: leave the format to auto, or name it");
    }
    if (!has_record) {
      return reader_.error() != TraceErrc::None
                 ? fail_record()
                 : fail(TraceErrc::Empty, "", "", "empty trace: there is not even a header line");
    }
    header_.assign(reader_.fields().begin(),
                   reader_.fields().begin() + static_cast<std::ptrdiff_t>(reader_.num_fields()));
    columns_.is_azure = options_.format == TraceFormat::Azure ||
                        (options_.format == TraceFormat::Auto &&
                         (has("TIMESTAMP") || has("ContextTokens") || has("GeneratedTokens")));
    if (options_.format == TraceFormat::Auto && !columns_.is_azure && !has("arrival_s") &&
        !has("input_tokens") && !has("output_tokens")) {
      return fail(TraceErrc::UnknownFormat, "", header_.front(),
                  "the first line names neither TIMESTAMP,ContextTokens,GeneratedTokens nor "
                  "arrival_s,input_tokens,output_tokens");
    }
    if (columns_.is_azure) {
      return find("TIMESTAMP", "", true, columns_.arrival) &&
             find("ContextTokens", "", true, columns_.input) &&
             find("GeneratedTokens", "", true, columns_.output);
    }
    return find("arrival_s", "", true, columns_.arrival) &&
           find("input_tokens", "", true, columns_.input) &&
           find("output_tokens", "", true, columns_.output) &&
           find("tenant", "client", false, columns_.tenant) &&
           find("chat", "session", false, columns_.chat);
  }

  [[nodiscard]] bool has(std::string_view name) const {
    return std::find(header_.begin(), header_.end(), name) != header_.end();
  }

  bool find(std::string_view name, std::string_view other_name, bool required,
            std::size_t& column) {
    for (std::size_t i = 0; i < header_.size(); ++i) {
      if (header_[i] == name || (!other_name.empty() && header_[i] == other_name)) {
        if (column != kAbsent) {
          return fail(TraceErrc::DuplicateColumn, header_[i], "",
                      header_[column] == header_[i]
                          ? "the column stands twice in the header"
                          : fmt::format("it means the same as the column '{}'", header_[column]));
        }
        column = i;
      }
    }
    return column != kAbsent || !required ||
           fail(TraceErrc::MissingColumn, name, "", "the header has no such column");
  }

  bool read_rows() {
    while (reader_.next()) {
      ++result_.trace.num_rows;
      if (!read_row()) {
        return false;
      }
    }
    if (reader_.error() != TraceErrc::None) {
      ++result_.trace.num_rows;
      return fail_record();
    }
    return true;
  }

  bool read_row() {
    if (reader_.num_fields() != header_.size()) {
      const bool is_short = reader_.num_fields() < header_.size();
      return fail(is_short ? TraceErrc::ShortRow : TraceErrc::LongRow, "", "",
                  fmt::format("the row has {} fields, the header {}", reader_.num_fields(),
                              header_.size()));
    }
    TraceRequest request;
    if (!read_arrival(request.arrival_ns) || !read_tokens(columns_.input, request.input_tokens) ||
        !read_tokens(columns_.output, request.output_tokens)) {
      return false;
    }
    if (request.input_tokens == 0 || request.output_tokens == 0) {
      ++result_.trace.num_skipped_rows;
      return true;
    }
    if (columns_.tenant != kAbsent) {
      request.tenant = detail::parse_label(reader_.fields()[columns_.tenant]);
    }
    if (columns_.chat != kAbsent) {
      request.chat = detail::parse_label(reader_.fields()[columns_.chat]);
    }
    result_.trace.requests.push_back(request);
    return true;
  }

  bool read_arrival(std::int64_t& ns) {
    const std::string& text = reader_.fields()[columns_.arrival];
    const std::string& name = header_[columns_.arrival];
    if (columns_.is_azure) {
      if (!detail::parse_date_time(text, ns)) {
        return fail(TraceErrc::BadValue, name, text,
                    "not a date and time between 1970 and 2090 like 2023-11-16 18:15:46.6805900");
      }
    } else if (!parse_seconds(text, ns)) {
      return fail(TraceErrc::BadValue, name, text,
                  fmt::format("not a finite number of seconds from 0 to {}", kMaxTraceSeconds));
    }
    if (options_.order == TraceOrder::Strict && ns < previous_ns_) {
      return fail(TraceErrc::NotSorted, name, text,
                  "earlier than the row before; lenient reading would sort the rows");
    }
    previous_ns_ = ns;
    return true;
  }

  bool read_tokens(std::size_t column, std::int64_t& tokens) {
    const std::string& text = reader_.fields()[column];
    bool too_large = false;
    if (!detail::parse_count(text, tokens, too_large)) {
      return fail(TraceErrc::BadValue, header_[column], text, "not a whole number of tokens");
    }
    if (too_large || tokens > kMaxTraceTokens) {
      return fail(TraceErrc::OutOfRange, header_[column], text,
                  fmt::format("more than {} tokens", kMaxTraceTokens));
    }
    if (tokens == 0 && options_.order == TraceOrder::Strict) {
      return fail(TraceErrc::NoTokens, header_[column], text,
                  "a request needs at least one token; lenient reading would skip the row");
    }
    return true;
  }

  void finish() {
    std::vector<TraceRequest>& requests = result_.trace.requests;
    if (options_.order == TraceOrder::Lenient) {
      detail::sort_by_arrival(requests);
    }
    result_.trace.format = columns_.is_azure ? TraceFormat::Azure : TraceFormat::Csv;
    if (columns_.is_azure && !requests.empty()) {
      const std::int64_t first = requests.front().arrival_ns;
      for (TraceRequest& request : requests) {
        request.arrival_ns -= first;
      }
    }
    if (options_.spread_ns > 0) {
      detail::spread_ticks(requests, options_.spread_ns);
      result_.trace.spread_ns = options_.spread_ns;
    }
    apply_window(result_.trace, options_);
  }

  RecordReader reader_;
  const TraceOptions& options_;
  TraceResult result_;
  std::vector<std::string> header_;
  Columns columns_;
  std::int64_t previous_ns_ = 0;
};

TraceResult cannot_read(const std::string& path, std::string text) {
  TraceResult result;
  result.error.code = TraceErrc::CannotRead;
  result.error.file = path;
  result.error.text = std::move(text);
  return result;
}

}  // namespace

std::string TraceError::message() const {
  std::string text_so_far = file + ":";
  const char* separator = " ";
  const auto add = [&](const std::string& part) {
    text_so_far += separator + part;
    separator = ", ";
  };
  if (row > 0) {
    add(fmt::format("row {} (line {})", row, line));
  } else if (line > 0) {
    add(fmt::format("line {}", line));
  }
  if (!column.empty()) {
    add(fmt::format("column '{}'", column));
  }
  const bool names_value = code == TraceErrc::BadValue || code == TraceErrc::OutOfRange ||
                           code == TraceErrc::NoTokens || code == TraceErrc::NotSorted ||
                           !value.empty();
  if (names_value) {
    add(fmt::format("value '{}'", value));
  }
  return text_so_far + (row > 0 || line > 0 || !column.empty() || names_value ? ": " : " ") + text;
}

TraceResult parse_trace(std::string_view text, std::string_view name, const TraceOptions& options) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::string digest = sha256_hex(text);
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  const bool names_json =
      options.format == TraceFormat::Mooncake || options.format == TraceFormat::Bailian;
  const bool is_json =
      names_json || (options.format == TraceFormat::Auto && detail::is_json_lines(text));
  TraceResult result =
      is_json ? detail::parse_json_lines(text, name, options) : Parser(text, name, options).run();
  result.trace.sha256 = digest;
  return result;
}

TraceResult read_trace(const std::string& path, const TraceOptions& options) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return cannot_read(path, "cannot open the file");
  }
  std::string text;
  std::array<char, 65536> part{};
  while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad() || !file.eof()) {
    return cannot_read(path, "cannot read the file");
  }
  return parse_trace(text, path, options);
}

std::string print_trace_csv(const Trace& trace) {
  std::string text = "arrival_s,input_tokens,output_tokens,tenant,chat\n";
  for (const TraceRequest& r : trace.requests) {
    fmt::format_to(std::back_inserter(text), "{}.{:09},{},{},{},{}\n", r.arrival_ns / kNsPerSecond,
                   r.arrival_ns % kNsPerSecond, r.input_tokens, r.output_tokens, r.tenant, r.chat);
  }
  return text;
}

void apply_window(Trace& trace, const TraceOptions& options) {
  std::vector<TraceRequest>& requests = trace.requests;
  const auto is_before = [](const TraceRequest& r, std::int64_t ns) { return r.arrival_ns < ns; };
  if (options.end_ns >= 0) {
    requests.erase(std::lower_bound(requests.begin(), requests.end(), options.end_ns, is_before),
                   requests.end());
  }
  requests.erase(requests.begin(),
                 std::lower_bound(requests.begin(), requests.end(), options.start_ns, is_before));
  if (options.max_requests >= 0 &&
      requests.size() > static_cast<std::size_t>(options.max_requests)) {
    requests.resize(static_cast<std::size_t>(options.max_requests));
  }
  for (TraceRequest& request : requests) {
    request.arrival_ns -= options.start_ns;
  }
}

}  // namespace dynbatch::inline DYNBATCH_ABI
