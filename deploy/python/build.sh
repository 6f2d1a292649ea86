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

  --build-dir DIR     take the compiled parts from this build of the tree, which has WSYNC_PYTHON=ON, and compile only what is not
                      up to date there; default: a release build of the service alone, in build/python/tree
  --test-environment  also install the wheel into build/python/test, an environment that has NumPy only
  --no-install        install no Debian packages, and no Python packages: say what is missing, and stop
  -h, --help          this text

Exit status: 0 the wheel is there, 1 a step failed, 2 wrong arguments, 3 a requirement is missing on this machine.
TEXT
}

tree=""
test_environment=0
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    --test-environment) test_environment=1 ;;
    --build-dir)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      tree=$(realpath -m "$2")
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done

work=$root/build/python
python=$work/env/bin/python
mkdir -p "$work"
ensure "$build_needs" "$python_needs"
ensure_python
[ -n "$(python_options)" ] || die 3 "the build tools are not in build/python; see above"

if [ -z "$tree" ]; then
  tree=$work/tree
  ensure_cuda
  mapfile -t options < <(python_options)
  configure release "$tree" -DWSYNC_BUILD_{TESTS,BENCH,ENGINE,TRAIN}=OFF "${options[@]}" || die 1 "configuring failed"
fi
grep -qx 'WSYNC_PYTHON:BOOL=ON' "$tree/CMakeCache.txt" 2>/dev/null ||
  die 2 "--build-dir: $tree is no build of the tree with WSYNC_PYTHON=ON"
say "building ${tree#"$root/"}"
build "$tree" wsync_python wsync || die 1 "the build failed"

# The licence of each library that will be bundled, as Debian has it.
gather_licenses() {
  local into=$1 library package
  rm -rf "$into"
  mkdir -p "$into"
  ldd "$tree"/deploy/python/extension/core.*.so "$tree/deploy/cli/wsync" | sed -nE 's/.* => (\/[^ ]+) .*/\1/p' | sort -u |
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
  --config-setting=cmake.define.WSYNC_BUILD_DIR="$tree" --config-setting=cmake.define.WSYNC_LICENSES="$work/licenses" \
  "$root/deploy/python" >"$work/wheel.log" 2>&1 || { tail -30 "$work/wheel.log" >&2; die 1 "the wheel cannot be put together"; }
PATH=$work/env/bin:$PATH "$python" -m auditwheel repair --plat "manylinux_2_36_$(uname -m)" --only-plat --wheel-dir "$work/dist" \
  "$work"/plain/*.whl >"$work/auditwheel.log" 2>&1 || { tail -30 "$work/auditwheel.log" >&2; die 1 "auditwheel refuses the wheel"; }
wheel=$(echo "$work"/dist/*.whl)
"$python" -m auditwheel show "$wheel"
say "${wheel#"$root/"}: $(stat -c %s "$wheel" | numfmt --to=iec-i --suffix=B), $(unpacked_size "$wheel") unpacked"

if [ "$test_environment" = 1 ]; then
  say "installing it into build/python/test"
  if ! sha256sum <"$wheel" | cmp -s - "$work/test/wheel.txt"; then
    "$work/test/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel" ||
      die 1 "the wheel cannot be installed"
    sha256sum <"$wheel" >"$work/test/wheel.txt"
  fi
fi
