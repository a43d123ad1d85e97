// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Admission: the order of waiting requests, what is reserved for them, how steps are composed, and
/// who gives way when blocks run out.
#include <dynbatch/base/config.hpp>
#include <dynbatch/concepts/admission_types.hpp>
#include <dynbatch/concepts/ladder.hpp>

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

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

/// Requests with the same number share a quota; see OptionalAdmission::quota_group().
inline constexpr std::int32_t kMaxQuotaGroups = 256;

/// The optional members of an Admission, with what holds where a model lacks one. All noexcept, all
/// from the driving thread; costs count towards the step that asks.
template <class P>
struct OptionalAdmission {
  static constexpr bool kHasCachedTokens = requires(const P& p) {
    { p.wants_cached_tokens() } noexcept -> std::same_as<bool>;
  };
  static constexpr bool kHasMayAdmit = requires(const P& p, const AdmissionRequest& r) {
    { p.may_admit(r) } noexcept -> std::same_as<bool>;
  };
  static constexpr bool kHasQuotaGroup = requires(const P& p, const AdmissionRequest& r) {
    { p.quota_group(r) } noexcept -> std::same_as<std::int32_t>;
  };
  static constexpr bool kHasCanEverAdmit = requires(const P& p, const AdmissionRequest& r) {
    { p.can_ever_admit(r) } noexcept -> std::same_as<bool>;
  };
  static constexpr bool kHasOnAdmit = requires(P& p, const AdmissionRequest& r) {
    { p.on_admit(r) } noexcept -> std::same_as<void>;
  };
  static constexpr bool kHasOnLeave = requires(P& p, const AdmissionRequest& r) {
    { p.on_leave(r) } noexcept -> std::same_as<void>;
  };
  static constexpr bool kHasOnEnd = requires(P& p, const AdmissionRequest& r) {
    { p.on_end(r) } noexcept -> std::same_as<void>;
  };
  static constexpr bool kHasOnStep = requires(P& p, const ComposeInput& in) {
    { p.on_step(in) } noexcept -> std::same_as<void>;
  };
  static constexpr bool kHasLatePatience = requires(const P& p) {
    { p.late_patience() } noexcept -> std::same_as<std::int32_t>;
  };
  static constexpr bool kHasDisplaces = requires(const P& p, const AdmissionRequest& r) {
    { p.displaces(r, r) } noexcept -> std::same_as<bool>;
  };

  /// Whether key() reads `cached_tokens`: costs a look-up of O(prompt) at each submission.
  [[nodiscard]] static bool wants_cached_tokens(const P& p) noexcept {
    if constexpr (kHasCachedTokens) {
      return p.wants_cached_tokens();
    } else {
      return false;
    }
  }
  /// Whether a waiting request may start now as far as quotas go. If not, it is asked again after
  /// one of its quota group has stopped running; others go ahead of it meanwhile, uncounted.
  [[nodiscard]] static bool may_admit(const P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasMayAdmit) {
      return p.may_admit(r);
    } else {
      return true;
    }
  }
  /// 0 to kMaxQuotaGroups - 1, the same while the request is alive. Inside a group requests start
  /// in queue order.
  [[nodiscard]] static std::int32_t quota_group(const P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasQuotaGroup) {
      return p.quota_group(r);
    } else {
      return 0;
    }
  }
  /// Whether may_admit() can ever become true. Otherwise the request fails at once.
  [[nodiscard]] static bool can_ever_admit(const P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasCanEverAdmit) {
      return p.can_ever_admit(r);
    } else {
      return true;
    }
  }
  /// The request starts to run, for the first time or again.
  static void on_admit(P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasOnAdmit) {
      p.on_admit(r);
    }
  }
  /// The request stops running: it ended, or was preempted and comes back.
  static void on_leave(P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasOnLeave) {
      p.on_leave(r);
    }
  }
  /// The request is over, whatever became of it. Once for each request that key() was called for,
  /// after on_leave() if it was running; num_sequences counts all its samples, output_tokens what
  /// they produced together.
  static void on_end(P& p, const AdmissionRequest& r) noexcept {
    if constexpr (kHasOnEnd) {
      p.on_end(r);
    }
  }
  /// A plan is about to be composed: once in each plan(), before compose(), which may be asked
  /// again if all that came out of it is a sequence that left.
  static void on_step(P& p, const ComposeInput& in) noexcept {
    if constexpr (kHasOnStep) {
      p.on_step(in);
    }
  }
  /// Above 0 requests whose first token can't be in time any more (Slo::ttft; predicted from the
  /// sizer's cost) stand behind all others, waiting and started: they get what those leave of a
  /// step, and come first after so many steps in which that was nothing. 0 = order goes by key()
  /// alone. Read once, by make().
  [[nodiscard]] static std::int32_t late_patience(const P& p) noexcept {
    if constexpr (kHasLatePatience) {
      return p.late_patience();
    } else {
      return 0;
    }
  }
  /// Whether the head of the queue may take the place of a running request while all places are
  /// taken. Among those for which it is true victim() chooses.
  [[nodiscard]] static bool displaces(const P& p, const AdmissionRequest& waiting,
                                      const AdmissionRequest& running) noexcept {
    if constexpr (kHasDisplaces) {
      return p.displaces(waiting, running);
    } else {
      return false;
    }
  }
};

