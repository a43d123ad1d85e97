// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// KVTier: an asynchronous store of KV blocks by key, outside the plan.
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/time.hpp>
#include <dynbatch/concepts/ladder.hpp>
#include <dynbatch/model/block_key.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace dynbatch::inline DYNBATCH_ABI {

/// The engine's host slots, which only the engine knows how to reach. `bytes(context, slot)` is
/// called from any thread of the tier, for slots of operations that are not complete yet, and
/// returns the same memory each time.
struct SlotMemory {
  using Bytes = std::span<std::byte> (*)(void* context, std::int32_t slot) noexcept;
  void* context = nullptr;
  Bytes bytes = nullptr;
  std::int64_t slot_bytes = 0;  ///< Of each slot.
};

/// What a tier is told once.
struct TierAttachment {
  SlotMemory memory{};
  std::int32_t max_operations = 0;        ///< Most that are ever in flight.
  std::int64_t max_blocks = 0;            ///< Most of one operation.
  std::int64_t max_blocks_in_flight = 0;  ///< Most of all fetches and stores together.
};

enum class TierVerb : std::uint8_t {
  Query,  ///< How many leading ones of these keys are there, complete and verified?
  Fetch,  ///< Write the blocks of these keys into these slots.
  Store,  ///< Keep the content of these slots under these keys.
};

/// One operation on consecutive blocks of one prefix, parents first. The spans are valid during the
/// call only; the slots until the operation completes.
struct TierOperation {
  TierVerb verb = TierVerb::Query;
  std::uint64_t ticket = 0;  ///< Names it; never used twice.
  KeyRoot root{};
  std::int64_t first_block = 0;  ///< Place of keys[0] in the prefix.
  std::span<const BlockKey> keys{};
  std::span<const std::int32_t> slots{};  ///< One a key; none for a query.
  TimeNs now{};
  TimeNs deadline =
      kNever;  ///< It will be cancelled then; what can't be done by then need not begin.
};

enum class TierResult : std::uint8_t {
  Done,       ///< Came to its end. A query or fetch that finds less is Done, too.
  Failed,     ///< An error of the store, the network or the device.
  Corrupt,    ///< Data was found that is not what its key says: bytes, length, key or format.
  Cancelled,  ///< Ended by cancel().
};

/// The end of an operation. Nothing of the tier touches its slots any more.
struct TierCompletion {
  std::uint64_t ticket = 0;
  std::int64_t num_blocks = 0;  ///< Leading blocks that are there, fetched or stored for certain.
  TierResult result = TierResult::Done;
};

/// Laws: docs/kv_tier.md. No call blocks.
template <class T>
concept KVTier = std::movable<T> && detail::HasConfig<T> &&
                 requires(T& t, const TierAttachment& attachment, const TierOperation& operation,
                          std::uint64_t ticket, TimeNs now, std::span<TierCompletion> completions) {
                   { t.attach(attachment) } noexcept -> std::same_as<Status>;
                   { t.begin(operation) } noexcept -> std::same_as<bool>;
                   { t.cancel(ticket) } noexcept -> std::same_as<void>;
                   { t.poll(now, completions) } noexcept -> std::same_as<std::size_t>;
                 };

// One rung of the ladder: the expression `call` must be noexcept and return `type`.
#define DYNBATCH_TIER_RUNG(call, type, text)                                              \
  static_assert(                                                                          \
      requires(T& t, const TierAttachment& attachment, const TierOperation& operation,    \
               std::uint64_t ticket, TimeNs now, std::span<TierCompletion> completions) { \
        { call } noexcept -> std::same_as<type>;                                          \
      },                                                                                  \
      "dynbatch: a KVTier needs '" text " noexcept'. See docs/kv_tier.md")

/// One readable message for each missing requirement; called by TieredPool.
template <class T>
consteval bool check_kv_tier() {
  static_assert(std::movable<T>, "dynbatch: a KVTier needs to be movable. See docs/kv_tier.md");
  static_assert(detail::HasConfig<T>,
                "dynbatch: a KVTier needs 'struct Config { Status validate() const noexcept; }'. "
                "See docs/kv_tier.md");
  DYNBATCH_TIER_RUNG(t.attach(attachment), Status, "Status attach(const TierAttachment&)");
  DYNBATCH_TIER_RUNG(t.begin(operation), bool, "bool begin(const TierOperation&)");
  DYNBATCH_TIER_RUNG(t.cancel(ticket), void, "void cancel(std::uint64_t)");
  DYNBATCH_TIER_RUNG(t.poll(now, completions), std::size_t,
                     "std::size_t poll(TimeNs, std::span<TierCompletion>)");
  return true;
}
#undef DYNBATCH_TIER_RUNG

/// A view of any KVTier for run-time choice; the caller keeps the model alive.
class AnyKVTier {
 public:
  using Config = EmptyConfig;

  template <class T>
    requires(!std::same_as<std::remove_const_t<T>, AnyKVTier> && KVTier<T>)
  explicit AnyKVTier(T& model) noexcept : self_(&model), table_(&kTable<T>) {}

  [[nodiscard]] Status attach(const TierAttachment& a) noexcept { return table_->attach(self_, a); }
  bool begin(const TierOperation& operation) noexcept { return table_->begin(self_, operation); }
  void cancel(std::uint64_t ticket) noexcept { table_->cancel(self_, ticket); }
  std::size_t poll(TimeNs now, std::span<TierCompletion> out) noexcept {
    return table_->poll(self_, now, out);
  }

 private:
  struct Table {
    Status (*attach)(void*, const TierAttachment&) noexcept;
    bool (*begin)(void*, const TierOperation&) noexcept;
    void (*cancel)(void*, std::uint64_t) noexcept;
    std::size_t (*poll)(void*, TimeNs, std::span<TierCompletion>) noexcept;
  };
  template <class T>
  static constexpr Table kTable{
      [](void* t, const TierAttachment& a) noexcept { return static_cast<T*>(t)->attach(a); },
      [](void* t, const TierOperation& o) noexcept { return static_cast<T*>(t)->begin(o); },
      [](void* t, std::uint64_t ticket) noexcept { static_cast<T*>(t)->cancel(ticket); },
      [](void* t, TimeNs now, std::span<TierCompletion> out) noexcept {
        return static_cast<T*>(t)->poll(now, out);
      }};

  void* self_;
  const Table* table_;
};

static_assert(KVTier<AnyKVTier>);

/// The do-nothing model: TieredPool without a store behind host memory.
struct NullTier {
  using Config = EmptyConfig;
  [[nodiscard]] Status attach(const TierAttachment& attachment) noexcept {
    static_cast<void>(attachment);
    return kOk;
  }
  /// Refuses everything.
  bool begin(const TierOperation& operation) noexcept {
    static_cast<void>(operation);
    return false;
  }
  void cancel(std::uint64_t ticket) noexcept { static_cast<void>(ticket); }
  std::size_t poll(TimeNs now, std::span<TierCompletion> completions) noexcept {
    static_cast<void>(now);
    static_cast<void>(completions);
    return 0;
  }
};

static_assert(KVTier<NullTier>);

}  // namespace dynbatch::inline DYNBATCH_ABI
