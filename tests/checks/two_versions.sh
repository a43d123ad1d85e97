#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# two_versions.sh PROGRAM OBJECT OBJECT: the program runs, and the two objects share no symbol of
# dynbatch, so that the linker never picks one version's code for the other one.
set -eu
"$1"
symbols() {
  nm -C --defined-only "$1" | awk '$2 ~ /^[TWVBDRu]$/ { $1 = ""; $2 = ""; print }' |
    grep -E '^ *(dynbatch::|(vtable|typeinfo|typeinfo name|guard variable) for dynbatch::)' | sort -u
}
shared=$(comm -12 <(symbols "$2") <(symbols "$3"))
echo "$(symbols "$2" | wc -l) and $(symbols "$3" | wc -l) symbols"
if [ -n "$shared" ]; then
  echo "symbols of both versions:"
  echo "$shared"
  exit 1
fi
[ "$(symbols "$2" | wc -l)" -gt 0 ]
