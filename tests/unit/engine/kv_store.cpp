// SPDX-License-Identifier: Apache-2.0
/// \file
/// The paged KV memory of the tiny engine.
#include "kv_store.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

using namespace dynbatch;

namespace {

/// Two layers, four blocks of two tokens, three floats a token; each float says where it lies.
tiny::KvStore numbered() {
  tiny::KvStore store(2, 4, 2, 3);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    for (std::int64_t slot = 0; slot < 8; ++slot) {
      for (int i = 0; i < 3; ++i) {
        store.token(layer, {slot})[i] = static_cast<float>(layer * 100 + slot * 10 + i);
      }
    }
  }
  return store;
}

}  // namespace

TEST_CASE("A token's KV lies in its block at its offset, in every layer") {
  tiny::KvStore store = numbered();
  CHECK(store.block(1, {2}) == store.token(1, {4}));
  CHECK(store.token(1, {5})[2] == 152.0F);
  CHECK(store.token(0, {5})[2] == 52.0F);
}

TEST_CASE("A copy takes the first tokens of a block in every layer") {
  tiny::KvStore store = numbered();
  store.copy({BlockId{1}, BlockId{3}, 1});
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    CHECK(store.token(layer, {6})[0] == static_cast<float>(layer * 100 + 20));
    CHECK(store.token(layer, {6})[2] == static_cast<float>(layer * 100 + 22));
    CHECK(store.token(layer, {7})[0] == static_cast<float>(layer * 100 + 70));
    CHECK(store.token(layer, {2})[0] == static_cast<float>(layer * 100 + 20));
  }
}

TEST_CASE("A store reaches the bytes of a host slot, in one place") {
  tiny::KvStore store = numbered();
  const std::span<std::byte> bytes = store.host_bytes(5);
  REQUIRE(bytes.size() == 2 * 2 * 3 * sizeof(float));  // layers, tokens, floats
  float value = 0.0F;
  std::memcpy(&value, bytes.data(), sizeof(value));
  CHECK(std::isnan(value));  // nothing was saved there
  store.swap({BlockId{1}, 5, true});
  for (std::int32_t slot = 6; slot < 200; ++slot) {
    (void)store.host_bytes(slot);
  }
  CHECK(store.host_bytes(5).data() == bytes.data());
  std::memcpy(&value, bytes.data() + sizeof(float), sizeof(value));
  CHECK(value == 21.0F);
  value = 77.0F;
  std::memcpy(bytes.data(), &value, sizeof(value));
  store.swap({BlockId{0}, 5, false});
  CHECK(store.token(0, {0})[0] == 77.0F);
}

TEST_CASE("A block comes back from host memory as it went there") {
  tiny::KvStore store = numbered();
  store.swap({BlockId{1}, 5, true});
  store.zero({1});
  CHECK(store.token(0, {2})[0] == 0.0F);
  CHECK(store.token(1, {3})[2] == 0.0F);
  CHECK(store.token(0, {4})[0] == 40.0F);
  store.swap({BlockId{0}, 5, false});
  CHECK(store.token(0, {0})[1] == 21.0F);
  CHECK(store.token(1, {1})[2] == 132.0F);
}
