// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/prefix_index.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace dynbatch;

namespace {

const Token kA[4] = {1, 1, 1, 1};
const Token kB[4] = {2, 2, 2, 2};
const Token kC[4] = {3, 3, 3, 3};

template <class Index = PrefixIndex<>>
struct Fixture {
  Fixture() { REQUIRE(index.attach(8, sizeof(kA), 0).is_ok()); }
  PrefixNode insert(int block, PrefixNode parent, const Token* content) {
    return index.insert(BlockId{block}, parent, {}, content, kNoPlan);
  }
  Index index;
};

struct ConstantHash {
  std::uint64_t operator()(const std::int32_t*, std::size_t) const noexcept { return 42; }
};

}  // namespace

TEMPLATE_TEST_CASE("PrefixIndex finds children by content", "", WordHash, ConstantHash) {
  Fixture<PrefixIndex<TestType>> f;
  const PrefixNode a = f.insert(0, kNoNode, kA);
  const PrefixNode ab = f.insert(1, a, kB);
  const PrefixNode ac = f.insert(2, a, kC);
  const PrefixNode aa = f.insert(3, a, kA);
  const PrefixNode b = f.insert(4, kNoNode, kB);
  CHECK(f.index.find_root({}, kA) == a);
  CHECK(f.index.find_root({}, kB) == b);
  CHECK(f.index.find_root({}, kC) == kNoNode);
  CHECK(f.index.find_child(a, kB, false) == ab);
  CHECK(f.index.find_child(a, kC, false) == ac);
  CHECK(f.index.find_child(a, kA, false) == aa);
  CHECK(f.index.find_child(b, kB, false) == kNoNode);
  // The first child goes, the others stay; the next one takes its place.
  f.index.remove(BlockId{1});
  CHECK(f.index.find_child(a, kB, false) == kNoNode);
  CHECK(f.index.find_child(a, kC, false) == ac);
  const PrefixNode again = f.insert(1, a, kB);
  CHECK(f.index.find_child(a, kB, false) == again);
  f.index.remove(BlockId{2});
  f.index.remove(BlockId{3});
  CHECK(f.index.find_child(a, kC, false) == kNoNode);
  CHECK(f.index.find_child(a, kB, false) == again);
  CHECK(f.index.check(8).is_ok());
}

TEST_CASE("PrefixIndex keeps a prefix until its last block goes") {
  Fixture<> f;
  const PrefixNode a = f.insert(0, kNoNode, kA);
  CHECK(f.insert(1, kNoNode, kA) == a);
  CHECK(f.insert(2, kNoNode, kA) == a);
  const PrefixId id = f.index.id_of(a);
  CHECK(f.index.num_prefixes() == 1);
  CHECK(f.index.block_of(a) == BlockId{0});
  f.index.remove(BlockId{0});
  CHECK(f.index.block_of(a) == BlockId{1});
  CHECK(f.index.check(8).is_ok());
  f.index.remove(BlockId{2});
  CHECK(f.index.block_of(a) == BlockId{1});
  CHECK(f.index.id_of(a) == id);
  f.index.remove(BlockId{1});
  CHECK(f.index.num_prefixes() == 0);
  CHECK(f.index.find_root({}, kA) == kNoNode);
  CHECK(f.index.check(8).is_ok());
}

TEST_CASE("PrefixIndex never finds what is left below a removed or renamed prefix") {
  Fixture<> f;
  const PrefixNode a = f.insert(0, kNoNode, kA);
  f.insert(1, a, kB);
  f.insert(2, a, kC);
  SECTION("removed") {
    f.index.remove(BlockId{0});
    const PrefixNode again = f.insert(3, kNoNode, kA);
    CHECK(f.index.find_child(again, kB, false) == kNoNode);
    CHECK(f.index.find_child(again, kC, false) == kNoNode);
    f.insert(4, again, kB);
  }
  SECTION("renamed") {
    f.index.rename(a);
    CHECK(f.index.find_root({}, kA) == a);
    CHECK(f.index.find_child(a, kB, false) == kNoNode);
    CHECK(f.index.find_child(a, kC, false) == kNoNode);
    f.insert(4, a, kB);
  }
  CHECK(f.index.check(8).is_ok());
  // The orphans go without disturbing those that took their place.
  f.index.remove(BlockId{1});
  f.index.remove(BlockId{2});
  CHECK(f.index.check(8).is_ok());
  const PrefixNode root = f.index.find_root({}, kA);
  CHECK(f.index.block_of(f.index.find_child(root, kB, false)) == BlockId{4});
}

TEMPLATE_TEST_CASE("PrefixIndex keeps digests and tokens apart", "", WordHash, ConstantHash) {
  Fixture<PrefixIndex<TestType>> f;
  f.insert(0, kNoNode, kA);
  PrefixRoot digest{};
  digest.is_digest = true;
  CHECK(f.index.find_root(digest, kA) == kNoNode);
  f.index.insert(BlockId{1}, kNoNode, digest, kA, kNoPlan);
  CHECK(f.index.num_prefixes() == 2);
  CHECK(f.index.check(8).is_ok());
}
