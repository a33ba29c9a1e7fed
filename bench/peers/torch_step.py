#!/usr/bin/env python3
"""One training step of GPT-2 in PyTorch on the CPU, timed: the peer of bench/step_bench.

    python3 torch_step.py [--model gpt2-124m] [--precision fp32|bf16] [--micro-batch 1]
        [--sequence-length 512] [--threads 2] [--ranks 1] [--parallel ddp|fsdp] [--compile]
        [--unbound] [--rounds 5]

The model, batch and optimizer are those of step_bench: tied embedding, tanh GELU, fused scaled dot
product attention, AdamW, denormals flushed. Fused AdamW where PyTorch has it for the parameters at
hand, else foreach; "adamw" in the output says which. bf16 is autocast over fp32 weights; with FSDP2 it
is MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32), which gathers bf16.

With --ranks 2 it starts itself as processes over gloo, each bound to cores of its own: rank r to cores
r K to r K + K - 1 of those that the caller may use, K threads, one on each (OMP_PROC_BIND). Prints one
JSON object. What is set before the process starts, the allocator above all, is the caller's
(compare_torch.py).
"""

import argparse
import json
import os
import subprocess
import sys
import time

SIZES = {"gpt2-tiny": (4, 4, 128), "gpt2-124m": (12, 12, 768), "gpt2-350m": (24, 16, 1024),
         "gpt2-774m": (36, 20, 1280), "gpt2-1558m": (48, 25, 1600)}
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
    parser.add_argument("--unbound", action="store_true", help="threads run where the system puts them")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def build(torch, layers, heads, width, length, vocab=VOCAB):
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
            self.wte = nn.Embedding(vocab, width)
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
            return self.loss(x, targets)

        def loss(self, x, targets):
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.view(-1, vocab).float(), targets.view(-1))

    return Gpt()


def shard(torch, model, args):
    """FSDP2, a unit per block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if args.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (args.ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def make_optimizer(torch, model):
    """AdamW and its kind, "fused" or "foreach"."""
    settings = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **settings), "fused"
    except RuntimeError as error:
        print(f"no fused AdamW: {error}", file=sys.stderr)
    return torch.optim.AdamW(model.parameters(), foreach=True, **settings), "foreach"


def run(args):
    cores = sorted(os.sched_getaffinity(0))  # of the process, before OpenMP binds this thread
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
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                          static_graph=True)
    elif args.ranks > 1:
        shard(torch, model, args)
    if args.compile:
        model = torch.compile(model)
    optimizer, kind = make_optimizer(torch, model)
    policy_casts = args.ranks > 1 and args.parallel == "fsdp"  # and autocast would cast once more
    autocast = args.precision == "bf16" and not policy_casts
    shape = (args.micro_batch, args.sequence_length)

    def step():
        tokens = torch.randint(0, VOCAB, shape)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
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
        print(json.dumps({"torch": torch.__version__, "step_seconds": times, "adamw": kind,
                          "cores": cores, **vars(args)}))
    if args.ranks > 1:
        torch.distributed.destroy_process_group()


def bind(args):
    """Starts this program again in processes with cores of their own; returns the worst exit code."""
    cores = sorted(os.sched_getaffinity(0))
    ranks = []
    for rank in range(args.ranks):
        own = cores[rank * args.threads:(rank + 1) * args.threads]
        if args.unbound or len(own) < args.threads:  # or more threads than cores
            own = cores
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.ranks),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                   OMP_NUM_THREADS=str(args.threads))
        if not args.unbound and len(own) == args.threads:
            env.update(OMP_PROC_BIND="close", OMP_PLACES="{" + "},{".join(map(str, own)) + "}")
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env,
                                      preexec_fn=lambda own=own: os.sched_setaffinity(0, own)))
    return max(process.wait() for process in ranks)


def main():
    args = arguments()
    if "RANK" in os.environ:
        run(args)
    else:
        sys.exit(bind(args))


if __name__ == "__main__":
    main()
