#!/usr/bin/env bash
# Proves Tessera's CUDA backend on a machine with a GPU, in under ten minutes and without a network:
# builds, tests, measures, compares strategies and devices, checks with compute-sanitizer.
#
#   bench/gpu/verify.sh --out DIR [--deps FILE] [--seconds N] [--only STEP,STEP...] [--quick]
#   bench/gpu/verify.sh --out DIR [--deps FILE] --step STEP
#
#   --out      results, rewritten after each step: verify.json and verify.md (steps, goals and whether
#              they are met), logs.txt, kernels.json, attention.json, compare_torch.json
#   --deps     the file that carry.sh wrote; not needed where the packages are installed
#   --seconds  for everything (570): later steps get what is left, or are not run
#   --only     these steps; the build before them takes seconds if it is there already
#   --quick    nothing beside PyTorch
#   --step     one step of the build that is there, without a limit; what it says goes to the terminal
#
# Exits with 1 if a step failed or did not come to run, with 3 if all succeeded but a goal was missed. A
# step whose tool is missing is skipped, with the reason.
set -uo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
readonly self command="$0 $*"
cd "$(dirname "$self")/../.." || exit 1

deps='' out='' only='' one='' quick=0 seconds=570
while (($#)); do
  case $1 in
    --deps) deps=$(realpath -e "${2:?}") && shift ;;
    --out) out=$(mkdir -p "${2:?}" && realpath "$2") && shift ;;
    --seconds) seconds=${2:?} && shift ;;
    --only) only=,${2:?}, && shift ;;
    --step) one=${2:?} && shift ;;
    --quick) quick=1 ;;
    *) out='' && break ;;
  esac
  shift
done
[[ -n $out ]] || {
  sed -n '2,19s/^# \{0,1\}//p' "$self" >&2
  exit 2
}
readonly deps out only one quick seconds
readonly build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
readonly program=$build/bin/tessera
readonly work=$build/verify # logs, and runs' own files: $out may take only few
readonly tokens=$work/tokens.bin
mkdir -p "$work/steps"

# ---- The machine -------------------------------------------------------------------------------

export PATH=$PATH:/usr/local/cuda/bin
if [[ -n $deps ]]; then
  if [[ ! $build/deps -nt $deps ]]; then
    mkdir -p "$build/deps" && tar -xzf "$deps" -C "$build/deps" && touch "$build/deps" || exit 1
  fi
  export CMAKE_PREFIX_PATH=$build/deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
fi

# Libraries that are loaded by name may be there as CUDA's installer or PyTorch's wheels bring them
# only. cuDNN compiles attention with NVRTC.
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $wheels ]]; then
  [[ -f $wheels/nccl/include/nccl.h ]] && export NCCL_ROOT=${NCCL_ROOT:-$wheels/nccl}
  [[ -f $wheels/cudnn/include/cudnn_backend.h ]] && export CUDNN_ROOT=${CUDNN_ROOT:-$wheels/cudnn}
