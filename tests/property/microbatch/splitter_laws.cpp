// SPDX-License-Identifier: Apache-2.0
// Every shipped splitter obeys the laws, directly and through the Any model.
#include <dynbatch/laws/micro_batch_splitter.hpp>
#include <dynbatch/microbatch/equal_tokens.hpp>
#include <dynbatch/microbatch/no_split.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

std::string text_of(const Status& status) {
  char out[256];
  format_status(status, out, sizeof(out));
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("shipped splitters obey the laws", "[microbatch]", NoSplit, EqualTokens) {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 12)));
  INFO("seed " << seed);
  TestType splitter;
  Status status = check_micro_batch_splitter_laws(splitter, seed);
  INFO(text_of(status));
  CHECK(status.is_ok());
  AnyMicroBatchSplitter any(splitter);
  status = check_micro_batch_splitter_laws(any, seed + 100);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("equal tokens obeys the laws for every number of parts", "[microbatch]") {
  const std::int32_t parts = GENERATE(range(2, 9));
  const bool cut_inside = GENERATE(false, true);
  const std::int64_t min_tokens = GENERATE(0, 64);
  INFO("parts " << parts << " inside " << cut_inside << " min_tokens " << min_tokens);
  EqualTokens splitter({.parts = parts, .min_tokens = min_tokens, .cut_inside = cut_inside});
  const Status status = check_micro_batch_splitter_laws(splitter, 7);
  INFO(text_of(status));
  CHECK(status.is_ok());
}

TEST_CASE("parts of prompts differ by what the tolerance allows", "[microbatch]") {
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(0, 200)));
  INFO("seed " << seed);
  SplitMix64 random(seed);
  const auto parts = static_cast<std::int32_t>(random.between(2, 8));
  std::vector<Chunk> chunks(static_cast<std::size_t>(random.between(1, 40)));
  std::int64_t total = 0;
  for (Chunk& chunk : chunks) {
    chunk.num_tokens = static_cast<std::int32_t>(random.between(1, random.one_in(4) ? 8000 : 50));
    chunk.first_token = static_cast<std::int32_t>(total);
    total += chunk.num_tokens;
  }
  SplitInput in;
  in.chunks = chunks;
  in.num_tokens = total;
  EqualTokens splitter({.parts = parts});
  const SplitDecision decision = splitter.split(in);
  if (total < parts) {
    CHECK(decision.count == 0);
    return;
  }
  REQUIRE(decision.count == parts - 1);
  for (std::int32_t i = 0; i < decision.count; ++i) {
    const Cut cut = decision.cuts[i];
    const std::int64_t at = chunks[static_cast<std::size_t>(cut.chunk)].first_token + cut.token;
    const double share = static_cast<double>(at) / static_cast<double>(total) * parts;
    // 4 % of a part, and one token of rounding.
    CHECK(share ==
          Approx(i + 1.0).margin(0.04 + static_cast<double>(parts) / static_cast<double>(total)));
  }
}

TEST_CASE("the laws find a splitter that breaks them", "[microbatch]") {
  struct Empty : NoSplit {
    SplitDecision split(const SplitInput& in) noexcept {
      SplitDecision out;
      out.count = in.chunks.empty() ? 0 : 1;  // a cut before the first token
      return out;
    }
  };
  struct Alone : NoSplit {
    SplitDecision split(const SplitInput& in) noexcept {
      SplitDecision out;
      if (in.chunks.size() > 1) {  // looks at its own chunks only
        out.cuts[0] = {1, 0};
        out.count = 1;
      }
      return out;
    }
  };
  struct Moody : NoSplit {
    SplitDecision split(const SplitInput& in) noexcept {
      SplitDecision out;
      if (in.ranks.empty() && in.chunks.size() > 2) {
        out.cuts[0] = {1 + (turn++ & 1), 0};
        out.count = 1;
      }
      return out;
    }
    int turn = 0;
  };
  struct InsideDecode : NoSplit {
    SplitDecision split(const SplitInput& in) noexcept {
      SplitDecision out;
      for (std::size_t i = 0; i < in.chunks.size(); ++i) {
        if (in.chunks[i].kind == ChunkKind::Decode && in.chunks[i].num_tokens > 1) {
          out.cuts[0] = {static_cast<std::int32_t>(i), 1};
          out.count = 1;
        }
      }
      return out;
    }
  };
  Empty empty;
  CHECK(std::string(check_micro_batch_splitter_laws(empty, 1).field) == "law 2");
  Alone alone;
  CHECK(std::string(check_micro_batch_splitter_laws(alone, 1).field) == "law 5");
  Moody moody;
  CHECK(std::string(check_micro_batch_splitter_laws(moody, 1).field) == "law 4");
  InsideDecode inside;
  CHECK(std::string(check_micro_batch_splitter_laws(inside, 1).field) == "law 3");
}
