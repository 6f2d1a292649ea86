# Shared by deploy/*.sh and .ci/run; sourced, never run. Sets `root`, the root of the tree.
# Exit codes of the scripts: 0 done, 1 something failed, 2 wrong arguments, 3 a requirement is missing on this machine.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
may_install=1
exec </dev/null  # nothing here asks a question

say() { printf '%s\n' "== $*"; }
die() {
  local code=$1
  shift
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit "$code"
}

# What is needed, one line each: Debian 12 package, and how its presence is seen on any system:
# a command, a C++ header or a file (a shell pattern).
build_needs='
g++                 command g++
cmake               command cmake
ninja-build         command ninja
pkg-config          command pkg-config
libuv1-dev          header  uv.h
libzmq3-dev         header  zmq.h
libssl-dev          header  openssl/ssl.h
cppzmq-dev          header  zmq.hpp
libfmt-dev          header  fmt/format.h
libspdlog-dev       header  spdlog/spdlog.h
libxxhash-dev       header  xxhash.h
libexpected-dev     header  tl/expected.hpp
nlohmann-json3-dev  header  nlohmann/json.hpp
libyaml-cpp-dev     header  yaml-cpp/yaml.h
libcli11-dev        header  CLI/CLI.hpp
libgloo-dev         header  gloo/context.h
zlib1g-dev          header  zlib.h
prometheus-cpp-dev  header  prometheus/registry.h
'
test_needs='
libcpp-httplib-dev  header  httplib.h
libgtest-dev        header  gtest/gtest.h
libgmock-dev        header  gmock/gmock.h
python3             command python3
python3-jsonschema  file    /usr/lib/python3/dist-packages/jsonschema/__init__.py
spin                command spin
prometheus          command prometheus
etcd-server         command etcd
python3-matplotlib  file    /usr/lib/python3/dist-packages/matplotlib/__init__.py
python3-scipy       file    /usr/lib/python3/dist-packages/scipy/__init__.py
'
browser_needs='
chromium            command chromium
'
check_needs='
clang-19            command clang++-19
clang-format-19     command clang-format-19
lld-19              file    /usr/lib/llvm-19/bin/ld.lld
llvm-19             file    /usr/lib/llvm-19/bin/llvm-symbolizer
libclang-rt-19-dev  file    /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a
'
environment_needs='
python3-venv        file    /usr/lib/python3*/ensurepip/__init__.py
'
python_needs="$environment_needs
python3-dev         file    /usr/include/python3.*/Python.h
"

# Prints the headers of "$@" that the compiler does not find.
missing_headers() {
  if ! command -v g++ >/dev/null; then
    printf '%s\n' "$@"
    return
  fi
  local header
  for header in "$@"; do printf '#if !__has_include(<%s>)\nMISSING %s\n#endif\n' "$header" "$header"; done |
    g++ -std=c++20 -E -P -x c++ - | sed -n 's/^MISSING //p'
}

# Prints the packages of the need lists "$@" that are not there.
missing_packages() {
  local lists="$*" package kind what absent
  # shellcheck disable=SC2046
  absent=$(missing_headers $(awk '$2 == "header" {print $3}' <<<"$lists"))
  while read -r package kind what; do
    case $kind in
      command) command -v "$what" >/dev/null || echo "$package" ;;
      header) grep -qxF "$what" <<<"$absent" && echo "$package" ;;
      file) compgen -G "$what" >/dev/null || echo "$package" ;;
    esac
  done <<<"$lists"
  return 0
}

