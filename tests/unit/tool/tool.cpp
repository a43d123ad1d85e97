// SPDX-License-Identifier: Apache-2.0
#include "tool/tool.hpp"

#include <dynbatch/base/version.hpp>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

using nlohmann::json;

namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<std::string>& args, bool shows_progress = false) {
  std::ostringstream out;
  std::ostringstream err;
  Outcome outcome;
  outcome.code = dynbatch::tool::run_tool(args, out, err, shows_progress);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// A folder of its own for one test, removed at its end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dynbatch-tool-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::size_t count_lines(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) {
    count += c == '\n' ? 1 : 0;
  }
  return count;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kTrace =
    "arrival_s,input_tokens,output_tokens,tenant\n"
    "0.0,100,5,1\n0.5,200,10,2\n1.0,300,1,1\n2.0,50,20,2\n";

}  // namespace

TEST_CASE("version prints the version of the library", "[tool]") {
  const Outcome o = run({"version"});
  CHECK(o.code == 0);
  CHECK(o.err.empty());
  CHECK(o.out == "dynbatch " + std::to_string(dynbatch::kVersionMajor) + "." +
                     std::to_string(dynbatch::kVersionMinor) + "." +
                     std::to_string(dynbatch::kVersionPatch) + "\n");
}

TEST_CASE("help goes to the output with examples and ends with success", "[tool]") {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, std::vector<std::string>{"replay", "--help"}}) {
    const Outcome o = run(args);
    CHECK(o.code == 0);
    CHECK(contains(o.out, "Examples:"));
    CHECK(contains(o.out, "dynbatch replay --trace conv.csv"));
    CHECK(contains(o.out, "Exit codes: 0 ok"));
    CHECK(o.err.empty());
  }
  const Outcome replay = run({"replay", "--help"});
  for (const char* flag :
       {"--trace",   "--format", "--policy",        "--cost",    "--kv-tokens",  "--max-seqs",
        "--max-new", "--units",  "--requests",      "--offline", "--rate-scale", "--start",
        "--end",     "--slo",    "--find-capacity", "--bound",   "--seed",       "--json",
        "--csv",     "--record", "--max-waiting",   "--max-wait"}) {
    CHECK(contains(replay.out, flag));
  }
}

