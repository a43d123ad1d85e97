// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/blake2b.hpp>
#include <dynbatch/kv/memory_store.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>
#include <vector>

using namespace dynbatch;

namespace {

/// An engine's host slots and a store.
struct Bench {
  explicit Bench(const MemoryStore::Config& config, std::int64_t slot_bytes = 64, int slots = 16)
      : store(config), memory(static_cast<std::size_t>(slots)) {
    for (auto& slot : memory) {
      slot.resize(static_cast<std::size_t>(slot_bytes));
    }
    attachment.memory.context = this;
    attachment.memory.bytes = [](void* self, std::int32_t slot) noexcept {
      return std::span<std::byte>(
          static_cast<Bench*>(self)->memory[static_cast<std::size_t>(slot)]);
    };
    attachment.memory.slot_bytes = slot_bytes;
    attachment.max_operations = 8;
    attachment.max_blocks = 8;
    attachment.max_blocks_in_flight = 64;
    REQUIRE(store.attach(attachment).is_ok());
  }

  static std::vector<BlockKey> keys(const std::string& names) {
    std::vector<BlockKey> out;
    for (const char name : names) {
      out.push_back(Blake2b::of(&name, 1));
    }
    return out;
  }
  void fill(std::int32_t slot, int value) {
    std::ranges::fill(memory[static_cast<std::size_t>(slot)], static_cast<std::byte>(value));
  }
  /// Begins an operation on blocks named by letters; its ticket, or 0 if it was refused.
  std::uint64_t begin(TierVerb verb, const std::string& names, std::int32_t first_slot = 0,
                      const KeyRoot& root = {}) {
    const std::vector<BlockKey> k = keys(names);
    std::vector<std::int32_t> slots;
    for (std::size_t i = 0; i < k.size() && verb != TierVerb::Query; ++i) {
      slots.push_back(first_slot + static_cast<std::int32_t>(i));
    }
    TierOperation op;
    op.verb = verb;
    op.ticket = ++ticket;
    op.root = root;
    op.keys = k;
    op.slots = slots;
    op.now = now;
    return store.begin(op) ? ticket : 0;
  }
  /// All that has ended by now.
  std::vector<TierCompletion> poll() {
    std::vector<TierCompletion> out(32);
    out.resize(store.poll(now, out));
    return out;
  }
  /// Leading blocks for which an operation that ends at once succeeds.
  std::int64_t run(TierVerb verb, const std::string& names, std::int32_t first_slot = 0,
                   const KeyRoot& root = {}) {
    if (begin(verb, names, first_slot, root) == 0) {
      return -1;
    }
    now.ns += 1'000'000'000;
    const auto ended = poll();
    REQUIRE(ended.size() == 1);
    last = ended[0].result;
    return ended[0].num_blocks;
  }

  MemoryStore store;
  TierAttachment attachment;
  std::vector<std::vector<std::byte>> memory;
  TimeNs now{};
  std::uint64_t ticket = 0;
  TierResult last = TierResult::Done;
};

}  // namespace

TEST_CASE("MemoryStore names what it cannot work with") {
  MemoryStore none;
  CHECK(std::string(none.attach({}).field) == "num_blocks");
  MemoryStore blind({.num_blocks = 4});
  CHECK(std::string(blind.attach({}).field) == "memory");
  CHECK(std::string(MemoryStore::Config{.num_blocks = 4, .store_threshold = -1}.validate().field) ==
        "store_threshold");
  Bench b({.num_blocks = 4});
  TierAttachment other = b.attachment;
  other.memory.slot_bytes = 32;
  CHECK(std::string(b.store.attach(other).field) == "slot_bytes");
}

TEST_CASE("MemoryStore does not wrap around") {
  const auto bytes = [](void*, std::int32_t) noexcept { return std::span<std::byte>(); };
  MemoryStore store({.num_blocks = 64});  // 64 times this is 0 in 64 bits
  const Status s = store.attach({.memory = {nullptr, bytes, std::int64_t{1} << 58}});
  CHECK(s.code == Errc::OutOfMemory);
  const DurationNs most{INT64_MAX};
  CHECK(MemoryStore::Config{.num_blocks = 1, .faults = {.jitter = {-1}}}.validate().code ==
        Errc::InvalidConfig);
  Bench b({.num_blocks = 8, .faults = {.latency = most, .block_time = most, .jitter = most}});
  REQUIRE(b.begin(TierVerb::Store, "abc") != 0);
  b.now.ns += 1'000'000'000;
  CHECK(b.poll().empty());
}

