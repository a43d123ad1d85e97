#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file names its licence in the first two lines, and every public header has #pragma
# once and one \file sentence.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bad=0
complain() {
  echo "$1"
  bad=1
}
while read -r file; do
  head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
    complain "$file: no SPDX-License-Identifier line"
done < <(find include src cuda examples benchmarks tests cmake scripts -type f \
  \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cmake' \
     -o -name '*.sh' -o -name CMakeLists.txt \))
while read -r file; do
  grep -q '^#pragma once$' "$file" || complain "$file: no #pragma once"
  [ "$(grep -c '\\file' "$file")" = 1 ] || complain "$file: not exactly one \\file line"
done < <(find include -name '*.hpp')
exit $bad
