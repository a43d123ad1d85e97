// SPDX-License-Identifier: Apache-2.0
#include "tool/tool.hpp"

#include <dynbatch/base/config.hpp>
#include <dynbatch/base/error.hpp>
#include <dynbatch/base/version.hpp>
#include <dynbatch/scheduler/bundles.hpp>
#include <dynbatch/sim/cache_replay.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>

#include "tool/explain_command.hpp"
#include "tool/replay_command.hpp"

#include <CLI/CLI.hpp>
#include <array>
#include <exception>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace dynbatch::inline DYNBATCH_ABI {
namespace tool {
namespace {

constexpr const char* kExamples = R"(Examples:
  dynbatch replay
      compares static, chunked and dynbatch on an embedded workload
  dynbatch replay --trace conv.csv --requests 3000 --offline
      throughput: everything arrives at t = 0
  dynbatch replay --trace conv.csv --slo ttft:2000,tpot:100 --rate-scale 2
      twice the trace's rate, and how many requests stay inside the limits
  dynbatch replay --trace conv.csv --slo ttft:2000,tpot:100 --find-capacity 0.9
      the highest rate at which 90 % of the requests do
  dynbatch replay --trace mooncake.jsonl --cache-only --kv-blocks 1000,10000 --block-size 512
      what share of the prompts prefix caches of these sizes would find
  dynbatch replay --trace mooncake.jsonl --cache-only --kv-blocks 3000 --block-size 512 --eviction lru,adaptive,belady
      the same under several eviction orders, beside the best possible one
  dynbatch replay --policy chunked:budget=512,chunked:budget=2048 --json out.json
      two settings of one policy, with all metrics in a file
  dynbatch replay --policy orca:reserve=8192,prefill_first,no_evict,max_util,dynbatch
      single rules of other engines beside the default ones
  dynbatch replay --policy vllm,trtllm,tgi,sglang,triton:max_batch_size=32,xllm,dynbatch
      whole schedulers of other engines, with their defaults
  dynbatch replay --policy dynbatch --record run.flight
      writes the flight log of the run; explain reads it, or one from production
  dynbatch explain run.flight --request 17
      what happened to a request, step by step, and why it waited
  dynbatch explain run.flight --verify
      replays the log and says whether all plans come out equal

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 bad trace, cost file or flight log.)";

std::string cost_help() {
  std::string text = "step-time set: a JSON file (FILE or FILE#SET), or one of";
  for (const CostSet& set : kCostSets) {
    text += fmt::format("\n{}", set.name);
  }
  return text;
}

template <class... Bundles>
std::string options_of() {
  std::string text;
  ((text += fmt::format("\n{}: {}", Bundles::kName, Bundles::kOptions)), ...);
  return text;
}

std::string policy_help() {
  return "NAME[:key=value...][,NAME...] of these, with their options" +
         options_of<StaticBundle, ChunkedBundle, PrefillFirstBundle, OrcaBundle, NoEvictBundle,
                    MaxUtilBundle, VllmBundle, TrtllmBundle, TgiBundle, SglangBundle, TritonBundle,
                    XllmBundle, DynbatchBundle>();
}

std::string eviction_help() {
  std::string text =
      "eviction orders, NAME[,NAME...] (default: lru), with --cache-only or the "
      "policies dynbatch and chunked, of";
  for (const CacheEvictionName& e : kCacheEvictions) {
    text += fmt::format(" {}", e.name);
  }
  return text;
}

void add_replay_options(CLI::App& command, ReplayOptions& o) {
  command.add_option("--trace", o.trace, "trace file (default: an embedded workload)");
  command.add_option("--format", o.format, "auto, azure, csv, mooncake or bailian")
      ->check(CLI::IsMember({"auto", "azure", "csv", "mooncake", "bailian"}))
      ->capture_default_str();
  command.add_flag("--lenient", o.lenient, "sort rows by arrival, skip rows without tokens");
  command.add_option("--policy", o.policy, policy_help())->capture_default_str();
  command.add_option("--spread-ticks", o.spread_ticks,
                     "spread requests of equal time stamps over so much: 3000ms, or off (default: "
                     "3000ms for mooncake without sessions, else off)");
  command.add_option("--cost", o.cost, cost_help());
  command.add_option("--kv-tokens", o.kv_tokens, "KV places a unit")->capture_default_str();
  command.add_option("--block-size", o.block_size, "tokens a KV block")->capture_default_str();
  command.add_flag("--cache-only", o.cache_only,
                   "only look up and enter the prompts in prefix caches of --kv-blocks");
  command.add_option("--kv-blocks", o.kv_blocks, "sizes for --cache-only: N[,N...] blocks");
  command.add_option("--eviction", o.eviction, eviction_help());
  command.add_option("--max-seqs", o.max_seqs, "sequences at once a unit")->capture_default_str();
  command.add_option("--max-waiting", o.max_waiting,
                     "refuse requests while so many wait in a unit (default: no limit)");
  command.add_option(
      "--max-wait", o.max_wait,
      "refuse requests that would wait longer, predicted, in ms (default: no limit)");
  command.add_option("--max-new", o.max_new,
                     "output limit that requests carry; cuts longer outputs (default: 8192, or the "
                     "longest output rounded up to a power of two)");
  command.add_option("--units", o.units, "independent units, request i goes to unit i mod N")
      ->capture_default_str();
  command.add_option("--requests", o.requests,
                     "only the first N rows (embedded workload: how many, default 3000)");
  command.add_flag("--offline", o.offline, "everything arrives at t = 0");
  command.add_option("--rate-scale", o.rate_scale, "divide all arrival times by X");
  command.add_option("--start", o.start, "only arrivals from S seconds on");
  command.add_option("--end", o.end, "only arrivals before E seconds");
  command.add_option("--slo", o.slo, "limits ttft:MS,tpot:MS, set on every request");
  command.add_option("--find-capacity", o.find_capacity,
                     "search the rate at which this share of the requests stays inside the limits");
  command.add_flag("--bound", o.bound,
                   "also print what no scheduler can beat, from work that cannot be avoided");
  command.add_option("--seed", o.seed, "of the embedded workload and of prompt contents")
      ->capture_default_str();
  command.add_option("--json", o.json, "write configuration and all metrics to a file");
  command.add_option("--csv", o.csv, "write one row a request to a file");
  command.add_option("--record", o.record,
                     "write the flight log of the run (one policy) to a file");
}

int parse_and_run(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
                  bool shows_progress) {
  CLI::App app{"dynbatch: scheduling for LLM inference engines, simulated", "dynbatch"};
  app.require_subcommand(1);
  app.footer(kExamples);
  ReplayOptions options;
  CLI::App* replay =
      app.add_subcommand("replay", "Replay a request trace under one or more policies");
  replay->footer(kExamples);
  add_replay_options(*replay, options);
  ExplainOptions explain_options;
  CLI::App* explain =
      app.add_subcommand("explain", "Say what a flight log holds, and why requests waited");
  explain->add_option("log", explain_options.log, "flight log")->required();
  const CLI::Option* request = explain->add_option("--request", explain_options.request,
                                                   "what happened to the request of this id");
  explain->add_flag("--verify", explain_options.verify,
                    "replay the log and compare all plans with the recorded ones");
  explain->footer(kExamples);
  const CLI::App* version = app.add_subcommand("version", "Print the version");
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 reads from the back
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kSuccess : kUsage;
  }
  if (version->parsed()) {
    out << fmt::format("dynbatch {}.{}.{}\n", kVersionMajor, kVersionMinor, kVersionPatch);
    return kSuccess;
  }
  if (explain->parsed()) {
    explain_options.has_request = request->count() > 0;
    return run_explain(explain_options, out, err);
  }
  for (const char* name :
       {"--requests", "--max-new", "--max-waiting", "--rate-scale", "--find-capacity"}) {
    // 0 means "not given" in ReplayOptions.
    if (replay->count(name) > 0 && replay->get_option(name)->as<double>() == 0.0) {
      err << fmt::format("dynbatch: {} must be above 0\n", name);
      return kUsage;
    }
  }
  return run_replay(options, out, err, shows_progress);
}

}  // namespace

std::string text_of(const Status& status) {
  std::array<char, 256> text{};
  static_cast<void>(format_status(status, text.data(), text.size()));
  return text.data();
}

int run_tool(const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
             bool shows_progress) {
  try {
    return parse_and_run(args, out, err, shows_progress);
  } catch (const std::exception& error) {
    err << "dynbatch: " << error.what() << "\n";
    return kFailure;
  }
}

}  // namespace tool
}  // namespace dynbatch::inline DYNBATCH_ABI
