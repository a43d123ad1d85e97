#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# example_output.sh PROGRAM SOURCE: the program succeeds and, if the source has a comment line
# "// Output:", prints exactly the comment lines below it.
set -eu
program=$1
source=$2
if ! actual=$("$program" 2>&1); then
  echo "$program failed and printed:"
  echo "$actual"
  exit 1
fi
grep -q '^// Output:$' "$source" || exit 0
expected=$(awk '/^\/\/ Output:$/ { inside = 1; next } inside && !/^\/\// { exit }
                inside { sub(/^\/\/ ?/, ""); sub(/^ +$/, ""); print }' "$source")
# The comment's indentation below "Output:" belongs to the comment.
indent=$(awk 'NF { match($0, /^ */); if (!seen++ || RLENGTH < least) least = RLENGTH }
              END { print least + 0 }' <<< "$expected")
expected=$(cut -c $((indent + 1))- <<< "$expected")
if [ "$actual" != "$expected" ]; then
  echo "$source promises another output (< promised, > printed):"
  diff <(echo "$expected") <(echo "$actual") || true
  exit 1
fi
