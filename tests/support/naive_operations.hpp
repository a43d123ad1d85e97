// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Random set-ups, sequences of operations and requests for the comparison with the naive
/// scheduler.
#include <dynbatch/base/hash.hpp>
#include <dynbatch/base/random.hpp>

#include "naive_types.hpp"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace dynbatch::test::naive {

/// What a family of sequences contains.
struct Mix {
  bool has_faults = false;  ///< Outcomes of chunks, abandoned plans.
  std::int32_t plans = 1;   ///< Most plans in flight.
  bool has_drafts = false;
  bool has_samples = false;
  bool has_caching = false;
  bool has_copies = false;  ///< Many prompts differ within a block, which is copied.
};

enum class Kind : std::uint8_t {
  Submit,
  Cancel,
  Plan,
  Commit,
  Abandon,
  Poll,
  Pause,
  Resume,
  Clear
};

/// One operation. All that it chooses follows from its seed and from the state it meets, so the
/// others of a sequence can be dropped.
struct Operation {
  Kind kind = Kind::Plan;
  std::uint64_t tag = 0;  ///< Unique in a sequence.
  std::uint64_t seed = 0;
  std::int64_t advance = 0;  ///< Of the clock, before it; ns.
};

inline Setup draw_setup(const Mix& mix, std::uint64_t seed) {
  SplitMix64 rng(seed * 2 + 1);
  Setup s;
  s.host_tokens = rng.between(8, 120);
  s.rows = static_cast<std::int32_t>(rng.between(1, 10));
  s.in_order = !rng.one_in(8);
  s.future_tokens = rng.one_in(2);
  s.max_live = rng.between(4, rng.one_in(4) ? 60 : 24);
  s.plans = mix.plans == 1 ? 1 : static_cast<std::int32_t>(rng.between(2, mix.plans));
  s.drafts = mix.has_drafts ? static_cast<std::int32_t>(rng.between(1, 5)) : 0;
  s.retries = static_cast<std::int32_t>(rng.between(0, 3));
  s.sizer = static_cast<int>(rng.between(0, 2));
  if (s.sizer > 0) {
    s.sequences = static_cast<std::int32_t>(rng.between(1, 10));
    s.step_tokens = rng.between(4, 60);
  }
  const std::int32_t block_sizes[] = {1, 2, 3, 4, 4, 8};
  s.block_size = block_sizes[rng.between(0, 5)];
  s.blocks = rng.one_in(3) ? 200 : rng.between(4, 30);
  s.max_context = rng.between(12, 160);
  s.caching = mix.has_caching;
  if (mix.has_copies) {
    s.block_size = s.block_size < 4 ? 16 : s.block_size;
    s.max_context = std::max<std::int64_t>(s.max_context, 60);
    s.blocks = std::max<std::int64_t>(s.blocks, 10);
  }
  s.partial = mix.has_copies || (mix.has_caching && rng.one_in(2));
  s.min_partial = static_cast<std::int32_t>(rng.between(1, 3));
  s.media_spans = rng.one_in(3) ? static_cast<std::int32_t>(rng.between(0, 3)) : 64;
  s.rules.compose = static_cast<AdmissionRules::Compose>(rng.one_in(2) ? 0 : rng.between(0, 4));
  s.rules.reserve = static_cast<AdmissionRules::Reserve>(rng.between(0, 3));
  s.rules.reserve_tokens = rng.between(1, 60);
  s.rules.watermark_permille = rng.one_in(2) ? 0 : static_cast<std::int32_t>(rng.between(1, 400));
  s.rules.split_prompts = !rng.one_in(6);
  s.rules.max_chunk_tokens = s.rules.split_prompts && rng.one_in(3) ? rng.between(1, 20) : 0;
  s.rules.chunk_unit = static_cast<std::int32_t>(rng.one_in(2) ? 1 : rng.between(0, 5));
  s.rules.max_bypass = static_cast<std::int32_t>(rng.between(0, 4));
  s.rules.requeue_blocks = static_cast<std::int32_t>(rng.between(0, 2));
  s.rules.max_preemptions = static_cast<std::int32_t>(rng.between(1, 8));
  s.rules.late_patience = rng.one_in(2) ? 0 : static_cast<std::int32_t>(rng.between(1, 4));
  s.by_priority = rng.one_in(2);
  s.aging = rng.one_in(3) ? kUnbounded : DurationNs{rng.between(1, 2'000'000)};
  s.displaces = s.by_priority && rng.one_in(2);
  s.max_displacements = static_cast<std::int32_t>(rng.between(1, 3));
  return s;
}

