// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/kv/detail/content_cursor.hpp>
#include <dynbatch/kv/prefix_index.hpp>
#include <dynbatch/model/sequence_content.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
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

TEST_CASE("PrefixIndex enters a run of blocks as it would enter them one by one") {
  constexpr std::int32_t kPage = 16;  // Tokens: four blocks, or four digests.
  const bool is_digest = GENERATE(false, true);
  const std::int32_t digest_unit = is_digest ? 4 : 0;
  std::vector<Token> storage(2 * kPage);
  for (std::size_t i = 0; i < storage.size(); ++i) {
    storage[i] = static_cast<Token>(i);
  }
  const std::uint32_t pages[2] = {1, 0};
  SequenceContentView content{};
  content.storage = storage.data();
  content.pages = pages;
  content.page_tokens = kPage;
  content.digest_unit = digest_unit;
  const BlockId blocks[7] = {BlockId{6}, BlockId{5}, BlockId{4}, BlockId{3},
                             BlockId{0}, BlockId{1}, BlockId{2}};
  PrefixIndex<> one_by_one;
  PrefixIndex<> at_once;
  REQUIRE(one_by_one.attach(8, sizeof(kA), 16).is_ok());
  REQUIRE(at_once.attach(8, sizeof(kA), 16).is_ok());
  PrefixRoot root{};
  root.is_digest = is_digest;
  PrefixNode a = kNoNode;
  detail::ContentCursor first(content, 4, 0);
  for (const BlockId block : blocks) {
    a = one_by_one.insert(block, a, root, first.next(), PlanId{7});
  }
  detail::ContentCursor second(content, 4, 0);
  PrefixNode b = at_once.insert(blocks[0], kNoNode, root, second.next(), PlanId{7});
  REQUIRE(at_once.is_leaf(b));
  at_once.mark_withdrawn(blocks[5]);
  CHECK(at_once.append(std::span(blocks).subspan(1), b, is_digest, second, PlanId{7}) == 4);
  CHECK(at_once.node_of(blocks[4]) == b);
  at_once.unmark_withdrawn(blocks[5]);
  b = at_once.append(blocks[5], b, is_digest, second.next(), PlanId{7});
  CHECK(at_once.append(std::span(blocks).subspan(6), b, is_digest, second, PlanId{7}) == 1);
  CHECK(at_once.check(8).is_ok());
  CHECK(at_once.newest_plan() == PlanId{7});
  CHECK(at_once.plan_of(blocks[3]) == PlanId{7});
  CHECK(at_once.id_of(b) == one_by_one.id_of(a));
  KvEvent expected[16];
  KvEvent events[16];
  const auto same_events = [&] {
    const std::size_t n = one_by_one.events().drain(expected);
    if (at_once.events().drain(events) != n) {
      return false;
    }
    bool is_same = n == std::size(blocks);
    for (std::size_t i = 0; i < n; ++i) {
      is_same = is_same && events[i].kind == expected[i].kind &&
                events[i].prefix == expected[i].prefix && events[i].parent == expected[i].parent &&
                events[i].block == expected[i].block &&
                events[i].content_hash == expected[i].content_hash;
    }
    return is_same;
  };
  CHECK(same_events());
  for (std::size_t i = std::size(blocks); i-- > 0;) {
    one_by_one.remove(blocks[i]);
  }
  std::vector<BlockId> backwards(std::rbegin(blocks), std::rend(blocks));
  at_once.remove(std::span<const BlockId>(backwards));
  CHECK(same_events());
  CHECK(at_once.num_prefixes() == 0);
  CHECK(at_once.check(8).is_ok());
}

TEST_CASE("A content cursor goes on over pages that lie side by side and nowhere else") {
  constexpr std::int32_t kPage = 16;
  constexpr std::uint32_t kPages = 12;
  const std::vector<std::uint32_t> pages = {3, 4, 5, 6, 0, 1, 8, 7, 9, 10};  // 11 is unused memory.
  std::vector<Token> storage(kPage * kPages);
  for (std::size_t i = 0; i < storage.size(); ++i) {
    storage[i] = static_cast<Token>(i);
  }
  SequenceContentView view{};
  view.storage = storage.data();
  view.pages = pages.data();
  view.page_tokens = kPage;
  view.token_base = GENERATE(0, 8);
  view.known_length = GENERATE(1, 17, 100, 152);
  const std::int64_t num_blocks = (view.known_length + 3) / 4;
  detail::ContentCursor cursor(view, 4, 0);
  std::int64_t longest = 0;
  for (std::int64_t block = 0; block < num_blocks;) {
    const std::int64_t left = std::min(cursor.num_left(), num_blocks - block);
    REQUIRE(left > 0);
    longest = std::max(longest, left);
    const auto* data = static_cast<const Token*>(cursor.data());
    for (std::int64_t i = 0; i < left; ++i) {
      REQUIRE(data + 4 * i == view.tokens_at(4 * (block + i)));
    }
    cursor.skip(left);
    block += left;
  }
  CHECK((view.known_length < 100 || longest == 12));  // Pages 4 to 6; the first stands alone.
}

