#!/usr/bin/env bash
# Checks the SPIN model of the update protocol: clean as designed, every planted variant caught for the expected reason,
# and the states that show the search is not empty are reached. One line for each run; README.md explains the columns.
#
#   tests/model/check.sh [--deep] [NAME...]     only the runs with these names; --deep adds the long ones
#
# JOBS (2) runs go at once, each within LIMIT_S (480; with --deep 600) seconds and LIMIT_MIB (2500; 6000) of state memory.
# Exit: 0 all as expected, 1 a run was not, 2 bad usage, 77 spin is not installed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
deep=0
names=()
for argument in "$@"; do
  case $argument in
    --deep) deep=1 ;;
    -*) echo "check.sh: unknown option '$argument'; expected --deep or names of runs" >&2; exit 2 ;;
    *) names+=("$argument") ;;
  esac
done
if ! command -v spin > /dev/null; then
  echo "skip: spin is not installed (Debian package 'spin'); the model of the update protocol was not checked"
  exit 77
fi
export JOBS=${JOBS:-2} LIMIT_S LIMIT_MIB
if ((deep)); then LIMIT_S=${LIMIT_S:-600} LIMIT_MIB=${LIMIT_MIB:-6000}; else LIMIT_S=${LIMIT_S:-480} LIMIT_MIB=${LIMIT_MIB:-2500}; fi

