#!/usr/bin/env python3
"""Attention of Tessera and PyTorch's scaled_dot_product_attention, in turns on one GPU.

    compare_attention.py --bench build/bin/gpu_kernels_bench --json OUT [--turns 3] [--no-torch]

bf16, causal, batch 16, 25 heads of 64, length 1024: the shape of gpu_kernels_bench --attention. Writes
medians over the turns, in seconds, by the names of gpu_kernels_bench, and PyTorch's as
attention_forward_torch and attention_backward_torch. Exits with 1 if any is missing.
"""

import argparse
import json
import statistics
import sys

from gpu_run import bench_rows, milliseconds

BATCH, HEADS, LENGTH, DIM = 16, 25, 1024, 64
LAUNCHES = 20


def torch_attention():
    import torch

    # q, k and v as a transformer has them: parts of one projection.
    packed = torch.randn(BATCH, LENGTH, 3, HEADS, DIM, device="cuda", dtype=torch.bfloat16,
                         requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in packed.unbind(2))
    attention = torch.nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        forward = milliseconds(lambda: attention(q, k, v, is_causal=True), LAUNCHES)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, is_causal=True)
    d_out = torch.randn_like(out)
    backward = milliseconds(
        lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True), LAUNCHES)
    torch.cuda.empty_cache()
    return {"attention_forward_torch": forward * 1e-3, "attention_backward_torch": backward * 1e-3}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--turns", type=int, default=3, help="odd")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    turns, failed = {}, False
    for _ in range(args.turns):
        rows, status = bench_rows(args.bench, "--attention")
        ours = {row["name"]: row["seconds"] for row in rows}
        failed = failed or status != 0
        for name, seconds in {**ours, **({} if args.no_torch else torch_attention())}.items():
            turns.setdefault(name, []).append(seconds)
        medians = {name: statistics.median(seconds) for name, seconds in turns.items()}
        with open(args.json, "w") as file:
            json.dump({"seconds": medians, "turns": turns}, file, indent=2)
    print("| attention | us |\n|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds * 1e6:.1f} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
