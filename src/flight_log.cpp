// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/sim/flight_log.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

// Takes parts off the front of a payload; after the first one that isn't there everything fails.
class Parts {
 public:
  explicit Parts(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  Parts& take(T& out) {
    static_assert(detail::is_flight_part<T>);
    if (has(sizeof(T))) {
      std::memcpy(&out, bytes_.data(), sizeof(T));
      bytes_ = bytes_.subspan(sizeof(T));
    }
    return *this;
  }
  // The count comes from the log: nothing is allocated that the payload doesn't hold.
  template <class T>
  Parts& take(std::vector<T>& out, std::uint64_t count) {
    out.clear();
    if (count > bytes_.size() / sizeof(T)) {
      is_good_ = false;
    } else if (is_good_ && count > 0) {
      out.resize(count);
      std::memcpy(static_cast<void*>(out.data()), bytes_.data(), out.size() * sizeof(T));
      bytes_ = bytes_.subspan(out.size() * sizeof(T));
    }
    return *this;
  }
  // Everything was there, and nothing but the padding is left.
  [[nodiscard]] bool is_done() const { return is_good_ && bytes_.size() < 8; }

 private:
  bool has(std::size_t bytes) {
    is_good_ = is_good_ && bytes <= bytes_.size();
    return is_good_;
  }

  std::span<const std::byte> bytes_;
  bool is_good_ = true;
};

// A negative count is more than any payload holds.
std::uint64_t count_of(std::int64_t n) {
  return n < 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(n);
}

}  // namespace

const char* to_string(FlightFault fault) noexcept {
  switch (fault) {
    case FlightFault::None:
      return "no fault";
    case FlightFault::Unreadable:
      return "unreadable";
    case FlightFault::NotALog:
      return "not a flight log";
    case FlightFault::ByteOrder:
      return "foreign byte order";
    case FlightFault::UnknownVersion:
      return "unknown version";
    case FlightFault::Truncated:
      return "truncated";
    case FlightFault::Corrupt:
      return "corrupt";
    case FlightFault::Gap:
      return "gap";
    case FlightFault::NoContent:
      return "no content";
    case FlightFault::OtherScheduler:
      return "other scheduler";
    case FlightFault::Difference:
      return "difference";
  }
  return "unknown";
}

std::string describe_fault(FlightFault fault, std::uint64_t offset) {
  const auto at = [&](const char* text) {
    return fmt::format("{} at byte {}: {}", to_string(fault), offset, text);
  };
  switch (fault) {
    case FlightFault::None:
      return "no fault";
    case FlightFault::Unreadable:
      return "the file can't be read";
    case FlightFault::NotALog:
      return "this is not a flight log";
    case FlightFault::ByteOrder:
      return "the log was written by a machine of the other byte order";
    case FlightFault::UnknownVersion:
      return fmt::format("unknown version: this program reads format {} only", kFlightFormat);
    case FlightFault::NoContent:
      return "no content: the log was recorded without flight_log_prompts, and plans over a pool "
             "that shares prefixes depend on what the prompts say";
    case FlightFault::Truncated:
      return at("the log ends inside a record");
    case FlightFault::Corrupt:
      return at("a record contradicts itself");
    case FlightFault::Gap:
      return at("records are missing, because the log was not drained in time");
    case FlightFault::OtherScheduler:
      return at("the scheduler to replay with was made in another way");
    case FlightFault::Difference:
      return at("a plan or an answer came out differently");
  }
  return at("unknown fault");
}

FlightFault read_flight_log(const std::string& path, std::vector<std::byte>& out) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) {
    return FlightFault::Unreadable;
  }
  out.resize(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(out.data()), size);
  return file ? FlightFault::None : FlightFault::Unreadable;
}

