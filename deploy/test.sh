#!/usr/bin/env bash
# Installs missing packages, builds the tree, and runs every test. A second run installs nothing and rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/test.sh [options]

Installs missing packages (Debian 12, as root or with sudo), builds into build/<preset>, runs the tests with ctest, and prints
which tests were skipped and why. The CUDA backend is built with the toolkit and NCCL of the system, or with pinned Python
packages that are installed into build/cuda. The wheel of the Python package is made of the same build with pinned tools in
build/python/env, and tested in build/python/test. If python3.12 or a newer one with headers is on PATH, or WSYNC_PYTHON_ABI3 is
the path of one, the wheel for all versions from 3.12 on is made with the oldest of them and tested with the newest, in
build/python-abi3. If one of these cannot be installed, everything else is built and tested.

  --no-install      install nothing: list the missing packages and stop (without its toolkit the CUDA backend is left out)
  --with-reference  also install the reference libraries (pinned Python packages in a separate environment under build/),
                    generate the golden files again and compare them, and compare the reference model with
                    transformers and the optimizer with torch
  --with-engines    also install vLLM for CPUs, TRL and Ray (pinned Python packages in build/engines-venv, about 800 MB of downloads, 3.5 GB
                    on disk), and test the adapters with real servers and a real training run (about 15 minutes)
  --with-browser    also install Chromium, which the test of the coordinator's web page needs; without it that test is skipped
  --preset NAME     dev (default), release, asan or tsan
  --no-tests        only build, and make the wheels
  --label REGEX     run only tests with this label: unit, contract, scenario, simulation, gpu, python, soak; default: all except soak
  -h, --help        this text

Exit status: 0 every test passed, 1 build or tests failed, 2 wrong arguments, 3 a requirement is missing on this machine.
Examples: deploy/test.sh
          deploy/test.sh --preset asan --label 'unit|contract'
TEXT
}

preset=dev
reference=0
browser=0
engines=0
select=(-LE soak)
tests=1
install=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 install=(--no-install) ;;
    --with-reference) reference=1 ;;
    --with-browser) browser=1 ;;
    --with-engines) engines=1 ;;
    --no-tests) tests=0 ;;
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
python=()
newer=()
newer_pythons=()
# A sanitizer would have to be in the interpreter as well.
if [ "$preset" = dev ] || [ "$preset" = release ]; then
  ensure_python
  mapfile -t python < <(python_options)
  find_newer_pythons
  unset WSYNC_PYTHON_ABI3  # our programs would take it for a misspelt setting
  if [ ${#newer_pythons[@]} -gt 0 ]; then
    newer=("${newer_pythons[0]}" "${newer_pythons[-1]}")
    ensure_python "${newer[@]}"
    mapfile -t abi3 < <(python_options "${newer[@]}")
    if [ ${#abi3[@]} = 0 ]; then newer=(); else python+=("${abi3[@]}"); fi
  else
    say "the wheel for Python 3.12 and newer is neither made nor tested: no python3.12 or newer with its headers is on PATH, and \
WSYNC_PYTHON_ABI3 names none"
  fi
fi
say "building build/$preset"
mkdir -p "$root/build"
configure "$preset" "$root/build/$preset" -DWSYNC_PYTHON=OFF -DWSYNC_PYTHON_ABI3= "${python[@]}" || die 1 "configuring failed"
build "$root/build/$preset" || die 1 "the build failed"
if [ "${python[0]:-}" = -DWSYNC_PYTHON=ON ]; then
  say "making the wheel of the Python package"
  "$root/deploy/python/build.sh" "${install[@]}" --build-dir "$root/build/$preset" --test-environment ||
    die 1 "there is no wheel; see above"
fi
if [ ${#newer[@]} -gt 0 ]; then
  say "making the wheel for Python 3.12 and newer"
  "$root/deploy/python/build.sh" "${install[@]}" --build-dir "$root/build/$preset" --test-environment --python "${newer[0]}" \
    --test-python "${newer[1]}" || die 1 "there is no wheel for Python 3.12 and newer; see above"
fi
[ "$tests" = 1 ] || exit 0
say "testing"
passed=1
run_ctest "$root/build/$preset" "${select[@]}" || passed=0
say_cuda "$root/build/$preset"
[ "$passed" = 1 ] || die 1 "tests failed; see above and build/$preset/Testing/Temporary/LastTest.log"
if [ "$engines" = 1 ]; then
  [ "${python[0]:-}" = -DWSYNC_PYTHON=ON ] || die 3 "--with-engines needs the wheel of the Python package, which was not made; see above"
  say "real engines"
  "$root/tests/engines/run.sh" || die 1 "the adapters do not work with the real engines; see above"
fi
if [ "$reference" = 1 ]; then
  say "reference libraries"
  "$root/tests/reference/run.sh" "build/$preset" || die 1 "results differ from the reference libraries; see above"
fi
