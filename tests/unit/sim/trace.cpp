// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/trace.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using dynbatch::parse_trace;
using dynbatch::TraceErrc;
using dynbatch::TraceFormat;
using dynbatch::TraceOptions;
using dynbatch::TraceOrder;
using dynbatch::TraceResult;

namespace {

const std::string kHeader = "arrival_s,input_tokens,output_tokens\n";

TraceResult parse(const std::string& text, TraceOptions options = {}) {
  return parse_trace(text, "t.csv", options);
}

TraceOptions lenient() {
  TraceOptions options;
  options.order = TraceOrder::Lenient;
  return options;
}

std::vector<std::int64_t> arrivals(const TraceResult& result) {
  std::vector<std::int64_t> ns;
  for (const auto& request : result.trace.requests) {
    ns.push_back(request.arrival_ns);
  }
  return ns;
}

}  // namespace

TEST_CASE("a plain CSV gives its requests, columns by name, others ignored", "[sim][trace]") {
  const TraceResult r = parse(
      "note,output_tokens,client,arrival_s,input_tokens,session\n"
      "x,7,3,0.25,11,5\n"
      "y,9,,1.5e0,13,\n");
  REQUIRE(r);
  REQUIRE(r.trace.requests.size() == 2);
  CHECK(r.trace.requests[0] == dynbatch::TraceRequest{250'000'000, 11, 7, 3, 5, 0, 0});
  CHECK(r.trace.requests[1] == dynbatch::TraceRequest{1'500'000'000, 13, 9, 0, 0, 0, 0});
  CHECK(r.trace.longest_input() == 13);
  CHECK(r.trace.longest_output() == 9);
}

TEST_CASE("Azure times count from the first row and keep 100 ns", "[sim][trace]") {
  const TraceResult r = parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 23:59:59.6805900,374,44\n"
      "2023-11-17 00:00:00.9951690,396,109\n"
      "2023-11-17T00:00:01.0000001Z,1,1\n"
      "2023-11-17 01:00:01.0000002+01:00,1,1\n");
  REQUIRE(r);
  CHECK(arrivals(r) == std::vector<std::int64_t>{0, 1'314'579'000, 1'319'410'100, 1'319'410'200});
  CHECK(r.trace.requests[1].input_tokens == 396);
  CHECK(r.trace.requests[1].output_tokens == 109);
}

TEST_CASE("Azure times that are no date name row, line, column and value", "[sim][trace]") {
  for (const char* bad : {"", "nan", "2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-11-16",
                          "2023-11-16 24:00:00", "2023-11-16 18:60:00", "2023-11-16 18:15:46.",
                          "2023-11-16 18:15:46x", "1969-12-31 23:59:59", "9999-01-01 00:00:00"}) {
    INFO(bad);
    const TraceResult r =
        parse("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n" +
              std::string(bad) + ",2,2\n");
    CHECK(r.error.code == TraceErrc::BadValue);
    CHECK(r.error.row == 2);
    CHECK(r.error.line == 3);
    CHECK(r.error.column == "TIMESTAMP");
    CHECK(r.error.value == bad);
    CHECK(r.trace.requests.empty());
  }
  CHECK(parse("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 00:00:00,1,1\n"));
}

TEST_CASE("R39 - arrival times that are no finite number are refused with row, column and value",
          "[sim][trace]") {
  for (const char* bad : {"", "nan", "inf", "-1", "1e400", "abc", "1.2.3", "0x10", "1e", "--1",
                          "4000000001", "99999999999999999999", "."}) {
    INFO(bad);
    const TraceResult r = parse(kHeader + "0,1,1\n" + bad + ",1,1\n2,1,1\n");
    CHECK(r.error.code == TraceErrc::BadValue);
    CHECK(r.error.row == 2);
    CHECK(r.error.line == 3);
    CHECK(r.error.column == "arrival_s");
    CHECK(r.error.value == bad);
    CHECK(r.trace.requests.empty());
    CHECK(r.error.message().find("t.csv: row 2 (line 3), column 'arrival_s', value '" +
                                 std::string(bad) + "': ") == 0);
  }
}

TEST_CASE("R39 - times out of order are an error when strict and sorted when lenient",
          "[sim][trace]") {
  const std::string text = kHeader + "0,1,1\n5,2,2\n3,3,3\n";
  const TraceResult strict = parse(text);
  CHECK(strict.error.code == TraceErrc::NotSorted);
  CHECK(strict.error.row == 3);
  CHECK(strict.error.value == "3");
  const TraceResult sorted = parse(text, lenient());
  REQUIRE(sorted);
  CHECK(arrivals(sorted) == std::vector<std::int64_t>{0, 3'000'000'000, 5'000'000'000});
  CHECK(sorted.trace.requests[1].input_tokens == 3);
}

TEST_CASE("R39 - equal times keep the file's order", "[sim][trace]") {
  for (const TraceOptions& options : {TraceOptions{}, lenient()}) {
    const TraceResult r = parse(kHeader + "1,1,1\n1,2,1\n1,3,1\n1,4,1\n", options);
    REQUIRE(r);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(r.trace.requests[i].input_tokens == static_cast<std::int64_t>(i + 1));
    }
  }
}

TEST_CASE("R40 - an empty file is an error, a header alone is an empty trace", "[sim][trace]") {
  const TraceResult empty = parse("");
  CHECK(empty.error.code == TraceErrc::Empty);
  CHECK(empty.error.message().find("empty trace") != std::string::npos);
  CHECK(parse("\n\n# only a comment\n").error.code == TraceErrc::Empty);
  for (const std::string header :
       {"arrival_s,input_tokens,output_tokens", "arrival_s,input_tokens,output_tokens\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"}) {
    const TraceResult r = parse(header);
    CHECK(r);
    CHECK(r.trace.requests.empty());
    CHECK(r.trace.num_rows == 0);
  }
}

TEST_CASE("R40 - missing, doubled and unknown columns are named", "[sim][trace]") {
  const TraceResult missing = parse("arrival_s,input_tokens\n0,1\n");
  CHECK(missing.error.code == TraceErrc::MissingColumn);
  CHECK(missing.error.column == "output_tokens");
  CHECK(missing.error.message() ==
        "t.csv: line 1, column 'output_tokens': the header has no such column");
  const TraceResult twice = parse("arrival_s,input_tokens,input_tokens,output_tokens\n0,1,1,1\n");
  CHECK(twice.error.code == TraceErrc::DuplicateColumn);
  CHECK(twice.error.column == "input_tokens");
  const TraceResult both = parse("arrival_s,input_tokens,output_tokens,tenant,client\n");
  CHECK(both.error.code == TraceErrc::DuplicateColumn);
  CHECK(both.error.column == "client");
  CHECK(parse("a,b,c\n1,2,3\n").error.code == TraceErrc::UnknownFormat);
  CHECK(parse("0.5,10,20\n1.5,10,20\n").error.code == TraceErrc::UnknownFormat);
  CHECK(parse("{\"timestamp\": 0}\n").error.code == TraceErrc::MissingColumn);
  CHECK(parse("TIMESTAMP,GeneratedTokens\n").error.column == "ContextTokens");
}

TEST_CASE("R40 - short and long rows are named", "[sim][trace]") {
  const std::string header = "arrival_s,input_tokens,output_tokens,client\n";
  const TraceResult is_short = parse(header + "0,1,1,1\n1,1,1\n");
  CHECK(is_short.error.code == TraceErrc::ShortRow);
  CHECK(is_short.error.row == 2);
  CHECK(is_short.error.line == 3);
  const TraceResult is_long = parse(header + "0,1,1,1,9\n");
  CHECK(is_long.error.code == TraceErrc::LongRow);
  CHECK(is_long.error.row == 1);
}

TEST_CASE("R40 - token counts are exact or refused, never wrapped", "[sim][trace]") {
  const TraceResult large = parse(kHeader + "0,5000000000,7000000000\n");
  REQUIRE(large);
  CHECK(large.trace.requests[0].input_tokens == 5'000'000'000);
  CHECK(large.trace.requests[0].output_tokens == 7'000'000'000);
  for (const char* too_large : {"1000000000001", "9223372036854775808", "18446744073709551617",
                                "99999999999999999999999999"}) {
    const TraceResult r = parse(kHeader + "0,1," + too_large + "\n");
    CHECK(r.error.code == TraceErrc::OutOfRange);
    CHECK(r.error.column == "output_tokens");
    CHECK(r.error.value == too_large);
  }
  for (const char* bad : {"", "-5", "1.5", "1e3", "ten", "+1", "0x1"}) {
    const TraceResult r = parse(kHeader + "0," + bad + ",1\n");
    CHECK(r.error.code == TraceErrc::BadValue);
    CHECK(r.error.column == "input_tokens");
    CHECK(r.error.value == bad);
  }
}

TEST_CASE("rows without tokens are an error when strict and counted when lenient", "[sim][trace]") {
  const std::string text = kHeader + "0,1,1\n1,0,1\n2,1,0\n3,1,1\n";
  const TraceResult strict = parse(text);
  CHECK(strict.error.code == TraceErrc::NoTokens);
  CHECK(strict.error.row == 2);
  CHECK(strict.error.column == "input_tokens");
  const TraceResult skipped = parse(text, lenient());
  REQUIRE(skipped);
  CHECK(skipped.trace.requests.size() == 2);
  CHECK(skipped.trace.num_skipped_rows == 2);
  CHECK(skipped.trace.num_rows == 4);
}

TEST_CASE("R40 - quotes, line ends, byte order marks, blanks and comments", "[sim][trace]") {
  const TraceResult r = parse(
      "\xEF\xBB\xBF# made by hand\r\n\"arrival_s\", input_tokens ,output_tokens,tenant\r\n"
      "\r\n\"0.5\",1,2,\"a, \"\"b\"\"\"\r\n  # a remark\r\n1,3,4,\"line\nend\"\r\n2,5,6,x");
  REQUIRE(r);
  REQUIRE(r.trace.requests.size() == 3);
  CHECK(r.trace.requests[0].arrival_ns == 500'000'000);
  CHECK(r.trace.requests[1].output_tokens == 4);
  CHECK(r.trace.requests[2].input_tokens == 5);
  // Text labels become hashes: equal text, equal label, and never "none".
  const TraceResult labels =
      parse("arrival_s,input_tokens,output_tokens,tenant\n0,1,1,alice\n0,1,1,bob\n0,1,1,alice\n");
  CHECK(labels.trace.requests[0].tenant == labels.trace.requests[2].tenant);
  CHECK(labels.trace.requests[0].tenant != labels.trace.requests[1].tenant);
  CHECK(labels.trace.requests[1].tenant != 0);
}

TEST_CASE("R40 - an unclosed or misplaced quote is an error with its row", "[sim][trace]") {
  const TraceResult open = parse(kHeader + "0,1,1\n1,\"2,3\n4,5,6\n");
  CHECK(open.error.code == TraceErrc::UnclosedQuote);
  CHECK(open.error.row == 2);
  CHECK(open.error.line == 3);
  CHECK(parse(kHeader + "0,1\"2,3\n").error.code == TraceErrc::BadQuote);
  CHECK(parse(kHeader + "0,\"12\"3,3\n").error.code == TraceErrc::BadQuote);
  CHECK(parse("\"arrival_s").error.code == TraceErrc::UnclosedQuote);
}

TEST_CASE("line numbers count comments, blanks and quoted line ends", "[sim][trace]") {
  const TraceResult r = parse("# c\n" + kHeader.substr(0, kHeader.size() - 1) +
                              ",tenant\n\n0,1,1,\"a\nb\"\nx,1,1,c\n");
  CHECK(r.error.row == 2);
  CHECK(r.error.line == 6);
}

TEST_CASE("the window keeps arrivals from start to before end and counts from start",
          "[sim][trace]") {
  const std::string text = kHeader + "0,1,1\n1,2,1\n2,3,1\n3,4,1\n";
  TraceOptions options;
  options.start_ns = 1'000'000'000;
  options.end_ns = 3'000'000'000;
  CHECK(arrivals(parse(text, options)) == std::vector<std::int64_t>{0, 1'000'000'000});
  options.max_requests = 1;
  CHECK(arrivals(parse(text, options)) == std::vector<std::int64_t>{0});
  CHECK(parse(text, options).trace.num_rows == 4);
  options = {};
  options.start_ns = 10'000'000'000;
  CHECK(parse(text, options).trace.requests.empty());
}

TEST_CASE("seconds are read exactly", "[sim][trace]") {
  const auto ns = [](const char* text) {
    std::int64_t value = -1;
    return dynbatch::parse_seconds(text, value) ? value : -1;
  };
  CHECK(ns("0") == 0);
  CHECK(ns("34.4399") == 34'439'900'000);
  CHECK(ns("0.1234567894") == 123'456'789);
  CHECK(ns("0.1234567895") == 123'456'790);
  CHECK(ns("5e-10") == 1);
  CHECK(ns("4e-10") == 0);
  CHECK(ns("1e-400") == 0);
  CHECK(ns("1.5E+3") == 1'500'000'000'000);
  CHECK(ns(".5") == 500'000'000);
  CHECK(ns("5.") == 5'000'000'000);
  CHECK(ns("4000000000") == 4'000'000'000'000'000'000);
  CHECK(ns("0000000000000000000000000000001.000000000000000000000000000000") == 1'000'000'000);
  CHECK(ns("123456789.123456789123456789123456789") == 123'456'789'123'456'789);
  CHECK(ns("e5") == -1);
  CHECK(ns("1e99999999999999999999") == -1);
}

TEST_CASE("a trace file that cannot be read is an error that names it", "[sim][trace]") {
  const TraceResult r = dynbatch::read_trace("no/such/file.csv", {});
  CHECK(r.error.code == TraceErrc::CannotRead);
  CHECK(r.error.message() == "no/such/file.csv: cannot open the file");
  CHECK(dynbatch::read_trace(".", {}).error.code == TraceErrc::CannotRead);
}

TEST_CASE("the digest is of the file's bytes", "[sim][trace]") {
  CHECK(parse("").trace.sha256 ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("the public Azure conversation trace reads with its published statistics",
          "[sim][trace]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  const TraceResult r =
      dynbatch::read_trace(std::string(folder) + "/traces/azure2023_conv_min00-30.csv", {});
  INFO(r.error.message());
  REQUIRE(r);
  CHECK(r.trace.requests.size() == 10'108);
  CHECK(r.trace.sha256.substr(0, 16) == "d5f6b7ee98cc275d");
  CHECK(r.trace.requests[1].arrival_ns == 4'314'579'000);
  CHECK(r.trace.longest_input() == 14'050);
  CHECK(r.trace.longest_output() == 1'000);
}
