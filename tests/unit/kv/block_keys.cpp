// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/block_keys.hpp>

#include "content.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace dynbatch;
using kv_test::Content;
using kv_test::count_from;

namespace {

constexpr KVIdentity kEngine{.model = "org/a",
                             .revision = "r1",
                             .format = "bf16",
                             .layout = "NHD",
                             .shard = "0/1",
                             .format_version = 1};

struct Text {
  std::vector<Token> tokens = count_from(1, 40);
  CacheScope scope{};
  std::int32_t block_size = 4;
  std::int64_t block_bytes = 64;
};

std::vector<BlockKey> keys_of(const KVIdentity& identity, const Text& text = {}) {
  Content content(text.tokens, 16, text.scope);
  content.with_keys(text.block_size);
  KeyChain chain;
  chain.start(identity, text.block_size, text.block_bytes);
  const auto view = content.view();
  std::vector<BlockKey> keys(text.tokens.size() / static_cast<std::size_t>(text.block_size));
  REQUIRE(chain.extend(view, static_cast<std::int64_t>(keys.size())));
  chain.copy(view, chain.root(view), 0, keys);
  return keys;
}

}  // namespace

TEST_CASE("Equal content and identity have equal keys, in whatever pieces they were computed") {
  Content content(count_from(1, 40), 16);
  content.with_keys(4);
  KeyChain chain;
  chain.start(kEngine, 4, 64);
  const auto view = content.view();
  for (std::int64_t n = 1; n <= 10; ++n) {
    REQUIRE(chain.extend(view, n));
    CHECK(content.num_keys() == n);
  }
  REQUIRE(chain.extend(view, 3));  // shorter: they are there
  CHECK(content.num_keys() == 10);
  std::vector<BlockKey> keys(10);
  chain.copy(view, chain.root(view), 0, keys);
  CHECK(keys == keys_of(kEngine));
  std::set<std::uint64_t> distinct;
  for (const BlockKey& key : keys) {
    distinct.insert(key.words[0]);
  }
  CHECK(distinct.size() == 10);
  CHECK_FALSE(chain.extend(Content(count_from(1, 40), 16).view(), 1));  // no room for keys
}

TEST_CASE("A token changes its block's key and all behind it") {
  const std::vector<BlockKey> keys = keys_of(kEngine);
  for (std::size_t place = 0; place < 40; ++place) {
    Text text;
    text.tokens[place] += 1000;
    const std::vector<BlockKey> others = keys_of(kEngine, text);
    for (std::size_t b = 0; b < keys.size(); ++b) {
      REQUIRE((keys[b] == others[b]) == (b < place / 4));
    }
  }
}

TEST_CASE("Each field of the identity changes every key, and absent differs from empty and zero") {
  std::vector<std::pair<KVIdentity, Text>> all;
  const auto add = [&](auto change) {
    std::pair<KVIdentity, Text> one{kEngine, {}};
    change(one.first, one.second);
    all.push_back(one);
  };
  add([](KVIdentity&, Text&) {});
  add([](KVIdentity& i, Text&) { i.model = "org/b"; });
  add([](KVIdentity& i, Text&) { i.model = ""; });
  add([](KVIdentity& i, Text&) { i.model = nullptr; });
  add([](KVIdentity& i, Text&) { i.revision = "r2"; });
  add([](KVIdentity& i, Text&) { i.revision = nullptr; });
  add([](KVIdentity& i, Text&) { i.format = "fp8_e4m3"; });
  add([](KVIdentity& i, Text&) { i.layout = "HND"; });
  add([](KVIdentity& i, Text&) { i.shard = "0/2"; });
  add([](KVIdentity& i, Text&) { i.format_version = 2; });
  // A border between fields that moves: the same letters in all.
  add([](KVIdentity& i, Text&) { i.model = "org/ar", i.revision = "1"; });
  add([](KVIdentity&, Text& t) { t.block_bytes = 128; });
  add([](KVIdentity&, Text& t) { t.scope.model_epoch = 1; });
  add([](KVIdentity&, Text& t) { t.scope.has_tenant_salt = true; });
  add([](KVIdentity&, Text& t) { t.scope.has_tenant_salt = true, t.scope.tenant_salt = 1; });
  add([](KVIdentity&, Text& t) { t.scope.has_adapter = true; });
  add([](KVIdentity&, Text& t) { t.scope.has_adapter = true, t.scope.adapter_id = 1; });
  add([](KVIdentity&, Text& t) { t.scope.has_adapter = true, t.scope.adapter_version = 1; });
  add([](KVIdentity&, Text& t) { t.block_size = 8; });
  std::set<std::uint64_t> firsts;
  std::set<std::uint64_t> lasts;
  for (const auto& [identity, text] : all) {
    firsts.insert(keys_of(identity, text).front().words[0]);
    lasts.insert(keys_of(identity, text).back().words[0]);
  }
  CHECK(firsts.size() == all.size());
  CHECK(lasts.size() == all.size());
}

