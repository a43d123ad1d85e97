// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Named bundles: sets of policies with their options, and the reader of "NAME:key=value,NAME".
#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/batch/dynamic_sizer.hpp>
#include <dynbatch/batch/fcfs_admission.hpp>
#include <dynbatch/batch/static_sizer.hpp>
#include <dynbatch/batch/token_budget_sizer.hpp>
#include <dynbatch/expert/null_balancer.hpp>
#include <dynbatch/microbatch/no_split.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace dynbatch::inline DYNBATCH_ABI {

namespace detail {

/// Reads a whole decimal integer in [low, high].
template <class Int>
[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key, Int low,
                                            Int high, Int& out) noexcept {
  std::int64_t value = 0;
  bool is_number = !text.empty();
  for (const char c : text) {
    is_number = is_number && c >= '0' && c <= '9' &&
                value <= (std::numeric_limits<std::int64_t>::max() - 9) / 10;
    if (!is_number) {
      break;
    }
    value = value * 10 + (c - '0');
  }
  if (!is_number) {
    return {Errc::InvalidArgument, key, 0, 0, "needs a whole number"};
  }
  if (value < low || value > high) {
    return {Errc::InvalidArgument, key, value, value < low ? low : high, "is out of range"};
  }
  out = static_cast<Int>(value);
  return kOk;
}

/// Reads a decimal fraction such as 0.25: digits, at most one point.
[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key,
                                            double& out) noexcept {
  double value = 0.0;
  double unit = 1.0;
  bool is_fraction = false;
  bool has_digit = false;
  for (const char c : text) {
    if (c == '.' && !is_fraction) {
      is_fraction = true;
    } else if (c >= '0' && c <= '9') {
      has_digit = true;
      value = value * 10.0 + static_cast<double>(c - '0');
      unit *= is_fraction ? 10.0 : 1.0;
    } else {
      has_digit = false;
      break;
    }
  }
  if (!has_digit || text.size() > 18) {
    return {Errc::InvalidArgument, key, 0, 0, "needs a number such as 0.5"};
  }
  out = value / unit;
  return kOk;
}

[[nodiscard]] constexpr Status parse_option(std::string_view text, const char* key,
                                            bool& out) noexcept {
  if (text == "1" || text == "true") {
    out = true;
  } else if (text == "0" || text == "false") {
    out = false;
  } else {
    return {Errc::InvalidArgument, key, 0, 0, "needs 0, 1, true or false"};
  }
  return kOk;
}

inline constexpr std::int32_t kMostInt32 = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMostInt64 = std::numeric_limits<std::int64_t>::max();

}  // namespace detail

/// Request-level batches: a batch starts when the engine is idle, whole prompts in one step, and
/// ends as a whole; finished rows stay as padding. The baseline that continuous batching is
/// measured by.
struct StaticBundle {
  using Sizer = StaticSizer;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = FcfsAdmission;
  static constexpr const char* kName = "static";
  static constexpr const char* kOptions = "batch";

  StaticSizer::Config sizer{};
  FcfsAdmission::Config admission{
      .compose = FcfsAdmission::Compose::BatchUntilEmpty, .split_prompts = false, .max_bypass = 0};

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "batch") {
      return detail::parse_option(value, "batch", 1, detail::kMostInt32, sizer.batch);
    }
    return {Errc::InvalidArgument, "option", 0, 0, "unknown option; static knows: batch"};
  }
  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = sizer.validate();
    return status ? admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(admission); }
};

/// The rules of vLLM V1: one token budget a step, decodes first, prompts in chunks, the whole
/// prompt must fit at admission, no headroom, nobody passes the head of the queue.
struct ChunkedBundle {
  using Sizer = TokenBudgetSizer;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = FcfsAdmission;
  static constexpr const char* kName = "chunked";
  static constexpr const char* kOptions = "budget, max_seqs, watermark_permille";

  TokenBudgetSizer::Config sizer{};
  FcfsAdmission::Config admission{.max_bypass = 0, .requeue_blocks = 0};

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "budget") {
      return detail::parse_option(value, "budget", std::int64_t{1}, detail::kMostInt64,
                                  sizer.budget);
    }
    if (key == "max_seqs") {
      return detail::parse_option(value, "max_seqs", 1, detail::kMostInt32, sizer.max_sequences);
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; chunked knows: budget, max_seqs, watermark_permille"};
  }
  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = sizer.validate();
    return status ? admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(admission); }
};

