// SPDX-License-Identifier: Apache-2.0
/// \file
/// Presets drive the scheduler as their peers' rules say, number by number.
#include <dynbatch/scheduler/bundles.hpp>

#include "order_host.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace dynbatch;
using namespace dynbatch::test;

namespace {

using PresetScheduler = Scheduler<AnyBatchSizer, NoSplit, NullBalancer, BlockPool<>, AnyAdmission>;

struct Host {
  std::int64_t blocks = 1000;
  std::int32_t rows = 64;
  std::int64_t max_tokens = 1 << 16;
  std::int32_t plans = 1;
};

/// The scheduler of a policy name with options, and the models behind its views.
class Preset {
 public:
  explicit Preset(std::string_view text, const Host& host = {}) {
    PolicyListReader reader(text);
    PolicySpec spec;
    REQUIRE(reader.next(spec));
    const Status status = with_bundle(spec, [&](const auto& bundle) {
      auto sizer = std::make_shared<decltype(bundle.make_sizer())>(bundle.make_sizer());
      auto admission = std::make_shared<decltype(bundle.make_admission())>(bundle.make_admission());
      Capabilities caps;
      caps.max_tokens = host.max_tokens;
      caps.max_sequences = host.rows;
      caps.future_tokens = host.plans > 1;
      SchedulerConfig config;
      config.max_context_tokens = 8192;
      config.max_plans_in_flight = host.plans;
      auto made = PresetScheduler::make(
          config, caps, AnyBatchSizer(*sizer), NoSplit{}, NullBalancer{},
          BlockPool<>(BlockPool<>::Config{
              .num_blocks = host.blocks, .block_size = 16, .prefix_caching = false}),
          AnyAdmission(*admission));
      if (!made) {
        return made.status();
      }
      sizer_ = sizer;
      admission_ = admission;
      scheduler_ = std::make_unique<PresetScheduler>(std::move(made).value());
      return kOk;
    });
    char line[256];
    format_status(status, line, sizeof(line));
    INFO(line);
    REQUIRE(status.is_ok());
  }

  PresetScheduler& operator*() { return *scheduler_; }
  PresetScheduler* operator->() { return scheduler_.get(); }
  void submit(const OrderRequest& request) { REQUIRE(submit_order(*scheduler_, request)); }
  /// `count` requests with ids from `first` on.
  void submit_many(std::uint64_t first, int count, std::int64_t length, std::int64_t outputs) {
    for (int i = 0; i < count; ++i) {
      submit({.id = first + static_cast<std::uint64_t>(i), .length = length, .outputs = outputs});
    }
  }
  Scheduled step(TimeNs now = TimeNs{}) { return run_one(*scheduler_, now); }

 private:
  std::shared_ptr<void> sizer_;
  std::shared_ptr<void> admission_;
  std::unique_ptr<PresetScheduler> scheduler_;
};

}  // namespace

TEST_CASE("vllm, decodes first, a prompt fills the rest, chunks keep their cap") {
  Preset s("vllm:max_num_batched_tokens=1024:long_prefill_token_threshold=400");
  s.submit_many(0, 3, 800, 10);
  CHECK(s.step() == Scheduled{{0, 400}, {1, 400}, {2, 224}});
  CHECK(s.step() == Scheduled{{0, 400}, {1, 400}, {2, 224}});
  CHECK(s.step() == Scheduled{{0, 1}, {1, 1}, {2, 352}});
  Preset mixed("vllm:max_num_batched_tokens=64:max_num_seqs=16");
  mixed.submit_many(0, 3, 10, 50);
  CHECK(mixed.step() == Scheduled{{0, 10}, {1, 10}, {2, 10}});
  mixed.submit({.id = 9, .length = 150, .outputs = 5});
  CHECK(mixed.step() == Scheduled{{0, 1}, {1, 1}, {2, 1}, {9, 61}});
}

TEST_CASE("vllm, the last admitted gives way, goes to the front and is not passed") {
  Preset s("vllm", {.blocks = 10, .rows = 4});
  s.submit_many(0, 2, 80, 40);
  s.submit({.id = 2, .length = 16, .outputs = 4});
  CHECK(s.step() == Scheduled{{0, 80}, {1, 80}});
  CHECK(s.step() == Scheduled{{0, 1}});
  CHECK(s.step() == Scheduled{{0, 1}});  // 1 needs 6 of 4 free blocks, and 2 stands behind it
}

