// SPDX-License-Identifier: Apache-2.0
/// \file
/// The code in docs/embedding.md, compiled and run. Each block there equals a region between two
/// `// [docs]` lines here.
#include <dynbatch/dynbatch.hpp>
#include <dynbatch/laws/batch_sizer.hpp>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace docs_snippets {

// The engine that the guide embeds into: a model that counts on, with a paged cache.
struct Engine {
  std::int32_t num_blocks = 64;
  std::vector<dynbatch::Token> last_token = std::vector<dynbatch::Token>(8);  // [rows]

  // What the device does: reads tokens (future ones from last_token), writes KV, samples.
  std::vector<dynbatch::Token> forward(const dynbatch::StepPlan& plan,
                                       const std::vector<std::vector<std::int32_t>>& tables) {
    std::vector<dynbatch::Token> sampled;
    for (const dynbatch::Chunk& chunk : plan.chunks) {
      const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(chunk.row.value)];
      REQUIRE(static_cast<std::int32_t>(table.size()) * 16 >= chunk.context_length);
      for (std::int32_t i = 0; i < chunk.num_tokens; ++i) {
        const auto t = static_cast<std::size_t>(chunk.first_token + i);
        const std::int32_t p = plan.positions[t];
        REQUIRE(plan.groups[0].token_slots[t].value ==
                table[static_cast<std::size_t>(p / 16)] * std::int64_t{16} + p % 16);
        const dynbatch::Token token = plan.tokens[t];
        const dynbatch::Token seen =
            dynbatch::is_future_token(token)
                ? last_token[static_cast<std::size_t>(dynbatch::row_of_future_token(token).value)]
                : token;
        REQUIRE(seen == p + 1);
      }
      if (chunk.num_samples > 0) {
        sampled.push_back(chunk.context_length + 1);
        last_token[static_cast<std::size_t>(chunk.row.value)] = sampled.back();
      }
    }
    return sampled;
  }
};

// [docs]
class MyExecutor {
 public:
  explicit MyExecutor(Engine& engine) : engine_(&engine), tables_(kRows) {}

  dynbatch::Capabilities capabilities() const {
    dynbatch::Capabilities caps;
    caps.max_tokens = 8192;                     // tokens one forward pass can take
    caps.max_sequences = kRows;                 // rows of your resident block tables
    caps.kv_tokens = engine_->num_blocks * 16;  // make() refuses a larger pool
    return caps;
  }

  void execute(const dynbatch::StepPlan& plan, dynbatch::StepResultBuffer& result) {
    for (const dynbatch::Token token : forward(plan)) {
      result.add_sample(token);  // plan order: one for each chunk with num_samples == 1
    }
  }

  std::vector<dynbatch::Token> forward(const dynbatch::StepPlan& plan) {
    for (const dynbatch::BlockDelta& delta : plan.groups[0].deltas) {
      std::vector<std::int32_t>& table = tables_[static_cast<std::size_t>(delta.row.value)];
      table.resize(static_cast<std::size_t>(delta.index));  // index 0: a new sequence in this row
      table.push_back(delta.block.value);
    }
    return engine_->forward(plan, tables_);
  }

 private:
  static constexpr std::int32_t kRows = 8;
  Engine* engine_;
  std::vector<std::vector<std::int32_t>> tables_;  // [row][index]: block
};
// [docs]

// [docs]
using MyScheduler = dynbatch::Scheduler<dynbatch::DynamicSizer, dynbatch::NoSplit,
                                        dynbatch::NullBalancer, dynbatch::BlockPool<>>;

dynbatch::Expected<MyScheduler> make_scheduler(const dynbatch::Capabilities& capabilities,
                                               std::int64_t num_blocks, std::int32_t num_plans) {
  dynbatch::SchedulerConfig config;
  config.max_live_requests = 1024;
  config.max_queued_tokens = 1024 * 2048;  // prompt + max_new_tokens, over all live requests
  config.max_context_tokens = 32768;
  config.max_plans_in_flight = num_plans;
  return MyScheduler::make(config, capabilities, dynbatch::DynamicSizer(), dynbatch::NoSplit(),
                           dynbatch::NullBalancer(),
                           dynbatch::BlockPool<>({.num_blocks = num_blocks, .block_size = 16}),
                           dynbatch::FcfsAdmission({.watermark_permille = 10}));
}
// [docs]

