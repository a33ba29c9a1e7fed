#!/usr/bin/env python3
"""Tessera and PyTorch in turns on one GPU: GPT-2 in bf16, sequences of 1024, AdamW in fp32.

    compare_torch_gpu.py --program build/bin/tessera --tokens FILE.bin [--json OUT] [--seconds 220]
        [--turns 2] [--no-torch]

Prints medians over the turns of each one's median step, tokens/s, MFU (of 989 TFLOP/s and of the
matrix product measured here), the ratio, and full_shard against no_shard with one and four ranks on
the GPU. Sizes come from the smallest to the largest, until the seconds are over; what is measured by
then is in the JSON file. What fails is told, and the rest goes on.
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


def tessera(args, seconds_left, model, batch, *flags):
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as log:
        subprocess.run(
            [args.program, "train", "--no-default-config", "--device", "cuda", "--data", args.tokens,
             "--model", model, "--micro-batch", str(batch), "--sequence-length", str(LENGTH),
             "--precision", "bf16", "--steps", str(STEPS), "--sample-tokens", "0", "--quiet",
             "--log", log.name, *flags],
            check=True, capture_output=True, text=True, timeout=max(seconds_left, 1))
        lines = [json.loads(line) for line in open(log.name)]
    seconds = [line["seconds"] for line in lines if line["kind"] == "step"][4:]
    summary = next(line for line in lines if line["kind"] == "summary")
    tokens = next(line["tokens"] for line in lines if line["kind"] == "step")
    return statistics.median(seconds), tokens, summary


def torch_step(seconds_left, model, batch):
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "torch_gpu_step.py"), "--model", model, "--micro-batch",
         str(batch), "--sequence-length", str(LENGTH), "--steps", str(STEPS)],
        check=True, capture_output=True, text=True, timeout=max(seconds_left, 1)).stdout
    return statistics.median(json.loads(done.splitlines()[-1])["step_seconds"])


def flops_per_token(model):
    layers, _, width = {"gpt2-124m": (12, 12, 768), "gpt2-350m": (24, 16, 1024),
                        "gpt2-774m": (36, 20, 1280), "gpt2-1558m": (48, 25, 1600)}[model]
    # As PaLM's appendix B counts, with the causal half of attention.
    return 6 * (12 * layers * width * width + 50257 * width + layers * LENGTH * width)


class Comparison:
    """Measures, prints a row and rewrites the JSON file after each measurement."""

    def __init__(self, args):
        self.args = args
        self.begin = time.monotonic()
        self.results = {"sizes": []}

    def seconds_left(self):
        return self.args.seconds - (time.monotonic() - self.begin)

    def save(self):
        if self.args.json:
            with open(self.args.json, "w") as file:
                json.dump(self.results, file, indent=2)

    def size(self, model, batch):
        ours, theirs, summary, tokens = [], [], None, 0
        for _ in range(self.args.turns):
            seconds, tokens, summary = tessera(self.args, self.seconds_left(), model, batch)
            ours.append(seconds)
            if not self.args.no_torch:
                theirs.append(torch_step(self.seconds_left(), model, batch))
        step = statistics.median(ours)
        peer = statistics.median(theirs) if theirs else None
        rate = tokens / step
        mfu = flops_per_token(model) * rate
        matmul = summary["matmul_flops_per_second"]
        self.results["sizes"].append(
            {"model": model, "micro_batch": batch, "tessera_seconds": ours, "torch_seconds": theirs,
             "tokens_per_second": rate, "mfu_of_989": mfu / PEAK, "mfu_of_matmul": mfu / matmul,
             "ratio": peer / step if peer else None,
             "peak_bytes": summary["peak_bytes"]["measured"]["total"]})
        against = f"{peer * 1e3:.1f} | {peer / step:.2f}" if peer else " | "
        print(f"| {model} | {batch} x {LENGTH} | {step * 1e3:.1f} | {rate:,.0f} | {mfu / PEAK:.1%} | "
              f"{mfu / matmul:.1%} | {against} |", flush=True)
        self.save()

    def sharded(self, model, batch):
        def seconds(strategy, size, *flags):
            return tessera(self.args, self.seconds_left(), model, size, "--strategy", strategy, *flags)

        shared = ["--group", "thread", "--ranks", "4"]
        alone = seconds("full_shard", batch)[0] / seconds("no_shard", batch)[0]
        full, _, summary = seconds("full_shard", batch // 4, *shared)
        four = full / seconds("no_shard", batch // 4, *shared)[0]
        self.results.update(full_shard_over_no_shard={"1": alone, "4": four},
                            copied_bytes=summary["copied_bytes"])
        print(f"\nfull_shard / no_shard, {model}: 1 rank {alone:.3f}, 4 ranks on one GPU {four:.3f}; "
              f"copied in and out: {summary['copied_bytes']} bytes", flush=True)
        self.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--no-torch", action="store_true")
    comparison = Comparison(parser.parse_args())
    print("| model | batch | Tessera ms | tokens/s | MFU of 989 T | MFU of matmul | PyTorch ms | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    tasks = [(comparison.size, *size) for size in SIZES]
    tasks.insert(1, (comparison.sharded, *SIZES[0]))  # no time may be left for it after the large ones
    failed = False
    for measure, model, batch in tasks:
        try:
            measure(model, batch)
        except subprocess.TimeoutExpired:
            print(f"{model}: no time left after {comparison.args.seconds:.0f} s", flush=True)
            break
        except subprocess.CalledProcessError as error:
            failed = True
            print(f"{model}: {' '.join(error.cmd)}\nfailed: {error.stderr[-2000:]}", flush=True)
    sys.exit(failed or not comparison.results["sizes"])


if __name__ == "__main__":
    main()