TEST_CASE("vllm, the watermark, the whole prompt gate and priorities") {
  Preset open("vllm:max_num_batched_tokens=4096", {.blocks = 96, .rows = 8});
  open.submit_many(0, 3, 480, 200);
  CHECK(open.step().size() == 3);
  Preset kept("vllm:max_num_batched_tokens=4096:watermark=0.1", {.blocks = 96, .rows = 8});
  kept.submit_many(0, 3, 480, 200);
  CHECK(kept.step().size() == 2);
  Preset ungated("vllm:max_num_batched_tokens=32:scheduler_reserve_full_isl=0",
                 {.blocks = 10, .rows = 4});
  ungated.submit_many(0, 2, 96, 8);
  int first = 0;
  for (int step = 1; first == 0 && step < 20; ++step) {
    first = ungated.step().count(1) != 0 ? step : 0;
  }
  CHECK(first == 4);

  Preset s("vllm:policy=priority:max_num_seqs=1", {.blocks = 99});
  const std::int32_t priorities[] = {2, 1, 1, 0, 1};
  const std::int64_t arrivals[] = {1, 3, 2, 4, 2};
  for (std::uint64_t id = 0; id < 5; ++id) {
    s.submit({.id = id, .length = 4, .priority = priorities[id], .arrival = {arrivals[id]}});
  }
  std::string order;
  for (int i = 0; i < 5; ++i) {
    order += static_cast<char>('a' + s.step(TimeNs{10}).begin()->first);
  }
  CHECK(order == "dceba");
}

TEST_CASE("trtllm, blocks for prompt and outputs, in order, until one does not fit") {
  Preset s("trtllm", {.blocks = 11});
  s.submit_many(0, 2, 32, 48);                       // 5 blocks each
  s.submit({.id = 2, .length = 16, .outputs = 16});  // 2 blocks
  s.submit({.id = 3, .length = 8, .outputs = 8});    // would fit, but stands behind
  CHECK(s.step() == Scheduled{{0, 32}, {1, 32}});
  CHECK(run_out(*s) > 0);
  CHECK(s->stats().preemptions == 0);
}

TEST_CASE("trtllm, max utilization starts what fits now and pauses the last started") {
  Preset s("trtllm:capacity_scheduler_policy=max_utilization", {.blocks = 11});
  s.submit_many(0, 3, 32, 48);
  s.submit({.id = 3, .length = 96, .outputs = 8});
  CHECK(s.step() == Scheduled{{0, 32}, {1, 32}, {2, 32}});  // 6 blocks; 3 needs 6, for its prompt
  s.submit({.id = 4, .length = 8, .outputs = 8});
  std::map<std::uint64_t, Life> lives;
  for (int step = 0; s->stats().preemptions == 0 && step < 40; ++step) {
    s.step();
  }
  drain_into(*s, lives);
  CHECK(lives[2].preemptions + lives[3].preemptions == 1);
  CHECK(lives[0].preemptions == 0);
  CHECK(run_out(*s) > 0);
}

TEST_CASE("trtllm, a static batch admits only when nothing runs, and mixes phases") {
  Preset s(
      "trtllm:capacity_scheduler_policy=static_batch:context_chunking_policy=fcfs:"
      "max_num_tokens=64");
  s.submit({.id = 0, .length = 16, .outputs = 4});
  s.submit({.id = 1, .length = 96, .outputs = 2});
  CHECK(s.step() == Scheduled{{0, 16}, {1, 48}});
  s.submit({.id = 2, .length = 16, .outputs = 2});
  CHECK(s.step() == Scheduled{{0, 1}, {1, 48}});
  CHECK(s.step() == Scheduled{{0, 1}, {1, 1}});
  CHECK(s.step() == Scheduled{{0, 1}});
  CHECK(s.step() == Scheduled{{2, 16}});
}

