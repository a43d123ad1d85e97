// SPDX-License-Identifier: Apache-2.0
/// \file
/// The tiny engine on plans written by hand.
#include "engine.hpp"

#include "alone.hpp"
#include "engine_plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;
using tiny::Alone;
using tiny::Engine;
using tiny::EngineConfig;
using tiny::Model;
using tiny::ModelConfig;
using tiny::Sampling;

namespace {

constexpr auto kPrefill = ChunkKind::Prefill;
constexpr auto kDecode = ChunkKind::Decode;

Model model_of(tiny::Attention attention = tiny::Attention::GroupedQuery) {
  ModelConfig config;
  config.attention = attention;
  config.max_positions = 64;
  return Model(config);
}

EngineConfig small() {
  EngineConfig config;
  config.num_blocks = 16;
  config.block_size = 4;
  config.max_rows = 4;
  config.max_tokens = 64;
  config.max_context = 64;
  return config;
}

/// An engine whose memory is full of numbers that spoil whatever reads them.
struct Poisoned : Engine {
  Poisoned(const Model& model, const EngineConfig& config) : Engine(model, config) {
    kv().fill(std::numeric_limits<float>::quiet_NaN());
  }
};

const std::vector<Token> kPrompt{3, 14, 15, 92, 65, 35};

std::vector<Token> alone(const Model& model, const std::vector<Token>& prompt, std::size_t count,
                         const Sampling& sampling = {}, std::int32_t sample = 0) {
  Alone one(model, prompt, sampling, sample);
  std::vector<Token> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(one.output(i));
  }
  return out;
}

std::vector<Token> part(const std::vector<Token>& tokens, std::size_t first, std::size_t last) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(first),
          tokens.begin() + static_cast<std::ptrdiff_t>(last)};
}

using Samples = std::vector<std::vector<Token>>;

}  // namespace

TEST_CASE("A prompt in chunks and micro-batches, then decodes, gives the tokens of the model") {
  for (const auto attention : {tiny::Attention::GroupedQuery, tiny::Attention::Latent}) {
    const Model model = model_of(attention);
    Poisoned engine(model, small());
    HandRun run(engine);
    const std::vector<Token> expected = alone(model, kPrompt, 3);
    const std::vector<std::int32_t> blocks{7, 2, 9};  // wherever they lie
    HandPlan first(1, 4);
    first.table(1, blocks).chunk(kPrefill, 1, 0, part(kPrompt, 0, 3), blocks, 0).cut(1).cut(2);
    CHECK(run(first).empty());
    HandPlan second(2, 4);
    second.chunk(kPrefill, 1, 3, part(kPrompt, 3, 6), blocks, 1).cut(2);
    CHECK(run(second) == Samples{{expected[0]}});
    HandPlan third(3, 4);
    third.chunk(kDecode, 1, 6, {expected[0]}, blocks, 1);
    CHECK(run(third) == Samples{{expected[1]}});
    HandPlan fourth(4, 4);
    fourth.chunk(kDecode, 1, 7, {future_token(Row{1})}, blocks, 1);
    CHECK(run(fourth) == Samples{{expected[2]}});
  }
}

TEST_CASE("A reader finds what its own plan wrote, in the same micro-batch or a later one") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 1);
  for (const bool is_cut : {false, true}) {
    Poisoned engine(model, small());
    HandRun run(engine);
    HandPlan plan(1, 4);
    plan.table(0, {5, 6}).table(1, {5, 8});
    plan.chunk(kPrefill, 0, 0, part(kPrompt, 0, 5), {5, 6}, 1)
        .chunk(kPrefill, 1, 4, part(kPrompt, 4, 6), {5, 8}, 1);  // shares block 5
    if (is_cut) {
      plan.cut(5);
    }
    CHECK(run(plan)[1] == expected);
  }
}

TEST_CASE("Copies are done before anything of the plan is written") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 2, {9, 100, 0}, 1);
  Poisoned engine(model, small());
  HandRun run(engine);
  HandPlan prompt(1, 4);
  prompt.table(0, {0, 1}).chunk(kPrefill, 0, 0, kPrompt, {0, 1}, 2, {9, 100, 0});
  const Samples begun = run(prompt);
  CHECK(begun[1][0] == expected[0]);
  CHECK(begun[0] == alone(model, kPrompt, 1, {9, 100, 0}, 0));
  // Block 1 goes to row 2 at once: the fork's copy of its two tokens must come first.
  HandPlan fork(2, 4);
  fork.table(1, {0, 3}).table(2, {1}).copy(1, 3, 2);
  fork.chunk(kPrefill, 2, 0, {50, 51, 52, 53}, {1}, 0);
  fork.chunk(kDecode, 1, 6, {expected[0]}, {0, 3}, 1, {9, 100, 0});
  StepPlan plan = fork.plan();
  std::vector<Chunk> chunks(plan.chunks.begin(), plan.chunks.end());
  chunks[1].sample = 1;
  plan.chunks = chunks;
  run.result.reset(plan);
  engine.execute(plan, run.result);
  CHECK(run.result.view().tokens[0] == expected[1]);
}

