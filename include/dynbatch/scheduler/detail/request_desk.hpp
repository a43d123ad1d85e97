// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Takes requests in from any thread and hands events out to the driving thread.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/model/block_media.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/scheduler/config.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>
#include <dynbatch/scheduler/detail/queue_gate.hpp>
#include <dynbatch/scheduler/detail/records.hpp>
#include <dynbatch/scheduler/detail/token_store.hpp>
#include <dynbatch/scheduler/detail/watch.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {
namespace detail {

/// What submit() checks a request against; fixed at make().
struct IntakeLimits {
  std::int64_t kv_limit = 0;      ///< Positions that one sequence can ever hold in KV.
  std::int64_t atomic_limit = 0;  ///< Prompt tokens that can ever run in one chunk.
  std::int32_t block_size = 1;
  std::int32_t max_samples = 1;   ///< Sequences that can ever run together.
  std::int64_t max_beams = 1;     ///< Decodes that fit into one step.
  std::int64_t total_blocks = 0;  ///< Of the pool; 0 = it has no blocks.
  bool all_atomic = false;        ///< The admission policy never splits a prompt.
  std::int64_t resource_caps[kMaxResources]{};
};

/// Request records, their tokens and ids. Members say which thread may call them.
class RequestDesk {
 public:
  Status allocate(const SchedulerConfig& config, const IntakeLimits& limits) noexcept;

  /// Whether a request comes from the host or out of a flight log.
  enum class Kind : std::uint8_t { New, Replayed };