TEST_CASE("What a scope does not have is not read") {
  Text text;
  text.scope.tenant_salt = 7;
  text.scope.adapter_id = 7;
  text.scope.adapter_version = 7;
  CHECK(keys_of(kEngine, text) == keys_of(kEngine));
}

TEST_CASE("Digest prompts have keys without room for them") {
  const std::vector<ContentDigest> digests = {{1, 2}, {3, 4}};
  const Content content(digests, 8, 16, 16);
  KeyChain chain;
  chain.start(kEngine, 4, 64);
  const auto view = content.view();
  REQUIRE(chain.extend(view, 4));
  std::set<std::uint64_t> distinct;
  for (std::int64_t b = 0; b < 4; ++b) {
    distinct.insert(chain.at(view, chain.root(view), b).words[0]);
  }
  CHECK(distinct.size() == 4);
  const Content other({{1, 2}, {3, 5}}, 8, 16, 16);
  const auto v = other.view();
  CHECK(chain.at(v, chain.root(v), 1) == chain.at(view, chain.root(view), 1));
  CHECK_FALSE(chain.at(v, chain.root(v), 2) == chain.at(view, chain.root(view), 2));
  // Tokens and digests never meet, nor do digests of other units.
  const Content wider(digests, 16, 32, 16);
  const auto w = wider.view();
  CHECK_FALSE(chain.at(w, chain.root(w), 0) == chain.at(view, chain.root(view), 0));
}

TEST_CASE("Media items enter the keys of the blocks they overlap, and so of all behind them") {
  const bool is_digest = GENERATE(false, true);
  KeyChain chain;
  chain.start(kEngine, 4, 64);
  // Equal tokens; what differs is one field of one item, at positions 9 to 13 if nothing else.
  const auto keys = [&](std::vector<MediaSpan> media, std::int64_t first = 10) {
    Content content = is_digest ? Content({{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}}, 8, 40, 16)
                                : Content(count_from(1, 40), 16);
    content.with_keys(4);
    content.set_media(std::move(media));
    const auto view = content.view();
    std::vector<BlockKey> out(10);
    REQUIRE(chain.extend(view, first));  // in two pieces
    REQUIRE(chain.extend(view, 10));
    CHECK(chain.agrees(view, 10));
    chain.copy(view, chain.root(view), 0, out);
    return out;
  };
  const auto plain = keys({});
  const auto image = keys({{9, 5, {1, 1}}});
  CHECK(image == keys({{9, 5, {1, 1}}}, 3));
  const std::vector<std::vector<MediaSpan>> others = {
      {},
      {{9, 5, {1, 2}}},
      {{9, 5, {2, 1}}},
      {{8, 5, {1, 1}}},
      {{9, 4, {1, 1}}},
      {{9, 2, {1, 1}}, {11, 3, {1, 1}}},
      {{9, 5, {1, 1}}, {14, 1, {1, 1}}},
  };
  for (const auto& other : others) {
    INFO(&other - others.data());
    const auto differing = keys(other);
    for (std::size_t b = 0; b < 10; ++b) {
      // The item begins in block 2; of the last kind only the second item tells, in block 3.
      const std::size_t first = &other == &others.back() ? 3 : 2;
      CHECK((differing[b] == image[b]) == (b < first));
    }
  }
  CHECK(plain[1] == image[1]);
}
