// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// MemoryStore: the reference KVTier, in memory, with time and faults at will.
#include <dynbatch/base/buffer.hpp>
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/kv/block_envelope.hpp>
#include <dynbatch/model/block_key.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace dynbatch::inline DYNBATCH_ABI {

/// Keeps blocks in an array of its own. Operations take the time that Faults say, measured on the
/// caller's clock, and end in poll(); what happens depends on the seed and the calls only. A block
/// is found from the moment its write has ended well and been checked; one that failed never was
/// there. The least recently used block makes room; blocks that are written or read don't. attach()
/// again joins the next engine; what was stored stays. Cost of begin() and poll(): O(operations +
/// blocks + bytes moved). One thread; no allocation after attach().
class MemoryStore {
 public:
  /// How operations behave. Chances are in 1/1000 and drawn when an operation begins.
  struct Faults {
    DurationNs latency{};     ///< Of each operation, and
    DurationNs block_time{};  ///< for each of its blocks, and
    DurationNs jitter{};      ///< up to so much more.
    std::int32_t query_fails = 0;
    std::int32_t fetch_fails = 0;
    std::int32_t store_fails = 0;
    std::int32_t partial = 0;   ///< Of the failed ones: some leading blocks were done before.
    std::int32_t never = 0;     ///< Does not end.
    std::int32_t corrupts = 0;  ///< A fetch delivers other bytes in one place.
    std::int32_t confuses = 0;  ///< A fetch delivers another block in one place.
    bool shuffles = false;      ///< What is due ends in any order.
    bool ignores_cancel = false;
    /// A fetch fills its slots with garbage first; one that was cancelled ends later, and does it
    /// once more.
    bool scribbles = false;
  };
  struct Config {
    std::int64_t num_blocks = 0;       ///< Capacity, in [1, 2^31 - 2].
    std::int32_t store_threshold = 0;  ///< Look-ups that a block needs before it is worth storing.
    std::uint64_t seed = 1;
    Faults faults{};

    [[nodiscard]] constexpr Status validate() const noexcept {
      if (num_blocks < 1 || num_blocks > 2147483646) {
        return {Errc::InvalidConfig, "num_blocks", num_blocks, 2147483646, "must be in [1, limit]"};
      }
      if (store_threshold < 0) {
        return {Errc::InvalidConfig, "store_threshold", store_threshold, 0, "must not be negative"};
      }
      for (const DurationNs time : {faults.latency, faults.block_time, faults.jitter}) {
        if (time.ns < 0) {
          return {Errc::InvalidConfig, "faults", time.ns, 0, "no time may be negative"};
        }
      }
      return kOk;
    }
  };
  struct Stats {
    std::uint64_t queries = 0;
    std::uint64_t fetches = 0;
    std::uint64_t stores = 0;
    std::uint64_t refused = 0;     ///< Operations that found no room.
    std::uint64_t mismatches = 0;  ///< Queries for a text that is there under other roots only.
    std::uint64_t corrupt = 0;     ///< Blocks found to be wrong when they were read.
    std::uint64_t evictions = 0;
    std::int64_t num_blocks = 0;  ///< That can be found.
    std::int32_t in_flight = 0;
  };

  MemoryStore() noexcept : MemoryStore(Config{}) {}
  explicit MemoryStore(const Config& config) noexcept : config_(config), random_(config.seed) {}

  [[nodiscard]] Status attach(const TierAttachment& attachment) noexcept;
  bool begin(const TierOperation& operation) noexcept;
  void cancel(std::uint64_t ticket) noexcept;
  std::size_t poll(TimeNs now, std::span<TierCompletion> completions) noexcept;

