// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The host of a mix: the tiny engine, told by the run when to fail and by Planted what to get
/// wrong. Both work on a copy of the plan or of the result; the engine itself is the one of the
/// example.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include "alone.hpp"
#include "engine.hpp"
#include "engine_groups.hpp"
#include "engine_mix.hpp"
#include "engine_run.hpp"
#include "engine_store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dynbatch::test {

/// The engine with the decisions that it lets others take.
class MixEngine : public tiny::Engine {
 public:
  MixEngine(const tiny::Model& model, const tiny::EngineConfig& config, Planted planted)
      : Engine(model, config), planted_(planted) {}

 protected:
  [[nodiscard]] std::int32_t num_visible(std::int32_t position) const override {
    return position + 1 + (planted_ == Planted::MaskTooLong ? 1 : 0) -
           (planted_ == Planted::MaskTooShort ? 1 : 0);
  }
  [[nodiscard]] bool accepts(Token draft, Token sampled) const override {
    return planted_ == Planted::WrongDraft || draft == sampled;
  }
  [[nodiscard]] bool moves_state(const Chunk& chunk) const override {
    return planted_ == Planted::StateOfNotRun ||
           std::find(not_run.begin(), not_run.end(), chunk.row) == not_run.end();
  }

 public:
  std::vector<Row> not_run;  ///< Rows whose chunk of the next plan will not have run.

 private:
  Planted planted_;
};

/// What the host knows of a request beyond what plans carry.
struct HostedRequest {
  std::vector<Token> prompt;
  std::int32_t heard_from = -1;  ///< Where another request's outputs begin in it; -1 = nowhere.
  bool is_digest = false;        ///< Plans hold zeros where the prompt is.
  std::int32_t host_stop_at = -1;
  std::vector<tiny::Alone> alone;  ///< By sample.
};

/// What shall go wrong with one plan.
struct Orders {
  struct ChunkFault {
    IncidentKind kind = IncidentKind::NotRun;
    std::int32_t which = 0;
  };
  std::vector<ChunkFault> chunks;
  bool throws = false;   ///< After a part of the plan has run.
  bool is_lost = false;  ///< The result will never be used: it runs in part.
};

class MixHost {
 public:
  MixHost(const tiny::Model& model, const MixSettings& settings, Planted planted,
          std::uint64_t seed)
      : settings_(settings),
        planted_(planted),
        seed_(seed),
        engine_(model, engine_config(model, settings), planted) {
    for (tiny::KvStore* memory : {&engine_.kv(), &engine_.window_kv(), &engine_.states()}) {
      memory->fill(std::numeric_limits<float>::quiet_NaN());  // whoever reads it, shows it
    }
    tables_.resize(static_cast<std::size_t>(settings.rows));
    writers_.resize(static_cast<std::size_t>(settings.blocks), {0, 0});
    newest_.resize(static_cast<std::size_t>(settings.rows), {0, 0});
    if (settings.drafts == 2) {
      engine_.set_drafter(
          [this](const Chunk& chunk, std::int32_t sample, std::int32_t position,
                 std::vector<Token>& drafts) { draft(chunk, sample, position, drafts); });
    }
  }

  [[nodiscard]] Capabilities capabilities() const {
    Capabilities caps = engine_.capabilities();
    caps.future_tokens = settings_.future != 0;
    caps.in_order = settings_.unordered == 0;
    return caps;
  }

  /// Orders for the next execute().
  Orders orders;
  std::map<std::uint64_t, HostedRequest> requests;  ///< By id.
  std::vector<std::string> errors;
  MixCoverage coverage{};
  StepResultBuffer inner;     ///< Fits every plan of the scheduler.
  MixStore* store = nullptr;  ///< Behind host memory; null = none.
  [[nodiscard]] tiny::KvStore& kv() { return engine_.kv(); }

