// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A host for tests: an executor that keeps real (small) KV contents behind the block tables it is
/// told, checks every read against what the sequence should see, and produces tokens that depend on
/// the request and the position only. What a schedule gets wrong shows as a wrong read or a wrong
/// token.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/concepts/kv_tier.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dynbatch::test {

/// What a test submits; owns what the Request points to.
struct ToyRequest {
  Request request;
  std::vector<Token> prompt;
  std::vector<ContentDigest> digests;
  std::vector<Token> stop;
  std::vector<MediaSpan> media;

  /// The Request with its spans set.
  Request view() {
    request.prompt.tokens = request.prompt.kind == PromptKind::Tokens
                                ? std::span<const Token>(prompt)
                                : std::span<const Token>();
    request.prompt.digests = digests;
    request.stop_tokens = stop;
    request.media = media;
    return request;
  }
};

/// The token that any correct schedule gives sample `sample` of the request tagged `tag` (its
/// user_data, unique in a test) as output `index`.
inline Token toy_token(std::uint64_t tag, std::int64_t index, std::int32_t sample = 0) {
  const std::uint64_t key = tag * 1000003U + static_cast<std::uint64_t>(index) +
                            static_cast<std::uint64_t>(sample) * std::uint64_t{0x9E3779B97F4A7C15};
  return static_cast<Token>(mix64(key) % 50000U);
}

/// The beams of a search after some steps, as every correct schedule has them: by sample, its
/// tokens and how it ended, None = it goes on.
struct ToyBeams {
  std::vector<std::vector<Token>> tokens;
  std::vector<FinishReason> ends;

  [[nodiscard]] std::vector<std::int32_t> alive() const {
    std::vector<std::int32_t> samples;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] == FinishReason::None) {
        samples.push_back(static_cast<std::int32_t>(i));
      }
    }
    return samples;
  }
};

/// What a toy host answers after step `step` >= 1: for each new beam the number of its parent among
/// the beams alive, and its token. Now and then a beam has no successor at all.
inline std::vector<std::pair<std::int32_t, Token>> toy_continuations(const ToyRequest& r,
                                                                     std::int64_t step,
                                                                     std::int64_t width) {
  const std::uint64_t key = combine64(r.request.user_data + 5, static_cast<std::uint64_t>(step));
  const std::int64_t n = width > 1 && mix64(key) % 9 == 0 ? width - 1 : width;
  std::vector<std::pair<std::int32_t, Token>> all;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t k = combine64(key, static_cast<std::uint64_t>(i) + 1);
    const bool stops = !r.stop.empty() && mix64(k + 3) % 12 == 0;
    all.push_back({static_cast<std::int32_t>(mix64(k) % static_cast<std::uint64_t>(width)),
                   stops ? r.stop[0] : static_cast<Token>(mix64(k + 1) % 50000U)});
  }
  return all;
}

/// The beams after `steps` tokens, followed step by step; independent of any scheduler.
inline ToyBeams toy_beams(const ToyRequest& r, std::int64_t steps) {
  ToyBeams beams;
  const auto samples = static_cast<std::size_t>(r.request.num_samples);
  beams.tokens.resize(samples);
  beams.ends.assign(samples, FinishReason::None);
  const auto close = [&](std::size_t sample) {
    const auto n = static_cast<std::int64_t>(beams.tokens[sample].size());
    if (!r.stop.empty() && beams.tokens[sample].back() == r.stop[0] &&
        n >= r.request.min_new_tokens) {
      beams.ends[sample] = FinishReason::StopToken;
    } else if (n == r.request.max_new_tokens) {
      beams.ends[sample] = FinishReason::Length;
    }
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == 0) {
      for (std::size_t i = 0; i < samples; ++i) {
        beams.tokens[i].push_back(toy_token(r.request.user_data, 0, static_cast<std::int32_t>(i)));
        close(i);
      }
      continue;
    }
    const std::vector<std::int32_t> alive = beams.alive();
    if (alive.empty()) {
      break;
    }
    const ToyBeams before = beams;
    std::set<std::int32_t> parents;
    const auto all = toy_continuations(r, step, static_cast<std::int64_t>(alive.size()));
    for (const auto& [parent, token] : all) {
      parents.insert(parent);
    }
    std::set<std::int32_t> taken;
    for (const auto& [parent, token] : all) {
      std::int32_t target = parent;
      if (taken.count(parent) != 0) {
        target = 0;
        while (parents.count(target) != 0 || taken.count(target) != 0) {
          ++target;
        }
      }
      taken.insert(target);
      const auto sample = static_cast<std::size_t>(alive[static_cast<std::size_t>(target)]);
      beams.tokens[sample] =
          before.tokens[static_cast<std::size_t>(alive[static_cast<std::size_t>(parent)])];
      beams.tokens[sample].push_back(token);
      close(sample);
    }
    for (std::size_t i = 0; i < alive.size(); ++i) {
      if (taken.count(static_cast<std::int32_t>(i)) == 0) {
        beams.ends[static_cast<std::size_t>(alive[i])] = FinishReason::Host;
      }
    }
  }
  return beams;
}

