#!/usr/bin/env bash
# Proves Tessera's CUDA backend on a machine with a GPU, in under ten minutes and without a network:
# builds, tests, compares strategies and devices, checks with compute-sanitizer, then measures.
#
#   bench/gpu/verify.sh --out DIR [--deps FILE] [--seconds N] [--only NAME,NAME...] [--quick]
#
#   --out      results, rewritten after each step: verify.json and verify.md (steps, goals and whether
#              they are met), logs.txt, kernels.json, attention.json, compare_torch.json
#   --deps     the file that carry.sh wrote; not needed where the packages are installed
#   --seconds  for everything (570): later steps get what is left, or are not run
#   --only     these steps or groups (below), after a build, which takes seconds if it is there already;
#              what earlier calls found, of the same sources, stays in the report
#   --quick    nothing beside PyTorch
#
# What is right or wrong comes first. Where ten minutes are too short for all measurements, two calls
# on one machine make one report:
#
#   bench/gpu/verify.sh --out DIR --deps FILE --only warm,right,nccl
#   bench/gpu/verify.sh --out DIR --deps FILE --only speed
#
# Exits with 1 if a step failed or found no time left, with 3 if none did but a goal was missed or a step
# has not been run, with 130 if it was interrupted. A step whose tool is missing is skipped, with the
# reason.
set -uo pipefail

# The steps in the report's order: NAME, LIMIT in seconds, GROUP; steps.sh does them. Groups are run as
# they follow:
#   warm   beside all others, and over before anything is measured
#   build  without it nothing else is run
#   right  right or wrong, not fast or slow: together
#   nccl   likewise, beside `right`, but in turn: each has several processes that wait for each other,
#          and all share one GPU
#   speed  in turn, with the GPU to themselves; the last gets all the time that is left
readonly steps='
  warm_torch             240  warm
  build                  240  build
  environment             30  right
  gpu_kernels            120  right
  gpu_steps              120  right
  gpu_collectives        120  right
  graph_equals_eager      60  right
  strategies_on_one_gpu  120  right
  ranks_near_cpu         120  right
  memcheck               150  right
  racecheck              150  right
  nccl_2_processes        40  nccl
  nccl_4_processes        40  nccl
  train_over_nccl_2       60  nccl
  train_over_nccl_4       60  nccl
  kernel_speed            60  speed
  attention_speed         60  speed
  compare_torch          400  speed
'
self=$(realpath "${BASH_SOURCE[0]}")
readonly self command="$0 $*"
cd "$(dirname "$self")/../.." || exit 1

usage() {
  [[ -z ${1-} ]] || printf 'verify.sh: %s\n\n' "$1"
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$self"
  exit 2
} >&2
known() { # NAME of a step or group
  awk -v name="$1" '$1 == name || $3 == name { found = 1 } END { exit !found }' <<<"$steps"
}

deps='' out='' only='' quick=0 seconds=570
while (($#)); do
  [[ $1 == --quick ]] && quick=1 && shift && continue
  [[ -n ${2-} ]] || usage "$1 needs a value, or is none of the options"
  case $1 in
    --deps) deps=$(realpath -e "$2") || usage "there is no file $2" ;;
    --out) out=$(mkdir -p "$2" && realpath "$2") || usage "cannot make the folder $2" ;;
    --seconds)
      [[ $2 =~ ^[0-9]+$ ]] || usage "--seconds takes a number, not '$2'"
      seconds=$2
      ;;
    --only)
      only=$2
      for name in ${only//,/ }; do
        known "$name" || usage "there is no step or group '$name'"
      done
      ;;
    *) usage "there is no option $1" ;;
  esac
  shift 2
done
[[ -n $out ]] || usage "--out is missing"
for tool in python3 timeout flock tar; do
  command -v $tool >/dev/null || usage "needs $tool, which is not on the PATH"
done
readonly deps out only quick seconds
readonly build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
readonly work=$build/verify # $out may take only few files

wanted() { # NAME GROUP
  [[ $quick == 0 || ! $1 =~ ^(warm_torch|attention_speed|compare_torch)$ ]] || return 1
  [[ -z $only || $2 == build || ,$only, == *,$1,* || ,$only, == *,$2,* ]]
}

report() { # ARGS…: of report.py
  {
    flock 9
    python3 bench/gpu/report.py --work "$work" --out "$out" --command "$command" \
      --steps "$(awk '{ print $1 }' <<<"$steps" | paste -sd' ')" --revision-file "$build/deps/REVISION" "$@"
  } 9>"$work/lock"
}

# run_step NAME LIMIT: runs a step and adds its verdict to the report. Exit code 77: skipped, for the
# reason in its last line.
run_step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 log=$work/$1.log verdict
  ((limit <= seconds - SECONDS)) || limit=$((seconds - SECONDS))
  if [[ -e $work/stopped ]]; then
    return 1
  elif ((limit <= 5)); then
    echo "found no time left" >"$log"
    report --add "$name" "FAILED (no time left)" 0 >/dev/null
    return 1
  fi
  echo "== $name" >&2
  timeout -k 5 "$limit" bench/gpu/steps.sh "$name" "$limit" </dev/null >"$log" 2>&1 &
  echo $! >"$work/running/$name"
  [[ ! -e $work/stopped ]] || kill $!
  wait $! || status=$?
  rm "$work/running/$name"
  case $status in
    0) verdict=ok ;;
    77) verdict="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) verdict="FAILED (over $limit s)" ;;
    *) verdict="FAILED ($status)" ;;
  esac
  [[ ! -e $work/stopped || $status == 0 ]] || verdict="FAILED (interrupted)"
  report --add "$name" "$verdict" $((SECONDS - begin)) >/dev/null
  [[ $verdict == FAILED* ]] || return 0
  { echo "-- $name: $verdict" && tail -n 15 "$log"; } >&2
  return 1
}

steps_of() { # GROUP: name and limit of each of its steps that is wanted
  local name limit group
  while read -r name limit group; do
    [[ $group != "$1" ]] || ! wanted "$name" "$group" || echo "$name $limit"
  done <<<"$steps"
}
in_turn() { # GROUP
  local name limit failed=0
  while read -r name limit; do
    run_step "$name" "$limit" || failed=1
  done < <(steps_of "$1")
  return $failed
}
together() { # GROUP
  local name limit
  while read -r name limit; do
    run_step "$name" "$limit" &
  done < <(steps_of "$1")
  wait
}

# Ends what is running, reports, and exits with STATUS. Steps are process groups of their own, which
# Ctrl-C does not reach.
end_early() { # STATUS
  trap '' INT TERM HUP
  touch "$work/stopped"
  cat "$work"/running/* 2>/dev/null | xargs -r kill 2>/dev/null
  wait
  report
  exit "$1"
}

mkdir -p "$work"
rm -rf "$work/running" "$work/stopped"
mkdir "$work/running"
if [[ -n $deps && ! $build/deps -nt $deps ]]; then
  mkdir -p "$build/deps" && tar -xzf "$deps" -C "$build/deps" && touch "$build/deps" || exit 1
fi
report --begin "$([[ -n $only ]] && echo continue || echo fresh)" >/dev/null
trap 'end_early 130' INT TERM HUP

in_turn warm &
in_turn build &
wait $! || {
  grep -m 5 -A 10 -E 'error|FAILED|is missing|No CUDA compiler' "$work/build.log" >&2
  end_early 1
}
together right &
in_turn nccl &
wait
in_turn speed &
wait
report