  void execute(const StepPlan& plan, StepResultBuffer& result) {
    count(plan);
    patch(plan);
    const bool runs_in_part = orders.throws || orders.is_lost;
    if (runs_in_part) {
      patched_.micro_batches =
          plan.micro_batches.first(1 + random(plan.id.value) % plan.micro_batches.size());
    }
    inner.reset(plan);
    try {
      engine_.execute(patched_, inner);
    } catch (const std::exception& e) {
      errors.push_back(std::string("the engine refused a plan: ") + e.what());
      throw;
    }
    if (planted_ == Planted::LateCopy) {
      for (const BlockCopy& copy : plan.groups[0].copies) {
        engine_.kv().copy(copy);
      }
    }
    if (planted_ == Planted::LateSave) {
      for (const BlockSwap& swap : plan.groups[0].swaps) {
        if (swap.to_host) {
          engine_.kv().swap(swap);
        }
      }
    }
    if (planted_ == Planted::LateSnapshot) {
      for (std::size_t g = 1; g < plan.groups.size(); ++g) {
        for (const BlockCopy& copy : plan.groups[g].copies) {
          if (plan.groups[g].spec.kind == GroupKind::Recurrent) {
            engine_.states().copy(copy);
          }
        }
      }
    }
    if (orders.throws) {
      ++coverage.throws;
      throw std::runtime_error("the device is gone");
    }
    report(plan, result);
  }

  void forget(const StepPlan& plan) {
    if (planted_ != Planted::PlanNotForgotten) {
      engine_.forget(plan);
    }
  }

 private:
  static tiny::EngineConfig engine_config(const tiny::Model& model, const MixSettings& s) {
    tiny::EngineConfig config;
    config.num_blocks = s.blocks;
    config.block_size = s.block_size;
    config.max_rows = s.rows;
    config.max_tokens = s.max_tokens;
    config.max_context = kMixContext;
    if (s.window > 0) {
      config.window_block_size = window_group(s).block_size;
      config.window_blocks = blocks_of(window_group(s), s);
    }
    if (s.recurrent > 0) {
      config.state_blocks = blocks_of(state_group(), s);
    }
    config.max_drafts = s.drafts != 0 ? kMixDrafts : 0;
    config.expert_slots = s.moves != 0 ? 3 * model.config().num_experts / 2 : 0;
    return config;
  }
  [[nodiscard]] std::uint64_t random(std::uint64_t key) const { return combine64(seed_, key); }

  /// Drafts of the sequence's true future, every third of them wrong.
  void draft(const Chunk& chunk, std::int32_t sample, std::int32_t position,
             std::vector<Token>& drafts) {
    HostedRequest& request = requests.at(chunk.request.value);
    const auto next = position + 1 - static_cast<std::int32_t>(request.prompt.size());
    SplitMix64 rng(random(combine64(chunk.request.value + static_cast<std::uint64_t>(sample),
                                    static_cast<std::uint64_t>(position))));
    for (std::int64_t i = 0, n = rng.between(0, kMixDrafts); i < n && next >= 0; ++i) {
      drafts.push_back(rng.one_in(3) ? 7
                                     : request.alone[static_cast<std::size_t>(sample)].output(
                                           static_cast<std::size_t>(next + i)));
    }
  }

  [[nodiscard]] const Orders::ChunkFault* fault_of(const StepPlan& plan, std::size_t c) const {
    for (const Orders::ChunkFault& fault : orders.chunks) {
      if (static_cast<std::size_t>(fault.which) % plan.chunks.size() == c) {
        return &fault;
      }
    }
    return nullptr;
  }
  /// How many tokens of a chunk run before `fault` strikes.
  static std::int32_t tokens_run(const Chunk& chunk, const Orders::ChunkFault& fault) {
    return fault.kind == IncidentKind::Partial ? fault.which / 7 % chunk.num_tokens : 0;
  }

  void count(const StepPlan& plan) {
    ++coverage.plans;
    coverage.split_plans += plan.micro_batches.size() > 1 ? 1 : 0;
    coverage.copies += static_cast<std::int64_t>(plan.groups[0].copies.size());
    for (const BlockCopy& copy : plan.groups[0].copies) {
      for (const BlockDelta& delta : plan.groups[0].deltas) {
        for (const Chunk& chunk : plan.chunks) {
          coverage.prefix_copies += delta.block == copy.target && delta.row == chunk.row &&
                                            chunk.kind == ChunkKind::Prefill
                                        ? 1
                                        : 0;
        }
      }
    }
    for (const BlockSwap& swap : plan.groups[0].swaps) {
      coverage.blocks_loaded += swap.to_host ? 0 : 1;
      coverage.blocks_fetched += store != nullptr && store->note(swap) ? 1 : 0;
    }
    count_groups(plan);
    coverage.expert_moves += static_cast<std::int64_t>(plan.expert_moves.size());
    for (const Token token : plan.tokens) {
      coverage.future_tokens += is_future_token(token) ? 1 : 0;
    }
    for (const Chunk& chunk : plan.chunks) {
      HostedRequest& request = requests.at(chunk.request.value);
      const std::int32_t heard_from = std::exchange(request.heard_from, -1);
      coverage.outputs_from_cache +=
          heard_from >= 0 ? std::max(chunk.first_position - heard_from, 0) : 0;
      coverage.cut_prompts +=
          chunk.kind == ChunkKind::Prefill &&
                  chunk.context_length < static_cast<std::int32_t>(request.prompt.size())
              ? 1
              : 0;
    }
  }