// [docs]
dynbatch::Status send(MyScheduler& scheduler, std::uint64_t id,
                      const std::vector<dynbatch::Token>& prompt, dynbatch::TimeNs now) {
  const dynbatch::Token stop_tokens[] = {2};
  dynbatch::Request request;
  request.id = {id};
  request.prompt.tokens = prompt;  // copied inside submit()
  request.max_new_tokens = 40;
  request.stop_tokens = stop_tokens;  // so is everything else that it points to
  request.arrival = now;
  request.finish_by = now + dynbatch::seconds(60);
  request.slo = {.ttft = dynbatch::seconds(2), .tpot = dynbatch::milliseconds(100)};
  request.user_data = id;  // comes back in chunks and events
  return scheduler.submit(request);
}
// [docs]

std::map<std::uint64_t, std::vector<dynbatch::Token>> g_output;
std::map<std::uint64_t, dynbatch::EventKind> g_ends;
void on_tokens(std::uint64_t id, std::span<const dynbatch::Token> tokens) {
  g_output[id].insert(g_output[id].end(), tokens.begin(), tokens.end());
}
void on_end(std::uint64_t id, const dynbatch::Event& event) { g_ends[id] = event.kind; }

// [docs]
void deliver(MyScheduler& scheduler) {
  dynbatch::Event events[64];
  std::size_t n = 0;
  do {
    n = scheduler.poll(events);
    for (const dynbatch::Event& event : std::span(events, n)) {
      if (!event.tokens.empty()) {
        on_tokens(event.request.value, event.tokens);  // copies: the span ends with the next poll()
      }
      if (is_terminal(event.kind)) {
        on_end(event.request.value, event);  // the id may be used again from now on
      }
    }
  } while (n == std::size(events));
}
// [docs]

dynbatch::TimeNs monotonic_now() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration_cast<std::chrono::nanoseconds>(t).count()};
}
int g_waits = 0;
void wait_for_work() { ++g_waits; }

// [docs]
void serve(MyScheduler& scheduler, MyExecutor& executor, dynbatch::StepResultBuffer& result) {
  for (;;) {
    const dynbatch::StepReport report = run_step(scheduler, executor, result, monotonic_now);
    deliver(scheduler);
    if (report.outcome == dynbatch::StepOutcome::NoPlan) {
      if (scheduler.status().state == dynbatch::PlanState::Closed) {
        return;  // close() was called and everything has ended
      }
      wait_for_work();  // your condition variable, notified after submit(), cancel() and close()
    }
  }
}
// [docs]

std::deque<std::vector<dynbatch::Token>> g_device;
void launch(MyExecutor& executor, const dynbatch::StepPlan& plan) {
  g_device.push_back(executor.forward(plan));
}
void collect(dynbatch::StepResultBuffer& result) {
  for (const dynbatch::Token token : g_device.front()) {
    result.add_sample(token);
  }
  g_device.pop_front();
}

// [docs]
void serve_overlapped(MyScheduler& scheduler, MyExecutor& executor,
                      dynbatch::StepResultBuffer& result) {
  std::deque<const dynbatch::StepPlan*> in_flight;
  for (;;) {
    // Fill the pipeline: plan() returns nullptr at max_plans_in_flight, or when nothing can run.
    while (const dynbatch::StepPlan* plan = scheduler.plan(monotonic_now())) {
      launch(executor, *plan);  // uploads and enqueues; doesn't wait
      in_flight.push_back(plan);
    }
    if (in_flight.empty()) {
      deliver(scheduler);
      if (scheduler.status().state == dynbatch::PlanState::Closed) {
        return;
      }
      wait_for_work();
      continue;
    }
    const dynbatch::StepPlan& oldest = *in_flight.front();
    result.reset(oldest);
    collect(result);  // waits for the oldest step and reads its tokens back
    if (!scheduler.commit(oldest, result.view(), monotonic_now())) {
      (void)scheduler.abandon(oldest, dynbatch::AbandonReason::Lost, monotonic_now());
      in_flight.clear();  // abandon() settles the younger ones too
    } else {
      in_flight.pop_front();
    }
    deliver(scheduler);
  }
}
// [docs]

