// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/capacity_search.hpp>

#include <catch2/catch.hpp>

using dynbatch::CapacitySearch;

namespace {

// Attainment falls below the target beyond `capacity`.
CapacitySearch searched(double capacity) {
  CapacitySearch search({.attainment = 0.9});
  while (!search.is_done()) {
    const bool is_good = search.report(search.next() <= capacity ? 0.95 : 0.5);
    CHECK(search.num_trials() < 100);
    CHECK((!is_good || search.scale() <= capacity));
  }
  return search;
}

}  // namespace

TEST_CASE("the search ends just below the capacity", "[sim][capacity]") {
  for (const double capacity : {1e-4, 0.014, 0.5, 0.999, 1.0, 1.001, 2.19, 700.0}) {
    INFO("capacity " << capacity);
    const CapacitySearch search = searched(capacity);
    CHECK(search.is_bounded());
    CHECK(search.scale() <= capacity);
    CHECK(search.scale() >= capacity / 1.0026);
  }
}

TEST_CASE("a search that nothing or everything satisfies ends", "[sim][capacity]") {
  CHECK(searched(0.0).scale() == 0.0);
  const CapacitySearch endless = searched(1e30);
  CHECK_FALSE(endless.is_bounded());
  CHECK(endless.scale() >= 1e6);
}
