// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Admission: the order of waiting requests, what is reserved for them, how steps are composed, and
/// who gives way when blocks run out.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/stats.hpp>

#include <compare>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// A request as admission sees it, when it enters the queue (again).
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
  std::int32_t num_preemptions = 0;
  RequestClass request_class = RequestClass::Interactive;
};

/// Position in the queue: smaller first; ties go to the earlier submission. Fixed while stored.
struct AdmissionKey {
  std::int64_t primary = 0;
  std::int64_t secondary = 0;
  friend constexpr auto operator<=>(const AdmissionKey&, const AdmissionKey&) noexcept = default;
};

/// What need() is asked about.
struct NeedInput {
  std::int64_t known_tokens = 0;      ///< Prompt plus outputs so far: all must be in KV to go on.
  std::int64_t max_total_tokens = 0;  ///< Known tokens plus what it may still produce.
  std::int64_t cached_tokens = 0;     ///< Leading tokens found in the prefix cache.
  std::int32_t num_running = 0;
  PoolStats pool{};
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

/// Laws: docs/policies/admission.md.
template <class P>
concept Admission =
    std::movable<P> && detail::HasConfig<P> &&
    requires(P& p, const P& cp, const AdmissionRequest& request, const NeedInput& need,
             const ComposeInput& compose, const ChunkInput& chunk, const VictimList& victims) {
      { p.key(request) } noexcept -> std::same_as<AdmissionKey>;
      { cp.need(need) } noexcept -> std::same_as<Reservation>;
      { cp.compose(compose) } noexcept -> std::same_as<Composition>;
      { cp.chunk(chunk) } noexcept -> std::same_as<std::int64_t>;
      { cp.victim(victims) } noexcept -> std::same_as<std::int32_t>;
      { cp.max_bypass() } noexcept -> std::same_as<std::int32_t>;
      { cp.splits_prompts() } noexcept -> std::same_as<bool>;
    };

/// One readable message for each missing requirement; called by the Scheduler.
template <class P>
consteval bool check_admission() {
  static_assert(std::movable<P>,
                "dynbatch: an Admission needs to be movable. See docs/policies/admission.md");
  static_assert(
      detail::HasConfig<P>,
      "dynbatch: an Admission needs 'struct Config { Status validate() const noexcept; }'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(P& p, const AdmissionRequest& r) {
        { p.key(r) } noexcept -> std::same_as<AdmissionKey>;
      },
      "dynbatch: an Admission needs 'AdmissionKey key(const AdmissionRequest&) noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p, const NeedInput& in) {
        { p.need(in) } noexcept -> std::same_as<Reservation>;
      },
      "dynbatch: an Admission needs 'Reservation need(const NeedInput&) const noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p, const ComposeInput& in) {
        { p.compose(in) } noexcept -> std::same_as<Composition>;
      },
      "dynbatch: an Admission needs 'Composition compose(const ComposeInput&) const noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p, const ChunkInput& in) {
        { p.chunk(in) } noexcept -> std::same_as<std::int64_t>;
      },
      "dynbatch: an Admission needs 'std::int64_t chunk(const ChunkInput&) const noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p, const VictimList& in) {
        { p.victim(in) } noexcept -> std::same_as<std::int32_t>;
      },
      "dynbatch: an Admission needs 'std::int32_t victim(const VictimList&) const noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p) {
        { p.max_bypass() } noexcept -> std::same_as<std::int32_t>;
      },
      "dynbatch: an Admission needs 'std::int32_t max_bypass() const noexcept'. "
      "See docs/policies/admission.md");
  static_assert(
      requires(const P& p) {
        { p.splits_prompts() } noexcept -> std::same_as<bool>;
      },
      "dynbatch: an Admission needs 'bool splits_prompts() const noexcept'. "
      "See docs/policies/admission.md");
  return true;
}

/// A view of any Admission for run-time choice; the caller keeps the model alive.
class AnyAdmission {
 public:
  using Config = EmptyConfig;

  template <class P>
    requires(!std::same_as<std::remove_const_t<P>, AnyAdmission> && Admission<P>)
  explicit AnyAdmission(P& model) noexcept : self_(&model), table_(&kTable<P>) {}

  [[nodiscard]] AdmissionKey key(const AdmissionRequest& r) noexcept {
    return table_->key(self_, r);
  }
  [[nodiscard]] Reservation need(const NeedInput& in) const noexcept {
    return table_->need(self_, in);
  }
  [[nodiscard]] Composition compose(const ComposeInput& in) const noexcept {
    return table_->compose(self_, in);
  }
  [[nodiscard]] std::int64_t chunk(const ChunkInput& in) const noexcept {
    return table_->chunk(self_, in);
  }
  [[nodiscard]] std::int32_t victim(const VictimList& in) const noexcept {
    return table_->victim(self_, in);
  }
  [[nodiscard]] std::int32_t max_bypass() const noexcept { return table_->max_bypass(self_); }
  [[nodiscard]] bool splits_prompts() const noexcept { return table_->splits_prompts(self_); }

 private:
  struct Table {
    AdmissionKey (*key)(void*, const AdmissionRequest&) noexcept;
    Reservation (*need)(const void*, const NeedInput&) noexcept;
    Composition (*compose)(const void*, const ComposeInput&) noexcept;
    std::int64_t (*chunk)(const void*, const ChunkInput&) noexcept;
    std::int32_t (*victim)(const void*, const VictimList&) noexcept;
    std::int32_t (*max_bypass)(const void*) noexcept;
    bool (*splits_prompts)(const void*) noexcept;
  };
  template <class P>
  static constexpr Table kTable{
      [](void* p, const AdmissionRequest& r) noexcept { return static_cast<P*>(p)->key(r); },
      [](const void* p, const NeedInput& in) noexcept {
        return static_cast<const P*>(p)->need(in);
      },
      [](const void* p, const ComposeInput& in) noexcept {
        return static_cast<const P*>(p)->compose(in);
      },
      [](const void* p, const ChunkInput& in) noexcept {
        return static_cast<const P*>(p)->chunk(in);
      },
      [](const void* p, const VictimList& in) noexcept {
        return static_cast<const P*>(p)->victim(in);
      },
      [](const void* p) noexcept { return static_cast<const P*>(p)->max_bypass(); },
      [](const void* p) noexcept { return static_cast<const P*>(p)->splits_prompts(); }};

  void* self_;
  const Table* table_;
};

static_assert(Admission<AnyAdmission>);

}  // namespace dynbatch::inline DYNBATCH_ABI