# name | expected: clean, or the property that has to fail | flags. The long ones come first, so that two cores end together;
# they are worth the compiler's optimizer.
one="-DNREP=1 -DNCO=1"
late="-DNREP=2 -DCOARSE -DLATE"   # sidecars whose Hello comes late
copies="-DIN_PLACE"              # the copies of one sidecar
lent="-DLENT_ARENA"               # the arena of a trainer and two sidecars
hop="-DHOP"                       # a trainer and a coordinator of another process
hosts="-DRESTART -DNHOST=2"       # one coordinator after the other, on two hosts with a record each
runs="
two_replicas         | clean     | -DNREP=2 -DNF=1 -DNCO=1 -DMAXSTEP=1
zombie               | clean     | -DNREP=1 -DNF=1 -DNCO=2 -DMAXSTEP=1
two_replicas_restart | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DMAXSTEP=1 -DMAXD=2 -DRESTART
two_faults           | clean     | $one -DNF=2 -DMAXSTEP=1
three_steps          | clean     | $one -DNF=0 -DMAXSTEP=3
one_fault            | clean     | $one -DNF=1 -DMAXSTEP=2
load_fails           | clean     | $one -DNF=2 -DMAXSTEP=2 -DLOAD_FAILS
adopt                | clean     | $one -DNF=1 -DMAXSTEP=2 -DADOPT -DNO_ROLLBACK
adopt_three_arenas   | clean     | $one -DNF=1 -DMAXSTEP=1 -DADOPT -DNARENA=3
disc                 | clean     | $one -DNF=1 -DMAXSTEP=1 -DDISC
coarse               | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DCOARSE
three_sidecars       | clean     | -DNREP=3 -DCOARSE -DLATE $hosts -DNF=0 -DNCO=2 -DFREE_CRASH -DMAXV=2 -DNROLL=1
late                 | clean     | $late $hosts -DNF=1 -DNCO=2
late_three           | clean     | $late $hosts -DNF=0 -DNCO=3 -DFREE_CRASH -DMAXV=2
late_rollbacks       | clean     | $late $hosts -DNF=0 -DNCO=2 -DFREE_CRASH -DMAXV=3 -DMAXD=4 -DFIRST=2 -DROLL_ANY -DNROLL=3
late_disc            | clean     | $late -DRESTART -DNF=1 -DNCO=2 -DFREE_CRASH -DDISC
late_race            | clean     | $late -DNF=1 -DNCO=2 -DMAXV=2 -DNROLL=1 -DSPLIT_CLAIM
late_zombie          | clean     | $late -DNF=1 -DNCO=2 -DMAXV=2 -DNROLL=1 -DSPLIT_CLAIM -DNHOST=2
AW_COMMIT            | withdrawn | -DNREP=2 -DNF=2 -DNCO=1 -DMAXSTEP=0 -DMAXV=2 -DHIT_ONE
AW_PERSIST           | withdrawn | -DNREP=1 -DNF=1 -DNCO=2 -DMAXSTEP=0
AW_RESUME            | withdrawn | $one -DNF=1 -DMAXSTEP=0
AW_FORWARD           | withdrawn | $one -DNF=0 -DMAXSTEP=0
AW_DEADLINE          | withdrawn | $one -DNF=1 -DMAXSTEP=1
AW_LIVE              | withdrawn | -DNREP=2 -DNF=1 -DNCO=2 -DCOARSE
AW_HELLO             | target    | $late -DNHOST=2 -DNF=0 -DNCO=2 -DMAXV=2 -DNROLL=1
AW_TARGET            | target    | $late $hosts -DNF=1 -DNCO=2
AW_NEW_ORDER         | back      | $late $hosts -DNF=1 -DNCO=2
BUG_OBEY_OLDER       | back      | $late $hosts -DNF=1 -DNCO=2
BUG_NO_RECORD        | kept      | $late -DRESTART -DNF=1 -DNCO=2
BUG_SEND_FIRST       | kept      | $late -DRESTART -DNF=1 -DNCO=2
BUG_READ_EARLY       | kept      | $late -DNF=1 -DNCO=2 -DMAXV=2 -DNROLL=1 -DSPLIT_CLAIM
BUG_RECORD_OVERWRITE | kept      | $late -DNF=1 -DNCO=2 -DMAXV=2 -DNROLL=1 -DSPLIT_CLAIM
BUG_EPOCH_RACE       | epoch     | $late -DNF=1 -DNCO=2 -DMAXV=2 -DNROLL=1 -DSPLIT_CLAIM
BUG_NO_RAISE         | rest      | $late $hosts -DNF=1 -DNCO=2
BUG_WITHDRAWN_UNSENT | rest      | $late $hosts -DNF=1 -DNCO=2
BUG_WITHDRAWN_NEWEST | rest      | $late $hosts -DNF=0 -DNCO=2 -DFREE_CRASH -DMAXV=3 -DMAXD=4 -DFIRST=2 -DROLL_ANY -DNROLL=3
BUG_DECIDE_ONCE      | rest      | $late -DRESTART -DNF=1 -DNCO=1 -DDISC
BUG_OWES_READY       | ready     | $late -DRESTART -DNF=1 -DNCO=1 -DDISC
BUG_NO_WITHDRAW      | ready     | -DNREP=2 -DNF=1 -DNCO=2 -DCOARSE
BUG_FENCE_MEM        | fence     | -DNREP=1 -DNF=1 -DNCO=2 -DMAXSTEP=0
BUG_EPOCH_ONLY       | fence     | $late -DNHOST=2 -DNF=0 -DNCO=2
BUG_LEASE_MSG        | switched  | $one -DNF=1 -DMAXSTEP=2 -DADOPT -DNO_ROLLBACK
BUG_NO_TAINT         | switched  | $one -DNF=1 -DMAXSTEP=2
BUG_FAILED_WHOLE     | switched  | $one -DNF=2 -DMAXSTEP=2 -DLOAD_FAILS
BUG_FAILED_COMMITS   | rest      | $one -DNF=1 -DMAXSTEP=2 -DLOAD_FAILS
BUG_EARLY_RESUME     | resume    | $one -DNF=0 -DMAXSTEP=2
BUG_REPAIR_ONE       | resume    | $one -DNF=1 -DMAXSTEP=2
BUG_OWN_STEP         | load      | $one -DNF=0 -DMAXSTEP=2
BUG_PAUSED_LEADER    | load      | $one -DNF=0 -DMAXSTEP=2
BUG_LEADER_RUNS      | load      | $one -DNF=1 -DMAXSTEP=2
BUG_DEADLINE_RESUME  | load      | $one -DNF=1 -DMAXSTEP=2
BUG_NO_HEADER_CHECK  | step      | $one -DNF=1 -DMAXSTEP=2
BUG_FOLLOWER_BEGINS  | rest      | $one -DNF=0 -DMAXSTEP=2
BUG_RESUME_ALL       | rest      | $one -DNF=0 -DMAXSTEP=2
BUG_NO_ABORT         | rest      | $one -DNF=1 -DMAXSTEP=2
BUG_KEEP_HEADER      | rest      | $one -DNF=1 -DMAXSTEP=2
replies              | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DCOARSE -DREPLIES
replies_ranks        | clean     | -DNREP=1 -DNF=1 -DNCO=2 -DMAXSTEP=0 -DMAXD=2 -DREPLIES
replies_late         | clean     | $late $hosts -DNF=1 -DNCO=2 -DREPLIES
three_ranks          | clean     | -DTHREE_RANKS -DNF=3 -DMAXSTEP=2
in_place             | clean     | $copies -DNF=1
in_place_three_held  | clean     | $copies -DNF=1 -DMAXV=4 -DNROLL=2 -DNHELD=3
in_place_one_arena   | clean     | $copies -DNF=1 -DMAXV=4 -DNROLL=2 -DNARENA=1 -DNO_CANARY
lent_arena           | clean     | $lent -DNF=1
lent_arena_faults    | clean     | $lent -DNF=3 -DTURNS=4
hop                  | clean     | $hop -DNF=3
hop_two_rollbacks    | clean     | $hop -DNF=2 -DNROLL=2 -DNREQ=6
BUG_HOP_TAKEN_BACK   | back      | $hop -DNF=2
BUG_HOP_ONE_NUMBER   | answered  | $hop -DNF=2
BUG_HOP_KEEP_OLDER   | newest    | $hop -DNF=2
BUG_HOP_NOT_COMPARED | rest      | $hop -DNF=1
BUG_LENT_NO_LOCK     | whole     | $lent -DNF=1
BUG_LEND_READ        | whole     | $lent -DNF=1
BUG_TAKE_ANY         | whole     | $lent -DNF=1
BUG_BASE_UNFINISHED  | whole     | $lent -DNF=1
BUG_WAIT_LOST        | rest      | $lent -DNF=1
BUG_WAIT_STUCK       | rest      | $lent -DNF=1
BUG_NO_BESIDE        | rest      | $lent -DNF=1
BUG_CHANGE_EARLY     | decided   | $copies -DNF=1
BUG_CANARY_IN_PLACE  | decided   | $copies -DNF=1
BUG_NO_LOCK          | whole     | $copies -DNF=1
BUG_LOAD_LENT        | whole     | $copies -DNF=1
BUG_BACK_SAME        | whole     | $copies -DNF=1
BUG_LOST_IS_HELD     | whole     | $copies -DNF=1
BUG_DROP_ROOT        | rest      | $copies -DNF=1
BUG_ASK_ONCE         | rest      | $late $hosts -DNF=1 -DNCO=1 -DREPLIES
BUG_OUTCOME_FENCE    | answered  | $late $hosts -DNF=1 -DNCO=2 -DMAXV=2 -DREPLIES
BUG_TWO_OF_THREE     | resume    | -DTHREE_RANKS -DNF=1
BUG_RESUME_TWO       | resume    | -DTHREE_RANKS -DNF=0
BUG_KEEP_STEP        | paused    | -DTHREE_RANKS -DNF=1
BUG_SILENT_STOP      | rest      | -DTHREE_RANKS -DNF=1
WITNESS_SERVED       | reached   | -DNREP=2 -DNF=1 -DNCO=1 -DMAXSTEP=1
WITNESS_REFUSED      | reached   | $one -DNF=1 -DMAXSTEP=2
WITNESS_FAILED       | reached   | $one -DNF=1 -DMAXSTEP=2 -DLOAD_FAILS
WITNESS_ROLLED       | reached   | $one -DNF=1 -DMAXSTEP=2
WITNESS_HELD         | reached   | $hop -DNF=2
WITNESS_BY_RECORD    | reached   | $hop -DNF=2
WITNESS_BACK         | reached   | $copies -DNF=1
WITNESS_LENT_BACK    | reached   | $lent -DNF=1
WITNESS_TORN         | reached   | $lent -DNF=1
WITNESS_GIVEN_UP     | reached   | $lent -DNF=1
WITNESS_BESIDE       | reached   | $lent -DNF=1
WITNESS_STEPS        | reached   | -DTHREE_RANKS -DNF=1
WITNESS_NO_TARGET    | reached   | $late $hosts -DNF=0 -DNCO=3 -DFREE_CRASH -DMAXV=3 -DFIRST=2 -DROLL_ANY -DNROLL=2
"
deep_runs="
two_replicas_zombie  | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DMAXSTEP=0 -DMAXD=2 -DMAXV=2
deep_restart         | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DMAXSTEP=1 -DMAXD=3 -DRESTART
deep_coarse          | clean     | -DNREP=2 -DNF=2 -DNCO=2 -DCOARSE
deep_three_faults    | clean     | $one -DNF=3 -DMAXSTEP=1
deep_replies         | clean     | -DNREP=2 -DNF=2 -DNCO=2 -DCOARSE -DMAXD=2 -DMAXV=2 -DREPLIES
deep_three_ranks     | clean     | -DTHREE_RANKS -DNF=6 -DMAXSTEP=3
deep_in_place_four   | clean     | $copies -DNF=1 -DMAXV=4 -DNROLL=2
deep_in_place        | clean     | $copies -DNF=2 -DMAXV=4 -DNROLL=2
deep_in_place_arenas | clean     | $copies -DNF=1 -DMAXV=4 -DNARENA=3
deep_load_fails      | clean     | -DNREP=2 -DNF=1 -DNCO=1 -DMAXSTEP=1 -DLOAD_FAILS
deep_no_target       | clean     | $late $hosts -DNF=0 -DNCO=3 -DFREE_CRASH -DMAXV=3 -DFIRST=2 -DROLL_ANY -DNROLL=2
deep_late_three      | clean     | $late $hosts -DNF=0 -DNCO=3 -DFREE_CRASH -DNROLL=1
deep_late_zombie     | clean     | $late -DNF=1 -DNCO=2 -DSPLIT_CLAIM -DNHOST=2
deep_late_ranks      | clean     | -DNREP=2 -DNF=1 -DNCO=2 -DMAXSTEP=0 -DMAXD=2 -DMAXV=2 -DLATE $hosts
AW_FALLBACK_NEW      | back      | $late $hosts -DNF=0 -DNCO=3 -DFREE_CRASH -DMAXV=4 -DMAXD=4 -DFIRST=2 -DROLL_ANY -DNROLL=3
"
if ((deep)); then runs="$deep_runs$runs"; fi

