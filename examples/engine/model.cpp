// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tiny {
namespace {

std::size_t size(std::int32_t n) { return static_cast<std::size_t>(n); }

/// Largest sizes, so that a token's intermediate results fit on the stack.
constexpr std::int32_t kMaxHeads = 32;
constexpr std::int32_t kMaxHead = 64;
constexpr std::int32_t kMaxWidth = 1024;
constexpr std::int32_t kMaxExperts = 256;

/// y += x * m, for a matrix [in][out]; the sum of each output runs over the inputs in order.
void add_product(const float* m, std::size_t in, std::size_t out, const float* x, float* y) {
  for (std::size_t i = 0; i < in; ++i, m += out) {
    const float value = x[i];
    for (std::size_t j = 0; j < out; ++j) {
      y[j] += value * m[j];
    }
  }
}

void product(const float* m, std::size_t in, std::size_t out, const float* x, float* y) {
  std::fill_n(y, out, 0.0F);
  add_product(m, in, out, x, y);
}

void rms_norm(const float* x, std::size_t n, float* y) {
  float squares = 0.0F;
  for (std::size_t i = 0; i < n; ++i) {
    squares += x[i] * x[i];
  }
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(n) + 1e-6F);
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = x[i] * scale;
  }
}

/// About normal, deviation `gain` / sqrt(in).
std::vector<float> draw(dynbatch::SplitMix64& rng, std::size_t count, std::int32_t in,
                        double gain) {
  std::vector<float> out(count);
  const double scale = gain * std::sqrt(3.0 / static_cast<double>(in));
  for (float& value : out) {
    value = static_cast<float>(
        (rng.uniform() + rng.uniform() + rng.uniform() + rng.uniform() - 2.0) * scale);
  }
  return out;
}

}  // namespace

dynbatch::Status ModelConfig::validate() const noexcept {
  using dynbatch::Errc;
  if (vocab < 2 || num_layers < 1 || num_heads < 1 || num_heads > kMaxHeads || max_positions < 1 ||
      num_adapters < 0 || window < 0 || num_recurrent < 0 || num_recurrent >= num_layers) {
    return {Errc::InvalidConfig, "model", 0, 1,
            "sizes must be positive, heads at most 32, and a layer must attend"};
  }
  if (width < 1 || width > kMaxWidth) {
    return {Errc::InvalidConfig, "width", width, kMaxWidth, "is out of range"};
  }
  const bool is_latent = attention == Attention::Latent;
  if (head_dim < 2 || head_dim > kMaxHead || (!is_latent && head_dim % 2 != 0)) {
    return {Errc::InvalidConfig, "head_dim", head_dim, kMaxHead, "must be even and in range"};
  }
  if (is_latent && (rope_dim < 2 || rope_dim % 2 != 0 || latent_dim < 1 ||
                    latent_dim + rope_dim > kMaxHead || head_dim + rope_dim > kMaxHead)) {
    return {Errc::InvalidConfig, "latent_dim", latent_dim, kMaxHead, "is out of range"};
  }
  if (!is_latent && (num_kv_heads < 1 || num_heads % num_kv_heads != 0)) {
    return {Errc::InvalidConfig, "num_kv_heads", num_kv_heads, num_heads,
            "must divide the number of heads"};
  }
  if (num_experts < 1 || num_experts > kMaxExperts || experts_per_token < 1 ||
      experts_per_token > std::min(num_experts, static_cast<std::int32_t>(kMaxExpertsPerToken))) {
    return {Errc::InvalidConfig, "experts_per_token", experts_per_token, num_experts,
            "is out of range"};
  }
  if (expert_width < 1 || expert_width > kMaxWidth) {
    return {Errc::InvalidConfig, "expert_width", expert_width, kMaxWidth, "is out of range"};
  }
  return dynbatch::kOk;
}

