#!/usr/bin/env python3
"""Training steps of GPT-2 or Llama in PyTorch, timed: the peer of bench/step_bench and `tessera train`.

    python3 torch_step.py [--model gpt2-124m] [--layers N] [--vocabulary V] [--lora R]
        [--init FOLDER] [--tokens FILE.bin]
        [--precision fp32|bf16] [--micro-batch 1] [--sequence-length 512] [--threads 2] [--ranks 1]
        [--parallel ddp|fsdp|zero1|zero2|zero3] [--compile] [--device cpu|cuda] [--unbound]
        [--rounds 5]

The model, batch and optimizer are those of step_bench: tied embedding, tanh GELU, fused scaled dot
product attention, AdamW, denormals flushed. Fused AdamW where PyTorch has it for the parameters at
hand, else foreach; "adamw" in the output says which. bf16 is autocast over fp32 weights; with FSDP2 it
is MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32), which gathers bf16; with DeepSpeed
(zero1 to zero3) its bf16 mode, fp32 weights in the optimizer, gradients sent in fp32.

A Llama is transformers' LlamaForCausalLM with random weights, --layers and --vocabulary change its
sizes, and --lora trains peft's adapters of rank R on all linear layers of the blocks, the model frozen
(in bf16 with its weights in bf16, adapters in fp32, as peft loads them). Its FSDP2 is not timed.

--init takes shape and weights from a Hugging Face folder of a GPT-2, which `tessera train --export`
writes, --tokens the batches of `tessera train --shuffle false` from a file of 16-bit token ids.
Otherwise both are random. --compile compiles the model on one rank, on several each block and the loss.

With --ranks 2 it starts itself as processes over gloo or NCCL, each bound to cores of its own: rank r
to cores r K to r K + K - 1 of those that the caller may use, K threads, one on each (OMP_PROC_BIND).
Prints one JSON object. Its "losses" are means over ranks, of the two warm-up steps too; "peak_bytes" is
what PyTorch allocated on rank 0's GPU, on a CPU the peak of rank 0's resident memory less what was
resident after imports. What is set before the process starts, the allocator above all, is the caller's
(compare_torch.py).
"""

import argparse
import array
import json
import os
import struct
import subprocess
import sys
import time

SIZES = {"gpt2-tiny": (4, 4, 128), "gpt2-124m": (12, 12, 768), "gpt2-350m": (24, 16, 1024),
         "gpt2-774m": (36, 20, 1280), "gpt2-1558m": (48, 25, 1600)}
LLAMAS = {"llama3.2-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                          "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
                          "vocab_size": 128256, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
                          "max_position_embeddings": 131072,
                          "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                                              "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                              "original_max_position_embeddings": 8192}}}
