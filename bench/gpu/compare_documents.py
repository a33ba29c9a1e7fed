#!/usr/bin/env python3
"""Attention of Tessera over packed documents and PyTorch's variable-length attention, in turns on one GPU.

    compare_documents.py --bench build/bin/gpu_kernels_bench --json OUT [--turns 3] [--no-torch]

bf16, causal, 25 heads of 64, 16,384 tokens in sequences of 2048 or 4096 that are packed with documents of
200 to 1000 tokens: those of gpu_kernels_bench --documents. PyTorch has the same documents one behind the
other. Its backward pass is timed in any order and, where its attention gives the same bits twice with
torch.use_deterministic_algorithms, in a fixed one, which is what Tessera's is. Writes medians over the turns,
in seconds, by the names of gpu_kernels_bench, PyTorch's with _torch behind them. Exits with 1 if any is missing.
"""

import argparse
import inspect
import itertools
import json
import statistics
import sys

from gpu_run import bench_rows, milliseconds

HEADS, DIM, TOKENS = 25, 64, 16384
LENGTHS = 2048, 4096
LAUNCHES = 10


def packed_documents(length):
    """Lengths of all documents, one sequence after the other; see packed_documents() of the C++ benchmarks."""
    documents, numbers = [], itertools.count()
    for _ in range(TOKENS // length):
        left = length
        while left > 0:
            documents.append(min(left, 200 + next(numbers) * 337 % 801))
            left -= documents[-1]
    return documents


def causal(attention):
    """What makes this PyTorch's varlen_attn causal."""
    parameters = inspect.signature(attention).parameters
    return {"is_causal": True} if "is_causal" in parameters else {"window_size": (-1, 0)}


def torch_attention(length):
    import torch
    from torch.nn.attention.varlen import varlen_attn

    documents = packed_documents(length)
    begins = torch.tensor([0, *itertools.accumulate(documents)], dtype=torch.int32, device="cuda")
    packed = torch.randn(TOKENS, 3, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    q, k, v = (part.detach().requires_grad_() for part in packed.unbind(1))

    def attention():
        return varlen_attn(q, k, v, begins, begins, max(documents), max(documents), **causal(varlen_attn))

    with torch.no_grad():
        forward = milliseconds(attention, LAUNCHES)
    seconds = {f"attention_forward_documents_{length}_torch": forward * 1e-3}
    d_out = torch.randn_like(q)
    for name, deterministic in (("_any_order", False), ("", True)):
        torch.use_deterministic_algorithms(deterministic)
        out = attention()

        def gradients():
            return torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

        try:
            first, second = gradients(), gradients()
            same = all(torch.equal(a, b) for a, b in zip(first, second))
            if deterministic and not same:
                print(f"PyTorch's backward over documents in {length} does not give the same bits twice")
                continue
            backward = milliseconds(gradients, LAUNCHES)
        except RuntimeError as error:  # no deterministic kernel
            print(f"PyTorch's backward over documents in {length}, deterministic {deterministic}: {error}")
            continue
        finally:
            torch.use_deterministic_algorithms(False)
        seconds[f"attention_backward_documents_{length}_torch{name}"] = backward * 1e-3
    torch.cuda.empty_cache()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--turns", type=int, default=3, help="odd")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    turns, flops, failed = {}, {}, False
    for _ in range(args.turns):
        rows, status = bench_rows(args.bench, "--documents")
        failed = failed or status != 0 or not rows
        seconds = {row["name"]: row["seconds"] for row in rows}
        flops.update({row["name"]: row["flops"] for row in rows})
        if not args.no_torch:
            for length in LENGTHS:
                seconds.update(torch_attention(length))
        for name, value in seconds.items():
            turns.setdefault(name, []).append(value)
        medians = {name: statistics.median(values) for name, values in turns.items()}
        with open(args.json, "w") as file:
            json.dump({"seconds": medians, "turns": turns, "flops": flops}, file, indent=2)
    print("| attention over documents | us | TFLOP/s |\n|---|---|---|")
    for name, value in medians.items():
        of = flops.get(name.split("_torch")[0], 0.0)
        print(f"| {name} | {value * 1e6:.1f} | {of / value * 1e-12:.1f} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