TEST_CASE("wrong usage ends with 2 and says what is wrong", "[tool]") {
  const std::vector<std::vector<std::string>> cases{
      {},
      {"play"},
      {"replay", "--nonsense"},
      {"replay", "--kv-tokens"},
      {"replay", "--kv-tokens", "abc"},
      {"replay", "--kv-tokens", "0"},
      {"replay", "--kv-tokens", "-5"},
      {"replay", "--max-seqs", "0"},
      {"replay", "--max-seqs", "99999999999999999999999"},
      {"replay", "--max-new", "0"},
      {"replay", "--max-waiting", "0"},
      {"replay", "--max-waiting", "-1"},
      {"replay", "--max-wait", "0"},
      {"replay", "--max-wait", "soon"},
      {"replay", "--cache-only", "--kv-blocks", "10", "--max-waiting", "3"},
      {"replay", "--units", "0"},
      {"replay", "--requests", "0"},
      {"replay", "--requests", "-1"},
      {"replay", "--rate-scale", "0"},
      {"replay", "--rate-scale", "-1"},
      {"replay", "--rate-scale", "nan"},
      {"replay", "--offline", "--rate-scale", "2"},
      {"replay", "--bound"},
      {"replay", "--cache-only", "--kv-blocks", "10", "--bound"},
      {"replay", "--find-capacity", "0.9"},
      {"replay", "--find-capacity", "0", "--slo", "ttft:1"},
      {"replay", "--find-capacity", "1.1", "--slo", "ttft:1"},
      {"replay", "--find-capacity", "nan", "--slo", "ttft:1"},
      {"replay", "--find-capacity", "0.9", "--slo", "ttft:1", "--offline"},
      {"replay", "--slo", "2000"},
      {"replay", "--slo", "ttft"},
      {"replay", "--slo", "ttft:abc"},
      {"replay", "--slo", "ttft:0"},
      {"replay", "--slo", "ttft:1,"},
      {"replay", "--slo", "ttft:1,ttft:2"},
      {"replay", "--slo", "e2el:5"},
      {"replay", "--start", "x"},
      {"replay", "--end", "-1"},
      {"replay", "--start", "5", "--end", "4"},
      {"replay", "--format", "jsonl"},
      {"replay", "--block-size", "0"},
      {"replay", "--block-size", "65537"},
      {"replay", "--spread-ticks", "3000"},
      {"replay", "--spread-ticks", "ms"},
      {"replay", "--spread-ticks", "0ms"},
      {"replay", "--spread-ticks", "3000ms "},
      {"replay", "--kv-blocks", "10"},
      {"replay", "--cache-only"},
      {"replay", "--cache-only", "--kv-blocks", "0"},
      {"replay", "--cache-only", "--kv-blocks", "10,"},
      {"replay", "--cache-only", "--kv-blocks", "10,x"},
      {"replay", "--cache-only", "--kv-blocks", "3000000000"},
      {"replay", "--cache-only", "--kv-blocks", "10", "--slo", "ttft:1"},
      {"replay", "--cache-only", "--kv-blocks", "10", "--eviction", "fifo"},
      {"replay", "--cache-only", "--kv-blocks", "10", "--eviction", "lru,"},
      {"replay", "--eviction", "fifo"},
      {"replay", "--eviction", "slru", "--policy", "static"},
      {"replay", "--eviction", "belady", "--policy", "dynbatch"},
      {"replay", "--eviction", "slru", "--policy", "dynbatch", "--record", "f"},
      {"replay", "--eviction", "lru,lru", "--policy", "dynbatch", "--record", "f"},
      {"replay", "--policy", "nonsense"},
      {"replay", "--policy", "chunked:nonsense=1"},
      {"replay", "--policy", "chunked:budget=x"},
      {"replay", "--policy", "chunked,,static"},
      {"replay", "--policy", ""},
      {"replay", "--seed", "-1"},
      {"replay", "--record", "f"},
      {"replay", "--record", "f", "--policy", "dynbatch", "--units", "2"},
      {"replay", "--record", "f", "--policy", "dynbatch", "--slo", "ttft:1", "--find-capacity",
       "0.9"},
      {"explain"},
      {"explain", "f", "--request"},
      {"explain", "f", "--request", "x"},
      {"explain", "f", "--nonsense"}};
  for (const auto& args : cases) {
    std::string line;
    for (const std::string& arg : args) {
      line += arg + " ";
    }
    INFO(line);
    const Outcome o = run(args);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    CHECK(!o.err.empty());
  }
}

TEST_CASE("a wrong policy is pointed at", "[tool]") {
  const Outcome o = run({"replay", "--policy", "chunked:budget=2048,static:size=4"});
  CHECK(o.code == 2);
  CHECK(contains(o.err, "unknown option; static knows: batch"));
  CHECK(contains(o.err, "\n  chunked:budget=2048,static:size=4\n"));
  CHECK(contains(o.err, "\n  " + std::string(27, ' ') + "^"));
}

