#!/usr/bin/env python3
"""Builds llm.c from its sources and times its training steps on one GPU.

    llm_c_speed.py --source DIR --json OUT [--sizes gpt2-1558m:16] [--seconds 150]

--source holds llm.c's tree; with a folder cudnn-frontend in it, its attention is cuDNN's. It is built
in a copy, one line of which is changed for CUDA 13, unless it is built already. bf16 with fp32 master
weights and AdamW, as its own scripts train. Exits with 1 if a size was not measured, with 77 if there
is no compiler.
"""

import argparse
import array
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_run import STEPS, WARMUP_STEPS, write_json

# Its names for models that begin from random numbers: by depth.
DESCRIPTORS = {"gpt2-124m": "d12", "gpt2-350m": "d24", "gpt2-774m": "d36", "gpt2-1558m": "d48"}
DATA_MAGIC, DATA_VERSION, HEADER_INTS = 20240520, 1, 256


def write_tokens(path, count):
    """As its data loader reads them: a header of 256 integers, then 16 bits a token."""
    header = array.array("i", [DATA_MAGIC, DATA_VERSION, count] + [0] * (HEADER_INTS - 3))
    state, tokens = 1, array.array("H")
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append((state >> 8) % 50257)
    with open(path, "wb") as file:
        file.write(header.tobytes() + tokens.tobytes())


def adapt_to_cuda_13(tree):
    """cudaMemAdvise takes a location since, not a device's number."""
    path = os.path.join(tree, "llmc", "cuda_utils.cuh")
    with open(path) as file:
        text = file.read()
    adapted = text.replace("PreferredLocation, cudaCpuDeviceId)",
                           "PreferredLocation, cudaMemLocation{cudaMemLocationTypeHost, 0})")
    with open(path, "w") as file:
        file.write(adapted)


def cuda_release():
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    return int((re.search(r"release (\d+)\.", said) or ["", "0"])[1])


def build(source, folder, seconds):
    tree = os.path.join(folder, "llm.c")
    shutil.copytree(source, tree)
    cudnn = os.path.isdir(os.path.join(tree, "cudnn-frontend", "include"))
    program = os.path.join(tree, "train_gpt2cu")
    if os.access(program, os.X_OK):
        return program, cudnn
    if cuda_release() >= 13:
        adapt_to_cuda_13(tree)
    subprocess.run(["make", "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", "PRECISION=BF16",
                    "GPU_COMPUTE_CAPABILITY=90", f"USE_CUDNN={int(cudnn)}"],
                   cwd=tree, check=True, timeout=seconds,
                   env={**os.environ, "NVCC_APPEND_FLAGS": "-lnvrtc -lcuda"})  # cudnn-frontend's
    return program, cudnn


def measure(program, folder, model, micro_batch, seconds):
    """Seconds of each step after the first few."""
    tokens = os.path.join(folder, "tokens.bin")
    done = subprocess.run(
        [program, "-i", tokens, "-j", tokens, "-e", DESCRIPTORS[model], "-b", str(micro_batch),
         "-t", "1024", "-d", str(micro_batch * 1024), "-x", str(WARMUP_STEPS + STEPS), "-w", "1",
         "-r", "0", "-v", "1000", "-m", "1", "-s", "0", "-h", "0", "-l", "1e-4"],
        cwd=folder, text=True, stdout=subprocess.PIPE, timeout=seconds)
    print(done.stdout[-2000:], f"\nexit code {done.returncode}", flush=True)
    times = [float(ms) * 1e-3 for ms in re.findall(r"^step .*\| *([0-9.]+) ms \|", done.stdout, re.M)]
    if done.returncode != 0 or len(times) < WARMUP_STEPS + STEPS:
        return None
    return times[WARMUP_STEPS:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--sizes", default="gpt2-1558m:16")
    parser.add_argument("--seconds", type=float, default=150)
    args = parser.parse_args()
    for tool in ("make", "nvcc"):
        if not shutil.which(tool):
            print(f"{tool} is not on the PATH")
            sys.exit(77)
    end, rows, missing = time.monotonic() + args.seconds, [], False
    with tempfile.TemporaryDirectory() as folder:
        try:
            program, cudnn = build(args.source, folder, args.seconds)
            write_tokens(os.path.join(folder, "tokens.bin"), 2_000_000)
            for model, micro_batch in (size.split(":") for size in args.sizes.split(",")):
                times = measure(program, folder, model, int(micro_batch), end - time.monotonic())
                missing = missing or not times
                if times:
                    rows.append({"model": model, "micro_batch": int(micro_batch), "cudnn": cudnn,
                                 "step_seconds": times, "seconds": statistics.median(times)})
                    write_json(args.json, rows)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"not measured: {error}")
            missing = True
    print("\n| llm.c | batch | attention | ms |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['model']} | {row['micro_batch']} | {'cuDNN' if row['cudnn'] else 'its own'} | "
              f"{row['seconds'] * 1e3:.1f} |")
    sys.exit(missing)


if __name__ == "__main__":
    main()