// A member of an optional name must have the optional signature, or it would be passed over.
#define DYNBATCH_ADMISSION_OPTION(call, has, text)                                      \
  static_assert(                                                                        \
      OptionalAdmission<P>::has ||                                                      \
          !requires(P& p, const AdmissionRequest& r, const ComposeInput& in) { call; }, \
      "dynbatch: an Admission's optional member must be '" text                         \
      "'. See "                                                                         \
      "docs/policies/admission.md")

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
  DYNBATCH_ADMISSION_OPTION(p.wants_cached_tokens(), kHasCachedTokens,
                            "bool wants_cached_tokens() const noexcept");
  DYNBATCH_ADMISSION_OPTION(p.may_admit(r), kHasMayAdmit,
                            "bool may_admit(const AdmissionRequest&) const noexcept");
  DYNBATCH_ADMISSION_OPTION(p.quota_group(r), kHasQuotaGroup,
                            "std::int32_t quota_group(const AdmissionRequest&) const noexcept");
  DYNBATCH_ADMISSION_OPTION(p.can_ever_admit(r), kHasCanEverAdmit,
                            "bool can_ever_admit(const AdmissionRequest&) const noexcept");
  DYNBATCH_ADMISSION_OPTION(p.on_admit(r), kHasOnAdmit,
                            "void on_admit(const AdmissionRequest&) noexcept");
  DYNBATCH_ADMISSION_OPTION(p.on_leave(r), kHasOnLeave,
                            "void on_leave(const AdmissionRequest&) noexcept");
  DYNBATCH_ADMISSION_OPTION(p.on_end(r), kHasOnEnd,
                            "void on_end(const AdmissionRequest&) noexcept");
  DYNBATCH_ADMISSION_OPTION(p.on_step(in), kHasOnStep,
                            "void on_step(const ComposeInput&) noexcept");
  DYNBATCH_ADMISSION_OPTION(p.late_patience(), kHasLatePatience,
                            "std::int32_t late_patience() const noexcept");
  DYNBATCH_ADMISSION_OPTION(p.displaces(r, r), kHasDisplaces,
                            "bool displaces(const AdmissionRequest& waiting, const "
                            "AdmissionRequest& running) const noexcept");
  return true;
}
#undef DYNBATCH_ADMISSION_OPTION

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

  // The optional members: the model's, or what holds where it lacks one.
  [[nodiscard]] bool wants_cached_tokens() const noexcept {
    return table_->wants_cached_tokens(self_);
  }
  [[nodiscard]] bool may_admit(const AdmissionRequest& r) const noexcept {
    return table_->may_admit(self_, r);
  }
  [[nodiscard]] std::int32_t quota_group(const AdmissionRequest& r) const noexcept {
    return table_->quota_group(self_, r);
  }
  [[nodiscard]] bool can_ever_admit(const AdmissionRequest& r) const noexcept {
    return table_->can_ever_admit(self_, r);
  }
  [[nodiscard]] std::int32_t late_patience() const noexcept { return table_->late_patience(self_); }
  void on_admit(const AdmissionRequest& r) noexcept { table_->on_admit(self_, r); }
  void on_leave(const AdmissionRequest& r) noexcept { table_->on_leave(self_, r); }
  void on_end(const AdmissionRequest& r) noexcept { table_->on_end(self_, r); }
  void on_step(const ComposeInput& in) noexcept { table_->on_step(self_, in); }
  [[nodiscard]] bool displaces(const AdmissionRequest& waiting,
                               const AdmissionRequest& running) const noexcept {
    return table_->displaces(self_, waiting, running);
  }

 private:
  struct Table {
    AdmissionKey (*key)(void*, const AdmissionRequest&) noexcept;
    Reservation (*need)(const void*, const NeedInput&) noexcept;
    Composition (*compose)(const void*, const ComposeInput&) noexcept;
    std::int64_t (*chunk)(const void*, const ChunkInput&) noexcept;
    std::int32_t (*victim)(const void*, const VictimList&) noexcept;
    std::int32_t (*max_bypass)(const void*) noexcept;
    bool (*splits_prompts)(const void*) noexcept;
    bool (*wants_cached_tokens)(const void*) noexcept;
    bool (*may_admit)(const void*, const AdmissionRequest&) noexcept;
    std::int32_t (*quota_group)(const void*, const AdmissionRequest&) noexcept;
    bool (*can_ever_admit)(const void*, const AdmissionRequest&) noexcept;
    std::int32_t (*late_patience)(const void*) noexcept;
    void (*on_admit)(void*, const AdmissionRequest&) noexcept;
    void (*on_leave)(void*, const AdmissionRequest&) noexcept;
    void (*on_end)(void*, const AdmissionRequest&) noexcept;
    void (*on_step)(void*, const ComposeInput&) noexcept;
    bool (*displaces)(const void*, const AdmissionRequest&, const AdmissionRequest&) noexcept;
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
      [](const void* p) noexcept { return static_cast<const P*>(p)->splits_prompts(); },
      [](const void* p) noexcept {
        return OptionalAdmission<P>::wants_cached_tokens(*static_cast<const P*>(p));
      },
      [](const void* p, const AdmissionRequest& r) noexcept {
        return OptionalAdmission<P>::may_admit(*static_cast<const P*>(p), r);
      },
      [](const void* p, const AdmissionRequest& r) noexcept {
        return OptionalAdmission<P>::quota_group(*static_cast<const P*>(p), r);
      },
      [](const void* p, const AdmissionRequest& r) noexcept {
        return OptionalAdmission<P>::can_ever_admit(*static_cast<const P*>(p), r);
      },
      [](const void* p) noexcept {
        return OptionalAdmission<P>::late_patience(*static_cast<const P*>(p));
      },
      [](void* p, const AdmissionRequest& r) noexcept {
        OptionalAdmission<P>::on_admit(*static_cast<P*>(p), r);
      },
      [](void* p, const AdmissionRequest& r) noexcept {
        OptionalAdmission<P>::on_leave(*static_cast<P*>(p), r);
      },
      [](void* p, const AdmissionRequest& r) noexcept {
        OptionalAdmission<P>::on_end(*static_cast<P*>(p), r);
      },
      [](void* p, const ComposeInput& in) noexcept {
        OptionalAdmission<P>::on_step(*static_cast<P*>(p), in);
      },
      [](const void* p, const AdmissionRequest& waiting, const AdmissionRequest& running) noexcept {
        return OptionalAdmission<P>::displaces(*static_cast<const P*>(p), waiting, running);
      }};

  void* self_;
  const Table* table_;
};

static_assert(Admission<AnyAdmission>);

}  // namespace dynbatch::inline DYNBATCH_ABI
