#!/usr/bin/env bash
# Proves Tessera's CUDA backend on a machine with a GPU, in under ten minutes and without a network:
# builds, tests, checks with compute-sanitizer, compares strategies and devices, measures.
#
#   bench/gpu/verify.sh --out FOLDER [--deps FILE] [--seconds N] [--only STEP,STEP...] [--quick]
#
#   --out      results, written after each step: verify.json and verify.md (all steps), logs.txt,
#              kernels.json, compare_torch.json
#   --deps     the file that carry.sh wrote; not needed where the packages are installed
#   --seconds  for everything (560): later steps get what is left, or are not run
#   --only     these steps; the build before them takes seconds if it is there already
#   --quick    nothing beside PyTorch
#
# Exits with 1 if a step failed or did not come to run. A step whose tool is missing is skipped,
# with the reason.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

deps='' out='' only='' quick=0 seconds=560
while (($#)); do
  case $1 in
    --deps) deps=$(realpath -e "${2:?}") && shift ;;
    --out) out=$(mkdir -p "${2:?}" && realpath "$2") && shift ;;
    --seconds) seconds=${2:?} && shift ;;
    --only) only=,${2:?}, && shift ;;
    --quick) quick=1 ;;
    *) out='' && break ;;
  esac
  shift
done
[[ -n $out ]] || {
  sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
program=$build/bin/tessera
work=$build/verify # runs' own files: $out may take only few
mkdir -p "$work"
results=$work/steps.tsv
: >"$results"
: >"$out/logs.txt"

# ---- The machine -------------------------------------------------------------------------------

export PATH=$PATH:/usr/local/cuda/bin
if [[ -n $deps ]]; then
  mkdir -p "$build/deps" && tar -xzf "$deps" -C "$build/deps" || exit 1
  export CMAKE_PREFIX_PATH=$build/deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
fi

# NCCL and cuDNN may be there as PyTorch's wheels bring them only.
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [[ -n $wheels ]]; then
  [[ -f $wheels/nccl/include/nccl.h ]] && export NCCL_ROOT=${NCCL_ROOT:-$wheels/nccl}
  [[ -f $wheels/cudnn/include/cudnn_backend.h ]] && export CUDNN_ROOT=${CUDNN_ROOT:-$wheels/cudnn}
  for library in nccl/lib/libnccl.so.2 cudnn/lib/libcudnn.so.9; do
    [[ -f $wheels/$library && ! -f /usr/local/cuda/lib64/${library##*/} ]] || continue
    ldconfig -p | grep -q "${library##*/}" && continue
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels/${library%/*}
  done
fi

# ---- Steps -------------------------------------------------------------------------------------

# Writes verify.json and verify.md from $results.
report() {
  python3 - "$results" "$out" <<'PYTHON'
import datetime, json, subprocess, sys
steps = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
gpu = output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
with open(sys.argv[2] + "/verify.json", "w") as file:
    json.dump({
        "date": datetime.date.today().isoformat(),
        "revision": output("git", "rev-parse", "HEAD"),
        "gpu": gpu,
        "command": "bench/gpu/verify.sh",
        "steps": [{"name": n, "verdict": v, "seconds": int(s)} for n, v, s in steps],
    }, file, indent=2)
with open(sys.argv[2] + "/verify.md", "w") as file:
    print(gpu, "", "| step | verdict | seconds |", "|---|---|---|", sep="\n", file=file)
    for step in steps:
        print("|", " | ".join(step), "|", file=file)
PYTHON
}

note() { # NAME VERDICT SECONDS
  printf '%s\t%s\t%s\n' "$@" >>"$results"
  report
}

# step NAME SECONDS COMMAND…: runs a command or function under a time limit. Exit code 77: skipped,
# for the reason in its last line.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0 log=$work/$1.log
  shift 2
  [[ -z $only || $name == build || $only == *,$name,* ]] || return 0
  ((limit <= seconds - SECONDS)) || limit=$((seconds - SECONDS))
  if ((limit <= 5)); then
    note "$name" "FAILED (no time left)" 0
    return 1
  fi
  echo "== $name" >&2
  # A shell of its own, so that functions have a limit, too.
  timeout -k 5 "$limit" bash -c "set -o pipefail; $(declare -p build out work program); $(declare -f)
    $(printf '%q ' "$@")" >"$log" 2>&1 || status=$?
  { echo "==== $name ($status)" && tail -c 200000 "$log"; } >>"$out/logs.txt"
  case $status in
    0) note "$name" ok $((SECONDS - begin)) ;;
    77) note "$name" "skipped: $(tail -n 1 "$log")" $((SECONDS - begin)) && status=0 ;;
    124 | 137) note "$name" "FAILED (over $limit s)" $((SECONDS - begin)) ;;
    *) note "$name" "FAILED ($status)" $((SECONDS - begin)) ;;
  esac
  ((status == 0)) || tail -n 15 "$log" >&2
  return $status
}

# Only kernels of this GPU's architecture; libraries of --deps find each other (DT_RPATH).
build_all() {
  for tool in cmake ninja nvcc c++; do
    command -v $tool || { echo "$tool is not on the PATH" && return 1; }
  done
  cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo \
    -D "CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -D TESSERA_CUDA_ARCHITECTURES=90a-real \
    -D CMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -D TESSERA_BUILD_TESTS=ON -D TESSERA_TEST_MODULES=kernels -D TESSERA_BUILD_BENCH=ON &&
    cmake --build "$build" -- -k 0 tessera_cli tessera_cuda test_kernels_gpu gpu_kernels_bench nccl_check
}

make_tokens() { # numbers that follow a rule, as nanoGPT stores tokens
  python3 - "$work/tokens.bin" <<'PYTHON'
import array, sys
state, tokens = 1, array.array("H")
for _ in range(2_000_000):
    state = (state * 1103515245 + 12345) % 2**31
    tokens.append((state >> 8) % 50257)
open(sys.argv[1], "wb").write(tokens.tobytes())
PYTHON
}

# train LOG ARGS…: a short run of a small model on tokens.
train() {
  local log=$1
  shift
  "$program" train --no-default-config --data "$work/tokens.bin" --model gpt2-tiny --vocab-size 50257 \
    --steps 12 --quiet --sample-tokens 0 --log "$log" "$@"
}

strategies_on_one_gpu() { # the same bits among each other, 4 ranks, fp32 and bf16
  "$program" test --no-default-config --device cuda --group thread --ranks 4 --precision fp32 &&
    "$program" test --no-default-config --device cuda --group thread --ranks 4 --precision bf16
}

graph_equals_eager() {
  train "$work/eager.jsonl" --device cuda --cuda-graph false --precision bf16 &&
    train "$work/graph.jsonl" --device cuda --cuda-graph true --precision bf16 &&
    python3 bench/gpu/compare_logs.py --bits "$work/eager.jsonl" "$work/graph.jsonl"
}

cuda_near_cpu() { # fp32: other orders of summation, so within 1e-4 of the loss after 12 steps
  train "$work/cpu.jsonl" --device cpu --precision fp32 &&
    train "$work/cuda.jsonl" --device cuda --precision fp32 &&
    python3 bench/gpu/compare_logs.py --within 1e-4 "$work/cpu.jsonl" "$work/cuda.jsonl"
}

sanitize() { # TOOL: the kernel tests with small sizes, one test of each suite at least
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not there" && exit 77; }
  compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$build/bin/test_kernels_gpu" \
    --gtest_filter='Gelu*:LayerNorm*:CrossEntropy*:AdamW*:Embedding*:BiasGradient*:OrderedSum*:NormNodes*:*Attention*Unaligned*' \
    --gtest_brief=1 | tee "$work/sanitizer.txt"
  local status=${PIPESTATUS[0]}
  if grep -q 'Device not supported' "$work/sanitizer.txt"; then
    echo "compute-sanitizer does not support this machine" && exit 77
  fi
  return "$status"
}

compare_torch() { # ARGS…
  python3 -c 'import torch; assert torch.cuda.is_available()' || {
    echo "python3 has no PyTorch that sees the GPU: Tessera alone is measured"
    set -- --no-torch "$@"
  }
  PYTHONUNBUFFERED=1 python3 bench/gpu/compare_torch_gpu.py --program "$program" \
    --tokens "$work/tokens.bin" --json "$out/compare_torch.json" "$@"
}

# What everything needs, then what says most per second.
trap 'cat "$out/verify.md" 2>/dev/null' EXIT
step build 300 build_all || {
  grep -m 5 -A 10 -E 'error|FAILED' "$work/build.log" >&2
  exit 1
}
[[ -f $work/tokens.bin ]] || make_tokens
step environment 30 "$program" env --json
step gpu_kernels 120 "$build/bin/test_kernels_gpu" --gtest_brief=1
step graph_equals_eager 60 graph_equals_eager
step strategies_on_one_gpu 60 strategies_on_one_gpu
step kernel_bandwidth 60 "$build/bin/gpu_kernels_bench" --json "$out/kernels.json"
((quick)) || step compare_torch 200 compare_torch --seconds 190
step nccl_2_processes 60 "$build/bin/nccl_check" 2
step cuda_near_cpu 60 cuda_near_cpu
step memcheck 100 sanitize memcheck
step racecheck 100 sanitize racecheck
step nccl_4_processes 60 "$build/bin/nccl_check" 4

for table in kernel_bandwidth compare_torch; do
  if grep -q "^$table" "$results"; then
    echo && cat "$work/$table.log"
  fi
done >>"$out/verify.md"
! grep -q FAILED "$results"
