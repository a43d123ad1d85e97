// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

SmallOptions recorded_options(bool has_content = true) {
  SmallOptions options;
  options.caching = true;
  options.config.flight_log_bytes = 1 << 20;
  options.config.flight_log_prompts = has_content;
  options.config.flight_label = "chunked:budget=64";
  return options;
}

std::vector<std::byte> drain_log(SmallScheduler& s) {
  std::vector<std::byte> out(1 << 20);
  out.resize(s.drain_log(out));
  return out;
}

SmallScheduler fresh_small(SmallOptions options) {
  options.config.flight_log_bytes = 0;
  return make_small(options);
}

std::vector<FlightRecord> records_of(const std::vector<std::byte>& log, FlightKind kind) {
  FlightLogReader reader(log);
  std::vector<FlightRecord> out;
  FlightRecord record;
  while (reader.next(record)) {
    if (record.kind == kind) {
      out.push_back(record);
    }
  }
  CHECK(reader.fault() == FlightFault::None);
  return out;
}

FlightFault fault_of(const std::vector<std::byte>& log) {
  FlightLogReader reader(log);
  FlightRecord record;
  while (reader.next(record)) {
  }
  return reader.fault();
}

}  // namespace

TEST_CASE("The header tells how the scheduler was made") {
  SmallOptions options = recorded_options();
  options.config.max_live_requests = 77;
  options.config.max_draft_tokens = 3;
  options.config.resource_caps[2] = 5;
  options.config.max_waiting_requests = 11;
  options.config.max_predicted_wait = seconds(3);
  options.plans = 2;
  SmallScheduler s = make_small(options);
  const auto log = drain_log(s);
  const FlightLogReader reader(log);
  REQUIRE(reader.fault() == FlightFault::None);
  CHECK(reader.label() == "chunked:budget=64");
  const SchedulerConfig config = reader.config();
  CHECK(config.max_live_requests == 77);
  CHECK(config.max_draft_tokens == 3);
  CHECK(config.resource_caps[2] == 5);
  CHECK(config.max_waiting_requests == 11);
  CHECK(config.max_predicted_wait == seconds(3));
  CHECK(config.max_plans_in_flight == 2);
  CHECK(config.flight_log_bytes == 0);
  CHECK(reader.capabilities().max_sequences == 16);
  REQUIRE(reader.capabilities().groups.size() == 1);
  CHECK(reader.capabilities().groups[0].block_size == 16);
  CHECK(reader.header().total_blocks == 1000);
  CHECK(reader.header().shares_prefixes == 1);
}