  // Any thread.
  Status submit(const Request& request, Kind kind = Kind::New) noexcept;
  Status cancel(RequestId id) noexcept;
  // Sequentially consistent, like the count in submit(): who sees the scheduler closed sees every
  // submission that did not.
  void close() noexcept { closed_.store(true); }
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(); }
  [[nodiscard]] std::uint64_t submitted() const noexcept { return submitted_.load(); }
  [[nodiscard]] std::uint64_t rejected() const noexcept {
    return rejected_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t queued_tokens() const noexcept {
    return queued_tokens_.load(std::memory_order_relaxed);
  }

  /// At make(): room for the keys of blocks of so many tokens, which `name` computes for each
  /// prompt in submit(), by the thread that calls it.
  using NameBlocks = void (*)(const void* pool, const SequenceContentView& content) noexcept;
  Status allocate_keys(std::int64_t block_tokens, NameBlocks name, const void* pool) noexcept {
    name_ = name;
    pool_ = pool;
    return tokens_.allocate_keys(block_tokens);
  }
  /// At make(): counts what submit() refuses there.
  void count_refusals(Watch* watch) noexcept { watch_ = watch; }
  /// The first `known` positions of a request's content.
  [[nodiscard]] SequenceContentView content(std::uint32_t slot, std::int64_t known) const noexcept {
    const RequestRecord& record = records_[slot];
    SequenceContentView view;
    view.scope = &record.scope;
    view.storage = tokens_.storage();
    view.pages = tokens_.table(slot);
    view.page_tokens = tokens_.page_tokens();
    view.token_base = record.token_base;
    view.prompt_length = record.prompt_length;
    view.known_length = known;
    view.cacheable_length = record.cacheable;
    view.digest_unit = record.digest_unit;
    view.media = media(slot);
    view.version = record.content_version;
    view.keys = tokens_.keys();
    view.num_keys = &record.num_keys;
    return view;
  }

  // Driving thread.
  void set_now(TimeNs now) noexcept { now_.store(now.ns, std::memory_order_relaxed); }
  RequestRecord& operator[](std::uint32_t slot) noexcept { return records_[slot]; }
  const RequestRecord& operator[](std::uint32_t slot) const noexcept { return records_[slot]; }
  [[nodiscard]] static Status admissible_media(std::span<const MediaSpan> media,
                                               std::int64_t length) noexcept;
  /// The media items of a request, of which `slot` is a sample.
  [[nodiscard]] std::span<const MediaSpan> media(std::uint32_t slot) const noexcept {
    const RequestRecord& record = records_[slot];
    return {media_.data() + record.root * max_media_, static_cast<std::size_t>(record.num_media)};
  }
  /// What is known of the content so far will be something else.
  void renew_content(RequestRecord& record) noexcept {
    record.content_version = last_version_.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  TokenStore& tokens() noexcept { return tokens_; }
  [[nodiscard]] const TokenStore& tokens() const noexcept { return tokens_; }
  template <class F>
  void drain_submitted(F&& f) noexcept {
    inbox_.drain(f);
  }
  template <class F>
  void drain_cancelled(F&& f) noexcept {
    cancelled_.drain(f);
  }
  /// The slot came out of the inbox: its record is the driving thread's now. True if it is
  /// cancelled already.
  bool take_over(std::uint32_t slot) noexcept {
    marks_[slot] |= kTaken;
    return (marks_[slot] & kCancelSeen) != 0U;
  }
  /// The slot came out of the cancel inbox. False if its record has not come out of the other inbox
  /// yet.
  bool see_cancel(std::uint32_t slot) noexcept {
    marks_[slot] |= kCancelSeen;
    return (marks_[slot] & kTaken) != 0U;
  }
  /// The prompt counts as queued until the request is first admitted or ends.
  void leave_queue(std::uint32_t slot) noexcept {
    queued_tokens_.fetch_sub(static_cast<std::uint64_t>(records_[slot].prompt_length),
                             std::memory_order_relaxed);
    gate_.leave();
  }
  QueueGate& gate() noexcept { return gate_; }
  /// Its terminal event was delivered: the id is free, the slot will be after retire().
  void forget_id(std::uint32_t slot) noexcept { ids_.erase(slot); }
  /// Frees the slots of a request and its pages; false if a cancel() is on its way into the inbox:
  /// try again later.
  bool retire(std::uint32_t slot) noexcept;

 private:
  [[nodiscard]] Status admissible(const Request& request, Kind kind,
                                  std::int64_t& prompt_length) const noexcept;
  [[nodiscard]] Status admissible_beams(const Request& request,
                                        std::int64_t prompt_length) const noexcept;
  void fill(std::uint32_t slot, const Request& request, std::int64_t prompt_length,
            std::int64_t promised) noexcept;
  void fill_media(RequestRecord& record, std::uint32_t slot,
                  std::span<const MediaSpan> media) noexcept;
  void fill_sample(std::uint32_t slot, std::uint32_t root, std::int64_t shared,
                   std::int64_t promised) noexcept;
  Status reject(const Request& request, Status status) noexcept {
    rejected_.fetch_add(1, std::memory_order_relaxed);
    if (watch_ != nullptr) {
      watch_->refuse(request.request_class, request.tenant);
    }
    if (status.code == Errc::QueueFull) {
      status.retry_after = gate_.retry_after();
    }
    return status;
  }
  [[nodiscard]] std::int64_t outputs_limit(const Request& r,
                                           std::int64_t prompt_length) const noexcept {
    return r.max_new_tokens == kOpenEnded ? limits_.kv_limit + 1 - prompt_length : r.max_new_tokens;
  }
  [[nodiscard]] static std::int64_t num_digests(const Prompt& prompt) noexcept {
    return min_of(static_cast<std::int64_t>(prompt.digests.size()),
                  prompt.length / prompt.digest_unit);
  }
  [[nodiscard]] std::int64_t prompt_pages(const Request& r,
                                          std::int64_t prompt_length) const noexcept {
    constexpr std::int64_t kTokensPerDigest = sizeof(ContentDigest) / sizeof(Token);
    return r.prompt.kind == PromptKind::Tokens
               ? ceil_div(prompt_length, tokens_.page_tokens())
               : ceil_div(num_digests(r.prompt) * kTokensPerDigest, tokens_.page_tokens());
  }

  static constexpr std::uint8_t kTaken = 1;
  static constexpr std::uint8_t kCancelSeen = 2;

  IntakeLimits limits_{};
  NameBlocks name_ = nullptr;
  const void* pool_ = nullptr;
  Buffer<RequestRecord> records_;
  Buffer<MediaSpan> media_;     // [slots, max_media_], by first sample
  Buffer<std::uint8_t> marks_;  // driving thread only
  TokenStore tokens_;
  IndexStack free_slots_;
  IdTable ids_;
  QueueGate gate_;
  Watch* watch_ = nullptr;
  SlotInbox inbox_;
  SlotInbox cancelled_;
  std::size_t max_media_ = 0;
  AtomicArray<std::uint64_t> cancel_words_;  // generation << 1 | cancelled
  std::atomic<std::uint64_t> last_version_{0};
  std::atomic<bool> closed_{false};
  std::atomic<std::int64_t> now_{0};
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> rejected_{0};
  std::atomic<std::uint64_t> queued_tokens_{0};
};

inline Status RequestDesk::allocate(const SchedulerConfig& config,
                                    const IntakeLimits& limits) noexcept {
  limits_ = limits;
  const auto slots = static_cast<std::size_t>(config.max_live_requests);
  // A page is a multiple of the block size and of a digest, near 256 tokens.
  const std::int64_t unit =
      limits.block_size % 4 == 0 ? limits.block_size : std::int64_t{4} * limits.block_size;
  const std::int64_t page_tokens = ceil_div(256, unit) * unit;
  // A digest takes the place of four tokens, which is more than it stands for in small blocks.
  const std::int64_t slot_tokens =
      max_of(limits.kv_limit + 1, ceil_div(limits.kv_limit, limits.block_size) * 4);
  const std::int64_t pages_per_slot = ceil_div(slot_tokens, page_tokens) + 2;
  const std::int64_t tokens =
      config.max_queued_tokens > 0
          ? config.max_queued_tokens
          : config.max_live_requests * min_of<std::int64_t>(limits.kv_limit + 1, 16384);
  // Rounding up to pages costs a request at most two pages beyond its tokens.
  const std::int64_t pages = ceil_div(tokens, page_tokens) + 2 * config.max_live_requests;
  if (pages > std::int64_t{0xFFFFFFFE}) {
    return {Errc::InvalidConfig, "max_queued_tokens", tokens, 0, "too many token pages"};
  }
  max_media_ = static_cast<std::size_t>(config.max_media_spans);
  gate_.configure(config);
  for (const Status& s :
       {records_.allocate(slots, "max_live_requests"),
        media_.allocate(slots * max_media_, "max_media_spans"),
        marks_.allocate(slots, "max_live_requests"),
        tokens_.allocate(slots, pages, pages_per_slot, static_cast<std::int32_t>(page_tokens)),
        free_slots_.allocate(slots, "max_live_requests"), ids_.allocate(slots, "max_live_requests"),
        inbox_.allocate(slots, "max_live_requests"),
        cancelled_.allocate(slots, "max_live_requests"),
        cancel_words_.allocate(slots, "max_live_requests")}) {
    if (!s) {
      return s;
    }
  }
  return kOk;
}

inline Status RequestDesk::submit(const Request& request, Kind kind) noexcept {
  submitted_.fetch_add(1);
  if (is_closed() && kind == Kind::New) {
    return reject(request, {Errc::Closed, "", 0, 0, "the scheduler was closed"});
  }
  std::int64_t prompt_length = 0;
  if (const Status s = admissible(request, kind, prompt_length); !s) {
    return reject(request, s);
  }
  const std::int64_t outputs = outputs_limit(request, prompt_length);
  const std::int64_t prompt_pages = this->prompt_pages(request, prompt_length);
  const std::int64_t page_tokens = tokens_.page_tokens();
  const bool is_tokens = request.prompt.kind == PromptKind::Tokens;
  // Token prompts: outputs go on in the prompt's last page. Further samples share its whole pages.
  const std::int64_t promised = is_tokens ? ceil_div(prompt_length + outputs, page_tokens)
                                          : prompt_pages + ceil_div(outputs, page_tokens);
  const std::int64_t shared = is_tokens ? prompt_length / page_tokens : prompt_pages;
  const std::int64_t all = promised + (request.num_samples - 1) * (promised - shared);
  if (all > tokens_.total_pages()) {
    return reject(
        request,
        {Errc::CanNeverFit, "max_queued_tokens", prompt_length + request.num_samples * outputs,
         tokens_.total_pages() * page_tokens, "more tokens than may be queued in all"});
  }
  if (kind == Kind::Replayed) {
    gate_.enter_anyway();
  } else if (const Status s = gate_.enter(); !s) {
    return reject(request, s);
  }
  if (!tokens_.promise(all)) {
    gate_.give_back();
    return reject(request, {Errc::QueueFull, "max_queued_tokens",
                            prompt_length + request.num_samples * outputs,
                            tokens_.total_pages() * page_tokens, "too many tokens are queued"});
  }
  std::uint32_t slots[kMaxSamples]{};
  std::int32_t taken = 0;
  while (taken < request.num_samples && (slots[taken] = free_slots_.pop()) != kNil) {
    ++taken;
  }
  const bool has_slots = taken == request.num_samples;
  if (!has_slots || !ids_.insert(request.id.value, slots[0])) {
    for (std::int32_t i = 0; i < taken; ++i) {
      free_slots_.push(slots[i]);
    }
    tokens_.unpromise(all);
    gate_.give_back();
    return reject(request, has_slots ? Status{Errc::Duplicate, "id",
                                              static_cast<std::int64_t>(request.id.value), 0,
                                              "this id is alive"}
                                     : Status{Errc::QueueFull, "max_live_requests",
                                              static_cast<std::int64_t>(records_.size()) + 1,
                                              static_cast<std::int64_t>(records_.size()),
                                              "too many requests are live"});
  }
  tokens_.add_pages(slots[0], 0, prompt_pages);
  fill(slots[0], request, prompt_length, promised);
  for (std::int32_t i = 1; i < taken; ++i) {
    fill_sample(slots[i], slots[0], shared, promised - shared);
    records_[slots[i]].sample = i;
    records_[slots[i - 1]].next_sample = slots[i];
  }
  queued_tokens_.fetch_add(static_cast<std::uint64_t>(prompt_length), std::memory_order_relaxed);
  inbox_.push(slots[0]);
  return kOk;
}

/// A further sample: a copy of the first one that shares its whole prompt pages.
inline void RequestDesk::fill_sample(std::uint32_t slot, std::uint32_t root, std::int64_t shared,
                                     std::int64_t promised) noexcept {
  RequestRecord& record = records_[slot];
  record = records_[root];
  record.root = root;
  renew_content(record);
  record.next_sample = kNil;
  record.shared_pages = shared;
  record.promised_pages = promised;
  // Keys lie in the pages: those of the last one are not shared.
  record.num_keys = static_cast<std::int32_t>(
      min_of<std::int64_t>(record.num_keys, shared * tokens_.page_tokens() / limits_.block_size));
  std::uint32_t* table = tokens_.table(slot);
  const std::uint32_t* source = tokens_.table(root);
  for (std::int64_t i = 0; i < shared; ++i) {
    table[i] = source[i];
  }
  if (record.pages > shared) {  // the page in which the prompt ends and outputs begin
    tokens_.add_pages(slot, shared, shared + 1);
    const std::int64_t page_tokens = tokens_.page_tokens();
    std::memcpy(tokens_.at(slot, shared * page_tokens), tokens_.at(root, shared * page_tokens),
                static_cast<std::size_t>(record.prompt_length % page_tokens) * sizeof(Token));
  }
}

inline void RequestDesk::fill(std::uint32_t slot, const Request& r, std::int64_t prompt_length,
                              std::int64_t promised) noexcept {
  RequestRecord& record = records_[slot];
  record = RequestRecord{};
  record.root = slot;
  renew_content(record);
  record.num_samples = r.num_samples;
  record.open_samples = r.num_samples;
  record.unreported = r.num_samples;
  record.id = r.id;
  record.user_data = r.user_data;
  record.tenant = r.tenant;
  record.scope = r.scope;
  record.slo = r.slo;
  record.arrival = r.arrival;
  record.start_by = r.start_by;
  record.finish_by = r.finish_by;
  record.prompt_length = prompt_length;
  record.max_new = outputs_limit(r, prompt_length);
  record.min_new = r.min_new_tokens;
  record.open_ended = r.max_new_tokens == kOpenEnded;
  record.priority = r.priority;
  record.request_class = r.request_class;
  record.no_prefix_read = r.no_prefix_read;
  record.sync_decode = r.sync_decode;
  record.atomic_prefill = r.atomic_prefill || limits_.all_atomic;
  record.is_beam = r.beam_search && r.num_samples > 1;
  record.promised_pages = promised;
  for (const Token token : r.stop_tokens) {
    record.stop_tokens[record.num_stop++] = token;
  }
  for (const ResourceNeed& need : r.resources) {
    std::uint8_t i = 0;
    while (i < record.num_needs && record.needs[i].resource != need.resource) {
      ++i;
    }
    if (i == record.num_needs) {
      record.needs[record.num_needs++] = need;
    } else {
      record.needs[i].amount += need.amount;
    }
  }
  const std::int64_t page_tokens = tokens_.page_tokens();
  record.pages = prompt_pages(r, prompt_length);
  if (r.prompt.kind == PromptKind::Tokens) {
    record.cacheable = prompt_length + record.max_new;
    for (std::int64_t p = 0; p < prompt_length; p += page_tokens) {
      const std::int64_t n = min_of(page_tokens, prompt_length - p);
      std::memcpy(tokens_.at(slot, p), r.prompt.tokens.data() + p,
                  static_cast<std::size_t>(n) * sizeof(Token));
    }
  } else {
    constexpr std::int64_t kTokensPerDigest = sizeof(ContentDigest) / sizeof(Token);
    const std::int64_t count = num_digests(r.prompt);
    record.digest_unit = r.prompt.digest_unit;
    record.cacheable = count * r.prompt.digest_unit;
    record.token_base = record.pages * page_tokens - prompt_length;
    const std::int64_t per_page = page_tokens / kTokensPerDigest;
    for (std::int64_t i = 0; i < count; i += per_page) {
      const std::int64_t n = min_of(per_page, count - i);
      std::memcpy(tokens_.at(slot, i * kTokensPerDigest), r.prompt.digests.data() + i,
                  static_cast<std::size_t>(n) * sizeof(ContentDigest));
    }
  }
  fill_media(record, slot, r.media);
  if (name_ != nullptr) {
    name_(pool_, content(slot, prompt_length));
  }
}

inline Status RequestDesk::cancel(RequestId id) noexcept {
  const Status not_found{Errc::NotFound, "id", static_cast<std::int64_t>(id.value), 0,
                         "no live request has this id"};
  for (;;) {
    const std::uint32_t slot = ids_.find(id.value);
    if (slot == kNil) {
      return not_found;
    }
    std::uint64_t word = cancel_words_[slot].load(std::memory_order_acquire);
    if (ids_.find(id.value) != slot) {
      continue;  // the slot was recycled between the two reads
    }
    if ((word & 1U) != 0U) {
      return kOk;  // already cancelled: nothing more to do
    }
    if (cancel_words_[slot].compare_exchange_strong(word, word | 1U, std::memory_order_acq_rel,
                                                    std::memory_order_acquire)) {
      cancelled_.push(slot);
      return kOk;
    }
  }
}

inline bool RequestDesk::retire(std::uint32_t slot) noexcept {
  // A new generation: a cancel() that still holds the old word fails its exchange. One that has set
  // its mark but not pushed the slot yet would meet a second push of the same slot, so wait for it.
  std::uint64_t word = cancel_words_[slot].load(std::memory_order_relaxed);
  if ((word & 1U) == 0U &&
      !cancel_words_[slot].compare_exchange_strong(word, word + 2U, std::memory_order_acq_rel)) {
    return false;
  }
  if ((word & 1U) != 0U) {
    if ((marks_[slot] & kCancelSeen) == 0U) {
      return false;
    }
    cancel_words_[slot].store(word + 1U, std::memory_order_release);
  }
  marks_[slot] = 0;
  for (std::uint32_t at = slot; at != kNil;) {
    RequestRecord& record = records_[at];
    const std::uint32_t next = record.next_sample;
    tokens_.release(at, record.shared_pages, record.pages, record.promised_pages);
    record.state = RequestState::Free;
    free_slots_.push(at);
    at = next;
  }
  return true;
}

}  // namespace detail
}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/scheduler/detail/request_check.hpp>