  /// Another sequence begins in the row.
  static bool begins(const StepPlan& plan, Row row) {
    const std::span<const BlockDelta> deltas = plan.groups[0].deltas;
    return std::any_of(deltas.begin(), deltas.end(), [&](const BlockDelta& delta) {
      return delta.row == row && delta.index == 0;
    });
  }
  static bool begins_with_hit(const StepPlan& plan, const Chunk& chunk) {
    return chunk.kind == ChunkKind::Prefill && chunk.first_position > 0 && begins(plan, chunk.row);
  }

  void count_groups(const StepPlan& plan) {
    for (const GroupPlan& group : plan.groups.subspan(1)) {
      const bool is_window = group.spec.kind == GroupKind::Window;
      const auto num_copies = static_cast<std::int64_t>(group.copies.size());
      (is_window ? coverage.window_copies : coverage.state_copies) += num_copies;
      coverage.states_zeroed += static_cast<std::int64_t>(group.zeroes.size());
      for (const BlockDelta& delta : group.deltas) {
        coverage.window_moves += delta.block == kNoBlock ? 1 : 0;
      }
      for (const Chunk& chunk : plan.chunks) {
        if (begins_with_hit(plan, chunk)) {
          const bool leaves_out =
              std::any_of(group.deltas.begin(), group.deltas.end(), [&](const BlockDelta& delta) {
                return delta.row == chunk.row && delta.block == kNoBlock;
              });
          coverage.window_hits += is_window && leaves_out ? 1 : 0;
          coverage.state_hits += is_window ? 0 : 1;
        }
      }
    }
  }