TEST_CASE("A request comes back from the log with every field that decides") {
  SmallScheduler s = make_small(recorded_options());
  const std::vector<Token> stop{4, 9};
  const std::vector<ContentDigest> digests{{1, 2}, {3, 4}, {5, 6}};
  const MediaSpan media{35, 4, {77, 78}};
  Request r;
  r.id = {42};
  r.user_data = 43;
  r.tenant = 44;
  r.prompt.kind = PromptKind::Digests;
  r.prompt.digests = digests;
  r.prompt.digest_unit = 16;
  r.prompt.length = 50;
  r.max_new_tokens = 20;
  r.min_new_tokens = 2;
  r.num_samples = 2;
  r.stop_tokens = stop;
  r.priority = -3;
  r.request_class = RequestClass::Batch;
  r.arrival = {5};
  r.start_by = {1000};
  r.finish_by = {2000};
  r.slo = {{10}, {11}};
  r.scope = {1, 2, 3, 4, true, true};
  r.media = {&media, 1};
  r.no_prefix_read = true;
  r.sync_decode = true;
  r.atomic_prefill = true;
  REQUIRE(s.submit(r));
  REQUIRE(s.plan({7}) != nullptr);
  const auto records = records_of(drain_log(s), FlightKind::Request);
  REQUIRE(records.size() == 1);
  CHECK(records[0].request.now == 7);
  FlightRequestScratch scratch;
  const Request back = to_request(records[0], true, scratch);
  CHECK(back.id == r.id);
  CHECK(back.user_data == 43);
  CHECK(back.tenant == 44);
  CHECK(back.prompt.kind == PromptKind::Digests);
  CHECK(back.prompt.length == 50);
  CHECK(back.prompt.digest_unit == 16);
  REQUIRE(back.prompt.digests.size() == 3);
  CHECK(back.prompt.digests[2] == digests[2]);
  CHECK(back.max_new_tokens == 20);
  CHECK(back.min_new_tokens == 2);
  CHECK(back.num_samples == 2);
  CHECK(std::vector<Token>(back.stop_tokens.begin(), back.stop_tokens.end()) == stop);
  CHECK(back.priority == -3);
  CHECK(back.request_class == RequestClass::Batch);
  CHECK(back.arrival.ns == 5);
  CHECK(back.start_by.ns == 1000);
  CHECK(back.finish_by.ns == 2000);
  CHECK(back.slo.ttft.ns == 10);
  CHECK(back.slo.tpot.ns == 11);
  CHECK(back.scope == r.scope);
  REQUIRE(back.media.size() == 1);
  CHECK(back.media[0].first_position == 35);
  CHECK(back.media[0].length == 4);
  CHECK(back.media[0].content == ContentDigest{77, 78});
  CHECK(back.no_prefix_read);
  CHECK(back.sync_decode);
  CHECK(back.atomic_prefill);
}

TEST_CASE("A log without content holds neither prompts nor outputs, but stop tokens") {
  SmallOptions options = recorded_options(false);
  options.caching = false;
  SmallScheduler s = make_small(options);
  SmallRequest r(1, 40, 10);
  const std::vector<Token> stop{777};
  r.request.stop_tokens = stop;
  REQUIRE(s.submit(r.view()));
  const StepPlan* plan = s.plan({});
  REQUIRE(plan != nullptr);
  REQUIRE(settle(s, *plan, {}, 123456));
  plan = s.plan({});
  REQUIRE(plan != nullptr);
  REQUIRE(settle(s, *plan, {}, 777));
  const auto log = drain_log(s);
  const auto holds = [&log](Token token) {
    for (std::size_t i = 0; i + sizeof(token) <= log.size(); i += sizeof(token)) {
      if (std::memcmp(log.data() + i, &token, sizeof(token)) == 0) {
        return true;
      }
    }
    return false;
  };
  CHECK_FALSE(holds(123456));
  CHECK_FALSE(holds(r.tokens[5]));
  CHECK(holds(777));
  CHECK(holds(kHiddenToken));
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  CHECK(replay.is_equal());
  CHECK(replay.num_plans == 2);
}

TEST_CASE(
    "Cancellations take effect where they did, be it in poll or before the request was seen") {
  const SmallOptions options = recorded_options();
  SmallScheduler s = make_small(options);
  for (std::uint64_t id = 1; id <= 6; ++id) {
    REQUIRE(submit(s, id, 100, 5));
  }
  REQUIRE(s.cancel({2}));
  drain(s);  // seen before the request itself
  const StepPlan* plan = s.plan({1});
  REQUIRE(plan != nullptr);
  REQUIRE(s.cancel({1}));
  drain(s);  // seen in poll(), with a plan in flight
  REQUIRE(settle(s, *plan, {2}));
  REQUIRE(s.cancel({4}));
  REQUIRE(submit(s, 7, 30, 2));
  REQUIRE(s.cancel({7}));
  REQUIRE(run_dry(s, {3}));
  const auto log = drain_log(s);
  CHECK(records_of(log, FlightKind::Cancel).size() == 3);
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  INFO(replay.what << " at plan " << replay.plan);
  CHECK(replay.is_equal());
  CHECK(fresh.stats().cancelled == 4);
}

