// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/sim/trace.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

using dynbatch::SplitMix64;
using dynbatch::Trace;
using dynbatch::TraceOptions;
using dynbatch::TraceOrder;
using dynbatch::TraceResult;

namespace {

Trace random_trace(SplitMix64& random) {
  Trace trace;
  std::int64_t arrival = 0;
  const std::int64_t count = random.between(0, 40);
  for (std::int64_t i = 0; i < count; ++i) {
    arrival += random.one_in(3) ? 0 : random.between(0, 10'000'000'000);
    dynbatch::TraceRequest request;
    request.arrival_ns = arrival;
    request.input_tokens = random.between(1, random.one_in(5) ? dynbatch::kMaxTraceTokens : 5'000);
    request.output_tokens = random.between(1, 1'000);
    request.tenant =
        static_cast<std::uint64_t>(random.between(0, random.one_in(5) ? INT64_MAX : 9));
    request.chat = static_cast<std::uint64_t>(random.between(0, 9));
    trace.requests.push_back(request);
  }
  return trace;
}

// One random edit: the kinds of damage that files suffer.
void damage(std::string& text, SplitMix64& random) {
  static const std::string alphabet = "0123456789.,,\n\n\r\"\"#eE+-nanif \t\xEF\xBB\xBF\0xT:Z";
  const auto at =
      static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size())));
  const auto length = static_cast<std::size_t>(random.between(0, 12));
  const char c = alphabet[static_cast<std::size_t>(
      random.between(0, static_cast<std::int64_t>(alphabet.size()) - 1))];
  switch (random.between(0, 3)) {
    case 0:
      text.insert(at, length % 3 + 1, c);
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(at / 2, length));
      break;
    default:
      if (at < text.size()) {
        text[at] = c;
      }
      break;
  }
}

}  // namespace

TEST_CASE("a printed trace reads back as itself", "[sim][trace]") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    const Trace trace = random_trace(random);
    const std::string text = dynbatch::print_trace_csv(trace);
    for (const TraceOrder order : {TraceOrder::Strict, TraceOrder::Lenient}) {
      TraceOptions options;
      options.order = order;
      const TraceResult r = dynbatch::parse_trace(text, "printed", options);
      INFO(r.error.message());
      REQUIRE(r);
      CHECK(r.trace.requests == trace.requests);
    }
  }
}

TEST_CASE("damaged files give a trace in order or an error with a place", "[sim][trace]") {
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::string text = dynbatch::print_trace_csv(random_trace(random));
    if (random.one_in(4)) {
      text =
          "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
          "2023-11-16 18:15:50.9951690,396,109\n";
    }
    for (std::int64_t edits = random.between(1, 6); edits > 0; --edits) {
      damage(text, random);
    }
    TraceOptions options;
    options.order = random.one_in(2) ? TraceOrder::Strict : TraceOrder::Lenient;
    const TraceResult r = dynbatch::parse_trace(text, "damaged", options);
    if (!r) {
      REQUIRE(r.trace.requests.empty());
      REQUIRE(!r.error.text.empty());
      REQUIRE(r.error.message().find("damaged:") == 0);
      REQUIRE((r.error.line > 0 || r.error.code == dynbatch::TraceErrc::Empty));
      continue;
    }
    std::int64_t previous = 0;
    for (const auto& request : r.trace.requests) {
      REQUIRE(request.arrival_ns >= previous);
      REQUIRE(request.input_tokens >= 1);
      REQUIRE(request.input_tokens <= dynbatch::kMaxTraceTokens);
      REQUIRE(request.output_tokens >= 1);
      previous = request.arrival_ns;
    }
  }
}
