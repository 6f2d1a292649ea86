#!/usr/bin/env bash
# Builds the wheel of the Python package.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/python/build.sh [options]

Installs missing packages (Debian 12, as root or with sudo), makes an environment with the pinned build tools in build/python/env,
builds libwsync_trainer, libwsync_engine and the command `wsync`, and puts them into a wheel, with every library that they need
beyond what each Linux system of the platform tag has. The wheel is written to build/python/dist.

  --python PYTHON     make the wheel that every Python from 3.12 on can use (abi3), with this interpreter of 3.12 or newer, which
                      has its headers; default: the wheel for the version of python3, which is 3.11 on Debian 12. Its environments
                      and the wheel are in build/python-abi3; the libraries are compiled once for both wheels
  --test-python PYTHON  with --python: another interpreter for the test environment
  --build-dir DIR     take the compiled parts from this build of the tree, and compile only what is not up to date there. Without
                      --python it has WSYNC_PYTHON=ON; default: a release build of the service alone, in build/python/tree
  --test-environment  also install the wheel into the folder test beside dist, an environment that has NumPy only
  --no-install        install no Debian packages, and no Python packages: say what is missing, and stop
  -h, --help          this text

Exit status: 0 the wheel is there, 1 a step failed, 2 wrong arguments, 3 a requirement is missing on this machine.
TEXT
}

tree=""
newer=()  # the interpreter of --python, and the one that tests its wheel
test_python=""
test_environment=0
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    --test-environment) test_environment=1 ;;
    --build-dir | --python | --test-python)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      case $1 in
        --build-dir) tree=$(realpath -m "$2") ;;
        --python) newer=("$2" "$2") ;;
        --test-python) test_python=$2 ;;
      esac
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done

if [ -n "$test_python" ]; then
  [ ${#newer[@]} -gt 0 ] || die 2 "--test-python is for --python; see --help"
  newer[1]=$test_python
fi
for interpreter in "${newer[@]}"; do
  problem=$(newer_python_problem "$interpreter")
  [ -z "$problem" ] || die 2 "$interpreter cannot be used for the wheel of 3.12 and newer: $problem"
done

work=$(python_folder "${newer[0]:-}")
python=$work/env/bin/python
mkdir -p "$work"
ensure "$build_needs"
[ ${#newer[@]} -gt 0 ] || ensure "$python_needs"
ensure_python "${newer[@]}"
mapfile -t options < <(python_options "${newer[@]}")
[ ${#options[@]} -gt 0 ] || die 3 "the build tools are not in ${work#"$root/"}; see above"

if [ -z "$tree" ]; then
  tree=$root/build/python/tree
  mkdir -p "$root/build/python"
  ensure_cuda
  configure release "$tree" -DWSYNC_BUILD_{TESTS,BENCH,ENGINE,TRAIN}=OFF "${options[@]}" || die 1 "configuring failed"
elif [ ${#newer[@]} -gt 0 ] && ! grep -q "^WSYNC_PYTHON_ABI3:[A-Z]*=$python\$" "$tree/CMakeCache.txt" 2>/dev/null; then
  [ -e "$tree/CMakeCache.txt" ] || die 2 "--build-dir: $tree is no build of the tree"
  cmake "${options[@]}" "$tree" >"$work/configure.log" 2>&1 || { tail -30 "$work/configure.log" >&2; die 1 "configuring failed"; }
fi
if [ ${#newer[@]} -gt 0 ]; then
  # cp312: what it says of the wheel is what the module was compiled for, in extension/abi3.
  target=wsync_python_abi3 module=$tree/deploy/python/extension/abi3/core.abi3.so versions=cp312
else
  grep -qx 'WSYNC_PYTHON:BOOL=ON' "$tree/CMakeCache.txt" 2>/dev/null ||
    die 2 "--build-dir: $tree is no build of the tree with WSYNC_PYTHON=ON"
  module=$("$python" -c 'import sysconfig; print("core" + sysconfig.get_config_var("EXT_SUFFIX"))')
  target=wsync_python module=$tree/deploy/python/extension/$module versions=""
fi
say "building ${tree#"$root/"}"
build "$tree" "$target" wsync || die 1 "the build failed"

# The licence of each library that will be bundled, as Debian has it.
gather_licenses() {
  local into=$1 library package
  rm -rf "$into"
  mkdir -p "$into"
  ldd "$module" "$tree/deploy/cli/wsync" | sed -nE 's/.* => (\/[^ ]+) .*/\1/p' | sort -u |
    while read -r library; do
      package=$({ dpkg -S "$(realpath "$library")" || dpkg -S "/usr$library" || dpkg -S "$library"; } 2>/dev/null | head -n 1 | cut -d: -f1)
      case $package in libc6 | libstdc++6 | libgcc-s1 | zlib1g) continue ;; esac  # these come from the system
      if [ -n "$package" ] && [ -r "/usr/share/doc/$package/copyright" ]; then
        cp -L "/usr/share/doc/$package/copyright" "$into/$package"
      fi
    done
}

unpacked_size() {
  "$python" -c 'import sys, zipfile; print(sum(f.file_size for f in zipfile.ZipFile(sys.argv[1]).infolist()))' "$1" |
    numfmt --to=iec-i --suffix=B
}

say "putting the wheel together"
gather_licenses "$work/licenses"
rm -rf "$work/plain" "$work/dist" "$work/assembly"
"$python" -m build --no-isolation --wheel --outdir "$work/plain" --config-setting=build-dir="$work/assembly" \
  --config-setting=wheel.py-api="$versions" --config-setting=cmake.define.WSYNC_BUILD_DIR="$tree" \
  --config-setting=cmake.define.WSYNC_LICENSES="$work/licenses" \
  "$root/deploy/python" >"$work/wheel.log" 2>&1 || { tail -30 "$work/wheel.log" >&2; die 1 "the wheel cannot be put together"; }
PATH=$work/env/bin:$PATH "$python" -m auditwheel repair --plat "manylinux_2_36_$(uname -m)" --only-plat --wheel-dir "$work/dist" \
  "$work"/plain/*.whl >"$work/auditwheel.log" 2>&1 || { tail -30 "$work/auditwheel.log" >&2; die 1 "auditwheel refuses the wheel"; }
wheel=$(echo "$work"/dist/*.whl)
"$python" -m auditwheel show "$wheel"
if [ ${#newer[@]} -gt 0 ]; then
  "$work/env/bin/abi3audit" --strict --summary "$wheel" >"$work/abi3audit.log" 2>&1 ||
    { cat "$work/abi3audit.log" >&2; die 1 "the wheel uses more than the stable ABI of its tag"; }
  cat "$work/abi3audit.log"
fi
say "${wheel#"$root/"}: $(stat -c %s "$wheel" | numfmt --to=iec-i --suffix=B), $(unpacked_size "$wheel") unpacked"

if [ "$test_environment" = 1 ]; then
  say "installing it into ${work#"$root/"}/test"
  if ! sha256sum <"$wheel" | cmp -s - "$work/test/wheel.txt"; then
    "$work/test/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel" ||
      die 1 "the wheel cannot be installed"
    sha256sum <"$wheel" >"$work/test/wheel.txt"
  fi
fi
