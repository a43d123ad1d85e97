// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/microbatch/equal_tokens.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;

namespace {

struct Step {
  std::vector<Chunk> chunks;
  std::int64_t num_tokens = 0;

  void add(std::int32_t tokens, ChunkKind kind) {
    Chunk chunk;
    chunk.kind = kind;
    chunk.num_tokens = tokens;
    chunk.first_token = static_cast<std::int32_t>(num_tokens);
    chunks.push_back(chunk);
    num_tokens += tokens;
  }
  [[nodiscard]] SplitInput input(const std::vector<RankSummary>& ranks = {}) const {
    SplitInput in;
    in.chunks = chunks;
    in.num_tokens = num_tokens;
    in.ranks = ranks;
    return in;
  }
};

Step prompts(const std::vector<std::int32_t>& lengths) {
  Step step;
  for (const std::int32_t length : lengths) {
    step.add(length, ChunkKind::Prefill);
  }
  return step;
}

// The first cut as (request, tokens before the cut in the whole step); (0, 0) = one part.
std::pair<int, int> cut_of(const std::vector<std::int32_t>& lengths,
                           const EqualTokens::Config& config = {}) {
  EqualTokens splitter(config);
  const Step step = prompts(lengths);
  const SplitDecision decision = splitter.split(step.input());
  if (decision.count == 0) {
    return {0, 0};
  }
  CHECK(decision.count == 1);
  const Cut cut = decision.cuts[0];
  return {cut.chunk, step.chunks[static_cast<std::size_t>(cut.chunk)].first_token + cut.token};
}

std::vector<std::int64_t> part_sizes(const SplitDecision& decision, const Step& step) {
  std::vector<std::int64_t> sizes;
  std::int64_t previous = 0;
  for (std::int32_t i = 0; i < decision.count; ++i) {
    const Cut cut = decision.cuts[i];
    const std::int64_t at =
        step.chunks[static_cast<std::size_t>(cut.chunk)].first_token + std::int64_t{cut.token};
    sizes.push_back(at - previous);
    previous = at;
  }
  sizes.push_back(step.num_tokens - previous);
  return sizes;
}

RankSummary summary_of(const Step& step) {
  RankSummary summary;
  summary.num_tokens = step.num_tokens;
  summary.num_chunks = static_cast<std::int32_t>(step.chunks.size());
  summary.num_rows = summary.num_chunks;
  for (const Chunk& chunk : step.chunks) {
    summary.prefill_tokens += chunk.kind == ChunkKind::Prefill ? chunk.num_tokens : 0;
  }
  return summary;
}

}  // namespace

TEST_CASE("two parts are cut where the published rule cuts them", "[microbatch]") {
  CHECK(cut_of({}) == std::pair(0, 0));
  CHECK(cut_of({42}) == std::pair(0, 21));
  CHECK(cut_of({42, 999}) == std::pair(1, 520));
  CHECK(cut_of({999, 42}) == std::pair(0, 520));
  CHECK(cut_of({498, 502}) == std::pair(1, 498));
  CHECK(cut_of({4096, 4096, 4096, 4096}) == std::pair(2, 8192));
  CHECK(cut_of({4095, 4096, 4096, 4096, 1}) == std::pair(2, 8191));
}

TEST_CASE("a border at 48 per cent is near enough, a token less is not", "[microbatch]") {
  CHECK(cut_of({480, 520}) == std::pair(1, 480));
  CHECK(cut_of({479, 521}) == std::pair(1, 500));
  CHECK(cut_of({520, 480}) == std::pair(1, 520));
  CHECK(cut_of({521, 479}) == std::pair(0, 500));
}

TEST_CASE("between two equally near borders the later is taken", "[microbatch]") {
  CHECK(cut_of({49, 2, 49}) == std::pair(2, 51));
}

TEST_CASE("where only borders may be cut no part is empty", "[microbatch]") {
  EqualTokens::Config borders;
  borders.cut_inside = false;
  CHECK(cut_of({1, 9999}, borders) == std::pair(1, 1));
  CHECK(cut_of({9999, 1}, borders) == std::pair(1, 9999));
  CHECK(cut_of({9999}, borders) == std::pair(0, 0));
  borders.parts = 3;
  EqualTokens splitter(borders);
  const Step step = prompts({1, 1, 9998});
  CHECK(part_sizes(splitter.split(step.input()), step) == std::vector<std::int64_t>{1, 1, 9998});
}