struct Fate {
  enum Kind { kFine, kSkipped, kHalf, kStopString, kBroken } kind = kFine;
};

// [docs]
void report(const dynbatch::StepPlan& plan, std::span<const Fate> fates,
            std::span<const dynbatch::Token> sampled, dynbatch::StepResultBuffer& result) {
  using dynbatch::OutcomeKind;
  result.reset(plan);  // every outcome Ok, no sample yet
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) {
    const dynbatch::Chunk& chunk = plan.chunks[c];
    bool has_run = true;
    switch (fates[c].kind) {
      case Fate::kFine:
        break;
      case Fate::kSkipped:  // nothing of it ran; planned again, free of charge
        result.set_outcome(c, {.kind = OutcomeKind::NotRun});
        has_run = false;
        break;
      case Fate::kHalf:  // its first `tokens` tokens ran; the rest is planned again
        result.set_outcome(c, {.kind = OutcomeKind::Partial, .tokens = chunk.num_tokens / 2});
        has_run = false;
        break;
      case Fate::kStopString:  // the host ends the request; `tokens` of its samples are kept
        result.set_outcome(c, {.kind = OutcomeKind::Stop, .tokens = chunk.num_samples});
        break;
      case Fate::kBroken:  // its KV is unusable; a retry, then the request fails
        result.set_outcome(c, {.kind = OutcomeKind::Failed});
        has_run = false;
        break;
    }
    if (chunk.num_samples > 0 && has_run) {
      result.add_sample(sampled[static_cast<std::size_t>(chunk.first_sample)]);
    } else if (chunk.num_samples > 0) {
      result.add_sample(std::span<const dynbatch::Token>());  // wanted and not produced
    }
  }
}
// [docs]

// [docs]
dynbatch::Request digest_request(std::uint64_t id, std::span<const dynbatch::ContentDigest> chain,
                                 std::int64_t prompt_tokens) {
  dynbatch::Request request;
  request.id = {id};
  request.prompt = {.kind = dynbatch::PromptKind::Digests,
                    .digests = chain,         // entry i covers tokens [0, (i + 1) * digest_unit)
                    .length = prompt_tokens,  // tokens behind the last whole unit are not shared
                    .digest_unit = 64};       // a multiple of the pool's block size
  request.max_new_tokens = 40;
  return request;
}
// [docs]

// [docs]
dynbatch::Status send_with_adapter(MyScheduler& scheduler, dynbatch::Request request) {
  constexpr std::uint32_t kAdapterSlots = 0;  // your name for config.resource_caps[0]
  const dynbatch::ResourceNeed needs[] = {{.resource = kAdapterSlots, .amount = 1}};
  request.resources = needs;
  request.scope = {.model_epoch = 1,       // raise it when the weights change
                   .tenant_salt = 0x5EED,  // KV is shared inside one tenant only
                   .adapter_id = 7,
                   .adapter_version = 2,
                   .has_tenant_salt = true,
                   .has_adapter = true};
  return scheduler.submit(request);
}
// [docs]

// [docs]
/// Half of the executor's tokens a step while requests wait, all of them otherwise.
class HalfWhenBusy {
 public:
  using Config = dynbatch::EmptyConfig;  // or a struct of your own with validate()

