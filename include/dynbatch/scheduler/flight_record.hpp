// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The format of a flight log: what a scheduler writes down about its inputs, its plans and why
/// requests waited. Meaning and use: docs/flight_recorder.md.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/model/request.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// Version of the format below; a reader refuses every other one.
inline constexpr std::uint32_t kFlightFormat = 3;
/// First bytes of a log, "DYNBFLT1" as a little-endian number: also tells a foreign byte order.
inline constexpr std::uint64_t kFlightMagic = 0x31544C46424E5944ULL;
/// Longest label that is kept.
inline constexpr std::size_t kMaxFlightLabel = 255;
/// Reasons for waiting that one plan records at most.
inline constexpr std::size_t kMaxFlightWaits = 32;
/// Stands for an output token of a log that holds no content.
inline constexpr Token kHiddenToken = 0x7FFFFFFF;

/// 0 or 1; not a bool, because a damaged log may hold anything.
using FlightBool = std::uint8_t;

/// A record is a FlightPrefix, the fixed part that its kind names, and arrays in the order that the
/// fixed part's counts are listed in; its size is a multiple of 8. Inputs come in the order in
/// which the scheduler took them in.
enum class FlightKind : std::uint8_t {
  Header = 1,  ///< FlightHeader, graph sizes (int32), label (char). Once, first.
  Request,     ///< FlightRequest, needs (FlightNeed), FlightMedia[], content (digests or tokens),
               ///< stop tokens.
  Cancel,      ///< FlightCancel. Only cancellations that ended a request.
  Plan,        ///< FlightPlan, FlightWait[], FlightChunk[]. One call of plan().
  Seal,        ///< FlightSeal, FlightRank[]. Lock-step.
  Commit,      ///< FlightCommit, FlightOutcome[], token CSR, draft CSR, tokens, drafts (int32).
  Abandon,     ///< FlightAbandon.
  ClearCache,  ///< FlightClear.
  Cost,        ///< FlightCost. The sizer has published another step cost.
  Admitted,    ///< FlightAdmitted.
  Preempted,   ///< FlightPreempted.
  Undone,      ///< FlightUndone. A chunk did not run, or read what was never written.
  Ended,       ///< FlightEnded.
  Gap,         ///< FlightGap. Records are missing here: nobody drained the log in time.
  Pin,         ///< FlightPin, FlightMedia[], content (digests or tokens).
};
inline constexpr FlightKind kLastFlightKind = FlightKind::Pin;

/// First 8 bytes of every record.
struct FlightPrefix {
  std::uint32_t bytes = 0;  ///< Of the whole record, this prefix included.
  FlightKind kind = FlightKind::Gap;
  std::uint8_t reserved[3]{};
};

/// One group of the pool.
struct FlightGroup {
  std::int32_t kind = 0;
  std::int32_t block_size = 0;
  std::int32_t window = 0;
};

/// How the scheduler was made. A field of SchedulerConfig or Capabilities that decides belongs
/// here.
struct FlightHeader {
  std::uint64_t magic = kFlightMagic;
  std::uint32_t format = kFlightFormat;
  std::uint32_t version = 0;  ///< major << 16 | minor << 8 | patch of the library.
  std::int64_t max_live_requests = 0;
  std::int64_t max_queued_tokens = 0;
  std::int64_t max_context_tokens = 0;
  std::int64_t resource_caps[4]{};
  std::int64_t max_tokens = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t total_blocks = 0;  ///< Of the pool.
  std::int32_t max_plans_in_flight = 0;
  std::int32_t num_ranks = 0;
  std::int32_t rank = 0;
  std::int32_t max_draft_tokens = 0;
  std::int32_t max_retries = 0;
  std::int32_t max_sequences = 0;
  std::int32_t sequence_handles = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_experts = 0;
  std::int32_t block_size = 0;  ///< Of the pool.
  FlightGroup groups[8]{};      ///< Of the pool.
  std::uint32_t num_groups = 0;
  std::uint32_t check_level = 0;
  std::uint32_t num_graph_sizes = 0;
  std::uint32_t label_bytes = 0;
  FlightBool has_content = 0;      ///< Prompts and outputs are in the log.
  FlightBool shares_prefixes = 0;  ///< Of the pool.
  FlightBool in_order = 0;
  FlightBool future_tokens = 0;
  FlightBool device_positions = 0;
  FlightBool partial_copy = 0;
  FlightBool partial_share = 0;
  FlightBool swap = 0;
  FlightBool rollback = 0;
  std::uint8_t reserved[3]{};
  std::int32_t max_media_spans = 0;
  std::int64_t max_waiting_requests = 0;
  std::int64_t max_predicted_wait = INT64_MAX;  ///< In ns; the largest number = no limit.
};

