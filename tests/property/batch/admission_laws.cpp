// SPDX-License-Identifier: Apache-2.0
// Every choice of FcfsAdmission obeys the laws, directly and through the Any model.
#include <dynbatch/batch/fcfs_admission.hpp>
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
  const auto compose = static_cast<Compose>(GENERATE(range(0, 4)));
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
