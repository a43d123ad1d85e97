#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh DEV_BUILD CUDA_BUILD WORK: builds each consumer project against the installed, the built and
# the source tree. Prints one line PASS, FAIL or SKIPPED a consumer; a failure's output comes before
# its line. CUDA_BUILD may be empty.
set -u
dev_build=$1
cuda_build=$2
work=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
failures=0
common=(-G Ninja -D CMAKE_BUILD_TYPE=Debug -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)

report() {  # report RC NAME LOG
  if [ "$1" = 0 ]; then
    echo "PASS consumer.$2"
  else
    sed 's/^/    /' "$3"
    echo "FAIL consumer.$2"
    failures=$((failures + 1))
  fi
}

# builds NAME PROJECT cmake-arguments...: configures, builds, runs.
builds() {
  local name=$1 project=$2
  shift 2
  local build=$work/$name log=$work/$name.log
  rm -rf "$build"
  { cmake -S "$here/$project" -B "$build" "${common[@]}" "$@" &&
    cmake --build "$build" --target consumer && "$build/consumer"; } > "$log" 2>&1
  report $? "$name" "$log"
}

# refuses NAME PROJECT TEXT cmake-arguments...: configuring fails and says TEXT.
refuses() {
  local name=$1 project=$2 text=$3
  shift 3
  local build=$work/$name log=$work/$name.log rc=1
  rm -rf "$build"
  if cmake -S "$here/$project" -B "$build" "${common[@]}" "$@" > "$log" 2>&1; then
    echo "configured, although it had to fail with: $text" >> "$log"
  elif tr -s ' \n' ' ' < "$log" | grep -qF -- "$text"; then
    rc=0
  else
    echo "the text is missing: $text" >> "$log"
  fi
  report $rc "$name" "$log"
}

# installs BUILD PLACE [component...]: installs to another folder first, then moves the tree.
installs() {
  local build=$1 place=$2 component
  shift 2
  rm -rf "$work/before" "$place"
  if [ $# = 0 ]; then
    cmake --install "$build" --prefix "$work/before" || return
  fi
  for component in "$@"; do
    cmake --install "$build" --prefix "$work/before" --component "$component" || return
  done
  mv "$work/before" "$place"
}

mkdir -p "$work"
no_third_parties=(-D CMAKE_DISABLE_FIND_PACKAGE_fmt=ON -D CMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
  -D CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)

installed=$work/moved
installs "$dev_build" "$installed" > "$work/install.log" 2>&1
report $? install "$work/install.log"
if grep -rnI -e "$root" -e "$work/before" "$installed" > "$work/relocatable.log"; then
  report 1 relocatable "$work/relocatable.log"
else
  report 0 relocatable "$work/relocatable.log"
fi
builds find_package_headers headers -D CMAKE_PREFIX_PATH="$installed" "${no_third_parties[@]}"
builds build_tree headers -D dynbatch_DIR="$dev_build" "${no_third_parties[@]}"
builds find_package_laws laws -D CMAKE_PREFIX_PATH="$installed" "${no_third_parties[@]}"
builds add_subdirectory add_subdirectory -D dynbatch_source="$root"
builds fetch_content fetch_content -D FETCHCONTENT_SOURCE_DIR_DYNBATCH="$root" "${no_third_parties[@]}"
refuses cuda_missing cuda "component cuda not found: this dynbatch was built without CUDA" \
  -D CMAKE_PREFIX_PATH="$installed"

if compgen -G "$installed/lib*/libdynbatch.*" > /dev/null ||
   compgen -G "$installed/lib/*/libdynbatch.*" > /dev/null; then
  builds find_package_static compiled -D CMAKE_PREFIX_PATH="$installed"
  refuses static_without_fmt compiled "needs the package fmt, which was not found" \
    -D CMAKE_PREFIX_PATH="$installed" "${no_third_parties[@]}"
  shared_build=$work/shared-build
  shared=$work/shared
  { cmake -S "$root" -B "$shared_build" -G Ninja -D CMAKE_BUILD_TYPE=None -D CMAKE_CXX_FLAGS=-O1 \
      -D BUILD_SHARED_LIBS=ON -D DYNBATCH_CUDA=OFF -D DYNBATCH_BUILD_TESTS=OFF \
      -D DYNBATCH_BUILD_EXAMPLES=OFF -D DYNBATCH_BUILD_BENCHMARKS=OFF -D DYNBATCH_BUILD_DOCS=OFF &&
    cmake --build "$shared_build" && installs "$shared_build" "$shared"; } > "$work/shared.log" 2>&1
  rc=$?
  report $rc build_shared "$work/shared.log"
  if [ $rc = 0 ]; then
    builds find_package_shared compiled -D CMAKE_PREFIX_PATH="$shared" "${no_third_parties[@]}"
  fi
else
  echo "SKIPPED: consumer.compiled, the compiled library isn't built"
fi

if [ -n "$cuda_build" ]; then
  # The components are installed each for itself; the rest of this build may not even be built.
  installs "$cuda_build" "$work/moved-cuda" headers cuda > "$work/install.log" 2>&1
  report $? install_cuda "$work/install.log"
  builds find_package_cuda cuda -D CMAKE_PREFIX_PATH="$work/moved-cuda"
  refuses cuda_without_toolkit cuda "it needs the CUDA toolkit, which was not found" \
    -D CMAKE_PREFIX_PATH="$work/moved-cuda" "${no_third_parties[@]}"
else
  echo "SKIPPED: consumer.find_package_cuda, no CUDA compiler here"
fi
exit $((failures > 0))
