// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What an Admission is asked about, and what it answers.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/running.hpp>
#include <dynbatch/model/stats.hpp>

#include <compare>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Position in the queue: smaller first; ties go to the earlier submission. Fixed while stored.
struct AdmissionKey {
  std::int64_t primary = 0;
  std::int64_t secondary = 0;
  friend constexpr auto operator<=>(const AdmissionKey&, const AdmissionKey&) noexcept = default;
};

/// A request as admission sees it.
struct AdmissionRequest {
  RequestId id{};
  std::uint64_t tenant = 0;
  TimeNs arrival{};
  TimeNs start_by = kNever;
  TimeNs finish_by = kNever;
  Slo slo{};
  std::int64_t prompt_length = 0;
  std::int64_t max_new_tokens = kOpenEnded;
  std::int64_t output_tokens = 0;  ///< Produced before a preemption.
  std::int32_t priority = 0;
  std::int32_t num_sequences = 1;  ///< That run with it: all samples until they go separate ways.
  std::int32_t num_preemptions = 0;
  RequestClass request_class = RequestClass::Interactive;
  /// Leading tokens that the prefix cache held when it was submitted, shared with running requests
  /// or idle. 0 unless the model wants_cached_tokens().
  std::int64_t cached_tokens = 0;
  std::int64_t max_total_tokens = 0;   ///< KV positions it may come to hold, open-ended or not.
  AdmissionKey key{};                  ///< What key() answered; before its first call zero.
  std::int32_t num_displacements = 0;  ///< Preemptions for a better one's place.
  bool was_admitted = false;           ///< It has run before: it comes back.
};

/// What need() is asked about.
struct NeedInput {
  std::int64_t known_tokens = 0;      ///< Prompt plus outputs so far: all must be in KV to go on.
  std::int64_t max_total_tokens = 0;  ///< Known tokens plus what it may still produce.
  std::int64_t cached_tokens = 0;     ///< Leading tokens found in the prefix cache.
  std::int32_t num_running = 0;
  PoolStats pool{};
  std::int32_t num_preemptions = 0;  ///< Of this request so far.
};

/// Blocks, counted on the sequence's whole table (cached ones included).
struct Reservation {
  std::int64_t required_tokens = 0;  ///< Admit only if blocks for this many tokens can be had now,
  std::int64_t headroom_blocks = 0;  ///< with this many left over (ignored while nothing runs).
  std::int64_t held_tokens = 0;      ///< Keep blocks up to this many tokens from other admissions.
};

/// What a step may be made of.
struct Composition {
  bool decode = true;                  ///< Running decodes are planned.
  bool prefill = true;                 ///< Started prefills go on.
  bool admit = true;                   ///< Waiting requests are admitted.
  bool prefill_before_decode = false;  ///< Prefill takes its tokens from the budget first.
  bool stop_decode_if_prefill =
      false;                  ///< A step that holds a prefill holds no decode (prefill-only steps).
  bool pad_to_batch = false;  ///< Rows of finished sequences stay until the batch is empty.
};

struct ComposeInput {
  std::int32_t num_decoding = 0;
  std::int32_t num_prefilling = 0;
  std::int64_t num_waiting = 0;
  TimeNs now{};
  TimeNs first_arrival = kNever;  ///< Of the first waiting request.
  std::uint64_t step = 0;         ///< Number of the plan under construction. Grows with each plan
                                  ///< that is made, not with each call of plan().
  std::int32_t block_size = 0;    ///< Tokens a KV block; 0 = the engine has none.
  RunningList running{};          ///< Valid during the call.
};

/// A started or candidate prefill that asks for its next chunk.
struct ChunkInput {
  std::int64_t remaining_tokens = 0;  ///< Up to the end of what is known.
  std::int64_t budget_tokens = 0;     ///< Left in the step.
  std::int32_t block_size = 1;
  bool is_first_chunk = false;
  bool is_atomic = false;  ///< All or nothing.
};

/// A running sequence that might give way.
struct VictimCandidate {
  AdmissionRequest request{};
  Row row{};
  std::int64_t computed_tokens = 0;
  std::int64_t num_blocks = 0;
};

/// Gives the candidates in reverse order of admission: 0 is the last admitted. A function table
/// over the scheduler's running list, so that a policy that needs only the first pays O(1).
class VictimList {
 public:
  using Getter = VictimCandidate (*)(const void* context, std::int32_t index) noexcept;
  VictimList(const void* context, Getter getter, std::int32_t count) noexcept
      : context_(context), getter_(getter), count_(count) {}
  [[nodiscard]] std::int32_t size() const noexcept { return count_; }
  [[nodiscard]] VictimCandidate operator[](std::int32_t index) const noexcept {
    return getter_(context_, index);
  }

 private:
  const void* context_;
  Getter getter_;
  std::int32_t count_;
};

}  // namespace dynbatch::inline DYNBATCH_ABI