TEST_CASE("cache-only tells what caches of several sizes find, with the reading of time stamps",
          "[tool]") {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    lines += "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 2, \"hash_ids\": [0, " +
             std::to_string(i % 2 + 1) + "]}\n";
  }
  const std::string trace = folder.write("m.jsonl", lines);
  const std::string json_file = folder.file("o.json");
  const Outcome o = run({"replay", "--trace", trace, "--cache-only", "--kv-blocks", "2,3",
                         "--block-size", "512", "--json", json_file});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(contains(o.out, "equal time stamps spread evenly over 3000 ms"));
  // Three shared blocks; the fourth and third prompts find theirs if both fit.
  CHECK(contains(o.out, "2      1,024     0.3750"));
  CHECK(contains(o.out, "3      1,536     0.6250"));
  const json report = json::parse(read(json_file));
  CHECK(report["config"]["spread_ticks_ms"] == 3000.0);
  CHECK(report["config"]["hash_block_tokens"] == 512);
  CHECK(report["results"][1]["kv_blocks"] == 3);
  CHECK(report["results"][1]["hit_tokens"] == 2560);
  const Outcome two =
      run({"replay", "--trace", trace, "--cache-only", "--kv-blocks", "2,3", "--block-size", "512",
           "--eviction", "slru,belady", "--json", json_file});
  REQUIRE(two.code == 0);
  CHECK(contains(two.out, "belady"));
  const json orders = json::parse(read(json_file))["results"];
  REQUIRE(orders.size() == 4);
  CHECK(orders[0]["eviction"] == "slru");
  CHECK(orders[3]["eviction"] == "belady");
  CHECK(orders[3]["kv_blocks"] == 3);
  const Outcome bad_block =
      run({"replay", "--trace", trace, "--cache-only", "--kv-blocks", "2", "--block-size", "24"});
  CHECK(bad_block.code == 2);
  CHECK(contains(bad_block.err, "block_size = 24"));
}

TEST_CASE("replay runs policies with each eviction order asked for", "[tool]") {
  const Folder folder;
  const std::string json_file = folder.file("o.json");
  const Outcome o = run({"replay", "--requests", "50", "--policy", "dynbatch", "--eviction",
                         "lru,adaptive", "--json", json_file});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(contains(o.out, "dynbatch / adaptive"));
  CHECK_FALSE(contains(o.out, "dynbatch / lru"));
  const json results = json::parse(read(json_file))["results"];
  REQUIRE(results.size() == 2);
  CHECK(results[0]["eviction"] == "lru");
  CHECK(results[1]["eviction"] == "adaptive");
  CHECK(results[1]["policy"] == "dynbatch");
  const Outcome unknown = run({"replay", "--policy", "dynbatch", "--eviction", "fifo"});
  CHECK(contains(unknown.err, "known are lru, ttl, lfu, slru, priority, cost, adaptive, belady"));
}

TEST_CASE("replay shares the prefixes that a trace names", "[tool]") {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 3; ++i) {
    lines += "{\"timestamp\": " + std::to_string(i * 60000) +
             ", \"input_length\": 1100, \"output_length\": 2, \"hash_ids\": [0, 1, " +
             std::to_string(i + 2) + "]}\n";
  }
  const std::string trace = folder.write("m.jsonl", lines);
  const std::string json_file = folder.file("o.json");
  for (const char* block_size : {"16", "512"}) {
    const Outcome o = run({"replay", "--trace", trace, "--policy", "chunked", "--spread-ticks",
                           "off", "--block-size", block_size, "--json", json_file});
    INFO(o.err);
    REQUIRE(o.code == 0);
    CHECK(contains(o.out, "time stamps as written"));
    const json report = json::parse(read(json_file));
    CHECK(report["config"]["spread_ticks_ms"] == 0.0);
    CHECK(report["results"][0]["prefix_cache_hit_tokens_ratio"].get<double>() ==
          Approx(2 * 1024 / (3 * 1099.0)).epsilon(0.01));
  }
  const Outcome bad_block = run({"replay", "--trace", trace, "--block-size", "24"});
  CHECK(bad_block.code != 0);
  CHECK(contains(bad_block.err, "block_size = 24"));
}

TEST_CASE("a set that is a formula is named with its formula and both its errors", "[tool]") {
  const Folder folder;
  const Outcome o = run({"replay", "--requests", "3", "--policy", "chunked", "--cost",
                         "llama2-70b_h100_tp8", "--json", folder.file("out.json")});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(contains(o.out, "step times within 6.2 % of prompts, 1.7 % of decodes (MAPE)"));
  const json cost = json::parse(read(folder.file("out.json")))["config"]["cost"];
  CHECK(
      cost["formula_ms"] ==
      "0 + max(54.1, -22.3 + 0.0884 T + 3.5e-06 pairs) if T + (29.6 + 0.182 B + 0.000223 KV) if B");
  CHECK(cost["mape_percent"] == 6.2);
  CHECK(cost["decode_mape_percent"] == 1.7);
  CHECK_FALSE(cost.contains("a_ms"));
}

