#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch on one GPU, timed: a peer of peers_in_turns.py.

    torch_speed.py MODEL:MICRO-BATCH [--device cuda] [--no-compile] [--sequence-length 1024]

bf16 compute over fp32 master weights (autocast), torch.compile of each block and of the loss, fused
attention, fused AdamW, the vocabulary padded to a multiple of 128 as practice has it. Prints one JSON
object as its last line.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from gpu_run import NotMeasured, Samples, steps_of

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

    times, steps = [], steps_of(model_name)
    with torch.device(args.device), Samples() as samples:
        for i in range(steps):
            if i == steps // 2:
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
            if i >= steps // 2:
                times.append(time.perf_counter() - begin)
        end = time.time()
        joules, gpu = samples.joules(counted, end), samples.between(counted, end)
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    return {"torch": torch.__version__, "step_seconds": times, "seconds": sorted(times)[len(times) // 2],
            "peak_bytes": peak, "joules": joules and joules / len(times), "gpu": gpu}


def measure_apart(model, micro_batch, limit):
    """In a process of its own, as the JSON object that it prints."""
    command = [sys.executable, os.path.abspath(__file__), f"{model}:{micro_batch}"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"no end within {limit:.0f} s") from error
    if done.returncode != 0:
        raise NotMeasured(f"exit code {done.returncode}, see above")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", metavar="MODEL:MICRO-BATCH")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    model, micro_batch = args.size.split(":")
    print(json.dumps(measure(args, model, int(micro_batch))))


if __name__ == "__main__":
    main()