/// The default: batch sizes from memory, service level and queue, decodes first, some headroom.
struct DynbatchBundle {
  using Sizer = DynamicSizer;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = FcfsAdmission;
  static constexpr const char* kName = "dynbatch";
  static constexpr const char* kOptions =
      "alpha, max_prefill_tokens, min_prefill_tokens, max_prefill_seqs, max_decode_seqs, "
      "recovery_tokens, watermark_permille, max_bypass";

  DynamicSizer::Config sizer{};
  FcfsAdmission::Config admission{.watermark_permille = 40};

  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    if (key == "alpha") {
      const Status status = detail::parse_option(value, "alpha", sizer.alpha);
      return status ? sizer.validate() : status;
    }
    if (key == "max_prefill_tokens") {
      return detail::parse_option(value, "max_prefill_tokens", std::int64_t{1}, detail::kMostInt64,
                                  sizer.max_prefill_tokens);
    }
    if (key == "min_prefill_tokens") {
      return detail::parse_option(value, "min_prefill_tokens", std::int64_t{1}, detail::kMostInt64,
                                  sizer.min_prefill_tokens);
    }
    if (key == "max_prefill_seqs") {
      return detail::parse_option(value, "max_prefill_seqs", 1, detail::kMostInt32,
                                  sizer.max_prefill_sequences);
    }
    if (key == "max_decode_seqs") {
      return detail::parse_option(value, "max_decode_seqs", 1, detail::kMostInt32,
                                  sizer.max_decode_sequences);
    }
    if (key == "recovery_tokens") {
      return detail::parse_option(value, "recovery_tokens", 0, detail::kMostInt32,
                                  sizer.recovery_tokens);
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    if (key == "max_bypass") {
      return detail::parse_option(value, "max_bypass", 0, detail::kMostInt32, admission.max_bypass);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; dynbatch knows: alpha, max_prefill_tokens, min_prefill_tokens, "
            "max_prefill_seqs, max_decode_seqs, recovery_tokens, watermark_permille, max_bypass"};
  }
  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = sizer.validate();
    return status ? admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(admission); }
};

/// What the presets below share: a token budget a step, first come first served, nobody passes the
/// head of the queue, a preempted request comes back as soon as it fits.
template <class Derived>
struct BudgetPreset {
  using Sizer = TokenBudgetSizer;
  using Splitter = NoSplit;
  using Balancer = NullBalancer;
  using Admission = FcfsAdmission;

  [[nodiscard]] constexpr Status validate() const noexcept {
    const Status status = self().sizer.validate();
    return status ? self().admission.validate() : status;
  }
  [[nodiscard]] Sizer make_sizer() const { return Sizer(self().sizer); }
  [[nodiscard]] Splitter make_splitter() const { return {}; }
  [[nodiscard]] Balancer make_balancer() const { return {}; }
  [[nodiscard]] Admission make_admission() const { return Admission(self().admission); }

 protected:
  /// Options "budget" and "max_seqs"; false if `key` is neither.
  [[nodiscard]] constexpr bool set_sizer(std::string_view key, std::string_view value,
                                         Status& status) noexcept {
    TokenBudgetSizer::Config& sizer = static_cast<Derived&>(*this).sizer;
    if (key == "budget") {
      status =
          detail::parse_option(value, "budget", std::int64_t{1}, detail::kMostInt64, sizer.budget);
      return true;
    }
    if (key == "max_seqs") {
      status = detail::parse_option(value, "max_seqs", 1, detail::kMostInt32, sizer.max_sequences);
      return true;
    }
    return false;
  }

 private:
  [[nodiscard]] constexpr const Derived& self() const noexcept {
    return static_cast<const Derived&>(*this);
  }
};

/// Orca: KV for the whole request is reserved at admission (prompt + the most it may produce, or
/// `reserve` tokens in total, prompt included), prompts run in steps of their own of up to 8,192
/// tokens. `mixed` runs prompts and decodes in one step, as published.
struct OrcaBundle : BudgetPreset<OrcaBundle> {
  static constexpr const char* kName = "orca";
  static constexpr const char* kOptions = "reserve, mixed, budget, max_seqs";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.compose = FcfsAdmission::Compose::PrefillFirst,
                                  .reserve = FcfsAdmission::Reserve::NoEvict,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "mixed";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (set_sizer(key, value, status)) {
      return status;
    }
    if (key == "reserve") {
      admission.reserve = FcfsAdmission::Reserve::Fixed;
      return detail::parse_option(value, "reserve", std::int64_t{1}, detail::kMostInt64,
                                  admission.reserve_tokens);
    }
    if (key == "mixed") {
      bool is_mixed = false;
      status = detail::parse_option(value, "mixed", is_mixed);
      admission.compose =
          is_mixed ? FcfsAdmission::Compose::DecodeFirst : FcfsAdmission::Compose::PrefillFirst;
      return status;
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; orca knows: reserve, mixed, budget, max_seqs"};
  }
};