TEST_CASE("A cancellation that poll took in comes before the ends of the next commit") {
  const SmallOptions options = recorded_options();
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, 20, 9));
  REQUIRE(submit(s, 2, 20, 1));
  const StepPlan* plan = s.plan({1});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 2);
  REQUIRE(s.cancel({1}));
  drain(s);
  REQUIRE(settle(s, *plan, {2}));  // request 2 ends after request 1: its sequence is taken first
  REQUIRE(submit(s, 3, 20, 3));
  REQUIRE(run_dry(s, {3}));
  const auto log = drain_log(s);
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  INFO(replay.what << " at plan " << replay.plan);
  CHECK(replay.is_equal());
}

TEST_CASE("Pauses, close, deadlines behind the clock and a cleared cache replay") {
  SmallOptions options = recorded_options();
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, 40, 3));
  s.pause(PauseMode::All);
  CHECK(s.plan({1}) == nullptr);
  CHECK(s.plan({2}) == nullptr);  // says nothing: left out
  s.resume();
  s.pause(PauseMode::New);
  CHECK(s.plan({3}) == nullptr);
  s.resume();
  const StepPlan* plan = s.plan({4});
  REQUIRE(plan != nullptr);
  SmallRequest late(2, 40, 3);
  late.request.finish_by = {9};
  REQUIRE(s.submit(late.view()));
  REQUIRE(settle(s, *plan, {50}));  // its deadline passes before it is taken in
  REQUIRE(run_dry(s, {60}));
  CHECK(s.clear_cache());
  s.close();
  CHECK(s.plan({70}) == nullptr);
  for (int i = 0; i < 100; ++i) {
    CHECK(s.plan({71 + i}) == nullptr);
  }
  const auto log = drain_log(s);
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  INFO(replay.what << " at plan " << replay.plan);
  CHECK(replay.is_equal());
  CHECK(fresh.stats().expired == 1);
  int closed = 0;
  for (const FlightRecord& record : records_of(log, FlightKind::Plan)) {
    closed += record.plan.state == static_cast<std::uint8_t>(PlanState::Closed) ? 1 : 0;
  }
  CHECK(closed == 1);
}

TEST_CASE("Why requests wait is in the log - the head, those passed over, nobody else") {
  SmallOptions options = recorded_options();
  options.blocks = 10;
  options.caching = false;
  options.admission.max_bypass = 4;
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, 60, 90));   // takes four blocks, grows
  REQUIRE(submit(s, 2, 140, 10));  // never fits beside it
  REQUIRE(submit(s, 3, 16, 2));    // passes
  REQUIRE(run_dry(s, {}));
  const auto log = drain_log(s);
  int memory = 0;
  for (const FlightRecord& record : records_of(log, FlightKind::Plan)) {
    for (const FlightWait& wait : record.waits) {
      memory += wait.request == 2 && wait.cause == static_cast<std::uint8_t>(WaitCause::Memory);
      CHECK(wait.is_running == 0);
    }
  }
  CHECK(memory > 20);
  const auto admitted = records_of(log, FlightKind::Admitted);
  REQUIRE(admitted.size() == 3);
  CHECK(admitted[0].admitted.request == 1);
  CHECK(admitted[1].admitted.request == 3);
  CHECK(admitted[2].admitted.request == 2);
}

TEST_CASE("Lock-step plans replay with the summaries of all ranks") {
  SmallOptions options = recorded_options();
  options.config.num_ranks = 2;
  options.config.rank = 1;
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, 40, 3));
  for (int i = 0; i < 6; ++i) {
    const StepPlan* plan = s.plan({i});
    REQUIRE(plan != nullptr);
    RankSummary other;
    other.num_tokens = 20 + i;
    other.num_rows = 4;
    const RankSummary ranks[] = {other, s.summary(*plan)};
    REQUIRE(s.seal(*plan, ranks));
    REQUIRE(settle(s, *plan, {i}));
  }
  const auto log = drain_log(s);
  CHECK(records_of(log, FlightKind::Seal).size() == 6);
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  INFO(replay.what << " at plan " << replay.plan);
  CHECK(replay.is_equal());
  CHECK(replay.num_plans == 6);
}