fi
for library in libnccl.so.2 libcudnn.so.9 libnvrtc.so.13 libcublasLt.so.13; do
  grep -q "$library" <<<"$(ldconfig -p)" && continue
  for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib ${wheels:+"$wheels"/*/lib}; do
    [[ -f $folder/$library ]] || continue
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    break
  done
done
# Inductor's: what it compiles while the tests run is there when the clock runs.
export TORCHINDUCTOR_CACHE_DIR=$work/torch_cache

# ---- What the steps do -------------------------------------------------------------------------

# Only kernels of this GPU's architecture; libraries of --deps find each other (DT_RPATH).
step_build() {
  local tool
  for tool in cmake ninja nvcc c++; do
    command -v $tool || { echo "$tool is not on the PATH" && return 1; }
  done
  cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo \
    -D "CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -D TESSERA_CUDA_ARCHITECTURES=90a-real \
    -D CMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -D TESSERA_BUILD_TESTS=ON -D TESSERA_TEST_MODULES=kernels -D TESSERA_BUILD_BENCH=ON &&
    cmake --build "$build" -- -k 0 tessera_cli tessera_cuda tessera_gpu_programs &&
    python3 - "$tokens" <<'PYTHON'
# Numbers that follow a rule, as nanoGPT stores tokens.
import array, sys
state, tokens = 1, array.array("H")
for _ in range(2_000_000):
    state = (state * 1103515245 + 12345) % 2**31
    tokens.append((state >> 8) % 50257)
open(sys.argv[1], "wb").write(tokens.tobytes())
PYTHON
}

step_environment() {
  "$program" env --json
}

# PyTorch compiles for minutes, with its Triton in a process for each core. Not timed: its results wait
# in a cache.
step_warm_torch() {
  python3 -c 'import torch; assert torch.cuda.is_available()' || {
    echo "python3 has no PyTorch that sees the GPU" && return 77
  }
  local model
  # The most important first: by the time that the tests are done, this should be.
  for model in gpt2-124m gpt2-1558m gpt2-350m gpt2-774m; do
    ((SECONDS < 120)) || break
    echo "{\"model\": \"$model\", \"micro_batch\": 16, \"sequence_length\": 1024, \"steps\": 1}" |
      python3 bench/gpu/torch_gpu_step.py || return 1
  done
}

step_gpu_kernels() {
  "$build/bin/test_kernels_gpu" --gtest_brief=1
}

step_kernel_speed() {
  "$build/bin/gpu_kernels_bench" --json "$out/kernels.json"
}

# Sets no_torch to the flag for scripts that compare, where there is no PyTorch.
look_for_torch() {
  no_torch=()
  python3 -c 'import torch; assert torch.cuda.is_available()' && return
  echo "python3 has no PyTorch that sees the GPU: Tessera alone is measured"
  no_torch=(--no-torch)
}

step_attention_speed() {
  look_for_torch
  python3 bench/gpu/compare_attention.py --bench "$build/bin/gpu_kernels_bench" \
    --json "$out/attention.json" "${no_torch[@]}"
}

step_compare_torch() {
  look_for_torch
  PYTHONUNBUFFERED=1 python3 bench/gpu/compare_torch_gpu.py --program "$program" --tokens "$tokens" \
    --json "$out/compare_torch.json" --seconds "$((${TESSERA_VERIFY_LIMIT:-250} - 5))" "${no_torch[@]}"
}

# train LOG ARGS…: a short run of a small model on tokens.
train() {
  local log=$1
  shift
  "$program" train --no-default-config --data "$tokens" --model gpt2-tiny --vocab-size 50257 \
    --steps 12 --quiet --sample-tokens 0 --log "$log" "$@"
}

step_graph_equals_eager() {
  train "$work/eager.jsonl" --device cuda --cuda-graph false --precision bf16 &&
    train "$work/graph.jsonl" --device cuda --cuda-graph true --precision bf16 &&
    python3 bench/gpu/compare_logs.py --bits --graph-in-second "$work/eager.jsonl" "$work/graph.jsonl"
}

step_strategies_on_one_gpu() { # the same bits among each other, 4 ranks, fp32 and bf16
  local precision
  for precision in fp32 bf16; do
    "$program" test --no-default-config --device cuda --group thread --ranks 4 \
      --precision $precision || return 1
  done
}

step_ranks_near_cpu() { # fp32: other orders of summation, so within 1e-4 of the loss after 12 steps
  local ranks
  for ranks in 1 2 4; do
    train "$work/cpu$ranks.jsonl" --device cpu --ranks $ranks --strategy full_shard --precision fp32 &&
      train "$work/cuda$ranks.jsonl" --device cuda --group thread --ranks $ranks --strategy full_shard \
        --precision fp32 &&
      python3 bench/gpu/compare_logs.py --within 1e-4 "$work/cpu$ranks.jsonl" "$work/cuda$ranks.jsonl" ||
      return 1
  done
}

step_nccl_2_processes() {
  "$build/bin/nccl_check" 2
}
step_nccl_4_processes() {
  "$build/bin/nccl_check" 4
}

# train_over_nccl RANKS: the bits of as many threads. NCCL takes several processes to one GPU if each
# says that it is a host of its own; they talk over the loopback interface, and take turns on the GPU.
train_over_nccl() {
  local ranks=$1 rank children=() failed=0
  local -r run=(--device cuda --strategy full_shard --precision fp32)
  train "$work/threads$ranks.jsonl" --ranks "$ranks" --group thread "${run[@]}" || return 1
  for ((rank = 0; rank < ranks; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$((29500 + ranks)) NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 \
      train "$work/nccl$ranks.jsonl" --deterministic-collectives "${run[@]}" &
    children+=($!)
  done
  for rank in "${children[@]}"; do
    wait "$rank" || failed=1
  done
  ((!failed)) && python3 bench/gpu/compare_logs.py --bits "$work/threads$ranks.jsonl" "$work/nccl$ranks.jsonl"
}
step_train_over_nccl_2() {
  train_over_nccl 2
}
step_train_over_nccl_4() {
  train_over_nccl 4
}

# sanitize TOOL: tests of sizes that do, of every suite but those that launch no kernel of ours.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not there" && return 77; }
  local tests filter suites='s|^\([A-Z][A-Za-z]*\)[/.].*|\1|p'
  tests=$build/bin/test_kernels_gpu
  filter=$(paste -sd: bench/gpu/sanitized_tests.txt)
  local left_out
  left_out=$(comm -13 <("$tests" --gtest_list_tests --gtest_filter="$filter" | sed -n "$suites" | sort -u) \
    <("$tests" --gtest_list_tests | sed -n "$suites" | sort -u) |
    grep -vE 'Oracle|Errors|Workspace|OnTheCpu|^(Sizes|NormNodes|NormTree|Philox|RandomNormal|WidenedGemm)$')
  [[ -z $left_out ]] || { echo "sanitized_tests.txt has no test of ${left_out//$'\n'/, }" && return 1; }

  compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$tests" --gtest_filter="$filter" \
    --gtest_brief=1 | tee "$work/$1.txt"
  local status=${PIPESTATUS[0]}
  if grep -q 'Device not supported' "$work/$1.txt"; then
    echo "compute-sanitizer does not support this machine" && return 77
  fi
  return "$status"
}
step_memcheck() {
  sanitize memcheck
}
step_racecheck() {
  sanitize racecheck
}

if [[ -n $one ]]; then
  declare -F "step_$one" >/dev/null || {
    echo "verify.sh: there is no step '$one'; there are: $(declare -F | sed -n 's/.* step_//p' | tr '\n' ' ')" >&2
    exit 2
  }
  "step_$one"
  exit
fi

# ---- Running them ------------------------------------------------------------------------------

report() {
  python3 bench/gpu/report.py --work "$work" --out "$out" --command "$command" \
    --revision-file "$build/deps/REVISION"
}

note() { # ORDER NAME VERDICT SECONDS
  python3 -c 'import json, sys; order, name, verdict, seconds = sys.argv[1:]
print(json.dumps({"order": int(order), "name": name, "verdict": verdict, "seconds": int(seconds)}))' \
    "$@" >"$work/steps/$2.json"
  { flock 9 && report >/dev/null; } 9>"$work/lock"
}

# limited ORDER NAME SECONDS: runs a step under a time limit and notes its verdict. Exit code 77:
# skipped, for the reason in its last line.
limited() {
  local order=$1 name=$2 limit=$3 begin=$SECONDS status=0 log=$work/$2.log verdict
  ((limit <= seconds - SECONDS)) || limit=$((seconds - SECONDS))
  if ((limit <= 5)); then
    note "$order" "$name" "FAILED (no time left)" 0
    return 1
  fi
  echo "== $name" >&2
  TESSERA_VERIFY_LIMIT=$limit timeout -k 5 "$limit" \
    "$self" --out "$out" ${deps:+--deps "$deps"} --step "$name" >"$log" 2>&1 || status=$?
  case $status in
    0) verdict=ok ;;
    77) verdict="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) verdict="FAILED (over $limit s)" ;;
    *) verdict="FAILED ($status)" ;;
  esac
  note "$order" "$name" "$verdict" $((SECONDS - begin))
  [[ $verdict != FAILED* ]] || { echo "-- $name: $verdict" && tail -n 15 "$log"; } >&2
  [[ $verdict != FAILED* ]]
}

wanted() {
  [[ -z $only || $1 == build || $only == *,$1,* ]] || return 1
  case $1 in
    warm_torch | attention_speed | compare_torch) ((!quick)) ;;
  esac
}
order=0           # of the steps in the table
step() { # NAME SECONDS
  order=$((order + 1))
  ! wanted "$1" || limited $order "$1" "$2"
}
beside() { # NAME SECONDS: together with what follows, until `wait`
  order=$((order + 1))
  ! wanted "$1" || limited $order "$1" "$2" &
}

# Without --only nothing of an earlier run counts.
[[ -n $only ]] || rm -f "$work"/steps/*.json "$out"/{kernels,attention,compare_torch}.json
beside warm_torch 240
step build 240 || {
  grep -m 5 -A 10 -E 'error|FAILED' "$work/build.log" >&2
  wait
  report
  exit 1
}
step environment 30
step gpu_kernels 120
step graph_equals_eager 60
wait # nothing else may use the GPU while it is measured
step kernel_speed 60
step attention_speed 60
step compare_torch 250
# Right or wrong, not fast or slow: together.
beside strategies_on_one_gpu 150
beside ranks_near_cpu 150
beside nccl_2_processes 150
beside nccl_4_processes 150
beside train_over_nccl_2 150
beside train_over_nccl_4 150
beside memcheck 150
beside racecheck 150
wait
report
