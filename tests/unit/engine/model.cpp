// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tiny model: what its tokens depend on, and on what they don't.
#include "model.hpp"

#include "alone.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

using namespace tiny;

namespace {

ModelConfig config_of(Attention attention) {
  ModelConfig config;
  config.attention = attention;
  config.max_positions = 128;
  return config;
}

std::vector<Token> prompt(std::int32_t length, std::int32_t salt = 0) {
  std::vector<Token> out;
  for (std::int32_t i = 0; i < length; ++i) {
    out.push_back((i * 37 + salt * 11 + 5) % 128);
  }
  return out;
}

std::vector<Token> outputs(const Model& model, const std::vector<Token>& tokens,
                           const Sampling& sampling, std::int32_t sample, std::size_t count) {
  Alone alone(model, tokens, sampling, sample);
  std::vector<Token> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(alone.output(i));
  }
  return out;
}

}  // namespace

TEST_CASE("A token computed on kept KV equals the one computed from scratch") {
  for (const Attention attention : {Attention::GroupedQuery, Attention::Latent}) {
    const Model model(config_of(attention));
    for (const Sampling sampling : {Sampling{1, 0, 0}, Sampling{2, 90, 0}, Sampling{3, 90, 2}}) {
      std::vector<Token> tokens = prompt(11);
      const std::vector<Token> kept = outputs(model, tokens, sampling, 1, 12);
      for (const Token token : kept) {
        CHECK(outputs(model, tokens, sampling, 1, 1)[0] == token);  // nothing kept: all anew
        tokens.push_back(token);
      }
    }
  }
}

TEST_CASE("Each thing that a token may depend on changes it") {
  for (const Attention attention : {Attention::GroupedQuery, Attention::Latent}) {
    const Model model(config_of(attention));
    const std::vector<Token> plain = prompt(12);
    const std::vector<Token> base = outputs(model, plain, {7, 90, 0}, 0, 16);
    CHECK(outputs(model, plain, {7, 90, 0}, 0, 16) == base);
    CHECK(outputs(model, plain, {8, 90, 0}, 0, 16) != base);   // seed
    CHECK(outputs(model, plain, {7, 120, 0}, 0, 16) != base);  // temperature
    CHECK(outputs(model, plain, {7, 90, 1}, 0, 16) != base);   // adapter
    CHECK(outputs(model, plain, {7, 90, 2}, 0, 16) != outputs(model, plain, {7, 90, 1}, 0, 16));
    CHECK(outputs(model, plain, {7, 90, 0}, 1, 16) != base);  // sample
    std::vector<Token> swapped = plain;
    std::swap(swapped[1], swapped[2]);  // positions
    CHECK(outputs(model, swapped, {7, 90, 0}, 0, 16) != base);
    ModelConfig other = model.config();
    other.seed = 2;
    CHECK(outputs(Model(other), plain, {7, 90, 0}, 0, 16) != base);  // weights
  }
}

TEST_CASE("A recurrent layer knows what came before by its state alone") {
  ModelConfig config = config_of(Attention::GroupedQuery);
  config.num_layers = 3;
  config.num_recurrent = 1;
  CHECK(!config.has_state(1));
  CHECK(config.has_state(2));
  const Model model(config);
  const auto run = [&](const std::vector<Token>& tokens, std::vector<float> state) {
    std::vector<float> hidden(static_cast<std::size_t>(config.width));
    for (const Token token : tokens) {
      model.embed(token, hidden.data());
      model.recur(2, state.data(), hidden.data());
    }
    return std::pair(state, hidden);
  };
  const std::vector<float> zero(model.state_floats());
  const auto [state, hidden] = run({1, 2, 3, 4}, zero);
  CHECK(run({3, 4}, run({1, 2}, zero).first) == std::pair(state, hidden));
  CHECK(run({2, 1, 3, 4}, zero).second != hidden);
  CHECK(run({4}, zero).second != hidden);
  // The rest of the model is the same with it and without, so it is the state that tells.
  const std::vector<Token> base = outputs(model, prompt(12), {7, 90, 0}, 0, 16);
  CHECK(outputs(model, prompt(12), {7, 90, 0}, 0, 16) == base);
  config.num_recurrent = 0;
  CHECK(outputs(Model(config), prompt(12), {7, 90, 0}, 0, 16) != base);
}

TEST_CASE("Greedy tokens vary enough to compare schedules by") {
  for (const Attention attention : {Attention::GroupedQuery, Attention::Latent}) {
    const Model model(config_of(attention));
    std::set<Token> seen;
    for (std::int32_t salt = 0; salt < 10; ++salt) {
      for (const Token token : outputs(model, prompt(8, salt), {}, 0, 20)) {
        seen.insert(token);
      }
    }
    CHECK(seen.size() > 40);
  }
}

