#!/usr/bin/env bash
# Checks the model with spin: each configuration and property is one test, and so is each planted fault, which must be
# found. Prints 'ok NAME', or 'not ok NAME' with what spin said and the end of the trail. Usage: run.sh WORK-FOLDER [NAME…]
set -euo pipefail
SELF=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run.sh

MODEL=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/idempotency.pml
STEPS_MAX=20000
MEMORY_MB=3000
SECONDS_MAX=300

# covers|holds|breaks  name  property  -D…
#   covers: the property holds in the whole state space, and every step of the model was taken in it
#   holds:  the property holds in the whole state space
#   breaks: the property is seen to break
cases() {
    local kind name defines
    while read -r name defines; do
        echo "covers $name-safe safe $defines -DTROUBLES=3"
        echo "holds $name-progress no_key_stuck $defines -DTROUBLES=2"
    done <<'CONFIGURATIONS'
local -DLOCAL
external -DEXTERNAL
keyed -DKEYED
local-async -DLOCAL -DASYNC
external-async -DEXTERNAL -DASYNC
keyed-async -DKEYED -DASYNC
local-run -DLOCAL -DRUN
external-run -DEXTERNAL -DRUN
external-no-worker -DEXTERNAL -DNO_WORKER
CONFIGURATIONS
    for kind in LOCAL EXTERNAL; do
        echo "holds ${kind,,}-three-callers-safe safe -D$kind -DCLIENTS=3 -DTROUBLES=2"
    done
    cat <<'FAULTS'
breaks no-lock-external one_effect -DEXTERNAL -DNO_LOCK_FAULT
breaks no-lock-local one_effect -DLOCAL -DNO_LOCK_FAULT
breaks no-fence-local one_effect -DLOCAL -DNO_FENCE_FAULT
breaks no-fence-external result_kept -DEXTERNAL -DNO_FENCE_FAULT
breaks fence-of-the-clock-alone fences_grow -DLOCAL -DCLOCK_FENCE_FAULT
breaks completed-in-a-second-transaction one_effect -DLOCAL -DSECOND_TRANSACTION_FAULT
breaks prune-in-use-effect one_effect -DLOCAL -DPRUNE_IN_USE_FAULT
breaks prune-in-use-completion completion_kept -DLOCAL -DPRUNE_IN_USE_FAULT
breaks lease-end-executes one_effect -DEXTERNAL -DLEASE_END_EXECUTES_FAULT
breaks no-takeover no_key_stuck -DLOCAL -DNO_TAKEOVER_FAULT
breaks provider-forgets one_effect -DKEYED -DPROVIDER_FORGETS_FAULT
breaks renewal-not-flushed one_effect -DEXTERNAL -DASYNC -DRENEWAL_NOT_FLUSHED_FAULT
breaks replay-of-a-leaving-record result_kept -DLOCAL -DRUN -DREPLAY_OF_LEAVING_FAULT
breaks replay-for-a-run-without-lock completion_kept -DLOCAL -DRUN -DREPLAY_FOR_RUN_FAULT
FAULTS
}

# What the trail does, step by step, without what spin says of itself.
show_trail() {
    spin -t -p -g "$@" model.pml 2>/dev/null | grep -vE 'LTL|never claim|Never claim|^\s*(own|found)\[' | tail -n 150
}

# check covers|holds|breaks NAME PROPERTY -D…: in the folder NAME of the current one.
check() {
    local expected=$1 name=$2 property=$3 options=() build=(-DSAFETY) verdict='not ok'
    shift 3
    mkdir -p "$name"
    cd "$name"
    cp "$MODEL" model.pml
    # Without weak fairness a caller that is never scheduled would be a key that is stuck.
    if [[ $property == no_key_stuck ]]; then options=(-a -f) build=(-DNFAIR=3); fi
    # A fault is found after few states: compiling is what takes time.
    if [[ $expected == breaks ]]; then build+=(-O0); else build+=(-O1); fi
    if spin -a "$@" model.pml >spin.log 2>&1 && gcc -w "${build[@]}" "-DMEMLIM=$MEMORY_MB" -o pan pan.c >gcc.log 2>&1; then
        timeout "$SECONDS_MAX" ./pan "-m$STEPS_MAX" "${options[@]}" -N "$property" >pan.log 2>&1 || true
        "$expected" && verdict=ok
    fi
    if [[ $verdict == ok ]]; then
        printf 'ok %s (%s states)\n' "$name" "$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' pan.log)"
    else
        {
            printf 'not ok %s: %s %s with %s\n' "$name" "$property" "$expected" "$*"
            grep -hvE '^ltl' spin.log gcc.log pan.log | tail -n 60 || true
            [[ ! -e model.pml.trail ]] || show_trail "$@" || true
        } >report 2>/dev/null
        cat report
    fi
    rm -f pan pan.? model.pml
}

holds() {
    grep -q 'errors: 0$' pan.log && ! grep -qE 'search depth too small|out of memory|Search not completed' pan.log
}

covers() {
    holds && grep -q 'unreached in proctype Client' pan.log && ! grep -E '^\s+model\.pml:' pan.log | grep -qv -- '-end-'
}

breaks() {
    grep -q 'errors: 1$' pan.log && grep -qE '^pan:1: (assertion violated|acceptance cycle)' pan.log &&
        [[ -s model.pml.trail ]]
}

if [[ ${1:-} == --check ]]; then
    shift
    check "$@"
    exit
fi

work=${1:?a folder to work in}
shift
rm -rf "$work"
mkdir -p "$work"
cd "$work"
wanted=" $* "
cases | while read -r expected name rest; do
    [[ $wanted == '  ' || $wanted == *" $name "* ]] || continue
    echo "$expected $name $rest"
done | xargs -P "$(nproc)" -L 1 "$SELF" --check
