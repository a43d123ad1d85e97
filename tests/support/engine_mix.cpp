// SPDX-License-Identifier: Apache-2.0
/// \file
/// Making mixes.
#include "engine_mix.hpp"

#include <dynbatch/base/hash.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace dynbatch::test {
namespace {

using S = MixSettings;
using R = MixRequest;

/// Steps over which things are spread.
constexpr std::int32_t kSteps = 40;

std::int32_t between(SplitMix64& rng, std::int32_t low, std::int32_t high) {
  return static_cast<std::int32_t>(rng.between(low, high));
}
template <std::size_t N>
std::int32_t pick(SplitMix64& rng, const std::int32_t (&from)[N]) {
  return from[rng.between(0, static_cast<std::int64_t>(N) - 1)];
}

/// take_out() of ingredients that are nothing but fields.
template <auto... Members>
void reset_settings(Mix& mix) {
  ((mix.settings.*Members = S{}.*Members), ...);
}
template <auto... Members>
void reset_requests(Mix& mix) {
  for (R& r : mix.requests) {
    ((r.*Members = R{}.*Members), ...);
  }
}
template <IncidentKind... Kinds>
void remove_incidents(Mix& mix) {
  std::erase_if(mix.incidents, [](const Incident& i) { return ((i.kind == Kinds) || ...); });
}

void add_incidents(Mix& mix, SplitMix64& rng, IncidentKind kind, std::int32_t most) {
  for (std::int32_t n = between(rng, 1, most); n > 0; --n) {
    mix.incidents.push_back(
        {kind, between(rng, 0, kSteps), between(rng, 0, 1 << 20), between(rng, 1, 12)});
  }
}

/// Applies `change` to each request with probability 1 / n.
template <class Change>
void to_some(Mix& mix, SplitMix64& rng, std::int64_t n, Change&& change) {
  for (R& r : mix.requests) {
    if (rng.one_in(n)) {
      change(r);
    }
  }
}

// ---- policies ----

void put_sizer(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.sizer = between(rng, 0, 3);
  s.batch = between(rng, 1, 6);
  s.budget = pick(rng, {1, 3, 8, 13, 24, 48});
}
void put_splitter(Mix& mix, SplitMix64& rng) {
  mix.settings.parts = between(rng, 2, 5);
  mix.settings.whole_chunks = rng.one_in(2) ? 1 : 0;
}
void put_order(Mix& mix, SplitMix64& rng) {
  mix.settings.order = between(rng, 1, 6);
  for (R& r : mix.requests) {
    r.priority = between(rng, -2, 4);
    r.tenant = between(rng, 0, 2);
  }
}
void put_rules(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.compose = between(rng, 0, 4);
  s.reserve = between(rng, 0, 3);
  s.watermark = rng.one_in(3) ? 200 : 0;
  s.bypass = pick(rng, {0, 1, 8});
}
void put_chunking(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.whole_prompts = rng.one_in(4) ? 1 : 0;
  s.max_chunk = s.whole_prompts == 0 ? between(rng, 1, 20) : 0;
  s.chunk_unit = pick(rng, {0, 1, 1, 3, 8});
}

// ---- memory ----

void put_prefixes(Mix& mix, SplitMix64& rng) {
  mix.settings.caching = rng.one_in(6) ? 0 : 1;
  for (R& r : mix.requests) {
    r.family = between(rng, 0, 1);
    r.shared = rng.one_in(4) ? r.length : between(rng, 0, r.length);
  }
  if (rng.one_in(2)) {  // all at once: some wait for what others compute, or read it in their step
    for (R& r : mix.requests) {
      r.arrival /= 8;
      r.shared = std::max(r.shared, r.length - 2);
    }
  }
}
void put_fronts(Mix& mix, SplitMix64& rng) { mix.settings.partial = pick(rng, {1, 1, 2, 3}); }
/// Prompts that hold what others have said, or are still saying.
void put_turns(Mix& mix, SplitMix64& rng) {
  for (std::size_t i = 1; i < mix.requests.size(); ++i) {
    if (rng.one_in(2)) {
      const R& before =
          mix.requests[static_cast<std::size_t>(between(rng, 0, static_cast<std::int32_t>(i) - 1))];
      R& r = mix.requests[i];
      r.follows = before.key;
      r.heard = rng.one_in(2) ? before.outputs : between(rng, 0, before.outputs);
      r.length = between(rng, 1, 6);
      r.arrival = before.arrival + between(rng, 0, 25);
      r.temperature = before.temperature;
      r.adapter = before.adapter;
      r.salt = before.salt;
    }
  }
}
/// The largest request fits, and little more.
void put_pressure(Mix& mix, SplitMix64& rng) {
  std::int32_t largest = 0;
  for (R& r : mix.requests) {
    r.outputs += rng.one_in(3) ? between(rng, 4, 20) : 0;
    const std::int32_t heard = r.follows != 0 ? 2 * r.heard + 24 : 0;  // about
    largest = std::max(largest, heard + r.length + r.outputs);
  }
  mix.settings.blocks = largest / mix.settings.block_size + between(rng, 1, 7);
}
void put_blocks(Mix& mix, SplitMix64& rng) {
  const std::int32_t tokens = mix.settings.blocks * mix.settings.block_size;
  mix.settings.block_size = pick(rng, {1, 1, 2, 2, 3, 8, 16});
  mix.settings.blocks = tokens / mix.settings.block_size + 1;
}
void put_evictions(Mix& mix, SplitMix64& rng) { mix.settings.eviction = between(rng, 1, 6); }
/// A device too small for what it has seen, and host memory that remembers more, or hardly any.
void put_host_memory(Mix& mix, SplitMix64& rng) {
  mix.settings.host_blocks = pick(rng, {2, 10, 40, 200});
  mix.settings.min_load = pick(rng, {1, 1, 2, 4});
}
/// A store that has what an engine before has computed, or what host memory had no room for.
void put_store(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.store = pick(rng, {8, 60, 400});
  s.store_before = rng.one_in(4) ? 0 : 1;
  s.store_delay = pick(rng, {0, 700, 700, 3000, 12000});
  s.store_deadline = pick(rng, {0, 0, 1500, 6000, 30000});
  s.store_manners = between(rng, 0, 7);
  if (rng.one_in(3)) {
    s.store_fails = pick(rng, {0, 100, 400});
    s.store_never = pick(rng, {0, 0, 50, 200});
    s.store_wrong = pick(rng, {0, 200, 800});
  }
}
/// Layers whose KV is given up as the sequence goes on.
void put_windows(Mix& mix, SplitMix64& rng) {
  mix.settings.window = pick(rng, {1, 2, 3, 5, 8, 12, 20, 300});
  mix.settings.window_scale = pick(rng, {-1, 1, 1, 2, 4});
  mix.settings.group_spare = pick(rng, {0, 3, 20, 100});
}
void put_states(Mix& mix, SplitMix64& rng) {
  mix.settings.recurrent = 1;
  mix.settings.snapshots = pick(rng, {1, 1, 2, 4});
  mix.settings.group_spare = pick(rng, {0, 3, 20, 100});
}
void put_scopes(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 2, [&](R& r) {
    r.adapter = between(rng, 0, 2);
    r.salt = between(rng, -1, 1);
  });
}
void put_digests(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 2, [&](R& r) { r.digest_blocks = between(rng, 1, 2); });
}
void put_attention(Mix& mix, SplitMix64&) { mix.settings.attention = 1; }
void put_counts(Mix& mix, SplitMix64&) { mix.settings.counts = 1; }

