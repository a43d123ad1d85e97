// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// State and operations behind Scheduler. Members are defined by topic in the core_*.hpp beside
/// this file; all of them run on the driving thread unless they say otherwise.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/admission.hpp>
#include <dynbatch/concepts/batch_sizer.hpp>
#include <dynbatch/concepts/expert_balancer.hpp>
#include <dynbatch/concepts/kv_cache_pool.hpp>
#include <dynbatch/concepts/micro_batch_splitter.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/plan_digest.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>
#include <dynbatch/model/watch.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>
#include <dynbatch/scheduler/detail/plan_store.hpp>
#include <dynbatch/scheduler/detail/records.hpp>
#include <dynbatch/scheduler/detail/request_desk.hpp>
#include <dynbatch/scheduler/detail/slot_heap.hpp>
#include <dynbatch/scheduler/detail/waiting_queue.hpp>
#include <dynbatch/scheduler/detail/watch.hpp>
#include <dynbatch/scheduler/flight_record.hpp>
#include <dynbatch/scheduler/flight_recorder.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// The policies of one scheduler.
template <class Sizer, class Splitter, class Balancer, class Pool, class Admission>
struct PolicySet {
  Sizer sizer;
  Splitter splitter;
  Balancer balancer;
  Pool pool;
  Admission admission;
};

template <class Policies>
class SchedulerCore {
 public:
  SchedulerCore(const SchedulerConfig& config, const Capabilities& capabilities,
                Policies&& policies) noexcept
      : config_(config), caps_(capabilities), policies_(std::move(policies)) {}

  Status initialise() noexcept;

  // Any thread.
  RequestDesk& desk() noexcept { return desk_; }
  [[nodiscard]] const RequestDesk& desk() const noexcept { return desk_; }
  void set_pause(int mode) noexcept { pause_.store(mode, std::memory_order_release); }
  [[nodiscard]] SchedulerStats stats() const noexcept;

  // Driving thread.
  const StepPlan* plan(TimeNs now) noexcept {
    const StepPlan* plan = next_plan(now);
    desk_.gate().observe(now_);
    if (watch_.is_on()) {
      watch_plan();
    }
    if (flight_.is_on()) {
      record_plan(plan);
    }
    return plan;
  }
  [[nodiscard]] RankSummary summary(const StepPlan& plan) const noexcept;
  Status seal(const StepPlan& plan, std::span<const RankSummary> ranks) noexcept;
  Status commit(const StepPlan& plan, const StepResult& result, TimeNs now) noexcept;
  Status abandon(const StepPlan& plan, AbandonReason why, TimeNs now) noexcept;
  std::size_t poll(std::span<Event> out) noexcept;
  bool clear_cache() noexcept;
  Status pin(const Prompt& prompt, const CacheScope& scope, std::int64_t tokens, TimeNs until,
             std::span<const MediaSpan> media) noexcept;
  [[nodiscard]] std::int64_t common_prefix_blocks() const noexcept;
  std::size_t drain_log(std::span<std::byte> out) noexcept { return flight_.drain(out); }
  [[nodiscard]] PlanStatus status() const noexcept { return status_; }
  [[nodiscard]] const Capabilities& capabilities() const noexcept { return caps_; }
  [[nodiscard]] QueueHead queue_head() const noexcept;
  Watch& watch() noexcept { return watch_; }
  [[nodiscard]] const Watch& watch() const noexcept { return watch_; }
  Policies& policies() noexcept { return policies_; }
  [[nodiscard]] const Policies& policies() const noexcept { return policies_; }
  [[nodiscard]] Status check() const noexcept;
  Status materialize(const StepPlan& plan, std::span<BlockId> out, std::size_t stride,
                     std::size_t group) const noexcept;
  Status make_result(StepResultBuffer& buffer) const noexcept {
    return buffer.allocate(caps_.max_sequences, caps_.max_sequences,
                           std::int64_t{caps_.max_sequences} * (1 + config_.max_draft_tokens),
                           std::int64_t{caps_.max_sequences} * config_.max_draft_tokens);
  }

