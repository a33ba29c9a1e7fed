#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch on one GPU, timed: the peer of train_speed.py.

    torch_speed.py --json OUT [--sizes gpt2-1558m:16,gpt2-124m:16] [--seconds 200] [--limit 90]
        [--device cuda] [--no-compile] [--sequence-length 1024]

A size is MODEL:MICRO-BATCH, the most important first; each runs in a process of its own, which is
ended when it has compiled and measured for --limit seconds. bf16 compute over fp32 master weights
(autocast), torch.compile of each block and of the loss, fused attention, fused AdamW, the vocabulary
padded to a multiple of 128 as practice has it. The JSON file is rewritten after each size. Exits with
1 if one was not measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from gpu_run import COUNTED_STEPS, STEPS, Samples, write_json

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import torch_step  # noqa: E402

PADDED_VOCAB = 50304


def measure(args, model_name, micro_batch):
    """One size, in this process."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    shape = (micro_batch, args.sequence_length)
    with torch.device(args.device):
        model = torch_step.build(torch, *torch_step.SIZES[model_name], shape[1], PADDED_VOCAB)
    if not args.no_compile:
        # Blocks are alike: one is compiled for all.
        for block in model.blocks:
            block.compile()
        model.loss = torch.compile(model.loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)

    def synchronize():
        if args.device == "cuda":
            torch.cuda.synchronize()

    times = []
    with torch.device(args.device), Samples() as samples:
        for i in range(STEPS):
            if i == STEPS - COUNTED_STEPS:
                counted = time.time()
            synchronize()
            begin = time.perf_counter()
            tokens = torch.randint(0, 50257, shape)
            with torch.autocast(args.device, dtype=torch.bfloat16):
                loss = model(tokens, torch.roll(tokens, -1, 1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            synchronize()
            if i >= STEPS - COUNTED_STEPS:
                times.append(time.perf_counter() - begin)
        joules = samples.joules(counted, time.time())
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    return {"model": model_name, "micro_batch": micro_batch, "torch": torch.__version__,
            "step_seconds": times, "seconds": sorted(times)[len(times) // 2], "peak_bytes": peak,
            "joules": joules and joules / len(times)}


def measure_apart(size, limit):
    """In a process of its own; None if it did not come to an end, which is said."""
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--one", size]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"not measured: {size}: no end within {limit:.0f} s", flush=True)
        return None
    if done.returncode != 0:
        print(f"not measured: {size}: exit code {done.returncode}, see above", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True)
    parser.add_argument("--sizes", default="gpt2-1558m:16,gpt2-124m:16")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--limit", type=float, default=90)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        model, micro_batch = args.one.split(":")
        return print(json.dumps(measure(args, model, int(micro_batch))))

    begin, rows, missing = time.monotonic(), [], False
    for size in args.sizes.split(","):
        left = args.seconds - (time.monotonic() - begin)
        row = measure_apart(size, min(left, args.limit)) if left > 5 else None
        missing = missing or row is None
        if row:
            rows.append(row)
            write_json(args.json, rows)
    print("\n| PyTorch | batch | ms |\n|---|---|---|")
    for row in rows:
        print(f"| {row['model']} | {row['micro_batch']} | {row['seconds'] * 1e3:.1f} |")
    sys.exit(missing)


if __name__ == "__main__":
    main()
