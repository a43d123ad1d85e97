// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Statistics by class and tenant as anybody can add them up who sees submissions, plans and
/// events.
#include <dynbatch/model/event.hpp>
#include <dynbatch/model/request.hpp>
#include <dynbatch/model/step_plan.hpp>
#include <dynbatch/model/watch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace dynbatch::test {

class NaiveWatch {
 public:
  explicit NaiveWatch(std::size_t max_tenants) : max_tenants_(max_tenants) {}

  void submitted(const Request& request, bool is_taken) {
    if (is_taken) {
      Known known;
      known.request = request;
      known.prompt_length = static_cast<std::int64_t>(request.prompt.tokens.size());
      live_[request.id.value] = known;
      return;
    }
    for (RequestStats* s : of(request)) {
      ++s->submitted;
      ++s->refused;
    }
  }

  /// Call with each plan, then with the events that came with it.
  void planned(const StepPlan& plan) {
    for (const Chunk& chunk : plan.chunks) {
      Known& known = live_.at(chunk.request.value);
      Sample& sample = known.samples[chunk.sample];
      if (!known.was_admitted) {
        known.was_admitted = true;
        pending_.push_back({chunk.request.value, true, plan.planned_at, 0, 0});
      }
      const bool is_prefill = chunk.kind == ChunkKind::Prefill;
      if (!sample.is_running) {
        sample.is_running = true;
        // A further sample that computes its prompt found no block to fork into: the first one
        // has computed that before.
        const bool is_again = sample.was_running || (chunk.sample > 0 && is_prefill);
        sample.recompute_end = is_again ? known.prompt_length + sample.outputs : 0;
        sample.was_running = true;
        if (is_prefill) {
          pending_.push_back({chunk.request.value, false, {}, chunk.first_position, 0});
        }
      }
      const std::int64_t end = chunk.first_position + chunk.num_tokens;
      if (is_prefill) {
        const std::int64_t again =
            std::min<std::int64_t>(end, sample.recompute_end) - chunk.first_position;
        pending_.push_back({chunk.request.value, false, {}, 0, std::max<std::int64_t>(again, 0)});
      }
      sample.planned = end;
    }
  }
  /// The chunk did not run, or not to its end.
  void undone(const Chunk& chunk) {
    const auto at = live_.find(chunk.request.value);
    if (at != live_.end()) {
      Sample& sample = at->second.samples[chunk.sample];
      sample.recompute_end = std::max(sample.recompute_end, sample.planned);
    }
  }

  void see(const Event& event) {
    Known& known = live_.at(event.request.value);
    const auto each = [&](auto&& f) {
      for (RequestStats* s : of(known.request)) {
        f(*s);
      }
    };
    if (event.kind == EventKind::Accepted) {
      known.accepted = event.time;
      add_tenant(known.request.tenant);
      each([&](RequestStats& s) {
        ++s.submitted;
        s.prompt_tokens += static_cast<std::uint64_t>(known.prompt_length);
      });
      return;
    }
    Sample& sample = known.samples[event.sample];
    if (event.kind == EventKind::FirstToken) {
      sample.first = event.time;
      if (!known.has_first) {
        known.has_first = true;
        judge_ttft(known, event.time);
      }
    }
    if (event.kind == EventKind::FirstToken || event.kind == EventKind::Tokens) {
      sample.outputs += event.count;
      sample.last = event.time;
    }
    if (event.kind == EventKind::Preempted) {
      sample.is_running = false;
      each([&](RequestStats& s) { s.preemptions += static_cast<std::uint64_t>(event.count); });
      if (!known.was_admitted) {  // let in and preempted within one plan, nothing of which is seen
        known.was_admitted = true;
        sample.was_running = true;
        pending_.push_back({event.request.value, true, event.time, 0, 0});
        has_unseen_ = true;
      }
    }
    if (is_terminal(event.kind)) {
      flush(event.request.value);
      end(known, event);
      live_.erase(event.request.value);
    }
  }

  /// After the events of a call: what its plan did to requests whose acceptance came with them.
  void flush() {
    while (!pending_.empty()) {
      flush(pending_.front().id);
    }
  }