 private:
  using PoolOptions = OptionalPool<decltype(Policies::pool)>;
  using PoolLoads = OptionalLoads<decltype(Policies::pool)>;
  using AdmissionOptions = OptionalAdmission<decltype(Policies::admission)>;

  /// What one step may still take.
  struct Budget {
    std::int64_t tokens = 0;
    std::int64_t prefill_tokens = 0;
    bool sorts_late = false;     ///< Late requests stand behind the others.
    bool preempted = false;      ///< Somebody lost its blocks in this step: nobody is admitted.
    bool chunk_dropped = false;  ///< A planned chunk lost its row.
    std::int32_t prefill_chunks = 0;
  };

  // core_intake.hpp
  [[nodiscard]] Status check_addressing() const noexcept;
  void advance_clock(TimeNs now) noexcept;
  void take_in(TimeNs now) noexcept;
  void accept(std::uint32_t slot, TimeNs now) noexcept;
  void expire(TimeNs now) noexcept;
  void enqueue(std::uint32_t slot) noexcept;
  void dequeue(std::uint32_t slot) noexcept;
  void push_waiting(std::uint32_t slot) noexcept;
  void set_deadline(std::uint32_t slot) noexcept;

  // core_end.hpp
  void end_request(std::uint32_t slot, EventKind kind, FinishReason reason, Errc error,
                   TimeNs now) noexcept;
  void finish_sequence(std::uint32_t slot, FinishReason reason, TimeNs now) noexcept;
  void end_sequence(std::uint32_t slot, FinishReason reason, TimeNs now) noexcept;
  void close_request(std::uint32_t root, EventKind kind, FinishReason reason, Errc error,
                     TimeNs now) noexcept;

  // core_rows.hpp
  std::int32_t take_row(std::uint32_t slot) noexcept;
  void detach_row(std::int32_t row, bool requeue) noexcept;
  void finish_detach(std::int32_t row) noexcept;
  [[nodiscard]] std::int32_t lent_tokens(std::int32_t row) const noexcept;
  void set_phase(std::int32_t row, RowPhase phase) noexcept;
  void roll_back(std::int32_t row, std::int32_t position, std::int32_t pending,
                 RowPhase phase) noexcept;
  void send_back(std::int32_t row) noexcept;
  void preempt(std::int32_t row, Budget& budget) noexcept;
  void hold_blocks(RowState& r, std::int64_t blocks) noexcept;
  [[nodiscard]] SequenceContentView content(std::uint32_t slot, std::int64_t known) const noexcept;
  [[nodiscard]] AdmissionRequest admission_view(std::uint32_t slot) const noexcept;
  [[nodiscard]] std::int32_t choose_victim() const noexcept;

  // core_compose.hpp
  const StepPlan* next_plan(TimeNs now) noexcept;
  [[nodiscard]] RunningList running_list() const noexcept;
  [[nodiscard]] ComposeInput compose_input() const noexcept;
  [[nodiscard]] SizerInput sizer_input(TimeNs now) const noexcept;
  void compose(PlanRecord& record, const BatchLimits& limits) noexcept;
  void plan_decodes(PlanRecord& record, Budget& budget) noexcept;
  bool plan_decodes_between(PlanRecord& record, std::int32_t index, std::int32_t end,
                            Budget& budget) noexcept;
  void plan_prefills(PlanRecord& record, Budget& budget, bool is_late, bool is_first) noexcept;
  void admit(PlanRecord& record, const BatchLimits& limits, Budget& budget, bool is_late) noexcept;
  /// The tokens of a plan's samples.
  struct SampleTokens {
    const Token* tokens;
    const std::int32_t* begin;  // CSR over the samples; nullptr = one token each
    [[nodiscard]] std::span<const Token> of(std::int32_t sample) const noexcept {
      return begin == nullptr ? std::span<const Token>(tokens + sample, 1)
                              : std::span<const Token>(
                                    tokens + begin[sample],
                                    static_cast<std::size_t>(begin[sample + 1] - begin[sample]));
    }
  };
  enum class Admit : std::uint8_t { Done, Blocked, Parked, Late, BudgetSpent };
  Admit try_admit(PlanRecord& record, std::uint32_t slot, const BatchLimits& limits, Budget& budget,
                  WaitCause& cause) noexcept;
  [[nodiscard]] bool has_place(const BatchLimits& limits) const noexcept {
    return static_cast<std::int32_t>(free_rows_.size()) > reserved_rows_ &&
           num_running_ + reserved_rows_ < limits.max_decode_sequences;
  }

