#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No file of the tree names a place on somebody's machine.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if files=$(git ls-files -z --cached --others --exclude-standard 2>/dev/null | tr '\0' '\n') &&
   [ -n "$files" ]; then
  :
else
  files=$(find . -name .git -prune -o -path ./build -prune -o -type f -print)
fi
# A bracket in each pattern, so that this file doesn't find itself.
pattern='(^|[^A-Za-z0-9_.])/(wor[k]|hom[e]|roo[t]|User[s])/[A-Za-z0-9_.]'
found=$(while read -r file; do
  [ -f "$file" ] && grep -InHE "$pattern" "$file" || true
done <<< "$files")
if [ -n "$found" ]; then
  echo "paths of one machine in the tree:"
  echo "$found"
  exit 1
fi
