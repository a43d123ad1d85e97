// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An oracle for the simulator: static and chunked batching as two short loops that share no code
/// with the Scheduler. KV space is unlimited. Rules: step = fixed + b * decoding rows + c * KV + d
/// * prompt tokens, KV = prompt + generated of the decoding rows; completing a prompt yields
/// token 1.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace reference {

struct Cost {
  std::int64_t fixed_ns = 0;
  std::int64_t row_ps = 0;
  std::int64_t kv_ps = 0;
  std::int64_t prompt_ps = 0;

  [[nodiscard]] std::int64_t step_ns(std::int64_t rows, std::int64_t kv,
                                     std::int64_t prompt) const {
    return fixed_ns + (row_ps * rows + kv_ps * kv + prompt_ps * prompt) / 1000;
  }
};

struct Request {
  std::int64_t arrival_ns = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
};

struct Times {
  std::int64_t first_token_ns = -1;
  std::int64_t finish_ns = -1;
};

struct Result {
  std::vector<Times> requests;
  std::int64_t num_steps = 0;
  std::int64_t end_ns = 0;
};

/// vLLM V1's rules: decodes first, the budget counts them; then started prompts, then waiting ones.
/// Requests ascend by arrival.
inline Result chunked(const std::vector<Request>& requests, const Cost& cost, std::int64_t budget,
                      std::size_t max_sequences) {
  struct Running {
    std::size_t index;
    std::int64_t computed;   // prompt tokens done
    std::int64_t generated;  // output tokens so far
  };
  Result result;
  result.requests.resize(requests.size());
  std::vector<Running> running;
  std::size_t next = 0;
  std::int64_t now = 0;
  while (next < requests.size() || !running.empty()) {
    if (running.empty()) {
      now = std::max(now, requests[next].arrival_ns);
    }
    std::int64_t left = budget;
    std::int64_t rows = 0;
    std::int64_t kv = 0;
    std::int64_t prompt = 0;
    std::vector<std::int64_t> chunk(running.size(), 0);
    for (std::size_t i = 0; i < running.size(); ++i) {  // decodes
      if (running[i].generated > 0 && left > 0) {
        chunk[i] = 1;
        --left;
        ++rows;
        kv += requests[running[i].index].input + running[i].generated;
      }
    }
    for (std::size_t i = 0; i < running.size(); ++i) {  // started prompts
      if (running[i].generated == 0) {
        chunk[i] = std::min(left, requests[running[i].index].input - running[i].computed);
        left -= chunk[i];
        prompt += chunk[i];
      }
    }
    while (left > 0 && running.size() < max_sequences && next < requests.size() &&
           requests[next].arrival_ns <= now) {
      running.push_back({next, 0, 0});
      chunk.push_back(std::min(left, requests[next].input));
      left -= chunk.back();
      prompt += chunk.back();
      ++next;
    }
    now += cost.step_ns(rows, kv, prompt);
    ++result.num_steps;
    std::vector<Running> rest;
    for (std::size_t i = 0; i < running.size(); ++i) {
      Running r = running[i];
      const Request& request = requests[r.index];
      if (r.generated > 0) {
        r.generated += chunk[i];
      } else {
        r.computed += chunk[i];
        if (chunk[i] > 0 && r.computed == request.input) {
          r.generated = 1;
          result.requests[r.index].first_token_ns = now;
        }
      }
      if (r.generated >= request.output && r.generated > 0) {
        result.requests[r.index].finish_ns = now;
      } else {
        rest.push_back(r);
      }
    }
    running.swap(rest);
  }
  result.end_ns = now;
  return result;
}

/// Request-level batches: an idle engine takes what waits (1 to `batch`) in one prefill step; every
/// row stays until the longest output ends, and is charged the longest row's context.
inline Result request_level(const std::vector<Request>& requests, const Cost& cost,
                            std::size_t batch) {
  Result result;
  result.requests.resize(requests.size());
  std::size_t next = 0;
  std::int64_t now = 0;
  while (next < requests.size()) {
    now = std::max(now, requests[next].arrival_ns);
    const std::size_t first = next;
    std::int64_t prompt = 0;
    std::int64_t longest_input = 0;
    std::int64_t longest_output = 0;
    while (next < requests.size() && next - first < batch && requests[next].arrival_ns <= now) {
      prompt += requests[next].input;
      longest_input = std::max(longest_input, requests[next].input);
      longest_output = std::max(longest_output, requests[next].output);
      ++next;
    }
    now += cost.step_ns(0, 0, prompt);
    ++result.num_steps;
    std::int64_t context = longest_input;
    for (std::int64_t generated = 1;; ++generated) {
      for (std::size_t i = first; i < next; ++i) {
        if (generated == 1) {
          result.requests[i].first_token_ns = now;
        }
        if (generated == requests[i].output) {
          result.requests[i].finish_ns = now;
        }
      }
      if (generated >= longest_output) {
        break;
      }
      for (std::size_t i = first; i < next; ++i) {
        context = std::max(context, requests[i].input + generated);
      }
      const auto rows = static_cast<std::int64_t>(next - first);
      now += cost.step_ns(rows, rows * context, 0);
      ++result.num_steps;
    }
  }
  result.end_ns = now;
  return result;
}

}  // namespace reference