// ---- the host ----

void put_pipeline(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.plans = pick(rng, {2, 2, 3, 4, 8});
  s.future = rng.one_in(4) ? 0 : 1;
  s.unordered = s.future == 0 && rng.one_in(2) ? 1 : 0;
  s.timing = rng.one_in(4) ? 0 : between(rng, 1, 1 << 20);
}
void put_host(Mix& mix, SplitMix64& rng) {
  S& s = mix.settings;
  s.rows = pick(rng, {1, 2, 3, 5, 8, 16});
  s.max_tokens = pick(rng, {4, 16, 40, 256});
  s.poll_every = pick(rng, {1, 1, 3, 9});
}
void put_ranks(Mix& mix, SplitMix64& rng) { mix.settings.ranks = between(rng, 2, 3); }
void put_drafts(Mix& mix, SplitMix64& rng) { mix.settings.drafts = between(rng, 1, 2); }
void put_moves(Mix& mix, SplitMix64& rng) { mix.settings.moves = between(rng, 1, 4); }

// ---- what requests ask for ----

void put_sampling(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 2, [&](R& r) { r.temperature = pick(rng, {40, 80, 120}); });
}
void put_samples(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 2, [&](R& r) {
    r.samples = between(rng, 2, 4);
    r.temperature = rng.one_in(5) ? 0 : 100;
  });
}
void put_stops(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 2, [&](R& r) {
    r.stop_at = between(rng, 0, 9);
    r.min_outputs = rng.one_in(2) ? between(rng, 0, r.outputs) : 0;
  });
  to_some(mix, rng, 3, [&](R& r) { r.host_stop_at = between(rng, 1, 9); });
}
void put_lengths(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 5, [](R& r) { r.outputs = 0; });
  to_some(mix, rng, 8, [](R& r) { r.open_ended = 1; });
  to_some(mix, rng, 4, [&](R& r) { r.length = between(rng, 40, 90); });
}
void put_flags(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 3, [](R& r) { r.no_prefix_read = 1; });
  to_some(mix, rng, 3, [](R& r) { r.sync_decode = 1; });
  to_some(mix, rng, 4, [](R& r) { r.atomic_prefill = 1; });
}