  // core_late.hpp
  enum class LateTurn : std::uint8_t { Off, Last, First };
  [[nodiscard]] bool is_past_hope(const RequestRecord& request, std::int64_t planned,
                                  std::int64_t chunk) const noexcept;
  [[nodiscard]] LateTurn late_turn(const BatchLimits& limits) noexcept;
  void move_to_late(std::uint32_t slot) noexcept;

  // core_queue.hpp
  [[nodiscard]] std::size_t num_waiting() const noexcept {
    return waiting_.size() + num_parked_ + num_loading_;
  }
  [[nodiscard]] bool may_displace(std::uint32_t slot) const noexcept;
  bool outranks(std::uint32_t slot) noexcept;
  void displace(PlanRecord& record, std::uint32_t slot, std::int64_t spare,
                Budget& budget) noexcept;
  [[nodiscard]] bool parks(std::uint32_t slot) noexcept;
  void unpark(std::uint32_t slot) noexcept;
  struct SlotList {
    std::uint32_t first = kNoSlot;
    std::uint32_t last = kNoSlot;
  };
  void link(SlotList& list, std::uint32_t slot, bool is_first) noexcept;
  void unlink(SlotList& list, std::uint32_t slot) noexcept;
  void wake(std::int32_t group) noexcept;
  void wake_all() noexcept;

  // core_loads.hpp
  bool starts_loading(std::uint32_t slot, std::int64_t known) noexcept;
  void stop_loading(std::uint32_t slot) noexcept;
  void wake_loaded() noexcept;

  // core_admit.hpp
  struct Claim {
    std::int64_t cost = 0;         ///< Blocks, those found in use not counted.
    std::int64_t held = 0;         ///< Kept from others from then on, in all.
    std::int64_t fork_blocks = 0;  ///< Of the cost, for samples that will fork off.
  };
  [[nodiscard]] Claim claim_of(const RequestRecord& record, std::int32_t rows, std::int64_t known,
                               const PrefixMatch& match, std::int64_t spare) noexcept;
  void begin_copy(PlanRecord& plan_record, std::int32_t row, const PrefixMatch& match) noexcept;
  [[nodiscard]] bool waits_for_prefill(std::uint32_t slot, std::int64_t matched) noexcept;
  [[nodiscard]] bool same_content(std::uint32_t a, std::uint32_t b,
                                  std::int64_t tokens) const noexcept;

  // core_evict.hpp
  bool grow(PlanRecord& record, std::int32_t row, std::int32_t tokens, Budget& budget) noexcept;
  bool make_room(PlanRecord& record, std::int32_t row, std::int64_t blocks,
                 Budget& budget) noexcept;
  void give_way(PlanRecord& record, std::int32_t row, Budget& budget) noexcept;
  void drop_chunk(PlanRecord& record, std::int32_t row, Budget& budget) noexcept;

