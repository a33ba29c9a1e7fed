#!/usr/bin/env python3
"""One training step of GPT-2 in PyTorch on the CPU, timed: the peer of bench/step_bench.

    python3 torch_step.py [--model gpt2-124m] [--precision fp32|bf16] [--micro-batch 1]
        [--sequence-length 512] [--threads 2] [--ranks 1] [--parallel ddp|fsdp] [--compile]
        [--rounds 5]

The model, batch and optimizer are those of step_bench: tied embedding, tanh GELU, fused scaled dot
product attention, fused AdamW; bf16 is autocast over fp32 weights. With --ranks 2 it starts itself
as processes over gloo. Prints one JSON object. Tuning is the caller's (compare_torch.py sets the
allocator and thread binding).
"""

import argparse
import json
import os
import subprocess
import sys
import time

SIZES = {"gpt2-124m": (12, 12, 768), "gpt2-350m": (24, 16, 1024), "gpt2-tiny": (4, 4, 128)}
VOCAB = 50257


def arguments():
    parser = argparse.ArgumentParser(description="Times GPT-2 training steps in PyTorch on the CPU.")
    parser.add_argument("--model", default="gpt2-124m", choices=SIZES)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2, help="per rank")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--parallel", default="ddp", choices=["ddp", "fsdp"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def build(torch, layers, heads, width, length):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1 = nn.LayerNorm(width)
            self.c_attn = nn.Linear(width, 3 * width)
            self.attn_proj = nn.Linear(width, width)
            self.ln_2 = nn.LayerNorm(width)
            self.c_fc = nn.Linear(width, 4 * width)
            self.mlp_proj = nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
            q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
            h = functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
            return x + self.mlp_proj(h)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(VOCAB, width)
            self.wpe = nn.Embedding(1024, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(length))
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))

    return Gpt()


def run(args):
    import torch

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo")
    layers, heads, width = SIZES[args.model]
    model = build(torch, layers, heads, width, args.sequence_length)
    if args.ranks > 1 and args.parallel == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif args.ranks > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (args.ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=args.parallel == "ddp" or args.ranks == 1)
    shape = (args.micro_batch, args.sequence_length)

    def step():
        tokens = torch.randint(0, VOCAB, shape)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(tokens, torch.roll(tokens, -1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(2):
        step()
    times = []
    for _ in range(args.rounds):
        if args.ranks > 1:
            torch.distributed.barrier()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "step_seconds": times, **vars(args)}))
    if args.ranks > 1:
        torch.distributed.destroy_process_group()


def main():
    args = arguments()
    if args.ranks == 1 or "RANK" in os.environ:
        run(args)
        return
    base = dict(os.environ, WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(20000 + os.getpid() % 20000))
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(base, RANK=str(r),
                                                                    LOCAL_RANK=str(r)))
             for r in range(args.ranks)]
    sys.exit(max(r.wait() for r in ranks))


if __name__ == "__main__":
    main()