  /// When the next operation ends; kNever if none does. For simulations.
  [[nodiscard]] TimeNs next_end() const noexcept {
    TimeNs next = kNever;
    for (const Operation& op : operations_.span()) {
      next = op.ticket != 0 ? min_of(next, op.due) : next;
    }
    return next;
  }
  /// Ends operations now, in the order asked for: for tests that try all of them. True if there is
  /// such an operation.
  bool hasten(std::uint64_t ticket, TimeNs now, TierResult result) noexcept {
    Operation* op = find(ticket);
    if (op != nullptr) {
      op->due = now;
      op->outcome = result;
      op->num_good = result == TierResult::Done ? op->count : op->num_good;
    }
    return op != nullptr;
  }
  [[nodiscard]] bool has(const BlockKey& key) const noexcept {
    const std::int32_t e = find_block(key);
    return e >= 0 && blocks_.data()[e].state == State::Ready;
  }
  /// Harms the stored bytes of a block; false if it isn't there.
  bool harm(const BlockKey& key) noexcept {
    const std::int32_t e = find_block(key);
    if (e >= 0) {
      data(e)[0] ^= std::byte{1};
    }
    return e >= 0;
  }
  [[nodiscard]] Faults& faults() noexcept { return config_.faults; }
  [[nodiscard]] const Stats& stats() const noexcept { return stats_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  enum class State : std::uint8_t { Free, Writing, Ready };
  struct Block {
    BlockEnvelope envelope{};
    BlockKey root{};
    BlockKey key{};
    std::uint64_t family = 0;
    std::int32_t next = -1;         // In its bucket by key; free blocks are chained by it too.
    std::int32_t family_next = -1;  // In its bucket by family; first blocks of a prefix only.
    std::int32_t older = -1;        // Order of use, of blocks nobody reads.
    std::int32_t newer = -1;
    std::int32_t readers = 0;
    State state = State::Free;
    bool is_first = false;
  };
  struct Operation {
    std::uint64_t ticket = 0;  // 0 = unused
    std::uint64_t order = 0;
    TimeNs due{};
    TierVerb verb = TierVerb::Query;
    TierResult outcome = TierResult::Done;
    bool is_cancelled = false;
    std::int32_t count = 0;     // Keys.
    std::int32_t num_held = 0;  // Leading ones with a block behind them.
    std::int32_t num_good = 0;  // Of these, done when it ends.
    std::int32_t bad = -1;      // Place that is delivered wrongly.
    bool is_confused = false;
  };

  [[nodiscard]] std::byte* data(std::int32_t block) noexcept {
    return data_.data() +
           static_cast<std::size_t>(block) * static_cast<std::size_t>(memory_.slot_bytes);
  }
  [[nodiscard]] Block& at(std::int32_t block) noexcept { return blocks_.data()[block]; }
  [[nodiscard]] std::size_t index_of(const Operation& op) const noexcept {
    return static_cast<std::size_t>(&op - operations_.data());
  }
  [[nodiscard]] BlockKey* keys_of(const Operation& op) noexcept {
    return keys_.data() + index_of(op) * max_blocks_;
  }
  [[nodiscard]] std::int32_t* slots_of(const Operation& op) noexcept {
    return slots_.data() + index_of(op) * max_blocks_;
  }
  /// The blocks it reads or writes; -1 = it was there already.
  [[nodiscard]] std::int32_t* held_of(const Operation& op) noexcept {
    return held_.data() + index_of(op) * max_blocks_;
  }
  [[nodiscard]] Operation* find(std::uint64_t ticket) noexcept {
    for (Operation& op : operations_.span()) {
      if (ticket != 0 && op.ticket == ticket) {
        return &op;
      }
    }
    return nullptr;
  }
  [[nodiscard]] bool is_chance(std::int32_t permille) noexcept {
    return permille > 0 && random_.between(0, 999) < permille;
  }
  [[nodiscard]] std::size_t bucket(std::uint64_t hash) const noexcept {
    return hash & (buckets_.size() - 1);
  }
  [[nodiscard]] std::int32_t find_block(const BlockKey& key) const noexcept {
    if (buckets_.size() == 0) {
      return -1;
    }
    std::int32_t e = buckets_.data()[bucket(key.words[0])] - 1;
    while (e >= 0 && !(blocks_.data()[e].key == key)) {
      e = blocks_.data()[e].next;
    }
    return e;
  }

  void link_use(std::int32_t block) noexcept;
  void unlink_use(std::int32_t block) noexcept;
  std::int32_t take_block() noexcept;
  void enter(std::int32_t block, const TierOperation& operation, std::size_t i) noexcept;
  void drop(std::int32_t block) noexcept;
  void note_lookup(const BlockKey& key) noexcept;
  [[nodiscard]] bool is_wanted(const BlockKey& key) const noexcept;
  void note_mismatch(const TierOperation& operation) noexcept;
  bool hold_for_fetch(Operation& op) noexcept;
  bool hold_for_store(Operation& op, const TierOperation& operation) noexcept;
  void draw_outcome(Operation& op, const TierOperation& operation) noexcept;
  TierCompletion end(Operation& op) noexcept;
  void scribble(const Operation& op) noexcept;
  std::int32_t end_query(const Operation& op) noexcept;
  std::int32_t end_fetch(Operation& op) noexcept;
  std::int32_t end_store(Operation& op) noexcept;

  Config config_{};
  SplitMix64 random_;
  SlotMemory memory_{};
  Stats stats_{};
  Buffer<Block> blocks_;
  Buffer<std::byte> data_;         // [num_blocks][slot_bytes]
  Buffer<std::int32_t> buckets_;   // block + 1
  Buffer<std::int32_t> families_;  // block + 1
  Buffer<std::uint32_t> lookups_;  // by hash of the key: upper bits tell keys apart, low 8 count
  Buffer<Operation> operations_;
  Buffer<BlockKey> keys_;       // [operation][max_blocks]
  Buffer<std::int32_t> slots_;  // [operation][max_blocks]
  Buffer<std::int32_t> held_;   // [operation][max_blocks]
  std::size_t max_blocks_ = 0;
  TimeNs now_{};
  std::uint64_t next_order_ = 1;
  std::int32_t free_ = -1;
  std::int32_t num_used_ = 0;  // Blocks ever used.
  std::int32_t oldest_ = -1;
  std::int32_t newest_ = -1;
};

}  // namespace dynbatch::inline DYNBATCH_ABI

#include <dynbatch/kv/detail/memory_store_blocks.hpp>
#include <dynbatch/kv/detail/memory_store_operations.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
static_assert(KVTier<MemoryStore>);
}  // namespace dynbatch::inline DYNBATCH_ABI