  dynbatch::BatchLimits limits(const dynbatch::SizerInput& in) noexcept {
    const std::int64_t half = in.max_tokens / 2 > 0 ? in.max_tokens / 2 : 1;
    const std::int64_t tokens = in.num_waiting > 0 ? half : in.max_tokens;
    return {.max_prefill_sequences = in.max_sequences,
            .max_decode_sequences = in.max_sequences,
            .max_tokens = tokens,
            .max_prefill_tokens = tokens};
  }
  void observe(const dynbatch::StepFeedback& step) noexcept { (void)step; }  // learns nothing
  dynbatch::BatchLimits ceiling() const noexcept {  // what no answer of limits() ever exceeds
    return {INT32_MAX, INT32_MAX, INT64_MAX, INT64_MAX, {}};
  }
  dynbatch::StepCost cost() const noexcept { return {}; }
};
static_assert(dynbatch::BatchSizer<HalfWhenBusy>);

dynbatch::Status test_my_sizer() {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    HalfWhenBusy sizer;
    HalfWhenBusy twin;
    HalfWhenBusy fresh;
    if (const auto status = dynbatch::check_batch_sizer_laws(fresh, seed); !status) {
      return status;  // names the law and the value that broke it
    }
    if (const auto status = dynbatch::check_batch_sizer_determinism(sizer, twin, seed); !status) {
      return status;
    }
  }
  return dynbatch::kOk;
}
// [docs]

// [docs]
// Seconds for the header Retry-After of an HTTP 429; 0 = coming again does not help.
std::int64_t retry_after_seconds(const dynbatch::Status& status) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return status.code == dynbatch::Errc::QueueFull ? (status.retry_after.ns + kSecond - 1) / kSecond
                                                  : 0;
}
// [docs]

// [docs]
void watch(dynbatch::SchedulerConfig& config) {
  using dynbatch::AlertKind;
  config.watch.max_tenants = 64;  // with counts of their own
  config.watch.rule(AlertKind::QueueHeadAge) = {.raise_at = 2'000, .clear_at = 500};  // ms
  config.watch.rule(AlertKind::TtftMisses) = {.raise_at = 100, .clear_at = 20};       // permille
  config.watch.rule(AlertKind::KvUse) = {
      .raise_at = 980, .clear_at = 900, .hold = dynbatch::seconds(5)};  // permille, for 5 s
}

void tell(MyScheduler& scheduler) {  // driving thread, now and then
  dynbatch::Alert alerts[8];
  for (std::size_t n = std::size(alerts); n == std::size(alerts);) {
    n = scheduler.drain_alerts(alerts);
    for (std::size_t i = 0; i < n; ++i) {
      std::printf("%s %s at %lld\n", to_string(alerts[i].kind),
                  alerts[i].is_raised ? "raised" : "cleared",
                  static_cast<long long>(alerts[i].value));
    }
  }
  if (const dynbatch::QueueHead head = scheduler.queue_head(); head.is_there) {
    std::printf("request %llu waits for %s\n", static_cast<unsigned long long>(head.request.value),
                to_string(head.cause));
  }
  for (std::size_t i = 0; i < scheduler.num_tenants(); ++i) {
    const dynbatch::TenantStats tenant = scheduler.tenant_stats(i);
    std::printf("tenant %llu: %llu refused, %llu late\n",
                static_cast<unsigned long long>(tenant.tenant),
                static_cast<unsigned long long>(tenant.requests.refused),
                static_cast<unsigned long long>(tenant.requests.ttft_missed));
  }
}
// [docs]

// [docs]
void print_error(const dynbatch::Status& status) {
  char text[256];
  dynbatch::format_status(status, text, sizeof(text));  // allocates nothing
  std::fprintf(stderr, "%s\n", text);
}
// [docs]

std::vector<dynbatch::Token> counting_prompt(std::int32_t length) {
  std::vector<dynbatch::Token> prompt;
  for (std::int32_t i = 1; i <= length; ++i) {
    prompt.push_back(i);
  }
  return prompt;
}

MyScheduler make_or_fail(const dynbatch::Capabilities& caps, std::int32_t num_plans) {
  auto made = make_scheduler(caps, 64, num_plans);
  if (!made) {
    print_error(made.status());
  }
  REQUIRE(made);
  return std::move(made).value();
}

// [docs]
// Beams of one request, in plan order: new beam i continues old beam parents[i] with tokens[i].
void go_on(const dynbatch::StepPlan& plan, std::size_t first_chunk,
           std::span<const std::int32_t> parents, std::span<const dynbatch::Token> tokens,
           dynbatch::StepResultBuffer& result) {
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const std::size_t chunk = first_chunk + static_cast<std::size_t>(parents[i]);
    result.add_continuation({plan.chunks[chunk].sequence, tokens[i]});
  }
}
// [docs]

