// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A small engine around a TieredPool with a store: it keeps what device blocks and host slots
/// hold, makes the moves of plans and checks each block that a request is given. And a tier whose
/// operations end when and how a test says.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/kv/tiered_pool.hpp>

#include "../unit/kv/content.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace kv_test {

using StoredPool = dynbatch::TieredPool<dynbatch::BlockPool<>, dynbatch::AnyKVTier>;

class StoreBench {
 public:
  static constexpr std::int32_t kBlock = 4;
  static constexpr std::int64_t kSlotBytes = 32;

  struct Sizes {
    std::int64_t device = 12;
    std::int64_t host = 12;
  };

  template <class Tier>
  StoreBench(Tier& tier, Sizes sizes, dynbatch::TierConfig config = {}) : pool_(nullptr) {
    attach(tier, sizes, config);
  }
  ~StoreBench() { delete pool_; }
  StoreBench(const StoreBench&) = delete;
  StoreBench& operator=(const StoreBench&) = delete;

  template <class Tier>
  void attach(Tier& tier, Sizes sizes, dynbatch::TierConfig config) {
    host_.assign(static_cast<std::size_t>(sizes.host),
                 std::vector<std::byte>(static_cast<std::size_t>(kSlotBytes), std::byte{0x55}));
    device_.assign(static_cast<std::size_t>(sizes.device), 0);
    config.memory.context = this;
    config.memory.bytes = [](void* self, std::int32_t slot) noexcept {
      return std::span<std::byte>(
          static_cast<StoreBench*>(self)->host_.at(static_cast<std::size_t>(slot)));
    };
    config.memory.slot_bytes = kSlotBytes;
    delete pool_;
    pool_ = new StoredPool({.pool = {.num_blocks = sizes.device, .block_size = kBlock},
                            .num_host_blocks = sizes.host,
                            .min_load_blocks = 1,
                            .tier = config},
                           dynbatch::AnyKVTier(tier));
    status = pool_->attach({.max_rows = 4, .max_context_tokens = 64});
  }

  /// What block `i` of a content holds.
  static std::uint64_t value(const Content& content, std::int64_t i) {
    const dynbatch::CacheScope& s = content.scope();
    std::uint64_t h = dynbatch::combine64(s.model_epoch, s.has_tenant_salt ? s.tenant_salt + 1 : 0);
    for (std::int64_t t = 0; t < (i + 1) * kBlock; ++t) {
      h = dynbatch::combine64(
          h, static_cast<std::uint64_t>(content.tokens()[static_cast<std::size_t>(t)]));
    }
    return h;
  }

  StoredPool& pool() { return *pool_; }
  /// Time goes on, the store is heard.
  void advance(dynbatch::DurationNs by = dynbatch::milliseconds(1)) {
    now = now + by;
    pool_->unpin_expired(now);
    check();
  }
  /// Whether a request of this content is told to wait.
  bool asks(const Content& content, dynbatch::LoadWait& wait) {
    static_cast<void>(pool_->match(content.view(), content.length() - 1));
    const bool waits = pool_->awaits_load(content.view(), content.length() - 1, wait);
    check();
    return waits;
  }
  /// A request runs in a plan of its own and ends. Returns the tokens it found; -1: no room.
  std::int64_t run(const Content& content) {
    const auto view = content.view();
    const dynbatch::PrefixMatch match = pool_->match(view, content.length() - 1);
    const dynbatch::Row row{0};
    if (!pool_->acquire(row, match)) {
      return -1;
    }
    if (!pool_->extend(row, content.length())) {
      pool_->release(row);
      return -1;
    }
    const dynbatch::PlanId plan{++plan_};
    pool_->publish(row, view, content.length(), plan);
    move(plan);
    const auto table = pool_->table(0, row);
    for (std::int64_t i = 0; i < content.length() / kBlock; ++i) {
      std::uint64_t& block =
          device_.at(static_cast<std::size_t>(table[static_cast<std::size_t>(i)].value));
      if (i < match.num_blocks && block != value(content, i)) {
        fail("a block that was found holds something else");
      }
      block = value(content, i);
    }
    pool_->settle(plan);
    pool_->release(row);
    check();
    return match.num_tokens;
  }
  /// A plan without requests: what the last one computed moves to host memory.
  void flush() {
    const dynbatch::PlanId plan{++plan_};
    move(plan);
    pool_->settle(plan);
    check();
  }
  void run_and_flush(const Content& content) {
    if (run(content) < 0) {
      fail("no room");
    }
    flush();
  }
  /// The moves of a plan that is then abandoned: they may have been made or not.
  void flush_and_abandon(bool are_made) {
    const dynbatch::PlanId plan{++plan_};
    std::vector<dynbatch::BlockSwap> swaps = drain(plan);
    if (are_made) {
      make(swaps);
    }
    pool_->lose_swaps(swaps);
    check();
  }

  std::span<const std::byte> slot(std::int32_t i) const {
    return host_.at(static_cast<std::size_t>(i));
  }
  void check() {
    if (const dynbatch::Status s = pool_->check(); !s) {
      fail(std::string(s.field) + ": " + s.text);
    }
  }
  void fail(const std::string& text) { errors.push_back(text); }

