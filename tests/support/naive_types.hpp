// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the naive reference scheduler is told and what it remembers: plain structs, nothing counted
/// twice.
#include <dynbatch/batch/admission_rules.hpp>
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/stats.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/step_result.hpp>

#include "toy_host.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace dynbatch::test::naive {

/// What is fixed when the two schedulers are built.
struct Setup {
  // The executor.
  std::int64_t host_tokens = 64;
  std::int32_t rows = 8;
  bool in_order = true;
  bool future_tokens = false;
  // SchedulerConfig.
  std::int64_t max_live = 24;
  std::int64_t max_context = 200;
  std::int32_t plans = 1;
  std::int32_t drafts = 0;
  std::int32_t retries = 2;
  std::int64_t resource = 3;
  std::int32_t media_spans = 64;
  // The sizer: 0 unbounded, 1 static, 2 token budget.
  int sizer = 0;
  std::int32_t sequences = std::numeric_limits<std::int32_t>::max();
  std::int64_t step_tokens = std::numeric_limits<std::int64_t>::max();
  // The pool.
  std::int64_t blocks = 100;
  std::int32_t block_size = 4;
  bool caching = false;
  bool partial = false;  ///< The executor copies fronts of blocks, of so many tokens at least.
  std::int32_t min_partial = 1;
  // The admission policy: FcfsAdmission, or PriorityAging.
  AdmissionRules rules{};
  bool by_priority = false;
  DurationNs aging = milliseconds(2);
  bool displaces = false;  ///< Only with priorities.
  std::int32_t max_displacements = 3;

  [[nodiscard]] std::int64_t kv_limit() const { return std::min(max_context, blocks * block_size); }
  [[nodiscard]] std::int32_t places() const { return std::min(rows, sequences); }
  [[nodiscard]] std::int64_t tokens() const { return std::min(host_tokens, step_tokens); }
};

/// A request with all that it points to.
struct Submission : ToyRequest {
  std::vector<ResourceNeed> needs;

  Request view() {
    ToyRequest::view();
    request.resources = needs;
    return request;
  }
  [[nodiscard]] std::int64_t length() const {
    return request.prompt.kind == PromptKind::Tokens ? static_cast<std::int64_t>(prompt.size())
                                                     : request.prompt.length;
  }
  [[nodiscard]] std::int64_t resource() const {
    std::int64_t n = 0;
    for (const ResourceNeed& need : needs) {
      n += need.amount;
    }
    return n;
  }
};

/// The blocks of one sequence.
struct Table {
  std::vector<int> blocks;
  std::size_t acquired = 0;   ///< Leading ones that came from the cache or from a fork.
  std::size_t published = 0;  ///< Leading ones that hold a prefix others may find.
  int source = -1;            ///< Kept until its front has been copied to a block of the table.
};

enum class Where : std::uint8_t { Waiting, Running, Forking, Leaving, Ended };
enum class Phase : std::uint8_t { Prefill, Decode, Draining, Gone };

struct Sequence;
struct Query;

/// The place of a sequence in the batch, from its admission until no plan names it any more.
struct Seat {
  std::int32_t row = 0;
  Sequence* sequence = nullptr;
  Phase phase = Phase::Prefill;
  std::uint64_t since = 0;     ///< When it entered its phase, in entries.
  std::int64_t planned = 0;    ///< Positions in KV once all plans in flight have run.
  std::int64_t committed = 0;  ///< Positions in KV.
  Table table;
  std::int64_t held = 0;         ///< Blocks kept from other admissions, not in the table yet.
  std::int64_t fork_blocks = 0;  ///< The same for the samples that will fork off,
  std::int32_t reserved = 0;     ///< and the rows for them.
  std::int64_t next_publish = 0;
  std::vector<Token> drafts;    ///< Proposals for its next decode.
  std::uint64_t copied_in = 0;  ///< Plan that tells the copy it begins with.
  std::int64_t copy_first = 0;  ///< Its prefix ends in the block at this position, where
  std::int64_t copied = 0;      ///< so many tokens are copied from another block.
  bool comes_back = false;      ///< Draining: waits again afterwards.
  bool is_reset = false;        ///< Draining because it read what was never written.
};
using SeatRef = std::shared_ptr<Seat>;

/// A sample of a request.
struct Sequence {
  Query* query = nullptr;
  std::int32_t sample = 0;
  std::uint64_t order = 0;
  Where where = Where::Forking;
  std::vector<Token> outputs;
  AdmissionKey key{};
  bool was_admitted = false;
  std::int32_t bypassed = 0;
  std::int32_t preemptions = 0;
  std::int64_t preempted_at = 0;  ///< Outputs at the last of them.
  std::int32_t retries = 0;
  std::int64_t computed_before = 0;  ///< Positions that plans have named.
  SeatRef seat;
  FinishReason reason = FinishReason::None;
  // Found not to fit: not looked at again before there are so many blocks, or that plan.
  std::int64_t retry_need = 0;
  std::uint64_t retry_plan = 0;
  // Waits until that one, prefilling in that row, has planned this position.
  bool is_late = false;     ///< Its first token can't be in time: it stands behind the others,
  bool is_awaited = false;  ///< unless one of those waits for what it computes.
  Sequence* waits_for = nullptr;
  std::int32_t waits_row = 0;
  std::int64_t waits_position = 0;
};

/// A request, from submit() on; it stays for the comparison when it is over.
struct Query {
  Submission given;
  std::int64_t prompt_length = 0;
  std::int64_t max_new = 0;
  std::int64_t cacheable = 0;
  bool is_atomic = false;
  std::vector<std::unique_ptr<Sequence>> samples;
  bool is_taken_in = false;
  bool is_cancelled = false;
  bool saw_cancel = false;  ///< Before it was taken in.
  std::int32_t displacements = 0;
  bool is_forked = false;  ///< Its samples have gone separate ways.
  bool is_over = false;
  bool is_delivered = false;  ///< Its terminal event: the id is free.
  bool is_retired = false;    ///< Its slots are.
  EventKind end = EventKind::Accepted;
  FinishReason reason = FinishReason::None;
  Errc error = Errc::Ok;
  TimeNs accepted_at{};
  TimeNs ended_at{};

  [[nodiscard]] const Request& request() const { return given.request; }
  [[nodiscard]] std::int64_t limit() const { return prompt_length + max_new; }
};

/// A chunk.
struct Piece {
  SeatRef seat;
  std::uint64_t request = 0;
  std::int32_t sample = 0;
  ChunkKind kind = ChunkKind::Prefill;
  std::int64_t first = 0;
  std::vector<Token> tokens;
  std::int32_t samples = 0;
  Phase phase_before = Phase::Prefill;
  bool is_void = false;     ///< Its row was rolled back behind it: whatever it does is dropped.
  bool is_settled = false;  ///< Nothing is in flight of it any more.

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::int64_t end() const { return first + size(); }
};

/// A block that a fork copies from another seat.
struct Copy {
  SeatRef source;
  SeatRef target;
};

struct Plan {
  std::uint64_t id = 0;
  std::vector<Piece> pieces;
  std::vector<Copy> copies;     ///< That it tells the host.
  std::vector<SeatRef> starts;  ///< Admitted with the front of a block that it copies.
  PaddedSize padded{};
};

/// What the executor did of one chunk.
struct Result {
  Outcome outcome{};
  std::vector<std::vector<Token>> samples;
  std::vector<Token> drafts;  ///< For the first sample.
};

}  // namespace dynbatch::test::naive
