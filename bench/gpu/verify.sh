#!/usr/bin/env bash
# Proves Tessera's CUDA backend on a machine with a GPU, without a network: tests it, measures it, and
# prints each figure beside its prediction and its goal. What finds most in the least time comes first.
#
#   bench/gpu/verify.sh --out DIR [--deps FILE] [--call first|second] [--seconds N] [--only STEP,STEP...]
#                       [--fresh]
#
#   --out      results, rewritten after each step: verify.md and verify.json (steps; figures, predictions,
#              goals), measured.json, tests.xml, logs.txt
#   --deps     the file that carry.sh wrote: its programs are run if they are of these sources, else
#              programs are built with its packages. Not needed where the packages are installed
#   --call     what decides most in the fewest minutes: `first`, of 560 s, measures power, GEMMs, steps in
#              turns with peers, and kernels; `second`, of 180 s, tests families, kernels for races and
#              fine-tuning. What does not fit is reported as not run, and a later call does it
#   --seconds  for everything (570, or the call's): a step is begun if half of its limit is left
#   --only     these steps (below), even if they are done
#   --fresh    forgets what --out has
#
# A second call with the same --out goes on where the first ended: steps that came to a good end with the
# same sources and the same model of GPU are not done again, and those that failed come last. --out is
# all that it needs: it may come from another machine.
#
# Exits with 1 if a step failed, with 3 if none did but a goal was missed or a step has not been run, with
# 130 if it was interrupted. A step whose tool is missing is skipped, with the reason.
set -uo pipefail

# The steps: NAME, LIMIT in seconds; steps.sh does them. One after the other, each has the GPU to itself,
# but for those that test and do not measure: neighbours marked `together` run side by side.
# `build` is done in each call, since without it nothing else is.
readonly steps='
  build                  300
  environment             15
  racecheck              180 together
  memcheck               120 together
  kernel_suites          120 together
  cudnn_near_own          60 together
  step_suites            120 together
  collective_suites      120 together
  graph_equals_eager      60 together
  strategies_on_one_gpu   90 together
  stages_on_one_gpu       20 together
  ranks_near_cpu         120 together
  nccl_2_processes        20
  train_over_nccl_2       40
  power                   40
  speed_1558m            120
  gemm_table              60
  speed_with_table        60
  kernel_speed            20
  peers                  300
  nccl_4_processes        20
  train_over_nccl_4       60
  sharding_overhead       20
  speed_sizes             70
  profile                 60
  attention_speed         60
  packed_samples          20
  families               170
  fine_tune               90
  peft                    60
  offload                120
  predicted_steps        150
'
# By call: its steps, what decides most first.
readonly -A calls=(
  [first]='environment power gemm_table speed_1558m speed_with_table peers kernel_speed attention_speed profile'
  [second]='families racecheck packed_samples fine_tune peft offload predicted_steps'
)
readonly -A call_seconds=([first]=560 [second]=180)
self=$(realpath "${BASH_SOURCE[0]}")
readonly self command="$0 $*"
cd "$(dirname "$self")/../.." || exit 1

usage() {
  [[ -z ${1-} ]] || printf 'verify.sh: %s\n\n' "$1"
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$self"
  exit 2
} >&2
limit_of() { # STEP
  awk -v name="$1" '$1 == name { print $2 }' <<<"$steps"
}

deps='' out='' only='' call='' begin=continue seconds=''
while (($#)); do
  [[ $1 == --fresh ]] && begin=fresh && shift && continue
  [[ -n ${2-} ]] || usage "$1 needs a value, or is none of the options"
  case $1 in
    --deps) deps=$(realpath -e "$2") || usage "there is no file $2" ;;
    --out) out=$(mkdir -p "$2" && realpath "$2") || usage "cannot make the folder $2" ;;
    --seconds)
      [[ $2 =~ ^[0-9]+$ ]] || usage "--seconds takes a number, not '$2'"
      seconds=$2
      ;;
    --call)
      call=$2
      [[ -n ${calls[$call]-} ]] || usage "--call is first or second, not '$call'"
      ;;
    --only)
      only=$2
      for name in ${only//,/ }; do
        [[ -n $(limit_of "$name") ]] || usage "there is no step '$name'"
      done
      ;;
    *) usage "there is no option $1" ;;
  esac
  shift 2
