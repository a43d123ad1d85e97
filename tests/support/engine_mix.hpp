// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A mix: everything that one run of the schedule invariance suite consists of, as plain data, so
/// that a failing one can be made smaller and run again. Ingredients put things into a mix.
#include <dynbatch/base/random.hpp>
#include <dynbatch/model/request.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace dynbatch::test {

/// One request. Steps count from 0; -1 = never.
struct MixRequest {
  std::int32_t key = 0;      ///< Draws its own tokens and its seed; stays when others go.
  std::int32_t arrival = 0;  ///< Step before which it is submitted.
  std::int32_t family = 0;   ///< Whose tokens its prompt begins with,
  std::int32_t shared = 0;   ///< and for how long.
  std::int32_t follows = 0;  ///< Key of an earlier request: the prompt begins with its prompt
  std::int32_t heard = 0;    ///< and so many of its outputs, as the next turn of a talk does.
  std::int32_t length = 1;   ///< Without what it follows.
  std::int32_t outputs = 1;  ///< max_new_tokens.
  std::int32_t min_outputs = 0;
  std::int32_t stop_at = -1;       ///< Its stop token is what its first sample says there.
  std::int32_t host_stop_at = -1;  ///< The host ends each sample after so many outputs.
  std::int32_t samples = 1;
  std::int32_t temperature = 0;
  std::int32_t adapter = 0;
  std::int32_t salt = -1;
  std::int32_t priority = 0;
  std::int32_t tenant = 0;
  std::int32_t cancel_at = -1;
  std::int32_t start_within = -1;   ///< Steps from its arrival.
  std::int32_t finish_within = -1;  ///< Steps from its arrival.
  std::int32_t digest_blocks = 0;   ///< The prompt is given as digests of so many blocks.
  std::int32_t open_ended = 0;
  std::int32_t no_prefix_read = 0;
  std::int32_t sync_decode = 0;
  std::int32_t atomic_prefill = 0;
  friend bool operator==(const MixRequest&, const MixRequest&) = default;
};

/// Something that happens at a step, or to the first plan that runs from then on.
enum class IncidentKind : std::uint8_t {
  NotRun,         ///< A chunk of the plan does not run.
  Partial,        ///< A chunk of the plan runs in part.
  Failed,         ///< A chunk of the plan fails.
  Throw,          ///< The executor throws, half-way.
  AbandonNotRun,  ///< A plan in flight is abandoned, with all younger ones.
  AbandonLost,
  AbandonFatal,
  PauseNew,   ///< For `length` steps.
  PauseAll,   ///< For `length` steps.
  Clear,      ///< clear_cache().
  Budget,     ///< For `length` steps the sizer allows `which` tokens.
  Sequences,  ///< For `length` steps the sizer allows `which` sequences.
  PoolSize,   ///< For `length` steps the pool has `which` 1/1000 of its blocks.
};

struct Incident {
  IncidentKind kind = IncidentKind::NotRun;
  std::int32_t step = 0;
  std::int32_t which = 0;    ///< Modulo the number of chunks or plans there are, or as above.
  std::int32_t follows = 0;  ///< Key of an earlier request: the prompt begins with its prompt
  std::int32_t heard = 0;    ///< and so many of its outputs, as the next turn of a talk does.
  std::int32_t length = 1;   ///< Without what it follows.
  friend bool operator==(const Incident&, const Incident&) = default;
};

