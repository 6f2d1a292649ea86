#!/usr/bin/env bash
# Everything that needs a GPU, in one command: builds for this machine, runs the GPU tests, runs them again under
# compute-sanitizer, and measures.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"

usage() {
  cat <<'TEXT'
Usage: bench/gpu.sh [options] [-- ARGUMENTS OF wsync bench gpu]

On a machine with an NVIDIA GPU: configures a release build with WSYNC_CUDA=ON, builds it, runs the tests with the label gpu
(and the tests of the kernels' source), runs them under compute-sanitizer (memcheck, racecheck, initcheck, synccheck) if that is
in PATH, and runs `wsync bench gpu`. Prints the table and writes the result to bench/results/<date>-gpu-<name of the GPU>.json.
Needs no network and installs nothing.

  --prefix DIR      directory of libraries and headers that the system does not have (CMAKE_PREFIX_PATH); may be repeated
  --cuda-home DIR   directory of the CUDA toolkit, if it is not found (contains bin/nvcc)
  --nccl-home DIR   directory of NCCL, if it is not found (contains include/nccl.h)
  --build DIR       build directory (default: build/gpu)
  --output DIR      directory for the result (default: bench/results)
  --no-tests        only measure
  --no-sanitizer    do not run compute-sanitizer
  -h, --help        this text

Exit status: 0 tests passed and the benchmark ran (its table shows whether targets were met), 1 build, tests or benchmark
failed, 2 wrong arguments, 3 a requirement is missing on this machine.
Examples: bench/gpu.sh
          bench/gpu.sh --prefix "$CONDA_PREFIX" -- --gpus 0 --devices 1,2
TEXT
}

prefixes=()
cache=()
folder=$root/build/gpu
output=$root/bench/results
tests=1
sanitizer=1
while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --cuda-home | --nccl-home | --build | --output)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      case $1 in
        --prefix) prefixes+=("$2") ;;
        --cuda-home) cache+=("-DCUDA_HOME=$2") ;;
        --nccl-home) cache+=("-DNCCL_HOME=$2") ;;
        --build) folder=$2 ;;
        --output) output=$2 ;;
      esac
      shift
      ;;
    --no-tests) tests=0 ;;
    --no-sanitizer) sanitizer=0 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done
bench=("$@")

for prefix in "${prefixes[@]}"; do
  [ -d "$prefix" ] || die 2 "--prefix $prefix is not a directory"
  prefix=$(cd "$prefix" && pwd -P)
  for place in lib "lib/$(uname -m)-linux-gnu" lib64 share; do
    PKG_CONFIG_PATH=$prefix/$place/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  done
  export PKG_CONFIG_PATH
  export CMAKE_PREFIX_PATH=$prefix${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  # Headers that no package file names.
  export CPLUS_INCLUDE_PATH=$prefix/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
  export PATH=$prefix/bin:$PATH
done
for tool in cmake ninja g++ python3; do
  command -v "$tool" >/dev/null || die 3 "$tool is not in PATH; install it, or give its location with --prefix (DIR/bin is searched)"
done
# Checked first, because the build takes minutes.
driver=$(python3 - 2>&1 <<'PYTHON'
import ctypes, os, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"the NVIDIA driver is not installed: {error}; install it (in a container: start the container with the host's GPUs, such as --gpus all)")
count, code = ctypes.c_int(), cuda.cuInit(0)
if code == 0:
    code = cuda.cuDeviceGetCount(ctypes.byref(count))
visible = "CUDA_VISIBLE_DEVICES is " + os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
if code not in (0, 100):  # CUDA_ERROR_NO_DEVICE
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    sys.exit(f"the NVIDIA driver cannot be used: cuInit fails with {code} ({(name.value or b'unknown').decode()}); check the output of nvidia-smi and dmesg")
if code == 100 or count.value == 0:
    sys.exit(f"the NVIDIA driver finds no GPU ({visible}); compare with the list of nvidia-smi")
PYTHON
) || die 3 "$(tail -n 1 <<<"$driver")"

folder=$(mkdir -p "$folder" && cd "$folder" && pwd -P)
output=$(mkdir -p "$output" && cd "$output" && pwd -P)
say "configuring $folder (release, WSYNC_CUDA=ON)"
configure release "$folder" -DWSYNC_CUDA=ON -DWSYNC_BUILD_BENCH=ON "-DWSYNC_BUILD_TESTS=$tests" "${cache[@]}" ||
  die 3 "configuring failed: the lines above name the missing parts; give their location with --prefix, --cuda-home or --nccl-home"
sed -n '/CUDA backend/,/kernels/p' "$folder.log"

# under_sanitizer TOOL: the tests with the label gpu, each a line for a shell that runs it under compute-sanitizer.
under_sanitizer() {
  ctest --test-dir "$folder" -L '^gpu$' --show-only=json-v1 | python3 -c '
import json, shlex, sys
for test in json.load(sys.stdin)["tests"]:
    if not test.get("command"):
        sys.exit(test["name"] + " is not built")
    environment = [pair for known in test["properties"] if known["name"] == "ENVIRONMENT" for pair in known["value"]]
    print(shlex.join(["env", *environment, "compute-sanitizer", "--tool", sys.argv[1], "--target-processes", "all",
                      "--error-exitcode", "9", *test["command"]]))' "$1"
}

targets=(wsync wsync-bench wsync-engine wsync_cuda)
[ "$tests" = 0 ] || targets+=(unit_device tests_gpu)
say "building"
build "$folder" "${targets[@]}" || die 1 "the build failed"

failed=()
if [ "$tests" = 1 ]; then
  say "testing: the kernels' source on the host, and everything with the label gpu"
  run_ctest "$folder" -R '^unit_device$' || failed+=("unit_device")
  run_ctest "$folder" -L '^gpu$' || failed+=("tests with the label gpu")
fi
if [ "$tests" = 1 ] && [ "$sanitizer" = 1 ]; then
  if ! command -v compute-sanitizer >/dev/null; then
    say "compute-sanitizer is not in PATH, so the tests are not run under it (it is part of the CUDA toolkit)"
  else
    for tool in memcheck racecheck initcheck synccheck; do
      commands=$(under_sanitizer "$tool") || die 1 "the tests with the label gpu cannot be listed"
      while read -r command; do
        say "$command"
        bash -c "$command" </dev/null || failed+=("$command")
      done <<<"$commands"
    done
  fi
fi

say "measuring"
result=$folder/bench-gpu.json
rm -f "$result"
code=0
"$folder/deploy/cli/wsync" bench gpu --output "$result" "${bench[@]}" || code=$?
[ "$code" != 3 ] || exit 3
[ "$code" = 0 ] || die 1 "wsync bench gpu failed"
name=$(python3 - "$result" <<'PYTHON'
import json, re, sys
result = json.load(open(sys.argv[1]))["suites"][0]["details"]
print("" if result["emulated"] else re.sub("[^a-z0-9]+", "-", result["cuda"]["gpus"][0]["name"].lower()).strip("-"))
PYTHON
)
if [ -z "$name" ]; then
  say "the driver is the emulated driver of the tests, so the result has no meaning; it stays in $result"
else
  cp "$result" "$output/$(date +%F)-gpu-$name.json"
  say "result: $output/$(date +%F)-gpu-$name.json"
fi
[ ${#failed[@]} = 0 ] || die 1 "failed: $(printf '%s; ' "${failed[@]}")"