// ---- what goes wrong ----

void put_cancels(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 3, [&](R& r) { r.cancel_at = r.arrival + between(rng, 0, 15); });
}
void put_deadlines(Mix& mix, SplitMix64& rng) {
  to_some(mix, rng, 4, [&](R& r) { r.start_within = between(rng, 0, 10); });
  to_some(mix, rng, 4, [&](R& r) { r.finish_within = between(rng, 1, 30); });
}
void put_chunk_faults(Mix& mix, SplitMix64& rng) {
  mix.settings.retries = pick(rng, {0, 2, 2, 100, 100});
  add_incidents(mix, rng, IncidentKind::NotRun, 4);
  add_incidents(mix, rng, IncidentKind::Partial, 4);
  add_incidents(mix, rng, IncidentKind::Failed, 3);
}
void put_lost_plans(Mix& mix, SplitMix64& rng) {
  mix.settings.retries = pick(rng, {2, 100, 100});
  add_incidents(mix, rng, IncidentKind::Throw, 2);
  add_incidents(mix, rng, IncidentKind::AbandonNotRun, 3);
  add_incidents(mix, rng, IncidentKind::AbandonLost, 2);
  if (rng.one_in(4)) {
    add_incidents(mix, rng, IncidentKind::AbandonFatal, 1);
  }
}
void put_pauses(Mix& mix, SplitMix64& rng) {
  add_incidents(mix, rng, IncidentKind::PauseNew, 2);
  add_incidents(mix, rng, IncidentKind::PauseAll, 2);
}
void put_limits(Mix& mix, SplitMix64& rng) {
  for (std::int32_t n = between(rng, 1, 3); n > 0; --n) {
    mix.incidents.push_back(
        {IncidentKind::Budget, between(rng, 0, kSteps), pick(rng, {1, 2, 7}), between(rng, 1, 15)});
    mix.incidents.push_back({IncidentKind::Sequences, between(rng, 0, kSteps), between(rng, 1, 3),
                             between(rng, 1, 15)});
  }
}
void put_pool_sizes(Mix& mix, SplitMix64& rng) {
  for (std::int32_t n = between(rng, 1, 2); n > 0; --n) {
    mix.incidents.push_back({IncidentKind::PoolSize, between(rng, 0, kSteps), between(rng, 50, 900),
                             between(rng, 1, 15)});
  }
}
void put_clears(Mix& mix, SplitMix64& rng) { add_incidents(mix, rng, IncidentKind::Clear, 4); }

using enum IncidentKind;