/// Policies and host; the zeros are the plainest choices.
struct MixSettings {
  std::int32_t sizer = 0;         ///< 0 unbounded, 1 static, 2 token budget, 3 dynamic.
  std::int32_t batch = 4;         ///< Sequences of the static one.
  std::int32_t budget = 24;       ///< Tokens of the token budget.
  std::int32_t parts = 1;         ///< Micro-batches; 1 = NoSplit, else EqualTokens.
  std::int32_t whole_chunks = 0;  ///< Micro-batches are cut between chunks only.
  std::int32_t order = 0;         ///< 0 Fcfs, 1 PriorityAging, 2 the same with displacement,
                           ///< 3 EarliestDeadline, 4 ShortestFirst, 5 FairShare, 6 PrefixAffinity.
  std::int32_t compose = 0;  ///< AdmissionRules::Compose.
  std::int32_t reserve = 0;  ///< AdmissionRules::Reserve.
  std::int32_t watermark = 0;
  std::int32_t bypass = 8;
  std::int32_t max_chunk = 0;
  std::int32_t chunk_unit = 1;
  std::int32_t whole_prompts = 0;
  std::int32_t caching = 0;       ///< BlockPool::Config::prefix_caching.
  std::int32_t partial = 0;       ///< BlockPool::Config::min_partial_tokens; 0 = no partial reuse.
  std::int32_t eviction = 0;      ///< 0 Lru, 1 Slru, 2 Lfu, 3 CostAware, 4 AdaptiveLru,
                                  ///< 5 PriorityDuration, 6 Ttl.
  std::int32_t host_blocks = 0;   ///< Host memory behind the device's; 0 = none.
  std::int32_t min_load = 1;      ///< TieredPool::Config::min_load_blocks.
  std::int32_t store = 0;         ///< Blocks of a store behind host memory; 0 = none.
  std::int32_t store_before = 0;  ///< An engine before this one has filled it.
  std::int32_t store_delay = 0;   ///< Of its operations, in us.
  std::int32_t store_deadline = 0;  ///< TierConfig::load_deadline in us; 0 = the default.
  std::int32_t store_fails = 0;     ///< Operations that fail, half of them in part, in 1/1000.
  std::int32_t store_never = 0;     ///< That don't end, in 1/1000.
  std::int32_t store_wrong = 0;     ///< Fetches with other bytes, or another block, in 1/1000.
  std::int32_t store_manners = 0;   ///< Sum of 1 ends in any order, 2 ignores cancel(), 4 fills
                                    ///< slots with garbage first.
  std::int32_t window = 0;          ///< The second layer has a window of so many tokens; 0 = none.
  std::int32_t window_scale = 1;    ///< Its blocks are so many of the first group's; -1 = a token.
  std::int32_t recurrent = 0;       ///< A third layer keeps a state.
  std::int32_t snapshots = 1;       ///< Kept at multiples of so many units of all block sizes.
  std::int32_t group_spare = 0;     ///< Blocks of each further group for the cache.
  std::int32_t blocks = 256;
  std::int32_t block_size = 4;
  std::int32_t rows = 8;
  std::int32_t max_tokens = 256;
  std::int32_t attention = 0;  ///< 0 grouped-query, 1 latent.
  std::int32_t counts = 0;     ///< Results carry expert counts.
  std::int32_t drafts = 0;     ///< 0 none, 1 n-grams, 2 an oracle that errs.
  std::int32_t plans = 1;      ///< In flight; 1 = run_step().
  std::int32_t future = 0;     ///< Future tokens.
  std::int32_t unordered = 0;  ///< Plans in flight run in any order.
  std::int32_t ranks = 1;      ///< Data-parallel ranks in lock-step; the others are made up.
  std::int32_t retries = 2;
  std::int32_t poll_every = 1;
  std::int32_t moves = 0;   ///< Expert moves: one in so many plans has one; 0 = none.
  std::int32_t timing = 0;  ///< Draws when plans run and are committed; 0 = as late as possible.
  friend bool operator==(const MixSettings&, const MixSettings&) = default;
};

struct Mix {
  std::uint64_t seed = 0;  ///< Made by make_mix(seed), perhaps made smaller since.
  MixSettings settings{};
  std::vector<MixRequest> requests;
  std::vector<Incident> incidents;
  friend bool operator==(const Mix&, const Mix&) = default;
};

/// One thing that a mix may hold. Each draws from a stream of its own, named after it, so a further
/// ingredient leaves the rest of every seed's mix as it was.
struct Ingredient {
  const char* name = "";
  std::int32_t one_in = 2;  ///< How often it is put in.
  void (*put_in)(Mix&, SplitMix64&) = nullptr;
  void (*take_out)(Mix&) = nullptr;
};

/// A new ingredient is one more line in this table (engine_mix.cpp), and whatever engine_run.cpp
/// has to do for it.
[[nodiscard]] std::span<const Ingredient> ingredients();

[[nodiscard]] Mix make_mix(std::uint64_t seed);

/// What differs from the plainest mix, readable.
[[nodiscard]] std::string to_text(const Mix& mix);

/// The smallest mix that still `fails`, as far as taking things out one by one and in groups leads;
/// tries at most `max_runs`.
[[nodiscard]] Mix shrink(Mix mix, const std::function<bool(const Mix&)>& fails,
                         int max_runs = 2000);

}  // namespace dynbatch::test
