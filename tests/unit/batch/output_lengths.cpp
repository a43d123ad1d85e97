// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/random.hpp>
#include <dynbatch/batch/output_lengths.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

using namespace dynbatch;

namespace {

constexpr RequestClass kClass = RequestClass::Batch;

double surviving(const OutputLengths& lengths, std::int64_t outputs, std::int64_t more) {
  return static_cast<double>(lengths.surviving(kClass, outputs, more)) /
         static_cast<double>(OutputLengths::kScale);
}

}  // namespace

TEST_CASE("Buckets tile the lengths and are an eighth of a power of two wide") {
  for (std::size_t b = 0; b + 1 < OutputLengths::kNumBuckets; ++b) {
    const std::int64_t start = OutputLengths::start_of(b);
    const std::int64_t next = OutputLengths::start_of(b + 1);
    REQUIRE(next > start);
    CHECK(OutputLengths::bucket_of(start) == b);
    CHECK(OutputLengths::bucket_of(next - 1) == b);
    CHECK((start < 32 || (next - start) * 8 <= start));
  }
  CHECK(OutputLengths::bucket_of(-5) == 0);
  CHECK(OutputLengths::bucket_of(std::int64_t{1} << 60) == OutputLengths::kNumBuckets - 1);
}

TEST_CASE("Without data all lengths up to the limit are equally likely") {
  OutputLengths lengths;
  lengths.begin();
  lengths.add_running(kClass, 0, 800);
  lengths.update();
  CHECK(surviving(lengths, 0, 0) == 1.0);
  CHECK(surviving(lengths, 0, 400) == Approx(0.5).margin(0.06));
  CHECK(surviving(lengths, 400, 200) == Approx(0.5).margin(0.1));
  CHECK(surviving(lengths, 0, 900) == 0.0);
  // A limit far beyond what was ever met says nothing.
  lengths.begin();
  lengths.add_running(kClass, 10, 1'000'000);
  lengths.update();
  CHECK(surviving(lengths, 0, 512) == Approx(0.5).margin(0.06));
}

TEST_CASE("The curve is the one of the lengths that ended") {
  OutputLengths lengths;
  SplitMix64 rng(3);
  std::vector<std::int64_t> ended;
  for (int i = 0; i < 2000; ++i) {
    ended.push_back(rng.between(300, 1100));
    lengths.add(kClass, ended.back());
  }
  CHECK(lengths.num_ended(kClass) == 2000);
  CHECK(lengths.num_ended(RequestClass::Interactive) == 0);
  lengths.begin();
  lengths.add_running(kClass, 5, 4000);
  lengths.update();
  for (const std::int64_t from : {0, 100, 320, 640, 900}) {
    for (const std::int64_t more : {0, 50, 200, 400, 700}) {
      double reached = 0;
      double survived = 0;
      for (const std::int64_t n : ended) {
        reached += n >= from ? 1 : 0;
        survived += n >= from + more ? 1 : 0;
      }
      INFO(from << " + " << more);
      CHECK(surviving(lengths, from, more) ==
            Approx(survived / reached).margin(0.16));  // a bucket is an eighth wide
    }
  }
}

TEST_CASE("Who still runs counts as having survived so far") {
  // Early on only the short ones have ended: 10 of 100 that all began together.
  OutputLengths lengths;
  for (int i = 0; i < 10; ++i) {
    lengths.add(kClass, 40);
  }
  lengths.begin();
  for (int i = 0; i < 90; ++i) {
    lengths.add_running(kClass, 60, 1000);
  }
  lengths.update();
  CHECK(surviving(lengths, 0, 50) == Approx(0.9).margin(0.02));
  CHECK(surviving(lengths, 50, 400) > 0.4);  // nothing is known of it
  OutputLengths blind;
  for (int i = 0; i < 10; ++i) {
    blind.add(kClass, 40);
  }
  blind.begin();
  blind.update();
  CHECK(surviving(blind, 0, 50) < 0.25);
}

TEST_CASE("Curves never rise, forget slowly and stand absurd input") {
  OutputLengths lengths;
  SplitMix64 rng(9);
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 50; ++i) {
      lengths.add(static_cast<RequestClass>(rng.between(0, 4)),
                  rng.one_in(9) ? -rng.between(0, std::int64_t{1} << 62)
                                : rng.between(0, std::int64_t{1} << rng.between(1, 62)));
    }
    lengths.begin();
    for (int i = 0; i < 20; ++i) {
      lengths.add_running(static_cast<RequestClass>(rng.between(0, 4)),
                          rng.between(0, std::int64_t{1} << rng.between(1, 62)),
                          rng.between(-5, std::int64_t{1} << rng.between(1, 62)));
    }
    lengths.update();
    const std::int64_t from = rng.between(0, 5000);
    std::int64_t last = OutputLengths::kScale;
    for (std::int64_t more = 0; more < 4'000'000; more = more * 3 / 2 + 1) {
      const std::int64_t share = lengths.surviving(kClass, from, more);
      REQUIRE(share >= 0);
      REQUIRE(share <= last);
      last = share;
    }
  }
  CHECK(lengths.num_ended(kClass) <= 4096);
}

TEST_CASE("Between the starts of two buckets a curve is a straight line") {
  OutputLengths lengths;
  SplitMix64 rng(10);
  for (int i = 0; i < 2000; ++i) {
    lengths.add(kClass, rng.between(0, std::int64_t{1} << rng.between(1, 19)));
  }
  lengths.begin();
  lengths.update();
  for (std::size_t b = 0; b + 1 < OutputLengths::kNumBuckets; ++b) {
    const std::int64_t start = OutputLengths::start_of(b);
    const std::int64_t width = OutputLengths::start_of(b + 1) - start;
    const std::int64_t high = lengths.reaching(kClass, start);
    const std::int64_t low = lengths.reaching(kClass, start + width);
    INFO("bucket " << b);
    REQUIRE(low <= high);
    for (const std::int64_t into : {std::int64_t{1}, width / 2, width - 1}) {
      // Rounded as a fall is, down.
      REQUIRE(lengths.reaching(kClass, start + into) == high - (high - low) * into / width);
    }
  }
  CHECK(lengths.reaching(kClass, -3) == OutputLengths::kScale);
  CHECK(lengths.reaching(RequestClass::Interactive, 0) == OutputLengths::kScale);
  CHECK(lengths.reaching(kClass, std::int64_t{1} << 60) <=
        lengths.reaching(kClass, std::int64_t{1} << 19));
}
