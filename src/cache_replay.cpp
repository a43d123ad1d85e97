// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/belady.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/kv/lru.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/eviction_name.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/trace.hpp>

#include "eviction_choice.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

constexpr std::int64_t kTokensPerDigest = sizeof(ContentDigest) / sizeof(Token);

// One prompt as the pool sees it: a digest for each block begun, side by side in one page.
class PromptContent {
 public:
  PromptContent(std::int64_t max_blocks, std::int32_t block_size)
      : block_size_(block_size),
        storage_(static_cast<std::size_t>(max_blocks * kTokensPerDigest)) {}

  [[nodiscard]] SequenceContentView view(const std::vector<ContentDigest>& digests,
                                         std::int64_t num_blocks) {
    if (num_blocks != 0) {  // A null pointer is none of memcpy's business.
      std::memcpy(storage_.data(), digests.data(),
                  static_cast<std::size_t>(num_blocks) * sizeof(ContentDigest));
    }
    SequenceContentView view{};
    view.scope = &scope_;
    view.storage = storage_.data();
    view.pages = &page_;
    view.page_tokens = static_cast<std::int32_t>(storage_.size());
    view.digest_unit = block_size_;
    view.prompt_length = view.known_length = view.cacheable_length = num_blocks * block_size_;
    return view;
  }

 private:
  CacheScope scope_{};
  std::uint32_t page_ = 0;
  std::int32_t block_size_;
  std::vector<Token> storage_;
};

// For each request the next request that needs each block of its prompt; `num_times` if none does.
class NextUses {
 public:
  explicit NextUses(std::size_t num_requests) : num_times_(num_requests) {}

  // A prompt, in order of arrival.
  void append(const std::vector<ContentDigest>& digests, std::int64_t num_blocks) {
    starts_.push_back(prefixes_.size());
    std::uint64_t prefix = 0;
    for (std::int64_t k = 0; k < num_blocks; ++k) {
      const ContentDigest& digest = digests[static_cast<std::size_t>(k)];
      const auto [it, is_new] =
          ids_.try_emplace(std::array{prefix, digest.high, digest.low}, ids_.size() + 1);
      prefix = it->second;
      prefixes_.push_back(prefix);
    }
  }
  void finish() {
    starts_.push_back(prefixes_.size());
    times_.resize(prefixes_.size());
    std::vector<std::int64_t> next(ids_.size() + 1, static_cast<std::int64_t>(num_times_));
    for (std::size_t i = starts_.size() - 1; i-- > 0;) {
      for (std::size_t k = starts_[i]; k < starts_[i + 1]; ++k) {
        times_[k] = std::exchange(next[prefixes_[k]], static_cast<std::int64_t>(i));
      }
    }
  }
  [[nodiscard]] std::span<const std::int64_t> of(std::size_t request) const {
    return std::span(times_).subspan(starts_[request], starts_[request + 1] - starts_[request]);
  }

 private:
  std::size_t num_times_;
  std::map<std::array<std::uint64_t, 3>, std::uint64_t> ids_;  // Of prefixes; 0 is the empty one.
  std::vector<std::uint64_t> prefixes_;
  std::vector<std::int64_t> times_;
  std::vector<std::size_t> starts_;
};

class CacheReplay {
 public:
  CacheReplay(const Trace& trace, const CacheReplayConfig& config)
      : trace_(trace), config_(config) {}

  CacheReplayRun run() {
    if (config_.eviction == CacheEviction::Lru) {
      return run_with(Lru());
    }
    if (config_.eviction == CacheEviction::Belady) {
      return run_with(Belady({.num_times = max_of<std::int64_t>(
                                  static_cast<std::int64_t>(trace_.requests.size()), 1)}));
    }
    CacheReplayRun run;
    if (!detail::with_eviction(config_.eviction, config_.cost, config_.block_size,
                               [&](const auto& make) { run = run_with(make()); })) {
      run.status = {Errc::InvalidConfig, "eviction", static_cast<std::int64_t>(config_.eviction), 0,
                    "no such eviction order"};
    }
    return run;
  }

 private:
  static constexpr Row kRow{0};

