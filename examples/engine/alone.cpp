// SPDX-License-Identifier: Apache-2.0
#include "alone.hpp"

namespace tiny {

void Alone::run(std::size_t position, std::vector<float>& hidden) {
  const ModelConfig& config = model_->config();
  std::vector<float> query(model_->query_floats());
  std::vector<float> normed(hidden.size());
  std::vector<const float*> context(position + 1);
  model_->embed(tokens_[position], hidden.data());
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<float>& kv = kv_[static_cast<std::size_t>(layer)];
    if (config.has_state(layer)) {
      kv.resize(model_->state_floats());
      model_->recur(layer, kv.data(), hidden.data());
    } else {
      kv.resize((position + 1) * model_->kv_floats());
      for (std::size_t p = 0; p <= position; ++p) {
        context[p] = kv.data() + p * model_->kv_floats();
      }
      model_->project(layer, hidden.data(), static_cast<std::int32_t>(position), sampling_.adapter,
                      query.data(), kv.data() + position * model_->kv_floats());
      const auto first = static_cast<std::size_t>(
          config.first_visible(layer, static_cast<std::int32_t>(position)));
      model_->attend(layer, query.data(), std::span<const float* const>(context).subspan(first),
                     hidden.data());
    }

    Route route;
    std::vector<float> mixed(hidden.size());
    model_->route(layer, hidden.data(), normed.data(), route);
    for (std::int32_t k = 0; k < config.experts_per_token; ++k) {
      model_->add_expert(model_->expert(layer, route.expert[k]).data(), route.share[k],
                         normed.data(), mixed.data());
    }
    model_->add_shared_expert(layer, normed.data(), mixed.data());
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] += mixed[i];
    }
  }
}

void Alone::append_next() {
  if (tokens_.size() > static_cast<std::size_t>(model_->config().max_positions)) {
    dynbatch::raise({dynbatch::Errc::InvalidArgument, "position",
                     static_cast<std::int64_t>(tokens_.size()), model_->config().max_positions,
                     "the model knows no further positions"});
  }
  std::vector<float> hidden(static_cast<std::size_t>(model_->config().width));
  std::vector<float> logits(static_cast<std::size_t>(model_->config().vocab));
  for (std::size_t p = kv_[0].size() / model_->kv_floats(); p < tokens_.size(); ++p) {
    run(p, hidden);
  }
  model_->logits(hidden.data(), logits.data());
  tokens_.push_back(
      model_->sample(logits, sampling_, sample_, static_cast<std::int32_t>(tokens_.size())));
}

}  // namespace tiny
