// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of the flight log reader; tests/property/sim/flight_log.cpp feeds it damaged
// logs.
//   clang++-19 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude
//     tests/fuzz/flight_log.cpp src/flight_log.cpp -lfmt -o fuzz_flight_log
//   ./fuzz_flight_log a folder of logs that `dynbatch replay --record` wrote
#include <dynbatch/sim/flight_log.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Aborts if the reader breaks a promise of flight_log.hpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto require = [](bool holds) {
    if (!holds) {
      std::abort();
    }
  };
  dynbatch::FlightLogReader log(std::as_bytes(std::span(data, size)));
  dynbatch::FlightRecord record;
  dynbatch::FlightRequestScratch scratch;
  std::uint64_t end = log.offset();
  while (log.next(record)) {
    require(record.offset == end && log.offset() > end && log.offset() <= size);
    end = log.offset();
    if (record.kind == dynbatch::FlightKind::Request &&
        record.request.prompt_length < (std::int64_t{1} << 20)) {
      const dynbatch::Request request =
          dynbatch::to_request(record, log.header().has_content != 0, scratch);
      require(request.resources.size() == record.needs.size());
    }
  }
  require(log.fault() != dynbatch::FlightFault::None || log.offset() == size);
  require(log.config().max_plans_in_flight == log.header().max_plans_in_flight);
  require(log.capabilities().groups.size() <= dynbatch::kMaxGroups);
  require(!dynbatch::describe_fault(log.fault(), log.offset()).empty());
  return 0;
}
