#!/usr/bin/env python3
"""Tessera and PyTorch side by side: the same step of a GPT-2 or Llama, in turns, on this machine.

    python3 bench/peers/compare_torch.py --step-bench build/bin/step_bench --python VENV/bin/python
        [--turns 3] [--rounds 3] [--quick] [--only fp32] [--no-mkl-override]
        [--model llama3.2-1b --layers 4 --vocabulary 16384 [--lora 16]]

VENV is a virtual environment with torch and numpy (pip install torch numpy), for a Llama transformers
and peft, too. A Llama is compared on one rank. PyTorch is tuned:
  - threads bound to a core each, processes to cores of their own (torch_step.py); torch.compile too,
    unless --quick
  - jemalloc with huge pages that keeps its memory, if the machine has it
  - no inherited settings of BLAS or OpenMP; gloo over the loopback interface
  - MKL's kernels for Intel's processors on those of others, too (--no-mkl-override leaves it as it
    ships): MKL asks a function whose answer a preloaded library of one line replaces, which needs a
    C compiler
  - fused AdamW (the peer's column says so if PyTorch has only foreach), denormals flushed, gradients
    as views of DDP's buckets, bf16 gathers in FSDP2
A turn runs each of the two once; what is reported is the median over turns of each one's median
step, in brackets the quartiles, and the ratio PyTorch / Tessera. "Of GEMM rate" and "of prepacked rate" are step_bench's.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import tempfile

from repeats import show

CASES = [  # precision, micro-batch, sequence length, ranks, threads per rank, peers
    ("fp32", 1, 512, 1, 2, [[], ["--compile"]]),
    ("fp32", 4, 256, 1, 2, [[], ["--compile"]]),
    ("bf16", 1, 512, 1, 2, [[], ["--compile"]]),
    ("bf16", 4, 256, 1, 2, [[], ["--compile"]]),
    ("fp32", 1, 256, 2, 1, [["--parallel", "ddp"], ["--parallel", "fsdp"]]),
    ("bf16", 1, 256, 2, 1, [["--parallel", "ddp"], ["--parallel", "fsdp"]]),
]


def mkl_override(folder):
    """A library that makes MKL choose its kernels by instruction set alone; None where it does."""
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        if "GenuineIntel" in cpuinfo.read():
            return None
    library = os.path.join(folder, "mkl_override.so")
    source = b"int mkl_serv_intel_cpu_true(void) { return 1; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source, check=True)
    return library


def environment(folder, override):
    """PyTorch's environment, and what is in it, in words."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("OPENBLAS_", "OMP_", "KMP_", "GOMP_", "MKL_", "LD_PRELOAD"))}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    jemalloc = next(iter(glob.glob("/usr/lib/*/libjemalloc.so.2")), None)
    if jemalloc:
        env["MALLOC_CONF"] = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1"
    mkl = mkl_override(folder) if override else None
    preload = [library for library in (jemalloc, mkl) if library]
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    return env, (f"allocator {'jemalloc' if jemalloc else 'glibc'}, MKL "
                 f"{'told to use its kernels for Intel' if mkl else 'as it ships'}")


class NotMeasured(Exception):
    """Why a program did not measure: the last line of what it said."""


def median_step(command, env=None):
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    if run.returncode:
        raise NotMeasured((run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1])
    line = next(line for line in reversed(run.stdout.splitlines()) if line.startswith("{"))
    result = json.loads(line)
    return statistics.median(result["step_seconds"]), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="no torch.compile")
    parser.add_argument("--model", default="gpt2-124m", choices=["gpt2-124m", "gpt2-350m", "gpt2-tiny", "llama3.2-1b"])
    parser.add_argument("--layers", type=int, help="of a Llama")
    parser.add_argument("--vocabulary", type=int, help="of a Llama")
    parser.add_argument("--lora", type=int, metavar="R", help="train adapters of this rank on all linear layers")
    parser.add_argument("--no-mkl-override", action="store_true", help="leave MKL as it ships")
    parser.add_argument("--unbound", action="store_true", help="do not bind PyTorch's threads")
    parser.add_argument("--only", help="a precision, or a number of ranks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env, described = environment(folder, not args.no_mkl_override)
        print(f"PyTorch: {described}")
        print("| precision | ranks x threads | batch | Tessera ms | of GEMM rate | of prepacked rate "
              "| peer | peer ms | ratio |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for case in CASES:
            if case[3] > 1 and args.model.startswith("llama"):
                continue
            if args.only in (None, case[0], str(case[3])):
                try:
                    compare(args, env, *case)
                except NotMeasured as reason:
                    precision, batch, length, ranks, threads, _ = case
                    print(f"| {precision} | {ranks} x {threads} | {batch} x {length} | not measured: {reason} |",
                          flush=True)


def compare(args, env, precision, batch, length, ranks, threads, peers):
    torch_step = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
    shared = ["--model", args.model, "--precision", precision, "--micro-batch", str(batch),
              "--sequence-length", str(length), "--ranks", str(ranks), "--threads", str(threads),
              "--rounds", str(args.rounds)]
    for name in ("layers", "vocabulary"):
        if getattr(args, name):
            shared += [f"--{name}", str(getattr(args, name))]
    ours = [args.step_bench, *shared, "--json", "--strategy",
            "full_shard" if ranks > 1 else "no_shard"]
    if args.lora:
        ours += ["--lora", f"r={args.lora},alpha={2 * args.lora},targets=all-linear"]
        shared += ["--lora", str(args.lora)]
    peers = [p for p in peers if not (args.quick and "--compile" in p)]
    unbound = ["--unbound"] if args.unbound else []
    own, gemm, prepacked, theirs, adamw = [], [], [], [[] for _ in peers], [""] * len(peers)
    left_out = set()
    for _ in range(args.turns):
        seconds, result = median_step(ours)
        own.append(seconds)
        gemm.append(result["of_gemm_rate"])
        prepacked.append(result["of_prepacked_rate"])
        left_out.update(result["left_out"])
        for i, peer in enumerate(peers):
            seconds, result = median_step([args.python, torch_step, *shared, *peer, *unbound], env)
            theirs[i].append(seconds)
            adamw[i] = "" if result["adamw"] == "fused" else f", {result['adamw']} AdamW"
    for peer, kind, times in zip(peers, adamw, theirs):
        mine, other = ([second * 1e3 for second in seconds] for seconds in (own, times))
        print(f"| {precision} | {ranks} x {threads} | {batch} x {length} | {show(mine, 0)} | "
              f"{statistics.median(gemm) * 100:.0f} % | "
              f"{statistics.median(prepacked) * 100:.0f} % | "
              f"{' '.join(['torch', *peer])}{kind} | {show(other, 0)} | "
              f"{statistics.median(other) / statistics.median(mine):.2f} |", flush=True)
    for wrong in sorted(left_out):
        print(f"Left out of the prepacked rate: {wrong}", flush=True)


if __name__ == "__main__":
    main()
