// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The store behind a mix's host memory: a MemoryStore with the mix's delays and faults, watched,
/// and with the errors of Planted that are a store's.
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/kv/memory_store.hpp>

#include "engine_mix.hpp"
#include "engine_run.hpp"
#include "kv_store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace dynbatch::test {

/// The host slots of one engine, as a store reaches them.
struct HostMemory {
  tiny::KvStore* kv = nullptr;
  static std::span<std::byte> bytes(void* self, std::int32_t slot) noexcept {
    return static_cast<HostMemory*>(self)->kv->host_bytes(slot);
  }
};

class MixStore {
 public:
  using Config = EmptyConfig;

  MixStore(const MixSettings& s, std::uint64_t seed) : store_(config(s, seed)) {}

  /// Errors from now on.
  void plant(Planted planted) { planted_ = planted; }

  [[nodiscard]] Status attach(const TierAttachment& attachment) noexcept {
    slots_.clear();
    fetched_.clear();
    hurried_.clear();
    hurried_tickets_.clear();
    return store_.attach(attachment);
  }

  bool begin(const TierOperation& operation) noexcept {
    TierOperation given = operation;
    std::vector<BlockKey> keys(operation.keys.begin(), operation.keys.end());
    if (planted_ == Planted::WrongBlockFetched && operation.verb == TierVerb::Fetch) {
      const auto other = std::find_if(known_.begin(), known_.end(), [&](const BlockKey& key) {
        return store_.has(key) && !(key == keys.back());
      });
      keys.back() = other == known_.end() ? keys.back() : *other;
      given.keys = keys;
    }
    if (!store_.begin(given)) {
      return false;
    }
    if (operation.verb == TierVerb::Fetch) {
      slots_[operation.ticket].assign(operation.slots.begin(), operation.slots.end());
      if (planted_ == Planted::FetchEndsEarly) {
        hurried_.push_back(
            {operation.ticket, static_cast<std::int64_t>(operation.keys.size()), TierResult::Done});
      }
    } else if (operation.verb == TierVerb::Store) {
      known_.insert(known_.end(), operation.keys.begin(), operation.keys.end());
    }
    return true;
  }

  void cancel(std::uint64_t ticket) noexcept { store_.cancel(ticket); }

  std::size_t poll(TimeNs now, std::span<TierCompletion> out) noexcept {
    std::size_t n = 0;
    for (; n < out.size() && !hurried_.empty(); ++n) {
      out[n] = hurried_.back();
      hurried_tickets_.insert(hurried_.back().ticket);
      hurried_.pop_back();
    }
    const std::size_t end = n + store_.poll(now, out.subspan(n));
    for (std::size_t i = n; i < end; ++i) {
      if (!hurried_tickets_.contains(out[i].ticket)) {
        out[n++] = out[i];
      }
    }
    for (const TierCompletion& done : out.first(n)) {
      const auto found = slots_.find(done.ticket);
      for (std::int64_t i = 0; i < done.num_blocks && found != slots_.end(); ++i) {
        fetched_.insert(found->second[static_cast<std::size_t>(i)]);
      }
    }
    return n;
  }

  /// A plan moves a block; true if it loads one to the device that came from this store.
  bool note(const BlockSwap& swap) {
    if (swap.to_host) {
      fetched_.erase(swap.host_slot);
    }
    return !swap.to_host && fetched_.contains(swap.host_slot);
  }

 private:
  static MemoryStore::Config config(const MixSettings& s, std::uint64_t seed) {
    MemoryStore::Config out{.num_blocks = s.store, .seed = seed};
    out.faults.latency = microseconds(s.store_delay);
    out.faults.block_time = microseconds(s.store_delay / 20);
    out.faults.jitter = microseconds(s.store_delay);
    out.faults.query_fails = out.faults.fetch_fails = out.faults.store_fails = s.store_fails;
    out.faults.partial = 500;
    out.faults.never = s.store_never;
    out.faults.corrupts = out.faults.confuses = s.store_wrong;
    out.faults.shuffles = (s.store_manners & 1) != 0;
    out.faults.ignores_cancel = (s.store_manners & 2) != 0;
    out.faults.scribbles = (s.store_manners & 4) != 0;
    return out;
  }

  MemoryStore store_;
  Planted planted_ = Planted::None;
  std::map<std::uint64_t, std::vector<std::int32_t>> slots_;  // of fetches, by ticket
  std::set<std::int32_t> fetched_;  // slots that hold what the store delivered
  std::vector<BlockKey> known_;     // was stored, or was to be
  std::vector<TierCompletion> hurried_;
  std::set<std::uint64_t> hurried_tickets_;
};

static_assert(KVTier<MixStore>);

}  // namespace dynbatch::test