  dynbatch::Status status{};
  dynbatch::TimeNs now{};
  std::vector<std::string> errors;
  std::set<std::int32_t> lent;  // Slots that no plan may move to or from; the test says which.

 private:
  std::vector<dynbatch::BlockSwap> drain(dynbatch::PlanId plan) {
    std::vector<dynbatch::BlockSwap> swaps(400);
    swaps.resize(pool_->drain_swaps(swaps, plan));
    return swaps;
  }
  void make(const std::vector<dynbatch::BlockSwap>& swaps) {
    for (const dynbatch::BlockSwap& s : swaps) {
      if (s.to_host && lent.count(s.host_slot) != 0) {
        fail("a slot was written while the tier had it");
      }
      std::vector<std::byte>& bytes = host_.at(static_cast<std::size_t>(s.host_slot));
      std::uint64_t& block = device_.at(static_cast<std::size_t>(s.device.value));
      if (s.to_host) {
        std::ranges::fill(bytes, std::byte{1});
        std::memcpy(bytes.data(), &block, sizeof(block));
      } else {
        std::memcpy(&block, bytes.data(), sizeof(block));
      }
    }
  }
  void move(dynbatch::PlanId plan) { make(drain(plan)); }

  std::vector<std::vector<std::byte>> host_;
  std::vector<std::uint64_t> device_;
  StoredPool* pool_;
  std::uint64_t plan_ = 0;
};

/// Answers queries at the next poll; fetches and stores end when told.
class ScriptTier {
 public:
  using Config = dynbatch::EmptyConfig;
  using Key = std::vector<std::uint64_t>;
  struct Pending {
    dynbatch::TierVerb verb{};
    std::uint64_t ticket = 0;
    std::vector<dynbatch::BlockKey> keys;
    std::vector<std::int32_t> slots;
    bool is_cancelled = false;
  };

  dynbatch::Status attach(const dynbatch::TierAttachment& a) noexcept {
    memory = a.memory;
    return dynbatch::kOk;
  }
  bool begin(const dynbatch::TierOperation& op) noexcept {
    ++begun[static_cast<std::size_t>(op.verb)];
    if (refuses) {
      return false;
    }
    if (op.verb == dynbatch::TierVerb::Query && answers_queries) {
      std::int64_t n = 0;
      while (n < static_cast<std::int64_t>(op.keys.size()) &&
             blocks.count(key(op.keys[static_cast<std::size_t>(n)])) != 0) {
        ++n;
      }
      ended.push_back({op.ticket, n, dynbatch::TierResult::Done});
    } else {
      pending.push_back({op.verb,
                         op.ticket,
                         {op.keys.begin(), op.keys.end()},
                         {op.slots.begin(), op.slots.end()},
                         false});
    }
    return true;
  }
  void cancel(std::uint64_t ticket) noexcept {
    for (Pending& p : pending) {
      p.is_cancelled = p.is_cancelled || p.ticket == ticket;
    }
  }
  std::size_t poll(dynbatch::TimeNs, std::span<dynbatch::TierCompletion> out) noexcept {
    const std::size_t n = std::min(out.size(), ended.size());
    std::copy_n(ended.begin(), n, out.begin());
    ended.erase(ended.begin(), ended.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }

  static Key key(const dynbatch::BlockKey& k) { return {k.words, k.words + 4}; }
  /// Ends the operation with this ticket: `good` leading blocks are done, and where some are not
  /// the result is a failure. What a fetch does not deliver is garbage.
  void finish(std::uint64_t ticket, std::int64_t good) {
    const auto it =
        std::ranges::find_if(pending, [&](const Pending& p) { return p.ticket == ticket; });
    const auto count = static_cast<std::int64_t>(it->keys.size());
    const std::int64_t n = it->is_cancelled ? 0 : std::min(good, count);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(it->slots.size()); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::span<std::byte> bytes = memory.bytes(memory.context, it->slots[at]);
      if (it->verb == dynbatch::TierVerb::Store) {
        if (i < n) {
          blocks[key(it->keys[at])] = {bytes.begin(), bytes.end()};
        }
      } else if (i < n) {
        std::ranges::copy(blocks.at(key(it->keys[at])), bytes.begin());
      } else {
        std::ranges::fill(bytes, std::byte{0xEE});
      }
    }
    ended.push_back({ticket, n,
                     it->is_cancelled ? dynbatch::TierResult::Cancelled
                     : n < count      ? dynbatch::TierResult::Failed
                                      : dynbatch::TierResult::Done});
    pending.erase(it);
  }
  std::uint64_t ticket_of(dynbatch::TierVerb verb) const {
    const auto it = std::ranges::find_if(pending, [&](const Pending& p) { return p.verb == verb; });
    return it == pending.end() ? 0 : it->ticket;
  }
  [[nodiscard]] int num_begun(dynbatch::TierVerb verb) const {
    return begun[static_cast<std::size_t>(verb)];
  }

  dynbatch::SlotMemory memory{};
  std::map<Key, std::vector<std::byte>> blocks;
  std::vector<Pending> pending;
  std::vector<dynbatch::TierCompletion> ended;
  int begun[3]{};
  bool refuses = false;
  bool answers_queries = true;
};

static_assert(dynbatch::KVTier<ScriptTier>);

}  // namespace kv_test
