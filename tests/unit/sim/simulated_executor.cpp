// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/simulated_executor.hpp>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

using dynbatch::Chunk;
using dynbatch::ChunkKind;
using dynbatch::FormulaCost;
using dynbatch::OutcomeKind;
using dynbatch::SimulatedExecutor;
using dynbatch::SimulatedRequest;
using dynbatch::StepPlan;
using dynbatch::StepResultBuffer;
using dynbatch::TraceRequest;

namespace {

Chunk chunk_of(std::uint64_t index, ChunkKind kind, std::int32_t samples) {
  Chunk chunk;
  chunk.user_data = index;
  chunk.kind = kind;
  chunk.num_tokens = 1;
  chunk.num_samples = samples;
  return chunk;
}

// An executor over two requests of 3 and 1 tokens whose steps take 1 ms a decoding row plus 10 ms.
struct Fixture {
  Fixture() { CHECK(result.allocate(4, 4, 4)); }
  // Runs one step and returns the outcome kinds of its chunks.
  std::vector<OutcomeKind> step(const std::vector<Chunk>& chunks) {
    StepPlan plan;
    plan.chunks = chunks;
    for (const Chunk& chunk : chunks) {
      plan.work.decode_rows += chunk.kind == ChunkKind::Decode ? 1 : 0;
      plan.num_samples += chunk.num_samples;
    }
    result.reset(plan);
    executor.execute(plan, result);
    const auto view = result.view();
    if (!view.token_begin.empty()) {  // else the short form: one token a sample
      CHECK(view.token_begin.size() == static_cast<std::size_t>(plan.num_samples) + 1);
    }
    CHECK(view.tokens.size() == static_cast<std::size_t>(plan.num_samples));
    CHECK(view.measured == executor.last_step());
    std::vector<OutcomeKind> kinds(chunks.size(), OutcomeKind::Ok);  // what no outcomes mean
    for (std::size_t i = 0; i < view.outcomes.size(); ++i) {
      kinds[i] = view.outcomes[i].kind;
    }
    return kinds;
  }

  std::vector<TraceRequest> requests{{.output_tokens = 3}, {.output_tokens = 1}};
  std::vector<SimulatedRequest> records = std::vector<SimulatedRequest>(2);
  StepResultBuffer result;
  SimulatedExecutor<FormulaCost> executor{
      FormulaCost{{10'000'000, 0, 1'000'000'000, 0, 0, 1}, {}}, {}, requests, records};
};

}  // namespace

TEST_CASE("requests end at the trace's length and only with a sample", "[sim][executor]") {
  Fixture f;
  f.executor.advance_to({5'000'000});
  f.executor.advance_to({1'000'000});
  CHECK(f.executor.now().ns == 5'000'000);
  // Both prompts begin; the second isn't complete yet.
  CHECK(f.step({chunk_of(0, ChunkKind::Prefill, 1), chunk_of(1, ChunkKind::Prefill, 0)}) ==
        std::vector{OutcomeKind::Ok, OutcomeKind::Ok});
  CHECK(f.records[0].scheduled_ns == 5'000'000);
  CHECK(f.records[0].first_token_ns == 15'000'000);
  CHECK(f.records[1].scheduled_ns == 5'000'000);
  CHECK(f.records[1].first_token_ns == -1);
  CHECK(f.step({chunk_of(0, ChunkKind::Decode, 1), chunk_of(1, ChunkKind::Prefill, 1)}) ==
        std::vector{OutcomeKind::Ok, OutcomeKind::Stop});
  CHECK(f.records[1].first_token_ns == 26'000'000);
  CHECK(f.step({chunk_of(0, ChunkKind::Decode, 1)}) == std::vector{OutcomeKind::Stop});
  CHECK(f.executor.now().ns == 37'000'000);
  CHECK(f.executor.num_steps() == 3);
  CHECK(f.executor.busy_ns() == 32'000'000);
}

TEST_CASE("gaps between tokens span skipped steps and recomputation", "[sim][executor]") {
  Fixture f;
  CHECK(f.step({chunk_of(0, ChunkKind::Prefill, 1)}).size() == 1);  // ends at 10 ms
  CHECK(f.step({chunk_of(1, ChunkKind::Prefill, 0)}).size() == 1);  // 20 ms, request 0 preempted
  CHECK(f.step({chunk_of(0, ChunkKind::Prefill, 1)}).size() == 1);  // 30 ms, recomputed
  CHECK(f.step({chunk_of(0, ChunkKind::Decode, 1)}) == std::vector{OutcomeKind::Stop});  // 41 ms
  REQUIRE(f.executor.gaps().size() == 2);
  CHECK(f.executor.gaps()[0].value == 20'000'000);
  CHECK(f.executor.gaps()[1].value == 11'000'000);
  CHECK(f.records[0].scheduled_ns == 0);
  CHECK(f.records[0].first_token_ns == 10'000'000);
}