VOCAB = 50257
WARMUP_STEPS = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-124m", choices=[*SIZES, *LLAMAS])
    parser.add_argument("--layers", type=int, help="of a Llama: another number than the model's")
    parser.add_argument("--vocabulary", type=int, help="of a Llama: another than the model's")
    parser.add_argument("--lora", type=int, metavar="R", help="of a Llama: train adapters of rank R")
    parser.add_argument("--init", metavar="FOLDER", help="shape and weights instead of --model")
    parser.add_argument("--tokens", metavar="FILE", help="16-bit token ids")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--sequence-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2, help="per rank")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--parallel", default="ddp",
                        choices=["ddp", "fsdp", "zero1", "zero2", "zero3"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--unbound", action="store_true", help="threads run where the system puts them")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def build(torch, layers, heads, width, length, vocab=VOCAB, context=1024):
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
            self.wpe = nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe(torch.arange(length, device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.loss(x, targets)

        def loss(self, x, targets):
            logits = functional.linear(self.ln_f(x), self.wte.weight)
            return functional.cross_entropy(logits.view(-1, vocab).float(), targets.view(-1))

    return Gpt()


# Hugging Face's names in a block, and ours. Its matrices are transposed: inputs x outputs.
BLOCK_NAMES = {"ln_1": "ln_1", "attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "ln_2": "ln_2",
               "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_proj"}


def load(torch, model, folder):
    """Reads fp32 weights from a Hugging Face folder, one tensor at a time."""
    sources = {name: (f"transformer.{name}", False)
               for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")}
    for layer in range(len(model.blocks)):
        for theirs, ours in BLOCK_NAMES.items():
            for kind in ("weight", "bias"):
                sources[f"blocks.{layer}.{ours}.{kind}"] = (
                    f"transformer.h.{layer}.{theirs}.{kind}",
                    kind == "weight" and not theirs.startswith("ln_"))
    with open(os.path.join(folder, "model.safetensors"), "rb") as file, torch.no_grad():
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        for name, parameter in model.named_parameters():
            source, transposed = sources[name]
            begin, end = header[source]["data_offsets"]
            file.seek(8 + size + begin)
            values = torch.frombuffer(bytearray(file.read(end - begin)), dtype=torch.float32)
            values = values.view(header[source]["shape"])
            parameter.copy_(values.t() if transposed else values)


def build_llama(torch, args):
    """transformers' model, whose forward gives the loss, and its vocabulary."""
    import transformers

    sizes = dict(LLAMAS[args.model])
    sizes["num_hidden_layers"] = args.layers or sizes["num_hidden_layers"]
    sizes["vocab_size"] = args.vocabulary or sizes["vocab_size"]
    model = transformers.LlamaForCausalLM._from_config(
        transformers.LlamaConfig(**sizes, use_cache=False), attn_implementation="sdpa")
    if args.lora:
        import peft

        if args.precision == "bf16":
            model = model.to(torch.bfloat16)
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear", task_type="CAUSAL_LM"))

    class Losses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, targets):
            logits = self.model(input_ids=tokens).logits.float()
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Losses().train(), sizes["vocab_size"]


def make_model(torch, args):
    """The model on its device, and its vocabulary."""
    if args.model in LLAMAS and not args.init:
        model, vocab = build_llama(torch, args)
        return model.to(args.device), vocab
    if not args.init:
        return build(torch, *SIZES[args.model], args.sequence_length).to(args.device), VOCAB
    with open(os.path.join(args.init, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    model = build(torch, config["n_layer"], config["n_head"], config["n_embd"], args.sequence_length,
                  config["vocab_size"], config["n_positions"])
    load(torch, model, args.init)
    return model.to(args.device), config["vocab_size"]


def batches(torch, args, rank, vocab):
    """Inputs and targets of this rank, (micro-batch, length) each, step by step."""
    shape = (args.micro_batch, args.sequence_length)
    if not args.tokens:
        while True:
            tokens = torch.randint(0, vocab, shape)
            yield tokens.to(args.device), torch.roll(tokens, -1, 1).to(args.device)
    ids = array.array("H")
    with open(args.tokens, "rb") as file:
        ids.frombytes(file.read())
    ids = torch.tensor(ids, dtype=torch.long)
    first, count = rank * args.micro_batch * shape[1], args.micro_batch * shape[1]
    while first + count < len(ids):
        tokens = ids[first:first + count + 1]
        yield tokens[:-1].view(shape).to(args.device), tokens[1:].view(shape).to(args.device)
        first += args.ranks * count
    raise ValueError(f"{args.tokens}: too few tokens; {len(ids)} are there")


def compile_parts(torch, model):
    """Blocks are alike: one is compiled for all."""
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(model.loss)


def shard(torch, model, args):
    """FSDP2, a unit per block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if args.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(args.device, (args.ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def make_optimizer(torch, model):
    """AdamW and its kind, "fused" or "foreach". Vectors do not decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    settings = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **settings), "fused"
    except RuntimeError as error:
        print(f"no fused AdamW: {error}", file=sys.stderr)
    return torch.optim.AdamW(groups, foreach=True, **settings), "foreach"


def with_deepspeed(model, optimizer, args):
    """DeepSpeed's engine around both."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": args.micro_batch,
              "zero_optimization": {"stage": int(args.parallel[-1])},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "gradient_clipping": 0.0, "bf16": {"enabled": args.precision == "bf16"},
              "communication_data_type": "fp32"}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def memory(field):
    """Bytes of this process by a field of /proc/self/status."""
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def start(torch, args):
    """Joins the process group; versions of what runs."""
    versions = {"torch": torch.__version__}
    backend = "nccl" if args.device == "cuda" else "gloo"
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        versions["gpu"] = torch.cuda.get_device_name()
    if args.parallel.startswith("zero"):
        import deepspeed

        versions["deepspeed"] = deepspeed.__version__
        deepspeed.init_distributed(backend)
    elif args.ranks > 1:
        torch.distributed.init_process_group(backend)
    return versions


def run(args):
    cores = sorted(os.sched_getaffinity(0))  # of the process, before OpenMP binds this thread
    import torch

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    versions = start(torch, args)
    resident = memory("VmRSS")
    grouped = torch.distributed.is_initialized()
    model, vocab = make_model(torch, args)
    if args.compile and args.ranks > 1:
        compile_parts(torch, model)
    if args.ranks > 1 and args.parallel == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                          static_graph=True)
    elif args.ranks > 1 and args.parallel == "fsdp":
        shard(torch, model, args)
    if args.compile and args.ranks == 1:
        model = torch.compile(model)
    optimizer, kind = make_optimizer(torch, model)
    zero = args.parallel.startswith("zero")
    if zero:
        model = with_deepspeed(model, optimizer, args)
    casts = zero or args.ranks > 1 and args.parallel == "fsdp"  # and autocast would cast once more
    autocast = args.precision == "bf16" and not casts
    data = batches(torch, args, rank, vocab)

    def step():
        tokens, targets = next(data)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=autocast):
            loss = model(tokens, targets)
        if zero:
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    losses = [step() for _ in range(WARMUP_STEPS)]
    times = []
    for _ in range(args.rounds):
        if grouped:
            torch.distributed.barrier()
        begin = time.perf_counter()
        losses.append(step())
        if args.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    peak = (torch.cuda.max_memory_allocated() if args.device == "cuda"
            else memory("VmHWM") - resident)
    mean = torch.tensor(losses, device=args.device)
    if grouped:
        torch.distributed.all_reduce(mean)
    if rank == 0:
        print(json.dumps({**versions, "step_seconds": times, "adamw": kind, "cores": cores,
                          "losses": (mean / args.ranks).tolist(), "peak_bytes": peak, **vars(args)}),
              flush=True)
    if grouped:
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
                   LOCAL_WORLD_SIZE=str(args.ranks), LOCAL_SIZE=str(args.ranks),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                   OMP_NUM_THREADS=str(args.threads))
        if args.parallel.startswith("zero"):
            # It compiles operators with the ninja of its own environment.
            env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", "")])
            env["DS_ACCELERATOR"] = args.device
        if not args.unbound and len(own) == args.threads:
            env.update(OMP_PROC_BIND="close", OMP_PLACES="{" + "},{".join(map(str, own)) + "}")
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env,
                                      preexec_fn=lambda own=own: os.sched_setaffinity(0, own)))
    while any(process.poll() is None for process in ranks):
        if any(process.poll() for process in ranks):  # the others would wait for it
            for process in ranks:
                process.kill()
        time.sleep(0.05)
    return max(abs(process.returncode) for process in ranks)


def main():
    args = arguments()
    if "RANK" in os.environ:
        run(args)
    else:
        sys.exit(bind(args))


if __name__ == "__main__":
    main()