// [docs]
// Cells by sequence id and position; a shared cell stands in several sequences.
void do_row_ops(const dynbatch::StepPlan& plan, std::vector<std::vector<int>>& sequences) {
  for (const dynbatch::RowOp& op : plan.row_ops) {
    std::vector<int>& target = sequences[static_cast<std::size_t>(op.target.value)];
    const auto first = static_cast<std::size_t>(op.first);
    if (op.kind == dynbatch::RowOpKind::DropRange) {  // llama_memory_seq_rm(target, first, -1)
      target.resize(std::min(target.size(), first));
    } else {  // llama_memory_seq_rm(target, -1, -1), llama_memory_seq_cp(source, target, 0, last)
      const std::vector<int>& source = sequences[static_cast<std::size_t>(op.source.value)];
      target.assign(source.begin(), source.begin() + op.last);
    }
  }
}
// [docs]

// Without their common indentation, and without space at the ends.
std::string dedent(const std::vector<std::string>& lines) {
  std::size_t least = std::string::npos;
  for (const std::string& line : lines) {
    least = std::min(least, line.find_first_not_of(' '));
  }
  std::string text;
  for (const std::string& line : lines) {
    text += (line.size() > least ? line.substr(least) : "") + "\n";
  }
  return text;
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

const std::filesystem::path kTests(DYNBATCH_TEST_SOURCE_DIR);

}  // namespace docs_snippets

using namespace docs_snippets;

TEST_CASE("The code in the embedding guide is the code of this test") {
  std::set<std::string> regions;
  std::vector<std::string> lines;
  bool is_inside = false;
  for (const std::string& line : lines_of(kTests / "unit/scheduler/docs_snippets.cpp")) {
    if (line == "// [docs]") {
      if (is_inside) {
        regions.insert(dedent(lines));
      }
      lines.clear();
      is_inside = !is_inside;
    } else if (is_inside) {
      lines.push_back(line);
    }
  }
  CHECK_FALSE(is_inside);
  std::set<std::string> blocks;
  for (const std::string& line : lines_of(kTests / "../docs/embedding.md")) {
    if (line.rfind("```", 0) == 0) {
      if (is_inside) {
        blocks.insert(dedent(lines));
      }
      lines.clear();
      is_inside = !is_inside && line == "```cpp";
    } else if (is_inside) {
      lines.push_back(line);
    }
  }
  CHECK(regions.size() > 8);
  for (const std::string& block : blocks) {
    INFO("in docs/embedding.md and not here:\n" << block);
    CHECK(regions.count(block) == 1);
  }
  for (const std::string& region : regions) {
    INFO("here and not in docs/embedding.md:\n" << region);
    CHECK(blocks.count(region) == 1);
  }
}

TEST_CASE("dynbatch.hpp includes every public header of the host") {
  const std::filesystem::path include = kTests / "../include";
  std::set<std::string> included;
  for (const std::string& line : lines_of(include / "dynbatch/dynbatch.hpp")) {
    if (line.rfind("#include <", 0) == 0) {
      included.insert(line.substr(10, line.size() - 11));
    }
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(include)) {
    const std::string name = entry.path().lexically_relative(include).generic_string();
    const bool is_left_out =
        name.find("/detail/") != std::string::npos || name.rfind("dynbatch/laws/", 0) == 0 ||
        name.rfind("dynbatch/cuda/", 0) == 0 || name == "dynbatch/dynbatch.hpp";
    if (entry.path().extension() == ".hpp" && !is_left_out) {
      INFO(name);
      CHECK(included.count(name) == 1);
    }
  }
}