  // core_write.hpp, and the rest of core_compose.hpp and core_seal.hpp
  void extend_row(std::int32_t row, std::int32_t tokens) noexcept;
  void plan_prefill_work(PlanRecord& record, const BatchLimits& limits,
                         const Composition& composition, Budget& budget) noexcept;
  [[nodiscard]] bool may_plan(const RowState& r) const noexcept {
    if (r.in_flight == 0) {
      // Where plans may overtake each other, a copy told by another plan has to be done first.
      return caps_.in_order || num_in_flight_ == 0 ||
             r.copied_in < plans_[static_cast<std::size_t>(oldest_)].plan.id.value;
    }
    return caps_.future_tokens && caps_.in_order && !r.sync_decode && !r.is_stale &&
           r.draft_tokens == 0 && r.last_plan != next_plan_;
  }
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const noexcept {
    return block_size_ == 0 ? 0
                            : (block_shift_ >= 0 ? (tokens + block_size_ - 1) >> block_shift_
                                                 : ceil_div(tokens, block_size_));
  }
  void note_blocked(std::uint32_t slot, WaitCause cause) noexcept {
    if (first_cause_ == WaitCause::None) {
      first_cause_ = cause;
      first_blocked_ = desk_[slot].id;
    }
    if (watch_.is_on()) {
      watch_.wait(desk_[slot], cause);
    }
    if (flight_.is_on()) {
      note_wait(slot, cause);
    }
  }
  void append_prefill(PlanRecord& record, std::int32_t row, std::int32_t num_tokens,
                      Budget& budget) noexcept;
  std::int32_t append_decode(PlanRecord& record, std::int32_t row, std::int64_t budget) noexcept;
  [[nodiscard]] std::int32_t drafts_that_fit(std::int32_t row, std::int64_t budget) noexcept;
  void emit_copies(PlanRecord& record) noexcept;
  std::int32_t append_plain_decodes(PlanRecord& record, std::int32_t index, std::int32_t end,
                                    std::int64_t& budget) noexcept;
  void finish_chunk(PlanRecord& record, std::int32_t row, Chunk& chunk) noexcept;
  void emit_deltas(PlanRecord& record, std::int32_t row) noexcept;
  void drop_planned_chunks(PlanRecord& record) noexcept;
  void count_chunks(const PlanRecord& record) noexcept;
  void show_chunks(PlanRecord& record, TimeNs now) noexcept;
  [[nodiscard]] std::int32_t graph_size(std::int32_t rows) const noexcept;
  void seal(PlanRecord& record, std::span<const RankSummary> ranks) noexcept;
  void explain_empty() noexcept;
  [[nodiscard]] std::int64_t spare_blocks() const noexcept {
    return policies_.pool.stats().available_blocks() - held_blocks_;
  }

  // core_groups.hpp
  /// Known at compile time for pools of one group, which then cost nothing more.
  [[nodiscard]] bool has_more_groups() const noexcept {
    return PoolOptions::kHasGroups && num_groups_ > 1;
  }
  [[nodiscard]] Status check_groups(std::span<const GroupSpec> groups) const noexcept;
  [[nodiscard]] Status allocate_groups(std::span<const GroupSpec> groups,
                                       std::int64_t max_tokens) noexcept;
  void write_groups(PlanRecord& record, std::int32_t row, const Chunk& chunk) noexcept;
  void close_group_gaps(PlanRecord& record, std::size_t to, std::size_t from,
                        std::size_t n) noexcept;
  void drop_group_deltas(PlanRecord& record) noexcept;
  void seal_groups(PlanRecord& record) noexcept;
  void advance_groups(std::int32_t row) noexcept;
  void forget_told(std::int32_t row) noexcept;
  void keep_states(const Chunk& chunk, const ChunkUndo& undo, PlanId plan) noexcept;