TEST_CASE("Latent attention keeps one vector a token, and reads its value from it") {
  ModelConfig config = config_of(Attention::Latent);
  config.num_heads = 1;
  const Model model(config);
  std::vector<float> hidden(static_cast<std::size_t>(config.width), 0.3F);
  std::vector<float> query(model.query_floats());
  std::vector<float> kv(model.kv_floats());
  model.project(0, hidden.data(), 5, 0, query.data(), kv.data());
  CHECK(query.size() == static_cast<std::size_t>(config.latent_dim + config.rope_dim));
  CHECK(kv.size() == query.size());
  // One position: whatever its score, all weight is on it, so the result does not depend on the
  // query.
  const std::vector<const float*> context{kv.data()};
  std::vector<float> first(hidden.size());
  std::vector<float> second(hidden.size());
  model.attend(0, query.data(), context, first.data());
  for (float& value : query) {
    value = -value;
  }
  model.attend(0, query.data(), context, second.data());
  CHECK(first == second);
  CHECK(std::fabs(first[0]) > 0.0F);
}

TEST_CASE("Rotary scores depend on the distance of two tokens only") {
  for (const Attention attention : {Attention::GroupedQuery, Attention::Latent}) {
    ModelConfig config = config_of(attention);
    const Model model(config);
    std::vector<float> hidden(static_cast<std::size_t>(config.width));
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] = static_cast<float>(i % 7) - 3.0F;
    }
    const auto attend_at = [&](std::int32_t from, std::int32_t distance) {
      std::vector<float> query(model.query_floats());
      std::vector<float> unused(model.query_floats());
      std::vector<float> near(model.kv_floats());
      std::vector<float> distant(model.kv_floats());
      std::vector<float> other = hidden;
      other[0] += 5.0F;
      model.project(0, other.data(), from, 0, unused.data(), distant.data());
      model.project(0, hidden.data(), from + distance, 0, query.data(), near.data());
      const std::vector<const float*> context{distant.data(), near.data()};
      std::vector<float> out(hidden.size());
      model.attend(0, query.data(), context, out.data());
      return out;
    };
    const std::vector<float> here = attend_at(0, 3);
    const std::vector<float> there = attend_at(50, 3);
    const std::vector<float> wider = attend_at(0, 9);
    double moved = 0.0;
    double widened = 0.0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      moved += std::fabs(here[i] - there[i]);
      widened += std::fabs(here[i] - wider[i]);
    }
    CHECK(moved < 1e-3);
    CHECK(widened > 1e-2);
  }
}

TEST_CASE("A token visits its best experts and their shares add up to one") {
  const Model model(config_of(Attention::GroupedQuery));
  std::vector<float> hidden(static_cast<std::size_t>(model.config().width));
  std::vector<float> normed(hidden.size());
  std::set<std::int32_t> visited;
  for (Token token = 0; token < model.config().vocab; ++token) {
    model.embed(token, hidden.data());
    Route route;
    model.route(0, hidden.data(), normed.data(), route);
    CHECK(route.expert[0] < route.expert[1]);
    CHECK(route.share[0] + route.share[1] == Approx(1.0));
    visited.insert(route.expert[0]);
    visited.insert(route.expert[1]);
  }
  CHECK(visited.size() == static_cast<std::size_t>(model.config().num_experts));
}

TEST_CASE("User data carries how to sample") {
  const Sampling sampling{0xFFFFFFFF, 150, 3};
  const Sampling back = Sampling::of(sampling.user_data());
  CHECK(back.seed == sampling.seed);
  CHECK(back.temperature == 150);
  CHECK(back.adapter == 3);
  CHECK(Sampling{}.user_data() == 0);
}

TEST_CASE("Configurations of the model that make no sense are refused") {
  CHECK(ModelConfig{}.validate());
  const auto refused = [](const auto& change) {
    ModelConfig config;
    change(config);
    CHECK_THROWS_AS(Model(config), dynbatch::Error);
    return !config.validate();
  };
  CHECK(refused([](ModelConfig& c) { c.width = 0; }));
  CHECK(refused([](ModelConfig& c) { c.head_dim = 7; }));
  CHECK(refused([](ModelConfig& c) { c.num_kv_heads = 3; }));
  CHECK(refused([](ModelConfig& c) { c.experts_per_token = 9; }));
  CHECK(refused([](ModelConfig& c) { c.expert_width = 5000; }));
  CHECK(refused([](ModelConfig& c) { c.vocab = 1; }));
  CHECK(refused([](ModelConfig& c) { c.num_recurrent = -1; }));
  CHECK(refused([](ModelConfig& c) { c.num_recurrent = c.num_layers; }));
  CHECK(refused([](ModelConfig& c) {
    c.attention = Attention::Latent;
    c.rope_dim = 3;
  }));
}