TEST_CASE("The synchronous loop of the embedding guide serves requests") {
  g_output.clear();
  g_ends.clear();
  Engine engine;
  MyExecutor executor(engine);
  MyScheduler scheduler = make_or_fail(executor.capabilities(), 1);
  dynbatch::StepResultBuffer result;
  REQUIRE(scheduler.make_result(result));
  for (std::uint64_t id = 1; id <= 20; ++id) {
    REQUIRE(
        send(scheduler, id, counting_prompt(10 + static_cast<std::int32_t>(id)), monotonic_now()));
  }
  scheduler.close();
  serve(scheduler, executor, result);
  for (std::uint64_t id = 1; id <= 20; ++id) {
    CHECK(g_ends[id] == dynbatch::EventKind::Finished);
    CHECK(g_output[id].size() == 40);
    CHECK(g_output[id].front() == static_cast<dynbatch::Token>(11 + id));
  }
  CHECK(scheduler.check());
}

TEST_CASE("The overlapped loop of the embedding guide serves requests") {
  for (const bool has_future_tokens : {false, true}) {
    g_output.clear();
    g_ends.clear();
    Engine engine;
    MyExecutor executor(engine);
    dynbatch::Capabilities caps = executor.capabilities();
    caps.future_tokens = has_future_tokens;
    MyScheduler scheduler = make_or_fail(caps, 3);
    dynbatch::StepResultBuffer result;
    REQUIRE(scheduler.make_result(result));
    for (std::uint64_t id = 1; id <= 20; ++id) {
      REQUIRE(send(scheduler, id, counting_prompt(10 + static_cast<std::int32_t>(id)),
                   monotonic_now()));
    }
    scheduler.close();
    serve_overlapped(scheduler, executor, result);
    for (std::uint64_t id = 1; id <= 20; ++id) {
      CHECK(g_ends[id] == dynbatch::EventKind::Finished);
      CHECK(g_output[id].size() == 40);
    }
    CHECK(scheduler.check());
  }
}

TEST_CASE("The outcomes of the embedding guide do what it says") {
  g_output.clear();
  g_ends.clear();
  Engine engine;
  MyExecutor executor(engine);
  MyScheduler scheduler = make_or_fail(executor.capabilities(), 1);
  dynbatch::StepResultBuffer result;
  REQUIRE(scheduler.make_result(result));
  for (std::uint64_t id = 1; id <= 5; ++id) {
    REQUIRE(send(scheduler, id, counting_prompt(8), {}));
  }
  const Fate fates[] = {
      {Fate::kFine}, {Fate::kSkipped}, {Fate::kHalf}, {Fate::kStopString}, {Fate::kBroken}};
  const dynbatch::Token sampled[] = {9, 9, 9, 9, 9};
  const dynbatch::StepPlan* plan = scheduler.plan({});
  REQUIRE(plan != nullptr);
  REQUIRE(plan->chunks.size() == 5);
  report(*plan, fates, sampled, result);
  REQUIRE(scheduler.commit(*plan, result.view(), {}));
  CHECK(scheduler.check());
  deliver(scheduler);
  CHECK(g_output[1].size() == 1);
  CHECK(g_output[2].empty());
  CHECK(g_output[3].empty());
  CHECK(g_output[4].size() == 1);
  CHECK(g_ends[4] == dynbatch::EventKind::Finished);
  CHECK(g_ends.size() == 1);
  plan = scheduler.plan({});
  REQUIRE(plan != nullptr);
  std::map<std::uint64_t, std::int32_t> tokens;
  for (const dynbatch::Chunk& chunk : plan->chunks) {
    tokens[chunk.request.value] = chunk.num_tokens;
  }
  CHECK(tokens == std::map<std::uint64_t, std::int32_t>{{1, 1}, {2, 8}, {3, 4}, {5, 8}});
  REQUIRE(scheduler.abandon(*plan, dynbatch::AbandonReason::Fatal, {}));
  deliver(scheduler);
  for (const std::uint64_t id : {1U, 2U, 3U, 5U}) {
    CHECK(g_ends[id] == dynbatch::EventKind::Failed);
  }
}

