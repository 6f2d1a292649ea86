#!/usr/bin/env bash
# Installs what is missing, builds `wsync` and runs its demo. A second run installs nothing and rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/demo.sh [--no-install] [options of `wsync demo`]

Installs what is missing (Debian 12, as root or with sudo), builds into build/demo, and runs `wsync demo` with the options
given, in the current folder.

  --no-install      install nothing: list what is missing and stop
  -h, --help        this text, and the demo's own once it is built

Exit status: that of `wsync demo` (deploy/cli/README.md), or 3 when something is missing on this machine.
Examples: deploy/demo.sh
          deploy/demo.sh --size 1GiB --engines 2
TEXT
}

arguments=()
help=0
for argument in "$@"; do
  case $argument in
    --no-install) may_install=0 ;;
    -h | --help) help=1; arguments+=("$argument") ;;
    *) arguments+=("$argument") ;;
  esac
done
wsync=$root/build/demo/deploy/cli/wsync
if [ "$help" = 1 ]; then
  usage
  [ ! -x "$wsync" ] || exec "$wsync" demo --help
  exit 0
fi

ensure "$build_needs"
say "building build/demo"
mkdir -p "$root/build"
configure release "$root/build/demo" -DWSYNC_BUILD_TESTS=OFF || die 1 "configuring failed"
build "$root/build/demo" wsync || die 1 "the build failed"
exec "$wsync" demo "${arguments[@]}"
