// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// tiny::Engine: runs the plans of a dynbatch Scheduler on a tiny::Model. A whole engine in small:
/// paged KV behind resident block tables, forks by copy, chunked prefill, micro-batches, experts in
/// slots, drafted tokens, tokens that a plan still in flight will produce.
#include <dynbatch/concepts/executor.hpp>
#include <dynbatch/model/block_table_mirror.hpp>
#include <dynbatch/model/capabilities.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include "kv_store.hpp"
#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace tiny {

using namespace dynbatch;  // the scheduler's nouns are this engine's nouns

struct EngineConfig {
  std::int64_t num_blocks = 256;
  std::int32_t block_size = 16;
  std::int32_t max_rows = 32;
  std::int32_t max_tokens = 512;   ///< Of one step.
  std::int32_t max_context = 512;  ///< At most the model's max_positions, and at least
                                   ///< SchedulerConfig::max_context_tokens.
  std::int32_t max_drafts = 0;     ///< Proposed after each token; 0 = no drafts.
  std::int32_t expert_slots = 0;   ///< A layer; slot s holds expert s mod their number. 0 = one
                                   ///< for each.
  bool pads = false;  ///< Computes the rows that a padded plan is charged with, as an engine of
                      ///< fixed shapes does.
  std::int64_t window_blocks = 0;      ///< Models with a window: memory of the layers that have it,
  std::int32_t window_block_size = 8;  ///< in blocks of so many tokens; their group is the second.
  std::int64_t state_blocks = 0;       ///< Models with recurrent layers: states, the last group.
};

/// Proposes tokens to follow `position`, the newest one of a chunk's sequence.
using Drafter = std::function<void(const Chunk&, std::int32_t sample, std::int32_t position,
                                   std::vector<Token>&)>;

class Engine {
 public:
  /// `model` must outlive the engine.
  Engine(const Model& model, const EngineConfig& config);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // What dynbatch asks of an Executor.
  [[nodiscard]] Capabilities capabilities() const;
  /// Raises a dynbatch::Error at what it cannot do; run_step() then abandons the plan.
  void execute(const StepPlan& plan, StepResultBuffer& result);

  /// The scheduler has abandoned this plan and all younger ones. If they ran, what they sampled is
  /// void: future tokens of later plans are those of older ones. Experts that they moved go back.
  void forget(const StepPlan& plan);

  /// In place of the n-grams of the sequence itself.
  void set_drafter(Drafter drafter) { drafter_ = std::move(drafter); }
  [[nodiscard]] KvStore& kv() noexcept { return kv_; }
  [[nodiscard]] KvStore& window_kv() noexcept { return window_kv_; }
  [[nodiscard]] KvStore& states() noexcept { return states_; }
  [[nodiscard]] const EngineConfig& config() const noexcept { return config_; }

 protected:
  // Decisions that are easy to get wrong. Virtual only so that tests can get them wrong, to
  // prove that they would notice.
  /// Number of leading positions that the token at `position` attends to.
  [[nodiscard]] virtual std::int32_t num_visible(std::int32_t position) const {
    return position + 1;
  }
  [[nodiscard]] virtual bool accepts(Token draft, Token sampled) const { return draft == sampled; }
  /// Whether a chunk goes into the states of its sequence. One that will be reported as not run
  /// must not: KV is written again, a state can't be taken back.
  [[nodiscard]] virtual bool moves_state(const Chunk& chunk) const {
    static_cast<void>(chunk);
    return true;
  }

 private:
  void run(const StepPlan& plan, StepResultBuffer& result);
  // Its steps, in order.
  void update_tables(const StepPlan& plan);
  void move_blocks(const StepPlan& plan);
  void move_experts(const StepPlan& plan);
  void read_tokens(const StepPlan& plan);
  void attention(const StepPlan& plan, const MicroBatch& part, std::int32_t layer);
  void recurrence(const StepPlan& plan, const MicroBatch& part, std::int32_t layer);
  void feed_forward(std::int32_t first, std::int32_t last, std::int32_t layer);
  void compute_padding(const StepPlan& plan, std::int32_t layer);
  void sample(const StepPlan& plan, StepResultBuffer& result);

  [[nodiscard]] std::span<const float* const> context(const Chunk& chunk, std::int32_t layer);
  [[nodiscard]] std::span<const float> slot_weights(std::int32_t layer, std::int32_t expert,
                                                    std::int32_t choice) const;
  [[nodiscard]] Token sample_at(const Chunk& chunk, std::int32_t token, std::int32_t sample);
  void propose(const Chunk& chunk, std::int32_t sample, std::int32_t position, Token newest);
  [[nodiscard]] float* hidden(std::int32_t token) {
    return hidden_.data() + static_cast<std::size_t>(token) * width_;
  }
  [[nodiscard]] Token& history(Row row, std::int32_t position) {
    return history_[static_cast<std::size_t>(row.value) *
                        static_cast<std::size_t>(config_.max_context + 1) +
                    static_cast<std::size_t>(position)];
  }

  /// One physical place for an expert's weights.
  struct ExpertSlot {
    std::int32_t expert = 0;
    std::vector<float> weights;
  };
  [[nodiscard]] ExpertSlot& slot(std::int32_t layer, std::int32_t index) {
    return slots_.at(static_cast<std::size_t>(layer)).at(static_cast<std::size_t>(index));
  }
  /// What lay in a slot before a plan that may still be in flight.
  struct Replaced {
    PlanId plan{};
    std::int32_t layer = 0;
    std::int32_t slot = 0;
    ExpertSlot content;
  };
  /// What a row's sequence sampled in a plan that may still be in flight.
  struct Sampled {
    PlanId plan{};
    Token token = 0;
  };

  const Model* model_;
  EngineConfig config_;
  std::size_t width_;
  KvStore kv_;
  KvStore window_kv_;
  KvStore states_;
  GroupSpec groups_[3]{};  // full attention, then windows and states if the model has them
  KvStore* memory_[3]{};   // of each group
  std::size_t num_groups_ = 0;
  BlockTableMirror tables_[3];                  // of each group: row -> blocks, by position
  std::vector<std::vector<ExpertSlot>> slots_;  // [num_layers][expert_slots]
  std::deque<Replaced> replaced_;               // newest last
  std::vector<std::vector<Sampled>> sampled_;   // [max_rows], newest last
  std::vector<Token> history_;                  // [max_rows][max_context + 1], kNoToken = unknown
  Drafter drafter_;

  // Of the step that runs.
  std::vector<Token> tokens_;          // [tokens], none of them a future one
  std::vector<float> hidden_;          // [tokens][width]
  std::vector<float> queries_;         // [tokens][query_floats]
  std::vector<float> normed_;          // [tokens][width]
  std::vector<float> mixed_;           // [tokens][width], what the experts said
  std::vector<Route> routes_;          // [tokens]
  std::vector<const float*> context_;  // [max_context]
  std::vector<float> logits_;
  std::vector<Token> run_;  // accepted drafts and the token after them
  std::vector<Token> drafts_;
  // Expert counts belong to their result until it is committed, so there are as many as plans.
  std::vector<std::vector<std::uint32_t>> expert_counts_;  // [kMaxPlans][num_layers * num_experts]
  std::vector<std::uint32_t>* counts_ = nullptr;
};

static_assert(Executor<Engine>);

}  // namespace tiny