  // core_settle.hpp
  [[nodiscard]] Status validate_result(const StepPlan& plan,
                                       const StepResult& result) const noexcept;
  [[nodiscard]] bool is_plain_result(const StepPlan& plan, const StepResult& result) const noexcept;
  void settle_plain(PlanRecord& record, const Token* tokens, TimeNs now,
                    StepFeedback& feedback) noexcept;
  void settle_mixed(PlanRecord& record, const StepResult& result, TimeNs now,
                    StepFeedback& feedback) noexcept;
  void settle_chunk(const Chunk& chunk, const ChunkUndo& undo, const SampleTokens& samples,
                    std::int32_t kept, TimeNs now, StepFeedback& feedback) noexcept;
  void settle_drafted(const Chunk& chunk, std::span<const Token> tokens, TimeNs now,
                      StepFeedback& feedback) noexcept;
  void take_drafts(const PlanRecord& record, const StepResult& result) noexcept;
  void lend(std::int32_t source, std::int32_t target, const BlockCopy& copy,
            std::int32_t tokens) noexcept;
  void fork_sample(std::int32_t row, std::uint32_t child, Token token, TimeNs now,
                   StepFeedback& feedback) noexcept;
  void append_output(RowState& r, Token token, TimeNs now) noexcept;
  /// Brings the outputs of the commit under way into the sums.
  void flush_outputs() noexcept {
    running_outputs_ += settled_outputs_;
    counters_.output_tokens.add(static_cast<std::uint64_t>(settled_outputs_));
    settled_outputs_ = 0;
  }
  void open_page(RowState& r) noexcept;
  [[nodiscard]] FinishReason stop_reason(const RowState& r, Token token) const noexcept;
  void finish_row(std::int32_t row, FinishReason reason, TimeNs now,
                  StepFeedback& feedback) noexcept;
  /// What is known of a chunk that did not run, or not to its end.
  struct Undoing {
    bool is_youngest = false;  ///< No younger plan names its row.
    bool is_charged = false;   ///< It counts as a retry.
    bool is_spoiled = false;   ///< It may have left what only a rollback takes back.
    bool is_fatal = false;     ///< Its request fails.
  };
  void undo_chunk(const Chunk& chunk, const ChunkUndo& undo, const Undoing& how,
                  TimeNs now) noexcept;
  template <class Start>
  void prune_row_starts(FixedVector<Start>& starts) noexcept;
  template <class Start>
  [[nodiscard]] bool is_held(const Start& start) const noexcept {
    const RowState& r = rows_[static_cast<std::size_t>(start.row.value)];
    return r.residence == start.residence && r.phase != RowPhase::Free;
  }
  void finish_copies(const PlanRecord& record) noexcept;
  void lose_copies(const PlanRecord& record) noexcept;
  void lose_moves(const PlanRecord& record) noexcept;
  void reset_readers() noexcept;
  void drop_in_flight(std::int32_t row) noexcept;
  void drop_loan(std::int32_t row) noexcept;
  void drop_fork(const ForkCopy& fork) noexcept;
  void drop_told_forks(const PlanRecord& record) noexcept;
  void prune_forks() noexcept;

  // core_beams.hpp
  [[nodiscard]] std::int64_t beam_blocks(const RequestRecord& record) const noexcept;
  bool plan_beams(PlanRecord& record, std::int32_t row, Budget& budget) noexcept;
  [[nodiscard]] std::size_t beams_end(const PlanRecord& record, std::size_t first) const noexcept;
  [[nodiscard]] bool beams_ran(const PlanRecord& record, const StepResult& result,
                               std::size_t i) const noexcept;
  [[nodiscard]] std::size_t num_continuations(
      const PlanRecord& record, std::size_t first, std::size_t end,
      std::span<const Continuation> continuations) const noexcept;
  [[nodiscard]] Status validate_continuations(const PlanRecord& record,
                                              const StepResult& result) const noexcept;
  void settle_beams(const PlanRecord& record, std::size_t first, std::size_t end,
                    std::span<const Continuation> continuations, TimeNs now,
                    StepFeedback& feedback) noexcept;
  bool replant_beam(std::int32_t source, std::int32_t target) noexcept;
  void copy_outputs(const RowState& from, RowState& to) noexcept;
  void restart_beams(std::uint32_t slot) noexcept;

  // core_report.hpp
  void push_dirty(std::uint32_t slot) noexcept;
  void mark_dirty(std::uint32_t slot) noexcept;
  void sync_record(const RowState& r) noexcept;
  bool report(std::uint32_t slot, std::span<Event> out, std::size_t& n) noexcept;
  bool report_tokens(std::uint32_t slot, std::int64_t up_to, std::span<Event> out,
                     std::size_t& n) noexcept;
  [[nodiscard]] Event event_of(std::uint32_t slot, EventKind kind, TimeNs time) const noexcept;