  /// The plan as the engine gets it.
  void patch(const StepPlan& plan) {
    patched_ = plan;
    const GroupPlan& group = plan.groups[0];
    groups_.assign(plan.groups.begin(), plan.groups.end());
    engine_.not_run.clear();
    tokens_.assign(plan.tokens.begin(), plan.tokens.end());
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      const HostedRequest& request = requests.at(chunk.request.value);
      const Orders::ChunkFault* fault = fault_of(plan, c);
      if (fault != nullptr && fault->kind == IncidentKind::NotRun) {
        engine_.not_run.push_back(chunk.row);
      }
      for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
        Token& token = tokens_[static_cast<std::size_t>(chunk.first_token + i)];
        const auto position = static_cast<std::size_t>(chunk.first_position + i);
        if (request.is_digest && position < request.prompt.size()) {
          token = request.prompt[position];
        }
        if (fault != nullptr && i >= tokens_run(chunk, *fault)) {
          token = static_cast<Token>(random(position) % 100);  // it does not run: garbage is there
        }
      }
    }
    note_tables(group);
    note_same_plan_reads(plan);
    plant(plan);
    patched_.tokens = tokens_;
    patched_.groups = groups_;
  }

  /// Follows the block tables; Planted::StaleBlock: an entry that changes is not changed.
  void note_tables(const GroupPlan& group) {
    deltas_.assign(group.deltas.begin(), group.deltas.end());
    for (BlockDelta& delta : deltas_) {
      std::vector<BlockId>& table = tables_[static_cast<std::size_t>(delta.row.value)];
      const auto index = static_cast<std::size_t>(delta.index);
      table.resize(std::max(table.size(), index + 1), kNoBlock);
      const BlockId before = std::exchange(table[index], delta.block);
      if (planted_ == Planted::StaleBlock && before != kNoBlock && before != delta.block) {
        delta.block = before;
      }
    }
    groups_[0].deltas = deltas_;
  }

  void note_same_plan_reads(const StepPlan& plan) {
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
        const std::int64_t slot =
            plan.groups[0].token_slots[static_cast<std::size_t>(chunk.first_token + i)].value;
        writers_[static_cast<std::size_t>(slot / settings_.block_size)] = {plan.id.value, c};
      }
    }
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      const std::vector<BlockId>& table = tables_[static_cast<std::size_t>(chunk.row.value)];
      bool reads = false;
      for (std::int32_t i = 0; i < chunk.first_position / settings_.block_size; ++i) {
        const auto& writer =
            writers_[static_cast<std::size_t>(table[static_cast<std::size_t>(i)].value)];
        reads = reads || (writer.first == plan.id.value && writer.second != c);
      }
      coverage.reads_of_same_plan += reads ? 1 : 0;
    }
  }

  static bool cuts_a_chunk(const StepPlan& plan) {
    return std::any_of(plan.micro_batches.begin(), plan.micro_batches.end(),
                       [&](const MicroBatch& part) {
                         const auto first = static_cast<std::size_t>(part.first_chunk);
                         return plan.chunks[first].first_token != part.first_token;
                       });
  }

  /// Errors of groups beside the first.
  void plant_in_groups(const StepPlan& plan) {
    for (std::size_t g = 1; g < groups_.size(); ++g) {
      GroupPlan& group = groups_[g];
      const bool is_window = group.spec.kind == GroupKind::Window;
      if (planted_ == (is_window ? Planted::WindowCopyLeftOut : Planted::StateCopyLeftOut) ||
          (planted_ == Planted::LateSnapshot && !is_window)) {
        group.copies = {};
      } else if (planted_ == Planted::StateNotZeroed) {
        group.zeroes = {};
      } else if (planted_ == Planted::WindowFreedEarly && is_window) {
        // The engine still reads the block there, as a kernel would that has loaded its table.
        window_deltas_.clear();
        for (const BlockDelta& delta : group.deltas) {
          if (delta.block != kNoBlock || begins(plan, delta.row)) {
            window_deltas_.push_back(delta);
          }
        }
        group.deltas = window_deltas_;
      }
    }
  }

  /// Errors that show in the plan.
  void plant(const StepPlan& plan) {
    plant_in_groups(plan);
    GroupPlan& group = groups_[0];
    switch (planted_) {
      case Planted::SlotOffByOne: {
        slots_.assign(group.token_slots.begin(), group.token_slots.end());
        const std::int64_t last = std::int64_t{settings_.blocks} * settings_.block_size - 1;
        std::int64_t& slot = slots_[random(plan.id.value) % slots_.size()].value;
        slot += plan.id.value % 4 != 0 ? 0 : (slot < last ? 1 : -1);
        group.token_slots = slots_;
        break;
      }
      case Planted::MissingCopy:
      case Planted::LateCopy:
        group.copies = {};
        break;
      case Planted::ShortCopy:
        copies_.assign(group.copies.begin(), group.copies.end());
        for (BlockCopy& copy : copies_) {
          --copy.num_tokens;
        }
        group.copies = copies_;
        break;
      case Planted::LoadLeftOut:
      case Planted::LateSave:
        swaps_.clear();
        for (const BlockSwap& swap : group.swaps) {
          if (swap.to_host == (planted_ == Planted::LoadLeftOut)) {
            swaps_.push_back(swap);
          }
        }
        group.swaps = swaps_;
        break;
      case Planted::ReaderBeforeWriter:
        if (cuts_a_chunk(plan)) {
          break;  // that would show in the chunk itself
        }
        [[fallthrough]];
      case Planted::PartsReversed:
        parts_.assign(plan.micro_batches.rbegin(), plan.micro_batches.rend());
        patched_.micro_batches = parts_;
        break;
      case Planted::SampleIgnored:
        chunks_.assign(plan.chunks.begin(), plan.chunks.end());
        for (Chunk& chunk : chunks_) {
          chunk.sample = 0;
        }
        patched_.chunks = chunks_;
        break;
      case Planted::PositionsRestart:
        positions_.assign(plan.positions.begin(), plan.positions.end());
        for (const Chunk& chunk : plan.chunks) {
          for (std::int32_t i = 0; i < chunk.num_tokens && chunk.kind == ChunkKind::Prefill; ++i) {
            positions_[static_cast<std::size_t>(chunk.first_token + i)] = i;
          }
        }
        patched_.positions = positions_;
        break;
      case Planted::StaleFutureToken:
        for (Token& token : tokens_) {
          if (is_future_token(token)) {
            token = newest_[static_cast<std::size_t>(row_of_future_token(token).value)].first;
          }
        }
        break;
      default:
        break;
    }
  }

  /// The engine's result with what shall have gone wrong, and with the host's own stops.
  void report(const StepPlan& plan, StepResultBuffer& result) {
    const StepResult view = inner.view();
    for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
      const Chunk& chunk = plan.chunks[c];
      const Orders::ChunkFault* fault =
          planted_ == Planted::FaultHidden ? nullptr : fault_of(plan, c);
      for (std::int32_t n = 0; n < chunk.num_samples; ++n) {
        const auto s = static_cast<std::size_t>(chunk.first_sample + n);
        if (fault != nullptr) {
          result.add_sample(std::span<const Token>{});
          continue;
        }
        const std::span<const Token> tokens = tokens_of(view, s);
        result.add_sample(
            tokens, view.draft_begin.empty()
                        ? std::span<const Token>{}
                        : view.drafts.subspan(static_cast<std::size_t>(view.draft_begin[s]),
                                              static_cast<std::size_t>(view.draft_begin[s + 1] -
                                                                       view.draft_begin[s])));
        if (n == 0) {
          auto& newest = newest_[static_cast<std::size_t>(chunk.row.value)];
          newest = {newest.second, tokens.back()};
        }
        if (chunk.kind == ChunkKind::Decode && chunk.num_tokens > 1) {
          const auto accepted = static_cast<std::int64_t>(tokens.size()) - 1;
          coverage.drafts_accepted += accepted;
          coverage.drafts_rejected += chunk.num_tokens - 1 - accepted;
          coverage.window_rejections += settings_.window > 0 ? chunk.num_tokens - 1 - accepted : 0;
        }
        stop(plan, c, tokens, result);
      }
      if (fault != nullptr) {
        fail(chunk, c, *fault, result);
      }
    }
    if (settings_.counts !=
        0) {  // without, and without outcomes or drafts, a result is a short one
      result.set_expert_counts(view.expert_counts);
    }
    result.set_measured(DurationNs{1'000'000 + 10'000 * plan.num_tokens()});
  }

  static std::span<const Token> tokens_of(const StepResult& view, std::size_t s) {
    if (view.token_begin.empty()) {
      return view.tokens.subspan(s, 1);
    }
    return view.tokens.subspan(
        static_cast<std::size_t>(view.token_begin[s]),
        static_cast<std::size_t>(view.token_begin[s + 1] - view.token_begin[s]));
  }

  void fail(const Chunk& chunk, std::size_t c, const Orders::ChunkFault& fault,
            StepResultBuffer& result) {
    switch (fault.kind) {
      case IncidentKind::Partial:
        result.set_outcome(c, {OutcomeKind::Partial, FinishReason::None, tokens_run(chunk, fault)});
        ++coverage.chunks_partly_run;
        break;
      case IncidentKind::Failed:
        result.set_outcome(c, {.kind = OutcomeKind::Failed});
        ++coverage.chunks_failed;
        break;
      default:
        result.set_outcome(c, {.kind = OutcomeKind::NotRun});
        ++coverage.chunks_not_run;
        break;
    }
  }

  /// A sequence that has its host's number of outputs ends with them.
  void stop(const StepPlan& plan, std::size_t c, std::span<const Token> tokens,
            StepResultBuffer& result) {
    const Chunk& chunk = plan.chunks[c];
    const HostedRequest& request = requests.at(chunk.request.value);
    const std::int32_t first = chunk.first_position +
                               (chunk.kind == ChunkKind::Prefill ? chunk.num_tokens : 1) -
                               static_cast<std::int32_t>(request.prompt.size());
    const auto end = first + static_cast<std::int32_t>(tokens.size());
    if (chunk.num_samples == 1 && first < request.host_stop_at && request.host_stop_at <= end) {
      result.set_outcome(c, {OutcomeKind::Stop, FinishReason::Host, request.host_stop_at - first});
    }
  }

  MixSettings settings_;
  Planted planted_;
  std::uint64_t seed_;
  MixEngine engine_;
  std::vector<std::vector<BlockId>> tables_;                    // by row
  std::vector<std::pair<std::uint64_t, std::size_t>> writers_;  // by block: plan, chunk
  std::vector<std::pair<Token, Token>> newest_;  // by row: the last two tokens sampled
  // The patched plan.
  StepPlan patched_;
  std::vector<GroupPlan> groups_;
  std::vector<Token> tokens_;
  std::vector<BlockDelta> deltas_;
  std::vector<BlockDelta> window_deltas_;
  std::vector<TokenSlot> slots_;
  std::vector<BlockSwap> swaps_;
  std::vector<BlockCopy> copies_;
  std::vector<MicroBatch> parts_;
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> positions_;
};

static_assert(Executor<MixHost>);

}  // namespace dynbatch::test
