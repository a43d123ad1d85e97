// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <dynbatch/base/error.hpp>
#include <dynbatch/scheduler/config.hpp>

#include <algorithm>

namespace tiny {
namespace {

constexpr Token kNoToken = -1;
/// A plan in flight is never older than this many plans, abandoned ones included.
constexpr std::uint64_t kUndoPlans = 256;

/// The chunks of a micro-batch with their tokens in it: a cut may lie inside a prompt.
template <class Visit>
void for_each_part(const StepPlan& plan, const MicroBatch& part, Visit&& visit) {
  for (std::int32_t c = part.first_chunk; c < part.last_chunk; ++c) {
    const Chunk& chunk = plan.chunks[static_cast<std::size_t>(c)];
    visit(chunk, std::max(chunk.first_token, part.first_token),
          std::min(chunk.first_token + chunk.num_tokens, part.last_token));
  }
}

void check(const Status& status) {
  if (!status) {
    raise(status);
  }
}

}  // namespace

Engine::Engine(const Model& model, const EngineConfig& config)
    : model_(&model),
      config_(config),
      width_(static_cast<std::size_t>(model.config().width)),
      kv_(model.config().num_layers, config.num_blocks, config.block_size, model.kv_floats()),
      window_kv_(model.config().window > 0 ? model.config().num_layers : 0, config.window_blocks,
                 config.window_block_size, model.kv_floats()),
      states_(model.config().num_recurrent > 0 ? model.config().num_layers : 0, config.state_blocks,
              1, model.state_floats()) {
  const ModelConfig& m = model.config();
  if (m.window > 0 && (config.window_blocks < 1 || config.window_block_size < 1)) {
    raise({Errc::InvalidConfig, "window_blocks", config.window_blocks, 1,
           "the model has layers with a window"});
  }
  if (m.num_recurrent > 0 && config.state_blocks < 1) {
    raise({Errc::InvalidConfig, "state_blocks", config.state_blocks, 1,
           "the model has recurrent layers"});
  }
  if (config.max_context < 1 || config.max_context > m.max_positions) {
    raise({Errc::InvalidConfig, "max_context", config.max_context, m.max_positions,
           "the model knows no further positions"});
  }
  if (config.expert_slots == 0) {
    config_.expert_slots = m.num_experts;
  }
  if (config_.expert_slots < m.num_experts) {
    raise({Errc::InvalidConfig, "expert_slots", config.expert_slots, m.num_experts,
           "each expert needs a slot"});
  }
  const auto add_group = [this](const GroupSpec& spec, KvStore& memory) {
    const bool is_state = spec.kind == GroupKind::Recurrent;
    check(tables_[num_groups_].allocate(
        config_.max_rows, is_state ? 1 : (config_.max_context - 1) / spec.block_size + 1));
    memory_[num_groups_] = &memory;
    groups_[num_groups_++] = spec;
  };
  add_group({GroupKind::Full, config.block_size, 0}, kv_);
  if (m.window > 0) {
    add_group({GroupKind::Window, config.window_block_size, m.window}, window_kv_);
  }
  if (m.num_recurrent > 0) {
    add_group({GroupKind::Recurrent, 1, 0}, states_);
  }
  slots_.resize(static_cast<std::size_t>(m.num_layers));
  for (std::int32_t layer = 0; layer < m.num_layers; ++layer) {
    for (std::int32_t s = 0; s < config_.expert_slots; ++s) {
      const std::int32_t expert = s % m.num_experts;
      const std::span<const float> weights = model.expert(layer, expert);
      slots_[static_cast<std::size_t>(layer)].push_back({expert, {weights.begin(), weights.end()}});
    }
  }
  sampled_.resize(static_cast<std::size_t>(config.max_rows));
  history_.assign(
      static_cast<std::size_t>(config.max_rows) * static_cast<std::size_t>(config.max_context + 1),
      kNoToken);
  const auto tokens = static_cast<std::size_t>(config.max_tokens);
  tokens_.resize(tokens);
  hidden_.resize(tokens * width_);
  queries_.resize(tokens * model.query_floats());
  normed_.resize(tokens * width_);
  mixed_.resize(tokens * width_);
  routes_.resize(tokens);
  logits_.resize(static_cast<std::size_t>(m.vocab));
  expert_counts_.assign(kMaxPlansInFlight,
                        std::vector<std::uint32_t>(static_cast<std::size_t>(m.num_layers) *
                                                   static_cast<std::size_t>(m.num_experts)));
}

Capabilities Engine::capabilities() const {
  Capabilities caps;
  caps.max_tokens = config_.max_tokens;
  caps.max_sequences = config_.max_rows;
  caps.kv_tokens = config_.num_blocks * config_.block_size;
  caps.groups = {groups_, num_groups_};
  caps.future_tokens = true;
  caps.partial_copy = true;
  caps.swap = true;
  caps.num_layers = model_->config().num_layers;
  caps.num_experts = model_->config().num_experts;
  return caps;
}

void Engine::execute(const StepPlan& plan, StepResultBuffer& result) {
  if (plan.num_tokens() > config_.max_tokens || plan.groups.size() != num_groups_ ||
      !plan.row_ops.empty()) {
    raise({Errc::NotSupported, "plan", plan.num_tokens(), config_.max_tokens,
           "this engine runs steps of its size over its own paged groups"});
  }
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.context_length > config_.max_context) {
      raise({Errc::NotSupported, "max_context_tokens", chunk.context_length, config_.max_context,
             "the scheduler's limit is larger than this engine's"});
    }
  }
  try {
    run(plan, result);
  } catch (...) {
    forget(plan);  // the host will abandon it
    throw;
  }
}

