#!/usr/bin/env bash
# Proves Tessera's CUDA backend on a machine with a GPU, in under ten minutes and without a network:
# builds, tests, checks with compute-sanitizer, compares strategies and devices, measures.
#
#   bench/gpu/verify.sh --deps FOLDER --out FOLDER [--quick]
#
#   --deps   what carry.sh collected; not needed where the packages are installed
#   --out    results: verify.json, compare_torch.json, kernels.json, logs
#   --quick  no benchmarks against PyTorch
#
# Ends in a table, and with 1 if anything failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

deps='' out='' quick=0
while (($#)); do
  case $1 in
    --deps) deps=$(realpath "$2") && shift ;;
    --out) out=$(mkdir -p "$2" && realpath "$2") && shift ;;
    --quick) quick=1 ;;
    *)
      sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
  shift
done
[[ -n $out ]] || {
  echo "verify: --out FOLDER is missing" >&2
  exit 2
}
if [[ -n $deps ]]; then
  export CMAKE_PREFIX_PATH=$deps/usr LD_LIBRARY_PATH=$deps/usr/lib/x86_64-linux-gnu:${LD_LIBRARY_PATH:-}
fi
build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
program=$build/bin/tessera
results=$out/steps.tsv
: >"$results"

readonly IN_ALL=590 # seconds

# step NAME SECONDS COMMAND…: runs a command or function under a time limit, with a log of its own.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  ((limit <= IN_ALL - SECONDS)) || limit=$((IN_ALL - SECONDS))
  if ((limit <= 0)); then
    printf '%s\t%s\t%s\n' "$name" "FAILED (no time left)" 0 >>"$results"
    return 1
  fi
  echo "== $name" >&2
  # A subshell, so that functions have a limit, too.
  timeout "$limit" bash -c "$(declare -p build out program deps); $(declare -f); $(printf '%q ' "$@")" \
    >"$out/$name.log" 2>&1 || status=$?
  local verdict=ok
  ((status == 0)) || verdict="FAILED ($status)"
  printf '%s\t%s\t%s\n' "$name" "$verdict" $((SECONDS - begin)) >>"$results"
  ((status == 0)) || tail -n 15 "$out/$name.log" >&2
  return $status
}

build_all() {
  cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo \
    -D "CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -D TESSERA_CUDA_ARCHITECTURES=90a-real \
    -D TESSERA_BUILD_TESTS=ON -D TESSERA_TEST_MODULES=kernels -D TESSERA_BUILD_BENCH=ON &&
    cmake --build "$build" --target tessera_cli tessera_cuda test_kernels_gpu gpu_kernels_bench nccl_check
}

make_tokens() { # numbers that follow a rule, as nanoGPT stores tokens
  python3 - "$out/tokens.bin" <<'PYTHON'
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
  "$program" train --no-default-config --data "$out/tokens.bin" --model gpt2-tiny --vocab-size 50257 \
    --steps 12 --quiet --sample-tokens 0 --log "$log" "$@"
}

strategies_on_one_gpu() { # the same bits among each other, 4 ranks, fp32 and bf16
  "$program" test --no-default-config --device cuda --group thread --ranks 4 --precision fp32 &&
    "$program" test --no-default-config --device cuda --group thread --ranks 4 --precision bf16
}

graph_equals_eager() {
  train "$out/eager.jsonl" --device cuda --cuda-graph false --precision bf16 &&
    train "$out/graph.jsonl" --device cuda --cuda-graph true --precision bf16 &&
    python3 bench/gpu/compare_logs.py --bits "$out/eager.jsonl" "$out/graph.jsonl"
}

cuda_near_cpu() { # fp32: other orders of summation, so within 1e-4 of the loss after 12 steps
  train "$out/cpu.jsonl" --device cpu --precision fp32 &&
    train "$out/cuda.jsonl" --device cuda --precision fp32 &&
    python3 bench/gpu/compare_logs.py --within 1e-4 "$out/cpu.jsonl" "$out/cuda.jsonl"
}

sanitize() { # TOOL: the kernel tests with small sizes, one test of each suite at least
  compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$build/bin/test_kernels_gpu" \
    --gtest_filter='Gelu*:LayerNorm*:CrossEntropy*:AdamW*:Embedding*:BiasGradient*:OrderedSum*:NormNodes*:*Attention*Unaligned*' \
    --gtest_brief=1
}

step build 240 build_all || {
  tail -n 40 "$out/build.log" >&2
  exit 1
}
step tokens 30 make_tokens
step environment 30 "$program" env --json
step gpu_kernels 120 "$build/bin/test_kernels_gpu" --gtest_brief=1
step strategies_on_one_gpu 60 strategies_on_one_gpu
step graph_equals_eager 60 graph_equals_eager
step cuda_near_cpu 60 cuda_near_cpu
step nccl_2_processes 60 "$build/bin/nccl_check" 2
step nccl_4_processes 90 "$build/bin/nccl_check" 4
step memcheck 100 sanitize memcheck
step racecheck 100 sanitize racecheck
step kernel_bandwidth 60 "$build/bin/gpu_kernels_bench" --json "$out/kernels.json"
if ((!quick)); then
  step compare_torch 240 python3 bench/gpu/compare_torch_gpu.py --program "$program" --tokens "$out/tokens.bin" \
    --json "$out/compare_torch.json" --seconds 220
fi

python3 - "$results" "$out/verify.json" <<'PYTHON'
import datetime, json, subprocess, sys
steps = [line.rstrip("\n").split("\t") for line in open(sys.argv[1])]
def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()
json.dump({
    "date": datetime.date.today().isoformat(),
    "revision": output("git", "rev-parse", "HEAD"),
    "gpu": output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    "command": "bench/gpu/verify.sh",
    "steps": [{"name": n, "verdict": v, "seconds": int(s)} for n, v, s in steps],
}, open(sys.argv[2], "w"), indent=2)
PYTHON
echo
echo "| step | verdict | seconds |"
echo "|---|---|---|"
sed 's/\t/ | /g; s/^/| /; s/$/ |/' "$results"
for table in kernel_bandwidth compare_torch; do
  [[ -f $out/$table.log ]] && echo && cat "$out/$table.log"
done
! grep -q FAILED "$results"