TEST_CASE("trtllm, chunks are whole blocks, and without chunking prompts run whole or not at all") {
  Preset s("trtllm:context_chunking_policy=fcfs:max_num_tokens=100");
  s.submit({.id = 0, .length = 150, .outputs = 4});
  CHECK(s.step() == Scheduled{{0, 96}});
  CHECK(s.step() == Scheduled{{0, 54}});
  Preset whole("trtllm:max_num_tokens=100");
  whole.submit_many(0, 2, 60, 4);
  CHECK(whole.step() == Scheduled{{0, 60}});
  CHECK(whole.step() == Scheduled{{0, 1}, {1, 60}});
  CHECK(submit_order(*whole, {.id = 7, .length = 150, .outputs = 4}).code == Errc::CanNeverFit);
  // Max requests looks at no blocks but those it needs at once.
  Preset most("trtllm:capacity_scheduler_policy=max_requests:max_batch_size=3", {.blocks = 8});
  most.submit_many(0, 4, 32, 60);
  CHECK(most.step() == Scheduled{{0, 32}, {1, 32}, {2, 32}});
}

TEST_CASE("tgi, prompts wait for enough company or 20 steps, and hold their outputs") {
  Preset s("tgi");
  s.submit_many(0, 10, 16, 100);
  CHECK(s.step().size() == 10);
  s.submit_many(10, 2, 16, 100);
  for (int decode = 1; decode <= 19; ++decode) {
    INFO(decode);
    CHECK(s.step().count(10) == 0);
  }
  CHECK(s.step() == Scheduled{{10, 16}, {11, 16}});
  s.submit_many(12, 3, 16, 100);
  CHECK(s.step().size() == 12);  // a decode lies between two prefills
  CHECK(s.step() == Scheduled{{12, 16}, {13, 16}, {14, 16}});
  CHECK(run_out(*s) > 0);

  // 16 + 1,024 tokens are 65 blocks, although 2,000 outputs would need 126.
  Preset scarce("tgi", {.blocks = 200});
  scarce.submit_many(0, 4, 16, 2000);
  CHECK(scarce.step() == Scheduled{{0, 16}, {1, 16}, {2, 16}});

  Preset budget("tgi");
  budget.submit_many(0, 3, 2000, 4);
  CHECK(budget.step() == Scheduled{{0, 2000}, {1, 2000}});
  Preset chunks("tgi:chunking");
  chunks.submit_many(0, 3, 2000, 4);
  CHECK(chunks.step() == Scheduled{{0, 2000}, {1, 2000}, {2, 96}});
  CHECK(chunks.step() == Scheduled{{0, 1}, {1, 1}, {2, 1904}});
}

TEST_CASE("sglang, prompts have steps of their own, in chunks of 8,192 tokens together") {
  Preset s("sglang");
  s.submit_many(0, 3, 4000, 4);
  CHECK(s.step() == Scheduled{{0, 4000}, {1, 4000}, {2, 192}});
  CHECK(s.step() == Scheduled{{2, 3808}});
  CHECK(s.step() == Scheduled{{0, 1}, {1, 1}, {2, 1}});
  Preset mixed("sglang:enable_mixed_chunk");
  mixed.submit_many(0, 3, 4000, 4);
  mixed.step();
  CHECK(mixed.step() == Scheduled{{0, 1}, {1, 1}, {2, 3808}});
}

TEST_CASE("sglang, a request starts beside 0.7 of the outputs that may come") {
  // 100 blocks. Request 0: 16 + 800 tokens. Then 0.7 x 799 = 559 tokens, 34 blocks and 2 are kept
  // free; request 1 asks for 16 + 1,000 tokens, 64 blocks: too many beside 1 + 36.
  Preset s("sglang", {.blocks = 100});
  s.submit({.id = 0, .length = 16, .outputs = 800});
  CHECK(s.step() == Scheduled{{0, 16}});
  s.submit({.id = 1, .length = 16, .outputs = 1000});
  CHECK(s.step() == Scheduled{{0, 1}});
  s.submit({.id = 2, .length = 16, .outputs = 900});  // 58 blocks would fit, but stands behind
  CHECK(s.step() == Scheduled{{0, 1}});
  Preset fits("sglang", {.blocks = 102});
  fits.submit({.id = 0, .length = 16, .outputs = 800});
  CHECK(fits.step() == Scheduled{{0, 16}});
  fits.submit({.id = 1, .length = 16, .outputs = 1000});
  CHECK(fits.step() == Scheduled{{1, 16}});
}