TEST_CASE("Swapped blocks go out before others come in, and zeroing comes last") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 2);
  Poisoned engine(model, small());
  HandRun run(engine);
  HandPlan prompt(1, 4);
  prompt.table(0, {0, 1}).chunk(kPrefill, 0, 0, kPrompt, {0, 1}, 1);
  run(prompt);
  HandPlan out(2, 4);
  out.table(1, {2}).swap(0, 7, true).swap(1, 8, true).zero(0).zero(1);
  out.chunk(kPrefill, 1, 0, {1}, {2}, 0);
  run(out);
  CHECK(*engine.kv().token(0, {0}) == 0.0F);
  HandPlan in(3, 4);
  in.table(0, {4, 5}).swap(4, 7, false).swap(5, 8, false);
  in.chunk(kDecode, 0, 6, {expected[0]}, {4, 5}, 1);
  CHECK(run(in) == Samples{{expected[1]}});
}

TEST_CASE("Drafts are accepted as long as they are what is sampled") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 6, {4, 80, 0});
  const std::vector<std::int32_t> blocks{0, 1, 2};
  Token wrong = 0;
  while (std::find(expected.begin(), expected.end(), wrong) != expected.end()) {
    ++wrong;
  }
  struct Case {
    std::vector<Token> drafts;
    std::size_t num_given;  // tokens that the step gives
  };
  for (const Case& c :
       {Case{{expected[1], expected[2], expected[3]}, 4},
        Case{{expected[1], expected[2], wrong}, 3}, Case{{wrong, expected[2]}, 1}}) {
    Poisoned engine(model, small());
    HandRun run(engine);
    HandPlan prompt(1, 4);
    prompt.table(0, blocks).chunk(kPrefill, 0, 0, kPrompt, blocks, 1, {4, 80, 0});
    run(prompt);
    std::vector<Token> tokens{expected[0]};
    tokens.insert(tokens.end(), c.drafts.begin(), c.drafts.end());
    HandPlan decode(2, 4);
    decode.chunk(kDecode, 0, 6, tokens, blocks, 1, {4, 80, 0});
    CHECK(run(decode) == Samples{part(expected, 1, 1 + c.num_given)});
    // What followed a wrong draft is written over by the next decode.
    const auto next = static_cast<std::int32_t>(6 + c.num_given);
    HandPlan after(3, 4);
    after.chunk(kDecode, 0, next, {future_token(Row{0})}, blocks, 1, {4, 80, 0});
    CHECK(run(after) == Samples{{expected[1 + c.num_given]}});
  }
}

TEST_CASE("Drafts are what followed the last two tokens before") {
  const Model model = model_of();
  // A prompt that ends with `a`, is followed by `g`, and holds the pair (a, g) already.
  std::vector<Token> prompt;
  for (Token a = 0; a < model.config().vocab && prompt.empty(); ++a) {
    for (Token g = 0; g < model.config().vocab && prompt.empty(); ++g) {
      std::vector<Token> candidate{a, g, 7, 8, 9, 5, a};
      if (a > 9 && g > 9 && alone(model, candidate, 1)[0] == g) {
        prompt = candidate;
      }
    }
  }
  REQUIRE(prompt.size() == 7);
  EngineConfig config = small();
  config.max_drafts = 3;
  Engine engine(model, config);
  HandRun run(engine);
  HandPlan repeating(1, 4);
  repeating.table(0, {0, 1}).chunk(kPrefill, 0, 0, prompt, {0, 1}, 1);
  run(repeating);
  CHECK(run.drafts[0] == std::vector<Token>{7, 8, 9});
  // Another sequence in the row: what the one before has said is forgotten.
  HandPlan fresh(2, 4);
  fresh.table(0, {2, 3}).chunk(kPrefill, 0, 4, part(prompt, 4, 7), {2, 3}, 1);
  run(fresh);
  CHECK(run.drafts[0].empty());
}

TEST_CASE("A future token is the newest of an older plan that was not abandoned") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 3);
  Engine engine(model, small());
  HandRun run(engine);
  HandPlan prompt(1, 4);
  const std::vector<std::int32_t> blocks{0, 1, 2};
  prompt.table(0, blocks).chunk(kPrefill, 0, 0, kPrompt, blocks, 1);
  run(prompt);
  HandPlan second(2, 4);
  second.chunk(kDecode, 0, 6, {future_token(Row{0})}, blocks, 1);
  HandPlan third(3, 4);
  third.chunk(kDecode, 0, 7, {future_token(Row{0})}, blocks, 1);
  CHECK(run(second) == Samples{{expected[1]}});
  CHECK(run(third) == Samples{{expected[2]}});
  // Plans 2 and 3 are abandoned after they ran; plan 1 stands.
  engine.forget(second.plan());
  HandPlan again(4, 4);
  again.chunk(kDecode, 0, 6, {future_token(Row{0})}, blocks, 1);
  CHECK(run(again) == Samples{{expected[1]}});
}