/// How often an executor misbehaves: one chunk in n, 0 = never.
struct ToyFaults {
  std::int64_t not_run = 0;
  std::int64_t partial = 0;
  std::int64_t failed = 0;
  std::int64_t stop = 0;
  std::int64_t nothing_ran = 0;  ///< A plan of which nothing ran.
  std::int64_t part_ran = 0;     ///< A plan that stopped somewhere in the middle.
};

class ToyExecutor {
 public:
  ToyExecutor(const Capabilities& capabilities, std::uint64_t seed)
      : capabilities_(capabilities), rng_(seed) {}

  [[nodiscard]] Capabilities capabilities() const { return capabilities_; }

  void add(const ToyRequest& r) { requests_[r.request.user_data] = r; }

  ToyFaults faults;
  /// Most drafts proposed after a token; 0 = none. About a third of them are wrong.
  std::int64_t max_drafts = 0;
  /// Where chunks or plans may fail, later work already under way reads what was never written. It
  /// then computes garbage, as a real engine would, and the scheduler must throw that away. Where
  /// nothing fails, a wrong read is reported at once.
  bool tolerates_garbage = false;
  std::vector<std::string> errors;
  std::int64_t kv_reads = 0;
  /// Where a store reaches the host slots; what moves there is KV as everywhere. Slots of blocks of
  /// `block_size` tokens.
  SlotMemory slot_memory(std::int64_t num_slots, std::int32_t block_size) {
    for (std::int64_t i = 0; i < num_slots; ++i) {
      host_kv_[static_cast<std::int32_t>(i)].resize(static_cast<std::size_t>(block_size),
                                                    kGarbageKv);
    }
    SlotMemory memory;
    memory.context = this;
    memory.bytes = [](void* host, std::int32_t slot) noexcept {
      auto& words = static_cast<ToyExecutor*>(host)->host_kv_.at(slot);
      return std::as_writable_bytes(std::span<std::uint64_t>(words));
    };
    memory.slot_bytes = block_size * static_cast<std::int64_t>(sizeof(std::uint64_t));
    return memory;
  }
  std::int64_t swaps_out = 0;
  std::int64_t swaps_in = 0;
  std::int64_t prefix_copies = 0;  ///< For rows that begin with them.
  std::int64_t window_reads = 0;
  std::int64_t state_reads = 0;
  std::int64_t group_copies = 0;  ///< In groups beside the first.

  /// Does what a host that addresses KV by sequence has to do for a plan in any case.
  void apply_row_ops(std::span<const RowOp> ops) {
    for (const RowOp& op : ops) {
      if (op.target.value < 0 || op.target.value >= capabilities_.sequence_handles) {
        fail("a row operation names a sequence that the host does not have");
        continue;
      }
      std::vector<std::int64_t>& target = cells_[op.target.value];
      if (op.kind == RowOpKind::DropRange) {
        drop_cells(target, op.first);
        if (op.last != std::numeric_limits<std::int32_t>::max()) {
          fail("a hole in a sequence");
        }
      } else if (op.kind == RowOpKind::ShareRange) {
        const std::vector<std::int64_t> source = cells_[op.source.value];
        auto last = static_cast<std::size_t>(op.last);
        if (op.first != 0 || op.source == op.target ||
            (last > source.size() && !tolerates_garbage)) {
          fail("a share of what the source does not have");
          continue;
        }
        last = std::min(last, source.size());  // its writer did not run: the reader is void as well
        drop_cells(target, 0);
        target.assign(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(last));
        for (const std::int64_t cell : target) {
          ++cell_uses_[cell];
        }
      } else {
        fail("an operation that this host cannot do");
      }
    }
  }

