// SPDX-License-Identifier: Apache-2.0
/// \file
/// The scheduler's containers against simple models, on one thread (tests/threaded has the others).
#include <dynbatch/base/random.hpp>
#include <dynbatch/scheduler/detail/lock_free.hpp>
#include <dynbatch/scheduler/detail/slot_heap.hpp>
#include <dynbatch/scheduler/detail/token_store.hpp>

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::detail;

TEST_CASE("IndexStack hands out each index once") {
  IndexStack stack;
  REQUIRE(stack.allocate(5, "n"));
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 5; ++i) {
    seen.insert(stack.pop());
  }
  CHECK(seen.size() == 5);
  CHECK(stack.pop() == kNil);
  stack.link(3, 1);
  stack.link(1, 4);
  stack.push_chain(3, 4);
  CHECK(stack.pop() == 3);
  CHECK(stack.pop() == 1);
  CHECK(stack.pop() == 4);
  CHECK(stack.pop() == kNil);
}

TEST_CASE("SlotInbox drains in the order of the pushes") {
  SlotInbox inbox;
  REQUIRE(inbox.allocate(8, "n"));
  for (const std::uint32_t slot : {4U, 2U, 7U}) {
    inbox.push(slot);
  }
  std::vector<std::uint32_t> order;
  inbox.drain([&](std::uint32_t slot) {
    order.push_back(slot);
    if (slot == 2) {
      inbox.push(1);  // seen by the next drain
    }
  });
  CHECK(order == std::vector<std::uint32_t>{4, 2, 7});
  order.clear();
  inbox.drain([&](std::uint32_t slot) { order.push_back(slot); });
  CHECK(order == std::vector<std::uint32_t>{1});
}

TEST_CASE("IdTable equals a map under random inserts and erases") {
  IdTable table;
  constexpr std::uint32_t kSlots = 64;
  REQUIRE(table.allocate(kSlots, "n"));
  std::map<std::uint64_t, std::uint32_t> model;
  std::vector<std::uint32_t> free;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    free.push_back(i);
  }
  SplitMix64 rng(3);
  for (int i = 0; i < 20000; ++i) {
    const auto id = static_cast<std::uint64_t>(rng.between(0, 99));
    const auto found = model.find(id);
    REQUIRE(table.find(id) == (found == model.end() ? kNil : found->second));
    if (rng.one_in(2) && !free.empty()) {
      const std::uint32_t slot = free.back();
      REQUIRE(table.insert(id, slot) == (found == model.end()));
      if (found == model.end()) {
        model[id] = slot;
        free.pop_back();
      }
    } else if (found != model.end()) {
      table.erase(found->second);
      free.push_back(found->second);
      model.erase(found);
    }
  }
}

TEST_CASE("SlotHeap equals a sorted set under random operations") {
  SlotHeap heap;
  constexpr std::uint32_t kSlots = 50;
  REQUIRE(heap.allocate(kSlots, "n"));
  std::set<std::pair<HeapKey, std::uint32_t>> model;
  std::map<std::uint32_t, HeapKey> keys;
  SplitMix64 rng(9);
  for (int i = 0; i < 20000; ++i) {
    const auto slot = static_cast<std::uint32_t>(rng.between(0, kSlots - 1));
    REQUIRE(heap.contains(slot) == (keys.count(slot) != 0));
    if (keys.count(slot) == 0) {
      const HeapKey key{rng.between(-3, 3), rng.between(0, 2), static_cast<std::uint64_t>(i)};
      heap.push(slot, key);
      keys[slot] = key;
      model.insert({key, slot});
    } else if (rng.one_in(2)) {
      heap.erase(slot);
      model.erase({keys[slot], slot});
      keys.erase(slot);
    }
    REQUIRE(heap.size() == model.size());
    if (!model.empty()) {
      REQUIRE(heap.top() == model.begin()->second);
      REQUIRE(heap.top_key() == model.begin()->first);
    }
  }
}

TEST_CASE("TokenStore keeps its promises and takes everything back") {
  TokenStore store;
  REQUIRE(store.allocate(4, 10, 10, 16));
  CHECK(store.promise(6));
  CHECK_FALSE(store.promise(5));
  CHECK(store.promise(4));
  store.add_pages(0, 0, 6);
  store.add_pages(1, 0, 4);
  std::set<const Token*> places;
  for (std::int64_t p = 0; p < 96; p += 16) {
    places.insert(store.at(0, p));
  }
  for (std::int64_t p = 0; p < 64; p += 16) {
    places.insert(store.at(1, p));
  }
  CHECK(places.size() == 10);
  CHECK(store.at(0, 17) == store.at(0, 16) + 1);
  store.release(0, 0, 6, 6);
  store.release(1, 0, 4, 4);
  CHECK(store.promise(10));
  store.add_pages(2, 0, 10);
  store.release(2, 10, 10, 0);  // shared pages stay with their owner
  store.release(2, 9, 10, 1);
  CHECK(store.promise(1));
  CHECK_FALSE(store.promise(1));
}