constexpr Ingredient kIngredients[] = {
    {"sizer", 1, put_sizer, reset_settings<&S::sizer, &S::batch, &S::budget>},
    {"splitter", 2, put_splitter, reset_settings<&S::parts, &S::whole_chunks>},
    {"order", 2, put_order, reset_settings<&S::order>},
    {"rules", 2, put_rules, reset_settings<&S::compose, &S::reserve, &S::watermark, &S::bypass>},
    {"chunking", 3, put_chunking, reset_settings<&S::whole_prompts, &S::max_chunk, &S::chunk_unit>},
    {"lengths", 4, put_lengths, reset_requests<&R::open_ended>},
    {"prefixes", 1, put_prefixes, reset_settings<&S::caching>},
    {"fronts of blocks", 2, put_fronts, reset_settings<&S::partial>},
    {"scopes", 3, put_scopes, reset_requests<&R::adapter, &R::salt>},
    {"sampling", 1, put_sampling, reset_requests<&R::temperature>},
    {"turns", 2, put_turns, reset_requests<&R::follows, &R::heard>},
    {"pressure", 2, put_pressure, reset_settings<&S::blocks>},
    {"blocks", 2, put_blocks, reset_settings<&S::block_size>},
    {"evictions", 3, put_evictions, reset_settings<&S::eviction>},
    {"host memory", 3, put_host_memory, reset_settings<&S::host_blocks, &S::min_load>},
    {"store", 4, put_store,
     reset_settings<&S::store, &S::store_before, &S::store_delay, &S::store_deadline,
                    &S::store_fails, &S::store_never, &S::store_wrong, &S::store_manners>},
    {"windows", 4, put_windows, reset_settings<&S::window, &S::window_scale>},
    {"states", 5, put_states, reset_settings<&S::recurrent, &S::snapshots>},
    {"digests", 5, put_digests, reset_requests<&R::digest_blocks>},
    {"attention", 3, put_attention, reset_settings<&S::attention>},
    {"counts", 3, put_counts, reset_settings<&S::counts>},
    {"pipeline", 2, put_pipeline, reset_settings<&S::plans, &S::future, &S::unordered, &S::timing>},
    {"ranks", 8, put_ranks, reset_settings<&S::ranks>},
    {"host", 2, put_host, reset_settings<&S::rows, &S::max_tokens, &S::poll_every>},
    {"drafts", 3, put_drafts, reset_settings<&S::drafts>},
    {"moves", 5, put_moves, reset_settings<&S::moves>},
    {"samples", 3, put_samples, reset_requests<&R::samples>},
    {"stops", 3, put_stops, reset_requests<&R::stop_at, &R::min_outputs, &R::host_stop_at>},
    {"flags", 3, put_flags,
     reset_requests<&R::no_prefix_read, &R::sync_decode, &R::atomic_prefill>},
    {"cancels", 4, put_cancels, reset_requests<&R::cancel_at>},
    {"deadlines", 6, put_deadlines, reset_requests<&R::start_within, &R::finish_within>},
    {"chunk faults", 3, put_chunk_faults, remove_incidents<NotRun, Partial, Failed>},
    {"lost plans", 3, put_lost_plans,
     remove_incidents<Throw, AbandonNotRun, AbandonLost, AbandonFatal>},
    {"pauses", 6, put_pauses, remove_incidents<PauseNew, PauseAll>},
    {"limits", 4, put_limits, remove_incidents<Budget, Sequences>},
    {"pool sizes", 5, put_pool_sizes, remove_incidents<PoolSize>},
    {"clears", 5, put_clears, remove_incidents<Clear>},
};

std::uint64_t hash_of(const char* name) {
  std::uint64_t hash = 1;
  for (; *name != '\0'; ++name) {
    hash = combine64(hash, static_cast<std::uint64_t>(static_cast<unsigned char>(*name)));
  }
  return hash;
}

// ---- the fields, for what goes over all of them ----