void Engine::run(const StepPlan& plan, StepResultBuffer& result) {
  update_tables(plan);
  move_blocks(plan);
  move_experts(plan);
  read_tokens(plan);
  for (std::int32_t layer = 0; layer < model_->config().num_layers; ++layer) {
    // Micro-batch order is attention order in every layer: what a part reads, it or an earlier part
    // of the same layer has written.
    for (const MicroBatch& part : plan.micro_batches) {
      if (model_->config().has_state(layer)) {
        recurrence(plan, part, layer);
      } else {
        attention(plan, part, layer);
      }
      feed_forward(part.first_token, part.last_token, layer);
    }
    compute_padding(plan, layer);
  }
  sample(plan, result);
  result.set_expert_counts(*counts_);
}

/// Block tables stay between steps; a plan tells what changes. Index 0 begins another sequence.
void Engine::update_tables(const StepPlan& plan) {
  for (std::size_t g = 0; g < num_groups_; ++g) {
    check(tables_[g].apply(plan, g));
  }
  for (const BlockDelta& delta : plan.groups[0].deltas) {
    if (delta.index == 0) {
      std::fill_n(&history(delta.row, 0), config_.max_context + 1, kNoToken);
    }
  }
}

/// Before anything of this plan is written: what is copied or saved was written by older plans.
void Engine::move_blocks(const StepPlan& plan) {
  const GroupPlan& group = plan.groups[0];
  const auto swap_all = [&](bool to_host) {
    for (const BlockSwap& swap : group.swaps) {
      if (swap.to_host == to_host) {
        kv_.swap(swap);
      }
    }
  };
  swap_all(true);
  for (const BlockCopy& copy : group.copies) {
    kv_.copy(copy);
  }
  swap_all(false);
  for (const BlockId block : group.zeroes) {
    kv_.zero(block);
  }
  for (std::size_t g = 1; g < num_groups_; ++g) {
    for (const BlockCopy& copy : plan.groups[g].copies) {
      memory_[g]->copy(copy);
    }
    for (const BlockId block : plan.groups[g].zeroes) {
      memory_[g]->zero(block);
    }
  }
}