/// A request as it was accepted.
struct FlightRequest {
  std::uint64_t id = 0;
  std::uint64_t user_data = 0;
  std::uint64_t tenant = 0;
  std::int64_t now = 0;  ///< When the driving thread took it in.
  std::int64_t arrival = 0;
  std::int64_t start_by = 0;
  std::int64_t finish_by = 0;
  std::int64_t ttft = 0;
  std::int64_t tpot = 0;
  std::uint64_t model_epoch = 0;
  std::uint64_t tenant_salt = 0;
  std::uint64_t adapter_id = 0;
  std::uint64_t adapter_version = 0;
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = 0;  ///< -1 = open-ended.
  std::int64_t min_new_tokens = 0;
  std::int64_t cacheable = 0;    ///< Positions from here on are never shared.
  std::int64_t num_content = 0;  ///< Digests or tokens that follow; 0 = the log holds no content.
  std::uint64_t num_media = 0;   ///< Media items that follow; with content only.
  std::int32_t digest_unit = 0;  ///< 0 = the prompt was given as tokens.
  std::int32_t num_samples = 1;
  std::int32_t priority = 0;
  std::uint8_t num_needs = 0;
  std::uint8_t num_stop = 0;
  std::uint8_t request_class = 0;
  FlightBool has_tenant_salt = 0;
  FlightBool has_adapter = 0;
  FlightBool no_prefix_read = 0;
  FlightBool sync_decode = 0;
  FlightBool atomic_prefill = 0;
  FlightBool was_cancelled = 0;  ///< Before the driving thread took it in.
  FlightBool beam_search = 0;
  std::uint8_t reserved[2]{};
};

/// A request's need of a named resource.
struct FlightNeed {
  std::uint64_t resource = 0;
  std::int64_t amount = 0;
};

/// A media item of a request or a pin.
struct FlightMedia {
  std::int64_t first_position = 0;
  std::int64_t length = 0;
  std::uint64_t content_high = 0;
  std::uint64_t content_low = 0;
};

struct FlightCancel {
  std::uint64_t request = 0;
  std::int64_t now = 0;
  std::uint64_t is_in_poll = 0;  ///< 1 = poll() took it in, 0 = the following plan() did.
};

/// Why a request did not run in a plan.
struct FlightWait {
  std::uint64_t request = 0;
  std::uint8_t cause = 0;     ///< WaitCause.
  FlightBool is_running = 0;  ///< It had been admitted; else it stood in the queue.
  std::uint8_t reserved[6]{};
};

/// A chunk of a prompt, or of what is computed again.
struct FlightChunk {
  std::uint64_t request = 0;
  std::int32_t sample = 0;
  std::int32_t first_position = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_samples = 0;  ///< > 0: it completes what is known, and yields a token.
};

/// One call of plan(); repeated calls with nothing to say are left out.
struct FlightPlan {
  std::int64_t now = 0;
  std::uint64_t plan = 0;    ///< 0 = there was none; then the status follows.
  std::uint64_t digest = 0;  ///< plan_digest(), or decision_digest() without content.
  std::uint64_t request = 0;
  std::int64_t not_before = 0;
  std::int64_t max_tokens = 0;  ///< The sizer's limits for the step; 0 = it was not asked.
  std::int64_t max_prefill_tokens = 0;
  std::int32_t max_prefill_sequences = 0;
  std::int32_t max_decode_sequences = 0;
  std::int32_t num_waiting = 0;  ///< In the queue after the plan.
  std::int32_t num_parked = 0;   ///< Beside it, held back by the admission policy's own limit.
  std::int32_t num_running = 0;
  std::int32_t num_decodes = 0;
  std::uint32_t num_waits = 0;
  std::uint32_t num_chunks = 0;
  std::uint8_t state = 0;  ///< PlanState.
  std::uint8_t cause = 0;  ///< WaitCause.
  std::uint8_t bound = 0;  ///< SizerBound: what held max_decode_sequences down.
  std::uint8_t pause = 0;  ///< 0 = running, 1 = PauseMode::New, 2 = PauseMode::All.
  FlightBool is_closed = 0;
  std::uint8_t reserved[3]{};
};

/// One rank's summary.
struct FlightRank {
  std::int64_t num_tokens = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t attention_work = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_chunks = 0;
  std::uint64_t wants_split = 0;
};

struct FlightSeal {
  std::uint64_t plan = 0;
  std::uint64_t digest = 0;  ///< Of the sealed plan.
  std::uint64_t num_ranks = 0;
};

struct FlightOutcome {
  std::uint8_t kind = 0;    ///< OutcomeKind.
  std::uint8_t reason = 0;  ///< FinishReason.
  std::uint8_t reserved[2]{};
  std::int32_t tokens = 0;
};

/// Counts of 0 mean what empty spans mean in a StepResult.
struct FlightCommit {
  std::uint64_t plan = 0;
  std::int64_t now = 0;
  std::int64_t measured = 0;
  std::uint32_t num_outcomes = 0;
  std::uint32_t num_token_begin = 0;
  std::uint32_t num_draft_begin = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_drafts = 0;
  std::uint32_t num_continuations = 0;
};

