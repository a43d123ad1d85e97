// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/batch/fcfs_admission.hpp>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

using Compose = FcfsAdmission::Compose;
using Reserve = FcfsAdmission::Reserve;
using Config = FcfsAdmission::Config;

constexpr NeedInput kNeed{.known_tokens = 1000,
                          .max_total_tokens = 1500,
                          .cached_tokens = 320,
                          .num_running = 3,
                          .pool = {.total_blocks = 2000, .free_blocks = 2000, .block_size = 16}};

std::int64_t chunk_of(const Config& config, std::int64_t remaining, std::int64_t budget,
                      bool is_atomic = false) {
  ChunkInput in;
  in.remaining_tokens = remaining;
  in.budget_tokens = budget;
  in.block_size = 16;
  in.is_atomic = is_atomic;
  return FcfsAdmission(config).chunk(in);
}

}  // namespace

TEST_CASE("keys are equal, so that the queue orders by submission", "[batch]") {
  FcfsAdmission admission;
  AdmissionRequest early;
  AdmissionRequest late;
  late.arrival = {1'000};
  late.priority = -5;
  CHECK(admission.key(early) == admission.key(late));
}

TEST_CASE("a class below counts as having come later", "[batch]") {
  FcfsAdmission admission({.class_delay = seconds(60)});
  AdmissionRequest person;
  person.arrival = TimeNs{seconds(59).ns};
  AdmissionRequest job;
  job.request_class = RequestClass::Batch;
  CHECK(admission.key(person) < admission.key(job));  // comes 59 s later and starts first
  person.arrival = TimeNs{seconds(61).ns};
  CHECK(admission.key(job) < admission.key(person));  // but nobody waits for ever
  AdmissionRequest background = job;
  background.request_class = RequestClass::Background;
  CHECK(admission.key(job) < admission.key(background));
  AdmissionRequest far = job;
  far.arrival = kNever;
  CHECK(admission.key(far).primary == kNever.ns);  // saturates
}

TEST_CASE("with a delay of classes the last by rank gives way", "[batch]") {
  std::vector<VictimCandidate> candidates(3);
  candidates[0].request.arrival = TimeNs{30};  // the last admitted
  candidates[1].request.request_class = RequestClass::Batch;
  candidates[2].request.arrival = TimeNs{10};
  const VictimList list(
      &candidates,
      [](const void* context, std::int32_t i) noexcept {
        return (*static_cast<const std::vector<VictimCandidate>*>(
            context))[static_cast<std::size_t>(i)];
      },
      3);
  CHECK(FcfsAdmission().victim(list) == 0);
  CHECK(FcfsAdmission({.class_delay = seconds(1)}).victim(list) == 1);
}

TEST_CASE("each reservation asks for what its name says", "[batch]") {
  const Reservation whole = FcfsAdmission({.reserve = Reserve::WholePrompt}).need(kNeed);
  CHECK(whole.required_tokens == 1000);
  CHECK(whole.held_tokens == 1000);

  const Reservation first = FcfsAdmission({.reserve = Reserve::FirstChunk}).need(kNeed);
  CHECK(first.required_tokens == 321);
  CHECK(first.held_tokens == 0);

  const Reservation no_evict = FcfsAdmission({.reserve = Reserve::NoEvict}).need(kNeed);
  CHECK(no_evict.required_tokens == 1500);
  CHECK(no_evict.held_tokens == 1500);
}

TEST_CASE("a fixed reservation lies between the prompt and the most it can use", "[batch]") {
  const auto need = [](std::int64_t reserve_tokens) {
    return FcfsAdmission({.reserve = Reserve::Fixed, .reserve_tokens = reserve_tokens}).need(kNeed);
  };
  CHECK(need(1200).required_tokens == 1200);
  CHECK(need(1200).held_tokens == 1200);
  CHECK(need(500).required_tokens == 1000);
  CHECK(need(8192).required_tokens == 1500);
}

TEST_CASE("the watermark is a share of the pool", "[batch]") {
  CHECK(FcfsAdmission().need(kNeed).headroom_blocks == 0);
  CHECK(FcfsAdmission({.watermark_permille = 10}).need(kNeed).headroom_blocks == 20);
}

TEST_CASE("decode first mixes everything", "[batch]") {
  const Composition c = FcfsAdmission().compose({5, 1, 3});
  CHECK(c.decode);
  CHECK(c.prefill);
  CHECK(c.admit);
  CHECK_FALSE(c.prefill_before_decode);
  CHECK_FALSE(c.stop_decode_if_prefill);
  CHECK_FALSE(c.pad_to_batch);
}

TEST_CASE("prefill first makes steps of prompts only", "[batch]") {
  const Composition c = FcfsAdmission({.compose = Compose::PrefillFirst}).compose({5, 1, 3});
  CHECK(c.prefill_before_decode);
  CHECK(c.stop_decode_if_prefill);
  CHECK(c.admit);
}

TEST_CASE("exclusive admits nothing while a sequence decodes", "[batch]") {
  const FcfsAdmission admission({.compose = Compose::Exclusive});
  CHECK_FALSE(admission.compose({1, 1, 3}).admit);
  CHECK(admission.compose({0, 1, 3}).admit);
  CHECK(admission.compose({0, 1, 3}).stop_decode_if_prefill);
  CHECK_FALSE(admission.compose({0, 1, 3}).pad_to_batch);
}

TEST_CASE("a batch until empty starts only when nothing runs, and is padded", "[batch]") {
  const FcfsAdmission admission({.compose = Compose::BatchUntilEmpty});
  CHECK(admission.compose({0, 0, 3}).admit);
  CHECK_FALSE(admission.compose({1, 0, 3}).admit);
  CHECK_FALSE(admission.compose({0, 1, 3}).admit);
  CHECK(admission.compose({0, 0, 3}).pad_to_batch);
}

TEST_CASE("a long prompt is cut at the budget", "[batch]") {
  CHECK(chunk_of({}, 2715, 2048) == 2048);
  CHECK(chunk_of({}, 667, 2048) == 667);
  CHECK(chunk_of({}, 667, 0) == 0);
}

TEST_CASE("an unsplit or atomic prompt runs whole or not at all", "[batch]") {
  CHECK(chunk_of({.split_prompts = false}, 2715, 2048) == 0);
  CHECK(chunk_of({.split_prompts = false}, 2048, 2048) == 2048);
  CHECK(chunk_of({}, 2715, 2048, true) == 0);
  CHECK(chunk_of({.max_chunk_tokens = 512}, 1000, 2048, true) == 1000);
  CHECK_FALSE(FcfsAdmission({.split_prompts = false}).splits_prompts());
  CHECK(FcfsAdmission().splits_prompts());
}

TEST_CASE("chunks keep their cap and their unit", "[batch]") {
  CHECK(chunk_of({.max_chunk_tokens = 512}, 2715, 2048) == 512);
  CHECK(chunk_of({.chunk_unit = 64}, 2715, 100) == 64);
  CHECK(chunk_of({.chunk_unit = 0}, 2715, 100) == 96);
  CHECK(chunk_of({.chunk_unit = 64}, 90, 100) == 90);
  // Less than a unit is used as it is.
  CHECK(chunk_of({.chunk_unit = 64}, 2715, 60) == 60);
}

TEST_CASE("the last admitted gives way", "[batch]") {
  const VictimList victims(
      nullptr, [](const void*, std::int32_t) noexcept { return VictimCandidate{}; }, 3);
  CHECK(FcfsAdmission().victim(victims) == 0);
}

TEST_CASE("an admission refuses a bad config by the name of the field", "[batch]") {
  const auto field_of = [](const Config& config) {
    CHECK_THROWS_AS(FcfsAdmission(config), Error);
    return std::string(config.validate().field);
  };
  CHECK(field_of({.compose = static_cast<Compose>(9)}) == "compose");
  CHECK(field_of({.reserve = static_cast<Reserve>(9)}) == "reserve");
  CHECK(field_of({.reserve_tokens = 0}) == "reserve_tokens");
  CHECK(field_of({.watermark_permille = 1000}) == "watermark_permille");
  CHECK(field_of({.watermark_permille = -1}) == "watermark_permille");
  CHECK(field_of({.max_chunk_tokens = -1}) == "max_chunk_tokens");
  CHECK(field_of({.split_prompts = false, .max_chunk_tokens = 5}) == "max_chunk_tokens");
  CHECK(field_of({.chunk_unit = -1}) == "chunk_unit");
  CHECK(field_of({.max_bypass = -1}) == "max_bypass");
}
