#!/usr/bin/env bash
# Installs missing packages, builds `wsync`, and runs `wsync demo` with the given arguments. A second run installs nothing and
# rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/demo.sh [--no-install] [--tested] [options of `wsync demo`]

Runs a whole fleet on this machine, with a trainer, two sidecars and their engines. The demo publishes three versions, refuses a
wrong shape, kills an engine during a switch, repairs it and rolls back. With --train, four processes train a model, and two
engines load the weights of every step. With --rl, a policy learns from its own answers. Pictures and traces are written to
build/demo-results.

  --no-install      install nothing: list the missing packages and stop
  --tested          use the build of deploy/test.sh, in build/dev; otherwise a release build, in build/demo
  -h, --help        this text, and the options of `wsync demo` once it is built

Exit status: that of `wsync demo`: 0 every step succeeded, 1 a step failed, 2 wrong arguments, 130 interrupted; 3 a requirement
is missing on this machine.
TEXT
}

folder=$root/build/demo
options=()
output=(--output "$root/build/demo-results")
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    --tested) folder=$root/build/dev ;;
    -h | --help)
      usage
      if [ -x "$folder/deploy/cli/wsync" ]; then "$folder/deploy/cli/wsync" demo --help; fi
      exit 0
      ;;
    *)
      if [[ $1 == --output* ]]; then output=(); fi
      options+=("$1")
      ;;
  esac
  shift
done

{
  ensure "$build_needs"
  if [ "$folder" = "$root/build/dev" ]; then
    [ -e "$folder/CMakeCache.txt" ] || die 2 "--tested: build/dev does not exist; run deploy/test.sh first, or omit --tested"
  else
    mkdir -p "$root/build"
    configure release "$folder" -DWSYNC_BUILD_TESTS=OFF || die 1 "configuring failed"
  fi
  say "building ${folder#"$root/"}"
  build "$folder" programs || die 1 "the build failed"
} >&2
exec "$folder/deploy/cli/wsync" demo "${output[@]}" "${options[@]}"
