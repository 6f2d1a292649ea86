#!/usr/bin/env bash
# Installs what is missing, builds the tree, and runs every test. A second run installs nothing and rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/test.sh [options]

Installs what is missing (Debian 12, as root or with sudo), builds into build/<preset>, runs the tests by ctest, and says
which tests were skipped and why. The CUDA backend is built with the toolkit and NCCL of the system, or with pinned Python
packages that are installed into build/cuda; where these cannot be had, everything else is built and tested.

  --no-install      install nothing: list what is missing and stop (the CUDA backend is left out without its toolkit)
  --with-reference  also set up the reference libraries (Python, pinned, in an environment of their own under build/),
                    make the golden files anew with them, compare, and hold the reference model to
                    transformers and the optimizer to torch
  --with-browser    also install Chromium, in which the coordinator's web page is looked at; without one that test is skipped
  --preset NAME     dev (default), release, asan or tsan
  --label REGEX     only tests with this label: unit, contract, scenario, simulation, gpu, soak; without it, all but soak
  -h, --help        this text

Exit status: 0 every test passed, 1 build or tests failed, 2 wrong arguments, 3 something is missing on this machine.
Examples: deploy/test.sh
          deploy/test.sh --preset asan --label 'unit|contract'
TEXT
}

preset=dev
reference=0
browser=0
select=(-LE soak)
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    --with-reference) reference=1 ;;
    --with-browser) browser=1 ;;
    --preset | --label)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      if [ "$1" = --preset ]; then preset=$2; else select=(-L "$2"); fi
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done
case $preset in
  dev | release | asan | tsan) ;;
  *) die 2 "unknown preset '$preset'; expected dev, release, asan or tsan" ;;
esac

needs=("$build_needs" "$test_needs")
[ "$browser" = 0 ] || needs+=("$browser_needs")
[ "$reference" = 0 ] || needs+=("$environment_needs")
ensure "${needs[@]}"
ensure_cuda
say "building build/$preset"
mkdir -p "$root/build"
configure "$preset" || die 1 "configuring failed"
build "$root/build/$preset" || die 1 "the build failed"
say "testing"
passed=1
run_ctest "$root/build/$preset" "${select[@]}" || passed=0
say_cuda "$root/build/$preset"
[ "$passed" = 1 ] || die 1 "tests failed; see above and build/$preset/Testing/Temporary/LastTest.log"
if [ "$reference" = 1 ]; then
  say "reference libraries"
  "$root/tests/reference/run.sh" "build/$preset" || die 1 "the reference libraries disagree; see above"
fi
