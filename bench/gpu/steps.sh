#!/usr/bin/env bash
# Does one step of verify.sh, which says in what order, with what limits and what it comes to:
#
#   bench/gpu/steps.sh STEP [SECONDS]
#
# SECONDS is for the steps that measure as much as they have time for. All but `build` and
# `test_objects` use the programs that are there. Exits with 77 where the machine lacks what the step
# needs, and its last line says what.
set -uo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../.." || exit 1

readonly build=${TESSERA_BUILD_DIR:-$PWD/build-gpu}
readonly program=$build/bin/tessera
readonly work=$build/verify # its tokens, the runs' own logs
readonly measured=$work/measured tests=$work/tests
readonly tokens=$work/tokens.bin
readonly gemm_table=$measured/gemm_table.json
readonly seconds=${2:-250}
mkdir -p "$measured" "$tests"

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
folder_of() { # LIBRARY FOLDER…: the first of the folders that has it
  local library=$1 folder
  shift
  for folder; do
    [[ -f $folder/$library ]] && echo "$folder" && return
  done
}
first='' last='' # in LD_LIBRARY_PATH
for library in libnccl.so.2 libcudnn.so.9; do # PyTorch's, where it is: the newer ones
  first+=$(folder_of $library ${wheels:+"$wheels"/*/lib}):
done
for library in libcudart.so.13 libnccl.so.2 libcudnn.so.9 libnvrtc.so.13 libcublasLt.so.13; do
  grep -q "$library" <<<"$(ldconfig -p)" ||
    last+=:$(folder_of $library /usr/local/cuda/lib64 /usr/local/cuda/lib ${wheels:+"$wheels"/*/lib})
done
LD_LIBRARY_PATH=$(sed 's/::*/:/g; s/^://; s/:$//' <<<"$first:${LD_LIBRARY_PATH-}:$last")
[[ -z $LD_LIBRARY_PATH ]] || export LD_LIBRARY_PATH
export TESSERA_SOURCE_DIR=$PWD # carried programs were built elsewhere
export TORCHINDUCTOR_CACHE_DIR=$work/torch_cache

# ---- The steps ---------------------------------------------------------------------------------

readonly carried=$build/deps/prebuilt
readonly programs=(tessera step_kernels test_kernels_gpu test_cuda_gpu test_collectives_gpu gpu_kernels_bench
  nccl_check)

# Programs that carry.sh brought, if they are of these sources and start here. Their libraries are for them
# alone: python3 and the compilers keep the machine's.
use_carried() {
  local name
  [[ -d $carried ]] || return 1
  if [[ $(cat "$carried/SOURCES") != $(python3 bench/gpu/sources.py) ]]; then
    echo "the carried programs are of other sources: programs are built here"
    return 1
  fi
  mkdir -p "$build/bin"
  for name in "${programs[@]}"; do
    cat >"$build/bin/$name" <<SCRIPT || return 1
#!/bin/sh
LD_LIBRARY_PATH='$carried/lib/carried'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec '$carried/bin/$name' "\$@"
SCRIPT
    chmod +x "$build/bin/$name"
    "$build/bin/$name" --help >/dev/null || {
      echo "$name of the carried programs does not start here: programs are built here"
      return 1
    }
  done
  echo "carried programs are used, of $(cat "$build/deps/REVISION")"
}

