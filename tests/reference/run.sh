#!/usr/bin/env bash
# Judges from Python: sets up the pinned reference packages in an environment of its own, makes the golden files anew and
# compares them with the committed ones byte for byte, lets safetensors load what wsync writes, and holds the reference model's
# logits and gradients to transformers', the optimizer's steps to torch's, a training run on four ranks to one of torch, and the
# engine's greedy texts to transformers'.
#
# Usage: tests/reference/run.sh [BUILD_DIRECTORY]    (default build/dev; must hold the built tools)
# The environment is kept in build/reference-venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/lib.sh

build=${1:-build/dev}
tool=$build/tests/reference/safetensors_tool
moe_tool=$build/tests/reference/moe_tool
wsync=$build/deploy/cli/wsync
for built in "$tool" "$moe_tool" "$wsync"; do
  [ -x "$built" ] || { echo "run.sh: $built is not built: cmake --build $build --target $(basename "$built")" >&2; exit 2; }
done

venv=build/reference-venv
python_environment "$venv" tests/golden/requirements.txt tests/reference/requirements.txt

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" tests/golden/make_vectors.py "$work/golden"
for part in good bad vectors.tsv; do diff -r "tests/golden/$part" "$work/golden/$part"; done
echo "golden files: made anew, equal to the committed ones byte for byte"

mkdir "$work/copies"
for file in tests/golden/good/*.safetensors; do "$tool" "$file" "$work/copies/$(basename "$file")"; done
"$venv/bin/python" tests/reference/check_copies.py tests/golden/good "$work/copies"

mkdir "$work/models"
"$venv/bin/python" tests/reference/check_model.py "$moe_tool" "$work/models"
"$venv/bin/python" tests/reference/check_optimizer.py "$moe_tool" "$work/models"
"$venv/bin/python" tests/reference/check_training.py "$wsync" "$work/models"
"$venv/bin/python" tests/reference/check_generation.py "$wsync" "$work/models"

# The Python package beside torch, if its wheel was made.
if compgen -G 'build/python/dist/wsync-*.whl' >/dev/null; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall build/python/dist/wsync-*.whl
  for test in torch directory_torch record shards; do "$venv/bin/python" -B "tests/python/${test}_test.py"; done
fi
