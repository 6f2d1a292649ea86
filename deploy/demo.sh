#!/usr/bin/env bash
# Installs what is missing, builds `wsync`, and runs `wsync demo` with the arguments given. A second run installs nothing and
# rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/demo.sh [--no-install] [options of `wsync demo`]

Runs a whole fleet on this machine: a trainer agent, two sidecars and their engines publish three versions, refuse a wrong
shape, lose an engine in the middle of a switch, repair it and roll back. The picture and the trace go to build/demo-results.

  --no-install      install nothing: list what is missing and stop
  -h, --help        this text, and the options of `wsync demo` once it is built

Exit status: that of `wsync demo`: 0 every step held, 1 one did not, 2 wrong arguments, 130 interrupted; 3 something is missing
on this machine.
TEXT
}

wsync=$root/build/demo/deploy/cli/wsync
options=()
output=(--output "$root/build/demo-results")
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    -h | --help)
      usage
      if [ -x "$wsync" ]; then "$wsync" demo --help; fi
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
  say "building build/demo"
  mkdir -p "$root/build"
  configure release "$root/build/demo" -DWSYNC_BUILD_TESTS=OFF || die 1 "configuring failed"
  build "$root/build/demo" wsync || die 1 "the build failed"
} >&2
exec "$wsync" demo "${output[@]}" "${options[@]}"
