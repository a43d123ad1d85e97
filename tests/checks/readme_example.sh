#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example in README.md is the marked core of examples/01_hello_scheduler.cpp, so that what people
# copy has been compiled and run.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
example=examples/01_hello_scheduler.cpp
for file in README.md $example; do
  if [ ! -f "$file" ]; then
    echo "SKIPPED: $file does not exist yet"
    exit 0
  fi
done

# Both without their common indentation.
dedent() {
  awk '{ lines[NR] = $0
         if ($0 ~ /[^ ]/) { match($0, /^ */); if (NR == 1 || RLENGTH < least) least = RLENGTH } }
       END { for (i = 1; i <= NR; i++) print substr(lines[i], least + 1) }'
}
core=$(awk '/^ *\/\/ \[readme\]/ { inside = !inside; next } inside' $example | dedent)
if [ -z "$core" ]; then
  echo "$example has no lines between two // [readme] marks"
  exit 1
fi
num_blocks=$(grep -c '^```cpp' README.md || true)
for i in $(seq 1 "$num_blocks"); do
  block=$(awk -v want="$i" '/^```cpp/ { n++; inside = (n == want); next } /^```/ { inside = 0 } inside' \
    README.md | dedent)
  [ "$block" = "$core" ] && exit 0
done
echo "no \`\`\`cpp block of README.md equals the marked lines of $example:"
block=$(awk '/^```cpp/ { n++; inside = (n == 1); next } /^```/ { inside = 0 } inside' README.md)
diff <(echo "$block") <(echo "$core") || true
exit 1
