// SPDX-License-Identifier: Apache-2.0
// Two classes of requests on one engine with 16 places: people who wait for the first token, and a
// job of 120 long requests that only wants to get done. First come, first served makes people wait
// behind the job. By class or by deadline they pass its queue, but still wait for a place. With
// priorities and displacement they take one: what the job loses it finds again in the prefix cache.
//
// Output:
// first come  3 of 40 people in time, median first token 8.4 s; job done after 19.9 s
// by class    22 of 40 people in time, median first token 0.4 s; job done after 20.3 s
// by deadline 22 of 40 people in time, median first token 0.4 s; job done after 20.3 s
// displacing  40 of 40 people in time, median first token 0.0 s; job done after 19.9 s
#include <dynbatch/dynbatch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <fmt/core.h>

namespace {

using dynbatch::milliseconds;
using dynbatch::TimeNs;

constexpr int kNumJob = 120;
constexpr int kNumPeople = 40;
constexpr dynbatch::Slo kLimits{.ttft = milliseconds(450), .tpot = milliseconds(60)};

// An engine that takes as long as Llama 3.1 70B on 4 H100 and answers with zeros.
struct TimedModel {
  TimeNs now{};

  static dynbatch::Capabilities capabilities() { return {.max_tokens = 4096, .max_sequences = 16}; }
  void execute(const dynbatch::StepPlan& plan, dynbatch::StepResultBuffer& result) {
    const dynbatch::DurationNs taken = dynbatch::kLlama70bFp8H100Tp4Vllm.model.step_time(plan);
    now = now + taken;
    result.set_measured(taken);
    for (const dynbatch::Chunk& chunk : plan.chunks) {
      if (chunk.num_samples > 0) {
        result.add_sample(0);
      }
    }
  }
};

// What a client saw of its request.
struct Seen {
  TimeNs arrival{};
  TimeNs first{};
  TimeNs last{};
  std::int64_t tokens = 0;

  [[nodiscard]] bool is_in_time() const {
    return first - arrival <= kLimits.ttft && (last - first).ns <= kLimits.tpot.ns * (tokens - 1);
  }
};

dynbatch::Request job(std::uint64_t id, const std::vector<dynbatch::Token>& text) {
  dynbatch::Request request{.id = {id}, .prompt = {.tokens = text}, .max_new_tokens = 200};
  request.request_class = dynbatch::RequestClass::Batch;
  request.priority = 60;  // a minute of waiting makes it as urgent as a person, see aging
  return request;
}

dynbatch::Request person(std::uint64_t id, const std::vector<dynbatch::Token>& text) {
  dynbatch::Request request{.id = {id}, .prompt = {.tokens = text}, .max_new_tokens = 40};
  request.prompt.tokens = request.prompt.tokens.first(300);
  request.arrival = TimeNs{} + milliseconds(500 * static_cast<std::int64_t>(id - kNumJob));
  request.slo = kLimits;
  return request;
}

template <class Admission>
void serve(const char* name, const Admission& admission) {
  TimedModel model;
  dynbatch::Scheduler scheduler({}, TimedModel::capabilities(), dynbatch::DynamicSizer(),
                                dynbatch::NoSplit(), dynbatch::NullBalancer(),
                                dynbatch::BlockPool<>({.num_blocks = 4096}), admission);
  dynbatch::StepResultBuffer result;
  static_cast<void>(scheduler.make_result(result));
  const std::vector<dynbatch::Token> text(1000, 7);
  std::map<std::uint64_t, Seen> seen;
  std::uint64_t next = 1;
  while (seen.size() < kNumJob + kNumPeople || scheduler.stats().live > 0) {
    for (; next <= kNumJob + kNumPeople; ++next) {  // who has come by now
      const dynbatch::Request request = next <= kNumJob ? job(next, text) : person(next, text);
      if (request.arrival > model.now) {
        break;
      }
      if (!scheduler.submit(request)) {
        return;
      }
      seen[next].arrival = request.arrival;
    }
    const auto clock = [&model] { return model.now; };
    if (run_step(scheduler, model, result, clock).outcome != dynbatch::StepOutcome::Committed) {
      model.now = model.now + milliseconds(1);  // nothing to do
    }
    dynbatch::Event events[64];
    std::size_t count = 0;
    do {
      count = scheduler.poll(events);
      for (const dynbatch::Event& event : std::span(events, count)) {
        Seen& request = seen[event.request.value];
        request.first = event.kind == dynbatch::EventKind::FirstToken ? event.time : request.first;
        request.last = event.time;
        request.tokens += static_cast<std::int64_t>(event.tokens.size());
      }
    } while (count == 64);
  }
  std::vector<double> first_token_s;
  int in_time = 0;
  TimeNs job_end{};
  for (const auto& [id, request] : seen) {
    if (id <= kNumJob) {
      job_end = std::max(job_end, request.last);
    } else {
      in_time += request.is_in_time() ? 1 : 0;
      first_token_s.push_back(static_cast<double>((request.first - request.arrival).ns) * 1e-9);
    }
  }
  std::sort(first_token_s.begin(), first_token_s.end());
  fmt::print(
      "{:<11} {} of {} people in time, median first token {:.1f} s; job done after {:.1f} s\n",
      name, in_time, kNumPeople, first_token_s[kNumPeople / 2],
      static_cast<double>(job_end.ns) * 1e-9);
}

}  // namespace

int main() {
  serve("first come", dynbatch::FcfsAdmission());
  serve("by class", dynbatch::FcfsAdmission({.class_delay = dynbatch::seconds(60)}));
  serve("by deadline", dynbatch::EarliestDeadline());
  serve("displacing", dynbatch::PriorityAging({.aging = dynbatch::seconds(1), .displace = true}));
}