distribution() {
  [ -r /etc/os-release ] || { echo unknown; return; }
  # shellcheck disable=SC1091
  (. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
}

# Makes sure that everything of the need lists "$@" is there: on Debian 12 installs what is missing, elsewhere (and with
# --no-install) lists it and stops. Touches no package list when nothing is missing.
ensure() {
  local missing become=()
  missing=$(missing_packages "$@")
  if [ -z "$missing" ]; then
    say "all packages are installed"
    return
  fi
  missing=$(tr '\n' ' ' <<<"$missing")
  missing=${missing% }
  if [ "$may_install" = 0 ]; then
    die 3 "missing Debian 12 packages: $missing; install them, or run without --no-install"
  fi
  if [ "$(distribution)" != "debian 12" ]; then
    die 3 "missing Debian 12 packages: $missing; this script does not install packages on $(distribution), so install them by hand"
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die 3 "missing: $missing; their installation needs root or sudo"
    become=(sudo)
    [ -t 2 ] || become=(sudo -n)
  fi
  say "installing: $missing"
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
    die 3 "apt-get update failed; missing: $missing"
  # shellcheck disable=SC2086
  "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 $missing >/dev/null || die 3 "apt-get install failed for: $missing"
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -z "$missing" ] || die 3 "still missing after the installation: $missing"
}

# Prints what an environment of python_environment was made of: the packages of the requirement files "$@", and, if it is not the
# system's, the interpreter.
environment_facts() {
  local python=$1
  shift
  cat "$@"
  [ -z "$python" ] || "$python" -c 'import platform, sys; print("# made with", sys._base_executable, platform.python_version())'
}

