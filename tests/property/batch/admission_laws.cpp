// SPDX-License-Identifier: Apache-2.0
// Every shipped Admission obeys the laws, directly and through the Any model.
#include <dynbatch/batch/earliest_deadline.hpp>
#include <dynbatch/batch/fair_share.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/new_token_ratio_admission.hpp>
#include <dynbatch/batch/ordered_admission.hpp>
#include <dynbatch/batch/prefix_affinity.hpp>
#include <dynbatch/batch/priority_aging.hpp>
#include <dynbatch/batch/served_ratio_admission.hpp>
#include <dynbatch/batch/shortest_first.hpp>
#include <dynbatch/laws/admission.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

using namespace dynbatch;

namespace {

using Compose = FcfsAdmission::Compose;
using Reserve = FcfsAdmission::Reserve;

std::string text_of(const Status& status) {
  char out[256];
  format_status(status, out, sizeof(out));
  return out;
}

}  // namespace

TEST_CASE("first come first served obeys the laws in every configuration", "[batch]") {
  const auto compose = static_cast<Compose>(GENERATE(range(0, 5)));
  const auto reserve = static_cast<Reserve>(GENERATE(range(0, 4)));
  const bool split = GENERATE(false, true);
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 3)));
  INFO("seed " << seed << " compose " << static_cast<int>(compose) << " reserve "
               << static_cast<int>(reserve) << " split " << split);
  SplitMix64 random(seed);
  FcfsAdmission::Config config;
  config.compose = compose;
  config.reserve = reserve;
  config.split_prompts = split;
  config.reserve_tokens = random.between(1, 10'000);
  config.watermark_permille = static_cast<std::int32_t>(random.between(0, 999));
  config.class_delay = {random.between(0, 1) * random.between(0, 1'000'000'000)};
  config.late_patience = static_cast<std::int32_t>(random.between(0, 9));
  config.max_chunk_tokens = split ? random.between(0, 4096) : 0;
  config.chunk_unit = static_cast<std::int32_t>(random.between(0, 128));
  FcfsAdmission admission(config);
  Status status = check_admission_laws(admission, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
  AnyAdmission any(admission);
  status = check_admission_laws(any, seed + 1);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

namespace {

template <class Model>
void check_model(const char* name, Model model, std::uint64_t seed) {
  INFO(name << ", seed " << seed);
  Status status = check_admission_laws(model, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
  AnyAdmission any(model);
  status = check_admission_laws(any, seed + 1);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

}  // namespace

TEST_CASE("every order obeys the laws under random rules", "[batch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 8)));
  SplitMix64 random(seed);
  AdmissionRules rules;
  rules.compose = static_cast<Compose>(random.between(0, 4));
  rules.reserve = static_cast<Reserve>(random.between(0, 3));
  rules.reserve_tokens = random.between(1, 10'000);
  rules.split_prompts = random.one_in(2);
  rules.watermark_permille = static_cast<std::int32_t>(random.between(0, 999));
  rules.requeue_blocks = static_cast<std::int32_t>(random.between(0, 1'000'000));
  rules.max_preemptions = static_cast<std::int32_t>(random.between(1, 4));
  check_model("priority",
              PriorityAging(PriorityAging::Config{.rules = rules,
                                                  .aging = {random.between(1, 1'000'000'000)},
                                                  .displace = random.one_in(2)}),
              seed);
  check_model("deadline", EarliestDeadline(EarliestDeadline::Config{.rules = rules}), seed);
  check_model("shortest", ShortestFirst(ShortestFirst::Config{.rules = rules}), seed);
  check_model("affinity", PrefixAffinity(PrefixAffinity::Config{.rules = rules}), seed);
  OrderedAdmission::Config ordered;
  ordered.rules = rules;
  ordered.aging = random.one_in(3) ? kUnbounded : DurationNs{random.between(1, 1'000'000'000)};
  ordered.batch_gives_way = random.one_in(2);
  for (int order = 0; order <= static_cast<int>(OrderedAdmission::Order::Deadline); ++order) {
    ordered.order = static_cast<OrderedAdmission::Order>(order);
    check_model("ordered", OrderedAdmission(ordered), seed);
  }
  check_model("served ratio",
              ServedRatioAdmission(ServedRatioAdmission::Config{
                  .rules = rules,
                  .served_ratio_permille = static_cast<std::int32_t>(random.between(0, 2000)),
                  .max_waiting_steps = static_cast<std::int32_t>(random.between(1, 30)),
                  .max_reserved_outputs = random.between(1, 4096)}),
              seed);
  ordered.order = static_cast<OrderedAdmission::Order>(random.between(0, 4));
  check_model("new token ratio",
              NewTokenRatioAdmission(NewTokenRatioAdmission::Config{
                  .order = ordered,
                  .decay_steps = static_cast<std::int32_t>(random.between(1, 600)),
                  .clip_outputs = random.between(1, 10'000)}),
              seed);
  FairShare::Config fair;
  fair.rules = rules;
  fair.other = {.max_running_sequences = 1, .max_running_tokens = random.between(1, 60'000)};
  fair.shares[0] = {.tenant = 3, .weight = 9};
  fair.num_shares = 1;
  check_model("fair share", FairShare(fair), seed);
}

TEST_CASE("the laws find an admission that breaks them", "[batch]") {
  struct Greedy : FcfsAdmission {
    Reservation need(const NeedInput& in) const noexcept { return {in.max_total_tokens + 1, 0, 0}; }
  };
  struct Closed : FcfsAdmission {
    Composition compose(const ComposeInput&) const noexcept {
      Composition out;
      out.admit = false;
      return out;
    }
  };
  struct Stingy : FcfsAdmission {
    std::int64_t chunk(const ChunkInput&) const noexcept { return 0; }
  };
  struct Wide : FcfsAdmission {
    std::int64_t chunk(const ChunkInput& in) const noexcept { return in.remaining_tokens; }
  };
  struct Nobody : FcfsAdmission {
    std::int32_t victim(const VictimList&) const noexcept { return -1; }
  };
  struct Shut : FcfsAdmission {
    bool may_admit(const AdmissionRequest&) const noexcept { return false; }
  };
  struct Rude : FcfsAdmission {
    bool displaces(const AdmissionRequest&, const AdmissionRequest&) const noexcept { return true; }
  };
  Shut shut;
  CHECK(std::string(check_admission_laws(shut, 1).field) == "law 7");
  Rude rude;
  CHECK(std::string(check_admission_laws(rude, 1).field) == "law 8");
  Greedy greedy;
  CHECK(std::string(check_admission_laws(greedy, 1).field) == "law 2");
  Closed closed;
  CHECK(std::string(check_admission_laws(closed, 1).field) == "law 3");
  Stingy stingy;
  CHECK(std::string(check_admission_laws(stingy, 1).field) == "law 4");
  Wide wide;
  CHECK(std::string(check_admission_laws(wide, 1).field) == "law 4");
  Nobody nobody;
  CHECK(std::string(check_admission_laws(nobody, 1).field) == "law 5");
}
