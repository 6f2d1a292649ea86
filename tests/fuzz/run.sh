#!/usr/bin/env bash
# Runs each libFuzzer target of a build with WSYNC_SANITIZER=address by Clang for some seconds, from its kept corpus.
# Usage: run.sh BUILD_FOLDER [SECONDS]. New inputs go to BUILD_FOLDER/corpus; an input that fails is kept there and named.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
[ $# -ge 1 ] || { sed -n '2,3p' "$0" >&2; exit 2; }
folder=$1
seconds=${2:-30}
shopt -s nullglob
targets=("$folder"/tests/fuzz/fuzz_*)
count=0
pids=()
for target in "${targets[@]}"; do
  [ -x "$target" ] && [ -f "$target" ] || continue
  name=$(basename "$target")
  name=${name#fuzz_}
  mkdir -p "$folder/corpus/$name"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$folder/corpus/$name-failure-" "$folder/corpus/$name" "$here/corpus/$name" \
    >"$folder/corpus/$name.log" 2>&1 &
  pids+=("$!:$name")
  count=$((count + 1))
  # Two at a time.
  if [ $((count % 2)) = 0 ]; then wait "${pids[-1]%%:*}" || true; fi
done
[ "$count" -gt 0 ] || { echo "no fuzz targets in $folder/tests/fuzz" >&2; exit 2; }
failed=0
for entry in "${pids[@]}"; do
  name=${entry#*:}
  if wait "${entry%%:*}"; then
    printf '%-12s %s\n' "$name" "$(sed -nE 's/^stat::number_of_executed_units: +/runs: /p' "$folder/corpus/$name.log")"
  else
    failed=1
    printf '%-12s FAILED\n' "$name"
    tail -20 "$folder/corpus/$name.log"
  fi
done
exit $failed