TEST_CASE("Digest prompts and scopes of the embedding guide share what they should") {
  Engine engine;
  MyExecutor executor(engine);
  dynbatch::SchedulerConfig config;
  config.max_live_requests = 16;
  config.resource_caps[0] = 2;
  auto made =
      MyScheduler::make(config, executor.capabilities(), dynbatch::DynamicSizer(), {}, {},
                        dynbatch::BlockPool<>({.num_blocks = 64}), dynbatch::FcfsAdmission());
  REQUIRE(made);
  MyScheduler scheduler = std::move(made).value();
  dynbatch::StepResultBuffer result;
  REQUIRE(scheduler.make_result(result));
  const dynbatch::ContentDigest chain[] = {{1, 2}, {3, 4}};
  const auto run_dry = [&] {
    std::int64_t prefill = 0;
    while (const dynbatch::StepPlan* plan = scheduler.plan({})) {
      result.reset(*plan);
      prefill += plan->work.prefill_tokens;
      for (std::int32_t s = 0; s < plan->num_samples; ++s) {
        result.add_sample(1);
      }
      REQUIRE(scheduler.commit(*plan, result.view(), {}));
      deliver(scheduler);
    }
    return prefill;
  };
  REQUIRE(scheduler.submit(digest_request(1, chain, 140)));
  CHECK(run_dry() == 140);
  REQUIRE(scheduler.submit(digest_request(2, chain, 140)));
  CHECK(run_dry() == 12);
  REQUIRE(send_with_adapter(scheduler, digest_request(3, chain, 140)));
  CHECK(run_dry() == 140);
  REQUIRE(send_with_adapter(scheduler, digest_request(4, chain, 140)));
  CHECK(run_dry() == 12);
}