  template <class Eviction>
  CacheReplayRun run_with(Eviction eviction) {
    CacheReplayRun run;
    using Pool = BlockPool<Eviction>;
    const typename Pool::Config pool_config{.num_blocks = config_.num_blocks,
                                            .block_size = config_.block_size};
    run.status = pool_config.validate();
    run.status = run.status ? detail::check_block_size(trace_, config_.block_size) : run.status;
    if (!run.status) {
      return run;
    }
    describe_requests();
    Pool pool(pool_config, std::move(eviction));
    run.status =
        pool.attach({.max_rows = 1, .max_context_tokens = max_blocks_ * config_.block_size});
    NextUses next_uses(trace_.requests.size());  // NOLINT(misc-const-correctness): Belady's
    if constexpr (std::same_as<Eviction, Belady>) {
      for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
        read_prompt(i);
        next_uses.append(digests_, num_blocks_);
      }
      next_uses.finish();
    }
    PromptContent prompt(max_blocks_, config_.block_size);
    for (std::size_t i = 0; i < trace_.requests.size() && run.status; ++i) {
      read_prompt(i);
      run.num_cut += static_cast<std::int64_t>(digests_.size()) > num_blocks_ ? 1 : 0;
      if constexpr (std::same_as<Eviction, Belady>) {
        pool.eviction().set_next_uses(next_uses.of(i));
      }
      pool.unpin_expired({trace_.requests[i].arrival_ns});
      run.status = play(pool, prompt.view(digests_, num_blocks_), i, run);
    }
    run.evictions = static_cast<std::int64_t>(pool.stats().evictions);
    return run;
  }

  void describe_requests() {
    constexpr std::int64_t kMostBlocks = std::int64_t{1} << 26;
    max_blocks_ = clamp_to(ceil_div(trace_.longest_input(), std::int64_t{config_.block_size}),
                           std::int64_t{1}, min_of(config_.num_blocks, kMostBlocks));
    requests_.requests = trace_.requests;
    requests_.index.resize(trace_.requests.size());
    std::iota(requests_.index.begin(), requests_.index.end(), std::uint64_t{0});
    requests_.hash_ids = trace_.hash_ids;
    requests_.hash_block_tokens = trace_.hash_block_tokens;
    requests_.digest_unit = config_.block_size;
  }

  void read_prompt(std::size_t i) {
    detail::fill_digests(digests_, requests_, i, config_.seed, true);
    num_blocks_ = min_of(static_cast<std::int64_t>(digests_.size()), max_blocks_);
  }

  // Looks a prompt up, enters it and releases it.
  template <class Pool>
  Status play(Pool& pool, const SequenceContentView& content, std::size_t i,
              CacheReplayRun& run) const {
    const std::int64_t tokens = num_blocks_ * config_.block_size;
    const PrefixMatch match = pool.match(content, tokens);
    // Cannot fail: the row is empty and the pool holds any one prompt.
    if (!pool.acquire(kRow, match) || !pool.extend(kRow, tokens)) {
      return {Errc::InternalError, "request", static_cast<std::int64_t>(i), num_blocks_,
              "an empty pool has no room for one prompt"};
    }
    pool.publish(kRow, content, tokens, kNoPlan);
    pool.release(kRow);
    const std::int64_t input = trace_.requests[i].input_tokens;
    ++run.num_requests;
    run.num_requests_hit += match.num_blocks > 0 ? 1 : 0;
    run.input_tokens += input;
    const std::int64_t hit = min_of(match.num_tokens, input);
    run.hit_tokens += hit;
    run.input_ns = saturating_add(run.input_ns, time_of(input));
    run.saved_ns = saturating_add(run.saved_ns, time_of(hit));
    return kOk;
  }

  // To compute so many leading tokens of a prompt, all at once.
  [[nodiscard]] std::int64_t time_of(std::int64_t tokens) const noexcept {
    StepCost cost = config_.cost;
    cost.fixed_ns = 0;
    return cost
        .predict({.prefill_tokens = tokens, .attention_pairs = chunk_attention_pairs(0, tokens)})
        .ns;
  }

  const Trace& trace_;
  const CacheReplayConfig& config_;
  detail::UnitTrace requests_;
  std::vector<ContentDigest> digests_;  // Of the prompt being read,
  std::int64_t num_blocks_ = 0;         // of which so many are entered.
  std::int64_t max_blocks_ = 1;
};

}  // namespace

CacheReplayRun replay_cache(const Trace& trace, const CacheReplayConfig& config) {
  return CacheReplay(trace, config).run();
}

}  // namespace dynbatch::inline DYNBATCH_ABI
