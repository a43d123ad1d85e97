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

TraceResult parse(const std::string& text, TraceOptions options = {}) {
  return parse_trace(text, "t.jsonl", options);
}

std::vector<std::int64_t> arrivals_ms(const TraceResult& result) {
  std::vector<std::int64_t> ms;
  for (const auto& request : result.trace.requests) {
    ms.push_back(request.arrival_ns / 1'000'000);
  }
  return ms;
}

std::vector<std::uint64_t> ids_of(const dynbatch::Trace& trace, std::size_t i) {
  const auto first =
      trace.hash_ids.begin() + static_cast<std::ptrdiff_t>(trace.requests[i].first_hash);
  return {first, first + static_cast<std::ptrdiff_t>(trace.requests[i].num_hashes)};
}

std::string row(std::int64_t ms) {
  return "{\"timestamp\": " + std::to_string(ms) + ", \"input_length\": 1, \"output_length\": 1}\n";
}

}  // namespace

TEST_CASE("Mooncake lines give requests and the names of their prefixes", "[sim][trace]") {
  TraceOptions options;
  options.format = GENERATE(TraceFormat::Auto, TraceFormat::Mooncake);
  const TraceResult r = parse(
      "# a comment\n"
      "{\"timestamp\": 0, \"input_length\": 1025, \"output_length\": 7, \"hash_ids\": [0, 5, 9]}\n"
      "\r\n"
      "  {\"hash_ids\": [0], \"output_length\": 3, \"input_length\": 512, \"timestamp\": 4000.5,"
      " \"else\": null}",
      options);
  INFO(r.error.message());
  REQUIRE(r);
  CHECK(r.trace.format == TraceFormat::Mooncake);
  CHECK(r.trace.hash_block_tokens == 512);
  CHECK(r.trace.num_rows == 2);
  REQUIRE(r.trace.requests.size() == 2);
  CHECK(r.trace.requests[0].input_tokens == 1025);
  CHECK(r.trace.requests[0].output_tokens == 7);
  CHECK(r.trace.requests[0].chat == 0);
  CHECK(r.trace.requests[1].arrival_ns == 4'000'500'000);
  CHECK(ids_of(r.trace, 0) == std::vector<std::uint64_t>{0, 5, 9});
  CHECK(ids_of(r.trace, 1) == std::vector<std::uint64_t>{0});
  CHECK(r.trace.sha256.size() == 64);
}

TEST_CASE("Mooncake lines need no ids, but all of them or none", "[sim][trace]") {
  const TraceResult without = parse(row(0) + row(1));
  REQUIRE(without);
  CHECK(without.trace.hash_block_tokens == 0);
  CHECK(without.trace.requests[1].num_hashes == 0);
  const TraceResult later = parse(
      row(0) + "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}");
  CHECK(later.error.code == TraceErrc::BadValue);
  CHECK(later.error.row == 2);
  CHECK(later.error.column == "hash_ids");
}

TEST_CASE("lines with sessions have blocks of 16 tokens and exact times", "[sim][trace]") {
  const TraceResult r = parse(
      "{\"timestamp\":0,\"input_length\":17,\"output_length\":2,\"session\":0,\"turn\":1,"
      "\"hash_ids\":[0,1]}\n"
      "{\"timestamp\":0,\"input_length\":33,\"output_length\":2,\"session\":4,\"turn\":2,"
      "\"hash_ids\":[0,2,3]}\n");
  REQUIRE(r);
  CHECK(r.trace.hash_block_tokens == 16);
  CHECK(r.trace.spread_ns == 0);
  CHECK(r.trace.requests[0].chat == 1);
  CHECK(r.trace.requests[1].chat == 5);
  CHECK(arrivals_ms(r) == std::vector<std::int64_t>{0, 0});
}

TEST_CASE("Bailian lines count seconds and join the turns of a chat", "[sim][trace]") {
  const auto line = [](int id, int parent, const char* seconds) {
    return "{\"chat_id\": " + std::to_string(id) +
           ", \"parent_chat_id\": " + std::to_string(parent) + ", \"timestamp\": " + seconds +
           ", \"input_length\": 20, \"output_length\": 4, \"type\": \"text\", \"turn\": 1, "
           "\"hash_ids\": [7, 8]}\n";
  };
  const TraceResult r = parse(line(0, -1, "0.061") + line(1, -1, "0.061") + line(2, 0, "1.5") +
                              line(3, 2, "2") + line(4, 99, "2") + line(5, 4, "2"));
  INFO(r.error.message());
  REQUIRE(r);
  CHECK(r.trace.format == TraceFormat::Bailian);
  CHECK(r.trace.hash_block_tokens == 16);
  CHECK(arrivals_ms(r) == std::vector<std::int64_t>{61, 61, 1500, 2000, 2000, 2000});
  std::vector<std::uint64_t> chats;
  for (const auto& request : r.trace.requests) {
    chats.push_back(request.chat);
  }
  // The parent of the fifth lies before the file.
  CHECK(chats == std::vector<std::uint64_t>{1, 2, 1, 1, 100, 100});
}

TEST_CASE("equal time stamps are spread over their tick, up to the next one", "[sim][trace]") {
  const std::string text = row(0) + row(0) + row(0) + row(2999) + row(2999) + row(4000) + row(6000);
  SECTION("by default over three seconds") {
    const TraceResult r = parse(text);
    CHECK(arrivals_ms(r) == std::vector<std::int64_t>{0, 999, 1999, 2999, 3499, 4000, 6000});
    CHECK(r.trace.spread_ns == dynbatch::kMooncakeTickNs);
  }
  SECTION("over what is given") {
    TraceOptions options;
    options.spread_ns = 300'000'000;
    const TraceResult r = parse(text, options);
    CHECK(arrivals_ms(r) == std::vector<std::int64_t>{0, 100, 200, 2999, 3149, 4000, 6000});
    // Before the window is cut.
    options.start_ns = 150'000'000;
    CHECK(arrivals_ms(parse(text, options)).front() == 50);
  }
  SECTION("not at all") {
    TraceOptions options;
    options.spread_ns = 0;
    const TraceResult r = parse(text, options);
    CHECK(arrivals_ms(r) == std::vector<std::int64_t>{0, 0, 0, 2999, 2999, 4000, 6000});
    CHECK(r.trace.spread_ns == 0);
  }
  SECTION("columns as well if asked") {
    TraceOptions options;
    options.spread_ns = 1'000'000'000;
    const TraceResult r =
        parse("arrival_s,input_tokens,output_tokens\n1,1,1\n1,1,1\n5,1,1\n", options);
    CHECK(arrivals_ms(r) == std::vector<std::int64_t>{1000, 1500, 5000});
  }
}

TEST_CASE("R40 - bad JSON lines are named with row, line, field and value", "[sim][trace]") {
  struct Case {
    std::string bad;
    TraceErrc code;
    std::string field;
    std::string value;
  };
  const auto mooncake = [](const std::string& time, const std::string& in, const std::string& out,
                           const std::string& ids) {
    return "{\"timestamp\": " + time + ", \"input_length\": " + in + ", \"output_length\": " + out +
           ", \"hash_ids\": " + ids + "}";
  };
  const std::vector<Case> cases{
      {"{\"timestamp\": 1,", TraceErrc::NotJson, "", "{\"timestamp\": 1,"},
      {"[1, 2]", TraceErrc::NotJson, "", "[1, 2]"},
      {"1,2,3", TraceErrc::NotJson, "", "1,2,3"},
      {"{}", TraceErrc::MissingColumn, "timestamp", ""},
      {"{\"timestamp\": 3}", TraceErrc::MissingColumn, "input_length", ""},
      {mooncake("-1", "1", "1", "[1]"), TraceErrc::BadValue, "timestamp", "-1"},
      {mooncake("\"x\"", "1", "1", "[1]"), TraceErrc::BadValue, "timestamp", "\"x\""},
      {mooncake("1e300", "1", "1", "[1]"), TraceErrc::BadValue, "timestamp", "1e+300"},
      {mooncake("null", "1", "1", "[1]"), TraceErrc::BadValue, "timestamp", "null"},
      {mooncake("18446744073709551615", "1", "1", "[1]"), TraceErrc::BadValue, "timestamp",
       "18446744073709551615"},
      {mooncake("0", "1", "1", "[1]"), TraceErrc::NotSorted, "timestamp", "0"},
      {mooncake("5", "1.5", "1", "[1]"), TraceErrc::BadValue, "input_length", "1.5"},
      {mooncake("5", "-3", "1", "[1]"), TraceErrc::BadValue, "input_length", "-3"},
      {mooncake("5", "1000000000001", "1", "[1]"), TraceErrc::OutOfRange, "input_length",
       "1000000000001"},
      {mooncake("5", "18446744073709551615", "1", "[1]"), TraceErrc::OutOfRange, "input_length",
       "18446744073709551615"},
      {mooncake("5", "1", "0", "[1]"), TraceErrc::NoTokens, "output_length", "0"},
      {mooncake("5", "1", "true", "[1]"), TraceErrc::BadValue, "output_length", "true"},
      {mooncake("5", "1025", "1", "[1]"), TraceErrc::BadValue, "hash_ids", "1"},
      {mooncake("5", "1", "1", "[1, 2]"), TraceErrc::BadValue, "hash_ids", "2"},
      {mooncake("5", "1", "1", "{\"a\": 1}"), TraceErrc::BadValue, "hash_ids", "{\"a\":1}"},
      {mooncake("5", "1", "1", "[-1]"), TraceErrc::BadValue, "hash_ids", "-1"},
      {mooncake("5", "1", "1", "[0.5]"), TraceErrc::BadValue, "hash_ids", "0.5"},
      {mooncake("5", "1", "1", "[\"\xFF\"]"), TraceErrc::NotJson, "",
       mooncake("5", "1", "1", "[\"?\"]")}};
  for (const Case& c : cases) {
    INFO(c.bad);
    const TraceResult r = parse(mooncake("2", "512", "1", "[0]") + "\n\n" + c.bad + "\n");
    CHECK(r.error.code == c.code);
    CHECK(r.error.file == "t.jsonl");
    CHECK(r.error.row == 2);
    CHECK(r.error.line == 3);
    CHECK(r.error.column == c.field);
    CHECK(r.error.value == (c.value.size() > 60 ? c.value.substr(0, 57) + "..." : c.value));
    CHECK(r.trace.requests.empty());
    CHECK(r.trace.hash_ids.empty());
  }
  CHECK(parse(mooncake("2", "512", "1", "[0]") + "\n" + mooncake("1", "512", "1", "[0]"))
            .error.message() ==
        "t.jsonl: row 2 (line 2), column 'timestamp', value '1': earlier than the row before; "
        "lenient reading would sort the rows");
}

TEST_CASE("JSON lines of the wrong or no format are refused", "[sim][trace]") {
  TraceOptions options;
  options.format = TraceFormat::Bailian;
  CHECK(parse(row(0), options).error.column == "chat_id");
  CHECK(parse("", options).error.code == TraceErrc::Empty);
  CHECK(parse("arrival_s\n", options).error.code == TraceErrc::NotJson);
  options.format = TraceFormat::Csv;
  CHECK(parse(row(0), options).error.code == TraceErrc::UnknownFormat);
  const TraceResult deep = parse("{\"timestamp\":" + std::string(100'000, '['));
  CHECK(deep.error.code == TraceErrc::NotJson);
}

TEST_CASE("lenient reading sorts JSON lines and skips those without tokens", "[sim][trace]") {
  TraceOptions options;
  options.order = TraceOrder::Lenient;
  options.spread_ns = 0;
  const TraceResult r = parse(
      "{\"timestamp\": 9, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [3, 4]}\n"
      "{\"timestamp\": 5, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n"
      "{\"timestamp\": 2, \"input_length\": 2, \"output_length\": 1, \"hash_ids\": [6]}\n",
      options);
  INFO(r.error.message());
  REQUIRE(r);
  CHECK(r.trace.num_skipped_rows == 1);
  CHECK(arrivals_ms(r) == std::vector<std::int64_t>{2, 9});
  CHECK(ids_of(r.trace, 0) == std::vector<std::uint64_t>{6});
  CHECK(ids_of(r.trace, 1) == std::vector<std::uint64_t>{3, 4});
}

TEST_CASE("printed JSON lines read back as the same requests", "[sim][trace]") {
  const std::string text = GENERATE(
      std::string("{\"timestamp\": 0, \"input_length\": 1025, \"output_length\": 7, \"hash_ids\": "
                  "[0, 18446744073709551615, 9]}\n"
                  "{\"timestamp\": 1.000001, \"input_length\": 5, \"output_length\": 1, "
                  "\"hash_ids\": [1]}\n"),
      std::string("{\"timestamp\": 3, \"input_length\": 17, \"output_length\": 7, \"session\": 0, "
                  "\"hash_ids\": [0, 1]}\n"
                  "{\"timestamp\": 3, \"input_length\": 5, \"output_length\": 1, \"session\": 3, "
                  "\"hash_ids\": [2]}\n"),
      row(0) + row(0) + row(7));
  const TraceResult first = parse(text);
  REQUIRE(first);
  TraceOptions as_written;
  as_written.spread_ns = 0;
  const std::string printed = print_trace_jsonl(first.trace);
  const TraceResult second = parse(printed, as_written);
  INFO(printed << second.error.message());
  REQUIRE(second);
  CHECK(second.trace.requests == first.trace.requests);
  CHECK(second.trace.hash_ids == first.trace.hash_ids);
  CHECK(second.trace.hash_block_tokens == first.trace.hash_block_tokens);
  CHECK(print_trace_jsonl(second.trace) == printed);
}

TEST_CASE("the public JSON traces read with their published statistics", "[sim][trace]") {
  const char* folder = std::getenv("DYNBATCH_DATA_DIR");
  if (folder == nullptr) {
    std::printf("SKIPPED: DYNBATCH_DATA_DIR is not set\n");
    return;
  }
  struct Expected {
    const char* file;
    std::size_t num_requests;
    std::int32_t block;
    std::int64_t spread_ns;
  };
  for (const Expected& e :
       {Expected{"mooncake_conversation_min00-30.jsonl", 5'719, 512, 3'000'000'000},
        Expected{"mooncake_arxiv_first1000.jsonl", 1'000, 512, 3'000'000'000},
        Expected{"agent_miniswe_blk16.jsonl", 402, 16, 0},
        Expected{"agent_taubench_blk16.jsonl", 471, 16, 0}}) {
    const TraceResult r = dynbatch::read_trace(std::string(folder) + "/traces/" + e.file, {});
    INFO(r.error.message());
    REQUIRE(r);
    CHECK(r.trace.requests.size() == e.num_requests);
    CHECK(r.trace.hash_block_tokens == e.block);
    CHECK(r.trace.spread_ns == e.spread_ns);
  }
}
