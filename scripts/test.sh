#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test there is: two compilers, sanitizers, no exceptions, consumers, format, CUDA.
#   scripts/test.sh             all stages
#   scripts/test.sh --long      also clang-tidy, and the long form of the tests (DYNBATCH_LONG=1)
#   scripts/test.sh dev asan    these stages only
# One line a stage; what a failed stage printed is shown and kept. Last line: the counts.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
jobs=$(nproc)
results=$root/build/test
all_stages=(dev clang19 digests asan tsan noexcept format cuda consumers)

stages=()
for argument in "$@"; do
  case $argument in
    --long)
      export DYNBATCH_LONG=1
      all_stages+=(tidy)
      ;;
    -h | --help)
      sed -n '3,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      if ! grep -q "^stage_$argument()" "${BASH_SOURCE[0]}"; then
        echo "no stage '$argument'; there are: ${all_stages[*]} tidy" >&2
        exit 2
      fi
      stages+=("$argument")
      ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")

# Without these two, ccache finds nothing that another clone has compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
symbolizer=$(command -v llvm-symbolizer-19 || true)
export ASAN_OPTIONS=external_symbolizer_path=$symbolizer
export TSAN_OPTIONS=external_symbolizer_path=$symbolizer
export UBSAN_OPTIONS=print_stacktrace=1:external_symbolizer_path=$symbolizer

# ---- what a stage is made of; all of it prints to the stage's log -------------------------------

# Counts go through a file, because a stage runs in a subshell.
count() {  # count PASSED FAILED SKIPPED
  echo "$1 $2 $3" >> "$counts"
}

check() {  # check NAME command...: one thing that passes or fails
  local name=$1
  shift
  echo "== $name"
  if "$@"; then
    count 1 0 0
  else
    echo "== FAILED: $name"
    count 0 1 0
  fi
}

skip() {  # skip NAME REASON
  echo "SKIPPED: $1, $2"
  count 0 0 1
}

configure() {
  if ! cmake --preset "$1"; then
    count 0 1 0
    return 1
  fi
}

# build PRESET target...: everything that can be built is, in spite of errors.
build() {
  local preset=$1
  shift
  if ! cmake --build --preset "$preset" --parallel "$jobs" --target "$@" -- -k 0; then
    echo "== FAILED: building $*"
    count 0 1 0
  fi
}

# run_ctest PRESET: counts each test, then checks that ctest knows all the test cases there are.
run_ctest() {
  local preset=$1 out=$results/ctest-$1.txt
  ctest --preset "$preset" --parallel "$jobs" 2>&1 | tee "$out"
  awk '/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
         if (/ Passed +[0-9.]+ sec/) p++; else if (/\*\*\*Skipped/) s++; else f++ }
       END { print p + 0, f + 0, s + 0 }' "$out" >> "$counts"
  check "number of test cases of $preset" same_number_of_tests "$preset"
}

same_number_of_tests() {
  local preset=$1 listed=0 known program
  for program in "build/$preset/bin"/test_*; do
    [ -x "$program" ] || continue
    listed=$((listed + $("$program" --list-test-names-only | wc -l)))
  done
  known=$(ctest --test-dir "build/$preset" -N -L '^(catch|cuda)$' | sed -n 's/^Total Tests: //p')
  echo "test programs list $listed test cases, ctest knows $known"
  [ "$listed" = "$known" ]
}

# ---- the stages -------------------------------------------------------------------------------

compiler_stage() {
  configure "$1" || return
  build "$1" all
  check "header self-containment" \
    cmake --build --preset "$1" --parallel "$jobs" --target all_verify_interface_header_sets
  run_ctest "$1"
}

stage_dev() { compiler_stage dev; }

stage_clang19() { compiler_stage clang19; }

# Law 7: the same inputs give the same plans under both compilers.
stage_digests() {
  if [ ! -f tests/support/plan_digest.cpp ]; then
    skip digests "tests/support/plan_digest.cpp does not exist yet"
    return
  fi
  local preset
  for preset in dev clang19; do
    [ -x build/$preset/bin/plan_digest ] || { configure $preset && build $preset plan_digest; }
    check "plan digests of $preset" sh -c \
      "build/$preset/bin/plan_digest > '$results/digest-$preset.txt' && [ -s '$results/digest-$preset.txt' ]"
  done
  check "the same plan digests from both compilers" \
    diff "$results/digest-dev.txt" "$results/digest-clang19.txt"
}

stage_asan() {
  configure asan || return
  build asan all
  run_ctest asan
}