/// The rules of vLLM V0: prompts in steps of their own of up to 8,192 tokens, decodes only when no
/// prompt can run, 1 % of the pool left free by an admission. split=0 runs prompts whole only and
/// refuses those beyond the budget.
struct PrefillFirstBundle : BudgetPreset<PrefillFirstBundle> {
  static constexpr const char* kName = "prefill_first";
  static constexpr const char* kOptions = "budget, max_seqs, watermark_permille, split";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.compose = FcfsAdmission::Compose::PrefillFirst,
                                  .watermark_permille = 40,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};

  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "split";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (set_sizer(key, value, status)) {
      return status;
    }
    if (key == "watermark_permille") {
      return detail::parse_option(value, "watermark_permille", 0, 999,
                                  admission.watermark_permille);
    }
    if (key == "split") {
      return detail::parse_option(value, "split", admission.split_prompts);
    }
    return {Errc::InvalidArgument, "option", 0, 0,
            "unknown option; prefill_first knows: budget, max_seqs, watermark_permille, split"};
  }
};

/// What the bundles after TensorRT-LLM share: prompts run whole unless `chunked` is set.
template <class Bundle>
struct WholePromptPreset : BudgetPreset<Bundle> {
  [[nodiscard]] static constexpr bool is_flag(std::string_view key) noexcept {
    return key == "chunked";
  }
  /// Sets one option; a typed error names the key (unknown keys: field "option").
  [[nodiscard]] constexpr Status set(std::string_view key, std::string_view value) noexcept {
    Status status;
    if (this->set_sizer(key, value, status)) {
      return status;
    }
    if (key == "chunked") {
      return detail::parse_option(value, "chunked",
                                  static_cast<Bundle&>(*this).admission.split_prompts);
    }
    return {Errc::InvalidArgument, "option", 0, 0, Bundle::kUnknownOption};
  }
};

/// TensorRT-LLM's GUARANTEED_NO_EVICT: blocks for prompt + the most it may produce at admission, in
/// order, ended by the first that does not fit; decodes first, then prompts. `chunked` is its first
/// come, first served context chunking, in whole blocks; without it a prompt longer than the budget
/// is refused.
struct NoEvictBundle : WholePromptPreset<NoEvictBundle> {
  static constexpr const char* kName = "no_evict";
  static constexpr const char* kOptions = "budget, max_seqs, chunked";
  static constexpr const char* kUnknownOption =
      "unknown option; no_evict knows: budget, max_seqs, chunked";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.reserve = FcfsAdmission::Reserve::NoEvict,
                                  .split_prompts = false,
                                  .chunk_unit = 0,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};
};

/// TensorRT-LLM's MAX_UTILIZATION: a request starts as soon as blocks for its next step are there;
/// when they run out the last started gives way, until the step fits.
struct MaxUtilBundle : WholePromptPreset<MaxUtilBundle> {
  static constexpr const char* kName = "max_util";
  static constexpr const char* kOptions = "budget, max_seqs, chunked";
  static constexpr const char* kUnknownOption =
      "unknown option; max_util knows: budget, max_seqs, chunked";

  TokenBudgetSizer::Config sizer{.budget = 8192};
  FcfsAdmission::Config admission{.reserve = FcfsAdmission::Reserve::FirstChunk,
                                  .split_prompts = false,
                                  .chunk_unit = 0,
                                  .max_bypass = 0,
                                  .requeue_blocks = 0};
};

/// One entry of a policy list: views into the caller's text.
struct PolicySpec {
  std::string_view text{};     ///< The whole entry, "chunked:budget=2048".
  std::string_view name{};     ///< "chunked".
  std::string_view options{};  ///< "budget=2048".
  std::size_t position = 0;    ///< Where `text` begins in the list.
};