  // core_watch.hpp; only while something is watched.
  void watch_plan() noexcept;
  void watch_head(bool is_preempted) noexcept;
  RequestRecord& root_of(const RowState& r) noexcept { return desk_[desk_[r.slot].root]; }

  // core_flight.hpp; only while the recorder is on.
  [[nodiscard]] Status start_recorder(std::span<const GroupSpec> groups) noexcept;
  void record_request(std::uint32_t slot, bool was_cancelled, TimeNs now) noexcept;
  void record_cancel(std::uint32_t slot, bool is_in_poll, TimeNs now) noexcept;
  void record_plan(const StepPlan* plan) noexcept;
  void record_seal(const StepPlan& plan, std::span<const RankSummary> ranks) noexcept;
  void record_commit(const StepPlan& plan, const StepResult& result, bool is_plain,
                     TimeNs now) noexcept;
  [[nodiscard]] Token hidden_token(const RequestRecord& request, Token token) const noexcept;
  void record_continuations(const PlanRecord& record, const StepResult& result) noexcept;
  void record_tokens(const StepPlan& plan, const StepResult& result) noexcept;
  void record_admitted(std::uint32_t slot, std::int64_t known, std::int64_t hit) noexcept;
  void record_preempted(const RowState& r) noexcept;
  void record_undone(const RowState& r, bool is_charged, bool is_reader) noexcept;
  void record_pin(const Prompt& prompt, const CacheScope& scope, std::int64_t tokens, TimeNs until,
                  std::span<const MediaSpan> media, bool is_pinned) noexcept;
  void record_media(std::span<const MediaSpan> media) noexcept;
  void record_ended(const RequestRecord& root) noexcept;
  void note_wait(std::uint32_t slot, WaitCause cause) noexcept;
  void note_head(bool is_preempted) noexcept;
  [[nodiscard]] std::uint64_t flight_digest(const StepPlan& plan) const noexcept {
    return config_.flight_log_prompts ? plan_digest(plan) : decision_digest(plan);
  }

  /// In lock-step a rank without work always has a dummy plan in flight.
  [[nodiscard]] bool has_chunks_in_flight() noexcept {
    bool found = false;
    for (std::int32_t i = 0; i < num_in_flight_; ++i) {
      found = found || in_flight_plan(i).num_chunks > 0;
    }
    return found;
  }
  PlanRecord& in_flight_plan(std::int32_t i) noexcept {
    return plans_[static_cast<std::size_t>((oldest_ + i) % config_.max_plans_in_flight)];
  }

  SchedulerConfig config_;
  Capabilities caps_;
  Policies policies_;
  RequestDesk desk_;

  // Fixed at initialise().
  std::int64_t kv_limit_ = 0;      // positions a sequence can hold
  std::int32_t block_size_ = 0;    // 0 = the pool has no blocks
  std::int32_t block_shift_ = -1;  // log2(block_size_) where it is a power of two
  GroupSpec group_{};
  std::size_t num_groups_ = 0;
  bool has_states_ = false;  // a group is recurrent
  bool shares_prefixes_ = false;
  std::int32_t late_patience_ = 0;  // steps that late requests let others pass; 0 = none is late
  bool by_sequence_ = false;  // the host addresses KV by sequence: row operations, no block tables
  FixedVector<std::int32_t> graph_sizes_;  // ascending