/// Replicas change places: all sources are read before any target is written. What a target held
/// is kept for as long as the plan may be abandoned.
void Engine::move_experts(const StepPlan& plan) {
  std::vector<ExpertSlot> moved;
  for (const ExpertMove& move : plan.expert_moves) {
    moved.push_back(slot(move.layer, move.source_slot));
    if (moved.back().expert != move.expert) {
      raise({Errc::InvalidArgument, "expert_moves", move.expert, moved.back().expert,
             "the source slot holds another expert"});
    }
  }
  while (!replaced_.empty() && replaced_.front().plan.value + kUndoPlans <= plan.id.value) {
    replaced_.pop_front();
  }
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const ExpertMove& move = plan.expert_moves[i];
    ExpertSlot& target = slot(move.layer, move.target_slot);
    replaced_.push_back({plan.id, move.layer, move.target_slot, std::move(target)});
    target = std::move(moved[i]);
  }
}

void Engine::read_tokens(const StepPlan& plan) {
  for (const Chunk& chunk : plan.chunks) {
    for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
      const std::int32_t t = chunk.first_token + i;
      Token token = plan.tokens[static_cast<std::size_t>(t)];
      if (is_future_token(token)) {  // an older plan has sampled it, though nobody has read it yet
        const auto row = static_cast<std::size_t>(row_of_future_token(token).value);
        token = sampled_.at(row).empty() ? 0 : sampled_[row].back().token;
      }
      tokens_[static_cast<std::size_t>(t)] = token;
      history(chunk.row, chunk.first_position + i) = token;
      model_->embed(token, hidden(t));
    }
  }
  counts_ = &expert_counts_[plan.id.value % expert_counts_.size()];
  std::fill(counts_->begin(), counts_->end(), 0U);
}

/// KV of positions [0, context_length) of a sequence, wherever its blocks lie; what is left of the
/// window of the chunk's first token is nullptr.
std::span<const float* const> Engine::context(const Chunk& chunk, std::int32_t layer) {
  const bool has_window = model_->config().has_window(layer);
  const std::int32_t block_size = groups_[has_window ? 1 : 0].block_size;
  const std::span<const BlockId> table = tables_[has_window ? 1 : 0].table(chunk.row);
  const std::int32_t first = model_->config().first_visible(layer, chunk.first_position);
  context_.assign(static_cast<std::size_t>(first), nullptr);
  for (std::int32_t p = first; p < chunk.context_length; ++p) {
    const auto index = static_cast<std::size_t>(p / block_size);
    if (index >= table.size() || table[index] == kNoBlock) {
      raise({Errc::InvalidArgument, "deltas", p, static_cast<std::int64_t>(table.size()),
             "a block table ends before its sequence"});
    }
    context_.push_back(
        (has_window ? window_kv_ : kv_)
            .token(layer, {std::int64_t{table[index].value} * block_size + p % block_size}));
  }
  return context_;
}

void Engine::attention(const StepPlan& plan, const MicroBatch& part, std::int32_t layer) {
  const bool has_window = model_->config().has_window(layer);
  KvStore& kv = has_window ? window_kv_ : kv_;
  const std::span<const TokenSlot> slots = plan.groups[has_window ? 1 : 0].token_slots;
  const std::size_t query_floats = model_->query_floats();
  // All tokens of the part write, then all read: a reader of a block that the same part writes
  // stands behind its writer in the plan, but need not.
  for_each_part(plan, part, [&](const Chunk& chunk, std::int32_t first, std::int32_t last) {
    const Sampling sampling = Sampling::of(chunk.user_data);
    for (std::int32_t t = first; t < last; ++t) {
      const auto i = static_cast<std::size_t>(t);
      model_->project(layer, hidden(t), plan.positions[i], sampling.adapter,
                      queries_.data() + i * query_floats, kv.token(layer, slots[i]));
    }
  });
  for_each_part(plan, part, [&](const Chunk& chunk, std::int32_t first, std::int32_t last) {
    const std::span<const float* const> all = context(chunk, layer);
    for (std::int32_t t = first; t < last; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const auto visible =
          std::min(static_cast<std::size_t>(num_visible(plan.positions[i])), all.size());
      const auto first_seen =
          static_cast<std::size_t>(model_->config().first_visible(layer, plan.positions[i]));
      model_->attend(layer, queries_.data() + i * query_floats,
                     all.first(visible).subspan(first_seen), hidden(t));
    }
  });
}

