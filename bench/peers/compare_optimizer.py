#!/usr/bin/env python3
"""AdamW over state in the host's memory: Tessera, PyTorch's fused AdamW and DeepSpeed's CPU Adam in turns.

    python3 bench/peers/compare_optimizer.py --offload-bench build/bin/offload_bench
        --python VENV/bin/python [--elements 33554432] [--threads 2] [--turns 5]

VENV is a virtual environment with torch and, for its column, deepspeed (which compiles its kernel at the
first call). Each updates as many fp32 parameters and moments from fp32 gradients, decoupled weight decay
among it, and writes the parameters rounded to bf16: Tessera in one pass, the others by a copy after their
step, as DeepSpeed's offload does it. Every turn is a process of its own that reports the median of its
rounds. Nanoseconds per parameter, medians over turns, in brackets the quartiles.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from repeats import show

ROUNDS = 7


def make_optimizer(name, parameter):
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    if name == "torch":
        import torch

        return torch.optim.AdamW([parameter], fused=True, **settings)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam([parameter], adamw_mode=True, **settings)


def measure_peer(name, elements, threads):
    """In the environment with torch: prints the medians of step alone and of step and rounding."""
    import torch

    torch.set_num_threads(threads)
    parameter = torch.nn.Parameter(torch.rand(elements))
    parameter.grad = torch.rand(elements)
    rounded = torch.empty(elements, dtype=torch.bfloat16)
    optimizer = make_optimizer(name, parameter)
    step, both = [], []
    for turn in range(ROUNDS + 2):
        begin = time.perf_counter()
        optimizer.step()
        stepped = time.perf_counter()
        rounded.copy_(parameter.detach())
        if turn >= 2:
            step.append(stepped - begin)
            both.append(time.perf_counter() - begin)
    print(json.dumps({"step": statistics.median(step), "both": statistics.median(both)}))


def run(command, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    result = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE)
    if result.returncode:
        sys.exit(f"{command[0]} failed with exit code {result.returncode}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def measure_tessera(arguments):
    result = run([arguments.offload_bench, "--only", "pass", "--json", "--elements", str(arguments.elements),
                  "--ranks", "1", "--threads", str(arguments.threads), "--rounds", str(ROUNDS)], arguments.threads)
    bytes_per_parameter = 30  # what offload_bench counts
    return bytes_per_parameter / statistics.median(result["pass_gb_per_second"])


def peers_of(python):
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('deepspeed') is None)"
    return ["torch"] + ([] if subprocess.run([python, "-c", found]).returncode else ["deepspeed"])


def compare(arguments):
    peers = peers_of(arguments.python)
    ours, theirs = [], {name: {"step": [], "both": []} for name in peers}
    for _ in range(arguments.turns):
        ours.append(measure_tessera(arguments))
        for name in peers:
            times = run([arguments.python, __file__, "--measure", name, "--elements", str(arguments.elements),
                         "--threads", str(arguments.threads)], arguments.threads)
            for kind, seconds in times.items():
                theirs[name][kind].append(seconds / arguments.elements * 1e9)
    print(f"{arguments.elements} parameters, {arguments.threads} threads, {arguments.turns} turns; ns per parameter")
    print("| optimizer | step | step and rounding | theirs / ours |")
    print("|---|---|---|---|")
    print(f"| Tessera | | {show(ours, 3)} | |")
    for name in peers:
        ratios = [peer / own for peer, own in zip(theirs[name]["both"], ours)]
        print(f"| {name} | {show(theirs[name]['step'], 3)} | {show(theirs[name]['both'], 3)} | {show(ratios, 3)} |")
    if "deepspeed" not in peers:
        print("deepspeed is not installed in that environment")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offload-bench")
    parser.add_argument("--python")
    parser.add_argument("--elements", type=int, default=1 << 25)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--measure", choices=["torch", "deepspeed"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure_peer(arguments.measure, arguments.elements, arguments.threads)
    if not arguments.offload_bench or not arguments.python:
        parser.error("give --offload-bench and --python")
    compare(arguments)


if __name__ == "__main__":
    main()