# Only kernels of this GPU's architecture; libraries of --deps find each other (DT_RPATH).
configure() {
  local tool
  for tool in cmake ninja nvcc c++; do
    command -v $tool || { echo "$tool is not on the PATH" && return 1; }
  done
  cmake --preset release -B "$build" -D TESSERA_CUDA_ARCHITECTURES=90-real -D TESSERA_UNITY=16 \
    -D CMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
    -D TESSERA_BUILD_TESTS=ON "-DTESSERA_TEST_MODULES=kernels;cuda;collectives" -D TESSERA_BUILD_BENCH=ON
}
compile() {
  local name
  for name in "${programs[@]}"; do # Ninja would take what runs a carried program for the program
    ! grep -qs "exec '$carried" "$build/bin/$name" || rm "$build/bin/$name"
  done
  configure && cmake --build "$build" -- -k 0 tessera_cli tessera_cuda step_kernels tessera_gpu_programs
}
# Without the library: for CI, which has compiled it in a build of its own.
step_test_objects() {
  configure || return 1
  local objects object
  mapfile -t objects < <(ninja -C "$build" -t targets all | sed -n 's/^\(tests\/[^:]*\.o\): .*/\1/p')
  ((${#objects[@]})) || { echo "no tests are to be compiled" && return 1; }
  # Not by `ninja OBJECT`: a program that takes the objects of another one waits in CMake's rules until that one is
  # linked, and so for the whole library.
  ninja -C "$build" tests/CMakeFiles/tessera_test_headers.dir/cmake_pch.hxx.gch || return 1
  for object in "${objects[@]}"; do ninja -C "$build" -t commands -s "$object"; done |
    (cd "$build" && xargs --delimiter='\n' --max-procs="$(nproc)" --replace sh -c '{}')
}

step_build() {
  use_carried || compile || return 1
  [[ -e $tokens ]] || python3 - "$tokens" <<'PYTHON'
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
  "$build/bin/step_kernels" >"$measured/step_kernels.json" && nvidia-smi && "$program" env --json
}

# suites XML ARGS…: of run_suites.py
suites() {
  local xml=$1 jobs=$(($(nproc) / 4))
  shift
  python3 bench/gpu/run_suites.py --xml "$tests/$xml.xml" --jobs $((jobs < 1 ? 1 : jobs)) "$@"
}
readonly cudnn='(^|/)Cudnn[A-Za-z]*$'
step_kernel_suites() {
  suites kernel_suites --except "$cudnn" "$build/bin/test_kernels_gpu"
}
step_cudnn_near_own() {
  suites cudnn_near_own --only "$cudnn" "$build/bin/test_kernels_gpu"
}
step_step_suites() {
  suites step_suites "$build/bin/test_cuda_gpu"
}
step_collective_suites() {
  suites collective_suites "$build/bin/test_collectives_gpu"
}

# train LOG ARGS…: a short run on tokens
train() {
  local log=$1
  shift
  "$program" train --no-default-config --data "$tokens" --vocab-size 50257 --steps 12 --quiet \
    --sample-tokens 0 --log "$log" --overwrite "$@"
}
readonly small=(--model gpt2-tiny --heads 2) # heads of 64, as cuDNN's attention wants them

step_graph_equals_eager() { # with the attention that is measured
  local -r run=(--model gpt2-124m --micro-batch 8 --device cuda --precision bf16 --attention cudnn)
  train "$work/eager.jsonl" "${run[@]}" --cuda-graph false &&
    train "$work/graph.jsonl" "${run[@]}" --cuda-graph true &&
    python3 bench/gpu/compare_logs.py --bits --graph-in-second "$work/eager.jsonl" "$work/graph.jsonl"
}

speed() { # JSON ARGS…: of train_speed.py
  local json=$1
  shift
  python3 -u bench/gpu/train_speed.py --program "$program" --step-kernels "$build/bin/step_kernels" \
    --tokens "$tokens" --json "$measured/$json" --seconds $((seconds - 5)) "$@"
}
step_power() { # of products of random numbers and of zeros, of copies, of nothing
  speed power.json --bench "$build/bin/gpu_kernels_bench"
}
step_speed_1558m() {
  local batch runs=''
  for batch in 16 8 32; do # 16 is what others are compared with
    runs+=",gpt2-1558m:$batch,gpt2-1558m:$batch:any-order"
    [[ $batch != 16 ]] || runs+=,gpt2-1558m:16:few-blocks,gpt2-1558m:16 # in turns
  done
  speed speed_1558m.json --runs "${runs#,}"
}
step_profile() { # of a step like gpt2-1558m's with two blocks
  command -v ncu >/dev/null || { echo "ncu, Nsight Compute, is not there" && return 77; }
  python3 bench/gpu/profile_step.py --json "$measured/profile.json" --seconds $((seconds - 5)) \
    "$program" train --no-default-config --data "$tokens" --model gpt2-1558m --layers 2 --vocab-size 50257 \
    --micro-batch 16 --device cuda --precision bf16 --attention cudnn --cuda-graph false --steps 2 --quiet \
    --sample-tokens 0 --parameters-hash false
}
step_gemm_table() { # of the products of the step that is measured most
  "$program" calibrate --no-default-config --model gpt2-1558m --vocab-size 50257 --micro-batch 16 \
    --sequence-length 1024 --precision bf16 --gemm-table "$gemm_table"
}
step_speed_with_table() {
  [[ -e $gemm_table ]] || { echo "there is no table of GEMMs (step gemm_table)" && return 77; }
  speed speed_with_table.json --gemm-table "$gemm_table" --runs gpt2-1558m:16,gpt2-1558m:16:any-order
}
step_speed_sizes() {
  speed speed_sizes.json \
    --runs gpt2-124m:16,gpt2-124m:16:any-order,gpt2-350m:16:any-order,gpt2-774m:16:any-order
}
step_sharding_overhead() {
  speed sharding.json --sharding gpt2-124m:16
}

# The state of 3 billion parameters takes 58 GB of host memory, that of 8 billion 145 GB.
step_offload() {
  local models=llama3.2-3b:4
  awk '/^MemAvailable:/ { exit $2 < 150e6 }' /proc/meminfo && models=llama3.1-8b:2,$models
  speed offload.json --bench "$build/bin/gpu_kernels_bench" --offload "$models"
}

step_families() { # small runs, of which several share the GPU
  python3 -u bench/gpu/families.py --program "$program" --text tests/text/alice.txt --json "$measured/families.json" \
    --seconds $((seconds - 10))
}
step_fine_tune() {
  speed fine_tune.json --fine-tune
}

# Steps predicted by a profile that is made of kernels alone, and measured.
step_predicted_steps() {
  local -r profile=$measured/profile_of_machine.json results=$work/compared
  local batch
  local -r device=(--no-default-config --device cuda)
  # The machine is there for a short time: a profile that says what disturbed it is better than none.
  "$program" calibrate "${device[@]}" --anyway --profile "$profile" || return 1
  for batch in 4 16; do
    "$program" compare "${device[@]}" --model gpt2-124m --data "$tokens" --vocab-size 50257 --sequence-length 1024 \
      --micro-batch $batch --steps 12 --strategies no_shard,full_shard --ranks 1 --precisions fp32,bf16 \
      --recomputes none,full --repeats 1 --attention own --out "$results.$batch" &&
      "$program" simulate --profile "$profile" --check "$results.$batch/results.json" || return 1
  done
}

step_kernel_speed() {
  "$build/bin/gpu_kernels_bench" --json "$measured/kernels.json"
}

has_torch() {
  python3 -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1
}
step_attention_speed() {
  local no_torch=()
  has_torch || {
    echo "python3 has no PyTorch that sees the GPU: Tessera's alone is measured"
    no_torch=(--no-torch)
  }
  python3 bench/gpu/compare_attention.py --bench "$build/bin/gpu_kernels_bench" \
    --json "$measured/attention.json" "${no_torch[@]}"
}
step_packed_samples() { # documents of 200 to 1000 tokens in sequences of 2048 and 4096
  local no_torch=()
  has_torch || {
    echo "python3 has no PyTorch that sees the GPU: Tessera's alone is measured"
    no_torch=(--no-torch)
  }
  python3 bench/gpu/compare_documents.py --bench "$build/bin/gpu_kernels_bench" --turns 1 \
    --json "$measured/documents.json" "${no_torch[@]}"
}
# In turns with whoever is there.
step_peers() {
  local peers=()
  has_torch || {
    echo "python3 has no PyTorch that sees the GPU"
    peers=(--no-torch)
  }
  if [[ -d $build/deps/llm.c ]]; then
    peers+=(--llm.c "$build/deps/llm.c")
  else
    echo "llm.c's sources were not carried (carry.sh --llm.c)"
  fi
  [[ ${peers[*]} != --no-torch ]] || { echo "neither PyTorch nor llm.c's sources are there" && return 77; }
  python3 -u bench/gpu/peers_in_turns.py --program "$program" --tokens "$tokens" --json "$measured/peers.json" \
    --seconds $((seconds - 5)) "${peers[@]}"
}

# LoRA in peft, beside fine_tune's of the same model, batch and rank.
step_peft() {
  if ! has_torch || ! python3 -c 'import peft, transformers' 2>/dev/null; then
    echo "python3 has no peft, or no PyTorch that sees the GPU" && return 77
  fi
  python3 bench/peers/torch_step.py --model llama3.2-1b --lora 16 --precision bf16 --micro-batch 8 \
    --sequence-length 1024 --device cuda --rounds 20 >"$measured/peft.json" &&
    python3 - "$measured/peft.json" <<'PYTHON'
import json, statistics, sys
seconds = statistics.median(json.load(open(sys.argv[1]))["step_seconds"])
print(f"| llama3.2-1b:8, LoRA in peft | {1e3 * seconds:.1f} ms |")
PYTHON
}

# sanitize TOOL [EXCEPT]: our kernels, by tests of sizes that do, of every suite that launches one
# (tests/tools/check_sanitized). Libraries' kernels are left alone: they take most of the time.
sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not there" && return 77; }
  local test=$build/bin/test_kernels_gpu filter
  filter=$(paste -sd: bench/gpu/sanitized_tests.txt)${2:+-$2}
  compute-sanitizer --tool "$1" --target-processes all --kernel-regex kns=tessera --error-exitcode 9 \
    --print-limit 5 "$test" --gtest_filter="$filter" --gtest_brief=1 | tee "$work/$1.txt"
  local status=${PIPESTATUS[0]}
  if grep -q 'Device not supported' "$work/$1.txt"; then
    echo "compute-sanitizer does not support this machine" && return 77
  fi
  return "$status"
}
step_memcheck() {
  sanitize memcheck
}
step_racecheck() { # which crashes in cuBLASLt's kernels (CUDA 13.0)
  sanitize racecheck 'Gemm*'
}

step_nccl_2_processes() {
  "$build/bin/nccl_check" 2
}
step_nccl_4_processes() {
  "$build/bin/nccl_check" 4
}

# train_over_nccl RANKS: the bits of as many threads, eager and replayed. NCCL takes several processes to
# one GPU if each says that it is a host of its own; they talk over the loopback interface, and take turns
# on the GPU, where a rank that waits wastes its turn: so no protocol that waits for every few bytes.
train_over_nccl() {
  local ranks=$1 graph
  local -r run=("${small[@]}" --device cuda --strategy full_shard --precision fp32)
  train "$work/threads$ranks.jsonl" --ranks "$ranks" --group thread "${run[@]}" || return 1
  for graph in false true; do
    as_processes "$ranks" "$work/nccl$ranks.jsonl" --cuda-graph $graph "${run[@]}" &&
      python3 bench/gpu/compare_logs.py --bits "$work/threads$ranks.jsonl" "$work/nccl$ranks.jsonl" &&
      echo "CUDA graph $graph: the bits of $ranks threads" || return 1
  done
}
as_processes() { # RANKS LOG ARGS…: of train
  local ranks=$1 log=$2 rank children=() failed=0
  shift 2
  for ((rank = 0; rank < ranks; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 \
      MASTER_PORT=$((29500 + ranks)) NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple \
      train "$log" --deterministic-collectives "$@" &
    children+=($!)
  done
  for rank in "${children[@]}"; do
    wait "$rank" || failed=1
  done
  return $failed
}
step_train_over_nccl_2() {
  train_over_nccl 2
}
step_train_over_nccl_4() {
  train_over_nccl 4
}

step_strategies_on_one_gpu() { # the same bits among each other, 4 ranks
  local -r run=("$program" test --no-default-config --device cuda --group thread --ranks 4)
  "${run[@]}" --precision fp32 && "${run[@]}" --precision bf16 --attention cudnn
}

step_stages_on_one_gpu() { # the bits of one stage
  local -r run=("${small[@]}" --device cuda --group thread --strategy no_shard --precision bf16 --accumulate 4)
  train "$work/stage.jsonl" "${run[@]}" --ranks 1 --tied-apart true &&
    train "$work/stages.jsonl" "${run[@]}" --ranks 2 --pipeline 2 &&
    python3 bench/gpu/compare_logs.py --bits "$work/stage.jsonl" "$work/stages.jsonl"
}

step_ranks_near_cpu() { # fp32: other orders of summation, so within 1e-4 of the loss after 12 steps
  local ranks
  for ranks in 1 2 4; do
    train "$work/cpu$ranks.jsonl" "${small[@]}" --device cpu --ranks $ranks --strategy full_shard --precision fp32 &&
      train "$work/cuda$ranks.jsonl" "${small[@]}" --device cuda --group thread --ranks $ranks \
        --strategy full_shard --precision fp32 &&
      python3 bench/gpu/compare_logs.py --within 1e-4 "$work/cpu$ranks.jsonl" "$work/cuda$ranks.jsonl" ||
      return 1
  done
}

declare -F "step_${1-}" >/dev/null || {
  echo "steps.sh: there is no step '${1-}'; there are: $(declare -F | sed -n 's/.* step_//p' | tr '\n' ' ')" >&2
  exit 2
}
"step_$1"