/// Splits "NAME:key=value:key=value,NAME" entry by entry. Allocates nothing.
class PolicyListReader {
 public:
  constexpr explicit PolicyListReader(std::string_view list) noexcept : list_(list) {}

  [[nodiscard]] constexpr bool has_next() const noexcept { return next_ <= list_.size(); }

  /// The next entry; an entry without a name is an error whose value is its position.
  [[nodiscard]] constexpr Status next(PolicySpec& out) noexcept {
    out = {};
    out.position = next_;
    const std::size_t end = list_.find(',', next_);
    out.text = list_.substr(next_, end == std::string_view::npos ? end : end - next_);
    next_ = end == std::string_view::npos ? list_.size() + 1 : end + 1;
    const std::size_t colon = out.text.find(':');
    out.name = out.text.substr(0, colon);
    if (colon != std::string_view::npos) {
      out.options = out.text.substr(colon + 1);
    }
    if (out.name.empty()) {
      return {Errc::InvalidArgument, "policy", static_cast<std::int64_t>(out.position), 0,
              "a policy name is missing at this position"};
    }
    return kOk;
  }

 private:
  std::string_view list_;
  std::size_t next_ = 0;
};

/// Sets all options of `spec`. On an error `*position`, if given, is where in the list the
/// offending option begins; an unknown option's Status carries it as its value.
template <class Bundle>
[[nodiscard]] constexpr Status configure(Bundle& bundle, const PolicySpec& spec,
                                         std::size_t* position = nullptr) noexcept {
  std::string_view rest = spec.options;
  std::size_t at = spec.position + spec.name.size() + 1;
  bool has_more = spec.text.size() > spec.name.size();
  while (has_more) {
    const std::size_t end = rest.find(':');
    const std::string_view option = rest.substr(0, end);
    if (position != nullptr) {
      *position = at;
    }
    const std::size_t equals = option.find('=');
    bool is_flag = false;
    if constexpr (requires { Bundle::is_flag(option); }) {
      is_flag = equals == std::string_view::npos && Bundle::is_flag(option);
    }
    if ((equals == std::string_view::npos && !is_flag) || equals == 0) {
      return {Errc::InvalidArgument, "option", static_cast<std::int64_t>(at), 0,
              "an option has the form key=value"};
    }
    Status status = is_flag ? bundle.set(option, "true")
                            : bundle.set(option.substr(0, equals), option.substr(equals + 1));
    if (!status) {
      if (std::string_view(status.field) == "option") {
        status.value = static_cast<std::int64_t>(at);
      }
      return status;
    }
    has_more = end != std::string_view::npos;
    if (has_more) {
      at += end + 1;
      rest = rest.substr(end + 1);
    }
  }
  if (position != nullptr) {
    *position = spec.position;
  }
  return bundle.validate();
}

/// The names that with_bundle() knows.
inline constexpr const char* kBundleNames =
    "static, chunked, prefill_first, orca, no_evict, max_util, dynbatch";

/// Makes the bundle that `spec` names, sets its options and calls visit(bundle), which returns
/// Status. The one list of shipped bundles: a further bundle is added here.
template <class Visit>
[[nodiscard]] constexpr Status with_bundle(const PolicySpec& spec, Visit&& visit,
                                           std::size_t* position = nullptr) {
  const auto run = [&](auto bundle) -> Status {
    const Status status = configure(bundle, spec, position);
    return status ? visit(bundle) : status;
  };
  if (spec.name == StaticBundle::kName) {
    return run(StaticBundle{});
  }
  if (spec.name == ChunkedBundle::kName) {
    return run(ChunkedBundle{});
  }
  if (spec.name == PrefillFirstBundle::kName) {
    return run(PrefillFirstBundle{});
  }
  if (spec.name == OrcaBundle::kName) {
    return run(OrcaBundle{});
  }
  if (spec.name == NoEvictBundle::kName) {
    return run(NoEvictBundle{});
  }
  if (spec.name == MaxUtilBundle::kName) {
    return run(MaxUtilBundle{});
  }
  if (spec.name == DynbatchBundle::kName) {
    return run(DynbatchBundle{});
  }
  if (position != nullptr) {
    *position = spec.position;
  }
  return {Errc::InvalidArgument, "policy", static_cast<std::int64_t>(spec.position), 0,
          "unknown policy at this position; known are static, chunked, prefill_first, orca, "
          "no_evict, max_util, dynbatch"};
}

}  // namespace dynbatch::inline DYNBATCH_ABI