struct SettingsField {
  const char* name;
  std::int32_t S::* member;
};
constexpr SettingsField kSettings[] = {
    {"sizer", &S::sizer},
    {"batch", &S::batch},
    {"budget", &S::budget},
    {"parts", &S::parts},
    {"whole_chunks", &S::whole_chunks},
    {"order", &S::order},
    {"compose", &S::compose},
    {"reserve", &S::reserve},
    {"watermark", &S::watermark},
    {"bypass", &S::bypass},
    {"max_chunk", &S::max_chunk},
    {"chunk_unit", &S::chunk_unit},
    {"whole_prompts", &S::whole_prompts},
    {"caching", &S::caching},
    {"partial", &S::partial},
    {"eviction", &S::eviction},
    {"host_blocks", &S::host_blocks},
    {"min_load", &S::min_load},
    {"store", &S::store},
    {"store_before", &S::store_before},
    {"store_delay", &S::store_delay},
    {"store_deadline", &S::store_deadline},
    {"store_fails", &S::store_fails},
    {"store_never", &S::store_never},
    {"store_wrong", &S::store_wrong},
    {"store_manners", &S::store_manners},
    {"window", &S::window},
    {"window_scale", &S::window_scale},
    {"recurrent", &S::recurrent},
    {"snapshots", &S::snapshots},
    {"group_spare", &S::group_spare},
    {"blocks", &S::blocks},
    {"block_size", &S::block_size},
    {"rows", &S::rows},
    {"max_tokens", &S::max_tokens},
    {"attention", &S::attention},
    {"counts", &S::counts},
    {"drafts", &S::drafts},
    {"plans", &S::plans},
    {"future", &S::future},
    {"unordered", &S::unordered},
    {"ranks", &S::ranks},
    {"retries", &S::retries},
    {"poll_every", &S::poll_every},
    {"moves", &S::moves},
    {"timing", &S::timing},
};

struct RequestField {
  const char* name;
  std::int32_t R::* member;
};
constexpr RequestField kRequestFields[] = {
    {"arrival", &R::arrival},
    {"family", &R::family},
    {"shared", &R::shared},
    {"follows", &R::follows},
    {"heard", &R::heard},
    {"length", &R::length},
    {"outputs", &R::outputs},
    {"min_outputs", &R::min_outputs},
    {"stop_at", &R::stop_at},
    {"host_stop_at", &R::host_stop_at},
    {"samples", &R::samples},
    {"temperature", &R::temperature},
    {"adapter", &R::adapter},
    {"salt", &R::salt},
    {"priority", &R::priority},
    {"tenant", &R::tenant},
    {"cancel_at", &R::cancel_at},
    {"start_within", &R::start_within},
    {"finish_within", &R::finish_within},
    {"digest_blocks", &R::digest_blocks},
    {"open_ended", &R::open_ended},
    {"no_prefix_read", &R::no_prefix_read},
    {"sync_decode", &R::sync_decode},
    {"atomic_prefill", &R::atomic_prefill},
};

