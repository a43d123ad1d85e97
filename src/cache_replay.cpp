// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>
#include <dynbatch/base/math.hpp>
#include <dynbatch/kv/block_pool.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/sequence_content.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/replay.hpp>
#include <dynbatch/sim/trace.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
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

}  // namespace

CacheReplayRun replay_cache(const Trace& trace, const CacheReplayConfig& config) {
  CacheReplayRun run;
  const BlockPool<>::Config pool_config{.num_blocks = config.num_blocks,
                                        .block_size = config.block_size};
  run.status = pool_config.validate();
  run.status = run.status ? detail::check_block_size(trace, config.block_size) : run.status;
  if (!run.status) {
    return run;
  }
  const std::int64_t block_size = config.block_size;
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 26;
  const std::int64_t max_blocks = clamp_to(ceil_div(trace.longest_input(), block_size),
                                           std::int64_t{1}, min_of(config.num_blocks, kMostBlocks));
  detail::UnitTrace requests;
  requests.requests = trace.requests;
  requests.index.resize(trace.requests.size());
  std::iota(requests.index.begin(), requests.index.end(), std::uint64_t{0});
  requests.hash_ids = trace.hash_ids;
  requests.hash_block_tokens = trace.hash_block_tokens;
  requests.digest_unit = config.block_size;
  BlockPool<> pool(pool_config);
  run.status = pool.attach({.max_rows = 1, .max_context_tokens = max_blocks * block_size});
  PromptContent prompt(max_blocks, config.block_size);
  std::vector<ContentDigest> digests;
  constexpr Row kRow{0};
  for (std::size_t i = 0; i < trace.requests.size() && run.status; ++i) {
    detail::fill_digests(digests, requests, i, config.seed, true);
    const auto begun = static_cast<std::int64_t>(digests.size());
    const std::int64_t num_blocks = min_of(begun, max_blocks);
    run.num_cut += begun > num_blocks ? 1 : 0;
    const SequenceContentView content = prompt.view(digests, num_blocks);
    const std::int64_t tokens = num_blocks * block_size;
    const PrefixMatch match = pool.match(content, tokens);
    // Cannot fail: the row is empty and the pool holds any one prompt.
    if (!pool.acquire(kRow, match) || !pool.extend(kRow, tokens)) {
      run.status = {Errc::InternalError, "request", static_cast<std::int64_t>(i), num_blocks,
                    "an empty pool has no room for one prompt"};
      break;
    }
    pool.publish(kRow, content, tokens, kNoPlan);
    pool.release(kRow);
    const std::int64_t input = trace.requests[i].input_tokens;
    ++run.num_requests;
    run.num_requests_hit += match.num_blocks > 0 ? 1 : 0;
    run.input_tokens += input;
    run.hit_tokens += min_of(match.num_tokens, input);
  }
  run.evictions = static_cast<std::int64_t>(pool.stats().evictions);
  return run;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