work=$(mktemp -d "${TMPDIR:-/tmp}/wsync-model.XXXXXX")
trap 'rm -rf "$work"' EXIT
export here work

# The property that an expression of the model states, from the text in which SPIN reports that it failed.
property_of() {
  case $1 in
    *"!(held_once)"*|*"!(ended_by_record)"*|*"!(back)"*|*"!(torn_used)"*|*"!(given_up)"*|*"!(beside)"*) echo reached ;;
    *"(mem[la[s]]==lv[s])"*|*all_whole*) echo whole ;;
    *"taken_back["*) echo back ;;
    *"(target==9)"*) echo newest ;;
    *"was_decided["*) echo answered ;;
    *"tr[0]"*) echo rest ;;
    *"hangs["*|*"off[goal]"*) echo rest ;;
    *"(b!=deciding)"*) echo decided ;;
    *"(mem[at[b]]==b)"*|*"(mem[la[r]]==lv[r])"*|*"(mem[ra]==rv)"*) echo whole ;;
    *"(comp==0)"*|*"st[target]"*|*"lv[r]"*|*"ld[0]"*) echo rest ;;
    *"met["*|*"gdone[0]!=0"*|*"steps[0]"*|*"(cwd[c]>>tgt[c])"*|"0") echo reached ;;
    *gO*) echo kept ;;
    *gall*) echo back ;;
    *gE*) echo epoch ;;
    *"(gwd[r]|"*) echo ready ;;
    *"heard["*) echo rest ;;
    *"pK["*">="*) echo answered ;;
    *"ver[1]==ver[0]"*"rs[1]!=4"*) echo resume ;;
    *"(ins[0]==0)&&(ins[1]==0)"*) echo paused ;;
    *"(ph==0)"*) echo rest ;;
    *gdone*) echo withdrawn ;;
    *gpf*) echo fence ;;
    *got*) echo target ;;
    *"cur[r]"*) echo switched ;;
    *"conn["*|*"ins[(2*0)]"*|*"rep[0]"*|*"rep[1]"*|*"cst[0]"*|*"pK["*) echo rest ;;
    *"ins[(2*r)]"*) echo paused ;;
    *"rs[x]!=1"*) echo load ;;
    *"rs[(x^1)]"*) echo resume ;;
    *"ver[x]"*) echo step ;;
    *) echo "unknown: $1" ;;
  esac
}

