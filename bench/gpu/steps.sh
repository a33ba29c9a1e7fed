#!/usr/bin/env bash
# Does one step of verify.sh, which says in what order, with what limits and what it comes to:
#
#   bench/gpu/steps.sh STEP [SECONDS]
#
# SECONDS is for the steps that measure as much as they have time for. All but `build` use the build that
# is there. Exits with 77 where the machine lacks what the step needs, and its last line says what.
set -uo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../.." || exit 1

readonly build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
readonly program=$build/bin/tessera
readonly work=$build/verify # its tokens, the runs' own logs
readonly measured=$work/measured
readonly tokens=$work/tokens.bin
readonly seconds=${2:-250}
mkdir -p "$measured"

# ---- The machine -------------------------------------------------------------------------------

export PATH=$PATH:/usr/local/cuda/bin
if [[ -d $build/deps ]]; then # what carry.sh collected
  export CMAKE_PREFIX_PATH=$build/deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
fi

# Libraries may be there as CUDA's installer or PyTorch's wheels bring them only, and some are loaded by
# name. cuDNN compiles attention with NVRTC.
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
root_in_wheels() { # VARIABLE HEADER FOLDER…: where CMake finds what CUDA's installer did not bring
  local variable=$1 header=$2 folder
  shift 2
  for folder; do
    [[ -f $wheels/$folder/include/$header ]] || continue
    export "$variable=${!variable:-$wheels/$folder}"
    return
  done
}
if [[ -n $wheels ]]; then
  root_in_wheels NCCL_ROOT nccl.h nccl
  root_in_wheels CUDNN_ROOT cudnn_backend.h cudnn
  root_in_wheels CUBLAS_ROOT cublasLt.h cu13 cublas
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

# ---- The steps ---------------------------------------------------------------------------------

# Only kernels of this GPU's architecture; libraries of --deps find each other (DT_RPATH).
step_build() {
  local tool
  for tool in cmake ninja nvcc c++; do
    command -v $tool || { echo "$tool is not on the PATH" && return 1; }
  done
  cmake -S . -B "$build" -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo \
    -D "CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -D TESSERA_CUDA_ARCHITECTURES=90a-real \
    -D CMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -D TESSERA_BUILD_TESTS=ON "-DTESSERA_TEST_MODULES=kernels;cuda;collectives" -D TESSERA_BUILD_BENCH=ON &&
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
    ((SECONDS < seconds / 2)) || break
    echo "{\"model\": \"$model\", \"micro_batch\": 16, \"sequence_length\": 1024, \"steps\": 1}" |
      python3 bench/gpu/torch_gpu_step.py || return 1
  done
}

step_gpu_kernels() {
  "$build/bin/test_kernels_gpu" --gtest_brief=1
}
step_gpu_steps() {
  "$build/bin/test_cuda_gpu" --gtest_brief=1
}
step_gpu_collectives() {
  "$build/bin/test_collectives_gpu" --gtest_brief=1
}

step_kernel_speed() {
  "$build/bin/gpu_kernels_bench" --json "$measured/kernels.json"
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
    --json "$measured/attention.json" "${no_torch[@]}"
}

step_compare_torch() {
  look_for_torch
  PYTHONUNBUFFERED=1 python3 bench/gpu/compare_torch_gpu.py --program "$program" --tokens "$tokens" \
    --json "$measured/compare_torch.json" --seconds "$((seconds - 5))" "${no_torch[@]}"
}

# train LOG ARGS…: a short run of a small model on tokens; its heads are of 64, as cuDNN's attention
# wants them.
train() {
  local log=$1
  shift
  "$program" train --no-default-config --data "$tokens" --model gpt2-tiny --heads 2 \
    --vocab-size 50257 --steps 12 --quiet --sample-tokens 0 --log "$log" --overwrite "$@"
}

step_graph_equals_eager() { # with the attention that is measured
  local -r run=(--device cuda --precision bf16 --attention cudnn)
  train "$work/eager.jsonl" "${run[@]}" --cuda-graph false &&
    train "$work/graph.jsonl" "${run[@]}" --cuda-graph true &&
    python3 bench/gpu/compare_logs.py --bits --graph-in-second "$work/eager.jsonl" "$work/graph.jsonl"
}

step_strategies_on_one_gpu() { # the same bits among each other, 4 ranks
  local -r run=("$program" test --no-default-config --device cuda --group thread --ranks 4)
  "${run[@]}" --precision fp32 && "${run[@]}" --precision bf16 --attention cudnn
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
# says that it is a host of its own; they talk over the loopback interface, and take turns on the GPU,
# where a rank that waits wastes its turn: so no protocol that waits for every few bytes.
train_over_nccl() {
  local ranks=$1 rank children=() failed=0
  local -r run=(--device cuda --strategy full_shard --precision fp32)
  train "$work/threads$ranks.jsonl" --ranks "$ranks" --group thread "${run[@]}" || return 1
  for ((rank = 0; rank < ranks; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$((29500 + ranks)) NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple \
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

# sanitize TOOL: tests of sizes that do, of every suite that launches a kernel (tests/tools/check_sanitized).
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not there" && return 77; }
  local tests=$build/bin/test_kernels_gpu filter
  filter=$(paste -sd: bench/gpu/sanitized_tests.txt)
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

declare -F "step_${1-}" >/dev/null || {
  echo "steps.sh: there is no step '${1-}'; there are: $(declare -F | sed -n 's/.* step_//p' | tr '\n' ' ')" >&2
  exit 2
}
"step_$1"
