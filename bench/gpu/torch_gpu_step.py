#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch on one GPU, timed: the peer of `tessera train --device cuda`.

    torch_gpu_step.py [--model gpt2-124m] [--micro-batch 8] [--sequence-length 1024] [--steps 20]

bf16 compute over fp32 master weights (autocast), torch.compile, fused attention, fused AdamW, the
vocabulary padded to a multiple of 128 as practice has it. Prints one JSON object.
"""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import torch_step  # noqa: E402

SIZES = {**torch_step.SIZES, "gpt2-774m": (36, 20, 1280), "gpt2-1558m": (48, 25, 1600)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-124m", choices=SIZES)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    import torch

    torch_step.VOCAB = 50304
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = torch_step.build(torch, *SIZES[args.model], args.sequence_length)
        run = model if args.no_compile else torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                      weight_decay=0.1, fused=True)
        shape = (args.micro_batch, args.sequence_length)

        def step():
            tokens = torch.randint(0, 50257, shape)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(tokens, torch.roll(tokens, -1, 1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        for _ in range(5):
            step()
        times = []
        for _ in range(args.steps):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    print(json.dumps({"torch": torch.__version__, "step_seconds": times,
                      "peak_bytes": torch.cuda.max_memory_allocated(), **vars(args)}))


if __name__ == "__main__":
    main()
