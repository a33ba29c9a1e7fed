#!/usr/bin/env python3
"""Tessera and PyTorch side by side: the same GPT-2 step, in turns, on this machine.

    python3 bench/peers/compare_torch.py --step-bench build/bin/step_bench --python VENV/bin/python
        [--turns 3] [--quick]

VENV is a virtual environment with torch and numpy (pip install torch numpy). PyTorch is tuned: MKL
as it ships, jemalloc if the machine has it, threads bound, no inherited BLAS settings. A turn runs
each of the two once; what is reported is the median over turns of each one's median step, and the
ratio PyTorch / Tessera.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess

CASES = [  # precision, micro-batch, sequence length, ranks, threads per rank, peers
    ("fp32", 1, 512, 1, 2, [[], ["--compile"]]),
    ("fp32", 4, 256, 1, 2, [[], ["--compile"]]),
    ("bf16", 1, 512, 1, 2, [[], ["--compile"]]),
    ("bf16", 4, 256, 1, 2, [[], ["--compile"]]),
    ("fp32", 1, 256, 2, 1, [["--parallel", "ddp"], ["--parallel", "fsdp"]]),
    ("bf16", 1, 256, 2, 1, [["--parallel", "ddp"], ["--parallel", "fsdp"]]),
]


def environment():
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("OPENBLAS_", "OMP_", "MKL_", "LD_PRELOAD"))}
    jemalloc = glob.glob("/usr/lib/*/libjemalloc.so.2")
    if jemalloc:
        env["LD_PRELOAD"] = jemalloc[0]
        env["MALLOC_CONF"] = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"
    return env, bool(jemalloc)


def median_step(command, env=None):
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    line = next(line for line in reversed(output.splitlines()) if line.startswith("{"))
    result = json.loads(line)
    return statistics.median(result["step_seconds"]), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="no torch.compile")
    parser.add_argument("--only", help="a precision, or a number of ranks")
    args = parser.parse_args()
    env, jemalloc = environment()
    print(f"PyTorch's allocator: {'jemalloc' if jemalloc else 'glibc'}")
    print("| precision | ranks x threads | batch | Tessera ms | of GEMM rate | peer | peer ms | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    torch_step = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
    for precision, batch, length, ranks, threads, peers in CASES:
        if args.only and args.only not in (precision, str(ranks)):
            continue
        shared = ["--precision", precision, "--micro-batch", str(batch), "--sequence-length",
                  str(length), "--ranks", str(ranks), "--threads", str(threads), "--rounds",
                  str(args.rounds)]
        ours = [args.step_bench, *shared, "--json", "--strategy",
                "full_shard" if ranks > 1 else "no_shard"]
        peers = [p for p in peers if not (args.quick and "--compile" in p)]
        own, rates, theirs = [], [], [[] for _ in peers]
        for _ in range(args.turns):
            seconds, result = median_step(ours)
            own.append(seconds)
            rates.append(result["of_gemm_rate"])
            for i, peer in enumerate(peers):
                theirs[i].append(median_step([args.python, torch_step, *shared, *peer], env)[0])
        for peer, times in zip(peers, theirs):
            mine, other = statistics.median(own), statistics.median(times)
            spread = f"{min(own) * 1e3:.0f}-{max(own) * 1e3:.0f}"
            peer_spread = f"{min(times) * 1e3:.0f}-{max(times) * 1e3:.0f}"
            print(f"| {precision} | {ranks} x {threads} | {batch} x {length} | {mine * 1e3:.0f} "
                  f"({spread}) | {statistics.median(rates) * 100:.0f} % | torch {' '.join(peer)} | "
                  f"{other * 1e3:.0f} ({peer_spread}) | {other / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