FlightLogReader::FlightLogReader(std::span<const std::byte> log) : log_(log) {
  FlightPrefix prefix;
  std::uint64_t magic = 0;
  if (log.size() >= sizeof(prefix) + sizeof(magic)) {
    std::memcpy(&prefix, log.data(), sizeof(prefix));
    std::memcpy(&magic, log.data() + sizeof(prefix), sizeof(magic));
  }
  if (magic != kFlightMagic) {
    fail(magic == __builtin_bswap64(kFlightMagic) ? FlightFault::ByteOrder : FlightFault::NotALog,
         0);
  } else if (prefix.bytes % 8 != 0 || prefix.kind != FlightKind::Header) {
    fail(FlightFault::Corrupt, 0);
  } else {
    // The version stands where it always will; the rest of the header belongs to it.
    std::uint32_t format = 0;
    if (log.size() >= sizeof(prefix) + sizeof(magic) + sizeof(format)) {
      std::memcpy(&format, log.data() + sizeof(prefix) + sizeof(magic), sizeof(format));
    }
    std::vector<char> label;
    if (format != kFlightFormat) {
      fail(FlightFault::UnknownVersion, 0);
    } else if (prefix.bytes > log.size()) {
      fail(FlightFault::Truncated, 0);
    } else if (prefix.bytes < sizeof(prefix) + sizeof(FlightHeader) ||
               !Parts(log.subspan(sizeof(prefix), prefix.bytes - sizeof(prefix)))
                    .take(header_)
                    .take(graph_sizes_, header_.num_graph_sizes)
                    .take(label, header_.label_bytes)
                    .is_done() ||
               header_.num_groups > kMaxGroups || header_.label_bytes > kMaxFlightLabel) {
      fail(FlightFault::Corrupt, 0);
    } else {
      label_.assign(label.begin(), label.end());
      for (std::uint32_t i = 0; i < header_.num_groups; ++i) {
        const FlightGroup& group = header_.groups[i];
        groups_.push_back({static_cast<GroupKind>(clamp_to<std::int32_t>(group.kind, 0, 2)),
                           group.block_size, group.window});
      }
      first_ = prefix.bytes;
      offset_ = first_;
    }
  }
  header_fault_ = fault_;
}

void FlightLogReader::rewind() noexcept {
  fault_ = header_fault_;
  offset_ = first_;
}

bool FlightLogReader::fail(FlightFault fault, std::uint64_t offset) noexcept {
  fault_ = fault;
  offset_ = offset;
  return false;
}

bool FlightLogReader::next(FlightRecord& out) {
  if (fault_ != FlightFault::None || offset_ == log_.size()) {
    return false;
  }
  const std::span<const std::byte> rest = log_.subspan(offset_);
  FlightPrefix prefix;
  if (rest.size() < sizeof(prefix)) {
    return fail(FlightFault::Truncated, offset_);
  }
  std::memcpy(&prefix, rest.data(), sizeof(prefix));
  const auto kind = static_cast<std::uint8_t>(prefix.kind);
  if (prefix.bytes < sizeof(prefix) || prefix.bytes % 8 != 0 || prefix.kind == FlightKind::Header ||
      kind == 0 || kind > static_cast<std::uint8_t>(kLastFlightKind)) {
    return fail(FlightFault::Corrupt, offset_);
  }
  if (prefix.bytes > rest.size()) {
    return fail(FlightFault::Truncated, offset_);
  }
  out.kind = prefix.kind;
  out.offset = offset_;
  if (!decode(rest.subspan(sizeof(prefix), prefix.bytes - sizeof(prefix)), out)) {
    return fail(FlightFault::Corrupt, offset_);
  }
  offset_ += prefix.bytes;
  return true;
}

bool FlightLogReader::decode(std::span<const std::byte> payload, FlightRecord& out) const {
  Parts parts(payload);
  switch (out.kind) {
    case FlightKind::Header:
      return false;
    case FlightKind::Request: {
      out.digests.clear();
      out.tokens.clear();
      parts.take(out.request)
          .take(out.needs, out.request.num_needs)
          .take(out.media, out.request.num_media);
      if (out.request.digest_unit != 0) {
        parts.take(out.digests, count_of(out.request.num_content));
      } else {
        parts.take(out.tokens, count_of(out.request.num_content));
      }
      parts.take(out.stop_tokens, out.request.num_stop);
      return parts.is_done();
    }
    case FlightKind::Cancel:
      return parts.take(out.cancel).is_done();
    case FlightKind::Plan:
      parts.take(out.plan);
      return parts.take(out.waits, out.plan.num_waits)
          .take(out.chunks, out.plan.num_chunks)
          .is_done();
    case FlightKind::Seal:
      parts.take(out.seal);
      return parts.take(out.ranks, out.seal.num_ranks).is_done();
    case FlightKind::Commit:
      parts.take(out.commit);
      return parts.take(out.outcomes, out.commit.num_outcomes)
          .take(out.continuations, out.commit.num_continuations)
          .take(out.token_begin, out.commit.num_token_begin)
          .take(out.draft_begin, out.commit.num_draft_begin)
          .take(out.tokens, out.commit.num_tokens)
          .take(out.drafts, out.commit.num_drafts)
          .is_done();
    case FlightKind::Abandon:
      return parts.take(out.abandon).is_done() && out.abandon.why <= 2;
    case FlightKind::ClearCache:
      return parts.take(out.clear).is_done();
    case FlightKind::Pin: {
      out.digests.clear();
      out.tokens.clear();
      parts.take(out.pin).take(out.media, out.pin.num_media);
      if (out.pin.digest_unit != 0) {
        parts.take(out.digests, count_of(out.pin.num_content));
      } else {
        parts.take(out.tokens, count_of(out.pin.num_content));
      }
      return parts.is_done();
    }
    case FlightKind::Cost:
      return parts.take(out.cost).is_done();
    case FlightKind::Admitted:
      return parts.take(out.admitted).is_done();
    case FlightKind::Preempted:
      return parts.take(out.preempted).is_done();
    case FlightKind::Undone:
      return parts.take(out.undone).is_done();
    case FlightKind::Ended:
      return parts.take(out.ended).is_done();
    case FlightKind::Gap:
      return parts.take(out.gap).is_done();
  }
  return false;
}