TEST_CASE("What was stored is fetched, as far as it is there") {
  Bench b({.num_blocks = 8});
  for (int i = 0; i < 3; ++i) {
    b.fill(i, 10 + i);
  }
  CHECK(b.run(TierVerb::Store, "abc") == 3);
  CHECK(b.run(TierVerb::Query, "abcd") == 3);
  CHECK(b.run(TierVerb::Query, "xab") == 0);
  CHECK(b.run(TierVerb::Fetch, "abcd", 8) == 3);
  CHECK(b.last == TierResult::Done);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(b.memory[8 + i] == b.memory[i]);
  }
  CHECK(b.run(TierVerb::Store, "bc") == 2);  // there already
  CHECK(b.store.stats().num_blocks == 3);
}

// G28 with this store's rules: a block that is still being written is a miss, not "pending" (R22:
// nobody waits for a write that may never end), and a store that is refused is refused as a whole.
TEST_CASE("Golden G28, offload tier") {
  Bench b({.num_blocks = 3, .faults = {.latency = milliseconds(10)}});
  b.fill(0, 1);
  REQUIRE(b.begin(TierVerb::Store, "a", 0) != 0);
  REQUIRE(b.begin(TierVerb::Store, "b", 1) != 0);
  REQUIRE(b.begin(TierVerb::Store, "c", 2) != 0);
  CHECK_FALSE(b.store.has(Bench::keys("a")[0]));
  CHECK(b.begin(TierVerb::Store, "d", 3) == 0);  // all in flight
  b.now = TimeNs{10'000'000};
  CHECK(b.poll().size() == 3);
  CHECK(b.store.has(Bench::keys("a")[0]));
  REQUIRE(b.begin(TierVerb::Fetch, "a", 8) != 0);  // being read
  REQUIRE(b.begin(TierVerb::Store, "d", 3) != 0);
  REQUIRE(b.begin(TierVerb::Store, "e", 4) != 0);
  CHECK(b.store.stats().evictions == 2);
  CHECK_FALSE(b.store.has(Bench::keys("b")[0]));
  CHECK_FALSE(b.store.has(Bench::keys("c")[0]));
  CHECK(b.begin(TierVerb::Store, "f", 5) == 0);
  b.now = TimeNs{20'000'000};
  CHECK(b.poll().size() == 3);
  CHECK(b.memory[8] == b.memory[0]);
  CHECK(b.run(TierVerb::Query, "d") == 1);

  Bench wary({.num_blocks = 8, .store_threshold = 2});
  CHECK(wary.run(TierVerb::Store, "a") == 0);  // skipped, which is no failure
  CHECK(wary.last == TierResult::Done);
  CHECK(wary.run(TierVerb::Query, "a") == 0);
  CHECK(wary.run(TierVerb::Store, "a") == 0);
  CHECK(wary.run(TierVerb::Query, "a") == 0);
  CHECK(wary.run(TierVerb::Store, "a") == 1);
  CHECK(wary.run(TierVerb::Query, "a") == 1);
}

TEST_CASE("R20, a failed write is invisible and the others are whole") {
  constexpr int kPuts = 1000;
  constexpr std::int64_t kBytes = 64 * 1024;
  Bench b(
      {.num_blocks = kPuts, .seed = 3, .faults = {.latency = microseconds(50), .store_fails = 200}},
      kBytes, 2);
  std::map<int, bool> is_stored;
  const auto key_of = [](int i) { return Blake2b::of(&i, sizeof(i)); };
  const auto operation = [&](TierVerb verb, const BlockKey& key, const std::int32_t& slot) {
    TierOperation op;
    op.verb = verb;
    op.ticket = ++b.ticket;
    op.keys = {&key, 1};
    op.slots = {&slot, verb == TierVerb::Query ? 0U : 1U};
    op.now = b.now;
    REQUIRE(b.store.begin(op));
    b.now.ns += 50'000;
    const auto ended = b.poll();
    REQUIRE(ended.size() == 1);
    return ended[0].num_blocks == 1;
  };
  const auto content = [&](std::int32_t slot, int i) {
    auto& bytes = b.memory[static_cast<std::size_t>(slot)];
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(int)) {
      const int word = i * 100003 + static_cast<int>(at);
      std::memcpy(&bytes[at], &word, sizeof(word));
    }
  };
  for (int i = 0; i < kPuts; ++i) {
    content(0, i);
    is_stored[i] = operation(TierVerb::Store, key_of(i), 0);
  }
  const auto stored = std::ranges::count_if(is_stored, [](const auto& s) { return s.second; });
  CHECK(stored > 750);
  CHECK(stored < 850);
  for (int i = 0; i < kPuts; ++i) {
    INFO(i);
    REQUIRE(operation(TierVerb::Query, key_of(i), 0) == is_stored[i]);
    std::ranges::fill(b.memory[1], std::byte{0xAB});
    REQUIRE(operation(TierVerb::Fetch, key_of(i), 1) == is_stored[i]);
    content(0, i);
    REQUIRE((b.memory[1] == b.memory[0]) == is_stored[i]);
  }
}

