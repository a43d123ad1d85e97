#!/usr/bin/env bash
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cmake --preset dev >/dev/null && cmake --build --preset dev >/dev/null && ctest --preset dev