  [[nodiscard]] RequestStats of_class(std::size_t i) const { return classes_[i]; }
  [[nodiscard]] const std::vector<TenantStats>& tenants() const { return tenants_; }
  [[nodiscard]] RequestStats others() const { return others_; }
  /// Something was let in that no plan showed: what it found in the cache is unknown.
  [[nodiscard]] bool has_unseen() const { return has_unseen_; }
  [[nodiscard]] bool is_live(std::uint64_t id) const { return live_.contains(id); }

 private:
  struct Sample {
    bool is_running = false;
    bool was_running = false;
    std::int64_t outputs = 0;
    std::int64_t planned = 0;
    std::int64_t recompute_end = 0;
    TimeNs first{};
    TimeNs last{};
  };
  struct Known {
    Request request{};
    std::int64_t prompt_length = 0;
    TimeNs accepted{};
    bool was_admitted = false;
    bool has_first = false;
    std::map<std::int32_t, Sample> samples;
  };

  // What a plan did to a request.
  struct Pending {
    std::uint64_t id;
    bool is_admission;
    TimeNs time;
    std::int64_t hit;
    std::int64_t again;
  };

  void flush(std::uint64_t id) {
    const Known& known = live_.at(id);
    for (const Pending& p : pending_) {
      if (p.id != id) {
        continue;
      }
      for (RequestStats* s : of(known.request)) {
        if (p.is_admission) {
          const DurationNs waited = p.time - known.accepted;
          ++s->admitted;
          s->queue_time = s->queue_time + waited;
          s->max_queue_time = std::max(s->max_queue_time, waited);
        }
        s->prefix_hit_tokens += static_cast<std::uint64_t>(p.hit);
        s->recomputed_tokens += static_cast<std::uint64_t>(p.again);
      }
    }
    std::erase_if(pending_, [&](const Pending& p) { return p.id == id; });
  }
  void add_tenant(std::uint64_t tenant) {
    if (find(tenant) == nullptr && tenants_.size() < max_tenants_) {
      tenants_.push_back({tenant, {}});
    }
  }
  RequestStats* find(std::uint64_t tenant) {
    for (TenantStats& t : tenants_) {
      if (t.tenant == tenant) {
        return &t.requests;
      }
    }
    return nullptr;
  }
  std::vector<RequestStats*> of(const Request& request) {
    RequestStats* tenant = find(request.tenant);
    return {&classes_[static_cast<std::size_t>(request.request_class)],
            tenant == nullptr ? &others_ : tenant};
  }
  void judge_ttft(const Known& known, TimeNs at) {
    if (known.request.slo.ttft == kUnbounded) {
      return;
    }
    const bool is_late = at - known.request.arrival > known.request.slo.ttft;
    for (RequestStats* s : of(known.request)) {
      ++(is_late ? s->ttft_missed : s->ttft_met);
    }
  }
  void end(const Known& known, const Event& event) {
    const Slo& slo = known.request.slo;
    if (!known.has_first &&
        (event.kind == EventKind::Finished || event.time - known.request.arrival > slo.ttft)) {
      judge_ttft(known, event.time);
    }
    bool is_judged = false;
    bool is_slow = false;
    std::int64_t outputs = 0;
    for (const auto& [number, sample] : known.samples) {
      outputs += sample.outputs;
      if (sample.outputs >= 2 && slo.tpot < kUnbounded) {
        is_judged = true;
        is_slow = is_slow || (sample.last - sample.first).ns > slo.tpot.ns * (sample.outputs - 1);
      }
    }
    for (RequestStats* s : of(known.request)) {
      s->output_tokens += static_cast<std::uint64_t>(outputs);
      s->finished += event.kind == EventKind::Finished ? 1U : 0U;
      s->cancelled += event.kind == EventKind::Cancelled ? 1U : 0U;
      s->expired += event.kind == EventKind::Expired ? 1U : 0U;
      s->failed += event.kind == EventKind::Failed ? 1U : 0U;
      s->tpot_met += is_judged && !is_slow ? 1U : 0U;
      s->tpot_missed += is_judged && is_slow ? 1U : 0U;
    }
  }

  std::size_t max_tenants_;
  std::map<std::uint64_t, Known> live_;
  RequestStats classes_[3]{};
  std::vector<TenantStats> tenants_;
  RequestStats others_{};
  std::vector<Pending> pending_;
  bool has_unseen_ = false;
};

}  // namespace dynbatch::test
