#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares policies over traces, step-time sets and service levels with `dynbatch replay`, and
prints a table in Markdown for each trace and set.

A column "TTFT/TPOT" is the highest request rate at which 90 % of the requests stay inside both
limits. Where even an idle engine whose prefix cache is never full misses that, it is the rate at
which 90 % of the share that the idle engine reaches do; such columns carry a star and the share.
"tok/s" is the output with everything there at the start; who refuses requests there is not compared
with the others, since it serves fewer. "any": all may come at once. The last row is what no
scheduler that refuses nobody can exceed (`--bound`).

Usage: benchmarks/sim/compare_policies.py DIRECTORY_OF_TRACES [TRACE...]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACES = [
    "azure2023_conv_min00-30.csv",
    "azure2023_code_min00-30.csv",
    "mooncake_conversation_min00-30.jsonl",
    "servegen_deepseek_r1_h00-12_x0.08.csv",
    "servegen_m_large_d00-03_x0.0012.csv",
    "agent_miniswe_blk16.jsonl",
    "agent_taubench_blk16.jsonl",
]
COSTS = ["llama3.1-70b_fp8_h100_tp4_vllm", "qwen3-235b-a22b_fp8_h100_tp4ep4_trtllm"]
UNLIMITED = 100_000  # requests a second: where the search for a capacity gave up
LEVELS = [(2000, 100), (450, 40), (450, 30)]
POLICIES = [
    "static:batch=32", "orca", "prefill_first", "chunked:budget=256", "chunked:budget=512",
    "chunked:budget=2048", "vllm", "trtllm",
    "trtllm:capacity_scheduler_policy=max_utilization", "tgi", "sglang",
    "triton:preferred_batch_size=32+64:max_queue_delay_us=100000", "xllm", "dynbatch",
]


def replay(tool, trace, cost, arguments):
    """Results of one run of the tool, by policy; "bound" is its bound."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [tool, "replay", "--trace", trace, "--cost", cost, "--max-seqs", "256",
                   "--bound", "--json", out.name] + arguments
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        report = json.load(open(out.name))
        return {r["policy"]: r for r in report["results"]} | {"bound": report["bound"]}


def cell(value, best, refused=0):
    if value > UNLIMITED:
        text = "any"
    else:
        text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    if refused > 0:
        return f"{text} ({refused:,} refused)"
    return f"**{text}**" if best > 0 and value >= 0.99 * best else text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory")
    parser.add_argument("traces", nargs="*", default=TRACES)
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/release/bin/dynbatch"))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--costs", default=",".join(COSTS))
    parser.add_argument("--levels", default=",".join(f"{a}/{b}" for a, b in LEVELS),
                        help="TTFT/TPOT in ms; empty: only tok/s")
    options = parser.parse_args()
    levels = [level.split("/") for level in options.levels.split(",") if level]
    for cost in options.costs.split(","):
        for name in options.traces:
            trace = os.path.join(options.directory, name)
            columns = []
            for ttft, tpot in levels:
                slo = ["--requests", "4000", "--slo", f"ttft:{ttft},tpot:{tpot}"]
                idle = replay(options.tool, trace, cost,
                              slo + ["--policy", "dynbatch", "--rate-scale", "0.001",
                                     "--kv-tokens", "20000000"])
                reached = idle["dynbatch"]["slo_attainment"]
                share = 0.9 if reached >= 0.9 else 0.9 * reached
                title = f"{ttft}/{tpot}" + ("" if reached >= 0.9 else f" * {reached:.0%}")
                found = replay(options.tool, trace, cost,
                               slo + ["--policy", options.policies, "--kv-tokens", "600000",
                                      "--find-capacity", f"{share:.4f}"])
                columns.append((title, {p: r["capacity_req_per_s"] for p, r in found.items()}))
            offline = replay(options.tool, trace, cost,
                             ["--requests", "3000", "--offline", "--policy", options.policies,
                              "--kv-tokens", "600000"])
            columns.append(("tok/s", {p: r["output_throughput"] for p, r in offline.items()}))
            refused = {p: r.get("rejected", 0) for p, r in offline.items()}
            print(f"\n{name}, {cost}\n")
            print("| policy | " + " | ".join(title for title, _ in columns) + " |")
            print("|---" * (len(columns) + 1) + "|")
            best = [max((v or 0.0) for p, v in values.items()
                        if p != "bound" and (title != "tok/s" or refused[p] == 0))
                    for title, values in columns]
            for policy in columns[0][1]:
                row = [cell(values[policy] or 0.0, b if policy != "bound" else 0.0,
                            refused[policy] if title == "tok/s" else 0)
                       for (title, values), b in zip(columns, best)]
                print(f"| {policy} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
