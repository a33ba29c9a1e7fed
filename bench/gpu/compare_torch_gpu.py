#!/usr/bin/env python3
"""Tessera and PyTorch in turns on one GPU: GPT-2 in bf16, sequences of 1024, AdamW in fp32.

    compare_torch_gpu.py --program build/bin/tessera --tokens FILE.bin [--json OUT] [--seconds 220]
        [--turns 2]

Prints medians over the turns of each one's median step, tokens/s, MFU (of 989 TFLOP/s and of the
matrix product measured here), the ratio, and full_shard against no_shard with one and four ranks on
the GPU. Sizes come from the smallest to the largest, until the seconds are over.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = [("gpt2-124m", 16), ("gpt2-350m", 8), ("gpt2-774m", 8), ("gpt2-1558m", 4)]
LENGTH = 1024
PEAK = 989e12  # dense bf16 of an H100 or H200 SXM, by its data sheet
STEPS = 14
HERE = os.path.dirname(os.path.abspath(__file__))


def tessera(args, model, batch, *flags):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
        subprocess.run(
            [args.program, "train", "--no-default-config", "--device", "cuda", "--data", args.tokens,
             "--model", model, "--micro-batch", str(batch), "--sequence-length", str(LENGTH),
             "--precision", "bf16", "--steps", str(STEPS), "--sample-tokens", "0", "--quiet",
             "--log", log.name, *flags],
            check=True, capture_output=True, text=True)
        lines = [json.loads(line) for line in open(log.name)]
    seconds = [line["seconds"] for line in lines if line["kind"] == "step"][4:]
    summary = next(line for line in lines if line["kind"] == "summary")
    tokens = next(line["tokens"] for line in lines if line["kind"] == "step")
    return statistics.median(seconds), tokens, summary


def torch_step(model, batch):
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "torch_gpu_step.py"), "--model", model, "--micro-batch",
         str(batch), "--sequence-length", str(LENGTH), "--steps", str(STEPS)],
        check=True, capture_output=True, text=True).stdout
    return statistics.median(json.loads(done.splitlines()[-1])["step_seconds"])


def flops_per_token(model):
    layers, _, width = {"gpt2-124m": (12, 12, 768), "gpt2-350m": (24, 16, 1024),
                        "gpt2-774m": (36, 20, 1280), "gpt2-1558m": (48, 25, 1600)}[model]
    # As PaLM's appendix B counts, with the causal half of attention.
    return 6 * (12 * layers * width * width + 50257 * width + layers * LENGTH * width)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    begin = time.monotonic()
    results = []
    print("| model | batch | Tessera ms | tokens/s | MFU of 989 T | MFU of matmul | PyTorch ms | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for model, batch in SIZES:
        if time.monotonic() - begin > 0.8 * args.seconds:
            print(f"| {model} | no time left | | | | | | |", flush=True)
            continue
        ours, theirs, summary, tokens = [], [], None, 0
        for _ in range(args.turns):
            seconds, tokens, summary = tessera(args, model, batch)
            ours.append(seconds)
            theirs.append(torch_step(model, batch))
        step, peer = statistics.median(ours), statistics.median(theirs)
        rate = tokens / step
        mfu = flops_per_token(model) * rate
        matmul = summary["matmul_flops_per_second"]
        results.append({"model": model, "micro_batch": batch, "tessera_seconds": ours,
                        "torch_seconds": theirs, "tokens_per_second": rate, "mfu_of_989": mfu / PEAK,
                        "mfu_of_matmul": mfu / matmul, "ratio": peer / step,
                        "peak_bytes": summary["peak_bytes"]["measured"]["total"]})
        print(f"| {model} | {batch} x {LENGTH} | {step * 1e3:.1f} | {rate:,.0f} | {mfu / PEAK:.1%} | "
              f"{mfu / matmul:.1%} | {peer * 1e3:.1f} | {peer / step:.2f} |", flush=True)
    model, batch = SIZES[0]
    plain, _, _ = tessera(args, model, batch, "--strategy", "no_shard")
    alone, _, _ = tessera(args, model, batch, "--strategy", "full_shard")
    shared = ["--group", "thread", "--ranks", "4"]
    plain4, _, _ = tessera(args, model, batch // 4, "--strategy", "no_shard", *shared)
    full4, _, summary4 = tessera(args, model, batch // 4, "--strategy", "full_shard", *shared)
    print(f"\nfull_shard / no_shard, {model}: 1 rank {alone / plain:.3f}, 4 ranks on one GPU "
          f"{full4 / plain4:.3f}; copied in and out: {summary4['copied_bytes']} bytes")
    if args.json:
        json.dump({"sizes": results, "full_shard_over_no_shard": {"1": alone / plain, "4": full4 / plain4},
                   "copied_bytes": summary4["copied_bytes"]}, open(args.json, "w"), indent=2)


if __name__ == "__main__":
    main()
