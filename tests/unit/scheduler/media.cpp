// SPDX-License-Identifier: Apache-2.0
/// \file
/// Requests with media items: what they share, what is refused, what is bounded.
#include "small_host.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

constexpr ContentDigest kCat{1, 2};
constexpr ContentDigest kDog{1, 3};

SmallScheduler make_cached(std::int32_t max_media_spans = 64, std::int64_t budget = 256) {
  SmallOptions options;
  options.caching = true;
  options.budget = budget;
  options.config.max_media_spans = max_media_spans;
  return make_small(options);
}

// 100 placeholder tokens with these items.
Status submit(SmallScheduler& s, std::uint64_t id, const std::vector<MediaSpan>& media) {
  SmallRequest r(0, 100, 1);
  r.tokens.assign(100, 9);
  r.request.id = RequestId{id};
  r.request.media = media;
  return s.submit(r.view());
}

// Tokens that a request computes of its prompt, alone.
std::int64_t computed(SmallScheduler& s, std::uint64_t id, const std::vector<MediaSpan>& media) {
  REQUIRE(submit(s, id, media));
  const Scheduled scheduled = step(s);
  drain(s);
  REQUIRE(s.check().is_ok());
  return scheduled.at(id);
}

}  // namespace

TEST_CASE("Requests with equal items at equal places share all of it") {
  SmallScheduler s = make_cached();
  CHECK(computed(s, 1, {{20, 30, kCat}}) == 100);
  CHECK(computed(s, 2, {{20, 30, kCat}}) == 4);
  CHECK(computed(s, 3, {{20, 30, kDog}}) == 84);
  CHECK(computed(s, 4, {{21, 30, kCat}}) == 84);
  CHECK(computed(s, 5, {}) == 84);
  CHECK(computed(s, 6, {{20, 30, kCat}, {80, 4, kDog}}) == 20);
}

TEST_CASE("Nothing is shared from an item on that is not kept") {
  SmallScheduler one = make_cached(1);
  const std::vector<MediaSpan> media{{20, 30, kCat}, {70, 10, kDog}};
  CHECK(computed(one, 1, media) == 100);
  CHECK(computed(one, 2, media) == 36);  // 64 tokens lie before the block of the second item
  SmallScheduler none = make_cached(0);
  CHECK(computed(none, 1, media) == 100);
  CHECK(computed(none, 2, media) == 84);
}

TEST_CASE("Items outside the prompt, out of order or overlapping are refused") {
  SmallScheduler s = make_cached();
  const auto field = [&](const std::vector<MediaSpan>& media) {
    const Status status = submit(s, 1, media);
    CHECK(status.code == Errc::InvalidArgument);
    return std::string(status.field);
  };
  CHECK(field({{-1, 3, kCat}}) == "media");
  CHECK(field({{98, 3, kCat}}) == "media");
  CHECK(field({{98, 0, kCat}}) == "media");
  CHECK(field({{20, 10, kCat}, {29, 2, kDog}}) == "media");
  CHECK(field({{20, 10, kCat}, {5, 2, kDog}}) == "media");
  CHECK(submit(s, 1, {{20, 10, kCat}, {30, 2, kDog}}).is_ok());
}

TEST_CASE("A request waits for the started prefill of one with equal items only") {
  SmallScheduler s = make_cached(64, 40);
  REQUIRE(submit(s, 1, {{30, 40, kCat}}));
  REQUIRE(step(s) == Scheduled{{1, 40}});
  REQUIRE(submit(s, 2, {{30, 40, kCat}}));
  REQUIRE(submit(s, 3, {{30, 40, kDog}}));
  REQUIRE(step(s) == Scheduled{{1, 40}});
  // What the first one computes is there for the second, and one block of it for the third.
  CHECK(step(s) == Scheduled{{1, 20}, {2, 4}, {3, 16}});
  CHECK(run_dry(s));
}

TEST_CASE("Nobody waits for a block with more items than are compared") {
  std::vector<MediaSpan> media;
  for (std::int64_t i = 0; i < 7; ++i) {
    media.push_back({i, 1, kCat});  // one more than blocks of 16 tokens may overlap
  }
  SmallOptions options;
  options.caching = true;
  options.admission.max_chunk_tokens = 10;
  SmallScheduler s = make_small(options);
  REQUIRE(submit(s, 1, media));
  REQUIRE(submit(s, 2, media));
  CHECK(step(s) == Scheduled{{1, 10}, {2, 10}});  // both compute all of their prompts
  CHECK(run_dry(s));
  CHECK(s.stats().prefix_hit_tokens == 0);
}