TEST_CASE("R39, R40 - a bad trace or cost file ends with 3 and nothing is simulated", "[tool]") {
  const Folder folder;
  const std::string header = "arrival_s,input_tokens,output_tokens\n";
  const auto error_of = [&](const std::string& text) {
    const Outcome o = run({"replay", "--trace", folder.write("bad.csv", text)});
    CHECK(o.code == 3);
    CHECK(o.out.empty());
    CHECK(contains(o.err, folder.file("bad.csv")));
    return o.err;
  };
  CHECK(contains(error_of(header + "0,1,1\nnan,1,1\n"),
                 "row 2 (line 3), column 'arrival_s', value 'nan'"));
  CHECK(contains(error_of(header + "0,1,1\n5,1,1\n3,1,1\n"), "row 3 (line 4)"));
  CHECK(contains(error_of(""), "empty trace"));
  CHECK(contains(error_of("arrival_s,input_tokens\n"), "column 'output_tokens'"));
  CHECK(contains(error_of(header + "0,1\n"), "row 1 (line 2)"));
  CHECK(run({"replay", "--trace", folder.file("absent.csv")}).code == 3);
  CHECK(run({"replay", "--cost", folder.file("absent.json")}).code == 3);
  const Outcome cost = run({"replay", "--cost", folder.write("cost.json", "{\"a_ms\": 1}")});
  CHECK(cost.code == 3);
  CHECK(contains(cost.err, "'b_ms_per_req' must be a number"));
  // Capacity needs arrivals that are spread in time.
  CHECK(run({"replay", "--trace", folder.write("one.csv", header + "0,1,1\n"), "--slo", "ttft:100",
             "--find-capacity", "0.9"})
            .code == 3);
  CHECK(run({"replay", "--lenient", "--trace",
             folder.write("unsorted.csv", header + "5,1,1\n3,1,1\n")})
            .code == 0);
}

TEST_CASE("R40 - a header alone replays to defined statistics", "[tool]") {
  const Folder folder;
  const Outcome o = run({"replay", "--trace", folder.write("t.csv", kTrace.substr(0, 44)), "--json",
                         folder.file("out.json")});
  INFO(o.err);
  CHECK(o.code == 0);
  CHECK_FALSE(contains(o.out, "nan"));
  const json report = json::parse(read(folder.file("out.json")));
  CHECK(report["config"]["requests"] == 0);
  CHECK(report["results"].size() == 3);
  for (const auto& item : report["results"][0].items()) {
    if (item.key() != "policy" && item.key() != "eviction") {
      CHECK((item.value().is_number() || item.value().is_boolean()));
    }
  }
}

TEST_CASE("refused requests are shown in table, JSON and CSV", "[tool]") {
  const Folder folder;
  std::string trace = "arrival_s,input_tokens,output_tokens,tenant\n";
  for (int i = 0; i < 20; ++i) {
    trace += "0.0,4000,5,1\n";
  }
  const Outcome o = run({"replay", "--trace", folder.write("t.csv", trace), "--policy", "chunked",
                         "--max-waiting", "7", "--max-wait", "900000", "--slo", "ttft:100000",
                         "--json", folder.file("out.json"), "--csv", folder.file("out.csv")});
  INFO(o.err);
  REQUIRE(o.code == 0);
  for (const char* text :
       {"of taken", "good/s", "refused\n", "100.0 %", "35.0 %", "refused: since too many waited"}) {
    INFO(text);
    CHECK(contains(o.out, text));
  }
  const json report = json::parse(read(folder.file("out.json")));
  CHECK(report["config"]["max_waiting"] == 7);
  CHECK(report["config"]["max_wait_ms"] == 900000.0);
  CHECK(report["results"][0]["refused"] == 13);
  CHECK(report["results"][0]["completed"] == 7);
  CHECK(report["results"][0]["slo_attainment"] == 0.35);
  CHECK(report["results"][0]["slo_attainment_taken"] == 1.0);
  const std::string csv = read(folder.file("out.csv"));
  CHECK(contains(csv, "chunked,7,0,refused,"));
  const Outcome plain = run({"replay", "--trace", folder.file("t.csv"), "--policy", "chunked"});
  CHECK_FALSE(contains(plain.out, "refused"));
}

