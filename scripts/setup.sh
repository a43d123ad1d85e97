#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing, as root or through sudo; prints nothing if none is.
#   scripts/setup.sh build    what building and running needs
#   scripts/setup.sh          that, and what scripts/test.sh needs
set -eu

# package:command says that any installed `command` will do.
packages=(g++:g++ cmake:cmake ninja-build:ninja libfmt-dev nlohmann-json3-dev libcli11-dev
  libbenchmark-dev)
case "${1:-all}" in
  build) ;;
  all)
    packages+=(catch2 ccache:ccache clang-19:clang++-19 llvm-19:llvm-symbolizer-19
      libclang-rt-19-dev clang-format-19:clang-format-19 clang-tidy-19:clang-tidy-19
      valgrind:valgrind git:git)
    ;;
  *)
    echo "usage: scripts/setup.sh [build|all]" >&2
    exit 2
    ;;
esac

missing=()
for entry in "${packages[@]}"; do
  package=${entry%%:*}
  if [ "$entry" != "$package" ] && command -v "${entry#*:}" > /dev/null; then
    continue
  fi
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing+=("$package")
  fi
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get > /dev/null; then
  echo "This script knows Debian's packages only. Please install: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "Please install, as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -qq \
    -o DPkg::Lock::Timeout=300 --no-install-recommends install "${missing[@]}" > "$log" 2>&1
}
# The lists of a fresh machine are empty or old; fetched only if that shows.
if ! install && { ! "${as_root[@]}" apt-get -qq update >> "$log" 2>&1 || ! install; }; then
  tail -n 20 "$log" >&2
  echo "installing packages failed" >&2
  exit 1
fi