Model::Model(const ModelConfig& config) : config_(config) {
  if (const dynbatch::Status status = config.validate(); !status) {
    dynbatch::raise(status);
  }
  dynbatch::SplitMix64 rng(config.seed);
  const std::int32_t width = config.width;
  const bool is_latent = config.attention == Attention::Latent;
  const std::int32_t heads = config.num_heads;
  const std::int32_t head_size = config.head_dim + (is_latent ? config.rope_dim : 0);
  embedding_ = draw(rng, size(config.vocab) * size(width), 1, 1.0);
  unembedding_ = draw(rng, size(width) * size(config.vocab), width, 2.0);
  const std::int32_t rotary = is_latent ? config.rope_dim : config.head_dim;
  for (std::int32_t position = 0; position < config.max_positions; ++position) {
    for (std::int32_t i = 0; i < rotary; i += 2) {
      const double frequency = std::pow(0.002, static_cast<double>(i) / rotary);
      rotary_.push_back(static_cast<float>(std::cos(position * frequency)));
      rotary_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    Layer layer;
    layer.query = draw(rng, size(width) * size(heads * head_size), width, 1.5);
    layer.kv = draw(rng, size(width) * kv_floats(), width, 1.5);
    if (is_latent) {
      layer.absorb =
          draw(rng, size(heads * config.head_dim * config.latent_dim), config.latent_dim, 1.0);
      layer.expand =
          draw(rng, size(heads * config.latent_dim * config.head_dim), config.latent_dim, 1.0);
    }
    layer.output = draw(rng, size(heads * config.head_dim * width), heads * config.head_dim, 1.0);
    layer.router = draw(rng, size(width * config.num_experts), width, 1.0);
    layer.experts = draw(rng, size(config.num_experts + 1) * expert_floats(), width, 1.0);
    layer.adapter_down = draw(rng, size(config.num_adapters * width), width, 1.0);
    layer.adapter_up = draw(rng, size(config.num_adapters) * kv_floats(), 1, 1.0);
    if (config.has_state(i)) {
      layer.recurrent = draw(rng, 3 * size(width) * state_floats(), width, 1.5);
    }
    layers_.push_back(std::move(layer));
  }
}

std::size_t Model::kv_floats() const noexcept {
  return size(config_.attention == Attention::Latent ? config_.latent_dim + config_.rope_dim
                                                     : 2 * config_.num_kv_heads * config_.head_dim);
}

std::size_t Model::query_floats() const noexcept {
  return size(config_.num_heads * (config_.attention == Attention::Latent
                                       ? config_.latent_dim + config_.rope_dim
                                       : config_.head_dim));
}

std::size_t Model::state_floats() const noexcept {
  return size(config_.num_heads * config_.head_dim);
}

std::size_t Model::expert_floats() const noexcept {
  return 3 * size(config_.width) * size(config_.expert_width);
}

std::span<const float> Model::expert(std::int32_t layer, std::int32_t expert) const {
  return std::span(layers_[size(layer)].experts)
      .subspan(size(expert) * expert_floats(), expert_floats());
}

void Model::embed(Token token, float* hidden) const {
  // Any number is looked up: a step that is going to be thrown away may hold a meaningless one.
  const auto index = static_cast<std::uint32_t>(token) % static_cast<std::uint32_t>(config_.vocab);
  std::copy_n(embedding_.data() + std::size_t{index} * size(config_.width), config_.width, hidden);
}

/// Rotary positions: turns each pair (i, i + count / 2) by an angle that grows with the position.
void Model::rotate(float* values, std::int32_t count, std::int32_t position) const {
  const std::int32_t half = count / 2;
  const float* turn = rotary_.data() + size(position) * size(count);
  for (std::int32_t i = 0; i < half; ++i) {
    const float c = turn[size(2 * i)];
    const float s = turn[size(2 * i + 1)];
    const float a = values[i];
    const float b = values[i + half];
    values[i] = a * c - b * s;
    values[i + half] = a * s + b * c;
  }
}

void Model::project(std::int32_t layer_idx, const float* hidden, std::int32_t position,
                    std::int32_t adapter, float* query, float* kv) const {
  const Layer& layer = layers_[size(layer_idx)];
  float normed[kMaxWidth];
  rms_norm(hidden, size(config_.width), normed);

  product(layer.kv.data(), size(config_.width), kv_floats(), normed, kv);
  if (adapter > 0 && adapter <= config_.num_adapters) {
    const float* down = layer.adapter_down.data() + size(adapter - 1) * size(config_.width);
    float strength = 0.0F;
    for (std::int32_t i = 0; i < config_.width; ++i) {
      strength += normed[i] * down[i];
    }
    const float* up = layer.adapter_up.data() + size(adapter - 1) * kv_floats();
    add_product(up, 1, kv_floats(), &strength, kv);
  }

  if (config_.attention == Attention::GroupedQuery) {
    product(layer.query.data(), size(config_.width), query_floats(), normed, query);
    for (std::int32_t h = 0; h < config_.num_heads; ++h) {
      rotate(query + size(h) * size(config_.head_dim), config_.head_dim, position);
    }
    for (std::int32_t h = 0; h < config_.num_kv_heads; ++h) {  // keys; the values follow them
      rotate(kv + size(h) * size(config_.head_dim), config_.head_dim, position);
    }
    return;
  }
  // Latent: keys are expanded from the latent by a matrix a head. Applied to the query instead, it
  // lets attention read the latent as it lies in the cache.
  rms_norm(kv, size(config_.latent_dim), kv);
  rotate(kv + config_.latent_dim, config_.rope_dim, position);
  const std::int32_t from_size = config_.head_dim + config_.rope_dim;
  const std::int32_t to_size = config_.latent_dim + config_.rope_dim;
  float from[kMaxHeads * kMaxHead];
  product(layer.query.data(), size(config_.width), size(config_.num_heads * from_size), normed,
          from);
  for (std::int32_t h = 0; h < config_.num_heads; ++h) {
    const float* head = from + size(h) * size(from_size);
    float* to = query + size(h) * size(to_size);
    product(layer.absorb.data() + size(h * config_.head_dim * config_.latent_dim),
            size(config_.head_dim), size(config_.latent_dim), head, to);
    std::copy_n(head + config_.head_dim, config_.rope_dim, to + config_.latent_dim);
    rotate(to + config_.latent_dim, config_.rope_dim, position);
  }
}

void Model::attend(std::int32_t layer_idx, const float* query,
                   std::span<const float* const> context, float* hidden) const {
  const Layer& layer = layers_[size(layer_idx)];
  const bool is_latent = config_.attention == Attention::Latent;
  const std::int32_t key_size =
      is_latent ? config_.latent_dim + config_.rope_dim : config_.head_dim;
  const std::int32_t value_size = is_latent ? config_.latent_dim : config_.head_dim;
  const float scale =
      1.0F / std::sqrt(static_cast<float>(config_.head_dim + (is_latent ? config_.rope_dim : 0)));
  for (std::int32_t h = 0; h < config_.num_heads; ++h) {
    // Where this head's key and value lie in the KV of a token.
    const std::int32_t kv_head = is_latent ? 0 : h / (config_.num_heads / config_.num_kv_heads);
    const std::int32_t key = kv_head * key_size;
    const std::int32_t value = is_latent ? 0 : (config_.num_kv_heads + kv_head) * value_size;
    // Softmax in one pass: what was summed so far shrinks when a larger score appears.
    float largest = -1e30F;
    float total = 0.0F;
    float found[kMaxHead];
    std::fill_n(found, value_size, 0.0F);
    for (const float* kv : context) {
      float score = 0.0F;
      for (std::int32_t i = 0; i < key_size; ++i) {
        score += query[h * key_size + i] * kv[key + i];
      }
      score *= scale;
      if (score > largest) {
        const float shrink = std::exp(largest - score);
        total *= shrink;
        for (std::int32_t i = 0; i < value_size; ++i) {
          found[i] *= shrink;
        }
        largest = score;
      }
      const float weight = std::exp(score - largest);
      total += weight;
      for (std::int32_t i = 0; i < value_size; ++i) {
        found[i] += weight * kv[value + i];
      }
    }
    for (std::int32_t i = 0; i < value_size; ++i) {
      found[i] /= total;
    }
    float expanded[kMaxHead];
    if (is_latent) {
      product(layer.expand.data() + size(h * config_.latent_dim * config_.head_dim),
              size(config_.latent_dim), size(config_.head_dim), found, expanded);
    }
    add_product(layer.output.data() + size(h * config_.head_dim) * size(config_.width),
                size(config_.head_dim), size(config_.width), is_latent ? expanded : found, hidden);
  }
}

/// A gated linear recurrence: each element of the state forgets a part of itself, as much as the
/// token says, and takes in as much of the token.
void Model::recur(std::int32_t layer_idx, float* state, float* hidden) const {
  const Layer& layer = layers_[size(layer_idx)];
  const std::size_t width = size(config_.width);
  const std::size_t n = state_floats();
  float normed[kMaxWidth];
  float gate[kMaxHeads * kMaxHead];
  float value[kMaxHeads * kMaxHead];
  float read[kMaxHeads * kMaxHead];
  rms_norm(hidden, width, normed);
  product(layer.recurrent.data(), width, n, normed, gate);
  product(layer.recurrent.data() + width * n, width, n, normed, value);
  product(layer.recurrent.data() + 2 * width * n, width, n, normed, read);
  for (std::size_t i = 0; i < n; ++i) {
    const float kept = 1.0F / (1.0F + std::exp(-gate[i] - 1.0F));
    state[i] = kept * state[i] + (1.0F - kept) * value[i];
    read[i] *= state[i];
  }
  add_product(layer.output.data(), n, width, read, hidden);
}

void Model::route(std::int32_t layer_idx, const float* hidden, float* normed, Route& route) const {
  const Layer& layer = layers_[size(layer_idx)];
  rms_norm(hidden, size(config_.width), normed);
  float scores[kMaxExperts];
  product(layer.router.data(), size(config_.width), size(config_.num_experts), normed, scores);
  // The best k, each time the lowest of equal ones; garbage in gives some experts, never none.
  bool is_taken[kMaxExperts];
  std::fill_n(is_taken, config_.num_experts, false);
  for (std::int32_t k = 0; k < config_.experts_per_token; ++k) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < config_.num_experts; ++e) {
      if (!is_taken[e] && (best < 0 || scores[e] > scores[best])) {
        best = e;
      }
    }
    is_taken[best] = true;
  }
  float total = 0.0F;
  std::int32_t n = 0;
  for (std::int32_t e = 0; e < config_.num_experts; ++e) {
    if (is_taken[e]) {
      route.expert[n] = e;
      route.share[n] = 1.0F / (1.0F + std::exp(-scores[e]));
      total += route.share[n++];
    }
  }
  for (std::int32_t k = 0; k < n; ++k) {
    route.share[k] /= total;
  }
}

