// SPDX-License-Identifier: Apache-2.0
#include "tool/explain_command.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/sim/flight_log.hpp>
#include <dynbatch/sim/flight_replay.hpp>

#include "tool/explain_story.hpp"
#include "tool/explain_summary.hpp"
#include "tool/explain_words.hpp"
#include "tool/tool.hpp"

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

class ExplainCommand {
 public:
  ExplainCommand(const ExplainOptions& options, std::ostream& out, std::ostream& err)
      : options_(options), out_(out), err_(err) {}

  int run() {
    std::vector<std::byte> bytes;
    if (const FlightFault fault = read_flight_log(options_.log, bytes);
        fault != FlightFault::None) {
      return fail(kBadInput, describe_fault(fault, 0));
    }
    FlightLogReader log(bytes);
    if (log.fault() != FlightFault::None) {
      return fail(kBadInput, describe_fault(log.fault(), log.offset()));
    }
    int code = kSuccess;
    if (options_.has_request) {
      code = tell_request(log);
    } else if (!options_.verify) {
      code = tell_all(log);
    }
    return code == kSuccess && options_.verify ? verify(log) : code;
  }

 private:
  int fail(int code, std::string_view text) {
    out_ << std::flush;
    err_ << "dynbatch: " << options_.log << ": " << text << "\n";
    return code;
  }

  // A log that is still being written ends anywhere: what stands before is as good.
  int end_of_log(const FlightLogReader& log) {
    if (log.fault() == FlightFault::None) {
      return kSuccess;
    }
    return fail(log.fault() == FlightFault::Truncated ? kSuccess : kBadInput,
                describe_fault(log.fault(), log.offset()));
  }

  int tell_request(FlightLogReader& log) {
    FlightRecord record;
    std::int64_t zero = 0;
    bool has_zero = false;
    bool is_known = false;
    for (log.rewind(); !has_zero && log.next(record);) {
      has_zero = record.kind == FlightKind::Request || record.kind == FlightKind::Plan;
      zero = record.kind == FlightKind::Request ? record.request.now : record.plan.now;
    }
    Story story(options_.request, zero);
    for (log.rewind(); log.next(record);) {
      is_known =
          is_known || (record.kind == FlightKind::Request && record.request.id == options_.request);
      story.take(record);
    }
    story.finish();
    if (!is_known) {
      return fail(kBadInput,
                  fmt::format("no request {} in this log; what submit() refuses is not logged",
                              options_.request));
    }
    out_ << story.text();
    return end_of_log(log);
  }

  int tell_all(FlightLogReader& log) {
    FlightRecord record;
    Summary summary;
    for (log.rewind(); log.next(record);) {
      summary.take(record);
    }
    out_ << summary.text(log);
    return end_of_log(log);
  }

  int verify(FlightLogReader& log) {
    FlightReplay replay;
    if (const Status status = verify_flight_log(log, replay); !status) {
      return fail(kBadInput, fmt::format("can't be replayed with policy '{}': {}", log.label(),
                                         text_of(status)));
    }
    if (replay.fault == FlightFault::None) {
      out_ << fmt::format("replayed: all {} came out equal\n", counted(replay.num_plans, "plan"));
      return kSuccess;
    }
    if (replay.fault == FlightFault::Difference) {
      return fail(kFailure,
                  fmt::format("{} came out equal, then a difference at plan {}, byte {}: {}, "
                              "recorded {:#x}, now {:#x}",
                              counted(replay.num_plans, "plan"), replay.plan, replay.offset,
                              replay.what, replay.expected, replay.actual));
    }
    return fail(kBadInput,
                fmt::format("{} came out equal, then: {}", counted(replay.num_plans, "plan"),
                            describe_fault(replay.fault, replay.offset)));
  }

  const ExplainOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
};

}  // namespace

int run_explain(const ExplainOptions& options, std::ostream& out, std::ostream& err) {
  return ExplainCommand(options, out, err).run();
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
