// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/concepts/admission.hpp>
#include <dynbatch/laws/admission.hpp>

#include <catch2/catch.hpp>
#include <cstdint>

using namespace dynbatch;

namespace {

// The archetype: serves the largest id first, splits nothing.
class MinimalAdmission {
 public:
  using Config = EmptyConfig;

  explicit MinimalAdmission(int /*unused*/) noexcept {}
  MinimalAdmission(const MinimalAdmission&) = delete;
  MinimalAdmission& operator=(const MinimalAdmission&) = delete;
  MinimalAdmission(MinimalAdmission&&) noexcept = default;
  MinimalAdmission& operator=(MinimalAdmission&&) noexcept = default;
  ~MinimalAdmission() = default;

  AdmissionKey key(const AdmissionRequest& request) noexcept {
    ++num_keys;
    return {-static_cast<std::int64_t>(request.id.value >> 1U), 0};
  }
  Reservation need(const NeedInput& in) const noexcept { return {in.known_tokens, 0, 0}; }
  Composition compose(const ComposeInput& /*in*/) const noexcept { return {}; }
  std::int64_t chunk(const ChunkInput& in) const noexcept {
    return in.remaining_tokens <= in.budget_tokens ? in.remaining_tokens : 0;
  }
  std::int32_t victim(const VictimList& candidates) const noexcept { return candidates.size() - 1; }
  std::int32_t max_bypass() const noexcept { return 3; }
  bool splits_prompts() const noexcept { return false; }

  int num_keys = 0;
};

static_assert(Admission<MinimalAdmission>);
static_assert(check_admission<MinimalAdmission>());
static_assert(!Admission<int>);

}  // namespace

TEST_CASE("a view of an admission passes every call on to the model", "[concepts]") {
  MinimalAdmission model(0);
  AnyAdmission any(model);
  AdmissionRequest request;
  request.id = {10};
  CHECK(any.key(request) == AdmissionKey{-5, 0});
  CHECK(model.num_keys == 1);
  NeedInput need;
  need.known_tokens = 12;
  CHECK(any.need(need).required_tokens == 12);
  CHECK(any.compose({1, 1, 1}).admit);
  ChunkInput chunk;
  chunk.remaining_tokens = 10;
  chunk.budget_tokens = 10;
  CHECK(any.chunk(chunk) == 10);
  const VictimList victims(
      nullptr, [](const void*, std::int32_t) noexcept { return VictimCandidate{}; }, 4);
  CHECK(any.victim(victims) == 3);
  CHECK(any.max_bypass() == 3);
  CHECK_FALSE(any.splits_prompts());
}

TEST_CASE("a view has the optional members, the model's or what holds without them", "[concepts]") {
  MinimalAdmission plain(0);
  AnyAdmission any(plain);
  AdmissionRequest request;
  CHECK_FALSE(any.wants_cached_tokens());
  CHECK(any.may_admit(request));
  CHECK(any.can_ever_admit(request));
  CHECK(any.quota_group(request) == 0);
  CHECK_FALSE(any.displaces(request, request));
  any.on_admit(request);
  any.on_leave(request);
  any.on_end(request);

  struct Full : MinimalAdmission {
    using MinimalAdmission::MinimalAdmission;
    bool wants_cached_tokens() const noexcept { return true; }
    bool may_admit(const AdmissionRequest& r) const noexcept { return r.priority > 0; }
    bool can_ever_admit(const AdmissionRequest& r) const noexcept { return r.priority > 1; }
    std::int32_t quota_group(const AdmissionRequest& r) const noexcept { return r.priority; }
    bool displaces(const AdmissionRequest& waiting,
                   const AdmissionRequest& running) const noexcept {
      return waiting.priority < running.priority;
    }
    void on_admit(const AdmissionRequest&) noexcept { calls += 1; }
    void on_leave(const AdmissionRequest&) noexcept { calls += 10; }
    void on_end(const AdmissionRequest&) noexcept { calls += 100; }
    int calls = 0;
  };
  static_assert(check_admission<Full>());
  Full full(0);
  AnyAdmission view(full);
  CHECK(view.wants_cached_tokens());
  CHECK_FALSE(view.may_admit(request));
  CHECK_FALSE(view.can_ever_admit(request));
  AdmissionRequest other;
  other.priority = 2;
  CHECK(view.may_admit(other));
  CHECK(view.can_ever_admit(other));
  CHECK(view.quota_group(other) == 2);
  CHECK(view.displaces(request, other));
  CHECK_FALSE(view.displaces(other, request));
  view.on_admit(request);
  view.on_leave(request);
  view.on_end(request);
  CHECK(full.calls == 111);
}

TEST_CASE("keys order by their first part, then by their second", "[concepts]") {
  CHECK(AdmissionKey{1, 5} < AdmissionKey{2, 0});
  CHECK(AdmissionKey{1, 5} < AdmissionKey{1, 6});
  CHECK(AdmissionKey{1, 5} == AdmissionKey{1, 5});
}

TEST_CASE("the admission laws hold for a minimal model, directly and as a view", "[concepts]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 4)));
  MinimalAdmission model(0);
  CHECK(check_admission_laws(model, seed).is_ok());
  AnyAdmission any(model);
  CHECK(check_admission_laws(any, seed).is_ok());
}