TEST_CASE("A reader polls while a writer writes and gets a miss or the whole block") {
  Bench b({.num_blocks = 4, .faults = {.latency = milliseconds(5)}});
  b.fill(0, 7);
  REQUIRE(b.begin(TierVerb::Store, "a", 0) != 0);
  for (int i = 0; i < 4; ++i) {
    b.now.ns += 1'000'000;
    b.fill(0, 7 + i);  // the writer is not done: what it writes last is what counts
    REQUIRE(b.poll().empty());
    REQUIRE_FALSE(b.store.has(Bench::keys("a")[0]));
  }
  b.now.ns += 1'000'000;
  REQUIRE(b.poll().size() == 1);
  CHECK(b.run(TierVerb::Fetch, "a", 8) == 1);
  CHECK(b.memory[8] == b.memory[0]);
}

TEST_CASE("Wrong data are found out, reported, and gone") {
  Bench b({.num_blocks = 8});
  b.fill(0, 1);
  b.fill(1, 2);
  b.fill(2, 3);
  REQUIRE(b.run(TierVerb::Store, "abc") == 3);
  REQUIRE(b.store.harm(Bench::keys("b")[0]));
  CHECK(b.run(TierVerb::Fetch, "abc", 8) == 1);
  CHECK(b.last == TierResult::Corrupt);
  CHECK(b.run(TierVerb::Query, "abc") == 1);  // it was dropped
  CHECK(b.store.stats().corrupt == 1);
  b.store.faults().confuses = 1000;  // delivers another block
  CHECK(b.run(TierVerb::Fetch, "c", 8) == 0);
  CHECK(b.last == TierResult::Corrupt);
  b.store.faults().confuses = 0;
  b.store.faults().corrupts = 1000;
  CHECK(b.run(TierVerb::Fetch, "c", 8) == 0);
  CHECK(b.last == TierResult::Corrupt);
  b.store.faults().corrupts = 0;
  CHECK(b.run(TierVerb::Fetch, "c", 8) == 1);  // those were faults of the way
}

TEST_CASE("A failed fetch or store has done a leading part at most") {
  Bench b({.num_blocks = 8, .seed = 5, .faults = {.store_fails = 1000, .partial = 1000}});
  const std::int64_t n = b.run(TierVerb::Store, "abcdef");
  CHECK(b.last == TierResult::Failed);
  CHECK(n >= 1);
  CHECK(n < 6);
  b.store.faults() = {};
  CHECK(b.run(TierVerb::Query, "abcdef") == n);
  CHECK(b.store.stats().num_blocks == n);
  b.store.faults() = {.fetch_fails = 1000};
  CHECK(b.run(TierVerb::Fetch, "ab", 8) == 0);
  CHECK(b.last == TierResult::Failed);
  b.store.faults() = {.query_fails = 1000};
  CHECK(b.run(TierVerb::Query, "ab") == 0);
  CHECK(b.last == TierResult::Failed);
}

TEST_CASE("Operations are bounded, end when cancelled, and never end where that was asked for") {
  Bench b({.num_blocks = 8, .faults = {.never = 1000}});
  std::vector<std::uint64_t> tickets;
  for (int i = 0; i < 8; ++i) {
    tickets.push_back(b.begin(TierVerb::Query, "a"));
    REQUIRE(tickets.back() != 0);
  }
  CHECK(b.begin(TierVerb::Query, "a") == 0);
  CHECK(b.begin(TierVerb::Query, "abcdefghi") == 0);  // more than one operation may have
  b.now = TimeNs{INT64_MAX - 1};
  CHECK(b.poll().empty());
  CHECK(b.store.next_end() == kNever);
  b.store.cancel(tickets[3]);
  const auto ended = b.poll();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].ticket == tickets[3]);
  CHECK(ended[0].result == TierResult::Cancelled);
  CHECK(ended[0].num_blocks == 0);
  b.store.cancel(tickets[3]);
  b.store.cancel(999);
  CHECK(b.poll().empty());
  b.store.faults().ignores_cancel = true;
  b.store.cancel(tickets[4]);
  CHECK(b.poll().empty());
}

TEST_CASE("A cancelled store leaves nothing") {
  Bench b({.num_blocks = 2, .faults = {.latency = milliseconds(1)}});
  const std::uint64_t ticket = b.begin(TierVerb::Store, "ab");
  b.store.cancel(ticket);
  REQUIRE(b.poll().size() == 1);
  b.store.faults() = {};
  CHECK(b.run(TierVerb::Query, "a") == 0);
  CHECK(b.run(TierVerb::Store, "cd") == 2);  // the room is free
}