TEST_CASE("Blocks whose ids lie side by side are entered like any others") {
  constexpr std::int64_t kCount = 61;
  const std::int32_t step = GENERATE(1, -1);
  const std::int32_t odd = GENERATE(-1, 5, 20, 35, 59);  // Not blank.
  // Nodes were never used, come back in order, come back mixed, or in order but for some between
  // the chunks.
  const int used = GENERATE(0, 1, 2, 3);
  const bool is_digest = GENERATE(false, true);
  INFO("step " << step << ", odd " << odd << ", used " << used << ", digest " << is_digest);
  std::vector<Token> tokens(4 * kCount);  // Also read as digests: 16 bytes a block both.
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<Token>(i * i);
  }
  const std::uint32_t page = 0;
  SequenceContentView view{};
  view.storage = tokens.data();
  view.pages = &page;
  view.page_tokens = static_cast<std::int32_t>(tokens.size());
  view.digest_unit = is_digest ? 4 : 0;
  view.prompt_length = view.known_length = 4 * kCount;
  std::vector<BlockId> blocks;
  for (std::int32_t i = 0; i < kCount; ++i) {
    blocks.push_back(BlockId{step > 0 ? i : static_cast<std::int32_t>(kCount) - 1 - i});
  }
  PrefixIndex<> index;
  REQUIRE(index.attach(kCount, 16, 0).is_ok());
  if (used != 0) {
    PrefixNode last = index.insert(blocks[0], kNoNode, {{}, is_digest}, tokens.data(), PlanId{1});
    detail::ContentCursor cursor(view, 4, 1);
    REQUIRE(index.append(std::span(blocks).subspan(1), last, is_digest, cursor, PlanId{1}) ==
            kCount - 1);
    std::vector<std::size_t> order;  // In which the nodes will be used again.
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      order.push_back(used == 2 ? k * 7 % blocks.size() : k);
    }
    if (used == 3) {  // 1..16, then 33..48 the other way round, then 17..32
      std::rotate(order.begin() + 17, order.begin() + 33, order.begin() + 49);
      std::reverse(order.begin() + 17, order.begin() + 33);
    }
    for (std::size_t k = blocks.size(); k-- > 0;) {
      index.remove(blocks[order[k]]);
    }
  }
  const auto first_odd = odd < 0 ? kCount : std::int64_t{odd};
  if (odd >= 0) {
    index.mark_withdrawn(blocks[static_cast<std::size_t>(odd)]);
  }
  PrefixNode node = index.insert(blocks[0], kNoNode, {{}, is_digest}, tokens.data(), PlanId{7});
  const PrefixNode root = node;
  detail::ContentCursor cursor(view, 4, 1);
  CHECK(index.append(std::span(blocks).subspan(1), node, is_digest, cursor, PlanId{9}) ==
        first_odd - 1);
  CHECK(index.num_prefixes() == first_odd);
  CHECK(index.check(kCount).is_ok());
  PrefixNode found = root;
  for (std::int64_t i = 1; i < first_odd; ++i) {
    const BlockId block = blocks[static_cast<std::size_t>(i)];
    found = index.find_child(found, tokens.data() + 4 * i, is_digest);
    REQUIRE(found != kNoNode);
    CHECK(index.block_of(found) == block);
    CHECK(index.node_of(block) == found);
    CHECK(index.plan_of(block) == PlanId{9});
  }
  CHECK(found == node);
  CHECK(index.is_leaf(node));
}

TEST_CASE("PrefixIndex takes out runs that branch, have copies or lost their parent") {
  Fixture<> f;
  const PrefixNode a = f.insert(0, kNoNode, kA);
  const PrefixNode ab = f.insert(1, a, kB);
  f.insert(2, a, kC);
  f.insert(3, ab, kC);
  f.insert(4, ab, kC);
  f.insert(5, f.index.node_of(BlockId{3}), kA);
  f.index.remove(BlockId{1});  // The blocks below it can't be found any more.
  CHECK(f.index.check(8).is_ok());
  const BlockId blocks[4] = {BlockId{5}, BlockId{3}, BlockId{2}, BlockId{4}};
  f.index.remove(std::span<const BlockId>(blocks));
  CHECK(f.index.check(8).is_ok());
  CHECK(f.index.num_prefixes() == 1);
  CHECK(f.index.is_leaf(a));
  CHECK(f.index.block_of(f.index.find_root({}, kA)) == BlockId{0});
}