inline std::vector<Operation> draw_operations(const Mix& mix, std::uint64_t seed, int count) {
  SplitMix64 rng(seed * 2);
  std::vector<Operation> out;
  for (int i = 0; i < count; ++i) {
    Operation op;
    op.tag = static_cast<std::uint64_t>(100 + i);
    op.seed = rng.next();
    op.advance = rng.between(0, 3) * 300'000 + (rng.one_in(40) ? 50'000'000 : 0) -
                 (rng.one_in(25) ? 900'000 : 0);
    const std::int64_t draw = rng.between(0, 199);
    op.kind = draw < 50                     ? Kind::Submit
              : draw < 56                   ? Kind::Cancel
              : draw < 72                   ? Kind::Poll
              : draw < 73                   ? Kind::Pause
              : draw < 75                   ? Kind::Resume
              : draw < 76                   ? Kind::Clear
              : draw < 80 && mix.has_faults ? Kind::Abandon
              : draw < 142                  ? Kind::Plan
                                            : Kind::Commit;
    out.push_back(op);
  }
  return out;
}

/// The request of a Submit.
inline Submission draw_request(const Setup& setup, const Mix& mix, const Operation& op,
                               TimeNs now) {
  SplitMix64 rng(op.seed);
  Submission s;
  Request& q = s.request;
  q.id = RequestId{static_cast<std::uint64_t>(rng.between(1, 30))};
  q.user_data = op.tag;
  const std::int64_t longest = setup.kv_limit();
  const std::int64_t length = rng.one_in(8) ? rng.between(0, longest + 2)
                                            : rng.between(1, std::min<std::int64_t>(longest, 30));
  const auto family = static_cast<std::uint64_t>(rng.between(0, mix.has_copies ? 0 : 2));
  if (mix.has_caching && rng.one_in(5)) {
    q.prompt.kind = PromptKind::Digests;
    q.prompt.length = length;
    q.prompt.digest_unit = setup.block_size * (rng.one_in(2) ? 1 : 2);
    std::uint64_t chain = mix64(family * 100 + static_cast<std::uint64_t>(q.prompt.digest_unit));
    const std::int64_t shared = rng.between(0, 12);
    for (std::int64_t i = 0; i < length / q.prompt.digest_unit; ++i) {
      chain = combine64(chain, i < shared ? 1 : op.tag);
      s.digests.push_back({chain, mix64(chain)});
    }
  } else {
    std::int64_t shared = rng.one_in(3) ? length : rng.between(0, length);
    shared = mix.has_copies ? std::max(shared, length * 2 / 3) : shared;
    for (std::int64_t i = 0; i < length; ++i) {
      s.prompt.push_back(static_cast<Token>(
          mix64((i < shared ? family : op.tag + 10) * 131U + static_cast<std::uint64_t>(i)) %
          50000U));
    }
  }
  q.max_new_tokens = rng.one_in(15) ? 0 : (rng.one_in(15) ? kOpenEnded : rng.between(1, 25));
  if (rng.one_in(3)) {
    s.stop.push_back(toy_token(op.tag, rng.between(0, 10)));
    q.min_new_tokens = q.max_new_tokens > 0 ? rng.between(0, q.max_new_tokens) : 0;
  }
  q.scope.has_tenant_salt = rng.one_in(mix.has_copies ? 9 : 3);
  q.scope.tenant_salt = static_cast<std::uint64_t>(rng.between(0, 1));
  q.arrival = now - DurationNs{rng.between(0, 2) * 500'000};
  q.priority = static_cast<std::int32_t>(rng.between(-2, 4));
  if (rng.one_in(2)) {
    q.slo.ttft = DurationNs{rng.between(0, 8) * 600'000};
  }
  if (rng.one_in(8)) {
    q.start_by = now + DurationNs{rng.between(-1, 8) * 600'000};
  }
  if (rng.one_in(8)) {
    q.finish_by = now + DurationNs{rng.between(-1, 40) * 600'000};
  }
  q.no_prefix_read = rng.one_in(10);
  q.sync_decode = rng.one_in(6);
  q.atomic_prefill = rng.one_in(10);
  if (mix.has_samples && q.max_new_tokens != 0 && rng.one_in(3)) {
    q.num_samples = static_cast<std::int32_t>(rng.between(2, 4));
  }
  if (rng.one_in(8)) {
    s.needs.push_back({0, rng.between(0, 4)});
  }
  if (rng.one_in(5)) {
    // From the same few items, at the same few places, so that some requests have equal ones.
    const bool is_tiny = rng.one_in(3);
    std::int64_t first = rng.between(0, 6);
    for (std::int64_t n = rng.between(1, is_tiny ? 6 : 3); n > 0; --n) {
      const std::int64_t items = is_tiny ? 1 : rng.between(1, 6);
      if (first + items > length) {
        break;
      }
      s.media.push_back({first, items, {5, static_cast<std::uint64_t>(rng.between(0, 1))}});
      first += items + (rng.one_in(2) ? 0 : rng.between(0, 5));
    }
  }
  return s;
}

inline std::string describe(const Setup& s) {
  std::ostringstream out;
  out << "rows " << s.rows << ", host tokens " << s.host_tokens << ", sizer " << s.sizer
      << ", sequences " << s.sequences << ", step tokens " << s.step_tokens << ", plans " << s.plans
      << (s.in_order ? "" : ", out of order") << (s.future_tokens ? ", future tokens" : "")
      << ", drafts " << s.drafts << ", retries " << s.retries << ", blocks " << s.blocks << " of "
      << s.block_size << (s.caching ? ", caching" : "") << (s.partial ? ", copies of " : "")
      << (s.partial ? std::to_string(s.min_partial) : "") << ", context " << s.max_context
      << ", compose " << static_cast<int>(s.rules.compose) << ", reserve "
      << static_cast<int>(s.rules.reserve) << " " << s.rules.reserve_tokens << ", watermark "
      << s.rules.watermark_permille << (s.rules.split_prompts ? "" : ", whole prompts")
      << ", chunk " << s.rules.max_chunk_tokens << ", unit " << s.rules.chunk_unit << ", bypass "
      << s.rules.max_bypass << ", requeue " << s.rules.requeue_blocks << ", late patience "
      << s.rules.late_patience << (s.by_priority ? ", priorities" : "")
      << (s.displaces ? ", displacing" : "");
  return out.str();
}

}  // namespace dynbatch::test::naive
