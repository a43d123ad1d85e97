// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// tiny::Model: a mixture-of-experts transformer of a few thousand weights, drawn from a seed.
/// Every function computes one token and sees nothing of the batch, so a token's numbers are the
/// same to the last bit whatever runs beside it.
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/ids.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tiny {

using dynbatch::Token;

enum class Attention : std::uint8_t {
  GroupedQuery,  ///< A token keeps keys and values, each shared by several query heads.
  Latent,        ///< MLA: a token keeps one latent vector and one rotary key for all heads.
};

struct ModelConfig {
  Attention attention = Attention::GroupedQuery;
  std::int32_t vocab = 128;
  std::int32_t width = 32;
  std::int32_t num_layers = 2;
  std::int32_t num_heads = 4;
  std::int32_t num_kv_heads = 2;  ///< GroupedQuery.
  std::int32_t head_dim = 8;      ///< Even.
  std::int32_t latent_dim = 16;   ///< Latent.
  std::int32_t rope_dim = 4;      ///< Latent: the part of a key that knows its position. Even.
  std::int32_t num_experts = 8;   ///< Besides the shared one, which every token visits.
  std::int32_t experts_per_token = 2;
  std::int32_t expert_width = 16;
  std::int32_t num_adapters = 3;  ///< Low-rank changes of the KV projection; 0 = the plain model.
  std::int32_t max_positions = 1024;
  std::uint64_t seed = 1;
  std::int32_t window = 0;         ///< Layers 1, 3, ... see only so many positions, a token's own
                                   ///< included; 0 = all layers see everything.
  std::int32_t num_recurrent = 0;  ///< The last so many layers keep one state a sequence instead of
                                   ///< KV; fewer than num_layers.

  [[nodiscard]] constexpr bool has_state(std::int32_t layer) const noexcept {
    return layer >= num_layers - num_recurrent;
  }
  [[nodiscard]] constexpr bool has_window(std::int32_t layer) const noexcept {
    return window > 0 && layer % 2 == 1 && !has_state(layer);
  }
  /// The first position that the token at `position` sees in a layer.
  [[nodiscard]] constexpr std::int32_t first_visible(std::int32_t layer,
                                                     std::int32_t position) const noexcept {
    return has_window(layer) && position >= window ? position - window + 1 : 0;
  }
  [[nodiscard]] dynbatch::Status validate() const noexcept;
};

/// How a request is sampled and which adapter it uses. It travels in Request::user_data, which
/// every chunk carries, so the engine keeps nothing a request.
struct Sampling {
  std::uint32_t seed = 0;
  std::uint16_t temperature = 0;  ///< In 1/100; 0 = the most likely token.
  std::uint16_t adapter = 0;      ///< KV differs between adapters: give each a CacheScope.

  [[nodiscard]] constexpr std::uint64_t user_data() const noexcept {
    return std::uint64_t{seed} << 32U | std::uint64_t{temperature} << 16U | adapter;
  }
  [[nodiscard]] static constexpr Sampling of(std::uint64_t user_data) noexcept {
    return {static_cast<std::uint32_t>(user_data >> 32U),
            static_cast<std::uint16_t>(user_data >> 16U), static_cast<std::uint16_t>(user_data)};
  }
};

inline constexpr std::size_t kMaxExpertsPerToken = 4;

/// Where one token's feed-forward goes: logical experts in ascending order, and their weights.
struct Route {
  std::int32_t expert[kMaxExpertsPerToken]{};
  float share[kMaxExpertsPerToken]{};
};

class Model {
 public:
  explicit Model(const ModelConfig& config);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  /// Floats that a token keeps in the KV cache of one layer, and those of its query.
  [[nodiscard]] std::size_t kv_floats() const noexcept;
  [[nodiscard]] std::size_t query_floats() const noexcept;
  /// Floats of a sequence's state in a recurrent layer; all zero before its first token.
  [[nodiscard]] std::size_t state_floats() const noexcept;
  /// Weights of one expert; slots that hold an expert hold a copy of them.
  [[nodiscard]] std::span<const float> expert(std::int32_t layer, std::int32_t expert) const;

  // A token on its way through the model. `hidden` is its residual stream, [width].
  void embed(Token token, float* hidden) const;
  /// Its query, and what it leaves in the KV cache, at a position below max_positions. `kv` depends
  /// on the tokens up to this one, the position and the adapter, and on nothing else: that is why
  /// prefixes can be shared.
  void project(std::int32_t layer, const float* hidden, std::int32_t position, std::int32_t adapter,
               float* query, float* kv) const;
  /// Adds what the query finds among `context`, the KV of the positions that it sees.
  void attend(std::int32_t layer, const float* query, std::span<const float* const> context,
              float* hidden) const;
  /// A recurrent layer: takes the token into the state, then adds what the state says.
  void recur(std::int32_t layer, float* state, float* hidden) const;
  /// The input of the feed-forward, and which experts it goes to.
  void route(std::int32_t layer, const float* hidden, float* normed, Route& route) const;
  /// mixed += share * expert(normed), with the weights of any slot that holds the expert.
  void add_expert(const float* weights, float share, const float* normed, float* mixed) const;
  void add_shared_expert(std::int32_t layer, const float* normed, float* mixed) const;
  void logits(const float* hidden, float* out) const;

  /// The token at `position`. Keyed by (seed, sample, position): however often and in whatever step
  /// it is drawn, it is the same.
  [[nodiscard]] Token sample(std::span<const float> logits, const Sampling& sampling,
                             std::int32_t sample, std::int32_t position) const;

 private:
  struct Layer {
    std::vector<float> query;    // [width][num_heads * head size]
    std::vector<float> kv;       // [width][kv_floats]
    std::vector<float> absorb;   // Latent: [num_heads][head_dim][latent_dim], key part of a latent
    std::vector<float> expand;   // Latent: [num_heads][latent_dim][head_dim], value part
    std::vector<float> output;   // [num_heads * head_dim][width]
    std::vector<float> router;   // [width][num_experts]
    std::vector<float> experts;  // [num_experts + 1][expert_floats], the last one is shared
    std::vector<float> adapter_down;  // [num_adapters][width]
    std::vector<float> adapter_up;    // [num_adapters][kv_floats]
    std::vector<float> recurrent;  // Recurrent layers: [3][width][state_floats], gate, value, read
  };

  [[nodiscard]] std::size_t expert_floats() const noexcept;
  void rotate(float* values, std::int32_t count, std::int32_t position) const;

  ModelConfig config_;
  std::vector<float> embedding_;    // [vocab][width]
  std::vector<float> unembedding_;  // [width][vocab]
  std::vector<float> rotary_;       // cosine and sine, [max_positions][rotary size / 2][2]
  std::vector<Layer> layers_;
};

}  // namespace tiny
