#!/usr/bin/env python3
"""Training steps of GPT-2 in PyTorch on one GPU, timed: the peer of `tessera train --device cuda`.

    torch_gpu_step.py [--device cuda] [--no-compile]

Reads requests from standard input, one JSON object a line, and answers each with a line:

    {"model": "gpt2-124m", "micro_batch": 16, "sequence_length": 1024, "steps": 10}
    {"step_seconds": [...], "peak_bytes": 12345, "torch": "2.11.0", ...}

A model is built and compiled for its first request and kept; between requests it holds parameters and
optimizer state, but no activations. bf16 compute over fp32 master weights (autocast), torch.compile,
fused attention, fused AdamW, the vocabulary padded to a multiple of 128 as practice has it.
"""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import torch_step  # noqa: E402

WARMUP_STEPS = 4
PADDED_VOCAB = 50304


class Peer:
    def __init__(self, torch, args, request):
        self.torch, self.device = torch, args.device
        self.shape = (request["micro_batch"], request["sequence_length"])
        torch.manual_seed(0)
        with torch.device(self.device):
            self.model = torch_step.build(torch, *torch_step.SIZES[request["model"]], self.shape[1],
                                          PADDED_VOCAB)
        self.run = self.model if args.no_compile else torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                           weight_decay=0.1, fused=True)

    def step(self):
        torch = self.torch
        tokens = torch.randint(0, 50257, self.shape)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = self.run(tokens, torch.roll(tokens, -1, 1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def measure(self, steps):
        torch = self.torch
        times = []
        with torch.device(self.device):
            for i in range(WARMUP_STEPS + steps):
                self.synchronize()
                begin = time.perf_counter()
                self.step()
                self.synchronize()
                if i >= WARMUP_STEPS:
                    times.append(time.perf_counter() - begin)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        return {"step_seconds": times, "peak_bytes": peak}

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    # Answers alone go to standard output, whatever libraries print there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import torch

    torch.set_float32_matmul_precision("high")
    peers = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = request["model"], request["micro_batch"], request["sequence_length"]
        try:
            if key not in peers:
                peers[key] = Peer(torch, args, request)
            answer = peers[key].measure(request["steps"])
        except RuntimeError as error:  # out of memory, for one
            answer = {"error": str(error)[-2000:]}
        if args.device == "cuda":
            torch.cuda.empty_cache()  # what comes next on this GPU is Tessera
        print(json.dumps({"torch": torch.__version__, **request, **answer}), file=answers, flush=True)


if __name__ == "__main__":
    main()