/// How a beam goes on; these follow the outcomes of a commit.
struct FlightContinuation {
  std::uint32_t parent_slot = 0;
  std::uint32_t parent_generation = 0;
  std::int32_t token = 0;
  std::uint32_t reserved = 0;
};

struct FlightAbandon {
  std::uint64_t plan = 0;
  std::int64_t now = 0;
  std::uint64_t why = 0;  ///< AbandonReason.
};

struct FlightClear {
  std::uint64_t is_cleared = 0;
};

/// A call of pin().
struct FlightPin {
  std::int64_t until = 0;
  std::int64_t tokens = 0;
  std::uint64_t model_epoch = 0;
  std::uint64_t tenant_salt = 0;
  std::uint64_t adapter_id = 0;
  std::uint64_t adapter_version = 0;
  std::int64_t num_content = 0;  ///< Digests or tokens that follow; 0 = the log holds no content.
  std::uint64_t num_media = 0;   ///< Media items that follow; with content only.
  std::int32_t digest_unit = 0;  ///< 0 = given as tokens.
  FlightBool has_tenant_salt = 0;
  FlightBool has_adapter = 0;
  FlightBool is_pinned = 0;
  std::uint8_t reserved = 0;
};

struct FlightCost {
  std::int64_t fixed_ns = 0;
  std::int64_t prefill_token_ps = 0;
  std::int64_t decode_row_ps = 0;
  std::int64_t kv_token_ps = 0;
  std::int64_t attention_pair_fs = 0;
  std::uint64_t version = 0;
};

struct FlightAdmitted {
  std::uint64_t request = 0;
  std::uint64_t plan = 0;  ///< Under construction; without a chunk of it the admission was undone.
  std::int64_t known_tokens = 0;  ///< Prompt, and outputs after a preemption.
  std::int64_t hit_tokens = 0;    ///< Of these, how many the prefix cache had.
  std::int32_t sample = 0;
  std::int32_t row = 0;
};

struct FlightPreempted {
  std::uint64_t request = 0;
  std::uint64_t plan = 0;
  std::int64_t outputs = 0;  ///< So far.
  std::int32_t sample = 0;
  std::int32_t count = 0;          ///< Preemptions of it so far, this one included.
  std::int32_t displacements = 0;  ///< Of these, for the place of one that outranks it.
  std::int32_t reserved = 0;
};

struct FlightUndone {
  std::uint64_t request = 0;
  std::int64_t now = 0;
  std::int32_t sample = 0;
  std::int32_t position = 0;  ///< Where it stands again.
  std::int32_t retries = 0;   ///< Charged so far.
  FlightBool is_charged = 0;
  FlightBool is_reader = 0;  ///< It had read what was never written: it starts over.
  std::uint8_t reserved[2]{};
};

struct FlightEnded {
  std::uint64_t request = 0;
  std::int64_t now = 0;
  std::int64_t outputs = 0;  ///< Of all samples.
  std::uint8_t kind = 0;     ///< EventKind, terminal.
  std::uint8_t reason = 0;   ///< FinishReason.
  std::uint8_t error = 0;    ///< Errc.
  std::uint8_t reserved[5]{};
};

struct FlightGap {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
};

namespace detail {

/// Puts a scope into a record of a request or a pin.
template <class Record>
constexpr void put_scope(Record& to, const CacheScope& scope) noexcept {
  to.model_epoch = scope.model_epoch;
  to.tenant_salt = scope.tenant_salt;
  to.adapter_id = scope.adapter_id;
  to.adapter_version = scope.adapter_version;
  to.has_tenant_salt = scope.has_tenant_salt ? 1 : 0;
  to.has_adapter = scope.has_adapter ? 1 : 0;
}

/// What may be written to a log as it lies in memory: no byte of it is padding.
template <class T>
inline constexpr bool is_flight_part =  // NOLINT(readability-identifier-naming): as traits
    std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;

static_assert(sizeof(FlightPrefix) == 8 && is_flight_part<FlightPrefix>);
static_assert(sizeof(FlightHeader) % 8 == 0 && is_flight_part<FlightHeader>);
static_assert(sizeof(FlightRequest) % 8 == 0 && is_flight_part<FlightRequest>);
static_assert(sizeof(FlightPin) % 8 == 0 && is_flight_part<FlightPin>);
static_assert(sizeof(FlightPlan) % 8 == 0 && is_flight_part<FlightPlan>);
static_assert(sizeof(FlightCommit) % 8 == 0 && is_flight_part<FlightCommit>);
static_assert(sizeof(FlightUndone) % 8 == 0 && is_flight_part<FlightUndone>);
static_assert(sizeof(FlightEnded) % 8 == 0 && is_flight_part<FlightEnded>);
static_assert(sizeof(FlightContinuation) == 16 && is_flight_part<FlightContinuation>);
static_assert(sizeof(FlightMedia) == 32 && is_flight_part<FlightMedia>);
static_assert(is_flight_part<FlightWait> && is_flight_part<FlightChunk>);
static_assert(is_flight_part<FlightAdmitted> && is_flight_part<FlightPreempted>);

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
