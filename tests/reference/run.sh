#!/usr/bin/env bash
# Judges from Python: sets up the pinned reference package in an environment of its own, makes the golden files anew and
# compares them with the committed ones byte for byte, and lets the package load what wsync writes.
#
# Usage: tests/reference/run.sh [BUILD_DIRECTORY]    (default build/dev; must hold the built tool)
# The environment is kept in build/reference-venv.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:-build/dev}
tool=$build/tests/reference/safetensors_tool
[ -x "$tool" ] || { echo "run.sh: $tool is not built: cmake --build $build --target safetensors_tool" >&2; exit 2; }

venv=build/reference-venv
requirements=tests/golden/requirements.txt
if ! cmp -s "$requirements" "$venv/installed.txt"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$venv/installed.txt"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" tests/golden/make_vectors.py "$work/golden"
for part in good bad vectors.tsv; do diff -r "tests/golden/$part" "$work/golden/$part"; done
echo "golden files: made anew, equal to the committed ones byte for byte"

mkdir "$work/copies"
for file in tests/golden/good/*.safetensors; do "$tool" "$file" "$work/copies/$(basename "$file")"; done
"$venv/bin/python" tests/reference/check_copies.py tests/golden/good "$work/copies"