done
[[ -n $out ]] || usage "--out is missing"
[[ -z $only || -z $call ]] || usage "--only and --call both say which steps; leave one out"
seconds=${seconds:-${call_seconds[${call:-none}]-570}}
for tool in python3 timeout tar; do
  command -v $tool >/dev/null || usage "needs $tool, which is not on the PATH"
done
readonly deps out only call begin seconds
readonly build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
readonly work=$build/verify # $out may take only few files

report() { # ARGS…: of report.py
  python3 bench/gpu/report.py --work "$work" --out "$out" --command "$command" \
    --steps "$(awk '{ print $1 }' <<<"$steps" | paste -sd' ')" --deps "$build/deps" "$@"
}

# run_steps NAME...: runs steps side by side and adds their verdicts to the report. Exit code 77 of one:
# skipped, for the reason in its last line.
declare -A running=() # by process: its step
run_steps() {
  local name left status process verdict began=$SECONDS failed=0
  local -A limits=()
  for name; do
    left=$((seconds - SECONDS)) limits[$name]=$(limit_of "$name")
    if ((left < limits[$name] / 2)); then
      echo "-- $name: not run, $left s are left" >&2
      [[ $name != build ]] || failed=1
      continue
    fi
    ((limits[$name] <= left)) || limits[$name]=$left
    echo "== $name" >&2
    timeout -k 5 "${limits[$name]}" bench/gpu/steps.sh "$name" "${limits[$name]}" </dev/null >"$work/$name.log" 2>&1 &
    running[$!]=$name
  done
  while ((${#running[@]})); do
    status=0
    wait -n -p process "${!running[@]}" || status=$?
    name=${running[$process]}
    unset "running[$process]"
    case $status in
      0) verdict=ok ;;
      77) verdict="skipped: $(tail -n 1 "$work/$name.log")" ;;
      124 | 137) verdict="FAILED (over ${limits[$name]} s)" ;;
      *) verdict="FAILED ($status)" ;;
    esac
    report --add "$name" "$verdict" $((SECONDS - began)) >/dev/null
    if [[ $verdict == FAILED* ]]; then
      failed=1
      { echo "-- $name: $verdict" && tail -n 15 "$work/$name.log"; } >&2
    fi
  done
  return $failed
}

# Ends what is running, reports, and exits with STATUS. A step is a process group of its own, which Ctrl-C
# does not reach.
end_early() { # STATUS
  trap '' INT TERM HUP
  local process
  ((!${#running[@]})) || kill "${!running[@]}" 2>/dev/null
  for process in "${!running[@]}"; do
    wait "$process"
    report --add "${running[$process]}" "FAILED (interrupted)" 0 >/dev/null
  done
  report
  exit "$1"
}

mkdir -p "$work"
if [[ -n $deps && ! $build/deps -nt $deps ]]; then
  mkdir -p "$build/deps" && tar -xzf "$deps" -C "$build/deps" && touch "$build/deps" || exit 1
fi
done_before=" $(report --begin $begin) " || exit 1
trap 'end_early 130' INT TERM HUP

run_steps build || {
  grep -m 5 -A 10 -E 'error|FAILED|is missing|No CUDA compiler' "$work/build.log" >&2
  end_early 1
}
# begin_step NAME [together]: alone, or with the neighbours of its kind, once all of them are known.
neighbours=()
run_neighbours() {
  ((!${#neighbours[@]})) || run_steps "${neighbours[@]}"
  neighbours=()
}
begin_step() {
  [[ ${2-} == together ]] || run_neighbours
  neighbours+=("$1")
  [[ ${2-} == together ]] || run_neighbours
}
in_order() { # the rows of the steps that this call may do
  [[ -n $call ]] || { echo "$steps" && return; }
  local name
  for name in ${calls[$call]}; do awk -v name="$name" '$1 == name { print $1, $2 }' <<<"$steps"; done
}
again=''
while read -r name _ how; do
  [[ -n $name && $name != build ]] || continue
  if [[ -n $only ]]; then
    [[ ,$only, != *,$name,* ]] || begin_step "$name" "$how"
  elif [[ $done_before == *" $name "* ]]; then
    continue
  elif [[ -e $work/steps/$name.json ]]; then
    again+=" $name"
  else
    begin_step "$name" "$how"
  fi
done < <(in_order)
run_neighbours
for name in $again; do # what failed beside others has the GPU to itself
  run_steps "$name"
done
report
