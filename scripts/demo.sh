#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: builds dynbatch, replays one workload under three policies, and serves
# another one in real time on a tiny engine. Needs no data, no GPU and no arguments.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

scripts/setup.sh build
mkdir -p build/demo
log=build/demo/build.log
[ ! -t 1 ] || printf 'building (a minute or two the first time) ...'
if ! { cmake --preset release && cmake --build --preset release --target dynbatch_tool \
       engine_demo; } \
     > "$log" 2>&1; then
  echo
  tail -n 30 "$log"
  echo "the build failed; all of its output: $root/$log"
  exit 1
fi
[ ! -t 1 ] || printf '\r\033[K'

cat <<'TXT'
One workload, three schedulers, the same simulated engine:
  static    request-level batches of 32: a batch is padded, and ends with its longest request
  chunked   continuous batching with chunked prefill under a token budget (the rules of vLLM V1)
  dynbatch  this library's default: the batch is sized from memory, latency and queue, every step

TXT
build/release/bin/dynbatch replay --policy static:batch=32,chunked:budget=2048,dynbatch \
  --json build/demo/replay.json
cat <<TXT

Throughput: more is better. TTFT (time to first token) and TPOT (time per output token after it):
less is better; p99 is what one request in a hundred exceeds. The step times come from a cost model
fitted to a real engine, the scheduler is the one that runs in production.
All figures as JSON: $root/build/demo/replay.json
More: build/release/bin/dynbatch replay --help

And in real time (ten seconds): a tiny mixture-of-experts engine on one core of this machine serves
requests as they arrive, at four fifths of what it can do.
  static    request-level batches of 16, padded to their end, as engines of fixed shapes run them
  dynbatch  the default
"scheduler" is the share of the busy time that planning, committing and polling take.

TXT
build/release/bin/engine_demo
cat <<TXT

The schedule changes when tokens come, never which. How that is proven, and the engine: docs/engine.md
TXT
