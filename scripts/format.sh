#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all C++ and CUDA files with clang-format-19; with --check only says which files differ.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! command -v clang-format-19 > /dev/null; then
  echo "clang-format-19 is missing: scripts/setup.sh installs it" >&2
  exit 1
fi
files() {
  find include src cuda tests examples benchmarks -type f \
    \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0
}
if [ "${1:-}" != --check ]; then
  files | xargs -0 -r clang-format-19 -i
elif ! report=$(files | xargs -0 -r clang-format-19 --dry-run -Werror 2>&1); then
  echo "not formatted (scripts/format.sh does it):"
  sed -n 's/:[0-9]*:[0-9]*: error: .*//p' <<< "$report" | sort -u
  exit 1
fi
