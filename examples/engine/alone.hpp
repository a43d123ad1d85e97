// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// tiny::Alone: what a request gets when it has the model to itself. No scheduler, no step, no
/// page: one token after the other, its KV in a plain array. Schedules are compared with it.
#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tiny {

class Alone {
 public:
  /// The request's sample `sample`; `model` must outlive this.
  Alone(const Model& model, std::span<const Token> prompt, const Sampling& sampling,
        std::int32_t sample)
      : model_(&model),
        sampling_(sampling),
        sample_(sample),
        tokens_(prompt.begin(), prompt.end()),
        prompt_length_(prompt.size()),
        kv_(static_cast<std::size_t>(model.config().num_layers)) {}

  /// Output `index`; computes as far as that takes.
  Token output(std::size_t index) {
    while (tokens_.size() <= prompt_length_ + index) {
      append_next();
    }
    return tokens_[prompt_length_ + index];
  }

 private:
  void append_next();
  void run(std::size_t position, std::vector<float>& hidden);

  const Model* model_;
  Sampling sampling_;
  std::int32_t sample_;
  std::vector<Token> tokens_;
  std::size_t prompt_length_;
  // [num_layers][positions computed][kv_floats]; of a recurrent layer: [state_floats]
  std::vector<std::vector<float>> kv_;
};

}  // namespace tiny