  void execute(const StepPlan& plan, StepResultBuffer& result) {
    apply_deltas(plan);
    check_shape(plan);
    apply_swaps(plan, true);
    apply_copies(plan);
    apply_swaps(plan, false);
    apply_zeroes(plan);
    if (capabilities_.sequence_handles > 0) {
      apply_row_ops(plan.row_ops);
    }
    std::int64_t stopped_at = plan.num_tokens();
    if (faults.nothing_ran > 0 && rng_.one_in(faults.nothing_ran)) {
      stopped_at = 0;
    } else if (faults.part_ran > 0 && rng_.one_in(faults.part_ran)) {
      stopped_at = rng_.between(0, plan.num_tokens() - 1);
    }
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      Outcome outcome{};
      std::int32_t ran = chunk.num_tokens;
      if (stopped_at < plan.num_tokens()) {
        ran = static_cast<std::int32_t>(
            std::clamp<std::int64_t>(stopped_at - chunk.first_token, 0, chunk.num_tokens));
        if (ran == 0) {
          outcome.kind = OutcomeKind::NotRun;
        } else if (ran < chunk.num_tokens || chunk.num_samples > 0) {
          outcome = {OutcomeKind::Partial, FinishReason::None, std::min(ran, chunk.num_tokens - 1)};
        }
      } else if (faults.not_run > 0 && rng_.one_in(faults.not_run)) {
        outcome.kind = OutcomeKind::NotRun;
        ran = 0;
      } else if (faults.failed > 0 && rng_.one_in(faults.failed)) {
        outcome.kind = OutcomeKind::Failed;
        ran = 0;
      } else if (faults.partial > 0 && chunk.num_tokens > 1 && rng_.one_in(faults.partial)) {
        outcome = {OutcomeKind::Partial, FinishReason::None,
                   static_cast<std::int32_t>(rng_.between(0, chunk.num_tokens - 1))};
        ran = outcome.tokens;
      }
      std::int32_t accepted = 0;
      const bool is_beam = is_beam_step(chunk);
      is_untouched_ = outcome.kind == OutcomeKind::NotRun;
      const bool is_clean = run(plan, chunk, ran, outcome.kind != OutcomeKind::Ok, accepted);
      beams_clean_ = beams_clean_ && is_clean && outcome.kind == OutcomeKind::Ok;
      for (std::int32_t n = 0; n < chunk.num_samples; ++n) {
        if (outcome.kind != OutcomeKind::Ok) {
          last_token_[chunk.row.value] = kGarbageToken;
          result.add_sample(std::span<const Token>{});
          continue;
        }
        const std::int32_t sample =
            chunk.kind == ChunkKind::Prefill ? chunk.sample + n : chunk.sample;
        const std::int64_t first =
            (chunk.kind == ChunkKind::Prefill ? chunk.context_length : chunk.first_position + 1) -
            prompt_length(chunk.user_data);
        std::vector<Token> tokens;
        for (std::int32_t d = 0; d <= accepted; ++d) {
          tokens.push_back(is_clean ? toy_token(chunk.user_data, first + d, sample)
                                    : kGarbageToken);
        }
        if (n == 0) {
          last_token_[chunk.row.value] = tokens.back();
        }
        std::vector<Token> drafts;
        for (std::int64_t d = max_drafts > 0 ? rng_.between(0, max_drafts) : 0; d > 0; --d) {
          const std::int64_t index =
              first + accepted + 1 + static_cast<std::int64_t>(drafts.size());
          drafts.push_back(rng_.one_in(3) ? 7 : toy_token(chunk.user_data, index, sample));
        }
        result.add_sample(tokens, drafts);
      }
      if (outcome.kind == OutcomeKind::Ok && chunk.num_samples == 1 && faults.stop > 0 &&
          !is_beam && rng_.one_in(faults.stop)) {
        outcome = {OutcomeKind::Stop, FinishReason::Host,
                   static_cast<std::int32_t>(rng_.between(0, accepted + 1))};
      }
      result.set_outcome(c, outcome);
      if (c + 1 == plan.chunks.size() || !(plan.chunks[c + 1].request == chunk.request)) {
        if (is_beam && beams_clean_) {
          continue_beams(plan, c, result);
        }
        beams_clean_ = true;
      }
    }
    result.set_measured(DurationNs{1'000'000});
  }

 private:
  bool is_beam_step(const Chunk& chunk) const {
    const auto r = requests_.find(chunk.user_data);
    return r != requests_.end() && r->second.request.beam_search &&
           r->second.request.num_samples > 1 && chunk.kind == ChunkKind::Decode;
  }
  const ToyBeams& beams_at(std::uint64_t tag, std::int64_t steps) const {
    const auto key = std::make_pair(tag, steps);
    auto at = beams_.find(key);
    if (at == beams_.end()) {
      at = beams_.emplace(key, toy_beams(requests_.at(tag), steps)).first;
    }
    return at->second;
  }
  /// The chunks that end with chunk `last` are all beams of a request: says how they go on.
  void continue_beams(const StepPlan& plan, std::size_t last, StepResultBuffer& result) {
    const Chunk& chunk = plan.chunks[last];
    std::size_t first = last;
    while (first > 0 && plan.chunks[first - 1].request == chunk.request) {
      --first;
    }
    const std::int64_t step = chunk.first_position + 1 - prompt_length(chunk.user_data);
    const std::vector<std::int32_t> alive = beams_at(chunk.user_data, step).alive();
    if (alive.size() != last + 1 - first) {
      fail("beams of a request run apart");
      return;
    }
    for (std::size_t i = first; i <= last; ++i) {
      if (plan.chunks[i].sample != alive[i - first] ||
          plan.chunks[i].first_position != chunk.first_position) {
        fail("beams of a request are out of step");
      }
    }
    for (const auto& [parent, token] : toy_continuations(requests_.at(chunk.user_data), step,
                                                         static_cast<std::int64_t>(alive.size()))) {
      result.add_continuation(
          {plan.chunks[first + static_cast<std::size_t>(parent)].sequence, token});
    }
  }

  std::int64_t prompt_length(std::uint64_t tag) const {
    const ToyRequest& r = requests_.at(tag);
    return r.request.prompt.kind == PromptKind::Tokens ? static_cast<std::int64_t>(r.prompt.size())
                                                       : r.request.prompt.length;
  }

  void fail(const std::string& text) {
    if (errors.size() < 20) {
      errors.push_back(text);
    }
  }

  void apply_deltas(const StepPlan& plan) {
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      for (const BlockDelta& d : plan.groups[g].deltas) {
        std::vector<std::int32_t>& table = table_of(g, d.row);
        if (d.block == kNoBlock) {
          if (plan.groups[g].spec.kind != GroupKind::Window) {
            fail("a delta without a block outside of a window");
          }
          table.resize(std::max(table.size(), static_cast<std::size_t>(d.index) + 1), -1);
          std::fill(table.begin(), table.begin() + d.index + 1, -1);
          continue;
        }
        if (d.index == 0) {
          table.clear();
        }
        if (static_cast<std::size_t>(d.index) > table.size()) {
          fail("a delta leaves a gap in a block table");
        }
        table.resize(static_cast<std::size_t>(d.index) + 1);
        table[static_cast<std::size_t>(d.index)] = d.block.value;
      }
    }
  }

  void apply_swaps(const StepPlan& plan, bool to_host) {
    for (const GroupPlan& group : plan.groups) {
      const std::int32_t size = group.spec.block_size;
      for (const BlockSwap& swap : group.swaps) {
        if (swap.to_host != to_host) {
          continue;
        }
        std::vector<std::uint64_t>& slot = host_kv_[swap.host_slot];
        slot.resize(static_cast<std::size_t>(size), kGarbageKv);
        for (std::int32_t i = 0; i < size; ++i) {
          std::uint64_t& device = kv_[std::int64_t{swap.device.value} * size + i];
          std::uint64_t& host = slot[static_cast<std::size_t>(i)];
          (to_host ? host : device) = to_host ? device : host;
        }
        ++(to_host ? swaps_out : swaps_in);
      }
    }
  }

  void apply_copies(const StepPlan& plan) {
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      std::set<std::int32_t> targets;
      for (const BlockCopy& copy : group.copies) {
        targets.insert(copy.target.value);
        group_copies += g > 0 ? 1 : 0;
        prefix_copies +=
            g == 0 && std::any_of(group.deltas.begin(), group.deltas.end(),
                                  [&](const BlockDelta& d) { return d.block == copy.target; })
                ? 1
                : 0;
      }
      if (targets.size() != group.copies.size()) {
        fail("two copies have one target");
      }
      for (const BlockCopy& copy : group.copies) {
        if (targets.count(copy.source.value) != 0) {
          fail("a chain of copies");
        }
        if (g == 0 && (copy.num_tokens < 1 || copy.num_tokens >= group.spec.block_size)) {
          fail("a copy that is not of the front of a block");
        }
        for (std::int32_t i = 0; i < group.spec.block_size; ++i) {
          const std::int64_t to = std::int64_t{copy.target.value} * group.spec.block_size + i;
          const std::int64_t from = std::int64_t{copy.source.value} * group.spec.block_size + i;
          kv_at(g, to) = i < copy.num_tokens ? kv_at(g, from) : kGarbageKv;
        }
      }
    }
  }

  void apply_zeroes(const StepPlan& plan) {
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      for (const BlockId block : plan.groups[g].zeroes) {
        for (std::int32_t i = 0; i < plan.groups[g].spec.block_size; ++i) {
          kv_at(g, std::int64_t{block.value} * plan.groups[g].spec.block_size + i) = kZeroState;
        }
      }
    }
  }
  std::vector<std::int32_t>& table_of(std::size_t group, Row row) {
    return tables_[row.value + static_cast<std::int32_t>(group) * 100000];
  }
  std::uint64_t& kv_at(std::size_t group, std::int64_t slot) {
    return kv_[slot + (static_cast<std::int64_t>(group) << 40)];
  }

  void check_shape(const StepPlan& plan) {
    std::set<std::int32_t> rows;
    std::int64_t tokens = 0;
    std::int32_t samples = 0;
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      if (!rows.insert(chunk.row.value).second) {
        fail("a row stands twice in a plan");
      }
      if (chunk.num_tokens < 1 || chunk.first_token != tokens || plan.query_start[c] != tokens ||
          chunk.first_sample != samples || plan.rows[c] != chunk.row.value ||
          plan.context_lengths[c] != chunk.context_length ||
          chunk.context_length != chunk.first_position + chunk.num_tokens) {
        fail("a chunk does not fit its plan");
      }
      tokens += chunk.num_tokens;
      samples += chunk.num_samples;
    }
    if (tokens != plan.num_tokens() || samples != plan.num_samples ||
        tokens > capabilities_.max_tokens || plan.query_start.back() != tokens ||
        static_cast<std::int64_t>(plan.chunks.size()) > capabilities_.max_sequences) {
      fail("a plan's sums are wrong or exceed the capabilities");
    }
    std::int32_t token = 0;
    for (const MicroBatch& mb : plan.micro_batches) {
      if (mb.first_token != token || mb.last_token <= mb.first_token) {
        fail("micro-batches do not tile the plan");
      }
      token = mb.last_token;
    }
    if (token != tokens) {
      fail("micro-batches do not cover the plan");
    }
  }

  /// Content of position p of a request: its token, or for a digest prompt the digest of its unit.
  std::uint64_t content(std::uint64_t tag, std::int32_t sample, std::int64_t p) const {
    std::uint64_t value = word(tag, sample, p);
    for (const MediaSpan& item : requests_.at(tag).media) {
      if (p >= item.first_position && p < item.first_position + item.length) {
        value = combine64(combine64(combine64(value, item.content.low), item.content.high),
                          static_cast<std::uint64_t>(p - item.first_position));
      }
    }
    return value;
  }
  /// The same without the media items.
  std::uint64_t word(std::uint64_t tag, std::int32_t sample, std::int64_t p) const {
    const ToyRequest& r = requests_.at(tag);
    const std::int64_t prompt = prompt_length(tag);
    if (p >= prompt && beam_step_ > 0) {
      const std::vector<Token>& tokens =
          beams_at(tag, beam_step_).tokens[static_cast<std::size_t>(sample)];
      return static_cast<std::uint64_t>(tokens.at(static_cast<std::size_t>(p - prompt)));
    }
    if (p >= prompt) {
      return static_cast<std::uint64_t>(toy_token(tag, p - prompt, sample));
    }
    if (r.request.prompt.kind == PromptKind::Tokens) {
      return static_cast<std::uint64_t>(r.prompt[static_cast<std::size_t>(p)]);
    }
    const auto unit = static_cast<std::size_t>(p / r.request.prompt.digest_unit);
    // Positions behind the last whole unit are private to the request.
    return unit < r.digests.size() ? r.digests[unit].low + static_cast<std::uint64_t>(p)
                                   : mix64(tag * 77U + static_cast<std::uint64_t>(p));
  }
  std::uint64_t scope_hash(std::uint64_t tag) const {
    const CacheScope& s = requests_.at(tag).request.scope;
    std::uint64_t h = combine64(1, s.model_epoch);
    h = combine64(h, s.has_tenant_salt ? s.tenant_salt + 1 : 0);
    h = combine64(h, s.has_adapter ? combine64(s.adapter_id + 1, s.adapter_version) : 0);
    return h;
  }
  /// Hash of everything position p's KV depends on.
  std::uint64_t chain(std::uint64_t tag, std::int32_t sample, std::int64_t p) {
    // The history of a beam depends on the step.
    std::vector<std::uint64_t>& known = chains_[{tag, sample, beam_step_}];
    if (known.empty()) {
      known.assign(1, scope_hash(tag));
    }
    while (static_cast<std::int64_t>(known.size()) <= p + 1) {
      known.push_back(combine64(known.back(),
                                content(tag, sample, static_cast<std::int64_t>(known.size()) - 1)));
    }
    return known[static_cast<std::size_t>(p) + 1];
  }

  /// Runs the first `ran` tokens; false if what it computed is garbage. `accepted` = drafts that
  /// equal the tokens sampled before them.
  bool run(const StepPlan& plan, const Chunk& chunk, std::int32_t ran, bool spoil,
           std::int32_t& accepted) {
    const std::uint64_t tag = chunk.user_data;
    if (requests_.find(tag) == requests_.end()) {
      fail("a plan names an unknown request");
      return false;
    }
    beam_step_ = is_beam_step(chunk) ? chunk.first_position + 1 - prompt_length(tag) : 0;
    if (beam_step_ > 0 &&
        static_cast<std::int64_t>(
            beams_at(tag, beam_step_).tokens[static_cast<std::size_t>(chunk.sample)].size()) !=
            beam_step_) {
      fail("a beam that has ended still runs");
      return false;
    }
    bool is_clean = true;
    auto garbage = [&](const std::string& text) {
      if (!tolerates_garbage) {
        fail("request " + std::to_string(tag) + " " + text);
      }
      is_clean = false;
    };
    const std::int64_t prompt = prompt_length(tag);
    const bool has_drafts = chunk.kind == ChunkKind::Decode && chunk.num_tokens > 1;
    std::int32_t good = chunk.num_tokens;  // leading tokens that are the sequence's own
    for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
      const auto t = static_cast<std::size_t>(chunk.first_token + i);
      const std::int32_t p = chunk.first_position + i;
      if (plan.positions[t] != p) {
        fail("a position is wrong");
      }
      Token token = plan.tokens[t];
      if (is_future_token(token)) {
        token = last_token_[row_of_future_token(token).value];
      }
      const bool is_hidden =
          requests_.at(tag).request.prompt.kind == PromptKind::Digests && p < prompt;
      if (!is_hidden && static_cast<std::uint64_t>(token) != word(tag, chunk.sample, p)) {
        if (has_drafts && i > 0) {
          good = std::min(good, i);
        } else {
          garbage("has a wrong token at position " + std::to_string(p));
        }
      }
    }
    accepted = has_drafts && is_clean ? good - 1 : 0;
    if (capabilities_.sequence_handles > 0) {
      return run_by_sequence(chunk, ran, good, spoil, is_clean, accepted);
    }
    if (plan.groups.empty()) {
      return is_clean;
    }
    const std::int32_t block_size = plan.groups[0].spec.block_size;
    const std::vector<std::int32_t>& table = table_of(0, chunk.row);
    auto slot_of = [&](std::int32_t p) {
      const auto index = static_cast<std::size_t>(p / block_size);
      if (index >= table.size()) {
        fail("a block table is too short");
        return std::int64_t{-1};
      }
      return static_cast<std::int64_t>(table[index]) * block_size + p % block_size;
    };
    const std::int32_t end = chunk.first_position + std::min(ran, good);
    for (std::int32_t p = 0; p < chunk.first_position && ran > 0 && is_clean; ++p) {
      ++kv_reads;
      if (kv_[slot_of(p)] != chain(tag, chunk.sample, p)) {
        garbage("sample " + std::to_string(chunk.sample) + " reads foreign KV at position " +
                std::to_string(p) + " of " + std::to_string(chunk.context_length));
      }
    }
    for (std::size_t g = 1; g < plan.groups.size() && ran > 0 && is_clean; ++g) {
      if (!reads_group(plan.groups[g].spec, g, chunk)) {
        garbage("reads foreign KV of group " + std::to_string(g) + " at position " +
                std::to_string(chunk.first_position));
      }
    }
    if (!is_clean) {
      accepted = 0;
    }
    for (std::size_t g = 1; g < plan.groups.size(); ++g) {
      write_group(plan, g, chunk, end, is_clean, spoil || has_drafts);
    }
    for (std::int32_t p = chunk.first_position; p < chunk.first_position + chunk.num_tokens; ++p) {
      const std::int64_t slot = slot_of(p);
      if (plan.groups[0]
              .token_slots[static_cast<std::size_t>(chunk.first_token + p - chunk.first_position)]
              .value != slot) {
        fail("a token slot differs from the block table");
      }
      // What a chunk was planned to write and did not is garbage, whoever held the place before.
      if (p < end) {
        kv_[slot] = is_clean ? chain(tag, chunk.sample, p) : kGarbageKv;
      } else if (spoil || has_drafts) {
        kv_[slot] = kGarbageKv;
      }
    }
    return is_clean;
  }

  /// Slot of a position in a group beside the first, -1 = there is none.
  std::int64_t group_slot(const GroupSpec& spec, std::size_t g, const Chunk& chunk,
                          std::int32_t p) {
    const std::vector<std::int32_t>& table = table_of(g, chunk.row);
    const auto index =
        static_cast<std::size_t>(spec.kind == GroupKind::Recurrent ? 0 : p / spec.block_size);
    return index < table.size() && table[index] >= 0
               ? std::int64_t{table[index]} * spec.block_size + p % spec.block_size
               : -1;
  }
  /// True if what the chunk's first token reads is what it should see; later ones see less of it.
  bool reads_group(const GroupSpec& spec, std::size_t g, const Chunk& chunk) {
    const std::uint64_t tag = chunk.user_data;
    const std::int32_t first = chunk.first_position;
    if (spec.kind == GroupKind::Recurrent) {
      ++state_reads;
      const std::int64_t slot = group_slot(spec, g, chunk, first);
      return slot >= 0 &&
             kv_at(g, slot) == (first == 0 ? kZeroState : chain(tag, chunk.sample, first - 1));
    }
    for (std::int32_t p = std::max(0, first - spec.window + 1); p < first; ++p) {
      ++window_reads;
      const std::int64_t slot = group_slot(spec, g, chunk, p);
      if (slot < 0 || kv_at(g, slot) != chain(tag, chunk.sample, p)) {
        return false;
      }
    }
    return true;
  }
  /// Positions up to `end` are written, the rest of the chunk is perhaps spoiled.
  void write_group(const StepPlan& plan, std::size_t g, const Chunk& chunk, std::int32_t end,
                   bool is_clean, bool spoil) {
    spoil = spoil && !(is_untouched_ && plan.groups[g].spec.kind == GroupKind::Recurrent);
    const GroupPlan& group = plan.groups[g];
    const std::int32_t last = chunk.first_position + chunk.num_tokens;
    for (std::int32_t p = chunk.first_position; p < last; ++p) {
      const std::int64_t slot = group_slot(group.spec, g, chunk, p);
      const auto t = static_cast<std::size_t>(chunk.first_token + p - chunk.first_position);
      if (slot < 0 || group.token_slots[t].value != slot) {
        fail("a token slot of group " + std::to_string(g) + " differs from the block table");
        return;
      }
      if (p < end) {
        kv_at(g, slot) = is_clean ? chain(chunk.user_data, chunk.sample, p) : kGarbageKv;
      } else if (spoil) {
        kv_at(g, slot) = kGarbageKv;
      }
    }
  }

  /// Reads and writes the KV of a host that addresses it by sequence: positions without a gap,
  /// cells that several sequences may share.
  bool run_by_sequence(const Chunk& chunk, std::int32_t ran, std::int32_t good, bool spoil,
                       bool is_clean, std::int32_t& accepted) {
    const std::uint64_t tag = chunk.user_data;
    std::vector<std::int64_t>& cells = cells_[chunk.row.value];
    if (ran == 0 && !spoil) {
      return is_clean;
    }
    if (static_cast<std::size_t>(chunk.first_position) != cells.size()) {
      // Plans behind one that did not run start where nothing ends.
      if (!tolerates_garbage) {
        fail("request " + std::to_string(tag) + " leaves a gap in its sequence: position " +
             std::to_string(chunk.first_position) + " of " + std::to_string(cells.size()));
      }
      is_clean = false;
    }
    for (std::int32_t p = 0; p < chunk.first_position && ran > 0 && is_clean; ++p) {
      ++kv_reads;
      if (kv_[cells[static_cast<std::size_t>(p)]] != chain(tag, chunk.sample, p)) {
        if (!tolerates_garbage) {
          fail("request " + std::to_string(tag) + " reads foreign KV at position " +
               std::to_string(p));
        }
        is_clean = false;
      }
    }
    if (!is_clean) {
      accepted = 0;
    }
    const auto left_over =
        ran == 0 && spoil ? static_cast<std::int32_t>(rng_.between(0, chunk.num_tokens)) : ran;
    for (std::int32_t i = 0; i < left_over; ++i) {
      const bool is_good = is_clean && i < good && i < ran;
      cells.push_back(next_cell_);
      ++cell_uses_[next_cell_];
      kv_[next_cell_++] = is_good ? chain(tag, chunk.sample, chunk.first_position + i) : kGarbageKv;
    }
    if (static_cast<std::int64_t>(cell_uses_.size()) > capabilities_.kv_tokens) {
      fail("law 4: more cells in use than the host has");
    }
    return is_clean;
  }

  void drop_cells(std::vector<std::int64_t>& cells, std::int32_t first) {
    while (static_cast<std::int64_t>(cells.size()) > first) {
      const auto use = cell_uses_.find(cells.back());
      if (--use->second == 0) {
        kv_.erase(cells.back());
        cell_uses_.erase(use);
      }
      cells.pop_back();
    }
  }

  static constexpr Token kGarbageToken = 777777;
  static constexpr std::uint64_t kGarbageKv = 0xDEAD;
  static constexpr std::uint64_t kZeroState = 0;

  Capabilities capabilities_;
  SplitMix64 rng_;
  std::unordered_map<std::uint64_t, ToyRequest> requests_;
  std::map<std::tuple<std::uint64_t, std::int32_t, std::int64_t>, std::vector<std::uint64_t>>
      chains_;
  mutable std::map<std::pair<std::uint64_t, std::int64_t>, ToyBeams> beams_;
  std::int64_t beam_step_ = 0;  // of the chunk under way, 0 = no beam
  bool is_untouched_ = false;   // nothing of the chunk under way ran: its state is what it was
  bool beams_clean_ = true;     // all beams so far of the request under way ran
  std::unordered_map<std::int32_t, std::vector<std::int32_t>> tables_;
  std::unordered_map<std::int64_t, std::uint64_t> kv_;
  std::unordered_map<std::int32_t, std::vector<std::uint64_t>> host_kv_;  // by host slot
  std::unordered_map<std::int32_t, Token> last_token_;
  std::unordered_map<std::int32_t, std::vector<std::int64_t>> cells_;  // by sequence
  std::unordered_map<std::int64_t, std::int32_t> cell_uses_;
  std::int64_t next_cell_ = 0;
};