SchedulerConfig FlightLogReader::config() const noexcept {
  SchedulerConfig config;
  config.max_live_requests = header_.max_live_requests;
  config.max_queued_tokens = header_.max_queued_tokens;
  config.max_context_tokens = header_.max_context_tokens;
  config.max_plans_in_flight = header_.max_plans_in_flight;
  config.num_ranks = header_.num_ranks;
  config.rank = header_.rank;
  config.max_draft_tokens = header_.max_draft_tokens;
  config.max_retries = header_.max_retries;
  config.max_media_spans = header_.max_media_spans;
  config.max_waiting_requests = header_.max_waiting_requests;
  config.max_predicted_wait = {header_.max_predicted_wait};
  for (std::size_t i = 0; i < kMaxResources; ++i) {
    config.resource_caps[i] = header_.resource_caps[i];
  }
  return config;
}

Capabilities FlightLogReader::capabilities() const noexcept {
  Capabilities caps;
  caps.max_tokens = header_.max_tokens;
  caps.max_sequences = header_.max_sequences;
  caps.sequence_handles = header_.sequence_handles;
  caps.kv_tokens = header_.kv_tokens;
  caps.groups = groups_;
  caps.in_order = header_.in_order != 0;
  caps.future_tokens = header_.future_tokens != 0;
  caps.device_positions = header_.device_positions != 0;
  caps.partial_copy = header_.partial_copy != 0;
  caps.partial_share = header_.partial_share != 0;
  caps.swap = header_.swap != 0;
  caps.rollback = header_.rollback != 0;
  caps.graph_sizes = graph_sizes_;
  caps.num_layers = header_.num_layers;
  caps.num_experts = header_.num_experts;
  return caps;
}

void to_media(const FlightRecord& record, FlightRequestScratch& scratch) {
  scratch.media.clear();
  for (const FlightMedia& item : record.media) {
    scratch.media.push_back(
        {item.first_position, item.length, {item.content_high, item.content_low}});
  }
  const FlightRequest& from = record.request;
  const std::int64_t shareable = from.digest_unit == 0
                                     ? from.prompt_length
                                     : saturating_mul(from.num_content, from.digest_unit);
  if (record.kind == FlightKind::Request && from.cacheable >= 0 && from.cacheable < shareable) {
    // Of an item that was not kept no more is known than that sharing ended where it begins.
    scratch.media.push_back({from.cacheable, 1, {}});
  }
}

Request to_request(const FlightRecord& record, bool has_content, FlightRequestScratch& scratch) {
  const FlightRequest& from = record.request;
  Request request;
  request.id = {from.id};
  request.user_data = from.user_data;
  request.tenant = from.tenant;
  request.arrival = {from.arrival};
  request.start_by = {from.start_by};
  request.finish_by = {from.finish_by};
  request.slo = {{from.ttft}, {from.tpot}};
  request.scope = scope_of(from);
  request.max_new_tokens = from.max_new_tokens;
  request.min_new_tokens = from.min_new_tokens;
  request.num_samples = from.num_samples;
  request.priority = from.priority;
  request.request_class = static_cast<RequestClass>(min_of<std::uint8_t>(from.request_class, 2));
  request.no_prefix_read = from.no_prefix_read != 0;
  request.sync_decode = from.sync_decode != 0;
  request.atomic_prefill = from.atomic_prefill != 0;
  request.beam_search = from.beam_search != 0;
  request.stop_tokens = record.stop_tokens;
  scratch.needs.clear();
  for (const FlightNeed& need : record.needs) {
    scratch.needs.push_back(
        {static_cast<std::uint32_t>(min_of<std::uint64_t>(need.resource, kMaxResources)),
         need.amount});
  }
  request.resources = scratch.needs;
  if (from.digest_unit != 0) {
    request.prompt.kind = PromptKind::Digests;
    request.prompt.digests = record.digests;
    request.prompt.digest_unit = from.digest_unit;
    request.prompt.length = from.prompt_length;
  } else if (has_content) {
    request.prompt.tokens = record.tokens;
  } else {
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;
    scratch.prompt.assign(
        static_cast<std::size_t>(clamp_to<std::int64_t>(from.prompt_length, 0, kLongest)), 0);
    request.prompt.tokens = scratch.prompt;
  }
  to_media(record, scratch);
  request.media = scratch.media;
  return request;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