/// A state is replaced in place, token by token; where it lies is what the token slots say.
void Engine::recurrence(const StepPlan& plan, const MicroBatch& part, std::int32_t layer) {
  std::vector<float> untouched(model_->state_floats());
  for_each_part(plan, part, [&](const Chunk& chunk, std::int32_t first, std::int32_t last) {
    const bool moves = moves_state(chunk);
    for (std::int32_t t = first; t < last; ++t) {
      const TokenSlot slot = plan.groups[num_groups_ - 1].token_slots[static_cast<std::size_t>(t)];
      model_->recur(layer, moves ? states_.token(layer, slot) : untouched.data(), hidden(t));
    }
  });
}

/// Weights of a logical expert from one of the slots that hold it; replicas take turns.
std::span<const float> Engine::slot_weights(std::int32_t layer, std::int32_t expert,
                                            std::int32_t choice) const {
  const std::vector<ExpertSlot>& slots = slots_[static_cast<std::size_t>(layer)];
  const auto holds = [expert](const ExpertSlot& slot) { return slot.expert == expert; };
  const auto replicas = std::count_if(slots.begin(), slots.end(), holds);
  if (replicas == 0) {
    raise({Errc::InvalidArgument, "expert_moves", expert, 0, "no slot holds this expert"});
  }
  auto slot = std::find_if(slots.begin(), slots.end(), holds);
  for (auto skip = choice % replicas; skip > 0; --skip) {
    slot = std::find_if(slot + 1, slots.end(), holds);
  }
  return slot->weights;
}

/// Expert by expert, so that an expert's weights are read once a part; each token still sums its
/// experts in ascending order, whoever else visits them.
void Engine::feed_forward(std::int32_t first, std::int32_t last, std::int32_t layer) {
  const ModelConfig& m = model_->config();
  const auto at = [this](std::vector<float>& v, std::int32_t t) {
    return v.data() + static_cast<std::size_t>(t) * width_;
  };
  for (std::int32_t t = first; t < last; ++t) {
    Route& route = routes_[static_cast<std::size_t>(t)];
    model_->route(layer, hidden(t), at(normed_, t), route);
    std::fill_n(at(mixed_, t), width_, 0.0F);
    for (std::int32_t k = 0; k < m.experts_per_token; ++k) {
      ++(*counts_)[static_cast<std::size_t>(layer) * static_cast<std::size_t>(m.num_experts) +
                   static_cast<std::size_t>(route.expert[k])];
    }
  }
  for (std::int32_t expert = 0; expert < m.num_experts; ++expert) {
    for (std::int32_t t = first; t < last; ++t) {
      const Route& route = routes_[static_cast<std::size_t>(t)];
      for (std::int32_t k = 0; k < m.experts_per_token; ++k) {
        if (route.expert[k] == expert) {
          model_->add_expert(slot_weights(layer, expert, t).data(), route.share[k], at(normed_, t),
                             at(mixed_, t));
        }
      }
    }
  }
  for (std::int32_t t = first; t < last; ++t) {
    model_->add_shared_expert(layer, at(normed_, t), at(mixed_, t));
    for (std::size_t i = 0; i < width_; ++i) {
      hidden(t)[i] += at(mixed_, t)[i];
    }
  }
}

