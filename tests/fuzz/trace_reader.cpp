// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of the trace readers; tests/unit/sim/trace_corpus.cpp runs it over its corpus.
//   clang++-19 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude
//     tests/fuzz/trace_reader.cpp src/trace.cpp src/trace_json.cpp src/sha256.cpp -lfmt -o
//     fuzz_trace
//   ./fuzz_trace tests/fuzz/corpus/trace
#include <dynbatch/sim/trace.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Aborts if a reader breaks a promise of trace.hpp. The first byte chooses the options.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto require = [](bool holds) {
    if (!holds) {
      std::abort();
    }
  };
  dynbatch::TraceOptions options;
  options.format = static_cast<dynbatch::TraceFormat>(data[0] % 3);
  if ((data[0] & 96U) == 96U) {
    options.format =
        (data[0] & 128U) != 0 ? dynbatch::TraceFormat::Bailian : dynbatch::TraceFormat::Mooncake;
  }
  options.order =
      (data[0] & 4U) != 0 ? dynbatch::TraceOrder::Lenient : dynbatch::TraceOrder::Strict;
  options.start_ns = (data[0] & 8U) != 0 ? 1'000'000'000 : 0;
  options.max_requests = (data[0] & 16U) != 0 ? 3 : -1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const dynbatch::TraceResult result = dynbatch::parse_trace(text, "fuzz", options);
  if (!result) {
    require(result.trace.requests.empty() && !result.error.message().empty());
    return 0;
  }
  std::int64_t previous = 0;
  for (const dynbatch::TraceRequest& request : result.trace.requests) {
    require(request.arrival_ns >= previous);
    require(request.input_tokens >= 1 && request.input_tokens <= dynbatch::kMaxTraceTokens);
    require(request.output_tokens >= 1 && request.output_tokens <= dynbatch::kMaxTraceTokens);
    require(request.num_hashes >= 0 && request.first_hash <= result.trace.hash_ids.size() &&
            static_cast<std::uint64_t>(request.num_hashes) <=
                result.trace.hash_ids.size() - request.first_hash);
    previous = request.arrival_ns;
  }
  // What was read prints and reads back as itself, but for the ids, which columns don't hold.
  const dynbatch::TraceResult again =
      dynbatch::parse_trace(dynbatch::print_trace_csv(result.trace), "printed", {});
  std::vector<dynbatch::TraceRequest> plain = result.trace.requests;
  for (dynbatch::TraceRequest& request : plain) {
    request.first_hash = 0;
    request.num_hashes = 0;
  }
  require(again.is_ok() && again.trace.requests == plain);
  return 0;
}