TEST_CASE("fewer tokens than parts make one part", "[microbatch]") {
  CHECK(cut_of({1}) == std::pair(0, 0));
  EqualTokens::Config config;
  config.parts = 4;
  EqualTokens splitter(config);
  CHECK(splitter.split(prompts({3}).input()).count == 0);
  const Step step = prompts({4});
  CHECK(part_sizes(splitter.split(step.input()), step) == std::vector<std::int64_t>{1, 1, 1, 1});
}

TEST_CASE("a step below the least size is not split", "[microbatch]") {
  EqualTokens::Config config;
  config.min_tokens = 1000;
  CHECK(cut_of({999}, config) == std::pair(0, 0));
  CHECK(cut_of({1000}, config) == std::pair(0, 500));
}

TEST_CASE("sizes need not divide", "[microbatch]") {
  const std::int32_t parts = GENERATE(range(2, 9));
  EqualTokens::Config config;
  config.parts = parts;
  EqualTokens splitter(config);
  const Step step = prompts({146});
  const std::vector<std::int64_t> sizes = part_sizes(splitter.split(step.input()), step);
  REQUIRE(sizes.size() == static_cast<std::size_t>(parts));
  for (const std::int64_t size : sizes) {
    CHECK(size >= 146 / parts);
    CHECK(size <= 146 / parts + 1);
  }
}

TEST_CASE("a decode is never cut", "[microbatch]") {
  EqualTokens splitter;
  Step step;
  step.add(1, ChunkKind::Decode);
  step.add(8, ChunkKind::Decode);  // seven drafts
  step.add(1, ChunkKind::Decode);
  const SplitDecision decision = splitter.split(step.input());
  REQUIRE(decision.count == 1);
  CHECK(decision.cuts[0].token == 0);

  Step alone;
  alone.add(8, ChunkKind::Decode);
  CHECK(splitter.split(alone.input()).count == 0);
}

TEST_CASE("decodes in front of prompts count as tokens", "[microbatch]") {
  EqualTokens splitter;
  Step step;
  for (int i = 0; i < 100; ++i) {
    step.add(1, ChunkKind::Decode);
  }
  step.add(900, ChunkKind::Prefill);
  CHECK(part_sizes(splitter.split(step.input()), step) == std::vector<std::int64_t>{500, 500});
}

TEST_CASE("all ranks decide alike, and an idle or small rank keeps all from splitting",
          "[microbatch]") {
  const std::vector<Step> steps{prompts({60, 40}), prompts({100}), prompts({1}), Step{}};
  std::vector<RankSummary> ranks;
  for (const Step& step : steps) {
    ranks.push_back(summary_of(step));
  }
  EqualTokens splitter;
  for (const Step& step : steps) {
    CHECK(splitter.split(step.input(ranks)).count == 0);
  }
  ranks.resize(2);
  CHECK(splitter.split(steps[0].input(ranks)).count == 1);
  CHECK(splitter.split(steps[1].input(ranks)).count == 1);
}

TEST_CASE("a rank that could split alone doesn't where another cannot", "[microbatch]") {
  EqualTokens::Config borders;
  borders.cut_inside = false;
  EqualTokens splitter(borders);
  const Step two = prompts({50, 50});
  const Step one = prompts({100});
  const std::vector<RankSummary> ranks{summary_of(two), summary_of(one)};
  CHECK(splitter.split(two.input()).count == 1);
  CHECK(splitter.split(two.input(ranks)).count == 0);
  CHECK(splitter.split(one.input(ranks)).count == 0);
}

TEST_CASE("a splitter refuses a bad config by the name of the field", "[microbatch]") {
  CHECK(std::string(EqualTokens::Config{.parts = 1}.validate().field) == "parts");
  CHECK(std::string(EqualTokens::Config{.parts = 9}.validate().field) == "parts");
  CHECK(std::string(EqualTokens::Config{.min_tokens = -1}.validate().field) == "min_tokens");
  CHECK_THROWS_AS(EqualTokens({.parts = 1}), Error);
}