TEST_CASE("presets of other engines are compared on one workload", "[tool]") {
  const Outcome o = run({"replay", "--requests", "60", "--offline", "--policy",
                         "vllm,trtllm,tgi,sglang,triton,xllm"});
  CHECK(o.code == 0);
  CHECK(o.err.empty());
  for (const char* name : {"vllm", "trtllm", "tgi", "sglang", "triton", "xllm"}) {
    INFO(name);
    CHECK(contains(o.out, std::string("\n") + name + " "));
  }
  const Outcome help = run({"replay", "--help"});
  CHECK(contains(help.out, "waiting_served_ratio"));
}

TEST_CASE("the table has one row a policy and says what the numbers mean", "[tool]") {
  const Folder folder;
  const Outcome o =
      run({"replay", "--trace", folder.write("t.csv", kTrace), "--slo", "ttft:200,tpot:50.5"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(o.err.empty());
  for (const char* text :
       {"4 requests, 162 tokens in and 9 out", "2.00 req/s a unit",
        "llama3.1-70b_fp8_h100_tp4_vllm", "MAPE", "TTFT 200 ms, TPOT 50.5 ms", "\nstatic:batch=32 ",
        "\nchunked:budget=2048 ", "\ndynbatch ", "req/s and tok/s",
        "in limits: share of all requests", "Most output: "}) {
    INFO(text);
    CHECK(contains(o.out, text));
  }
  CHECK_FALSE(contains(o.out, "\r"));
}

TEST_CASE("JSON holds configuration, digest, seed and the metrics of each policy", "[tool]") {
  const Folder folder;
  const Outcome o = run({"replay",
                         "--trace",
                         folder.write("t.csv", kTrace),
                         "--policy",
                         "chunked:budget=512,dynbatch",
                         "--slo",
                         "ttft:200",
                         "--rate-scale",
                         "2",
                         "--units",
                         "2",
                         "--seed",
                         "7",
                         "--json",
                         folder.file("out.json"),
                         "--csv",
                         folder.file("out.csv"),
                         "--cost",
                         "llama3.1-8b_h100_tp1_trtllm",
                         "--kv-tokens",
                         "50000",
                         "--max-seqs",
                         "8"});
  INFO(o.err);
  REQUIRE(o.code == 0);
  const json report = json::parse(read(folder.file("out.json")));
  const json& config = report["config"];
  CHECK(config["requests"] == 4);
  CHECK(config["units"] == 2);
  CHECK(config["kv_tokens"] == 50'000);
  CHECK(config["max_seqs"] == 8);
  CHECK(config["max_new"] == 8'192);
  CHECK(config["slo_ttft_ms"] == 200.0);
  CHECK(config["slo_tpot_ms"].is_null());
  CHECK(config["cost"]["name"] == "llama3.1-8b_h100_tp1_trtllm");
  CHECK(config["cost"]["d_ms_per_prefill_token"] == 0.0196);
  CHECK(config["cost"]["formula_ms"] == "6.42 + 4.994e-05 KV + 0.0196 T");
  CHECK(report["seed"] == 7);
  CHECK(report["trace_sha256"].get<std::string>().size() == 64);
  REQUIRE(report["results"].size() == 2);
  CHECK(report["results"][0]["policy"] == "chunked:budget=512");
  const json& r = report["results"][1];
  CHECK(r["policy"] == "dynbatch");
  CHECK(r["completed"] == 4);
  CHECK(r["total_output_tokens"] == 36);
  // 4 requests in 1 s of scaled time on 2 units.
  CHECK(r["request_rate"].get<double>() == Approx(2.0));
  for (const char* name :
       {"request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "slo_attainment", "goodput_slo", "max_concurrent_requests", "prefix_cache_hit_tokens_ratio",
        "preemptions", "kv_util_mean", "kv_util_max", "sim_wall_s", "sim_requests_per_s",
        "node_seconds"}) {
    INFO(name);
    CHECK(r[name].is_number());
  }
  for (const char* statistic : {"mean", "median", "std", "p50", "p90", "p95", "p99"}) {
    for (const char* metric : {"ttft", "tpot", "itl", "e2el", "queue_delay"}) {
      const std::string name = std::string(statistic) + "_" + metric + "_ms";
      INFO(name);
      REQUIRE(r.contains(name));
      CHECK(std::isfinite(r[name].get<double>()));
    }
  }
  // One CSV row a request and policy, below the header.
  const std::string csv = read(folder.file("out.csv"));
  CHECK(count_lines(csv) == 9);
  CHECK(csv.rfind("policy,request_id,unit,status,arrived_at,", 0) == 0);
  CHECK(contains(csv, "\nchunked:budget=512,1,1,finished,0.250000000,200,10,0.000000000,"));
}

TEST_CASE("equal seeds give equal reports but for the wall clock", "[tool]") {
  const Folder folder;
  const auto report_of = [&](const char* seed) {
    REQUIRE(run({"replay", "--requests", "200", "--seed", seed, "--rate-scale", "3", "--json",
                 folder.file("out.json"), "--csv", folder.file("out.csv")})
                .code == 0);
    json report = json::parse(read(folder.file("out.json")));
    for (json& result : report["results"]) {
      result.erase("sim_wall_s");
      result.erase("sim_requests_per_s");
    }
    return report.dump() + read(folder.file("out.csv"));
  };
  const std::string first = report_of("11");
  CHECK(first == report_of("11"));
  CHECK(first != report_of("12"));
}

TEST_CASE("a window, a row limit and a cut are applied and reported", "[tool]") {
  const Folder folder;
  const std::string trace = folder.write("t.csv", kTrace);
  const auto requests_of = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"replay", "--trace", trace, "--json", folder.file("out.json")});
    const Outcome o = run(args);
    INFO(o.err);
    REQUIRE(o.code == 0);
    return json::parse(read(folder.file("out.json")));
  };
  CHECK(requests_of({"--start", "0.5", "--end", "2"})["config"]["requests"] == 2);
  CHECK(requests_of({"--requests", "3"})["config"]["requests"] == 3);
  const json cut = requests_of({"--max-new", "8"});
  CHECK(cut["config"]["max_new"] == 8);
  CHECK(cut["results"][0]["cut"] == 2);
  CHECK(cut["results"][0]["total_output_tokens"] == 5 + 8 + 1 + 8);
  CHECK(
      contains(run({"replay", "--trace", trace, "--max-new", "8"}).out, "--max-new cut 2 outputs"));
}

TEST_CASE("the capacity search reports a rate that meets the limits", "[tool]") {
  const Folder folder;
  const Outcome o =
      run({"replay", "--requests", "150", "--policy", "chunked", "--slo", "ttft:500,tpot:40",
           "--find-capacity", "0.9", "--json", folder.file("out.json")});
  INFO(o.err);
  REQUIRE(o.code == 0);
  CHECK(contains(o.out, "Each row is the highest rate at which at least 90 %"));
  const json r = json::parse(read(folder.file("out.json")))["results"][0];
  CHECK(r["slo_attainment"].get<double>() >= 0.9);
  CHECK(r["capacity_req_per_s"].get<double>() > 1.0);
  CHECK(r["num_trials"].get<int>() > 3);
  // A replay at the found scale confirms it.
  char scale[32];
  std::snprintf(scale, sizeof(scale), "%.17g", r["rate_scale"].get<double>());
  REQUIRE(run({"replay", "--requests", "150", "--policy", "chunked", "--slo", "ttft:500,tpot:40",
               "--rate-scale", scale, "--json", folder.file("again.json")})
              .code == 0);
  const json again = json::parse(read(folder.file("again.json")))["results"][0];
  CHECK(again["slo_attainment"] == r["slo_attainment"]);
}

TEST_CASE("the bound is printed in the unit of what it bounds, and nobody exceeds it", "[tool]") {
  const Folder folder;
  struct Case {
    std::vector<std::string> args;
    const char* bound;
    const char* metric;
    const char* text;
  };
  const std::vector<Case> cases{
      {{"--slo", "ttft:2000,tpot:100", "--find-capacity", "0.9"},
       "capacity_req_per_s",
       "capacity_req_per_s",
       "req/s (work that"},
      {{"--slo", "ttft:2000,tpot:100", "--rate-scale", "3"},
       "slo_attainment",
       "slo_attainment",
       "% in limits (work that"},
      {{"--offline"}, "output_throughput", "output_throughput", "tok/s (work that"}};
  for (const Case& c : cases) {
    const std::string json_path = folder.file("bound.json");
    std::vector<std::string> args{"replay", "--policy", "chunked,dynbatch", "--requests",
                                  "300",    "--bound",  "--json",           json_path};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Outcome o = run(args);
    REQUIRE(o.code == 0);
    CHECK(contains(o.out, "Bound: no scheduler can exceed "));
    CHECK(contains(o.out, c.text));
    const json report = json::parse(read(json_path));
    const double bound = report["bound"][c.bound];
    CHECK(bound > 0.0);
    for (const json& result : report["results"]) {
      CHECK(result[c.metric].get<double>() <= bound);
      CHECK(result[c.metric].get<double>() > bound / 3.0);
    }
  }
}

TEST_CASE("requests that can never fit are shown as not served", "[tool]") {
  const Folder folder;
  const Outcome o = run({"replay", "--trace",
                         folder.write("t.csv",
                                      "arrival_s,input_tokens,output_tokens\n0,5000000000,1\n"
                                      "0,100,1\n")});
  CHECK(o.code == 0);
  CHECK(contains(o.out, "not served"));
}

TEST_CASE("progress is drawn only where asked", "[tool]") {
  const Outcome with = run({"replay", "--requests", "50"}, true);
  const Outcome without = run({"replay", "--requests", "50"});
  CHECK(contains(with.err, "\rchunked:budget=2048 ["));
  CHECK(without.err.empty());
  CHECK(with.out == without.out);
}

TEST_CASE("a report that can't be written is a failure", "[tool]") {
  const Outcome o = run({"replay", "--requests", "5", "--json", "no/such/folder/out.json"});
  CHECK(o.code == 1);
  CHECK(contains(o.err, "cannot write 'no/such/folder/out.json'"));
}

TEST_CASE("a recorded run is explained and replays to equal plans, for each bundle", "[tool]") {
  const Folder folder;
  const std::string log = folder.file("run.flight");
  for (const char* policy :
       {"static:batch=4", "chunked:budget=256", "dynbatch:alpha=0.9", "orca:reserve=8192",
        "prefill_first:budget=512", "no_evict", "max_util", "vllm:policy=priority",
        "trtllm:context_chunking_policy=fcfs:enable_batch_size_tuning:enable_max_num_tokens_tuning",
        "tgi:max_batch_prefill_tokens=16384", "sglang:schedule_policy=lof",
        "triton:preferred_batch_size=2+4", "xllm:max_seqs_per_batch=16"}) {
    INFO(policy);
    const std::vector<std::string> common{"replay",       "--requests", "60",
                                          "--rate-scale", "8",          "--kv-tokens",
                                          "20000",        "--policy",   policy};
    std::vector<std::string> recorded = common;
    recorded.insert(recorded.end(), {"--record", log});
    const Outcome replay = run(recorded);
    REQUIRE(replay.code == 0);
    // The recorder changes nothing.
    CHECK(replay.out == run(common).out);

    const Outcome summary = run({"explain", log});
    CHECK(summary.code == 0);
    CHECK(summary.err.empty());
    for (const char* text : {"requests: 60 taken in, 60 finished", "what requests waited for",
                             "order: behind requests", "longest in the queue", policy}) {
      INFO(text);
      CHECK(contains(summary.out, text));
    }
    const Outcome verified = run({"explain", log, "--verify"});
    CHECK(verified.code == 0);
    CHECK(contains(verified.out, "plans came out equal"));
    CHECK_FALSE(contains(verified.out, "flight log of"));

    const Outcome story = run({"explain", log, "--request", "59"});
    CHECK(story.code == 0);
    for (const char* text :
         {"request 59: ", "taken in, ", "waited ", " x order: ", "admitted by plan ",
          "from the cache", " from position 0", ", the last ones", "first token, ",
          "finished (stopped by the host)"}) {
      INFO(text);
      CHECK(contains(story.out, text));
    }
    CHECK(story.out.find("taken in") < story.out.find("waited"));
    CHECK(story.out.find("waited") < story.out.find("admitted"));
    CHECK(story.out.find("admitted") < story.out.find("first token"));
  }
  // A preempted request says so, and waits for memory.
  REQUIRE(run({"replay", "--requests", "100", "--offline", "--kv-tokens", "12000", "--policy",
               "chunked:budget=512", "--record", log})
              .code == 0);
  bool is_found = false;
  for (int id = 0; id < 100 && !is_found; ++id) {
    const Outcome story = run({"explain", log, "--request", std::to_string(id)});
    is_found = contains(story.out, "preempted by plan") && contains(story.out, "memory: not");
  }
  CHECK(is_found);
}

TEST_CASE("a bad flight log ends with 3 and says what is wrong", "[tool]") {
  const Folder folder;
  const std::string log = folder.file("run.flight");
  REQUIRE(run({"replay", "--requests", "5", "--policy", "dynbatch", "--record", log}).code == 0);
  const std::string bytes = read(log);
  const auto check = [&](const std::string& content, const std::vector<std::string>& more, int code,
                         const char* text) {
    std::vector<std::string> args{"explain", folder.write("bad.flight", content)};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome o = run(args);
    INFO(o.err);
    CHECK(o.code == code);
    CHECK(contains(o.err, text));
    return o;
  };
  CHECK(run({"explain", folder.file("absent.flight")}).code == 3);
  check("", {}, 3, "not a flight log");
  check(kTrace, {}, 3, "not a flight log");
  std::string other = bytes;
  other[16] = 9;
  check(other, {}, 3, "unknown version");
  check(bytes, {"--request", "99"}, 3, "no request 99");
  // The log of a host that is still running, or isn't any more.
  const Outcome cut = check(bytes.substr(0, bytes.size() - 5), {}, 0, "truncated at byte");
  CHECK(contains(cut.out, "requests: 5 taken in"));
  check(bytes.substr(0, bytes.size() - 5), {"--verify"}, 3, "came out equal, then: truncated");
  other = bytes;
  for (std::size_t i = bytes.size() / 2; i < bytes.size(); ++i) {
    other[i] = 77;
  }
  check(other, {}, 3, "corrupt at byte");
  // Another policy's name: the plans differ, which is no fault of the log.
  other = bytes;
  const std::size_t label = other.find("dynbatch");
  REQUIRE(label != std::string::npos);
  other.replace(label, 8, "chunked:");
  check(other, {"--verify"}, 3, "can't be replayed with policy 'chunked:'");
  other.replace(label, 8, "static\0\0", 8);
  check(other, {"--verify"}, 3, "unknown policy");
}