/// What happened to one request, from its events.
struct ToyRecord {
  std::vector<Token> tokens;                          ///< Of the first sample.
  std::map<std::int32_t, std::vector<Token>> others;  ///< Of the further ones.
  std::map<std::int32_t, FinishReason> sample_ends;
  std::vector<EventKind> kinds;
  int terminals = 0;
  EventKind terminal = EventKind::Accepted;
  FinishReason reason = FinishReason::None;
  Errc error = Errc::Ok;
  std::int64_t preemptions = 0;
};

/// Drains all events into records; checks the order that law 1 promises.
class ToyEvents {
 public:
  std::map<std::uint64_t, ToyRecord> records;  // by user_data, unique a request
  std::vector<std::string> errors;

  template <class Scheduler>
  void drain(Scheduler& scheduler) {
    Event buffer[7];
    std::size_t n = 0;
    do {
      n = scheduler.poll(buffer);
      for (std::size_t i = 0; i < n; ++i) {
        take(buffer[i]);
      }
    } while (n == std::size(buffer));
  }

  void take_one(const Event& e) { take(e); }

 private:
  void take(const Event& e) {
    ToyRecord& r = records[e.user_data];
    if (r.terminals > 0) {
      errors.push_back("an event after the terminal event");
    }
    if (r.kinds.empty() != (e.kind == EventKind::Accepted)) {
      errors.push_back("accepted must be the first event, once");
    }
    r.kinds.push_back(e.kind);
    switch (e.kind) {
      case EventKind::FirstToken:
      case EventKind::Tokens: {
        std::vector<Token>& tokens = e.sample == 0 ? r.tokens : r.others[e.sample];
        if ((e.kind == EventKind::FirstToken) != tokens.empty() ||
            e.first_index != static_cast<std::int64_t>(tokens.size()) ||
            e.count != static_cast<std::int64_t>(e.tokens.size())) {
          errors.push_back("token events out of order");
        }
        if (r.sample_ends.count(e.sample) != 0) {
          errors.push_back("tokens after the end of a sample");
        }
        tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
        break;
      }
      case EventKind::SampleFinished:
        if (!r.sample_ends.insert({e.sample, e.reason}).second) {
          errors.push_back("a sample finished twice");
        }
        break;
      case EventKind::Preempted:
        r.preemptions += e.count;
        break;
      default:
        break;
    }
    if (is_terminal(e.kind)) {
      ++r.terminals;
      r.terminal = e.kind;
      r.reason = e.reason;
      r.error = e.error;
      std::size_t total = r.tokens.size();
      for (const auto& [sample, tokens] : r.others) {
        total += tokens.size();
      }
      if (e.count != static_cast<std::int64_t>(total)) {
        errors.push_back("the terminal event counts other tokens than were delivered");
      }
    }
  }
};

}  // namespace dynbatch::test