TEST_CASE("A gap ends a replay, not the reading") {
  SmallOptions options = recorded_options();
  options.config.flight_log_bytes = kMinFlightLogBytes;
  SmallScheduler s = make_small(options);
  std::vector<std::byte> log;
  for (std::uint64_t id = 1; id < 40; ++id) {
    REQUIRE(submit(s, id, 40, 5));
    step(s);
    if (id < 5 || id > 35) {
      const auto part = drain_log(s);
      log.insert(log.end(), part.begin(), part.end());
    }
  }
  const auto gaps = records_of(log, FlightKind::Gap);
  REQUIRE_FALSE(gaps.empty());
  std::uint64_t missing = 0;
  for (const FlightRecord& record : gaps) {
    missing += record.gap.records;
  }
  CHECK(missing == s.stats().flight_records_lost);
  FlightLogReader reader(log);
  SmallScheduler fresh = fresh_small(options);
  const FlightReplay replay = replay_log(reader, fresh);
  CHECK(replay.fault == FlightFault::Gap);
  CHECK(replay.offset == gaps[0].offset);
  CHECK(replay.num_plans >= 4);
}

TEST_CASE("Every fault of a log has its type") {
  SmallScheduler s = make_small(recorded_options());
  REQUIRE(submit(s, 1, 40, 3));
  REQUIRE(run_dry(s));
  const auto log = drain_log(s);
  REQUIRE(fault_of(log) == FlightFault::None);
  CHECK(fault_of({}) == FlightFault::NotALog);
  auto bytes = log;
  bytes[9] = std::byte{0};
  CHECK(fault_of(bytes) == FlightFault::NotALog);
  bytes = log;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[8 + i] = log[15 - i];
  }
  CHECK(fault_of(bytes) == FlightFault::ByteOrder);
  bytes = log;
  bytes[16] = std::byte{kFlightFormat + 1};
  CHECK(fault_of(bytes) == FlightFault::UnknownVersion);
  bytes = log;
  bytes.pop_back();
  CHECK(fault_of(bytes) == FlightFault::Truncated);
  bytes = log;
  std::uint32_t header = 0;
  std::memcpy(&header, log.data(), sizeof(header));
  bytes[header + 4] = std::byte{99};  // kind of the second record
  CHECK(fault_of(bytes) == FlightFault::Corrupt);
  for (const FlightFault fault :
       {FlightFault::NotALog, FlightFault::Truncated, FlightFault::Gap, FlightFault::Difference}) {
    CHECK(describe_fault(fault, 5).size() > 10);
  }
  std::vector<std::byte> none;
  CHECK(read_flight_log("/nonexistent/log", none) == FlightFault::Unreadable);
}

TEST_CASE("A log is replayed only with the scheduler that it fits") {
  SmallOptions options = recorded_options();
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, 100, 3));
  REQUIRE(run_dry(s));
  const auto log = drain_log(s);
  FlightLogReader reader(log);
  SmallOptions other = options;
  other.blocks = 999;
  SmallScheduler smaller = fresh_small(other);
  CHECK(replay_log(reader, smaller).fault == FlightFault::OtherScheduler);
  other = options;
  other.budget = 48;
  SmallScheduler slower = fresh_small(other);
  const FlightReplay replay = replay_log(reader, slower);
  CHECK(replay.fault == FlightFault::Difference);
  CHECK(replay.plan == 1);
  CHECK(replay.num_plans == 0);
  // With the bundle that the label names.
  FlightReplay verified;
  const Status status = verify_flight_log(reader, verified);
  INFO(status.field << ": " << status.text);
  REQUIRE(status);
  CHECK(verified.is_equal());
  CHECK(verified.num_plans == 4);
}
