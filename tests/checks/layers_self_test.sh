#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The layer check must find what it exists for: each offence is planted alone and has to be named
# with file and line.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# plant FILE INCLUDE EXPECTED: one header with one include; EXPECTED is a piece of the report, or ""
# if the include is allowed.
plant() {
  rm -rf "$tree/dynbatch"
  mkdir -p "$tree/dynbatch/$(dirname "$1")"
  for header in base/a model/a concepts/a overlap/a batch/a kv/a kv/detail/a scheduler/a sim/a; do
    mkdir -p "$tree/dynbatch/$(dirname $header)"
    touch "$tree/dynbatch/$header.hpp"
  done
  printf '#pragma once\n#include %s  // why\n' "$2" > "$tree/dynbatch/$1"
  local report
  if report=$(cmake -D include_dir="$tree" -P "$here/layers.cmake" 2>&1); then
    [ -z "$3" ] && return
  elif [ -n "$3" ] && grep -qF -- "include/dynbatch/$1:2" <<< "$report" &&
       tr -s ' \n' ' ' <<< "$report" | grep -qF -- "$3"; then
    return
  fi
  echo "include of $2 in $1: expected '${3:-no offence}', got: $report"
  failures=$((failures + 1))
}

plant base/x.hpp '<dynbatch/model/a.hpp>' 'not below this header'
plant kv/x.hpp '<dynbatch/batch/a.hpp>' 'not below this header'
plant scheduler/x.hpp '<dynbatch/sim/a.hpp>' 'not below this header'
plant scheduler/x.hpp '<dynbatch/kv/detail/a.hpp>' 'private to its layer'
plant cuda/x.hpp '<dynbatch/concepts/a.hpp>' 'not below this header'
plant strange/x.hpp '<dynbatch/base/a.hpp>' 'unknown layer'
plant sim/x.hpp '<fmt/format.h>' 'not a header of standard C++'
plant model/x.hpp '<functional>' 'too heavy'
plant sim/x.hpp '<dynbatch/base/gone.hpp>' 'does not exist'
plant kv/x.hpp '<dynbatch/kv/detail/a.hpp>' ''
plant laws/x.hpp '<dynbatch/scheduler/a.hpp>' ''
plant x.hpp '<dynbatch/sim/a.hpp>' ''
exit $((failures > 0))