# check_one "name | expected | flags": prints the line, succeeds when the verdict is the expected one.
check_one() {
  local name expected flags found states="-" began ended status=0
  IFS='|' read -r name expected flags <<< "$1"
  name=${name// /}; expected=${expected// /}
  local variant=()
  case $name in AW_*|BUG_*|WITNESS_*) variant=("-D$name") ;; esac
  local level=-O0
  case $name in deep_*|in_place_*|two_replicas*|zombie|replies|AW_COMMIT) level=-O1 ;; esac
  local model=update_protocol.pml
  case $flags in
    *-DTHREE_RANKS*) model=three_ranks.pml ;;
    *-DIN_PLACE*) model=in_place.pml ;;
    *-DLENT_ARENA*) model=lent_arena.pml ;;
    *-DHOP*) model=hop.pml ;;
  esac
  mkdir "$work/$name" && cd "$work/$name" || return 1
  # shellcheck disable=SC2086  # the flags are words
  if ! { spin "${variant[@]}" $flags -a "$here/$model" &&
         "${CC:-cc}" $level -w -DSAFETY -DNOFAIR -DVECTORSZ=512 "-DMEMLIM=$LIMIT_MIB" -o pan pan.c; } > build 2>&1; then
    printf 'FAILED  %-20s does not build: %s\n' "$name" "$(tail -n 1 build)"
    return 1
  fi
  began=$(date +%s%N)
  timeout "$LIMIT_S" ./pan -n -m400000 -w22 > out 2>&1 || status=$?
  ended=$(date +%s%N)
  states=$(awk '/states, stored/ {print $1}' out)
  if grep -q 'assertion violated' out; then
    found=$(property_of "$(sed -n 's/^pan:1: assertion violated *\(.*\) (at depth.*/\1/p' out)")
  elif ((status != 0)) || grep -qE 'Search not completed|max search depth too small|out of memory|reached -DMEMLIM' out; then
    found=incomplete
  elif grep -q 'errors: 0$' out; then
    found=clean
  else
    found="error: $(grep -m 1 -E '^pan' out || echo 'no verdict in the output of pan')"
  fi
  local verdict=ok
  [[ $found == "$expected" ]] || verdict=FAILED
  printf '%-7s %-20s expected %-10s found %-10s %10s states %6s s   %s\n' "$verdict" "$name" "$expected" "$found" \
    "${states:--}" "$(awk -v ns=$((ended - began)) 'BEGIN {printf "%.1f", ns / 1e9}')" "$flags"
  rm -rf "${work:?}/$name"
  [[ $verdict == ok ]]
}
export -f check_one property_of

chosen=$(awk -F'|' -v names="${names[*]-}" '
  BEGIN {count = split(names, list, " "); for (i in list) wanted[list[i]] = 1}
  NF == 3 {name = $1; gsub(/ /, "", name); if (count == 0 || name in wanted) {print; found++}}
  END {exit found < (count ? count : 1)}' <<< "$runs") || {
  echo "check.sh: one of '${names[*]-}' is not a name of a run; the names are the first column of the table in $0" >&2
  exit 2
}
if xargs -d '\n' -n 1 -P "$JOBS" bash -c 'check_one "$0"' <<< "$chosen"; then
  echo "model: $(wc -l <<< "$chosen") runs, all as expected"
else
  echo "model: at least one run was not as expected" >&2
  exit 1
fi