  // Requests.
  WaitingQueue waiting_;
  SlotHeap deadlines_;
  FixedVector<std::uint32_t> sequence_slots_;  // free sequence slots
  Buffer<std::uint32_t> sequence_generations_;
  FixedVector<std::uint32_t> dirty_;  // ring of slots with events
  std::size_t dirty_head_ = 0;
  std::size_t dirty_count_ = 0;
  std::size_t dirty_mask_ = 0;
  FixedVector<std::uint32_t> delivered_;  // terminal event handed out, slot not yet free
  std::uint64_t next_order_ = 1;
  std::int64_t waiting_tokens_ = 0;
  std::int64_t resource_use_[kMaxResources]{};
  // Requests that wait for their quota, a list for each group; they stand in no heap.
  Buffer<SlotList> parked_;
  std::size_t num_parked_ = 0;
  // Requests that wait for the pool's external store, a list for each load; in no heap either.
  Buffer<SlotList> loading_;
  std::size_t num_loading_ = 0;
  // Who was last found to outrank nobody, and how many had been admitted by then.
  std::uint64_t num_admitted_ = 0;
  std::uint64_t outranks_nobody_since_ = 0;
  std::uint64_t outranks_nobody_ = 0;  // its drain order: slots are used again

  // Rows.
  Buffer<RowState> rows_;
  FixedVector<std::int32_t> free_rows_;
  RowList decoding_;
  RowList prefilling_;
  std::int32_t oldest_row_ = -1;
  std::int32_t newest_row_ = -1;
  std::int32_t num_running_ = 0;
  std::int32_t num_draining_ = 0;
  std::int32_t reserved_rows_ = 0;  // kept for samples that will fork off
  std::int32_t num_tpot_ = 0;
  std::int64_t decoding_kv_ = 0;  // sum of planned over decoding rows
  std::int64_t running_outputs_ = 0;
  std::int64_t settled_outputs_ = 0;  // of the commit under way, not in the sums yet
  std::int64_t held_blocks_ = 0;
  std::int32_t batch_rows_ = 0;  // rows of the padded batch under way
  std::int32_t batch_context_ = 0;
  bool prefill_skipped_ = false;  // the budget left no token for a started prefill
  std::int32_t late_passed_ = 0;  // steps in a row in which late requests got no prompt token

  Buffer<ToldTable> told_[kMaxGroups - 1];  // of the groups beside the first, by row

  // Plans.
  std::unique_ptr<PlanRecord[]> plans_;
  std::int32_t oldest_ = 0;
  std::int32_t num_in_flight_ = 0;
  std::uint64_t next_plan_ = 1;
  TimeNs now_{};
  PlanStatus status_{};
  RequestId first_blocked_{};
  WaitCause first_cause_ = WaitCause::None;
  struct PassedOver {
    HeapKey key;
    std::uint32_t slot;
    bool counts;  // somebody who goes ahead of it counts as a bypass
  };
  /// Candidates that are looked at behind one that does not fit.
  static constexpr std::size_t kLookahead = 16;
  /// A request that does not fit is matched against the prefix cache again after so many plans.
  static constexpr std::uint64_t kRetryPlans = 64;
  FixedVector<PassedOver> passed_over_;
  FixedVector<FinishedOutput> finished_outputs_;  // of the commit under way
  FixedVector<ForkCopy> fork_copies_;             // of forks since the last plan
  Buffer<Token> drafts_;                          // [max_sequences, max_draft_tokens]
  FixedVector<std::int32_t> candidates_;  // rows that might give way, from the last admitted on
  std::atomic<int> pause_{0};
  int pause_seen_ = 0;  // what the plan() under way has read, once
  bool closed_seen_ = false;

  Watch watch_;

  // Flight recorder.
  FlightRecorder flight_;
  FixedVector<FlightWait> flight_waits_;  // of the plan under construction
  BatchLimits flight_limits_{};           // that its sizer gave; max_tokens 0 = not asked
  std::uint64_t flight_mark_ = 0;         // records at the end of the last one of a plan()
  FlightPlan flight_last_{};              // of a call without a plan: repetitions are left out
  std::uint64_t flight_cost_ = 0;         // version of the step cost that is in the log

  struct Counters {
    Counter finished, cancelled, expired, failed, waiting, running, plans, in_flight, preemptions,
        prefill_tokens, recomputed_tokens, decode_tokens, output_tokens, prefix_hit, prefix_query,
        draft_tokens, accepted_drafts;
  } counters_;
};

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI
