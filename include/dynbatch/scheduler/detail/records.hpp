// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the scheduler remembers of each live request (by slot) and of each running sequence (by
/// row).
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/admission.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/load_wait.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/scheduler/config.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFF;

/// Where a request stands. Driving thread only.
enum class RequestState : std::uint8_t {
  Free,     ///< Slot unused, or still with submit().
  Waiting,  ///< In the queue.
  Running,  ///< Holds a row.
  Forking,  ///< A further sample whose prompt the first one computes.
  Leaving,  ///< Preempted or reset while plans in flight still name its row; will wait again.
  Ended,    ///< Terminal event made, perhaps not yet delivered.
};

/// One live request. Written by submit() before the slot goes to the inbox, then by the driving
/// thread.
struct RequestRecord {
  RequestId id{};
  std::uint64_t user_data = 0;
  std::uint64_t tenant = 0;
  std::uint64_t order = 0;  ///< Drain order; ties in the queue go by it.
  CacheScope scope{};
  Slo slo{};
  TimeNs arrival{};
  TimeNs start_by = kNever;
  TimeNs finish_by = kNever;
  TimeNs first_token_time{};
  TimeNs accepted_time{};
  TimeNs event_time{};  ///< Of the newest token, or of the end.
  std::int64_t prompt_length = 0;
  std::int64_t max_new = 0;  ///< Resolved: the most outputs it may have.
  std::int64_t min_new = 0;
  std::int64_t cacheable = 0;         ///< No block beyond may be shared.
  std::uint64_t content_version = 0;  ///< SequenceContentView::version.
  std::int32_t num_media = 0;         ///< Media items that the desk keeps of it.
  std::int64_t outputs = 0;           ///< While it runs, RowState::known is ahead of this.
  std::int64_t delivered = 0;         ///< Outputs handed out by poll().
  std::int64_t token_base = 0;        ///< Storage position of position p is p + token_base.
  std::int64_t pages = 0;             ///< Pages in its table.
  std::int64_t promised_pages = 0;
  std::int64_t retry_need =
      0;  ///< Blocks that were missing at the last look; 0 = look again at once.
  std::uint64_t retry_plan = 0;       ///< Look again from this plan on whatever is free.
  LoadWait load{};                    ///< What the pool knows of it while it waits.
  bool is_loading = false;            ///< Waits for a load, outside the queue.
  mutable std::int32_t num_keys = 0;  ///< Leading blocks whose keys are in the token store.
  std::uint64_t waits_order = 0;      ///< Waits until the started prefill of this drain order, in
  std::int32_t waits_row = -1;        ///< this row (-1 = waits for nobody),
  std::int32_t waits_position = 0;    ///< has planned this position.
  // A request of n samples is n records: the first one's slot stands for the request.
  std::uint32_t root = 0;                   ///< Slot of the first sample.
  std::uint32_t next_sample = 0xFFFFFFFFU;  ///< Slot of the following sample.
  std::int64_t shared_pages = 0;  ///< Leading pages of its table that belong to the first sample.
  std::int32_t sample = 0;        ///< Which sample this is.
  std::int32_t num_samples = 1;   ///< First sample only, as are the next four.
  std::int32_t running_samples = 0;  ///< Samples that hold a row.
  std::int32_t open_samples = 1;     ///< Samples that have not ended.
  std::int32_t unreported = 1;       ///< Samples whose end poll() has not handed out.
  bool is_forked = false;            ///< The samples have gone separate ways.
  bool is_over = false;              ///< The request has ended.
  bool end_reported = false;         ///< poll() has handed out all of this sample.
  SequenceId sequence{};
  ResourceNeed needs[kMaxResources]{};
  Token stop_tokens[kMaxStopTokens]{};
  std::int32_t digest_unit = 0;
  std::int32_t priority = 0;
  std::int32_t preemptions = 0;
  std::int32_t unreported_preemptions = 0;
  std::int32_t displacements = 0;       ///< First sample only: places lost to a better one.
  AdmissionKey key{};                   ///< Its rank in the queue, fixed until it comes back.
  std::uint32_t list_before = kNoSlot;  ///< Neighbours in its list, while parked or loading.
  std::uint32_t list_after = kNoSlot;
  std::int16_t quota_group = 0;
  std::int64_t preempted_at = 0;  ///< Outputs at the newest preemption.
  std::int32_t retries = 0;
  std::int32_t bypassed = 0;
  Row row = kNoRow;
  std::uint8_t num_stop = 0;
  std::uint8_t num_needs = 0;
  RequestState state = RequestState::Free;
  RequestClass request_class = RequestClass::Interactive;
  bool open_ended = false;
  bool no_prefix_read = false;
  bool sync_decode = false;
  bool atomic_prefill = false;
  bool is_beam = false;  ///< The samples are the beams of one search.
  bool was_admitted = false;
  bool is_late = false;     ///< Its first token can't be in time: it stands behind the others,
  bool is_awaited = false;  ///< unless one of those waits for what it computes.
  bool was_queued = false;  ///< The admission policy has given it a key.
  bool is_parked = false;   ///< Waits for its quota, outside the queue.
  bool is_woken = false;    ///< Back in the queue after its quota changed.
  bool accepted_reported = false;
  bool is_dirty = false;  ///< Stands in the event queue; while it runs, RowState::is_dirty counts.
  EventKind terminal = EventKind::Finished;
  FinishReason reason = FinishReason::None;           ///< Of this sample.
  FinishReason terminal_reason = FinishReason::None;  ///< Of the request.
  bool terminal_reported = false;
  Errc error = Errc::Ok;
  TimeNs waits_since{};  ///< It was taken in, or lost its row.
  // Statistics; the first sample's stand for the request.
  std::uint64_t wait_look = 0;             ///< When `wait_cause` was noted.
  WaitCause wait_cause = WaitCause::None;  ///< Why the newest look at it left it waiting.
  bool is_ttft_judged = false;
  bool is_tpot_judged = false;
  bool is_tpot_missed = false;
  std::uint32_t tenant_entry = 0;
};

enum class RowPhase : std::uint8_t {
  Free,
  Prefill,   ///< What is known is not all planned yet.
  Decode,    ///< One new position for each token produced.
  Draining,  ///< Ended or reset; the row is freed when no plan in flight names it.
};

/// One running sequence. While it runs these counts are the true ones; the record follows on
/// leaving. The first two cache lines are all that a plain decode touches.
struct alignas(64) RowState {
  std::int32_t planned = 0;      ///< Positions whose KV exists once all plans in flight have run.
  std::int32_t committed = 0;    ///< Positions whose KV exists.
  std::int32_t known = 0;        ///< Positions whose token is known: prompt and outputs.
  std::int32_t known_limit = 0;  ///< Ends with Length or Capacity when known reaches it.
  std::int32_t plain_end =
      0;  ///< A decode of a position below it changes no block and ends nothing.
  std::int32_t pending_samples = 0;  ///< Tokens that plans in flight will produce.
  std::int32_t in_flight = 0;        ///< Plans in flight that name it.
  std::uint32_t epoch = 0;      ///< Changes when what younger plans in flight hold became void.
  std::int64_t slot_base = 0;   ///< Token slot of a position below plain_end, less the position.
  Token* write = nullptr;       ///< Where the next output goes, while
  std::int32_t write_room = 0;  ///< this many fit into its page.
  Token last_token = 0;         ///< Token at position known - 1.
  std::int32_t prompt_end = 0;  ///< Prompt length.
  RowPhase phase = RowPhase::Free;
  bool checks_tokens = false;  ///< Has stop tokens.
  bool is_dirty = false;  ///< Its request stands in the event queue; the record follows on leaving.
  bool sync_decode = false;

  SequenceId sequence{};
  RequestId request{};
  std::uint64_t user_data = 0;
  std::int64_t last_token_ns = 0;
  std::int64_t first_token_ns = 0;
  std::uint64_t last_plan = 0;  ///< Newest plan that names it.
  std::uint32_t slot = 0;
  std::int32_t sample = 0;
  std::int32_t told_blocks =
      0;  ///< Leading table entries that plans not abandoned have told the host.
  std::int32_t table_tokens = 0;  ///< Positions its block table has room for.
  std::int32_t next_publish = 0;  ///< Planned positions at which the next full block appears.

  std::int32_t num_drafts = 0;     ///< Proposals for its next decode.
  std::int32_t draft_tokens = 0;   ///< Of these, how many its chunk in flight carries.
  std::int32_t fork_blocks = 0;    ///< Kept for the samples that will fork off.
  std::int32_t held_blocks = 0;    ///< Kept from other admissions, not in the table yet.
  std::int32_t lent = 0;           ///< Fork copies not yet told that read its blocks.
  std::uint32_t residence = 0;     ///< Changes whenever the row is taken.
  std::int32_t list_index = 0;     ///< Place in its phase's list.
  std::int32_t recompute_end = 0;  ///< Positions below it were computed before.
  std::int32_t older = -1;         ///< Admission order, doubly linked.
  std::int32_t newer = -1;
  std::int64_t tpot_ns = 0;        ///< 0 = no limit.
  bool is_stale = false;           ///< Rolled back while younger plans name it: wait for them.
  bool requeue = false;            ///< Draining: waits again afterwards.
  std::uint64_t copied_in = 0;     ///< Plan that tells the copy it begins with.
  std::int32_t reserved_rows = 0;  ///< Rows kept for the samples that will fork off.
  bool is_reset = false;           ///< Draining because it read what was never written.
  bool is_beam = false;            ///< Runs in the same plans as its request's other beams.
};

/// Of a row's table in a further group, what plans not abandoned have told the host.
struct ToldTable {
  std::int32_t first;   ///< Leading entries that hold nothing any more.
  std::int32_t length;  ///< Entries.
};

/// Rows of one phase in a stable order, with a place to start from: rows that the budget left out
/// come first the next time. Removal leaves a hole; holes are squeezed out when they outnumber the
/// rows.
class RowList {
 public:
  Status allocate(std::size_t rows) noexcept {
    return rows_.allocate(4 * rows + 4, "max_sequences");
  }

  [[nodiscard]] std::int32_t size() const noexcept { return live_; }
  [[nodiscard]] std::int32_t end() const noexcept {
    return static_cast<std::int32_t>(rows_.size());
  }
  /// Row at an index, -1 = a hole.
  [[nodiscard]] std::int32_t at(std::int32_t index) const noexcept {
    return rows_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::int32_t start() const noexcept { return start_; }
  void set_start(std::int32_t index) noexcept { start_ = index; }

  void add(std::int32_t row, RowState* states) noexcept {
    if (rows_.size() == rows_.capacity() && !is_walked_) {
      close_holes(states);
    }
    std::int32_t index = end();
    if (rows_.size() < rows_.capacity()) {
      rows_.push_back(row);
    } else {  // rows that came and went during the walk have left holes
      do {
        --index;
      } while (rows_[static_cast<std::size_t>(index)] >= 0);
      rows_[static_cast<std::size_t>(index)] = row;
    }
    states[row].list_index = index;
    ++live_;
  }
  void remove(const RowState& state) noexcept {
    rows_[static_cast<std::size_t>(state.list_index)] = -1;
    --live_;
  }
  /// Call between walks, never during one.
  void squeeze(RowState* states) noexcept {
    if (end() > 2 * live_ + 1 || rows_.size() * 2 > rows_.capacity()) {
      close_holes(states);
    }
  }
  /// While somebody walks over the list its rows keep their places.
  void set_walked(bool is_walked) noexcept { is_walked_ = is_walked; }

 private:
  void close_holes(RowState* states) noexcept {
    std::size_t to = 0;
    std::int32_t start = 0;
    for (std::size_t from = 0; from < rows_.size(); ++from) {
      if (static_cast<std::int32_t>(from) == start_) {
        start = static_cast<std::int32_t>(to);
      }
      if (rows_[from] >= 0) {
        states[rows_[from]].list_index = static_cast<std::int32_t>(to);
        rows_[to++] = rows_[from];
      }
    }
    rows_.resize(to);
    start_ = start;
  }

  FixedVector<std::int32_t> rows_;
  std::int32_t live_ = 0;
  std::int32_t start_ = 0;
  bool is_walked_ = false;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