void Model::add_expert(const float* weights, float share, const float* normed, float* mixed) const {
  const std::size_t width = size(config_.width);
  const std::size_t inner = size(config_.expert_width);
  float gate[kMaxWidth];
  float up[kMaxWidth];
  product(weights, width, inner, normed, gate);
  product(weights + width * inner, width, inner, normed, up);
  for (std::size_t i = 0; i < inner; ++i) {
    up[i] *= share * gate[i] / (1.0F + std::exp(-gate[i]));
  }
  add_product(weights + 2 * width * inner, inner, width, up, mixed);
}

void Model::add_shared_expert(std::int32_t layer, const float* normed, float* mixed) const {
  add_expert(expert(layer, config_.num_experts).data(), 1.0F, normed, mixed);
}

void Model::logits(const float* hidden, float* out) const {
  float normed[kMaxWidth];
  rms_norm(hidden, size(config_.width), normed);
  product(unembedding_.data(), size(config_.width), size(config_.vocab), normed, out);
}

Token Model::sample(std::span<const float> logits, const Sampling& sampling, std::int32_t sample,
                    std::int32_t position) const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    best = logits[i] > logits[best] ? i : best;
  }
  if (sampling.temperature == 0) {
    return static_cast<Token>(best);
  }
  const float scale = 100.0F / static_cast<float>(sampling.temperature);
  float total = 0.0F;
  for (const float logit : logits) {
    total += std::exp((logit - logits[best]) * scale);
  }
  const std::uint64_t key =
      dynbatch::combine64(dynbatch::combine64(sampling.seed, static_cast<std::uint64_t>(sample)),
                          static_cast<std::uint64_t>(position));
  const auto left = static_cast<float>(dynbatch::SplitMix64(key).uniform()) * total;
  float below = 0.0F;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    below += std::exp((logits[i] - logits[best]) * scale);
    if (left < below) {
      return static_cast<Token>(i);
    }
  }
  return static_cast<Token>(logits.size() - 1);
}

}  // namespace tiny