/// What a batch of fixed shape spends on rows that hold nobody (any more).
void Engine::compute_padding(const StepPlan& plan, std::int32_t layer) {
  if (!config_.pads || plan.padded.rows <= plan.num_decode_chunks || plan.num_decode_chunks == 0) {
    return;
  }
  std::vector<float> nobody(width_, 1.0F);
  std::vector<float> normed(width_);
  std::vector<float> query(model_->query_floats());
  std::vector<float> kv(model_->kv_floats());
  std::vector<float> state(model_->state_floats());
  const std::vector<const float*> context(
      static_cast<std::size_t>(std::max(plan.padded.context_per_row, 1)), kv.data());
  for (std::int32_t row = plan.num_decode_chunks; row < plan.padded.rows; ++row) {
    Route route;
    if (model_->config().has_state(layer)) {
      model_->recur(layer, state.data(), nobody.data());
    } else {
      model_->project(layer, nobody.data(), 0, 0, query.data(), kv.data());
      model_->attend(layer, query.data(), context, nobody.data());
    }
    model_->route(layer, nobody.data(), normed.data(), route);
    for (std::int32_t k = 0; k < model_->config().experts_per_token; ++k) {
      model_->add_expert(slot_weights(layer, route.expert[k], row).data(), route.share[k],
                         normed.data(), nobody.data());
    }
    model_->add_shared_expert(layer, normed.data(), nobody.data());
  }
}

/// The token that follows token `token` of the step.
Token Engine::sample_at(const Chunk& chunk, std::int32_t token, std::int32_t sample) {
  model_->logits(hidden(token), logits_.data());
  const std::int32_t position = chunk.first_position + (token - chunk.first_token) + 1;
  return model_->sample(logits_, Sampling::of(chunk.user_data), sample, position);
}

void Engine::sample(const StepPlan& plan, StepResultBuffer& result) {
  for (const Chunk& chunk : plan.chunks) {
    const std::int32_t end = chunk.first_token + chunk.num_tokens;
    // A decode with drafts is one sample of several tokens, the end of a prompt one token for each
    // of the request's samples.
    for (std::int32_t n = 0; n < chunk.num_samples; ++n) {
      const std::int32_t sample = chunk.sample + n;
      std::int32_t t = chunk.first_token + (chunk.logits_from - chunk.first_position);
      run_.assign(1, sample_at(chunk, t, sample));
      while (t + 1 < end && accepts(tokens_[static_cast<std::size_t>(t) + 1], run_.back())) {
        run_.back() = tokens_[static_cast<std::size_t>(t) + 1];
        run_.push_back(sample_at(chunk, ++t, sample));
      }
      const std::int32_t newest = chunk.first_position + (t - chunk.first_token) + 1;
      propose(chunk, sample, newest, run_.back());
      result.add_sample(run_, drafts_);
      if (n == 0) {
        history(chunk.row, newest) = run_.back();
        std::vector<Sampled>& sampled = sampled_[static_cast<std::size_t>(chunk.row.value)];
        if (sampled.size() == static_cast<std::size_t>(kMaxPlansInFlight)) {
          sampled.erase(sampled.begin());
        }
        sampled.push_back({plan.id, run_.back()});
      }
    }
  }
}

void Engine::forget(const StepPlan& plan) {
  for (std::vector<Sampled>& sampled : sampled_) {
    while (!sampled.empty() && sampled.back().plan >= plan.id) {
      sampled.pop_back();
    }
  }
  while (!replaced_.empty() && replaced_.back().plan >= plan.id) {
    Replaced& last = replaced_.back();
    slot(last.layer, last.slot) = std::move(last.content);
    replaced_.pop_back();
  }
}

/// Drafts: what followed the last two tokens the last time they stood side by side. Positions that
/// came from the prefix cache are unknown; a wrong draft costs time and no token.
void Engine::propose(const Chunk& chunk, std::int32_t sample, std::int32_t position, Token newest) {
  drafts_.clear();
  if (drafter_) {
    drafter_(chunk, sample, position, drafts_);
    return;
  }
  if (config_.max_drafts == 0 || position < 2) {
    return;
  }
  const Token before = history(chunk.row, position - 1);
  for (std::int32_t p = position - 2; p >= 1; --p) {
    if (history(chunk.row, p) != newest || history(chunk.row, p - 1) != before) {
      continue;
    }
    for (std::int32_t next = p + 1; next < position; ++next) {
      if (history(chunk.row, next) == kNoToken ||
          drafts_.size() == static_cast<std::size_t>(config_.max_drafts)) {
        break;
      }
      drafts_.push_back(history(chunk.row, next));
    }
    return;
  }
}

}  // namespace tiny
