#!/usr/bin/env bash
# Installs what is missing, builds `wsync`, and runs a fleet on this machine: a coordinator, two sidecars with four separate
# host devices each, and engines, all as processes of their own. A second run installs nothing and rebuilds nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
Usage: deploy/demo.sh [--no-install] [--size SIZE] [--engines N]

Makes three checkpoints in the Qwen3-MoE layout, publishes each to every engine and reads back what the engines hold, shows a
refusal (a wrong shape), kills an engine and brings it back, and rolls back once.

  --no-install      install nothing: list what is missing and stop
  --size SIZE       bytes of one checkpoint (default: 256MiB)
  --engines N       engines of each sidecar, at most 4 (default: 2)
  -h, --help        this text

Exit status: 0 when every step held, 1 when one did not, 2 wrong arguments, 3 something is missing on this machine.
TEXT
}

size=256MiB
engines=2
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) may_install=0 ;;
    --size | --engines)
      [ $# -ge 2 ] || die 2 "$1 needs a value; see --help"
      if [ "$1" = --size ]; then size=$2; else engines=$2; fi
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) die 2 "unknown argument '$1'; see --help" ;;
  esac
  shift
done
case $engines in [1-4]) ;; *) die 2 "--engines is '$engines'; expected 1 to 4" ;; esac

ensure "$build_needs"
say "building build/demo"
mkdir -p "$root/build"
configure release "$root/build/demo" -DWSYNC_BUILD_TESTS=OFF || die 1 "configuring failed"
build "$root/build/demo" wsync || die 1 "the build failed"
wsync=${WSYNC:-$root/build/demo/deploy/cli/wsync}

work=$(mktemp -d)
pids=()
finish() {
  local code=$?
  trap - EXIT
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  [ "$code" = 0 ] || tail -n 5 "$work"/*.log >&2 || true
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM
export WSYNC_RUN_DIR=$work/run WSYNC_STATE_DIR=$work/state
fleet=(--coordinator "ipc://$work/run/control")

# Tries a command until it holds, for a minute at most.
until_holds() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die 1 "$what did not come within a minute"
    sleep 0.2
  done
}
start_engine() { # SIDECAR DEVICE
  "$wsync" engine --sidecar "$work/run/$1.engines" --checkpoint "$work/step_1" --replica "$1-$2" --device "$2" \
    >>"$work/engine-$1-$2.log" 2>&1 &
  pids+=($!)
  last=$!
}
all_ready() { # VERSION: every replica serves it
  [ "$("$wsync" status "${fleet[@]}" | grep -cE "^  replica .* $1 +serving +ready")" = $((2 * engines)) ]
}

say "three checkpoints of $size, and one with a wrong shape"
for step in 1 2 3; do "$wsync" make-checkpoint "$work/step_$step" --size "$size" --seed "$step"; done
"$wsync" make-checkpoint "$work/wrong" --size "$size" --wrong-shape model.layers.0.self_attn.q_proj.weight
say "two sidecars with four separate devices each, $engines engines on each, one coordinator"
for sidecar in host0 host1; do
  "$wsync" sidecar --set name=$sidecar --set devices.kind=separate --set devices.count=4 >"$work/$sidecar.log" 2>&1 &
  pids+=($!)
  until_holds "sidecar $sidecar" test -S "$work/run/$sidecar.engines"
  for ((device = 0; device < engines; ++device)); do start_engine $sidecar $device; done
done
"$wsync" trainer --set min_sidecars=2 --set min_replicas=$((2 * engines)) --set arenas=4 >"$work/trainer.log" 2>&1 &
pids+=($!)
attached() { [ "$("$wsync" status "${fleet[@]}" | grep -c 'ranks 1/1')" = $((2 * engines)) ]; }
until_holds "every engine" attached
for step in 1 2 3; do
  say "publish step_$step, then read back what every engine holds"
  "$wsync" push "$work/step_$step" --step $step "${fleet[@]}"
  "$wsync" verify "${fleet[@]}"
done
say "a checkpoint with a wrong shape is refused before anything moves"
if "$wsync" push "$work/wrong" "${fleet[@]}"; then die 1 "the wrong shape was taken"; fi
say "an engine is killed and started again: it is brought back to the version that the others serve"
kill -9 "$last"
gone() { "$wsync" status "${fleet[@]}" | grep -q 'ranks 0/1'; }
until_holds "the loss of the engine" gone
"$wsync" status "${fleet[@]}"
start_engine host1 $((engines - 1))
until_holds "the engine's repair" all_ready '[0-9]+\.3'
"$wsync" verify "${fleet[@]}"
say "rollback: one step back, the newer version is withdrawn"
"$wsync" rollback "${fleet[@]}"
"$wsync" verify "${fleet[@]}"
"$wsync" status "${fleet[@]}"
say "every step held"