TEST_CASE("A full queue and alerts are told as the embedding guide does it") {
  Engine engine;
  MyExecutor executor(engine);
  dynbatch::SchedulerConfig config;
  config.max_waiting_requests = 3;
  watch(config);
  auto made =
      MyScheduler::make(config, executor.capabilities(), dynbatch::DynamicSizer(), {}, {},
                        dynbatch::BlockPool<>({.num_blocks = 64}), dynbatch::FcfsAdmission());
  REQUIRE(made);
  MyScheduler scheduler = std::move(made).value();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    CHECK(retry_after_seconds(send(scheduler, id, counting_prompt(8), {})) == 0);
  }
  CHECK(retry_after_seconds(send(scheduler, 4, counting_prompt(8), {})) == 1);
  CHECK(retry_after_seconds(send(scheduler, 5, counting_prompt(8), {})) == 2);
  CHECK(retry_after_seconds(send(scheduler, 6, {}, {})) == 0);
  scheduler.pause(dynbatch::PauseMode::New);
  CHECK(scheduler.plan({}) == nullptr);
  CHECK(scheduler.plan(dynbatch::TimeNs{3'000'000'000}) == nullptr);
  CHECK(scheduler.is_raised(dynbatch::AlertKind::QueueHeadAge));
  tell(scheduler);
  CHECK(scheduler.queue_head().cause == dynbatch::WaitCause::Paused);
}

TEST_CASE("The sizer of the embedding guide obeys the laws") {
  const dynbatch::Status status = test_my_sizer();
  INFO(status.text);
  CHECK(status.is_ok());
}

TEST_CASE("What the embedding guide says about slots, prompts and abandoned deltas holds") {
  Engine engine;
  MyExecutor executor(engine);
  MyScheduler scheduler = make_or_fail(executor.capabilities(), 1);
  // An abandoned plan's deltas are told again.
  REQUIRE(send(scheduler, 1, counting_prompt(20), {}));
  const dynbatch::StepPlan* plan = scheduler.plan({});
  REQUIRE(plan != nullptr);
  CHECK(plan->groups[0].deltas.size() == 2);
  REQUIRE(scheduler.abandon(*plan, dynbatch::AbandonReason::NotRun, {}));
  plan = scheduler.plan({});
  REQUIRE(plan != nullptr);
  CHECK(plan->groups[0].deltas.size() == 2);
  CHECK(plan->groups[0].deltas[0].index == 0);
  REQUIRE(scheduler.abandon(*plan, dynbatch::AbandonReason::Fatal, {}));
  // An id is free once its terminal event was polled.
  CHECK(send(scheduler, 1, counting_prompt(20), {}).code == dynbatch::Errc::Duplicate);
  deliver(scheduler);
  CHECK(send(scheduler, 1, counting_prompt(20), {}));
  // A prompt without output tokens ends with Length and no token.
  dynbatch::Request request;
  const std::vector<dynbatch::Token> prompt = counting_prompt(4);
  request.id = {2};
  request.prompt.tokens = prompt;
  request.max_new_tokens = 0;
  REQUIRE(scheduler.submit(request));
  plan = scheduler.plan({});
  REQUIRE(plan != nullptr);
  CHECK(plan->chunks.back().num_samples == 0);
  CHECK(plan->chunks.back().logits_from == 4);
  CHECK(plan->num_samples == 1);
}

TEST_CASE("The guide's beams and row operations drive a host that addresses KV by sequence") {
  using namespace dynbatch;
  Capabilities caps;
  caps.max_sequences = 4;
  caps.sequence_handles = 6;
  caps.partial_share = true;
  caps.kv_tokens = 256;
  auto made = Scheduler<TokenBudgetSizer, NoSplit, NullBalancer, SequencePool>::make(
      {}, caps, TokenBudgetSizer{}, NoSplit{}, NullBalancer{},
      SequencePool({.num_tokens = 256, .block_size = 4}), FcfsAdmission{});
  REQUIRE(made);
  StepResultBuffer result;
  REQUIRE(made->make_result(result));
  std::vector<std::vector<int>> sequences(6);
  std::vector<Token> prompt(10, 3);
  std::vector<std::vector<Token>> tokens(2);
  std::size_t shared = 0;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    Request request;
    request.id = RequestId{id};
    request.prompt.tokens = prompt;
    request.max_new_tokens = 4;
    request.num_samples = 2;
    request.beam_search = id == 1;
    REQUIRE(made->submit(request));
    while (made->stats().live > 0) {
      const StepPlan* plan = made->plan(TimeNs{});
      REQUIRE(plan != nullptr);
      CHECK(plan->groups.empty());
      do_row_ops(*plan, sequences);
      result.reset(*plan);
      for (const Chunk& chunk : plan->chunks) {
        std::vector<int>& cells = sequences[static_cast<std::size_t>(chunk.row.value)];
        REQUIRE(cells.size() == static_cast<std::size_t>(chunk.first_position));
        shared += chunk.kind == ChunkKind::Prefill ? cells.size() : 0;
        cells.resize(static_cast<std::size_t>(chunk.context_length));
        for (std::int32_t s = 0; s < chunk.num_samples; ++s) {
          result.add_sample(static_cast<Token>(10 * (chunk.sample + s) + chunk.context_length));
        }
      }
      if (id == 1 && plan->chunks[0].kind == ChunkKind::Decode) {
        const std::int32_t parents[] = {1, 1};
        const Token next[] = {7, 8};
        go_on(*plan, 0, parents, next, result);
      }
      REQUIRE(made->commit(*plan, result.view(), TimeNs{}));
      Event events[16];
      for (const Event& e : std::span<const Event>(events, made->poll(events))) {
        std::vector<Token>& to = tokens[static_cast<std::size_t>(e.sample)];
        to.insert(to.end(), e.tokens.begin(), e.tokens.end());
      }
    }
    if (id == 1) {
      CHECK(tokens[0] == std::vector<Token>{20, 7, 7, 8});
      CHECK(tokens[1] == std::vector<Token>{20, 7, 7, 7});
      CHECK(made->pool_stats().cached_blocks > 0);
    }
  }
  CHECK(shared == 8);  // the second request found the first one's prompt parked
}