TEST_CASE("sglang, the shortest output is retracted, of these the longest prompt") {
  Preset s("sglang:schedule_conservativeness=0.05", {.blocks = 21});
  s.submit({.id = 0, .length = 16, .outputs = 100});
  CHECK(s.step() == Scheduled{{0, 16}});
  s.submit({.id = 1, .length = 64, .outputs = 100});
  s.submit({.id = 2, .length = 16, .outputs = 100});  // the last admitted, of equal output
  CHECK(s.step() == Scheduled{{1, 64}, {2, 16}});
  std::map<std::uint64_t, Life> lives;
  for (int step = 0; s->stats().preemptions == 0 && step < 200; ++step) {
    s.step();
    drain_into(*s, lives);
  }
  drain_into(*s, lives);
  CHECK(s->stats().preemptions == 1);
  CHECK(lives[1].preemptions == 1);
  CHECK(run_out(*s) > 0);
}

TEST_CASE("triton, preferred 8 and 16, 100 queued, make batches of 16 and one of 4") {
  Preset s("triton:preferred_batch_size=8+16:max_queue_delay_us=1000");
  s.submit_many(0, 100, 4, 1);
  const TimeNs now{1'000};
  for (int batch = 0; batch < 6; ++batch) {
    CHECK(s.step(now).size() == 16);
  }
  CHECK(s->plan(now) == nullptr);
  CHECK(s->status().state == PlanState::NotBefore);
  CHECK(s->status().not_before == TimeNs{1'000'000});
  CHECK(s.step({1'000'000}).size() == 4);
  CHECK(s->stats().live == 0);
}

TEST_CASE("triton, a batch runs to its end, the best priority starts first") {
  Preset s("triton:preferred_batch_size=2:priority_levels=3");
  s.submit({.id = 0, .length = 4, .outputs = 3, .priority = 3});
  s.submit({.id = 1, .length = 4, .outputs = 1, .priority = 2});
  s.submit({.id = 2, .length = 4, .outputs = 1, .priority = 1});
  CHECK(s.step() == Scheduled{{1, 4}, {2, 4}});
  CHECK(s.step() == Scheduled{{0, 4}});
  s.submit({.id = 3, .length = 4, .outputs = 1, .priority = 1});
  CHECK(s.step() == Scheduled{{0, 1}});
  CHECK(s.step() == Scheduled{{0, 1}});
  CHECK(s.step() == Scheduled{{3, 4}});
}

TEST_CASE("xllm, one budget of 10,240 tokens, 5 percent of the pool stays free") {
  Preset s("xllm");
  s.submit_many(0, 2, 6000, 4);
  CHECK(s.step() == Scheduled{{0, 6000}, {1, 4240}});
  Preset scarce("xllm", {.blocks = 100});
  scarce.submit_many(0, 2, 768, 4);  // 48 blocks each, 5 are to stay free
  CHECK(scarce.step() == Scheduled{{0, 768}});
  Preset full("xllm:memory_threshold=1", {.blocks = 100});
  full.submit_many(0, 2, 768, 4);
  CHECK(full.step() == Scheduled{{0, 768}, {1, 768}});
}

TEST_CASE("xllm, the batch class is preempted first") {
  for (const bool spares : {true, false}) {
    Preset s(
        spares ? "xllm:memory_threshold=1" : "xllm:memory_threshold=1:online_preempts_offline=0",
        {.blocks = 10});
    for (std::uint64_t id = 0; id < 2; ++id) {
      SmallRequest r(id, 76, 40);
      r.request.request_class = id == 0 ? RequestClass::Batch : RequestClass::Interactive;
      REQUIRE(s->submit(r.view()));
    }
    std::map<std::uint64_t, Life> lives;
    for (int step = 0; s->stats().preemptions == 0 && step < 20; ++step) {
      s.step();
    }
    drain_into(*s, lives);
    CHECK(lives[spares ? 0 : 1].preemptions == 1);
    CHECK(run_out(*s) > 0);
  }
}

namespace {

/// Values that some options refuse, after others that differ from the defaults were set.
template <class Bundle>
void refuse_without_change(std::vector<std::pair<std::string_view, std::string_view>> good) {
  Bundle bundle;
  for (const auto& [key, value] : good) {
    INFO(key);
    REQUIRE(bundle.set(key, value).is_ok());
  }
  good.emplace_back("colour", "");
  unsigned char before[sizeof(Bundle)];
  std::memcpy(before, static_cast<const void*>(&bundle), sizeof(Bundle));
  for (const auto& [key, unused] : good) {
    for (const std::string_view value :
         {"", "x", "-1", "5.5.5", "99999999999999999999", "7+x", "0.00001e"}) {
      INFO(Bundle::kName << ": " << key << "=" << value);
      CHECK_FALSE(bundle.set(key, value).is_ok());
      CHECK(std::memcmp(before, static_cast<const void*>(&bundle), sizeof(Bundle)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("an option that is refused changes nothing") {
  refuse_without_change<VllmBundle>({{"max_num_batched_tokens", "77"},
                                     {"max_num_seqs", "7"},
                                     {"policy", "priority"},
                                     {"aging_ms", "5"},
                                     {"enable_chunked_prefill", "0"},
                                     {"long_prefill_token_threshold", "9"},
                                     {"watermark", "0.2"},
                                     {"scheduler_reserve_full_isl", "0"}});
  refuse_without_change<TrtllmBundle>({{"capacity_scheduler_policy", "max_utilization"},
                                       {"context_chunking_policy", "fcfs"},
                                       {"max_batch_size", "7"},
                                       {"max_num_tokens", "77"},
                                       {"enable_batch_size_tuning", "1"},
                                       {"enable_max_num_tokens_tuning", "1"},
                                       {"dynamic_batch_moving_average_window", "5"}});
  refuse_without_change<TgiBundle>({{"waiting_served_ratio", "0.5"},
                                    {"max_waiting_tokens", "7"},
                                    {"max_batch_prefill_tokens", "77"},
                                    {"max_batch_size", "7"},
                                    {"max_concurrent_requests", "9"},
                                    {"chunking", "1"}});
  refuse_without_change<SglangBundle>({{"schedule_policy", "lof"},
                                       {"schedule_conservativeness", "0.5"},
                                       {"chunked_prefill_size", "77"},
                                       {"max_prefill_tokens", "99"},
                                       {"max_running_requests", "7"},
                                       {"enable_mixed_chunk", "1"},
                                       {"aging_ms", "5"}});
  refuse_without_change<TritonBundle>({{"preferred_batch_size", "2+4"},
                                       {"max_queue_delay_us", "7"},
                                       {"max_batch_size", "9"},
                                       {"priority_levels", "3"},
                                       {"aging_ms", "5"}});
  refuse_without_change<XllmBundle>({{"max_tokens_per_batch", "77"},
                                     {"max_seqs_per_batch", "7"},
                                     {"priority_strategy", "deadline"},
                                     {"max_tokens_per_chunk", "9"},
                                     {"memory_threshold", "0.5"},
                                     {"online_preempts_offline", "0"},
                                     {"aging_ms", "5"}});
  refuse_without_change<OrcaBundle>({{"budget", "77"}});
  OrcaBundle orca;
  const auto reserve = orca.admission.reserve;
  CHECK_FALSE(orca.set("reserve", "x").is_ok());
  CHECK(orca.admission.reserve == reserve);
  DynbatchBundle dynbatch;
  const double alpha = dynbatch.sizer.alpha;
  CHECK_FALSE(dynbatch.set("alpha", "7000").is_ok());
  CHECK(dynbatch.sizer.alpha == alpha);
}

TEST_CASE("options of presets reach the policies by the names of their peers") {
  const auto answer = [](std::string_view text) {
    PolicyListReader reader(text);
    PolicySpec spec;
    REQUIRE(reader.next(spec));
    return with_bundle(spec, [](const auto&) { return kOk; });
  };
  for (const char* text :
       {"vllm:max_num_batched_tokens=8192:max_num_seqs=128:policy=fcfs:aging_ms=0:"
        "enable_chunked_prefill=0:watermark=0.01",
        "trtllm:context_chunking_policy=fcfs:enable_batch_size_tuning:"
        "enable_max_num_tokens_tuning:dynamic_batch_moving_average_window=64",
        "tgi:waiting_served_ratio=1.2:max_waiting_tokens=5:max_batch_prefill_tokens=8192:"
        "max_batch_size=32:max_concurrent_requests=64:chunking=0",
        "sglang:schedule_policy=lpm:schedule_conservativeness=0.3:chunked_prefill_size=0:"
        "max_prefill_tokens=4096:max_running_requests=64",
        "sglang:schedule_policy=lof", "sglang:schedule_policy=priority:aging_ms=5",
        "triton:preferred_batch_size=4+8+16:max_queue_delay_us=100:max_batch_size=16:"
        "priority_levels=0:aging_ms=10",
        "xllm:max_tokens_per_batch=4096:max_seqs_per_batch=64:priority_strategy=deadline:"
        "max_tokens_per_chunk=512:memory_threshold=0.9:online_preempts_offline"}) {
    INFO(text);
    CHECK(answer(text).is_ok());
  }
  const char* wrong[][2] = {
      {"vllm:policy=lifo", "policy"},
      {"vllm:watermark=1", "watermark_permille"},
      {"vllm:watermark=2", "watermark"},
      {"vllm:aging_ms=x", "aging_ms"},
      {"trtllm:capacity_scheduler_policy=best", "capacity_scheduler_policy"},
      {"trtllm:context_chunking_policy=equal_progress", "context_chunking_policy"},
      {"trtllm:enable_max_num_tokens_tuning", "enable_max_num_tokens_tuning"},
      {"tgi:max_waiting_tokens=0", "max_waiting_tokens"},
      {"tgi:waiting_served_ratio=x", "waiting_served_ratio"},
      {"tgi:waiting_served_ratio=5000", "waiting_served_ratio"},
      {"sglang:schedule_policy=dfs-weight", "schedule_policy"},
      {"sglang:schedule_conservativeness=0", "schedule_conservativeness"},
      {"triton:preferred_batch_size=16+8", "preferred"},
      {"triton:preferred_batch_size=2147483647+1", "preferred"},
      {"triton:preferred_batch_size=8+", "preferred_batch_size"},
      {"triton:preferred_batch_size=1+2+3+4+5+6+7+8+9", "preferred_batch_size"},
      {"triton:preferred_batch_size=16:max_batch_size=8", "preferred"},
      {"xllm:memory_threshold=0", "memory_threshold"},
      {"xllm:priority_strategy=lpm", "priority_strategy"}};
  for (const auto& [text, field] : wrong) {
    INFO(text);
    CHECK(std::string(answer(text).field) == field);
  }
  for (const char* name : {"vllm", "trtllm", "tgi", "sglang", "triton", "xllm"}) {
    const Status status = answer(std::string(name) + ":colour=3");
    CHECK(std::string(status.field) == "option");
    CHECK(std::string(status.text).find(name) != std::string::npos);
  }

  SglangBundle sglang;
  REQUIRE(sglang.set("schedule_conservativeness", "0.3"));
  CHECK(sglang.admission.init_ratio_ppm == 210'000);
  CHECK(sglang.admission.min_ratio_ppm == 29'400);
  CHECK(sglang.sizer.budget == 8192);
  REQUIRE(sglang.set("chunked_prefill_size", "0"));
  CHECK(sglang.sizer.budget == 16'384);
  CHECK_FALSE(sglang.make_admission().splits_prompts());
  CHECK(VllmBundle{}.make_sizer().config().budget == 2048);
  CHECK(VllmBundle{}.make_sizer().config().max_sequences == 256);
  CHECK(TgiBundle{}.make_sizer().config().budget == 4096);
  CHECK(TgiBundle{}.make_sizer().config().max_sequences == 128);
  CHECK(XllmBundle{}.make_sizer().config().max_tokens == 10'240);
  CHECK(XllmBundle{}.make_sizer().config().max_sequences == 1024);
  CHECK(NewTokenRatioAdmission::Config{}.decay_steps == 600);
}