TEST_CASE("Experts may lie anywhere, in several places, and move") {
  const Model model = model_of();
  const std::vector<Token> expected = alone(model, kPrompt, 1);
  EngineConfig config = small();
  config.expert_slots = 10;  // experts 0 and 1 twice
  Engine engine(model, config);
  HandRun run(engine);
  const auto tokens_with = [&](std::uint64_t id, const std::vector<ExpertMove>& moves) {
    HandPlan plan(id, 4);
    plan.table(0, {0, 1}).chunk(kPrefill, 0, 0, kPrompt, {0, 1}, 1);
    for (const ExpertMove& move : moves) {
      plan.move(move);
    }
    return run(plan)[0];
  };
  CHECK(tokens_with(1, {}) == expected);
  // Two experts change places in one plan: both sources are read first.
  CHECK(tokens_with(2, {{0, 2, 3, 2}, {0, 3, 2, 3}}) == expected);
  // An expert with a second replica makes room for another one.
  CHECK(tokens_with(3, {{1, 7, 8, 7}}) == expected);
  // A source that holds something else is refused, and nothing has moved.
  CHECK_THROWS_AS(tokens_with(4, {{0, 2, 9, 2}}), Error);
  CHECK(tokens_with(5, {{0, 3, 9, 2}}) == expected);
  // Forgotten moves go back: slot 9 of layer 0 holds expert 1 again.
  HandPlan abandoned(5, 4);
  engine.forget(abandoned.plan());
  CHECK(tokens_with(6, {{0, 9, 8, 1}}) == expected);
}

TEST_CASE("Expert counts add up to the tokens of the step") {
  const Model model = model_of();
  Engine engine(model, small());
  HandRun run(engine);
  HandPlan plan(1, 4);
  plan.table(0, {0, 1}).table(1, {2});
  plan.chunk(kPrefill, 0, 0, kPrompt, {0, 1}, 1).chunk(kPrefill, 1, 0, {1, 2}, {2}, 1).cut(3);
  run(plan);
  const StepResult view = run.result.view();
  const auto experts = static_cast<std::size_t>(model.config().num_experts);
  REQUIRE(view.expert_counts.size() == 2 * experts);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::uint32_t sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      sum += view.expert_counts[layer * experts + e];
    }
    CHECK(sum == 8U * static_cast<std::uint32_t>(model.config().experts_per_token));
  }
}

TEST_CASE("Padding costs time and changes no token") {
  const Model model = model_of();
  EngineConfig config = small();
  config.pads = true;
  Poisoned engine(model, config);
  HandRun run(engine);
  const std::vector<Token> expected = alone(model, kPrompt, 2);
  HandPlan prompt(1, 4);
  prompt.table(0, {0, 1}).chunk(kPrefill, 0, 0, kPrompt, {0, 1}, 1).pad(8, 12);
  CHECK(run(prompt) == Samples{{expected[0]}});
  HandPlan decode(2, 4);
  decode.chunk(kDecode, 0, 6, {expected[0]}, {0, 1}, 1).pad(8, 12);
  CHECK(run(decode) == Samples{{expected[1]}});
}

TEST_CASE("What the engine cannot do is refused") {
  const Model model = model_of();
  EngineConfig config = small();
  config.max_context = 65;
  CHECK_THROWS_AS(Engine(model, config), Error);
  config = small();
  config.expert_slots = 7;
  CHECK_THROWS_AS(Engine(model, config), Error);
  Engine engine(model, small());
  HandRun run(engine);
  HandPlan without_group(1, 4);
  without_group.table(0, {0}).chunk(kPrefill, 0, 0, {1}, {0}, 0);
  StepPlan plan = without_group.plan();
  plan.groups = {};
  run.result.reset(plan);
  CHECK_THROWS_AS(engine.execute(plan, run.result), Error);
  HandPlan unknown_row(1, 4);
  unknown_row.table(9, {0}).chunk(kPrefill, 9, 0, {1}, {0}, 0);
  CHECK_THROWS_AS(run(unknown_row), Error);
  HandPlan too_long(1, 4);
  too_long.chunk(kDecode, 0, 64, {1}, std::vector<std::int32_t>(17, 0), 0);
  CHECK_THROWS_AS(run(too_long), Error);
  HandPlan without_table(1, 4);
  without_table.chunk(kPrefill, 0, 0, {1}, {0}, 0);
  CHECK_THROWS_AS(run(without_table), Error);
}

TEST_CASE("Capabilities say what the engine is") {
  const Model model = model_of();
  const Engine engine(model, small());
  const Capabilities caps = engine.capabilities();
  CHECK(caps.validate());
  CHECK(caps.max_tokens == 64);
  CHECK(caps.max_sequences == 4);
  CHECK(caps.kv_tokens == 64);
  REQUIRE(caps.groups.size() == 1);
  CHECK(caps.groups[0].block_size == 4);
  CHECK(caps.future_tokens);
  CHECK(caps.num_layers == 2);
  CHECK(caps.num_experts == 8);
}