stage_tsan() {
  if ! compgen -G "tests/threaded/*.cpp" > /dev/null; then
    skip tsan "tests/threaded has no test yet"
    return
  fi
  configure tsan || return
  build tsan test_threaded
  run_ctest tsan
}

stage_noexcept() {
  configure noexcept || return
  build noexcept all
  check "header self-containment without exceptions" \
    cmake --build --preset noexcept --parallel "$jobs" --target all_verify_interface_header_sets
  check "headers by clang without exceptions" headers_by_clang
  if compgen -G "tests/noexcept/*.cpp" > /dev/null; then
    run_ctest noexcept
  else
    skip noexcept "tests/noexcept has no test yet"
  fi
}

headers_by_clang() {
  (cd include && find dynbatch -name '*.hpp' | sort | sed 's/.*/#include <&>/') |
    clang++-19 -std=c++20 -fsyntax-only -fno-exceptions -fno-rtti -Wall -Wextra -Werror -I include \
      -x c++ -
}

stage_format() { check format scripts/format.sh --check; }

stage_cuda() {
  local out=$results/configure-cuda.txt
  if ! cmake --preset cuda > "$out" 2>&1; then
    cat "$out"
    if grep -q "no CUDA compiler was found" "$out"; then
      skip cuda "no CUDA compiler here"
    else
      count 0 1 0
    fi
    return
  fi
  build cuda dynbatch_cuda test_cuda
  run_ctest cuda
}

stage_consumers() {
  local out=$results/consumers.txt cuda_build=""
  [ -x build/dev/bin/test_base ] || { configure dev && build dev all; }
  ! compgen -G "build/cuda/*/libdynbatch_cuda.*" > /dev/null || cuda_build=$root/build/cuda
  tests/consumers/run.sh "$root/build/dev" "$cuda_build" "$root/build/consumers" 2>&1 | tee "$out"
  awk '/^PASS / { p++ } /^FAIL / { f++ } /^SKIPPED: / { s++ } END { print p + 0, f + 0, s + 0 }' \
    "$out" >> "$counts"
}

stage_tidy() {
  configure clang19 || return
  check clang-tidy sh -c "find src examples tests/unit tests/checks cuda -name '*.cpp' -print0 |
    xargs -0 -r -n 1 -P $jobs clang-tidy-19 -p build/clang19 --quiet --warnings-as-errors='*'"
}

# ---- running them -------------------------------------------------------------------------------

child=""
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; echo; echo interrupted; exit 130' INT TERM

# Shows the last line of the log while a stage runs, on a terminal only.
watch() {  # watch PID NAME LOG
  local start=$SECONDS line width
  while kill -0 "$1" 2>/dev/null; do
    line=$(tail -n 1 "$3" 2>/dev/null | tr -d '\r\n\033')
    width=$(($(tput cols 2>/dev/null || echo 80) - 24))
    printf '\r\033[K%-10s %5d s  %s' "$2" $((SECONDS - start)) "${line:0:$width}"
    sleep 0.5
  done
  printf '\r\033[K'
}

"$root/scripts/setup.sh" || exit 1
if command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
rm -rf "$results"
mkdir -p "$results"
passed=0
failed=0
skipped=0
for name in "${stages[@]}"; do
  log=$results/$name.log
  counts=$results/$name.counts
  : > "$counts"
  start=$SECONDS
  "stage_$name" > "$log" 2>&1 < /dev/null &
  child=$!
  [ ! -t 1 ] || watch $child "$name" "$log"
  wait $child
  child=""
  read -r p f s < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
  if [ $((p + f + s)) = 0 ]; then
    echo "== FAILED: stage $name ended without a result" >> "$log"
    f=1
  fi
  printf '%-10s %5d s  %d passed, %d failed, %d skipped\n' "$name" $((SECONDS - start)) "$p" "$f" "$s"
  if [ "$f" != 0 ]; then
    grep -nE '^== FAILED|\*\*\*(Failed|Exception|Timeout|Not Run)|^FAIL |(error|Error): ' "$log" |
      head -n 20 | cut -c 1-200 | sed 's/^/    /'
    echo "    ... the end of the log:"
    tail -n 30 "$log" | cut -c 1-200 | sed 's/^/    /'
    echo "    the whole log: $log"
  fi
  passed=$((passed + p))
  failed=$((failed + f))
  skipped=$((skipped + s))
done

grep -h '^SKIPPED: \|\*\*\*Skipped' "$results"/*.log 2>/dev/null |
  sed -E 's/^SKIPPED: //; s/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: //; s/ \.*\*\*\*Skipped.*//' |
  sort | uniq -c | sort -rn > "$results/skipped.txt"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