TEST_CASE("Operations end in the order of their times, or in any") {
  const auto order = [](bool shuffles, std::uint64_t seed) {
    Bench b({.num_blocks = 8,
             .seed = seed,
             .faults = {.latency = milliseconds(1), .shuffles = shuffles}});
    std::string out;
    for (int i = 0; i < 6; ++i) {
      b.begin(TierVerb::Query, "a");
    }
    b.now.ns += 1'000'000;
    for (const TierCompletion& c : b.poll()) {
      out += std::to_string(c.ticket);
    }
    return out;
  };
  CHECK(order(false, 1) == "123456");
  CHECK(order(true, 1) != order(true, 2));
  CHECK(order(true, 1) == order(true, 1));  // of the seed only
}

TEST_CASE("The least recently used block makes room") {
  Bench b({.num_blocks = 3});
  CHECK(b.run(TierVerb::Store, "abc") == 3);
  CHECK(b.run(TierVerb::Fetch, "a", 8) == 1);
  CHECK(b.run(TierVerb::Store, "d") == 1);
  CHECK(b.run(TierVerb::Query, "a") == 1);
  CHECK(b.run(TierVerb::Query, "b") == 0);
  CHECK(b.run(TierVerb::Query, "c") == 1);
}

TEST_CASE("A text that is there under other roots only is a mismatch") {
  Bench b({.num_blocks = 8});
  const KeyRoot mine{Blake2b::of("m", 1), 42};
  const KeyRoot other{Blake2b::of("o", 1), 42};
  CHECK(b.run(TierVerb::Store, "a", 0, mine) == 1);
  CHECK(b.run(TierVerb::Query, "b", 0, mine) == 0);  // another text of the same root: a plain miss
  CHECK(b.store.stats().mismatches == 0);
  CHECK(b.run(TierVerb::Query, "b", 0, other) == 0);
  CHECK(b.store.stats().mismatches == 1);
  CHECK(b.run(TierVerb::Query, "b", 0, {other.digest, 43}) == 0);
  CHECK(b.store.stats().mismatches == 1);
}

TEST_CASE("Random operations agree with a map of what is there") {
  const auto seed = GENERATE(as<std::uint64_t>(), 1, 2, 3, 4, 5, 6);
  Bench b({.num_blocks = 200,
           .seed = seed,
           .faults = {.latency = microseconds(10),
                      .jitter = milliseconds(1),
                      .query_fails = 30,
                      .fetch_fails = 100,
                      .store_fails = 200,
                      .partial = 500,
                      .corrupts = 50,
                      .shuffles = true,
                      .scribbles = true}});
  SplitMix64 rng(seed);
  std::map<char, bool> there;
  struct Pending {
    TierVerb verb;
    std::string names;
  };
  std::map<std::uint64_t, Pending> pending;
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  for (int i = 0; i < 3000; ++i) {
    const auto first = static_cast<std::size_t>(rng.between(0, 20));
    const std::string names = letters.substr(first, static_cast<std::size_t>(rng.between(1, 5)));
    if (pending.empty() || rng.one_in(3)) {  // one operation at a time has slots 0 to 7
      const auto verb = static_cast<TierVerb>(rng.between(0, 2));
      if (pending.empty()) {
        for (std::int32_t s = 0; s < 8 && verb == TierVerb::Store; ++s) {
          b.fill(s, s < static_cast<std::int32_t>(names.size()) ? names[static_cast<std::size_t>(s)]
                                                                : 0);
        }
        if (const std::uint64_t t = b.begin(verb, names); t != 0) {
          pending[t] = {verb, names};
        }
      }
    }
    b.now.ns += rng.between(0, 600'000);
    for (const TierCompletion& c : b.poll()) {
      const Pending p = pending.at(c.ticket);
      pending.erase(c.ticket);
      std::int64_t known = 0;
      while (known < static_cast<std::int64_t>(p.names.size()) &&
             there[p.names[static_cast<std::size_t>(known)]]) {
        ++known;
      }
      REQUIRE(c.num_blocks <= static_cast<std::int64_t>(p.names.size()));
      if (p.verb == TierVerb::Query && c.result == TierResult::Done) {
        REQUIRE(c.num_blocks == known);
      }
      for (std::int64_t k = 0; k < c.num_blocks; ++k) {
        const char name = p.names[static_cast<std::size_t>(k)];
        if (p.verb == TierVerb::Store) {
          there[name] = true;
        } else if (p.verb == TierVerb::Fetch) {
          REQUIRE(there[name]);
          REQUIRE(b.memory[static_cast<std::size_t>(k)][5] == static_cast<std::byte>(name));
        }
      }
      if (p.verb == TierVerb::Fetch && c.result == TierResult::Done) {
        REQUIRE(c.num_blocks == known);
      }
    }
  }
}