# python_environment [--python PYTHON] FOLDER FILE...: a Python environment with the pinned packages of these requirement files,
# made with PYTHON (default: python3). One that has them is left as it is. Says on standard error why not.
python_environment() {
  local python="" folder
  if [ "$1" = --python ]; then python=$2; shift 2; fi
  folder=$1
  shift
  if environment_facts "$python" "$@" | cmp -s - "$folder/installed.txt"; then return; fi
  "${python:-python3}" -m venv --clear "$folder" &&
    "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 2 "${@/#/--requirement=}" &&
    environment_facts "$python" "$@" >"$folder/installed.txt"
}

# What the CUDA backend is compiled with, as pinned Python packages in build/cuda, where the system has none of it. Without them
# everything else is built: it says in one line why they are not there, and goes on.
ensure_cuda() {
  local missing files=() environment=$root/build/cuda log=$root/build/cuda.log
  missing=$(cmake -P "$root/deploy/cmake/find_cuda.cmake")
  [[ $missing != *toolkit* ]] || files+=("$root/deploy/cuda/toolkit-requirements.txt")
  [[ $missing != *nccl* ]] || files+=("$root/deploy/cuda/nccl-requirements.txt")
  if [ ${#files[@]} = 0 ]; then
    say "CUDA toolkit and NCCL are installed"
  elif cat "${files[@]}" | cmp -s - "$environment/installed.txt"; then
    say "CUDA toolkit and NCCL are installed (in build/cuda: $missing)"
  elif [ "$may_install" = 0 ] && [ -e "$environment" ]; then
    say "build/cuda is used unchanged, because of --no-install"
  elif [ "$may_install" = 0 ]; then
    say "the CUDA backend is not built: $missing is missing, and --no-install is given"
  elif [[ $(uname -m) != @(x86_64|aarch64) ]]; then
    say "the CUDA backend is not built: $missing is not available for $(uname -m)"
  else
    mkdir -p "$root/build"
    say "installing into build/cuda: $missing"
    if { python3 -c 'import ensurepip, venv' || (ensure "$environment_needs"); } >"$log" 2>&1 &&
      python_environment "$environment" "${files[@]}" >>"$log" 2>&1; then
      return
    fi
    rm -rf "$environment"
    say "the CUDA backend is not built: $missing cannot be installed: $(tail -n 1 "$log") (complete log: build/cuda.log)"
  fi
}

# Says in one line why this interpreter cannot make the wheel for all versions from 3.12 on; prints nothing if it can.
newer_python_problem() {
  local said code=0
  command -v "$1" >/dev/null || { echo "there is no such program"; return; }
  said=$("$1" -c 'if True:
    import os, platform, sys, sysconfig
    headers = sysconfig.get_path("include")
    if platform.python_implementation() != "CPython" or sys.version_info < (3, 12) or "t" in sys.abiflags:
        print(f"it is {platform.python_implementation()} {platform.python_version()}{sys.abiflags}; expected CPython 3.12 or newer")
    elif not os.path.exists(os.path.join(headers, "Python.h")):
        print(f"its headers are missing: there is no {headers}/Python.h")
    else:
        import ensurepip, venv' 2>&1) || code=$?
  if [ "$code" != 0 ]; then echo "it fails with exit status $code: $(tail -n 1 <<<"$said")"; else printf '%s' "$said"; fi
}

# Sets `newer_pythons` to the interpreters of 3.12 and newer that can make a wheel, oldest first: those on PATH, or the one that
# WSYNC_PYTHON_ABI3 names. Says in one line each which cannot, and why.
find_newer_pythons() {
  local names=(python3.{12..29}) name problem
  [ -z "${WSYNC_PYTHON_ABI3:-}" ] || names=("$WSYNC_PYTHON_ABI3")
  newer_pythons=()
  for name in "${names[@]}"; do
    if [ ${#names[@]} -gt 1 ] && ! command -v "$name" >/dev/null; then continue; fi
    problem=$(newer_python_problem "$name")
    if [ -z "$problem" ]; then newer_pythons+=("$name"); else say "$name is not used: $problem"; fi
  done
}

# python_folder [PYTHON]: where the wheel of that interpreter (none: of the system's) is made.
python_folder() { echo "$root/build/python${1:+-abi3}"; }

# python_tools [PYTHON]: the requirement files of what its wheel is made with.
python_tools() { printf '%s\n' "$root/deploy/python/requirements.txt" ${1:+"$root/deploy/python/abi3-requirements.txt"}; }

# has_python_environments [PYTHON TEST_PYTHON]: whether the environments of ensure_python are there.
has_python_environments() {
  local folder
  folder=$(python_folder "${1:-}")
  # shellcheck disable=SC2046
  environment_facts "${1:-}" $(python_tools "$@") | cmp -s - "$folder/env/installed.txt" &&
    environment_facts "${2:-}" "$root/deploy/python/test-requirements.txt" | cmp -s - "$folder/test/installed.txt"
}

# ensure_python [PYTHON TEST_PYTHON]: what the Python package is built with, as pinned packages in build/python/env, and NumPy for
# its tests in build/python/test. With PYTHON, of 3.12 or newer: the same in build/python-abi3, for the wheel that all versions
# from 3.12 on can use; its tests run with TEST_PYTHON. Without them everything else is built: it says in one line why they are
# not there, and goes on.
ensure_python() {
  local folder name log tools what="the Python package"
  mapfile -t tools < <(python_tools "$@")
  folder=$(python_folder "${1:-}")
  name=${folder#"$root/"} log=$folder/env.log
  [ $# = 0 ] || what="the Python package for 3.12 and newer"
  if has_python_environments "$@"; then
    say "the build tools of $what are installed (in $name)"
  elif [ "$may_install" = 0 ]; then
    say "$what is not built: its build tools are missing, and --no-install is given"
  else
    mkdir -p "$folder"
    say "installing into $name: the build tools of $what, and NumPy for its tests"
    if ([ $# -gt 0 ] || ensure "$python_needs"
      python_environment ${1:+--python "$1"} "$folder/env" "${tools[@]}" &&
        python_environment ${2:+--python "$2"} "$folder/test" "$root/deploy/python/test-requirements.txt") >"$log" 2>&1; then
      return
    fi
    rm -rf "$folder/env" "$folder/test"
    say "$what is not built: its build tools cannot be installed: $(tail -n 1 "$log") (complete log: $name/env.log)"
  fi
}

# python_options [PYTHON TEST_PYTHON]: prints what a build is configured with to make the extension module, one option a line;
# nothing without its build tools.
python_options() {
  local environment
  environment=$(python_folder "${1:-}")/env
  has_python_environments "$@" || return 0
  if [ $# -gt 0 ]; then
    echo "-DWSYNC_PYTHON_ABI3=$environment/bin/python"
  else
    printf '%s\n' -DWSYNC_PYTHON=ON "-DPython_EXECUTABLE=$environment/bin/python" \
      "-Dnanobind_DIR=$("$environment/bin/python" -m nanobind --cmake_dir)"
  fi
}

# say_cuda FOLDER: what became of the CUDA backend in a build, and whether anything ran on a GPU.
say_cuda() {
  local folder=$1 found="" gpus=() ran="no test ran on a GPU, because this machine has none"
  [ ! -e "$folder.log" ] || found=$(sed -n 's/^-- CUDA backend: //p' "$folder.log" | tail -n 1)
  mapfile -t gpus < <(compgen -G '/dev/nvidia[0-9]*')
  [ ${#gpus[@]} = 0 ] || ran="tests with the label gpu use the ${#gpus[@]} of this machine"
  if [ "$found" = on ] && [ -e "$folder/deploy/cli/libwsync_cuda.so" ]; then
    found="compiled and linked ($(sed -nE 's/^--   (NVRTC|nccl.h) ([0-9.]+): .*/\1 \2/p' "$folder.log" | paste -sd , | sed 's/,/, /g'))"
  elif [ "$found" = on ]; then
    found="its requirements were found, but it was not linked"
  fi
  say "CUDA backend in ${folder#"$root/"}: ${found:-not configured}; $ran"
}

# Compilers at once: one for each core, and no more than one for each 1.5 GiB of memory.
build_jobs() {
  local cores memory_kib by_memory
  cores=$(nproc)
  memory_kib=$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)
  by_memory=$((memory_kib / 1572864))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# configure PRESET [FOLDER [CACHE ENTRY...]]: configures build/<PRESET> (or FOLDER). A new folder gets a unity build, which
# halves the time of a first build, and ccache and LLVM's linker when these are found.
configure() {
  local preset=$1 folder=${2:-$root/build/$1} options=()
  shift; [ $# = 0 ] || shift
  if [ ! -e "$folder/CMakeCache.txt" ]; then
    options=(-DCMAKE_UNITY_BUILD=ON)
    if command -v ccache >/dev/null; then
      options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    if command -v ld.lld >/dev/null; then
      options+=(-DCMAKE_{EXE,SHARED}_LINKER_FLAGS_INIT=-fuse-ld=lld)
    fi
  fi
  (cd "$root" && cmake --preset "$preset" -B "$folder" "${options[@]}" "$@" >"$folder.log" 2>&1) || {
    tail -30 "$folder.log" >&2
    return 1
  }
}

# estimate_text FILES CORES: what to say before so many files are compiled; nothing for a short build. A file takes 10 to 20 s of
# one core, because a unity build puts several sources into it; ccache makes the next time shorter.
estimate_text() {
  local files=$1 cores=$2 from to
  [ "$files" -ge 20 ] || return 0
  from=$(((files * 10 / cores + 59) / 60)) to=$(((files * 20 / cores + 59) / 60))
  local time="$from to $to minutes"
  [ "$from" != "$to" ] || time="about $to minute$([ "$to" = 1 ] || echo s)"
  echo "builds about $files files: $time on $cores core$([ "$cores" = 1 ] || echo s) the first time"
}

# files_to_build FOLDER [TARGET...]: how many files would be compiled.
files_to_build() {
  local folder=$1
  shift
  cmake --build "$folder" ${1:+--target "$@"} -- -n 2>/dev/null | grep -cE '^\[[0-9]+/[0-9]+\] Building ' || true
}

# build FOLDER [TARGET...]
build() {
  local folder=$1 estimate
  shift
  estimate=$(estimate_text "$(files_to_build "$folder" "$@")" "$(build_jobs)")
  [ -z "$estimate" ] || say "$estimate"
  cmake --build "$folder" -j "$(build_jobs)" ${1:+--target "$@"}
}

# run_ctest FOLDER [CTEST ARGUMENT...]: runs the tests, then says which were skipped and why, repeats what the failed ones said of
# their failures, and ctest's verdict.
run_ctest() {
  local folder=$1 code=0 log
  shift
  log=$folder/ctest.out
  # One more than cores: tests of several processes wait for these most of the time.
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$(($(nproc) + 1))" "$@" 2>&1 | tee "$log" || code=$?
  say "skipped tests"
  print_skipped "$folder" "$log"
  [ "$code" = 0 ] || print_failures "$log"
  grep -E '^[0-9]+% tests passed' "$log" || true
  return "$code"
}

# What failed tests said of their failures: each line that begins a report, with the lines after it. A test that reported nothing
# has its last lines here. Only the end of a long run is kept everywhere, and a test may print hundreds of lines.
print_failures() {
  say "what failed"
  awk '
    function flush_test() {
      if (name == "") return
      print "  " name
      if (kept == 0) for (i = (lines > 25 ? lines - 24 : 1); i <= lines; ++i) print "    " line[i]
      else for (i = 1; i <= kept; ++i) print "    " keep[i]
      name = ""
    }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
      flush_test()
      if ($0 !~ / Passed | Skipped |\*Skipped|\*Not Run/) { name = $0; kept = lines = after = 0 }
      next
    }
    /^ +Start +[0-9]+: / || /^[0-9]+% tests passed/ { flush_test(); next }
    name == "" || /^\[ +(RUN|OK) +\]/ { next }
    { line[++lines] = $0 }
    /: Failure$|Sanitizer: |runtime error: |^Traceback|^(FAIL|ERROR):|^[A-Za-z]+(Error|Exception): |Assertion|terminate called/ { after = 30 }
    after > 0 && kept < 80 { --after; keep[++kept] = $0 }
    END { flush_test() }
  ' "$1" | cut -c 1-300
}

# Tests that ctest skipped whole, and cases inside a test, of GoogleTest and of unittest: one line for each reason, with the number of its tests and
# the first names.
print_skipped() {
  local folder=$1 log=$2 found
  found=$(
    {
      sed -nE 's/^[[:space:]]+[0-9]+ - (.*) \((Skipped|Disabled|Not Run)\).*$/\1\t\2/p' "$log"
      awk '
        /^skip: / { print "\t" substr($0, 7); next }
        # "test_x (file.Class.test_x) ... skipped '"'"'reason'"'"'", or the first line of its docstring before the dots, on a line of its own.
        /^test_[A-Za-z0-9_]+ \(/ { name = $1 }
        match($0, / \.\.\. skipped ['"'"'"].*['"'"'"]$/) {
          print name "\t" substr($0, RSTART + 14, RLENGTH - 15)
          next
        }
        /^\[ RUN      \]/ { reason = ""; taking = 0; next }
        /: Skipped$/ { taking = 1; next }
        /^\[  SKIPPED \] .*\([0-9]+ ms\)$/ { sub(/^\[  SKIPPED \] /, ""); sub(/ \([0-9]+ ms\)$/, ""); print $0 "\t" reason; taking = 0; next }
        taking { reason = reason (reason == "" || $0 == "" ? "" : " ") $0 }
      ' "$folder/Testing/Temporary/LastTest.log"
    } | awk -F '\t' '
      !($2 in count) { order[++reasons] = $2 }
      ++count[$2] <= 3 { names[$2] = names[$2] (count[$2] == 1 || $1 == "" ? "" : ", ") $1 }
      END {
        for (i = 1; i <= reasons; ++i) {
          reason = order[i]
          more = count[reason] > 3 ? sprintf(" and %d more", count[reason] - 3) : ""
          printf "%d: %s%s\n", count[reason], reason, names[reason] == "" ? "" : " (" names[reason] more ")"
        }
      }
    '
  )
  if [ -n "$found" ]; then printf '  %s\n' "${found//$'\n'/$'\n'  }"; else echo "  none"; fi
}
