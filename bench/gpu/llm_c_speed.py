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
import threading
import time

from gpu_run import Samples, steps_of, write_json

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


def link_flags():
    """For cudnn-frontend; and the driver's libraries, which CUDA has as stubs where no driver is to link with."""
    stubs = os.path.join(os.path.dirname(os.path.realpath(shutil.which("nvcc"))), "..", "lib64", "stubs")
    return f"-lnvrtc -lcuda -L{os.path.normpath(stubs)}"


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
                   env={**os.environ, "NVCC_APPEND_FLAGS": link_flags()})
    return program, cudnn


def measure(program, folder, model, micro_batch, seconds):
    """Seconds of each step of the last half of a run, and the joules of one."""
    tokens, steps, lines = os.path.join(folder, "tokens.bin"), steps_of(model), []
    process = subprocess.Popen(
        [program, "-i", tokens, "-j", tokens, "-e", DESCRIPTORS[model], "-b", str(micro_batch),
         "-t", "1024", "-d", str(micro_batch * 1024), "-x", str(steps), "-w", "1",
         "-r", "0", "-v", "1000", "-m", "1", "-s", "0", "-h", "0", "-l", "1e-4"],
        cwd=folder, text=True, stdout=subprocess.PIPE)
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    with Samples() as samples:
        for line in process.stdout:
            lines.append((time.time(), line))
    process.wait()
    killer.cancel()
    print("".join(line for _, line in lines)[-2000:], f"\nexit code {process.returncode}", flush=True)
    rows = [(when, float(found[1]) * 1e-3) for when, line in lines
            if (found := re.match(r"step .*\| *([0-9.]+) ms \|", line))]
    if process.returncode != 0 or len(rows) < steps:
        return None, None
    rows = rows[steps // 2:]
    joules = samples.joules(rows[0][0], rows[-1][0])
    return [seconds for _, seconds in rows], joules and joules / (len(rows) - 1)


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
                times, joules = measure(program, folder, model, int(micro_batch), end - time.monotonic())
                missing = missing or not times
                if times:
                    rows.append({"model": model, "micro_batch": int(micro_batch), "cudnn": cudnn,
                                 "step_seconds": times, "seconds": statistics.median(times), "joules": joules})
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
