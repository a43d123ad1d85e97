// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Request traces: when requests came and how long prompt and answer were. Formats:
/// docs/simulator.md.
#include <dynbatch/base/config.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// One request of a trace.
struct TraceRequest {
  std::int64_t arrival_ns = 0;     ///< From the beginning of the trace; >= 0.
  std::int64_t input_tokens = 0;   ///< >= 1
  std::int64_t output_tokens = 0;  ///< >= 1; known to the executor, never to a policy.
  std::uint64_t tenant = 0;        ///< 0 = none.
  std::uint64_t chat = 0;          ///< Chat session; 0 = none.
  std::uint64_t prefix_group = 0;  ///< Requests of one group (> 0) share their first prefix_tokens.
  std::int64_t prefix_tokens = 0;
  std::uint64_t first_hash = 0;  ///< In Trace::hash_ids: one id for each block of the prompt begun.
  std::int64_t num_hashes = 0;   ///< 0 = the trace says nothing about this prompt's content.

  friend bool operator==(const TraceRequest&, const TraceRequest&) noexcept = default;
};

enum class TraceFormat : std::uint8_t {
  Auto,      ///< Decided by the names of columns or fields.
  Azure,     ///< TIMESTAMP (date and time), ContextTokens, GeneratedTokens.
  Csv,       ///< arrival_s, input_tokens, output_tokens [, tenant|client] [, chat|session].
  Mooncake,  ///< JSON lines: timestamp (ms), input_length, output_length [, hash_ids] [, session].
  Bailian,   ///< JSON lines: timestamp (s), chat_id, parent_chat_id, lengths [, hash_ids].
};

/// Requests in order of arrival, ties in file order.
struct Trace {
  std::string name;    ///< File or workload name.
  std::string sha256;  ///< Of the file's bytes; empty for generated workloads.
  std::vector<TraceRequest> requests;
  std::int64_t num_rows = 0;               ///< Data rows read, before the window and the row limit.
  std::int64_t num_skipped_rows = 0;       ///< Lenient only: rows without input or output tokens.
  TraceFormat format = TraceFormat::Auto;  ///< What it was read as; Auto = generated.
  std::vector<std::uint64_t> hash_ids;     ///< Equal ids name equal whole prefixes.
  std::int32_t hash_block_tokens = 0;      ///< Tokens an id covers; 0 = no ids.
  std::int64_t spread_ns = 0;  ///< Equal time stamps were spread over so much; 0 = as written.

  [[nodiscard]] std::int64_t longest_output() const noexcept {
    std::int64_t longest = 0;
    for (const TraceRequest& r : requests) {
      longest = r.output_tokens > longest ? r.output_tokens : longest;
    }
    return longest;
  }
  [[nodiscard]] std::int64_t longest_input() const noexcept {
    std::int64_t longest = 0;
    for (const TraceRequest& r : requests) {
      longest = r.input_tokens > longest ? r.input_tokens : longest;
    }
    return longest;
  }
};

/// How to treat rows that are out of order or empty.
enum class TraceOrder : std::uint8_t {
  Strict,   ///< An earlier arrival than the row before, or zero tokens, is an error.
  Lenient,  ///< Rows are sorted stably by arrival; rows with zero tokens are skipped and counted.
};

struct TraceOptions {
  TraceFormat format = TraceFormat::Auto;
  TraceOrder order = TraceOrder::Strict;
  std::int64_t start_ns = 0;       ///< Keep arrivals in [start, end), which then count from start.
  std::int64_t end_ns = -1;        ///< -1 = no end.
  std::int64_t max_requests = -1;  ///< Keep the first so many of these; -1 = all.
  /// Requests of equal time stamps are spread evenly over so much, or up to the next time stamp if
  /// that comes earlier; 0 = taken as written, -1 = kMooncakeTickNs where the format's clock ticks.
  std::int64_t spread_ns = -1;
};

/// Time stamps of the public Mooncake traces come in ticks of 3 s.
inline constexpr std::int64_t kMooncakeTickNs = 3'000'000'000;

enum class TraceErrc : std::uint8_t {
  None,
  CannotRead,     ///< No such file, a directory, or a read error.
  Empty,          ///< Not even a header.
  UnknownFormat,  ///< The header fits no format.
  MissingColumn,
  DuplicateColumn,
  ShortRow,  ///< Fewer fields than the header.
  LongRow,   ///< More fields than the header.
  UnclosedQuote,
  BadQuote,    ///< A quote inside a field, or text behind a closing quote.
  BadValue,    ///< Not a number, not finite, negative, or not a date.
  OutOfRange,  ///< Larger than the reader keeps exactly.
  NoTokens,    ///< Zero input or output tokens (strict).
  NotSorted,   ///< Earlier than the row before (strict).
  NotJson,     ///< A row is no JSON object.
};

/// What is wrong and where. Nothing of a trace with an error is used.
struct TraceError {
  TraceErrc code = TraceErrc::None;
  std::string file;
  std::int64_t row = 0;   ///< Data row, from 1, the header not counted; 0 = no row.
  std::int64_t line = 0;  ///< Line of the file, from 1; 0 = none.
  std::string column;     ///< Or field.
  std::string value;      ///< At most 60 characters, unprintable ones as '?'.
  std::string text;       ///< What is wrong with it.

  /// "FILE: row R (line L), column 'C', value 'V': TEXT", without the parts that don't apply.
  [[nodiscard]] DYNBATCH_API std::string message() const;
};

/// A trace, or the error that prevents it.
struct [[nodiscard]] TraceResult {
  Trace trace;
  TraceError error;

  [[nodiscard]] bool is_ok() const noexcept { return error.code == TraceErrc::None; }
  explicit operator bool() const noexcept { return is_ok(); }
};

/// Largest numbers a trace may hold, so that no sum over a trace can overflow.
inline constexpr std::int64_t kMaxTraceTokens = 1'000'000'000'000;
inline constexpr std::int64_t kMaxTraceSeconds = 4'000'000'000;

/// Reads the text of a trace; `name` stands for the file in errors. O(text).
DYNBATCH_API TraceResult parse_trace(std::string_view text, std::string_view name,
                                     const TraceOptions& options);

/// Reads a file whole and parses it.
DYNBATCH_API TraceResult read_trace(const std::string& path, const TraceOptions& options);

/// The plain CSV of a trace: parse_trace() gives the same requests back, prefix groups excepted.
DYNBATCH_API std::string print_trace_csv(const Trace& trace);

/// The Mooncake JSON lines of a trace: parse_trace() gives the same requests back, tenants and
/// prefix groups excepted; chats become sessions, for which hash_ids need blocks of 16 tokens.
DYNBATCH_API std::string print_trace_jsonl(const Trace& trace);

/// Applies the window and the row limit of `options` to requests that are in order.
DYNBATCH_API void apply_window(Trace& trace, const TraceOptions& options);

/// Seconds with a decimal point or exponent ("0.5", "3e-2") as nanoseconds, the tenth and later
/// decimals rounded half up. False if it isn't a finite number in [0, kMaxTraceSeconds].
DYNBATCH_API bool parse_seconds(std::string_view text, std::int64_t& ns) noexcept;

}  // namespace dynbatch::inline DYNBATCH_ABI
