#!/usr/bin/env bash
# Everything that needs a GPU, in one command: builds, asks the driver, runs the GPU tests, runs them again under
# compute-sanitizer, runs the Python package with torch, and measures. The build may be made on another machine: --pack.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"

usage() {
  cat <<'TEXT'
Usage: bench/gpu.sh [options] [-- ARGUMENTS OF wsync bench gpu]

On a machine with an NVIDIA GPU: builds the programs and tests (release, WSYNC_CUDA=ON), then runs six parts: `probe` asks the
driver what wsync relies on, `tests` runs the tests with the label gpu, `sanitizer` runs tests under compute-sanitizer, `python` runs
tests/python/gpu_test.py with the machine's torch, `mps` starts a daemon of the Multi-Process Service of its own, runs tests and a
short benchmark under it and ends it, and `bench` runs `wsync bench gpu`. Each part writes its results as soon as it has them. Needs no
network and installs nothing.

NCCL is tested between the GPUs of the machine. With one GPU it is tested with several ranks on that GPU if the NCCL that is found is
2.30 or newer, which wsync takes from WSYNC_NCCL_LIBRARY if that is set.

`python` uses the wheel for Python 3.12 and newer, if it has been built (deploy/python/build.sh --python python3.12); its files are
put into a folder of the results, and nothing is installed beside it.

  --pack DIR        build, and put everything that the parts need into DIR, for a machine that has a GPU but no compiler
                    and none of our libraries; runs nothing. There, DIR/bench/gpu.sh runs the parts
  --prebuilt DIR    do not build: run what --pack has put into DIR
  --only PART,...   only these of probe, tests, sanitizer, python, mps and bench
  --results DIR     directory for results (default: build/gpu-results; with --prebuilt: DIR/results)
  --limit SECONDS   a part is stopped after this time (default: 480)
  --prefix DIR      directory of libraries and headers that the system does not have (CMAKE_PREFIX_PATH); may be repeated
  --cuda-home DIR   directory of the CUDA toolkit, if it is not found (contains include/cuda.h and lib64/libnvrtc.so)
  --nccl-home DIR   directory of NCCL, if it is not found (contains include/nccl.h)
  --build DIR       build directory (default: build/gpu)
  -h, --help        this text

Exit status: 0 every part succeeded (the benchmark's table shows whether targets were met), 1 the build or a part failed, 2 wrong
arguments, 3 a requirement is missing on this machine.
Examples: bench/gpu.sh
          bench/gpu.sh --pack /tmp/wsync-gpu         # then copy /tmp/wsync-gpu to the machine with the GPU
          /tmp/wsync-gpu/bench/gpu.sh --only probe,tests --results /tmp/results
          bench/gpu.sh --only bench -- --gpus 0 --devices 1,2
TEXT
}

prefixes=()
cache=()
folder=$root/build/gpu
pack=
kit=
results=
parts=probe,tests,sanitizer,python,mps,bench
limit=480
[ ! -e "$root/kit.txt" ] || kit=$root
while [ $# -gt 0 ]; do
  case $1 in
    --pack | --prebuilt | --only | --results | --limit | --prefix | --cuda-home | --nccl-home | --build)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      case $1 in
        --pack) pack=$2 ;;
        --prebuilt) kit=$2 ;;
        --only) parts=$2 ;;
        --results) results=$2 ;;
        --limit) limit=$2 ;;
        --prefix) prefixes+=("$2") ;;
        --cuda-home) cache+=("-DCUDA_HOME=$2") ;;
        --nccl-home) cache+=("-DNCCL_HOME=$2") ;;
        --build) folder=$2 ;;
      esac
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done
bench=("$@")
[[ $limit =~ ^[1-9][0-9]*$ ]] || die 2 "--limit is '$limit', expected a number of seconds of at least 1"
for part in ${parts//,/ }; do
  [[ $part =~ ^(probe|tests|sanitizer|python|mps|bench)$ ]] || die 2 "--only has '$part', expected probe, tests, sanitizer, python, mps or bench"
done
[ -z "$pack" ] || [ -z "$kit" ] || die 2 "--pack builds, and --prebuilt does not; give one of them"
if [ -n "$kit" ]; then
  [ -e "$kit/kit.txt" ] || die 2 "--prebuilt $kit has no kit.txt; expected a directory that bench/gpu.sh --pack has filled"
  kit=$(cd "$kit" && pwd -P)
fi

# ---- building ----

# The shared libraries of the programs "$@" that belong neither to the C library nor to the compiler: those are on each machine that
# the folder is for, in a version that fits its C library.
carried_libraries() {
  local found
  found=$(ldd "$@")
  if grep 'not found' <<<"$found" >&2; then return 1; fi
  sed -nE 's/^.* => (\/[^ ]+) \(.*$/\1/p' <<<"$found" |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so' | sort -u
}

# fill DIR: everything that the parts need, from the build in $folder.
fill() {
  local programs=("$folder"/deploy/cli/{wsync,wsync-bench,wsync-engine} "$folder"/bench/gpu_probe)
  programs+=("$folder"/tests/contract/contract_{cuda_device,cuda_collective,trainer_gpu} "$folder"/tests/contract/engine_link/contract_device_patch_gpu)
  programs+=("$folder"/tests/unit/unit_device "$folder"/tests/scenario/gpu_loader)
  rm -rf "$1"/{bin,lib,bench,deploy,tests,python,wheel}
  mkdir -p "$1"/{bin,lib,bench,deploy/cli,tests/scenario,tests/python,python}
  cp "${programs[@]}" "$1/bin"
  cp "$folder/deploy/cli/libwsync_cuda.so" "$1/lib"
  local libraries
  libraries=$(carried_libraries "${programs[@]}" "$folder/deploy/cli/libwsync_cuda.so") || die 1 "a library is missing"
  # shellcheck disable=SC2086
  cp -L $libraries "$1/lib"
  chmod u+w "$1"/lib/* "$1"/bin/*
  strip "$1"/bin/* "$1"/lib/*
  cp "$root/bench/gpu.sh" "$1/bench"
  cp "$root/deploy/lib.sh" "$1/deploy"
  cp -r "$root/deploy/cli/schema" "$1/deploy/cli"
  cp "$root"/tests/scenario/{gpu_test,gpu_engines,cuda_fleet,fleet,pages,patching,schema,tensors}.py "$1/tests/scenario"
  local wheels
  mapfile -t wheels < <(compgen -G "$root/build/python*/dist/*abi3*.whl")
  if [ ${#wheels[@]} -gt 0 ]; then
    mkdir "$1/wheel"
    cp "${wheels[@]}" "$1/wheel"
  else
    say "without a wheel: the part python will not run; deploy/python/build.sh --python python3.12 makes one"
  fi
  cp "$root"/tests/python/{gpu_test,gpu_engine,publish_gpu_test,gpu_memory,package_fleet}.py "$1/tests/python"
  # What the tests import that Python does not bring along; none of it is compiled code.
  python3 - "$1/python" <<'PYTHON' || die 1 "the Python package jsonschema cannot be packed"
import importlib.util, pathlib, shutil, sys
sys.path.insert(0, "/usr/lib/python3/dist-packages")  # pure Python there; newer versions need compiled parts
for name in ("jsonschema", "attr", "attrs", "pyrsistent", "_pyrsistent_version"):
    found = importlib.util.find_spec(name)
    if found is None:
        sys.exit(f"{name} is missing")
    place = pathlib.Path(found.origin)
    if place.name == "__init__.py":
        shutil.copytree(place.parent, f"{sys.argv[1]}/{name}", ignore=shutil.ignore_patterns("tests", "__pycache__", "benchmarks"))
    else:
        shutil.copy(place, sys.argv[1])
PYTHON
  {
    echo "wsync of commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown), built on $(distribution)"
    for library in "${wheels[@]}"; do echo "wheel: $(basename "$library"), made on $(date -u -r "$library" +"%F %T UTC")"; done
    echo "C library: $(ldd --version | sed -n 1p)"
    sed -nE 's/^--   ((NVRTC|cuda.h|nccl.h|kernels)[^:]*: .*)/\1/p' "$folder.log"
  } >"$1/kit.txt"
}

build_kit() {
  local prefix place tool targets
  # fill() removes what a former kit has there.
  if [ ! -e "$1/kit.txt" ] && [ -n "$(ls -A "$1")" ]; then
    die 2 "$1 is not empty, and has no kit.txt of an earlier --pack; give an empty or a new directory"
  fi
  for prefix in "${prefixes[@]}"; do
    prefix=$(cd "$prefix" && pwd -P)
    for place in lib "lib/$(uname -m)-linux-gnu" lib64 share; do
      PKG_CONFIG_PATH=$prefix/$place/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    done
    export PKG_CONFIG_PATH
    export CMAKE_PREFIX_PATH=$prefix${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    # Headers that no package file names, and libraries for the programs of the build and for `ldd`.
    export CPLUS_INCLUDE_PATH=$prefix/include${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
    export PATH=$prefix/bin:$PATH
    cache+=("-DCMAKE_INSTALL_RPATH=$prefix/lib")
  done
  for tool in cmake ninja g++ pkg-config strip python3; do
    command -v "$tool" >/dev/null || die 3 "$tool is not in PATH; install it, or give its location with --prefix (DIR/bin is searched), or build on another machine: --pack"
  done
  folder=$(mkdir -p "$folder" && cd "$folder" && pwd -P)
  say "configuring $folder (release, WSYNC_CUDA=ON)"
  # The programs look for their libraries beside themselves, and so do these libraries for theirs: that takes the older tag.
  # shellcheck disable=SC2016
  configure release "$folder" -DWSYNC_CUDA=ON -DWSYNC_BUILD_BENCH=ON -DWSYNC_BUILD_TESTS=ON '-DCMAKE_BUILD_RPATH=$ORIGIN/../lib' \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags "${cache[@]}" ||
    die 3 "configuring failed: the lines above name the missing parts; give their location with --prefix, --cuda-home or --nccl-home"
  sed -n '/CUDA backend/,/kernels/p' "$folder.log"
  targets=(wsync wsync-bench wsync-engine wsync_cuda gpu_probe gpu_loader unit_device tests_gpu)
  say "building"
  build "$folder" "${targets[@]}" || die 1 "the build failed"
  fill "$1"
  say "$1: $(du -sh "$1" | cut -f 1), for machines with the C and C++ libraries of this one or newer ones"
}

# ---- running ----

failed=()

# Says what became of a case, there and in the summary.
report() {
  say "$1"
  echo "$1" >>"$results/summary.txt"
}

# run_case NAME COMMAND...: runs it within what is left of the part's time; its output goes to the results and here.
run_case() {
  local name=$1 code=0 begin=$SECONDS left=$((part_end - SECONDS))
  shift
  if [ "$left" -le 0 ]; then
    report "$name: not run, because the part's $limit s were over"
    failed+=("$name")
    return
  fi
  say "$name"
  timeout --kill-after=10 --signal=INT "$left" "$@" </dev/null 2>&1 | tee "$results/$name.txt" || code=$?
  case $code in
    0)
      if grep -q 'no GPU for the tests: ' "$results/$name.txt"; then
        report "$name: not tested: $(grep -m 1 -o 'no GPU for the tests: .*' "$results/$name.txt")"
        return
      fi
      report "$name: passed in $((SECONDS - begin)) s" ;;
    124 | 137) report "$name: stopped after $((SECONDS - begin)) s, when the part's $limit s were over"; failed+=("$name") ;;
    *) report "$name: failed with exit status $code after $((SECONDS - begin)) s"; failed+=("$name") ;;
  esac
}

run_probe() {
  if command -v nvidia-smi >/dev/null; then run_case nvidia-smi nvidia-smi; fi
  run_case probe "$kit/bin/gpu_probe"
  run_case doctor "$kit/bin/wsync" doctor --set devices.kind=cuda
}

run_tests() {
  run_case unit_device "$kit/bin/unit_device" --gtest_brief=1 --gtest_filter=-CudaFaults*:CudaDriver*:CudaLibrary*
  run_case gpu_device env WSYNC_TEST_GPU=1 "$kit/bin/contract_cuda_device"
  run_case gpu_device_patch env WSYNC_TEST_GPU=1 "$kit/bin/contract_device_patch_gpu"
  run_case gpu_trainer env WSYNC_TEST_GPU=1 "$kit/bin/contract_trainer_gpu"
  if [ "$gpus" -ge 2 ]; then
    run_case gpu_collective env WSYNC_TEST_GPU=1 "$kit/bin/contract_cuda_collective" '--gtest_filter=-NcclFaults*'
  else
    run_case gpu_collective env WSYNC_TEST_GPU=1 NCCL_MULTI_RANK_GPU_ENABLE=1 "$kit/bin/contract_cuda_collective" '--gtest_filter=-NcclFaults*:FittingGroup*'
    if grep -qE 'too few GPUs|no NCCL' "$results/gpu_collective.txt"; then report "gpu_collective: NCCL: not tested ($gpus GPU, and no NCCL 2.30 or newer)"; fi
  fi
  run_fleet gpu_fleet
}

# run_fleet NAME TESTS...: these of gpu_test.py, or all.
run_fleet() {
  local name=$1
  shift
  run_case "$name" env PYTHONPATH="$kit/python" python3 -B "$kit/tests/scenario/gpu_test.py" -v "$@" "$kit/bin/wsync" "$kit/lib/libwsync_cuda.so" "$kit/bin/gpu_loader"
}

# Also when this script is interrupted: a daemon without its sockets could not be ended any more.
end_mps() {
  [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
  echo quit | timeout 30 nvidia-cuda-mps-control || report "mps: the daemon did not end; its sockets are in $CUDA_MPS_PIPE_DIRECTORY"
}

# A daemon of our own, whose sockets nobody else knows, so that no other process of the machine is under it. A client that is killed while it
# has work on the GPU may harm the others, so only tests that kill nobody have to pass.
run_mps() {
  local tool sockets
  for tool in nvidia-cuda-mps-control nvidia-cuda-mps-server; do
    if ! command -v "$tool" >/dev/null; then
      report "mps: not run: $tool is not in PATH (it is part of the driver)"
      return
    fi
  done
  sockets=$(mktemp -d /tmp/wsync-mps.XXXXXX)
  mkdir -p "$results/mps-log"
  export CUDA_MPS_PIPE_DIRECTORY=$sockets CUDA_MPS_LOG_DIRECTORY=$results/mps-log
  if nvidia-cuda-mps-control -d; then
    trap end_mps EXIT
    run_case mps_doctor "$kit/bin/wsync" doctor --set devices.kind=cuda
    run_fleet mps_fleet Gpu.test_models_of_a_gigabyte_by_large_buffers Gpu.test_a_sidecar_that_ends_before_its_engines
    run_case mps_bench "$kit/bin/wsync" bench gpu --quick --output "$results/bench-mps.json" "${bench[@]}"
    end_mps
  else
    report "mps: failed: nvidia-cuda-mps-control -d did not start; its log is in $results/mps-log"
    failed+=(mps)
  fi
  trap - EXIT
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  rm -rf "$sockets"
}

# Tests provoke errors of calls, so these are not reported. racecheck and synccheck look at shared memory and barriers, which the kernels do not have. initcheck takes bytes that another
# process has written for bytes that nobody has.
run_sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    report "sanitizer: not run: compute-sanitizer is not in PATH (it is part of the CUDA toolkit)"
    return
  fi
  run_case memcheck env WSYNC_TEST_GPU=1 compute-sanitizer --tool memcheck --target-processes all --report-api-errors no \
    --error-exitcode 9     "$kit/bin/contract_cuda_device"
  run_case memcheck_patch env WSYNC_TEST_GPU=1 compute-sanitizer --tool memcheck --target-processes all --report-api-errors no \
    --error-exitcode 9     "$kit/bin/contract_device_patch_gpu" --gtest_filter=Cuda/*
}

# unpack_wheel WHEEL FOLDER: puts its files there, with pip if this Python has it, and installs nothing else.
unpack_wheel() {
  if python3 -m pip --version >/dev/null 2>&1; then
    python3 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$2" "$1"
  else
    python3 -m zipfile -e "$1" "$2" && chmod +x "$2/wsync/_native/wsync"
  fi
}

# The wheel and torch in one process tree.
run_python() {
  local wheels folder=$results/python why
  mapfile -t wheels < <(compgen -G "$kit/wheel/*.whl")
  if [ ${#wheels[@]} = 0 ]; then
    report "python: not run: no wheel was packed; make one with deploy/python/build.sh --python python3.12, and pack again"
    return
  fi
  rm -rf "$folder"
  if ! why=$(unpack_wheel "${wheels[0]}" "$folder" 2>&1); then
    report "python: not run: the wheel $(basename "${wheels[0]}") cannot be used with $(python3 --version 2>&1): $(tail -n 1 <<<"$why")"
    failed+=(python)
    return
  fi
  run_case python env PYTHONPATH="$folder" HF_HUB_OFFLINE=1 python3 -B "$kit/tests/python/gpu_test.py" -v
  run_case python_publish env PYTHONPATH="$folder" python3 -B "$kit/tests/python/publish_gpu_test.py" -v gpu
}

run_bench() { run_case bench "$kit/bin/wsync" bench gpu --output "$results/bench-gpu.json" "${bench[@]}"; }

for prefix in "${prefixes[@]}"; do
  [ -d "$prefix" ] || die 2 "--prefix $prefix is not a directory"
done
if [ -n "$pack" ]; then
  mkdir -p "$pack"
  build_kit "$(cd "$pack" && pwd -P)"
  exit 0
fi
# Checked before the build, which takes minutes.
gpus=$(python3 - 2>&1 <<'PYTHON'
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
print(count.value)
PYTHON
) || die 3 "$(tail -n 1 <<<"$gpus")"
if [ -z "$kit" ]; then
  mkdir -p "$folder/kit"
  build_kit "$folder/kit"
  kit=$folder/kit
  results=${results:-$root/build/gpu-results}
fi
results=${results:-$kit/results}
results=$(mkdir -p "$results" && cd "$results" && pwd -P)
{ date -u +'%F %T UTC'; cat "$kit/kit.txt"; } | tee "$results/summary.txt"
for part in ${parts//,/ }; do
  part_end=$((SECONDS + limit))
  "run_$part"
done
[ ${#failed[@]} = 0 ] || die 1 "failed: $(printf '%s; ' "${failed[@]}")the results are in $results"
say "results: $results"
