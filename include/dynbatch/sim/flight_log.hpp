// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Reads a flight log. Any bytes whatever end in a typed fault at worst.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/scheduler/flight_record.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {

/// What is wrong with a log, or why it can't be replayed.
enum class FlightFault : std::uint8_t {
  None,
  Unreadable,      ///< The file can't be read.
  NotALog,         ///< It doesn't begin as a flight log does.
  ByteOrder,       ///< Written by a machine of the other byte order.
  UnknownVersion,  ///< Another format version than kFlightFormat.
  Truncated,       ///< It ends inside a record; what stands before is good.
  Corrupt,         ///< A record contradicts itself.
  Gap,             ///< Records are missing: replaying can't go on behind them.
  NoContent,       ///< Replaying needs prompts and outputs, because the pool shares prefixes.
  OtherScheduler,  ///< The scheduler to replay with was made in another way.
  Difference,      ///< A plan, or an answer, came out differently.
};

[[nodiscard]] DYNBATCH_API const char* to_string(FlightFault fault) noexcept;

/// One record, decoded. Only the member that `kind` names is meaningful, with the vectors that
/// belong to it; the vectors keep their storage from record to record.
struct FlightRecord {
  FlightKind kind = FlightKind::Gap;
  std::uint64_t offset = 0;  ///< Of the record's first byte in the log.
  FlightRequest request{};
  FlightCancel cancel{};
  FlightPlan plan{};
  FlightSeal seal{};
  FlightCommit commit{};
  FlightAbandon abandon{};
  FlightClear clear{};
  FlightPin pin{};
  FlightCost cost{};
  FlightAdmitted admitted{};
  FlightPreempted preempted{};
  FlightUndone undone{};
  FlightEnded ended{};
  FlightGap gap{};
  std::vector<FlightNeed> needs;
  std::vector<FlightMedia> media;  ///< Of a request or a pin.
  std::vector<ContentDigest> digests;
  std::vector<Token> tokens;  ///< Of a request's prompt, or of a result.
  std::vector<Token> stop_tokens;
  std::vector<FlightWait> waits;
  std::vector<FlightChunk> chunks;
  std::vector<FlightRank> ranks;
  std::vector<FlightOutcome> outcomes;
  std::vector<FlightContinuation> continuations;
  std::vector<std::int32_t> token_begin;
  std::vector<std::int32_t> draft_begin;
  std::vector<Token> drafts;
};

/// Walks over a log from its first byte. The bytes must outlive the reader.
class DYNBATCH_API FlightLogReader {
 public:
  /// Reads the header; fault() says whether it is one.
  explicit FlightLogReader(std::span<const std::byte> log);

  /// Reads the next record; false at the end or at a fault.
  bool next(FlightRecord& out);
  /// Starts again behind the header.
  void rewind() noexcept;

  /// None while all is well, and at a whole end.
  [[nodiscard]] FlightFault fault() const noexcept { return fault_; }
  /// Where the fault lies.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const FlightHeader& header() const noexcept { return header_; }
  /// What the host named its policies.
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return log_.size(); }

  /// How the recorded scheduler was made. Its recorder is off.
  [[nodiscard]] SchedulerConfig config() const noexcept;
  /// What its executor could do; the spans point into the reader.
  [[nodiscard]] Capabilities capabilities() const noexcept;

 private:
  bool fail(FlightFault fault, std::uint64_t offset) noexcept;
  bool decode(std::span<const std::byte> payload, FlightRecord& out) const;

  std::span<const std::byte> log_;
  std::uint64_t offset_ = 0;
  std::uint64_t first_ = 0;
  FlightFault fault_ = FlightFault::None;
  FlightFault header_fault_ = FlightFault::None;
  FlightHeader header_{};
  std::string label_;
  std::vector<std::int32_t> graph_sizes_;
  std::vector<GroupSpec> groups_;
};

/// The scope of a recorded request or pin.
template <class Record>
[[nodiscard]] CacheScope scope_of(const Record& from) noexcept {
  return {from.model_epoch,     from.tenant_salt,          from.adapter_id,
          from.adapter_version, from.has_tenant_salt != 0, from.has_adapter != 0};
}

/// Reads a whole file; Unreadable if that fails.
[[nodiscard]] DYNBATCH_API FlightFault read_flight_log(const std::string& path,
                                                       std::vector<std::byte>& out);

/// One sentence for a person: "truncated at byte 123: ...".
[[nodiscard]] DYNBATCH_API std::string describe_fault(FlightFault fault, std::uint64_t offset);

/// The request as it was submitted. Its spans point into `record` and `scratch`. A prompt without
/// content becomes one of the same length.
struct FlightRequestScratch {
  std::vector<Token> prompt;
  std::vector<ResourceNeed> needs;
  std::vector<MediaSpan> media;
};
/// The media items of a recorded request or pin, into `scratch.media`.
DYNBATCH_API void to_media(const FlightRecord& record, FlightRequestScratch& scratch);
[[nodiscard]] DYNBATCH_API Request to_request(const FlightRecord& record, bool has_content,
                                              FlightRequestScratch& scratch);

}  // namespace dynbatch::inline DYNBATCH_ABI