const char* name_of(IncidentKind kind) {
  constexpr const char* kNames[] = {
      "chunk not run",   "chunk partly run", "chunk failed", "throw",     "abandon as not run",
      "abandon as lost", "abandon as fatal", "pause new",    "pause all", "clear cache",
      "token budget",    "sequences",        "pool size"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// Shrinking: a change is kept if the mix still fails.
class Shrinker {
 public:
  Shrinker(Mix mix, const std::function<bool(const Mix&)>& fails, int max_runs)
      : mix_(std::move(mix)), fails_(&fails), runs_left_(max_runs) {}

  Mix run() {
    for (bool is_smaller = true; is_smaller && runs_left_ > 0;) {
      is_smaller = false;
      for (const Ingredient& ingredient : kIngredients) {
        is_smaller |= attempt([&](Mix& mix) { ingredient.take_out(mix); });
      }
      is_smaller |= shorten(&Mix::requests);
      is_smaller |= shorten(&Mix::incidents);
      for (const SettingsField& field : kSettings) {
        is_smaller |= attempt([&](Mix& mix) { mix.settings.*field.member = S{}.*field.member; });
      }
      for (std::size_t i = 0; i < mix_.requests.size(); ++i) {
        for (const RequestField& field : kRequestFields) {
          is_smaller |= lower(R{}.*field.member, [&](Mix& mix) -> std::int32_t& {
            return mix.requests[i].*field.member;
          });
        }
      }
      for (std::size_t i = 0; i < mix_.incidents.size(); ++i) {
        is_smaller |= lower(0, [&](Mix& mix) -> std::int32_t& { return mix.incidents[i].step; });
        is_smaller |= lower(1, [&](Mix& mix) -> std::int32_t& { return mix.incidents[i].length; });
      }
    }
    return mix_;
  }

 private:
  template <class Change>
  bool attempt(Change&& change) {
    Mix candidate = mix_;
    change(candidate);
    if (candidate == mix_ || runs_left_ == 0) {
      return false;
    }
    --runs_left_;
    if (!(*fails_)(candidate)) {
      return false;
    }
    mix_ = std::move(candidate);
    return true;
  }

  /// Takes out halves, quarters, ..., single elements.
  template <class T>
  bool shorten(std::vector<T> Mix::* list) {
    bool is_smaller = false;
    for (std::size_t count = (mix_.*list).size(); count > 0; count /= 2) {
      for (std::size_t first = 0; first < (mix_.*list).size();) {
        const bool is_gone = attempt([&](Mix& mix) {
          std::vector<T>& from = mix.*list;
          const std::size_t last = std::min(first + count, from.size());
          from.erase(from.begin() + static_cast<std::ptrdiff_t>(first),
                     from.begin() + static_cast<std::ptrdiff_t>(last));
        });
        is_smaller |= is_gone;
        first += is_gone ? 0 : count;
      }
    }
    return is_smaller;
  }

  /// Moves a number towards `least`: all the way, half of it, one.
  template <class Get>
  bool lower(std::int32_t least, Get&& get) {
    bool is_smaller = attempt([&](Mix& mix) { get(mix) = least; });
    while (attempt([&](Mix& mix) { get(mix) = least + (get(mix) - least) / 2; })) {
      is_smaller = true;
    }
    return is_smaller | attempt([&](Mix& mix) {
             std::int32_t& value = get(mix);
             value -= value > least ? 1 : (value < least ? -1 : 0);
           });
  }

  Mix mix_;
  const std::function<bool(const Mix&)>* fails_;
  int runs_left_;
};

}  // namespace

std::span<const Ingredient> ingredients() { return kIngredients; }

Mix make_mix(std::uint64_t seed) {
  Mix mix;
  mix.seed = seed;
  SplitMix64 rng(combine64(seed, hash_of("requests")));
  const std::int32_t count = between(rng, 2, 9);
  for (std::int32_t i = 0; i < count; ++i) {
    R r;
    r.key = i + 1;
    r.arrival = rng.one_in(3) ? 0 : between(rng, 0, kSteps / 2);
    r.length = rng.one_in(10) ? between(rng, 30, 60) : between(rng, 1, 24);
    r.outputs = rng.one_in(6) ? between(rng, 12, 30) : between(rng, 1, 12);
    mix.requests.push_back(r);
  }
  for (const Ingredient& ingredient : kIngredients) {
    SplitMix64 own(combine64(seed, hash_of(ingredient.name)));
    if (own.one_in(ingredient.one_in)) {
      ingredient.put_in(mix, own);
    }
  }
  return mix;
}

std::string to_text(const Mix& mix) {
  std::string text = "seed " + std::to_string(mix.seed) + "\n  settings:";
  for (const SettingsField& field : kSettings) {
    if (mix.settings.*field.member != S{}.*field.member) {
      text += std::string(" ") + field.name + " " + std::to_string(mix.settings.*field.member);
    }
  }
  for (const R& r : mix.requests) {
    text += "\n  request " + std::to_string(r.key) + ":";
    for (const RequestField& field : kRequestFields) {
      if (r.*field.member != R{}.*field.member) {
        text += std::string(" ") + field.name + " " + std::to_string(r.*field.member);
      }
    }
  }
  for (const Incident& i : mix.incidents) {
    text += "\n  step " + std::to_string(i.step) + ": " + name_of(i.kind) + " (" +
            std::to_string(i.which) + ", for " + std::to_string(i.length) + ")";
  }
  return text + "\n";
}

Mix shrink(Mix mix, const std::function<bool(const Mix&)>& fails, int max_runs) {
  return Shrinker(std::move(mix), fails, max_runs).run();
}

}  // namespace dynbatch::test
