#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counts the instructions of plan() + commit() a decode step with callgrind, over contexts, pools and
# waiting requests, and checks that they are flat: no cell costs over 5 % more than the cheapest one
# with as many rows. Unlike times, the counts are the same on a busy machine.
# Usage: benchmarks/plan_commit_instructions.sh [bench_scheduler]
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bench=${1:-$root/build/release/bin/bench_scheduler}
[ -x "$bench" ] || { echo "no $bench: cmake --preset release && cmake --build --preset release"; exit 2; }
command -v valgrind > /dev/null || { echo "valgrind is not installed"; exit 2; }
steps=256
worst=0
printf '%-10s %-10s %-10s %-10s %s\n' running context pool waiting 'instructions a step (a row)'
for running in 256 1024; do
  least=
  for cell in '512 300000 0' '512 300000 10000' '512 4000000 0' '4096 300000 0' '4096 300000 10000' \
              '4096 4000000 10000' '32768 4000000 0' '32768 4000000 10000'; do
    read -r context pool waiting <<< "$cell"
    name="BM_PlanCommit/running:$running/context:$context/block:16/waiting:$waiting/pool:$pool/iterations"
    log=$(mktemp)
    DYNBATCH_BENCH_ONCE=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
      --toggle-collect='*timed_plan*' --toggle-collect='*timed_commit*' \
      "$bench" --benchmark_filter="$name" > /dev/null 2> "$log" || { cat "$log"; exit 1; }
    total=$(sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' "$log")
    rm -f "$log"
    count=$((total / steps))
    printf '%-10s %-10s %-10s %-10s %s (%s)\n' "$running" "$context" "$pool" "$waiting" "$count" \
      "$((count / running))"
    [ -n "$least" ] && [ "$least" -le "$count" ] || least=$count
    most=${most:-0}
    [ "$count" -le "$most" ] || most=$count
  done
  spread=$(((most - least) * 1000 / least))
  echo "running $running: spread $((spread / 10)).$((spread % 10)) %"
  [ "$spread" -le "$worst" ] || worst=$spread
  most=0
done
[ "$worst" -le 50 ] || { echo 'not flat within 5 %'; exit 1; }
